// planning: what the planner knows of each call, and the class whose parts the files of this folder define.
//
//   calls.cpp            what each call does, and on what its result depends
//   numbers_of_integers.cpp   floats that follow from integers only
//   patterns.cpp         functions of one tensor, positions of grid samplers
//   streams.cpp          residual streams
//   planner.cpp          the decision about each call, in the order of the graph
//   contractions.cpp     data, weights and biases of contractions
//   masks.cpp            masks that are inputs, and rows that they hide as a whole
//   results.cpp          where a result is rounded, and with which spec
//   returned.cpp         inputs, states and constants that are returned
//   every_operator.cpp   decisions where each operator has a scale of its own
//   groups.cpp           slots that share one scale
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tosaic/quant/planner/behaviour.h"
#include "tosaic/quant/planner/planner.h"
#include "tosaic/quant/unit_of_constant.h"

namespace tosaic::quant {

inline constexpr std::int64_t kMostScanned = 1 << 22;

// On which inputs of the caller a value depends: none, only integers, or floats.
enum class Dependence : std::uint8_t { kNothing, kIntegers, kFloats };

// What a call does to the integers of its result.
enum class Rounding : std::uint8_t {
  kNone,         // no float tensor that depends on the caller's floats
  kRounded,      // its output has a scale of its own
  kTransparent,  // its output has the integers of an operand
  kWithin,       // part of a unit: numbers between operators
  kWide,     // a sum, or the contraction that starts a residual stream, in 32 bits: norms and sums read it
  kLarge,    // may hold large numbers, which are not rounded
  kFloat,    // not selected, or without integer form
  kForeign,  // annotated by another quantizer
};

// Whether a value may have large numbers: below -kLargestActivation (low), or above kLargestActivation
// (high). A maximum is low only if all its operands are.
struct Large {
  bool low = false, high = false;
  explicit operator bool() const { return low || high; }
  [[nodiscard]] Large with(Large other) const { return {low || other.low, high || other.high}; }
  [[nodiscard]] Large negated() const { return {high, low}; }
};

struct Call {
  std::vector<NodeIndex> operands;  // each once, in the order of the arguments
  std::vector<const Node*> nodes;   // of the graph, in order
  const Node* main = nullptr;
  Behaviour behaviour = Behaviour::kMovement;
  Dependence dependence = Dependence::kNothing;
  Rounding rounding = Rounding::kNone;
  Large large;
  bool sorts = false;              // sorts elements, and perhaps also returns the positions
  bool within = false;             // inside a recognised unit
  bool wide = false;               // of a residual stream that norms read, and not rounded
  bool stream = false;             // of a residual stream that norms read, and rounded to 16 bits
  bool whole = false;              // holds whole numbers
  bool counts = false;             // holds floats that follow from integers of 32 or 64 bits
  bool tabulated = false;          // kIntegers: a function of integers that only data is combined with
  bool of_integers = false;        // kFloats: floats that follow from integers only, rounded as data is
  bool plain = false;              // movement and elementwise arithmetic of inputs, some of them floats
  bool of_softmax = false;         // only softmaxes read it, through movement and arithmetic
  bool is_mask = false;            // a mask, or a part of one, that comes from an input
  bool masked = false;             // a sum of a mask and something else
  bool infinite = false;           // may be minus infinity, or NaN for that reason
  bool may_hide_rows = false;      // NaN where a softmax has a row without a visible element
  bool nan_is_read = false;        // may_hide_rows, and an operator that replaces NaN reads it
  bool nan_is_contracted = false;  // the NaN reaches a contraction, and is replaced only after it
  std::optional<Op> unit;          // within: the operator of the unit
  bool position = false;           // only positions of grid samplers are computed from it
  NodeIndex base;                  // kTransparent: the operand whose integers the result has
  NodeIndex
      function_of;  // the one rounded tensor of which this call, with constants, is an elementwise function
};

class Planner {
 public:
  Planner(const PlannerInput& input, AnnotationPlan& plan)
      : input_(input), graph_(input.graph), plan_(plan), calls_(plan.graph().size()) {}

  PlannedSpecs run();

 private:
  // ---- reading ----

  [[nodiscard]] const CallNode& node(NodeIndex i) const { return plan_.graph().node(i); }
  [[nodiscard]] Call& call(NodeIndex i) { return calls_[i.index()]; }
  [[nodiscard]] ValueId value(NodeIndex i) const { return input_.values[i.index()]; }
  [[nodiscard]] bool is_call(NodeIndex i) const { return node(i).kind == CallKind::kCall; }
  void read_calls();
  [[nodiscard]] static Behaviour node_behaviour(const Node& node);
  [[nodiscard]] const Node* sorted_elements(const Call& c) const;
  void read_units(const std::unordered_map<std::string_view, std::uint32_t>& by_name);
  [[nodiscard]] bool is_float_value(NodeIndex i) const;
  [[nodiscard]] static bool is_float(DType dtype);

  // ---- classification ----

