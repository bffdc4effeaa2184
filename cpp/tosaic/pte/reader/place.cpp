#include "tosaic/pte/reader/place.h"

#include "tosaic/ir/lexical.h"

namespace tosaic::pte {
namespace {

constexpr std::size_t kMostShown = 80;  // bytes of a text in an error

}  // namespace

std::string text_of(const Place& place) {
  std::string text = place.outer == nullptr ? std::string() : text_of(*place.outer);
  if (place.kind.empty()) return text;
  if (!text.empty()) text += ", ";
  text += place.kind;
  const bool has_name = !place.name.empty();
  if (place.index >= 0) {
    text += " " + std::to_string(place.index);
    if (has_name) text += " (" + quoted(place.name) + ")";
  } else if (has_name) {
    text += " " + quoted(place.name);
  }
  return text;
}

std::string quoted(std::string_view text) {
  const bool is_cut = text.size() > kMostShown;
  std::string escaped;
  append_quoted(escaped, text.substr(0, kMostShown));
  return "'" + escaped.substr(1, escaped.size() - 2) + (is_cut ? "...'" : "'");
}

}  // namespace tosaic::pte
