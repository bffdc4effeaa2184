// rules: changes to plans that scripts ask for. Rules run in order, and a later rule replaces specs of
// earlier rules; the history of the plan has both specs.
//
// A rule with a FloatSpec makes tensors float (assign.h: what happens to slots that share with them). A
// tensor of integers or bools has no spec: InputsRule and OutputsRule refuse it, other rules ignore it.
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

// Specs of the caller's inputs. A key is a position (inputs that nothing reads count), a path, or the name of
// the placeholder. The placeholder's output gets the spec, and its users read it with the same qparams. With
// FloatSpec, the users read floats.
struct InputsRule {
  PortSpecs specs;
};

// Specs of the caller's outputs. A key is a position (repeated outputs count each time), a path, or the name
// of the node that is returned. The node's output gets the spec, and all its users read it with the same
// qparams. With FloatSpec, the caller gets floats, and other users quantize the tensor at their own edges.
struct OutputsRule {
  PortSpecs specs;
};

// Specs of the operands and results of selected operators. The key of an operand is its name in the
// operator's schema, its position, or its path ("args[0][1]"). The output of the operand's producer gets the
// spec, too, if it has a spec and no other reader has one. Otherwise only the edge gets it.
struct AroundRule {
  Selection where;
  PortSpecs operands = {};
  std::optional<QSpec> result = {};
};

// Clears all nodes whose results are read by one operand of the selected operators only, directly or through
// other such nodes. Does not clear nodes that something else reads, too, the nodes of `until` and the nodes
// before them, or the selected operators. The operand itself (the edge into the operator) stays quantized.
struct ExcludeFeedingRule {
  Selection where;
  PortKey operand;
  std::optional<Selection> until = {};
};

// Removes the annotations of nodes.
struct ClearRule {
  Selection where;
};

// All slots get the scale and zero point of the first slot. The first slot must have a spec that is not
// derived.
struct ShareRule {
  std::vector<Slot> slots;
};

using Rule = std::variant<InputsRule, OutputsRule, AroundRule, ExcludeFeedingRule, ClearRule, ShareRule>;

// Applies a rule, whose number in the plan is `id`, and records how many inputs, outputs, slots or nodes it
// matched. Throws InvalidGraph if it matched none, or if an input, output or operand does not exist, unless
// `allow_unmatched`; and if the specs of the rule contradict each other.
void apply(const Rule& rule, AnnotationPlan& plan, RuleId id, bool allow_unmatched = false);

}  // namespace tosaic::quant
