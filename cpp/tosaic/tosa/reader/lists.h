// lists: access to the vectors and strings of the flatbuffer, which are null if the file omits them.
#pragma once

#include <tosa_generated.h>

#include <cstddef>
#include <string_view>

namespace tosaic::tosa {

constexpr std::size_t kDataAlignment = 8;  // a vector of data may be padded up to a multiple of this

using Names = flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>;

template <class T>
[[nodiscard]] std::size_t length(const flatbuffers::Vector<T>* list) {
  return list == nullptr ? 0 : list->size();
}

// The element at `i`, which is below length(list). A table is a pointer.
template <class T>
[[nodiscard]] auto at(const flatbuffers::Vector<T>* list, std::size_t i) {
  return list->Get(static_cast<flatbuffers::uoffset_t>(i));
}

[[nodiscard]] inline std::string_view view(const flatbuffers::String* text) {
  return text == nullptr ? std::string_view() : text->string_view();
}

[[nodiscard]] inline std::string_view name_at(const Names* names, std::size_t i) {
  return view(at(names, i));
}

}  // namespace tosaic::tosa
