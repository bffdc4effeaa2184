// state: what the functions of the reader share, and access to the lists of the flatbuffer, which are null if
// the file omits them.
//
// Lists of a flatbuffer may overlap, so a small file could name the same list any number of times. Every
// element that is copied is counted; a file without overlaps has no more elements than bytes.
#pragma once

#include <pte_generated.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tosaic/pte/file.h"
#include "tosaic/pte/reader/place.h"

namespace tosaic::pte {

template <class T>
using List = flatbuffers::Vector<T>;
template <class T>
using Tables = flatbuffers::Vector<flatbuffers::Offset<T>>;

template <class T>
[[nodiscard]] std::size_t length(const flatbuffers::Vector<T>* list) {
  return list == nullptr ? 0 : list->size();
}

class State {
 public:
  State(const Storage& bytes, const Storage& segments) : bytes_(bytes), segments_(segments) {}

  [[nodiscard]] const Storage& segments() const { return segments_; }

  // Counts elements that are about to be copied.
  void spend(const Place& place, std::size_t count) {
    spent_ += count;
    if (spent_ > bytes_.size() + kSlack) fail<InvalidGraph>(place, "the lists of the file overlap");
  }

  // A copy of a list of numbers. A damaged file may have them at addresses that are not aligned.
  template <class To, class From>
  [[nodiscard]] std::vector<To> numbers(const Place& place, const List<From>* list) {
    spend(place, length(list));
    std::vector<To> copy;
    copy.reserve(length(list));
    for (std::size_t i = 0; i < length(list); ++i) {
      From number;
      std::memcpy(&number, list->Data() + i * sizeof(From), sizeof number);
      copy.push_back(static_cast<To>(number));
    }
    return copy;
  }

  // Calls read(place of the table, table) for each table of a list, and returns what it returns.
  template <class T, class Read>
  [[nodiscard]] auto tables(const Place& outer, std::string_view kind, const Tables<T>* list, Read read) {
    spend(outer, length(list));
    std::vector<decltype(read(outer, *list->Get(0)))> copy;
    copy.reserve(length(list));
    for (std::size_t i = 0; i < length(list); ++i) {
      const Place place{&outer, kind, static_cast<std::int64_t>(i)};
      const T* table = list->Get(static_cast<flatbuffers::uoffset_t>(i));
      copy.push_back(read(place, *table));
    }
    return copy;
  }

  // A string; empty if it is absent. Throws unless it is UTF-8. `what` is for errors: "the name".
  [[nodiscard]] std::string text(const Place& place, const char* what, const flatbuffers::String* text);
  // Like text(), but the text must not be empty.
  [[nodiscard]] std::string name(const Place& place, const char* what, const flatbuffers::String* text);

  // Bytes inside the program, which share the memory of the file.
  [[nodiscard]] Storage bytes_of(const List<std::uint8_t>* list) const;

 private:
  static constexpr std::size_t kSlack = 1024;  // short lists that writers may share

  const Storage& bytes_;
  const Storage& segments_;
  std::size_t spent_ = 0;
};

// Throws unless index is in [0, count). `what` is what is indexed: "the operator".
void check_index(const Place& place, const char* what, std::int64_t index, std::size_t count);

}  // namespace tosaic::pte
