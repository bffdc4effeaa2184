// fields: reads values of JSON that have to be of a certain kind.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tosaic/pt2/json.h"

namespace tosaic::pt2 {

// A value is not what the format requires. Readers of entries catch it and name the entry.
class WrongJson : public std::exception {
 public:
  WrongJson(std::string expected, std::string got) : expected_(std::move(expected)), got_(std::move(got)) {}
  WrongJson(std::string expected, Json got) : WrongJson(std::move(expected), shown(got)) {}

  [[nodiscard]] const char* what() const noexcept override { return expected_.c_str(); }
  [[nodiscard]] const std::string& expected() const { return expected_; }
  [[nodiscard]] const std::string& got() const { return got_; }

 private:
  std::string expected_, got_;
};

// The decoded texts of strings with escapes. A view of such a text is valid as long as the deque exists.
using Texts = std::deque<std::string>;

[[nodiscard]] std::int64_t integer(Json value);  // of at most 64 bits
[[nodiscard]] bool boolean(Json value);
// A number. Numbers that JSON lacks are strings: "Infinity", "-Infinity", "NaN".
[[nodiscard]] double number(Json value);
// A string without NUL: a part of the document's text or of `texts`.
[[nodiscard]] std::string_view text(Json value, Texts& texts);
[[nodiscard]] Json listed(Json value);   // a list
[[nodiscard]] Json mapping(Json value);  // an object
// The entry of an object.
[[nodiscard]] Json entry(Json value, std::string_view key);
// The entry of an object; nothing if it has no such entry.
[[nodiscard]] std::optional<Json> find_entry(Json value, std::string_view key);
// The key and the value of an object with one entry.
[[nodiscard]] std::pair<Json, Json> only_entry(Json value);

// Calls `read` with each item of a list.
template <class Function>
void for_each_item(Json list, Function&& read) {
  Json each = listed(list).first();
  for (std::size_t i = 0; i < list.size(); ++i, each = each.next()) read(each);
}

// Calls `read` with each key and value of an object.
template <class Function>
void for_each_entry(Json object, Function&& read) {
  Json key = mapping(object).first();
  for (std::size_t i = 0; i < object.size(); ++i) {
    const Json value = key.next();
    read(key, value);
    key = value.next();
  }
}

// Throws InvalidGraph "<what> is damaged".
[[noreturn]] void refuse_part(const std::string& what, const WrongJson& error);

// Calls `read`. If it throws WrongJson, throws InvalidGraph "<what()> is damaged".
template <class What, class Read>
void read_part(What&& what, Read&& read) {
  try {
    read();
  } catch (const WrongJson& error) {
    refuse_part(what(), error);
  }
}

}  // namespace tosaic::pt2
