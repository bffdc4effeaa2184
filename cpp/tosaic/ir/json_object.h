// json_object: JSON objects as text, for the arguments of foreign operators (OpaqueAttrs::arguments).
//
//   {"args":[{"$":0},1.5],"kwargs":{}}   +   "dim_orders": [[0,2,3,1],[0,2,3,1]]
//     ->
//   {"args":[{"$":0},1.5],"kwargs":{},"dim_orders":[[0,2,3,1],[0,2,3,1]]}
//
// The text is only scanned and extended, never written anew, so its other bytes stay as they are.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tosaic {

// The keys of the outermost object, as they are written between the quotes. Returns nothing if the text is
// not one JSON object (RFC 8259), or if it is nested deeper than kMaxJsonDepth.
[[nodiscard]] std::optional<std::vector<std::string>> json_keys(std::string_view text);

inline constexpr int kMaxJsonDepth = 256;

// True for empty text and for white space only, which as arguments mean the empty object.
[[nodiscard]] bool is_blank(std::string_view text);

// The object with one more entry at its end. `value` is JSON. A blank text is the empty object. Throws
// InternalError if the text is not an object, which verify() refuses in arguments.
[[nodiscard]] std::string with_entry(std::string_view object, std::string_view key, std::string_view value);

}  // namespace tosaic
