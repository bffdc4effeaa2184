// place: the place in the file that is being read, and errors that name it.
//
//   [tosa] operator 3 (CONV2D): the attributes are missing (node 'y')
#pragma once

#include <tosa_generated.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "tosaic/base/error.h"

namespace tosaic::tosa {

// An operator of a block; by default no operator, for errors about a list of the block or about the file.
struct Place {
  const schema::TosaOperator* op = nullptr;
  std::uint32_t index = 0;  // the index of the operator in its block
};

// The text in quotes: "'conv2d'". A byte that is not UTF-8 becomes "\xNN".
[[nodiscard]] std::string quoted_readable(std::string_view text);

// "operator 3 (CONV2D): "; "" if the place is not an operator.
[[nodiscard]] std::string prefix_of(const Place& place);
// The name of the operator's first result, readable; "" if there is none.
[[nodiscard]] std::string result_name(const Place& place);

template <class E>
[[noreturn]] void fail(const Place& place, const std::string& what, const std::string& expected = "",
                       const std::string& got = "") {
  throw E({.where = "tosa",
           .what = prefix_of(place) + what,
           .expected = expected,
           .got = got,
           .node = result_name(place)});
}

// Returns what `f` returns. Errors of other layers that `f` throws, which know no file, are thrown again with
// the place.
template <class F>
auto with_place(const Place& place, F f) {
  const auto parts = [&place](const Error& error) {
    ErrorParts placed = error.parts();
    placed.where = "tosa";
    placed.what = prefix_of(place) + placed.what;
    placed.node = result_name(place);
    return placed;
  };
  try {
    return f();
  } catch (const UnsupportedOp& error) {
    throw UnsupportedOp(parts(error));
  } catch (const InvalidGraph& error) {
    throw InvalidGraph(parts(error));
  }
}

// A string of the file that becomes a name, or part of a name, in the graph. Throws unless it is UTF-8.
// `what` describes the string in errors, as in "the name of a tensor".
[[nodiscard]] std::string utf8_text(const Place& place, const char* what, std::string_view text);

}  // namespace tosaic::tosa
