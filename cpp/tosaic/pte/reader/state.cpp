#include "tosaic/pte/reader/state.h"

#include "tosaic/ir/lexical.h"

namespace tosaic::pte {

std::string State::text(const Place& place, const char* what, const flatbuffers::String* text) {
  if (text == nullptr) return {};
  spend(place, text->size());
  if (!is_utf8(text->string_view()))
    fail<InvalidGraph>(place, std::string(what) + " is not UTF-8", "text", quoted(text->string_view()));
  return text->str();
}

std::string State::name(const Place& place, const char* what, const flatbuffers::String* text) {
  std::string found = this->text(place, what, text);
  if (found.empty()) fail<InvalidGraph>(place, std::string(what) + " is missing");
  return found;
}

Storage State::bytes_of(const List<std::uint8_t>* list) const {
  if (list == nullptr) return part_of(bytes_, 0, 0);
  const auto* begin = reinterpret_cast<const std::byte*>(list->data());
  return part_of(bytes_, static_cast<std::uint64_t>(begin - bytes_.bytes().data()), list->size());
}

void check_index(const Place& place, const char* what, std::int64_t index, std::size_t count) {
  if (index >= 0 && static_cast<std::uint64_t>(index) < count) return;
  fail<InvalidGraph>(
      place, std::string(what) + " does not exist",
      count == 0 ? "an index, but the file has none" : "an index below " + std::to_string(count),
      std::to_string(index));
}

}  // namespace tosaic::pte
