#include "tosaic/pt2/zip_index.h"

#include <algorithm>
#include <optional>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/ir/lexical.h"

namespace tosaic::pt2 {
namespace {

constexpr std::uint32_t kEndMark = 0x06054b50, kLongEndMark = 0x06064b50, kLocatorMark = 0x07064b50;
constexpr std::uint32_t kEntryMark = 0x02014b50, kHeaderMark = 0x04034b50;
constexpr std::size_t kEndSize = 22, kLongEndSize = 56, kLocatorSize = 20, kEntrySize = 46, kHeaderSize = 30;
constexpr std::size_t kLongestComment = 0xffff;
constexpr std::uint32_t kLong = 0xffffffff;  // the number is in the ZIP64 field
constexpr std::uint16_t kLongField = 1;

[[noreturn]] void refuse(const std::string& what, const std::string& expected = "",
                         const std::string& got = "") {
  throw InvalidGraph({.where = "pt2", .what = what, .expected = expected, .got = got});
}

[[noreturn]] void refuse_archive(const std::string& got) { refuse("it is no zip archive", "", got); }

// The little-endian number at a place, which is inside of the bytes.
template <class T>
T number_at(std::span<const std::byte> bytes, std::uint64_t at) {
  T number = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    number = static_cast<T>(number | static_cast<T>(std::to_integer<T>(bytes[at + i]) << (8 * i)));
  return number;
}
std::uint16_t u16(std::span<const std::byte> bytes, std::uint64_t at) {
  return number_at<std::uint16_t>(bytes, at);
}
std::uint32_t u32(std::span<const std::byte> bytes, std::uint64_t at) {
  return number_at<std::uint32_t>(bytes, at);
}
std::uint64_t u64(std::span<const std::byte> bytes, std::uint64_t at) {
  return number_at<std::uint64_t>(bytes, at);
}

std::string_view text_at(std::span<const std::byte> bytes, std::uint64_t at, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes.data()) + at, size};
}

// The offset of the record that ends the archive. A comment of up to 64 KiB may follow the record.
std::optional<std::uint64_t> find_end(std::span<const std::byte> file) {
  if (file.size() < kEndSize) return std::nullopt;
  const std::uint64_t last = file.size() - kEndSize;
  const std::uint64_t first = last > kLongestComment ? last - kLongestComment : 0;
  for (std::uint64_t at = last + 1; at-- > first;)
    if (u32(file, at) == kEndMark && at + kEndSize + u16(file, at + 20) == file.size()) return at;
  return std::nullopt;
}

// The ZIP64 field among the extra fields of an entry; empty if there is none.
std::span<const std::byte> long_field(std::span<const std::byte> fields) {
  while (fields.size() >= 4) {
    const std::size_t size = u16(fields, 2);
    if (size > fields.size() - 4) break;
    if (u16(fields, 0) == kLongField) return fields.subspan(4, size);
    fields = fields.subspan(4 + size);
  }
  return {};
}

bool is_plain(std::string_view path) {
  if (!is_utf8(path) || path.find_first_of(std::string_view("\\\0", 2)) != std::string_view::npos)
    return false;
  const std::string_view outermost = path.substr(0, path.find('/'));
  if (outermost.find(':') != std::string_view::npos) return false;
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == path.size()) return true;
    begin = end + 1;
  }
}

}  // namespace

ZipIndex::ZipIndex(std::span<const std::byte> file) : file_(file) {
  const std::optional<std::uint64_t> end = find_end(file);
  if (!end) refuse_archive("no end of an archive");
  std::uint64_t count = u16(file, *end + 10), size = u32(file, *end + 12), begin = u32(file, *end + 16);
  std::uint64_t limit = *end;
  if (*end >= kLocatorSize && u32(file, *end - kLocatorSize) == kLocatorMark) {
    const std::uint64_t at = u64(file, *end - kLocatorSize + 8);
    limit = *end - kLocatorSize;
    if (at > limit || limit - at < kLongEndSize || u32(file, at) != kLongEndMark)
      refuse_archive("an end that is not where the file says");
    count = u64(file, at + 32), size = u64(file, at + 40), begin = u64(file, at + 48);
    limit = at;
  }
  if (begin > limit || size > limit - begin) refuse_archive("a directory that is not inside of the file");
  read_directory(begin, begin + size, count);
}

