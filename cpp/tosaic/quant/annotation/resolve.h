// resolve: everything that a report of a plan shows: the spec of each slot after following references, the
// rule that set it, sharing groups and conflicts, tensors that are quantized twice, and why tensors are
// float.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tosaic/quant/annotation/plan.h"
#include "tosaic/quant/annotation/sharing.h"

namespace tosaic::quant {

struct ResolvedSlot {
  Slot slot;
  RuleId set_by;
  std::optional<std::uint32_t> group;  // none: the output is explicitly float
  std::optional<Slot> decided_by;      // the slot whose own spec this slot has; none after a conflict
  bool is_stale = false;               // an edge that the graph does not have
};

enum class FloatReason : std::uint8_t {
  kSetToFloat,    // a rule or quantizer set a FloatSpec
  kRemoved,       // a rule removed the spec that it had
  kNoSpec,        // the node is annotated without a spec of its result, as inside of a pattern
  kNotAnnotated,  // nobody annotated the node
};

[[nodiscard]] std::string_view to_string(FloatReason reason);

// A tensor of floats that no slot quantizes.
struct FloatTensor {
  NodeIndex node;
  FloatReason reason;
  RuleId rule = {};  // the rule that set it to float or removed its spec
};

// A tensor whose output and an edge are in different groups, so that it is quantized once after the other.
struct RequantizedTensor {
  Slot output, edge;
};

struct Resolution {
  std::vector<ResolvedSlot> slots;  // in the order of the plan
  SharingGroups sharing;
  std::vector<RequantizedTensor> requantized;
  std::vector<FloatTensor>
      left_float;  // results of calls, and the caller's inputs; in the order of the graph
};

[[nodiscard]] Resolution resolve(const AnnotationPlan& plan);

}  // namespace tosaic::quant