  void classify(NodeIndex i);
  bool has_whole_numbers(const Call& c);
  [[nodiscard]] bool has_counts(NodeIndex i);
  [[nodiscard]] static bool has_whole_results(const Node& node);
  [[nodiscard]] static bool has_whole_numbers(const Node& node);
  [[nodiscard]] bool is_fractional(ValueId id) const;
  [[nodiscard]] static bool is_weighted(const Call& c);
  Large large_numbers(const Call& c);
  [[nodiscard]] bool may_turn(const Node& node) const;
  Large large_numbers_of(const Call& c, const Node& node);
  [[nodiscard]] Large without_bounded(Large numbers, const Call& c);
  [[nodiscard]] Large without_hidden(Large numbers, const Call& c) const;
  [[nodiscard]] ValueId addend_of(const Call& c) const;
  [[nodiscard]] static bool divides(const Node& node) { return node.op == Op::kDiv || node.op == Op::kPow; }
  [[nodiscard]] static double scalar_of(const Scalar& scalar);
  [[nodiscard]] static Large large_number(double x) {
    return {!(x > -kLargestActivation), !(x < kLargestActivation)};
  }
  Large constant_numbers(ValueId id);

  // ---- floats that follow from integers ----

  [[nodiscard]] bool reads_floats(NodeIndex i);
  [[nodiscard]] bool is_tabulated(NodeIndex i);
  void find_numbers_of_integers();
  void round_constants(NodeIndex i, const Precision& p);

  // ---- functions of one tensor ----

  [[nodiscard]] bool is_elementwise(const Call& c) const;
  [[nodiscard]] std::int64_t elements_of(NodeIndex i) const;
  void find_functions();

  // ---- residual streams ----

  bool collect_readers(NodeIndex i, std::vector<NodeIndex>& out);
  NodeIndex only_reader(NodeIndex i);
  [[nodiscard]] bool is_sum(NodeIndex i);
  [[nodiscard]] bool is_sum_of_constant(NodeIndex i);
  [[nodiscard]] bool reads_wide(NodeIndex i);
  [[nodiscard]] std::optional<StreamRounding> stream_rounding(NodeIndex i) const;
  void find_streams();
  void find_wide_sums();
  bool starts_stream(NodeIndex i);
  void round_streams_to_16_bits();
  [[nodiscard]] static ObservedSpec of_stream(const Precision& p);
  bool feeds_stream(NodeIndex i);
  bool keeps_stream(NodeIndex i);

  // ---- masks ----

  [[nodiscard]] bool is_plain(NodeIndex i);
  [[nodiscard]] bool is_of_softmax(NodeIndex i);
  std::vector<NodeIndex> addends_of(const Call& c);
  void find_masks();
  void mark_mask(NodeIndex i);
  [[nodiscard]] bool is_part_of_mask(const Call& c);
  [[nodiscard]] static ObservedSpec mask_spec(const Precision& p);
  void round_mask(NodeIndex operand, NodeIndex user, const Precision& p);
  [[nodiscard]] bool may_be_infinite(const Call& c);
  void find_hidden_rows();

  // ---- positions of grid samplers ----

  [[nodiscard]] bool is_grid(NodeIndex p, NodeIndex i);
  [[nodiscard]] bool is_position_step(NodeIndex i);
  void find_positions();
  std::vector<NodeIndex> samplers_of(NodeIndex i);
  [[nodiscard]] static ObservedSpec in_16_bits(const Precision& p);
  [[nodiscard]] QSpec grid_spec(std::span<const NodeIndex> samplers, const Precision& p) const;
  void round_grid(NodeIndex grid, NodeIndex sampler, const Precision& p);

  // ---- decisions, in the order of the graph ----

  [[nodiscard]] const Precision* precision(NodeIndex i) const;
  [[nodiscard]] bool are_alike(NodeIndex a, NodeIndex b) const;
  [[nodiscard]] bool accepts(NodeIndex i) const;
  [[nodiscard]] bool has_doubles(NodeIndex i);
  bool is_settled(NodeIndex i);
  void decide(NodeIndex i);
  void leave(NodeIndex i, Rounding rounding, std::string_view reason);
  void leave_moved_floats();
  [[nodiscard]] bool is_result_of_tuple(NodeIndex i);
  [[nodiscard]] NodeIndex float_constant_of(const Call& c);
  bool passes_through(NodeIndex i);
  // The call that computes the numbers which reach operand `p` of `user`, directly or through movement, and
  // the slot where the numbers are rounded if the call does not round them itself.
  struct Root {
    NodeIndex call;
    Slot edge;
  };
  [[nodiscard]] Root root_of(NodeIndex p, NodeIndex user);
  [[nodiscard]] bool is_data(NodeIndex p);
  void round_operands(NodeIndex i, const Precision& p);
  void round_cast(NodeIndex operand, NodeIndex cast, const Precision& p);
  [[nodiscard]] static bool is_linear(const Call& c);
  void round_table(NodeIndex operand, NodeIndex user, const Precision& p);
  void round_counts(NodeIndex i, const Precision& p, const char* rule = kCounts);
  NodeIndex mask_of(const Call& c);
  NodeIndex producer_among(const Call& c, ValueId id);
  void round_operand(NodeIndex operand, NodeIndex user, const Precision& p, bool is_narrow);
  [[nodiscard]] static bool narrower(const QSpec& spec, const ObservedSpec& than);
  [[nodiscard]] static int bits_of(std::string_view dtype);

