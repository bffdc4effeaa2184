#include "tosaic/tosa/reader/nodes.h"

#include "tosaic/ir/infer.h"
#include "tosaic/tosa/reader/attributes.h"
#include "tosaic/tosa/reader/definitions.h"
#include "tosaic/tosa/reader/operands.h"

namespace tosaic::tosa {

std::vector<TensorType> declared_results(const Place& place, const BlockState& state) {
  std::vector<TensorType> types;
  for (std::size_t r = 0; r < length(place.op->outputs()); ++r)
    types.push_back(state.tensors.find(place, name_at(place.op->outputs(), r)).type);
  return types;
}

void check_results(const Place& place, const BlockState& state, Op op, const Attrs& attrs,
                   std::span<const ValueId> operands, std::span<const TensorType> declared) {
  std::vector<const TensorType*> types;
  for (const ValueId operand : operands) types.push_back(&state.graph.type(operand));
  const std::vector<TensorType> inferred = with_place(place, [&] { return infer(op, attrs, types); });
  for (std::size_t r = 0; r < inferred.size(); ++r)
    if (r >= declared.size() || !(inferred[r] == declared[r]))
      fail<InvalidGraph>(place, "the result has the wrong type", to_string(inferred[r]),
                         r < declared.size() ? to_string(declared[r]) : "none");
}

void add_node(const Place& place, BlockState& state, Op op, Attrs attrs, std::span<const ValueId> operands,
              std::span<const TensorType> results) {
  OriginRef origin;
  if (place.op->location() != nullptr)
    origin = state.locations.read(utf8_text(place, "the location", view(place.op->location()->text())));
  const auto regions = state.regions.find(place.index);
  const NodeId node =
      state.graph.add_node(op, share(std::move(attrs)), operands, results, origin, result_name(place),
                           regions == state.regions.end() ? Regions() : regions->second);
  for (std::size_t r = 0; r < results.size(); ++r) {
    const std::string_view name = name_at(place.op->outputs(), r);
    const ValueId value = state.graph.result(state.graph.node(node), r);
    state.tensors.find(place, name).value = value;
    if (state.graph.value(value).name != name) state.graph.try_rename(value, std::string(name));
  }
}

void add_operator(const Place& place, BlockState& state, Op op) {
  const Attrs defaults = default_attrs(op);
  const std::size_t operand_count = node_operands(place, op, defaults);
  std::vector<ValueId> operands;
  std::vector<DType> dtypes;
  for (std::size_t i = 0; i < operand_count; ++i)
    operands.push_back(value_of(place, state, name_at(place.op->inputs(), i)));
  for (const ValueId operand : operands) dtypes.push_back(state.graph.type(operand).dtype);
  const std::vector<TensorType> declared = declared_results(place, state);
  Attrs attrs = read_attributes(place, defaults, dtypes, declared.empty() ? TensorType() : declared.front());
  attrs = read_constant_operands(place, state, std::move(attrs), dtypes, operand_count);
  if (has_inference(op)) check_results(place, state, op, attrs, operands, declared);
  for (std::size_t r = 0; r < declared.size(); ++r)
    check_extents(place, state.tensors.find(place, name_at(place.op->outputs(), r)));
  add_node(place, state, op, std::move(attrs), operands, declared);
}

}  // namespace tosaic::tosa
