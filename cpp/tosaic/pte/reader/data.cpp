#include "tosaic/pte/reader/data.h"

#include <unordered_set>

namespace tosaic::pte {
namespace {

Segment read_segment(const State& state, const Place& place, const schema::Segment& table) {
  const std::uint64_t size = state.segments().size();
  if (table.offset() > size || table.size() > size - table.offset())
    fail<InvalidGraph>(place, "it is not inside the file",
                       "at most " + std::to_string(size) + " bytes of segments",
                       std::to_string(table.size()) + " bytes from byte " + std::to_string(table.offset()));
  return {table.offset(), part_of(state.segments(), table.offset(), table.size())};
}

// A table without offsets describes no data. Its segment index then has no meaning and is not checked.
Pieces read_pieces(State& state, const Place& place, const schema::Pieces& table, const File& file) {
  Pieces pieces{table.segment(), state.numbers<std::uint64_t>(place, table.offsets())};
  if (pieces.offsets.empty()) return pieces;
  check_index(place, "the segment", pieces.segment, file.segments.size());
  const std::uint64_t size = file.segments[pieces.segment].bytes.size();
  for (const std::uint64_t offset : pieces.offsets)
    if (offset > size)
      fail<InvalidGraph>(place, "elements are not inside their segment",
                         "at most " + std::to_string(size) + " bytes", "byte " + std::to_string(offset));
  return pieces;
}

}  // namespace

void read_data(State& state, const schema::Program& program, File& file) {
  const Place root;
  file.version = program.version();
  file.segments = state.tables(
      root, "segment", program.segments(),
      [&](const Place& place, const schema::Segment& table) { return read_segment(state, place, table); });
  file.elements = state.tables(
      root, "constant", program.elements(),
      [&](const Place&, const schema::Elements& table) { return state.bytes_of(table.bytes()); });
  file.payloads =
      state.tables(root, "payload", program.payloads(),
                   [&](const Place&, const schema::Payload& table) { return state.bytes_of(table.bytes()); });
  if (program.constants() != nullptr)
    file.constants = read_pieces(state, {&root, "constants"}, *program.constants(), file);
  if (file.constants && !file.constants->offsets.empty() && !file.elements.empty())
    fail<InvalidGraph>(root, "the file has constants both inside the program and in a segment");
  if (program.mutable_data() != nullptr)
    file.mutable_data = state.tables(root, "initial states", program.mutable_data(),
                                     [&](const Place& place, const schema::Pieces& table) {
                                       return read_pieces(state, place, table, file);
                                     });
  if (program.named_data() == nullptr) return;
  std::unordered_set<std::string> keys;
  file.named_data = state.tables(
      root, "named data", program.named_data(), [&](const Place& place, const schema::NamedData& table) {
        NamedData named{state.name(place, "the key", table.key()), table.segment()};
        check_index(place, "the segment", named.segment, file.segments.size());
        if (!keys.insert(named.key).second)
          fail<InvalidGraph>(place, "two named data have the key " + quoted(named.key));
        return named;
      });
}

}  // namespace tosaic::pte
