#include "tosaic/pte/reader/envelope.h"

#include <cstring>
#include <optional>
#include <string>

#include "tosaic/pte/file.h"
#include "tosaic/pte/header.h"
#include "tosaic/pte/reader/place.h"

namespace tosaic::pte {
namespace {

struct Header {
  std::uint64_t program_size = 0, segments_at = 0;
  std::optional<std::uint64_t> segments_size;
};

template <class T>
T number_at(std::span<const std::byte> bytes, std::size_t at) {
  T value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string_view text_at(std::span<const std::byte> bytes, std::size_t at, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes.data()) + at, size};
}

void check_identifier(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderPlace)
    fail<InvalidGraph>({}, "the file is truncated", "at least 8 bytes", std::to_string(bytes.size()));
  const std::string_view found = text_at(bytes, 4, 4);
  const std::string_view known(schema::ProgramIdentifier(), 4);
  if (found == known) return;
  if (found.starts_with("ET"))
    fail<UnsupportedOp>({}, "unknown version of the format", quoted(known), quoted(found));
  fail<InvalidGraph>({}, "not a .pte file", "the identifier 'ET12' at byte 4", quoted(found));
}

// The extended header, if the file has one. A flatbuffer has no such text there by chance: its first table
// or vtable begins there.
std::optional<Header> header_of(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderPlace + 8 || text_at(bytes, kHeaderPlace, 4) != kHeaderMagic) return {};
  const auto length = number_at<std::uint32_t>(bytes, kHeaderPlace + 4);
  if (length < kLeastHeader)
    fail<InvalidGraph>({}, "the extended header is too short", "at least 24 bytes", std::to_string(length));
  if (bytes.size() < kHeaderPlace + kHeaderLength)
    fail<InvalidGraph>({}, "the file is truncated in its extended header", "at least 40 bytes",
                       std::to_string(bytes.size()));
  Header header;
  header.program_size = number_at<std::uint64_t>(bytes, kHeaderPlace + 8);
  header.segments_at = number_at<std::uint64_t>(bytes, kHeaderPlace + 16);
  if (length > kLeastHeader) header.segments_size = number_at<std::uint64_t>(bytes, kHeaderPlace + 24);
  return header;
}

Storage segments_of(const Storage& bytes, const Header& header) {
  const std::uint64_t size = bytes.size();
  if (header.segments_at == 0) return part_of(bytes, size, 0);
  if (header.segments_at < header.program_size)
    fail<InvalidGraph>({}, "the segments begin inside the program",
                       "byte " + std::to_string(header.program_size) + " or later",
                       "byte " + std::to_string(header.segments_at));
  if (header.segments_at > size)
    fail<InvalidGraph>({}, "the file is truncated before its segments",
                       "more than " + std::to_string(header.segments_at) + " bytes", std::to_string(size));
  const std::uint64_t found = size - header.segments_at;
  const std::uint64_t wanted = header.segments_size.value_or(found);
  if (wanted > found)
    fail<InvalidGraph>({}, "the file is truncated in its segments",
                       std::to_string(wanted) + " bytes of segments", std::to_string(found));
  return part_of(bytes, header.segments_at, wanted);
}

}  // namespace

Envelope checked_envelope(const Storage& file) {
  const std::span<const std::byte> bytes = file.bytes();
  check_identifier(bytes);
  const std::optional<Header> header = header_of(bytes);
  const std::uint64_t program_size = header ? header->program_size : bytes.size();
  if (program_size > bytes.size())
    fail<InvalidGraph>({}, "the file is truncated in its program", std::to_string(program_size) + " bytes",
                       std::to_string(bytes.size()));
  if (program_size >= FLATBUFFERS_MAX_BUFFER_SIZE)
    fail<UnsupportedOp>({}, "the program is too large", "less than 2 GiB", std::to_string(program_size));
  Envelope envelope;
  envelope.segments = segments_of(file, header.value_or(Header{}));
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  flatbuffers::Verifier::Options options;
  options.max_tables = static_cast<flatbuffers::uoffset_t>(program_size / 4 + 64);
  flatbuffers::Verifier verifier(data, program_size, options);
  if (!schema::VerifyProgramBuffer(verifier))
    fail<InvalidGraph>({}, "the program is truncated or damaged", "a well-formed flatbuffer",
                       std::to_string(program_size) + " bytes that are not");
  envelope.program = schema::GetProgram(data);
  if (envelope.program->version() != 0)
    fail<UnsupportedOp>({}, "unknown version of the program", "0",
                        std::to_string(envelope.program->version()));
  return envelope;
}

}  // namespace tosaic::pte
