// zip_index: the entries of a .pt2 file, which is a zip archive.
//
//   model/models/model.json        entries, each after a header of its own
//   model/data/weights/weight_0
//   the directory                  for each entry: its name, its sizes, and the offset of its header
//   the end record                 the offset and the size of the directory
//
// Nothing of the file is trusted: an entry lies inside the file, has a plain path, and occurs once. The
// folder that torch puts around all entries is left out of their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tosaic::pt2 {

struct ZipEntry {
  std::string_view name;
  std::uint64_t header = 0;  // where its header begins
  std::uint64_t packed = 0;  // bytes in the file
  std::uint64_t size = 0;    // bytes of what is stored
  std::uint16_t method = 0;  // 0 stored, 8 deflated
  bool is_encrypted = false;

  [[nodiscard]] bool is_stored() const { return method == 0; }
};

class ZipIndex {
 public:
  // The file must live as long as the index. Throws InvalidGraph.
  explicit ZipIndex(std::span<const std::byte> file);

  [[nodiscard]] std::span<const std::byte> file() const { return file_; }
  [[nodiscard]] const std::vector<ZipEntry>& entries() const { return entries_; }
  [[nodiscard]] bool has(std::string_view name) const { return positions_.contains(name); }
  // Throws InvalidGraph if there is no such entry.
  [[nodiscard]] const ZipEntry& at(std::string_view name) const;
  // The bytes of an entry as they are in the file. Throws InvalidGraph if they are not inside the file.
  [[nodiscard]] std::span<const std::byte> packed_bytes(const ZipEntry& entry) const;
  // The bytes of a stored entry. Throws InvalidGraph, or UnsupportedOp if it is encrypted or compressed.
  [[nodiscard]] std::span<const std::byte> stored_bytes(const ZipEntry& entry) const;

 private:
  void read_directory(std::uint64_t begin, std::uint64_t end, std::uint64_t count);
  void add(ZipEntry entry, std::string_view& root);

  std::span<const std::byte> file_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, std::uint32_t> positions_;
};

}  // namespace tosaic::pt2
