#include "tosaic/partition/graph_copy.h"

#include <utility>

#include "tosaic/base/error_text.h"

namespace tosaic::partition {

ValueId GraphCopy::of(ValueId value) {
  if (!value.valid() || has(value)) return value.valid() ? made_[value.index()] : value;
  const Value& constant = source_.value(value);
  if (!constant.constant)
    throw InternalError(
        {.where = "partition", .what = "a part reads " + quoted(constant.name) + " too early"});
  const ValueId made = out_.add_constant(constant.constant);
  out_.set_qparams(made, constant.type.qparams);
  set(value, made);
  return made;
}

std::vector<ValueId> GraphCopy::all(std::span<const ValueId> values) {
  std::vector<ValueId> out;
  for (const ValueId value : values) out.push_back(of(value));
  return out;
}

void GraphCopy::add_inputs() {
  for (const Input& input : source_.inputs()) {
    const Value& value = source_.value(input.value);
    set(input.value,
        out_.add_input(input.kind, value.name, value.type, input.path, input.boundary, input.initial));
  }
}

NodeId GraphCopy::add(const Node& node, std::span<const ValueId> operands) {
  const NodeId copy = out_.add_copy(source_, node, operands);
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    set(source_.result(node, r), out_.result(out_.node(copy), r));
  return copy;
}

void GraphCopy::add_outputs() {
  for (Output output : source_.outputs()) {
    output.value = of(output.value);
    out_.add_output(std::move(output));
  }
}

}  // namespace tosaic::partition
