#include "tosaic/ir/json_object.h"

#include <catch2/catch.hpp>

#include "tosaic/base/error.h"

namespace tosaic {
namespace {

using Keys = std::vector<std::string>;

TEST_CASE("json_keys returns the keys of the outermost object", "[ir][json]") {
  CHECK(json_keys("{}") == Keys{});
  CHECK(json_keys(" {\n} ") == Keys{});
  CHECK(json_keys(R"({"args":[{"$":0},-1.5e-3,"}",null],"kwargs":{"a":true}})") == Keys{"args", "kwargs"});
  CHECK(json_keys(R"({"a\"b":"\u00e4\n" , "c":0.5})") == Keys{R"(a\"b)", "c"});
}

TEST_CASE("text that is not a JSON object has no keys", "[ir][json]") {
  for (const char* text : {"",
                           "[]",
                           "3",
                           "alpha=3",
                           "{",
                           "}",
                           "{}}",
                           "{} {}",
                           "{,}",
                           R"({"a"})",
                           R"({"a":})",
                           R"({"a":1,})",
                           R"({"a":1 "b":2})",
                           R"({a:1})",
                           R"({"a":01})",
                           R"({"a":1.})",
                           R"({"a":NaN})",
                           R"({"a":[1,]})",
                           R"({"a":"\x"})",
                           R"({"a":"\u12g4"})",
                           R"({"a":"\u12)",
                           "{\"a\":\"\n\"}",
                           R"({"a)",
                           R"({"a":tru})"}) {
    INFO(text);
    CHECK_FALSE(json_keys(text).has_value());
  }
}

TEST_CASE("JSON that is nested too deep is refused", "[ir][json]") {
  const auto nested = [](int depth) {
    const auto count = static_cast<std::size_t>(depth - 1);
    return "{\"a\":" + std::string(count, '[') + std::string(count, ']') + "}";
  };
  CHECK(json_keys(nested(kMaxJsonDepth)).has_value());
  CHECK_FALSE(json_keys(nested(kMaxJsonDepth + 1)).has_value());
  CHECK_FALSE(json_keys("{\"a\":" + std::string(1000000, '[')).has_value());
}

TEST_CASE("an entry is added at the end of an object", "[ir][json]") {
  CHECK(with_entry(R"({"args":[],"kwargs":{}})", "n", "[1]") == R"({"args":[],"kwargs":{},"n":[1]})");
  CHECK(with_entry(R"({"a":"}"} )", "n", "1") == R"({"a":"}","n":1})");
  for (const char* empty : {"", " ", "{}", "{ }"}) CHECK(with_entry(empty, "n", "1") == R"({"n":1})");
  CHECK_THROWS_AS(with_entry("[]", "n", "1"), InternalError);
}

}  // namespace
}  // namespace tosaic
