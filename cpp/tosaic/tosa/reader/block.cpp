#include "tosaic/tosa/reader/block.h"

#include "tosaic/ir/infer.h"
#include "tosaic/tosa/reader/definitions.h"
#include "tosaic/tosa/reader/nodes.h"
#include "tosaic/tosa/reader/operands.h"
#include "tosaic/tosa/reader/order.h"
#include "tosaic/tosa/reader/regions.h"
#include "tosaic/tosa/reader/variables.h"

namespace tosaic::tosa {
namespace {

void read_inputs(BlockState& state) {
  for (std::size_t i = 0; i < length(state.block.inputs()); ++i) {
    const std::string_view name = name_at(state.block.inputs(), i);
    TensorEntry& entry = state.tensors.find({}, name);
    if (entry.tensor == nullptr)
      fail<UnsupportedOp>({}, "input " + quoted_readable(name) + " is a shape value");
    if (entry.is_variable) fail<InvalidGraph>({}, "input " + quoted_readable(name) + " is a variable");
    if (entry.is_input) fail<InvalidGraph>({}, "input " + quoted_readable(name) + " is listed twice");
    check_extents({}, entry);
    entry.is_input = true;
    entry.value = state.graph.add_input(InputKind::kUser, std::string(name), entry.type, std::string(name));
  }
}

bool is_inferred(const BlockState& state, const TensorEntry& entry) {
  if (entry.producer == TensorEntry::kNone) return false;
  const std::optional<Op> op = op_of(*state.place(entry.producer).op);
  return op && has_inference(*op);
}

// Checks the extents of all tensors except inferred results. Inferred results are compared with the inferred
// type, which makes a more precise error.
void check_declared_extents(const BlockState& state) {
  for (const TensorEntry& entry : state.tensors.entries())
    if (entry.tensor != nullptr && !is_inferred(state, entry)) check_extents({}, entry);
}

void add_nodes(BlockState& state) {
  for (const std::uint32_t index : execution_order(state)) {
    const Place place = state.place(index);
    const Op op = *op_of(*place.op);
    if (info(op).has(kEffect))
      add_variable_operator(place, state, op);
    else
      add_operator(place, state, op);
  }
}

void add_outputs(BlockState& state) {
  for (std::size_t i = 0; i < length(state.block.outputs()); ++i) {
    const std::string_view name = name_at(state.block.outputs(), i);
    Output output;
    output.value = value_of({}, state, name);
    output.path = std::string(name);
    state.graph.add_output(std::move(output));
  }
}

}  // namespace

Graph read_block(FileState& file, BlockEntry& entry, std::size_t depth) {
  entry.open = entry.used = true;
  BlockState state{file, entry, depth, *entry.block, TensorTable(*entry.block), {}, Graph(), {}};
  state.graph.stage = Stage::kTosa;
  read_inputs(state);
  define_results(state);
  check_declared_extents(state);
  read_regions(state);
  add_nodes(state);
  add_outputs(state);
  entry.open = false;
  return std::move(state.graph);
}

}  // namespace tosaic::tosa
