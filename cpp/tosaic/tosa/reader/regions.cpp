#include "tosaic/tosa/reader/regions.h"

#include "tosaic/tosa/reader/attributes.h"
#include "tosaic/tosa/reader/block.h"

namespace tosaic::tosa {
namespace {

constexpr std::size_t kMaxRegionDepth = 64;
constexpr std::size_t kMaxRegions = 1 << 14;  // a region counts once per use

// The tensor that the block declares for an operand or result of the operator. Throws for shape values.
const schema::TosaTensor& tensor_of_block(const Place& place, const BlockState& state, const Names* names,
                                          std::size_t i, const char* role) {
  if (i >= length(names))
    fail<InvalidGraph>(place, "wrong number of operands", "at least " + std::to_string(i + 1),
                       std::to_string(length(names)));
  const TensorEntry& entry = state.tensors.find(place, name_at(names, i));
  if (entry.tensor == nullptr)
    fail<InvalidGraph>(place,
                       std::string(role) + " " + quoted_readable(name_at(names, i)) + " is a shape value",
                       "a tensor");
  return *entry.tensor;
}

// The declaration of an input or output of the region.
const schema::TosaTensor& tensor_of_region(const Place& place, const BlockEntry& region,
                                           std::string_view name, const char* role) {
  const auto it = region.tensors.find(name);
  if (it == region.tensors.end())
    fail<InvalidGraph>(place, "no tensor of " + std::string(role) + " is named " + quoted_readable(name));
  return *it->second;
}

void check_condition(const Place& place, const schema::TosaTensor& tensor, const std::string& what) {
  if (tensor.type() != schema::DType::BOOL)
    fail<InvalidGraph>(place, what + " has the wrong dtype", "bool", declared_type(tensor));
  for (std::size_t i = 0; i < length(tensor.shape()); ++i)
    if (at(tensor.shape(), i) != 1)
      fail<InvalidGraph>(place, what + " is not of size one", "1 element", declared_type(tensor));
}

// Throws unless the results of a WHILE_LOOP have the types of its operands.
void check_carried(const Place& place, const BlockState& state) {
  const Names* operands = place.op->inputs();
  const Names* results = place.op->outputs();
  if (length(results) != length(operands))
    fail<InvalidGraph>(place, "the results differ from the operands in number",
                       std::to_string(length(operands)), std::to_string(length(results)));
  for (std::size_t i = 0; i < length(operands); ++i) {
    const std::string before = declared_type(tensor_of_block(place, state, operands, i, "operand"));
    const std::string after = declared_type(tensor_of_block(place, state, results, i, "result"));
    if (before != after)
      fail<InvalidGraph>(place, "result " + std::to_string(i) + " differs from the operand in type", before,
                         after);
  }
}

// A region of the operator, and its role, such as "then_graph".
struct Region {
  const char* role = "";
  BlockEntry* block = nullptr;
};

Region find_region(const Place& place, BlockState& state, const char* role, std::string_view name) {
  BlockEntry* const found = state.file.blocks.find(name);
  if (found == nullptr)
    fail<InvalidGraph>(place, std::string(role) + ": no region is named " + quoted_readable(name));
  if (found->tensors.empty())
    for (std::size_t i = 0; i < length(found->block->tensors()); ++i) {
      const auto* tensor = at(found->block->tensors(), i);
      found->tensors.emplace(view(tensor->name()), tensor);
    }
  return {role, found};
}

// Compares the list `inner` of the region with the list `outer` of the operator, from `first` on. `does` is
// the verb in errors: " takes" for inputs and operands, " gives" for outputs and results.
void check_list(const Place& place, BlockState& state, const Region& region, const char* does,
                const Names* inner, const Names* outer, std::size_t first) {
  state.file.budget.spend_names(place, length(inner));
  const std::string what = std::string(region.role) + does;
  if (length(inner) + first != length(outer))
    fail<InvalidGraph>(place, what + " another number of tensors", std::to_string(length(outer) - first),
                       std::to_string(length(inner)));
  for (std::size_t i = 0; i < length(inner); ++i) {
    const std::string expected = declared_type(tensor_of_block(place, state, outer, i + first, "operand"));
    const std::string got =
        declared_type(tensor_of_region(place, *region.block, name_at(inner, i), region.role));
    if (expected != got)
      fail<InvalidGraph>(place, what + " another type at " + std::to_string(i), expected, got);
  }
}

void check_inputs(const Place& place, BlockState& state, const Region& region, std::size_t first) {
  check_list(place, state, region, " takes", region.block->block->inputs(), place.op->inputs(), first);
}

void check_outputs(const Place& place, BlockState& state, const Region& region) {
  check_list(place, state, region, " gives", region.block->block->outputs(), place.op->outputs(), 0);
}

std::shared_ptr<const Graph> read_region(const Place& place, BlockState& state, BlockEntry& region) {
  const std::string name(view(region.block->name()));
  if (region.open) fail<InvalidGraph>(place, "region " + quoted_readable(name) + " contains itself");
  if (state.depth == kMaxRegionDepth)
    fail<UnsupportedOp>(place, "regions are nested too deeply", "at most " + std::to_string(kMaxRegionDepth));
  if (!region.graph) {
    Graph graph = read_block(state.file, region, state.depth + 1);
    graph.name = name;
    region.graph = std::make_shared<const Graph>(std::move(graph));
  }
  state.entry.regions += region.regions;
  if (state.entry.regions > kMaxRegions)
    fail<UnsupportedOp>(place, "too many regions", "at most " + std::to_string(kMaxRegions));
  return region.graph;
}

Regions read_cond_if(const Place& place, BlockState& state) {
  const auto& table = attribute_table<schema::CondIfAttribute>(place);
  check_condition(place, tensor_of_block(place, state, place.op->inputs(), 0, "condition"), "the condition");
  const Region then_region = find_region(place, state, "then_graph", view(table.then_graph()));
  const Region else_region = find_region(place, state, "else_graph", view(table.else_graph()));
  for (const Region& region : {then_region, else_region}) {
    check_inputs(place, state, region, 1);
    check_outputs(place, state, region);
  }
  return {read_region(place, state, *then_region.block), read_region(place, state, *else_region.block)};
}

Regions read_while_loop(const Place& place, BlockState& state) {
  const auto& table = attribute_table<schema::WhileLoopAttribute>(place);
  check_carried(place, state);
  const Region condition = find_region(place, state, "cond_graph", view(table.cond_graph()));
  const Region body = find_region(place, state, "body_graph", view(table.body_graph()));
  check_inputs(place, state, condition, 0);
  check_inputs(place, state, body, 0);
  check_outputs(place, state, body);
  const Names* outputs = condition.block->block->outputs();
  if (length(outputs) != 1)
    fail<InvalidGraph>(place, "cond_graph gives the wrong number of outputs", "1",
                       std::to_string(length(outputs)));
  check_condition(place, tensor_of_region(place, *condition.block, name_at(outputs, 0), condition.role),
                  "the output of cond_graph");
  return {read_region(place, state, *condition.block), read_region(place, state, *body.block)};
}

}  // namespace

void read_regions(BlockState& state) {
  for (std::uint32_t i = 0; i < state.operator_count(); ++i) {
    const Place place = state.place(i);
    if (place.op->op() == schema::Op::COND_IF) state.regions[i] = read_cond_if(place, state);
    if (place.op->op() == schema::Op::WHILE_LOOP) state.regions[i] = read_while_loop(place, state);
  }
}

}  // namespace tosaic::tosa
