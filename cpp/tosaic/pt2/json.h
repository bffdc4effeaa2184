// json: reads JSON of which nothing is trusted.
//
//   {"sizes": [{"as_int": 3}]}   ->   object(1) string object... : all values in one vector, in the order of
//                                     the text
//
// A value with members stores where the values after it begin, so that unread members are skipped in one
// step. A string is a part of the text: its escapes are checked at once, and decoded when somebody reads the
// string. If the text is a mapped file, somebody may write it meanwhile: then strings have other
// characters, and nothing outside of the text is read. The reader does not recurse, and refuses text that is
// nested deeper than `kDeepestJson`, so that recursive functions may walk what it has read. It reads RFC 8259
// strictly: UTF-8, no NaN, no lone surrogates. If a key occurs twice in an object, the last one counts, as in
// Python.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tosaic::pt2 {

inline constexpr std::size_t kDeepestJson = 512;

enum class JsonKind : std::uint8_t {
  kNull,
  kBool,
  kInteger,
  kFloat,
  kLongInteger,  // an integer of more than 64 bits
  kString,
  kArray,
  kObject
};

// A value as it is stored.
struct JsonEntry {
  JsonKind kind = JsonKind::kNull;
  bool flag = false;       // a truth value; for a string: it has escapes
  std::uint32_t size = 0;  // members, or bytes of the text between the quotes or of a long integer
  union {
    std::int64_t integer = 0;
    double number;
    const char* text;
    std::uint64_t skip;  // arrays and objects: how many entries later the next value begins
  };
};

// A value of a document, which must live as long as the value is used.
class Json {
 public:
  explicit Json(const JsonEntry* at) : at_(at) {}

  [[nodiscard]] JsonKind kind() const { return at_->kind; }
  [[nodiscard]] std::size_t size() const { return at_->size; }
  [[nodiscard]] bool truth() const { return at_->flag; }
  [[nodiscard]] std::int64_t integer() const { return at_->integer; }
  [[nodiscard]] double number() const { return at_->number; }
  // The text between the quotes, or the digits of a long integer.
  [[nodiscard]] std::string_view raw() const { return {at_->text, at_->size}; }
  [[nodiscard]] bool has_escapes() const { return at_->flag; }
  // The characters of a string.
  [[nodiscard]] std::string decoded() const;
  [[nodiscard]] bool is(std::string_view text) const {
    return has_escapes() ? decoded() == text : raw() == text;
  }
  // The member of an object; nothing if there is none.
  [[nodiscard]] std::optional<Json> find(std::string_view key) const;

  // The first item of an array, or the first key of an object. next() of a key is its value.
  [[nodiscard]] Json first() const { return Json(at_ + 1); }
  // The value after this one.
  [[nodiscard]] Json next() const { return Json(at_ + (kind() >= JsonKind::kArray ? at_->skip : 1)); }

 private:
  const JsonEntry* at_;
};

class JsonDocument {
 public:
  // Reads a text, which must live as long as the document. Throws InvalidGraph, which has the place in the
  // text and `what`, the name of the text.
  JsonDocument(std::string_view text, const std::string& what);

  [[nodiscard]] Json root() const { return Json(entries_.data()); }

 private:
  std::vector<JsonEntry> entries_;
};

// A value as a short text for an error: numbers and strings as they are, others by their kind.
[[nodiscard]] std::string shown(Json value);

}  // namespace tosaic::pt2