void ZipIndex::read_directory(std::uint64_t begin, std::uint64_t end, std::uint64_t count) {
  entries_.reserve(std::min(count, (end - begin) / kEntrySize));
  positions_.reserve(entries_.capacity());
  std::string_view root;
  for (std::uint64_t at = begin; at != end;) {
    if (end - at < kEntrySize || u32(file_, at) != kEntryMark) refuse_archive("a damaged directory");
    const std::size_t name = u16(file_, at + 28), fields = u16(file_, at + 30), comment = u16(file_, at + 32);
    if (end - at - kEntrySize < name + fields + comment) refuse_archive("a directory that is cut");
    ZipEntry entry{.name = text_at(file_, at + kEntrySize, name),
                   .header = u32(file_, at + 42),
                   .packed = u32(file_, at + 20),
                   .size = u32(file_, at + 24),
                   .method = u16(file_, at + 10),
                   .is_encrypted = (u16(file_, at + 8) & 1u) != 0};
    std::span<const std::byte> numbers = long_field(file_.subspan(at + kEntrySize + name, fields));
    for (std::uint64_t* const number : {&entry.size, &entry.packed, &entry.header}) {
      if (*number != kLong) continue;
      if (numbers.size() < 8) refuse_archive("an entry without its sizes");
      *number = u64(numbers, 0);
      numbers = numbers.subspan(8);
    }
    add(entry, root);
    at += kEntrySize + name + fields + comment;
  }
  if (entries_.size() != count) refuse_archive("another number of entries");
}

void ZipIndex::add(ZipEntry entry, std::string_view& root) {
  const auto shown = [&] {
    return is_utf8(entry.name) ? quoted(entry.name.substr(0, 120)) : "other bytes than UTF-8";
  };
  if (!is_plain(entry.name)) refuse("an entry has no plain path", "", shown());
  if (entries_.empty()) root = entry.name.substr(0, entry.name.find('/') + 1);
  if (root.empty() || !entry.name.starts_with(root))
    refuse("an entry lies outside of the folder of the others", std::string(root), shown());
  entry.name.remove_prefix(root.size());
  if (!positions_.emplace(entry.name, static_cast<std::uint32_t>(entries_.size())).second)
    refuse("the entry " + quoted(entry.name) + " occurs twice");
  entries_.push_back(entry);
}

const ZipEntry& ZipIndex::at(std::string_view name) const {
  const auto found = positions_.find(name);
  if (found == positions_.end()) refuse("there is no entry " + quoted(name));
  return entries_[found->second];
}

std::span<const std::byte> ZipIndex::packed_bytes(const ZipEntry& entry) const {
  if (entry.is_encrypted)
    throw UnsupportedOp({.where = "pt2", .what = "the entry " + quoted(entry.name) + " is encrypted"});
  if (entry.header > file_.size() || file_.size() - entry.header < kHeaderSize)
    refuse("the entry " + quoted(entry.name) + " begins outside of the file");
  if (u32(file_, entry.header) != kHeaderMark) refuse("the entry " + quoted(entry.name) + " has no header");
  // torch aligns the bytes of an entry by padding the extra fields of its header.
  const std::uint64_t begin =
      entry.header + kHeaderSize + u16(file_, entry.header + 26) + u16(file_, entry.header + 28);
  if (begin > file_.size() || entry.packed > file_.size() - begin)
    refuse("the entry " + quoted(entry.name) + " ends outside of the file",
           "at most " + std::to_string(file_.size()),
           std::to_string(begin) + " and " + std::to_string(entry.packed) + " more");
  return file_.subspan(begin, entry.packed);
}

std::span<const std::byte> ZipIndex::stored_bytes(const ZipEntry& entry) const {
  const std::span<const std::byte> bytes = packed_bytes(entry);
  if (!entry.is_stored())
    throw UnsupportedOp({.where = "pt2", .what = "the entry " + quoted(entry.name) + " is compressed"});
  if (entry.size != entry.packed)
    refuse("the stored entry " + quoted(entry.name) + " has two sizes", std::to_string(entry.packed),
           std::to_string(entry.size));
  return bytes;
}

}  // namespace tosaic::pt2
