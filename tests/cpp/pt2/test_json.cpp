// JSON that is read strictly: values, places of faults, limits, and mutated text.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "mutator.h"
#include "tosaic/base/error.h"
#include "tosaic/pt2/fields.h"
#include "tosaic/pt2/json.h"

namespace tosaic::pt2 {
namespace {

std::string refusal_of(const std::string& text) {
  try {
    const JsonDocument document(text, "a test");
    return "";
  } catch (const InvalidGraph& error) {
    return error.what();
  }
}

// Writes a document again, as JSON without spaces.
std::string written(Json value) {
  std::string text;
  switch (value.kind()) {
    case JsonKind::kString:
      return "\"" + std::string(value.raw()) + "\"";
    case JsonKind::kArray:
      for_each_item(value, [&](Json each) { text += (text.empty() ? "" : ",") + written(each); });
      return "[" + text + "]";
    case JsonKind::kObject:
      for_each_entry(value, [&](Json key, Json held) {
        text += (text.empty() ? "" : ",") + written(key) + ":" + written(held);
      });
      return "{" + text + "}";
    case JsonKind::kLongInteger:
      return std::string(value.raw());
    default:
      return shown(value);
  }
}

// Decodes every string of a document, so that a sanitizer sees each of them read.
std::size_t bytes_of_strings(Json value) {
  std::size_t count = value.kind() == JsonKind::kString ? value.decoded().size() : 0;
  if (value.kind() == JsonKind::kArray)
    for_each_item(value, [&](Json each) { count += bytes_of_strings(each); });
  if (value.kind() == JsonKind::kObject)
    for_each_entry(value,
                   [&](Json key, Json held) { count += bytes_of_strings(key) + bytes_of_strings(held); });
  return count;
}

const std::string kText =
    R"({"a":[1,-2,null,true,false,[],{}],"b\n":{"c":"x\u00e9\ud83d\ude00\"","d":9223372036854775807},"":"é"})";

}  // namespace

TEST_CASE("a document is read in the order of its text", "[pt2]") {
  const JsonDocument document(kText, "a test");
  CHECK(written(document.root()) == kText);
}

TEST_CASE("numbers are integers of 64 bits, floats, or integers that are too long", "[pt2]") {
  const std::string text = " [0 , -0.5e1,1E+2, 9223372036854775808, -9223372036854775808] ";
  const JsonDocument document(text, "a test");
  std::vector<Json> values;
  for_each_item(document.root(), [&](Json each) { values.push_back(each); });
  CHECK(values[0].integer() == 0);
  CHECK(values[1].number() == -5.0);
  CHECK(values[2].number() == 100.0);
  CHECK(values[3].kind() == JsonKind::kLongInteger);
  CHECK(values[4].integer() == std::numeric_limits<std::int64_t>::min());
}

TEST_CASE("escapes are decoded when a string is read", "[pt2]") {
  const JsonDocument document(kText, "a test");
  const Json inner = *document.root().find("b\n");
  CHECK(inner.find("c")->decoded() == "x\xc3\xa9\xf0\x9f\x98\x80\"");
  CHECK(document.root().find("")->decoded() == "\xc3\xa9");
  CHECK_FALSE(document.root().find("c"));
}

TEST_CASE("a text that somebody writes after it was read is not left by an escape at its end", "[pt2]") {
  std::string text = R"(["a\nb"])";
  const JsonDocument document(text, "a test");
  text[text.find('b')] = '\\';
  CHECK(document.root().first().decoded() == "a\n");
}

TEST_CASE("the last of equal keys counts", "[pt2]") {
  const std::string text = R"({"a":1,"b":2,"\u0061":3})";
  const JsonDocument document(text, "a test");
  CHECK(document.root().find("a")->integer() == 3);
}

TEST_CASE("text that is not JSON is refused with the place", "[pt2]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "expected a value, got the end of the text at 0"},
      {"[1,]", "expected a value, got ']' at 3"},
      {"[1 2]", "expected ',' or ']', got '2' at 3"},
      {"{\"a\":1,}", "expected a key, got '}' at 7"},
      {"{\"a\" 1}", "expected ':', got '1' at 5"},
      {"{1:2}", "expected a key, got '1' at 1"},
      {"[1]x", "expected the end, got 'x' at 3"},
      {"[", "expected a value, got the end of the text at 1"},
      {"\"a", "expected the end of a string, got the end of the text at 2"},
      {"\"a\n\"", "expected a character, got byte 10 at 2"},
      {"\"\\x\"", "expected an escape of a character"},
      {"\"\\ud800\"", "expected an escape of a character"},
      {"\"\\ud800\\u0041\"", "expected an escape of a character"},
      {"\"\\u12g4\"", "expected an escape of a character"},
      {"\"a\\", "expected an escape, got the end of the text at 3"},
      {"\"a\\u00", "expected an escape, got the end of the text at 6"},
      {"\"\xc3\"", "expected a string of UTF-8"},
      {"\"\xed\xa0\x80\"", "expected a string of UTF-8"},
      {"01", "expected the end, got '1' at 1"},
      {"1.", "expected a digit, got the end of the text at 2"},
      {"1e", "expected a digit"},
      {"-", "expected a digit"},
      {"+1", "expected a value, got '+' at 0"},
      {"NaN", "expected a value, got 'N' at 0"},
      {"truth", "expected a value, got 't' at 0"},
      {"1e999", "expected numbers of 64 bits, got 1e999"},
      {std::string(2000, '1'), "expected numbers of at most 1024 characters, got 2000"},
      {std::string(100000, '['), "expected at most 512 levels, got more at 513"},
  };
  for (const auto& [text, expected] : cases) {
    CAPTURE(text.substr(0, 20));
    const std::string found = refusal_of(text);
    CHECK(found.find("[pt2] the JSON of a test cannot be read: ") == 0);
    CHECK(found.find(expected) != std::string::npos);
  }
  CHECK(refusal_of(std::string(512, '[') + std::string(512, ']')).empty());
}

TEST_CASE("mutated text is read or refused", "[pt2]") {
  testing::Mutator mutator(1);
  std::size_t count = 0;
  for (std::size_t i = 0; i < testing::fuzz_iterations(); ++i) {
    testing::Mutator::Bytes bytes(kText.size());
    std::memcpy(bytes.data(), kText.data(), kText.size());
    mutator.mutate(bytes);
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    try {
      const JsonDocument document(text, "a test");
      static_cast<void>(bytes_of_strings(document.root()));
      ++count;
    } catch (const InvalidGraph&) {
    }
  }
  CHECK(count > 0);
}

}  // namespace tosaic::pt2
