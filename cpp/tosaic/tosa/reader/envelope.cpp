#include "tosaic/tosa/reader/envelope.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/tosa/reader/place.h"

namespace tosaic::tosa {
namespace {

constexpr std::size_t kHeader = 8;  // bytes up to the end of the identifier

void check_identifier(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeader)
    throw InvalidGraph({.where = "tosa",
                        .what = "the file is truncated",
                        .expected = "at least 8 bytes",
                        .got = std::to_string(bytes.size())});
  if (std::memcmp(bytes.data() + 4, schema::TosaGraphIdentifier(), 4) == 0) return;
  std::string got;
  for (const std::byte b : bytes.subspan(4, 4)) {
    const auto c = std::to_integer<char>(b);
    got += c >= ' ' && c <= '~' ? c : '?';
  }
  throw InvalidGraph({.where = "tosa",
                      .what = "not a TOSA file",
                      .expected = "the identifier 'TOSA' at byte 4",
                      .got = quoted_readable(got)});
}

// The version, or null if the bytes up to it are damaged.
const schema::Version* verified_version(flatbuffers::Verifier& verifier, const std::uint8_t* data) {
  if (verifier.VerifyOffset<flatbuffers::uoffset_t>(0) == 0) return nullptr;
  const auto* root = flatbuffers::GetRoot<flatbuffers::Table>(data);
  if (!root->VerifyTableStart(verifier) || !root->VerifyOffset(verifier, schema::TosaGraph::VT_VERSION))
    return nullptr;
  const auto* version = root->GetPointer<const schema::Version*>(schema::TosaGraph::VT_VERSION);
  return version != nullptr && verifier.VerifyTable(version) ? version : nullptr;
}

void check_version(const schema::Version& version) {
  if (version._major() == 1 && version._minor() >= 0 && version._minor() <= 1) return;
  throw UnsupportedOp({.where = "tosa",
                       .what = "unknown version of the format",
                       .expected = "TOSA 1.0 or 1.1",
                       .got = std::to_string(version._major()) + "." + std::to_string(version._minor()) +
                              "." + std::to_string(version._patch())});
}

}  // namespace

const schema::TosaGraph& checked_root(std::span<const std::byte> bytes) {
  check_identifier(bytes);
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const std::size_t size = std::min<std::size_t>(bytes.size(), FLATBUFFERS_MAX_BUFFER_SIZE - 1);
  const auto damaged = [&bytes] {
    return InvalidGraph({.where = "tosa",
                         .what = "the file is truncated or damaged",
                         .expected = "a well-formed flatbuffer",
                         .got = std::to_string(bytes.size()) + " bytes that are not"});
  };
  flatbuffers::Verifier::Options options;
  options.max_tables = static_cast<flatbuffers::uoffset_t>(size / 4 + 64);
  flatbuffers::Verifier head(data, size, options);
  const schema::Version* version = verified_version(head, data);
  if (version == nullptr) throw damaged();
  check_version(*version);
  flatbuffers::Verifier verifier(data, size, options);
  if (!schema::VerifyTosaGraphBuffer(verifier)) throw damaged();
  return *schema::GetTosaGraph(data);
}

}  // namespace tosaic::tosa
