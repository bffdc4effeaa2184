// planner: computes which slots of a torch graph get which spec, from the graph that the importer made of it.
//
//   conv -> relu -> view -> linear       output(placeholder) .. observed at the edge placeholder -> conv
//                                        conv's weight per channel, its bias derived
//                                        conv -> relu: not rounded between
//                                        output(relu) observed; the view has the integers of relu
//
// A tensor is rounded once, where it is computed. Operators that move or select elements read and write the
// same integers, so they get no specs. If only such operators are between an input and an output, the input
// is rounded where the first of them reads it. These tensors stay float:
//
//   constants other than weights   they are folded, or stand next to integers. Constants that are returned
//                                  are rounded
//   positions and masks            values that depend on integers only and are combined with data
//                                  (numbers_of_integers.cpp), and values that may hold numbers beyond +-10^4,
//                                  which in 8 bits would leave no precision to the others. A mask that is an
//                                  input has 16 bits, and its sum with scores stays float
//   parts of one unit              conv -> batch_norm -> relu, an RMS norm of several calls, a function that
//                                  is composed of several calls: lower-to-integer computes all of it at once
//
// With `every_operator`, there are no units: calls that move or select elements share the scale of their
// operand, and only conv -> batch_norm -> relu remains one.
//
// The sums of a residual stream that norms read are not rounded, or have 16 bits (streams.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/quant/annotation/annotation.h"

namespace tosaic::quant {

// How the sums of a residual stream are rounded if norms read them.
enum class StreamRounding : std::uint8_t {
  kNone,        // not at all: integer lowering computes them with 32 bits
  kInt16,       // to 16 bits
  kActivation,  // as other activations
};

// How a selected call is quantized.
struct Precision {
  ObservedSpec activation;
  ObservedSpec weight;                   // its scheme says whether it is per channel; each use sets the axis
  std::optional<DerivedSpec> bias = {};  // has no slots yet. None: biases stay float
  bool fixed_ranges = true;              // softmax, sigmoid and tanh have known ranges
  // None: kInt16, and kActivation with `every_operator`.
  std::optional<StreamRounding> stream = {};
  bool wide_functions = false;  // results of contractions are not rounded to 8 bits before a function
  // The spec of weights whose input channels are several groups of `group_size`. Their biases stay float,
  // since the sums of a channel have no single unit.
  std::optional<ObservedSpec> grouped_weight = {};
  // The observer of a weight with one scale although `weight` is per channel: an operand that has no axis for
  // the result's channels. Invalid: the default.
  ObjectId observer_without_axis = {};
  // The observer of masks of attention that are inputs. Invalid: the default.
  ObjectId mask_observer = {};
};

struct PlannerInput {
  const Graph& graph;       // as imported: each torch node became one or several nodes
  const Graph& recognized;  // the same after passes that recognise units; the origins of a unit are its calls
  std::vector<ValueId> values = {};  // by call: the value, invalid if it is not a tensor
  std::vector<std::optional<std::uint32_t>> precision =
      {};  // by call: index into `precisions`; none: stays float
  std::vector<Precision> precisions = {};
  // For each node of `graph`, its call. If empty: the call with the FX name of the node's origin.
  std::vector<NodeIndex> call_of_node = {};
  // Each call gets specs for all its float operands and its result, for lowerings that do not know units.
  bool every_operator = false;
  // The plan is for Arm's lowering, with `every_operator`. Such a plan rounds the results of sorts like
  // all other floats, and so it does with floats that are computed from integers of the caller. It
  // gives no specs to inputs, states and constants that are returned without arithmetic, since a
  // delegate does not compute them. All other plans give them specs, since a program of integers can
  // return no floats. If no call moves them, they have the precision of the output call.
  bool for_arm = false;
};

// A call whose result is a float tensor that gets no scale of its own, and why.
struct LeftFloat {
  NodeIndex call;
  std::string_view reason;  // a static text
  bool is_float = false;    // false: integer arithmetic, such as a sum that its reader rounds
};

// An operand of a join (cat, stack) that has its own scale and is rescaled to the scale of the result. If the
// observed ranges of operand and result nearly agree, the operand may have the scale of the result instead.
struct JoinedOperand {
  Slot operand, result;
  bool operator==(const JoinedOperand&) const = default;
};

// A product or quotient by a number: the result has the integers of the operand (mirrored if the factor is
// negative: ir/constant_factor.h) and another scale. Only with `every_operator`, since units do not round
// such results.
struct ScaledResult {
  Slot operand, result;
  double factor = 1;
  bool operator==(const ScaledResult&) const = default;
};

struct PlannedSpecs {
  std::vector<LeftFloat> left_float;
  std::vector<JoinedOperand> joined;
  std::vector<ScaledResult> scaled;  // in the order of the calls
};

// Rule of results whose only reader is an elementwise function of them.
inline constexpr const char* kBeforeFunction = "activation that a function reads";
// Rule of results that are whole numbers, such as the results of a round.
inline constexpr const char* kWholeNumbers = "whole numbers";
// Rule of whole numbers that follow from integers of 32 or 64 bits, such as lengths: they get scale 1 if they
// fit into 16 bits.
inline constexpr const char* kCounts = "counts";
// Rule of results of a residual stream, which have 16 bits.
inline constexpr const char* kStream = "residual stream";
// Rule of weights that have a scale for each channel although groups were asked for.
inline constexpr const char* kUngroupedWeight = "weight, whose input channels the group size does not divide";

// Adds specs to the plan. Slots of calls that are annotated already are not changed.
[[nodiscard]] PlannedSpecs plan_specs(const PlannerInput& input, AnnotationPlan& plan);

}  // namespace tosaic::quant
