// place: the place in the file that is being read, and errors that name it.
//
//   [pte] the payload is outside the list: expected an index below 1, got 7 (method 'forward', delegate 0
//   ('XnnpackBackend'))
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tosaic/base/error.h"

namespace tosaic::pte {

// An item of the file, such as a value, inside another item. Texts are made only for errors.
struct Place {
  const Place* outer = nullptr;
  std::string_view kind = {};  // "method", "value", "instruction", "delegate"
  std::int64_t index = -1;
  std::string_view name = {};
};

// "method 'forward', delegate 0 ('XnnpackBackend')"; "" for the file.
[[nodiscard]] std::string text_of(const Place& place);
// The text in quotes; a byte that is not UTF-8 becomes "\xNN". Long texts are cut.
[[nodiscard]] std::string quoted(std::string_view text);

template <class E>
[[noreturn]] void fail(const Place& place, const std::string& what, const std::string& expected = "",
                       const std::string& got = "") {
  const std::string where = text_of(place);
  throw E(
      {.where = "pte", .what = where.empty() ? what : where + ": " + what, .expected = expected, .got = got});
}

}  // namespace tosaic::pte
