// rules: changes of plans that scripts ask for. Rules run in order, and a later rule replaces what an earlier
// one set; the history of the plan has both.
//
// A spec that is FloatSpec makes tensors float (assign.h says what becomes of slots that share). A tensor of
// integers or bools has no spec: InputsRule and OutputsRule refuse it, other rules pass over it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tosaic/quant/annotation/plan.h"
#include "tosaic/quant/annotation/selection.h"

namespace tosaic::quant {

// An input, output or operand: its position or its name.
using PortKey = std::variant<std::int64_t, std::string>;
using PortSpecs = std::vector<std::pair<PortKey, QSpec>>;

// Specs of the caller's inputs, by position (inputs that nothing reads count), by path, or by the name of the
// placeholder. The placeholder's output gets the spec, and its users read it with the same qparams. With
// FloatSpec, the users read floats.
struct InputsRule {
  PortSpecs specs;
};

// Specs of the caller's outputs, by position (repeated outputs count each time), by path, or by the name of
// the node that is returned. The node's output gets the spec, and all its users read it with the same
// qparams. With FloatSpec, the caller gets floats, and other users quantize the tensor at their own edges.
struct OutputsRule {
  PortSpecs specs;
};

// Specs around operators: of operands, by name in the operator's schema, by position, or by path
// ("args[0][1]"); and of the result. An operand's producer gets the spec at its output, too, unless other
// nodes quantize the same tensor; then these read it with their own qparams.
struct AroundRule {
  Selection where;
  PortSpecs operands = {};
  std::optional<QSpec> result = {};
};

// Clears all nodes whose results are only read, directly or through other such nodes, by one operand of the
// selected operators. These stay: nodes that something else reads, too; nodes of `until` and the nodes in
// front of them; the selected operators; and the operand itself, the edge into the operator.
struct ExcludeFeedingRule {
  Selection where;
  PortKey operand;
  std::optional<Selection> until = {};
};

// Removes the annotations of nodes.
struct ClearRule {
  Selection where;
};

// Slots that get the scale and zero point of the first slot, which must have a spec that
// is not derived.
struct ShareRule {
  std::vector<Slot> slots;
};

using Rule = std::variant<InputsRule, OutputsRule, AroundRule, ExcludeFeedingRule, ClearRule, ShareRule>;

// Applies a rule, which the plan knows as `id`, and records its matches: inputs, outputs, slots or nodes.
// Throws InvalidGraph if there are none, or if an input, output or operand does not exist, unless
// `allow_unmatched`; and if the specs of a rule contradict each other.
void apply(const Rule& rule, AnnotationPlan& plan, RuleId id, bool allow_unmatched = false);

}  // namespace tosaic::quant
