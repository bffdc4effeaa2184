#include "tosaic/pt2/fields.h"

#include <limits>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"

namespace tosaic::pt2 {

std::int64_t integer(Json value) {
  if (value.kind() != JsonKind::kInteger) throw WrongJson("an integer of at most 64 bits", value);
  return value.integer();
}

bool boolean(Json value) {
  if (value.kind() != JsonKind::kBool) throw WrongJson("true or false", value);
  return value.truth();
}

double number(Json value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.kind() == JsonKind::kFloat) return value.number();
  if (value.kind() == JsonKind::kInteger) return static_cast<double>(value.integer());
  if (value.kind() == JsonKind::kString) {
    if (value.is("Infinity")) return kInfinity;
    if (value.is("-Infinity")) return -kInfinity;
    if (value.is("NaN")) return std::numeric_limits<double>::quiet_NaN();
  }
  throw WrongJson("a number", value);
}

std::string_view text(Json value, Texts& texts) {
  if (value.kind() != JsonKind::kString) throw WrongJson("a string", value);
  if (!value.has_escapes()) return value.raw();
  texts.push_back(value.decoded());
  if (texts.back().find('\0') != std::string::npos) throw WrongJson("a string without NUL", value);
  return texts.back();
}

Json listed(Json value) {
  if (value.kind() != JsonKind::kArray) throw WrongJson("a list", value);
  return value;
}

Json mapping(Json value) {
  if (value.kind() != JsonKind::kObject) throw WrongJson("an object", value);
  return value;
}

Json entry(Json value, std::string_view key) {
  const std::optional<Json> found = mapping(value).find(key);
  if (!found) throw WrongJson("an object with the entry " + quoted(key), value);
  return *found;
}

std::optional<Json> find_entry(Json value, std::string_view key) { return mapping(value).find(key); }

std::pair<Json, Json> only_entry(Json value) {
  if (value.kind() != JsonKind::kObject || value.size() != 1)
    throw WrongJson("an object with one entry", value);
  return {value.first(), value.first().next()};
}

void refuse_part(const std::string& what, const WrongJson& error) {
  throw InvalidGraph(
      {.where = "pt2", .what = what + " is damaged", .expected = error.expected(), .got = error.got()});
}

}  // namespace tosaic::pt2
