// The index of zip archives: entries, hostile directories, and mutated files; and weights as views of a file.
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "mutator.h"
#include "tosaic/base/error.h"
#include "tosaic/pt2/weights.h"
#include "tosaic/pt2/zip_index.h"

namespace tosaic::pt2 {
namespace {

using Bytes = testing::Mutator::Bytes;

void append(Bytes& to, std::string_view text) {
  for (const char letter : text) to.push_back(static_cast<std::byte>(letter));
}

template <class... Numbers>
void append16(Bytes& to, Numbers... numbers) {
  for (const unsigned number : {static_cast<unsigned>(numbers)...}) {
    to.push_back(static_cast<std::byte>(number & 0xffu));
    to.push_back(static_cast<std::byte>(number >> 8));
  }
}

void append32(Bytes& to, std::uint64_t number) { append16(to, number & 0xffff, number >> 16 & 0xffff); }
void append64(Bytes& to, std::uint64_t number) {
  append32(to, number & 0xffffffff);
  append32(to, number >> 32);
}

// An archive of stored entries. A long one has its sizes in 64 bits.
Bytes archive_of(const std::vector<std::pair<std::string, std::string>>& entries, bool is_long = false) {
  Bytes file, directory;
  for (const auto& [name, data] : entries) {
    const std::size_t header = file.size();
    append(file, "PK\3\4");
    append16(file, 20, 0, 0, 0, 0, 0, 0);
    append32(file, data.size());
    append32(file, data.size());
    append16(file, name.size(), 3);
    append(file, name + "pad" + data);
    append(directory, "PK\1\2");
    append16(directory, 20, 20, 0, 0, 0, 0, 0, 0);
    append32(directory, is_long ? 0xffffffff : data.size());
    append32(directory, is_long ? 0xffffffff : data.size());
    append16(directory, name.size(), is_long ? 28 : 0, 0, 0, 0, 0, 0);
    append32(directory, is_long ? 0xffffffff : header);
    append(directory, name);
    if (!is_long) continue;
    append16(directory, 1, 24);
    for (const std::size_t number : {data.size(), data.size(), header}) append64(directory, number);
  }
  const std::size_t begin = file.size();
  file.insert(file.end(), directory.begin(), directory.end());
  if (is_long) {
    const std::size_t at = file.size();
    append(file, "PK\6\6");
    append64(file, 44);
    append16(file, 45, 45);
    append64(file, 0);
    append64(file, entries.size());
    append64(file, entries.size());
    append64(file, directory.size());
    append64(file, begin);
    append(file, "PK\6\7");
    append32(file, 0);
    append64(file, at);
    append32(file, 1);
  }
  append(file, "PK\5\6");
  append16(file, 0, 0, is_long ? 0xffff : entries.size(), is_long ? 0xffff : entries.size());
  append32(file, is_long ? 0xffffffff : directory.size());
  append32(file, is_long ? 0xffffffff : begin);
  append16(file, 0);
  return file;
}

std::string text_of(const ZipIndex& index, const std::string& name) {
  const std::span<const std::byte> bytes = index.stored_bytes(index.at(name));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string refusal_of(const Bytes& file) {
  try {
    const ZipIndex index(file);
    for (const ZipEntry& entry : index.entries()) static_cast<void>(index.stored_bytes(entry));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The file with two bytes replaced, `behind` bytes after the last occurrence of a mark.
Bytes changed(Bytes file, std::string_view mark, std::size_t behind, unsigned number) {
  for (std::size_t at = file.size() - mark.size();; --at) {
    if (std::memcmp(&file[at], mark.data(), mark.size()) != 0) continue;
    file[at + behind] = static_cast<std::byte>(number & 0xffu);
    file[at + behind + 1] = static_cast<std::byte>(number >> 8);
    return file;
  }
}

const std::vector<std::pair<std::string, std::string>> kEntries = {{"m/a.json", "{}"},
                                                                   {"m/data/w", "weights"}};

TensorMeta meta_of(std::vector<Size> sizes, std::vector<Size> strides, std::int64_t offset = 0) {
  return {.dtype = 7,
          .sizes = std::move(sizes),
          .strides = std::move(strides),
          .offset = offset,
          .device = "cpu",
          .layout = kStrided};
}

}  // namespace

TEST_CASE("entries are found by their paths below the folder of the archive", "[pt2]") {
  for (const bool is_long : {false, true}) {
    const Bytes file = archive_of(kEntries, is_long);
    const ZipIndex index(file);
    CHECK(index.entries().size() == 2);
    CHECK(text_of(index, "a.json") == "{}");
    CHECK(text_of(index, "data/w") == "weights");
    CHECK(index.has("data/w"));
    CHECK_FALSE(index.has("m/data/w"));
    CHECK_THROWS_WITH(index.at("b"), "[pt2] there is no entry 'b'");
  }
}

TEST_CASE("a comment may follow the archive", "[pt2]") {
  Bytes file = archive_of(kEntries);
  file[file.size() - 2] = std::byte{4};
  append(file, "text");
  CHECK(text_of(ZipIndex(file), "a.json") == "{}");
}

TEST_CASE("hostile archives are refused", "[pt2]") {
  const Bytes file = archive_of(kEntries);
  const std::vector<std::pair<Bytes, std::string>> cases = {
      {{}, "it is no zip archive"},
      {Bytes(file.begin(), file.end() - 1), "no end of an archive"},
      {changed(file, "PK\5\6", 10, 3), "another number of entries"},
      {changed(file, "PK\5\6", 12, 0xffff), "a directory that is not inside of the file"},
      {changed(file, "PK\1\2", 28, 0xffff), "a directory that is cut"},
      {changed(file, "PK\1\2", 8, 1), "the entry 'data/w' is encrypted"},
      {changed(file, "PK\1\2", 10, 8), "the entry 'data/w' is compressed"},
      {changed(file, "PK\1\2", 20, 0xffff), "the entry 'data/w' ends outside of the file"},
      {changed(file, "PK\1\2", 24, 1), "the stored entry 'data/w' has two sizes"},
      {changed(file, "PK\1\2", 42, 1), "the entry 'data/w' has no header"},
      {changed(file, "PK\1\2", 42, 0xffff), "the entry 'data/w' begins outside of the file"},
      {archive_of({{"m/a", ""}, {"m/a", ""}}), "the entry 'a' occurs twice"},
      {archive_of({{"m/a", ""}, {"n/b", ""}}), "an entry lies outside of the folder of the others"},
      {archive_of({{"a", ""}}), "an entry lies outside of the folder of the others"},
  };
  for (const auto& [bytes, expected] : cases) {
    const std::string found = refusal_of(bytes);
    CAPTURE(expected, found);
    CHECK(found.find(expected) != std::string::npos);
  }
  const std::string with_nul("m/\0", 3);
  for (const std::string& name :
       {std::string("m/../a"), std::string("/a"), std::string("m//a"), std::string("m/."),
        std::string("m\\a"), std::string("c:/a"), std::string("m/\xff"), with_nul})
    CHECK(refusal_of(archive_of({{name, ""}})).find("an entry has no plain path") != std::string::npos);
}

TEST_CASE("mutated archives are read or refused", "[pt2]") {
  testing::Mutator mutator(1);
  std::size_t count = 0;
  for (std::size_t i = 0; i < testing::fuzz_iterations(); ++i) {
    Bytes file = archive_of(kEntries, i % 2 == 0);
    mutator.mutate(file);
    try {
      const ZipIndex index(file);
      for (const ZipEntry& entry : index.entries())
        for (const std::byte byte : index.stored_bytes(entry)) count += std::to_integer<std::size_t>(byte);
    } catch (const InvalidGraph&) {
    } catch (const UnsupportedOp&) {
    }
  }
  CHECK(count > 0);
}

TEST_CASE("a dense weight is a view of the file, and tied weights are one constant", "[pt2]") {
  alignas(16) const std::array<std::byte, 32> storage{};
  std::string message;
  WeightViews views(std::make_shared<int>(), [&] { return message; });
  const auto view = [&](const TensorMeta& meta, std::string_view name = "w") {
    return views.view(std::string(name), ConstantKind::kParameter, meta, storage);
  };
  const ConstantRef weight =
      view(meta_of({std::int64_t{2}, std::int64_t{3}}, {std::int64_t{3}, std::int64_t{1}}, 2));
  REQUIRE(weight != nullptr);
  CHECK(weight->bytes().data() == storage.data() + 8);
  CHECK(weight->bytes().size() == 24);
  CHECK(weight->shape == Shape{2, 3});
  CHECK(view(meta_of({std::int64_t{2}, std::int64_t{3}}, {std::int64_t{3}, std::int64_t{1}}, 2), "tied") ==
        weight);
  message = "the file was written";
  CHECK(weight->storage.change_message() == "the memory of 'w': the file was written; open it again");
}

TEST_CASE("weights that have to be copied or refused have no view", "[pt2]") {
  alignas(16) const std::array<std::byte, 32> storage{};
  WeightViews views(std::make_shared<int>(), [] { return std::string(); });
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t one = 1, two = 2, three = 3;
  std::vector<TensorMeta> cases = {
      meta_of({two, three}, {one, two}),                              // not in row-major order
      meta_of({std::int64_t{0}}, {one}),                              // empty
      meta_of({std::int64_t{9}}, {one}),                              // larger than its storage
      meta_of({two}, {one}, 7),                                       // its end is outside
      meta_of({two}, {one}, kMost),                                   // its begin is outside
      meta_of({two}, {one}, -1),                                      // before its storage
      meta_of({kMost, kMost}, {kMost, one}),                          // more elements than 64 bits count
      meta_of({two}, {Symbolic{"s0"}}),                               // symbolic
      meta_of(std::vector<Size>(9, one), std::vector<Size>(9, one)),  // a rank that graphs do not have
  };
  for (const std::int64_t dtype : {10, 34}) {  // complex64, uint32
    cases.push_back(meta_of({one}, {one}));
    cases.back().dtype = dtype;
  }
  cases.push_back(meta_of({one}, {one}));
  cases.back().device = "cuda";
  for (const TensorMeta& meta : cases)
    CHECK(views.view("w", ConstantKind::kParameter, meta, storage) == nullptr);
  const std::span<const std::byte> shifted = std::span<const std::byte>(storage).subspan(1);
  CHECK(views.view("w", ConstantKind::kParameter, meta_of({one}, {one}), shifted) == nullptr);
}

}  // namespace tosaic::pt2
