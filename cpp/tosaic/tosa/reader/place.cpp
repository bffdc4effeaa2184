#include "tosaic/tosa/reader/place.h"

#include "tosaic/base/error_text.h"
#include "tosaic/ir/lexical.h"
#include "tosaic/tosa/reader/lists.h"
#include "tosaic/tosa/schema_map.h"

namespace tosaic::tosa {
namespace {

// The text, in which "\xNN" replaces a byte that is not UTF-8.
std::string readable(std::string_view text) {
  if (is_utf8(text)) return std::string(text);
  std::string escaped;
  append_quoted(escaped, text);
  return escaped.substr(1, escaped.size() - 2);
}

}  // namespace

std::string quoted_readable(std::string_view text) { return quoted(readable(text)); }

std::string prefix_of(const Place& place) {
  if (place.op == nullptr) return "";
  const std::string code = op_code_name(static_cast<std::uint32_t>(place.op->op()));
  return "operator " + std::to_string(place.index) + " (" + code + "): ";
}

std::string result_name(const Place& place) {
  if (place.op == nullptr || length(place.op->outputs()) == 0) return "";
  return readable(name_at(place.op->outputs(), 0));
}

std::string utf8_text(const Place& place, const char* what, std::string_view text) {
  if (!is_utf8(text))
    fail<InvalidGraph>(place, std::string(what) + " is not UTF-8", "text", quoted_readable(text));
  return std::string(text);
}

}  // namespace tosaic::tosa