  // ---- contractions ----

  void round_contraction(NodeIndex i, const Precision& p);
  void round_data_of_conv(NodeIndex producer, NodeIndex i, const Precision& p);
  [[nodiscard]] std::optional<std::int64_t> input_channels(ValueId weight,
                                                           std::optional<std::int64_t> axis) const;
  [[nodiscard]] bool is_divided(ValueId weight, std::optional<std::int64_t> axis, std::int64_t size) const;
  [[nodiscard]] bool is_one_group(ValueId weight, std::optional<std::int64_t> axis, std::int64_t size) const;
  [[nodiscard]] bool has_groups(Slot weight) const;
  [[nodiscard]] std::optional<std::int64_t> channel_axis(const Node& main, std::size_t k) const;

  // ---- results ----

  const char* computed_with_user(NodeIndex i);
  [[nodiscard]] static bool bounds(const Node& node) { return node.op == Op::kRelu || node.op == Op::kClamp; }
  NodeIndex only_user(NodeIndex i);
  bool is_part_of_function(NodeIndex i);
  bool has_function_behind(NodeIndex i);
  bool is_exact_step(NodeIndex i);
  bool has_table(const Call& c);
  void set_output(NodeIndex i, const Precision& p);
  bool reader_is_function(NodeIndex i);
  [[nodiscard]] static std::optional<FixedSpec> range_of(Behaviour behaviour, const ObservedSpec& activation);
  void set(Slot slot, QSpec spec, const char* rule);

  // ---- what is returned without arithmetic ----

  void round_returned_numbers();
  [[nodiscard]] bool stores(NodeIndex i) const;
  void round_returned(NodeIndex p, NodeIndex output);
  [[nodiscard]] NodeIndex table_of(NodeIndex i);
  [[nodiscard]] bool is_stored_in_input(NodeIndex p, NodeIndex output) const;
  [[nodiscard]] double largest_constant(NodeIndex i);
  void store_large(NodeIndex p, NodeIndex output);
  void read_as(Slot slot, Slot other);
  [[nodiscard]] bool has_one_magnitude(ValueId id);
  [[nodiscard]] std::optional<QSpec> spec_of_constant(NodeIndex p, const ObservedSpec& activation);
  void round_bounded(NodeIndex p, NodeIndex user, Slot rounded, const char* rule);
  [[nodiscard]] Slot scale_of_slot(Slot slot) const;
  [[nodiscard]] const PlanEntry* spec_of_readers(NodeIndex p) const;
  [[nodiscard]] bool is_read_as_float(NodeIndex p);

  // ---- joins ----

  struct Join {
    NodeIndex call;
    std::vector<Slot> shared;  // have the scale of the result
    std::vector<Slot> own;     // are rescaled to it
  };
  [[nodiscard]] std::optional<Slot> observed_operand(NodeIndex operand, NodeIndex i);
  bool feeds_only(NodeIndex from, NodeIndex i);
  [[nodiscard]] Join join_of(NodeIndex i);
  void share_with_result(const Join& join, const Precision& p);
  bool joins_one_scale(NodeIndex i);

  // ---- every operator on its own ----

  void decide_alone(NodeIndex i);
  void decide_by_integers(NodeIndex i);
  [[nodiscard]] bool is_unrounded_leaf(NodeIndex i);
  void convert_integers(NodeIndex i);
  [[nodiscard]] bool has_weight(const Call& c);
  [[nodiscard]] bool is_linear_layer(const Call& c);
  [[nodiscard]] static bool shares_scale(const Call& c);
  void share_scale(NodeIndex i, const std::vector<NodeIndex>& floats, const Precision& p, bool result);
  Slot scale_of(NodeIndex operand, NodeIndex i, const Precision& p);
  [[nodiscard]] static std::string_view dtype_of(const QSpec& spec);
  void read_operand(NodeIndex operand, NodeIndex i, const Precision& p);
  const char* computed_with_activation(NodeIndex i, const Precision& p);
  void note_scaled(NodeIndex i, const Precision& p);
  [[nodiscard]] std::vector<ScaledResult> scaled_results();

  // ---- sharing groups ----

  Slot find(Slot slot);
  void unite(Slot a, Slot b);
  [[nodiscard]] bool before(Slot a, Slot b) const;
  void emit_groups();

  static constexpr std::uint32_t kNoCall = 0xffffffffu;
  const PlannerInput& input_;
  const Graph& graph_;
  AnnotationPlan& plan_;
  std::vector<Call> calls_;
  std::vector<std::uint32_t> call_of_;
  std::unordered_map<std::uint32_t, Large> large_constants_;
  std::unordered_map<Slot, Slot> group_of_;
  std::map<std::string, RuleId> rules_;
  std::vector<LeftFloat> left_;
  std::vector<JoinedOperand> joins_;
  std::vector<ScaledResult> scaled_;
};

}  // namespace tosaic::quant
