// store-constants: stores each constant once. Of a constant that was folded from a narrower one, only the
// narrower one is stored, and the program computes the constant from it.
//
//   const %w: f32[64,1,1,8]      ->   const %w: i8[64,8]   const %scales: f32[64,1]
//                                     %a = tosa.cast(%w)  %b = tosa.mul(%a, %scales)  %c = tosa.reshape(%b)
//
//   const %table: f32[1,64,8]    ->   const %table: f32[1,64,8]
//   const %head: f32[64,1,1,8]        %head = tosa.reshape(%table)           with the same elements
//
// If only GATHER reads a constant, and the target has a GATHER of the narrow dtype, the rows are gathered
// from the narrow constant, then cast and scaled.
//
// Weights of i8 that fit i4, with inputs of i8, become i4 if the target has extension int4.
//
// A weight or bias of a convolution, or a table, stays a constant. Equal constants become its RESHAPE.
//
// A constant is not narrowed if the target lacks the narrow dtype or one of the operators, if that saves less
// than a kilobyte, or if the constant is an output of the graph.

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "tosaic/base/error_text.h"
#include "tosaic/exec/narrow_constant.h"
#include "tosaic/ir/deferred.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/ir/recipe.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/ir/same_elements.h"
#include "tosaic/passes/constant_notes.h"
#include "tosaic/passes/pass.h"
#include "tosaic/target/type_support.h"

namespace tosaic::passes {
namespace {

using exec::NarrowForm;
using exec::NarrowStep;

constexpr std::size_t kLeastSaved = 1024;  // bytes saved by storing the narrower constant
constexpr std::size_t kLeastShared = 256;  // bytes of a constant that becomes a RESHAPE of another

bool has(const target::TargetSpec& target, Op op, const std::vector<DType>& dtypes) {
  const std::vector<target::TypeMode> modes = target::type_modes(op, dtypes.size() - 1);
  return std::any_of(modes.begin(), modes.end(), [&](const target::TypeMode& mode) {
    return mode.dtypes == dtypes && mode.need.met_by(target.features);
  });
}

Op tosa_op(Op step) {
  static constexpr OpTable<Op> kArithmetic = {
      {Op::kAdd, Op::kTosaAdd}, {Op::kSub, Op::kTosaSub}, {Op::kMul, Op::kTosaMul}};
  const Op* const found = kArithmetic.find(step);
  return found == nullptr ? Op::kTosaCast : *found;
}

// What the target lacks to compute a constant from its narrow form: the text of a profile, an extension or a
// dtype. Empty if it lacks nothing.
std::string lacking(const target::TargetSpec& target, const NarrowForm& form) {
  DType dtype = form.narrow->dtype;
  const target::Need* constants = target::constant_need(dtype);
  if (constants == nullptr) return "constants of " + std::string(to_string(dtype));
  if (!constants->met_by(target.features)) return to_string(*constants);
  for (const NarrowStep& step : form.steps) {
    std::vector<DType> dtypes{dtype, step.dtype};
    if (step.number) dtypes.insert(dtypes.begin(), step.dtype);
    const Op op = tosa_op(step.op);
    if (!has(target, op, dtypes)) {
      for (const target::TypeMode& mode : target::type_modes(op, dtypes.size() - 1))
        if (mode.dtypes == dtypes) return to_string(mode.need);
      return std::string(info(op).name) + " of " + target::to_string(dtypes, dtypes.size() - 1);
    }
    dtype = step.dtype;
  }
  return {};
}

class Narrowing {
 public:
  Narrowing(const Graph& graph, const PassOptions& options)
      : graph_(graph), target_(options.target), rewriter_(graph), states_(graph.values().size()) {}

  std::optional<Graph> run() {
    for (const Node& node : graph_.nodes()) {
      if (std::optional<ValueId> rows = gathered(node)) {
        rewriter_.replace(node, *rows);
        continue;
      }
      for (const ValueId operand : graph_.operands(node))
        if (operand.valid()) narrow(node, operand);
      rewriter_.copy(node);
    }
    return without_dead_code(std::move(rewriter_).finish());
  }

 private:
  enum class State : std::uint8_t { kUnknown, kStays, kNarrow };

  [[nodiscard]] const NarrowForm* form_of(ValueId value) const {
    const ConstantRef& constant = graph_.value(value).constant;
    if (!constant || graph_.is_output(value)) return nullptr;
    const NarrowForm* form = exec::narrow_form(*constant);
    const bool is_better = form != nullptr && form->bytes() + kLeastSaved <= constant->storage.size();
    return is_better && lacking(target_, *form).empty() ? form : nullptr;
  }

  [[nodiscard]] Graph& out(const Node& at) { return rewriter_.begin_output(at); }

  // A constant with the elements of `constant`, in memory that the graph owns.
  [[nodiscard]] ValueId stored(const Node& at, const ConstantRef& constant, const Shape& shape) {
    const Storage& storage = constant->storage;
    Storage& own = owned_[storage.identity()];
    if (!own.bound())
      own = storage.is_view() && storage.recipe() == nullptr ? deferred_copy(storage) : storage;
    ConstantRef& made = constants_[{constant.get(), shape_key(shape)}];
    if (!made) made = constant_over(constant->name, constant->kind, constant->dtype, shape, own);
    return rewriter_.constant(at, made);
  }
  static std::vector<std::int64_t> shape_key(const Shape& shape) { return {shape.begin(), shape.end()}; }

  [[nodiscard]] ValueId add(const Node& at, Op op, Attrs attrs, std::initializer_list<ValueId> operands,
                            const OriginRef& origin, const std::string& name = "") {
    return out(at).add(op, std::move(attrs), std::span(operands.begin(), operands.size()),
                       origin ? origin : at.origin, name);
  }

  // Emits the step. `number` is its operand.
  [[nodiscard]] ValueId stepped(const Node& at, const NarrowStep& step, ValueId x, ValueId number,
                                const std::string& name) {
    if (step.op == Op::kCast) return add(at, Op::kTosaCast, CastAttrs{step.dtype}, {x}, step.origin, name);
    return add(at, tosa_op(step.op), default_attrs(tosa_op(step.op)), {x, number}, step.origin, name);
  }

  // Emits the narrow constant and the operators that compute `value` from it. `at` is its first reader.
  void narrow(const Node& at, ValueId value) {
    State& state = states_[value.index()];
    if (state != State::kUnknown) return;
    const NarrowForm* form = form_of(value);
    state = form != nullptr ? State::kNarrow : State::kStays;
    if (form == nullptr) return;
    const Shape& shape = graph_.type(value).shape;
    const std::string& name = graph_.value(value).name;
    ValueId x = stored(at, form->narrow, form->narrow->shape);
    for (const NarrowStep& step : form->steps) {
      const ValueId number = step.number ? stored(at, step.number, step.number->shape) : ValueId();
      x = stepped(at, step, x, number, name);
    }
    if (out(at).type(x).shape != shape)
      x = add(at, Op::kTosaReshape, ShapeAttrs{shape}, {x}, form->steps.back().origin, name);
    rewriter_.bind(value, x);
  }

  // The result of a GATHER that reads rows of a narrow constant, and of the cast and the scaling after it.
  // Returns nothing for other nodes, and if another operator reads the constant.
  [[nodiscard]] std::optional<ValueId> gathered(const Node& node) {
    if (node.op != Op::kTosaGather) return std::nullopt;
    const ValueId table = graph_.operands(node)[0];
    const Shape& shape = graph_.type(table).shape;
    const NarrowForm* form = form_of(table);
    if (form == nullptr || shape[0] != 1) return std::nullopt;
    const std::span<const NodeId> users = graph_.users(table);
    const bool only_gathers = std::all_of(users.begin(), users.end(), [&](NodeId id) {
      return graph_.node(id).op == Op::kTosaGather && graph_.operands(graph_.node(id))[0] == table;
    });
    const DType narrow = form->narrow->dtype;
    if (!only_gathers || !has(target_, Op::kTosaGather, {narrow, DType::kI32, narrow})) return std::nullopt;
    const std::optional<exec::NarrowParts> parts = exec::in_parts(*form, shape);
    if (!parts || parts->parts[1].size() != 1) return std::nullopt;

    const std::int64_t rows = graph_.type(graph_.result(node)).shape[1];
    const ValueId index = rewriter_.map(graph_.operands(node)[1]);
    const std::string& name = graph_.value(graph_.result(node)).name;
    // The shape of `count` rows: one axis for the rows, then the axes of one row of the constant.
    const auto row_shape = [&](const Constant& constant, std::int64_t count) {
      Shape out{count};
      for (std::size_t i = 1; i < constant.shape.size(); ++i) out.push_back(constant.shape[i]);
      if (out.size() == 1) out.push_back(1);
      return out;
    };
    const auto gather = [&](const Constant& constant, const ConstantRef& source) {
      std::int64_t width = 1;
      for (std::size_t i = 1; i < constant.shape.size(); ++i) width *= constant.shape[i];
      const ValueId values = stored(node, source, {1, shape[1], width});
      const ValueId got = add(node, Op::kTosaGather, NoAttrs{}, {values, index}, node.origin, name);
      return std::pair(got, width);
    };
    auto [x, width] = gather(*parts->form.narrow, parts->form.narrow);
    // Integers of some dtypes have no RESHAPE on targets without profile INT, so the cast comes first.
    bool is_split = false;
    for (const NarrowStep& step : parts->form.steps) {
      ValueId number;
      if (step.number) {
        if (!is_split) {
          x = add(node, Op::kTosaReshape, ShapeAttrs{row_shape(*parts->form.narrow, rows)}, {x}, node.origin,
                  name);
          is_split = true;
        }
        if (step.number->shape[0] == 1) {
          number = stored(node, step.number, row_shape(*step.number, 1));
        } else {
          number = gather(*step.number, step.number).first;
          number = add(node, Op::kTosaReshape, ShapeAttrs{row_shape(*step.number, rows)}, {number},
                       node.origin, name);
        }
      }
      x = stepped(node, step, x, number, name);
    }
    const Shape& result = graph_.type(graph_.result(node)).shape;
    if (out(node).type(x).shape != result)
      x = add(node, Op::kTosaReshape, ShapeAttrs{result}, {x}, node.origin, name);
    return x;
  }

  const Graph& graph_;
  const target::TargetSpec& target_;
  Rewriter rewriter_;
  std::vector<State> states_;  // by value
  std::map<const void*, Storage> owned_;
  std::map<std::pair<const Constant*, std::vector<std::int64_t>>, ConstantRef> constants_;
};

// True for weights, biases and tables: compilers for devices take them from the file, not from a node.
bool stays_constant(const Graph& graph, ValueId value) {
  return std::ranges::any_of(graph.users(value), [&](NodeId user) {
    const Node& node = graph.node(user);
    const bool is_conv = holds<TosaConvAttrs>(*node.attrs) || holds<TosaTransposeConvAttrs>(*node.attrs);
    return node.op == Op::kTosaTable || (is_conv && graph.operands(node)[0] != value);
  });
}

// Replaces constants with the same elements in several shapes by one constant and RESHAPEs of it.
std::optional<Graph> with_shared_elements(const Graph& graph, const target::TargetSpec& target) {
  std::unordered_map<std::uint64_t, std::vector<ValueId>> alike;
  std::vector<ValueId> first(graph.values().size());
  std::vector<std::uint32_t> order;
  for (const bool stays : {true, false})
    for (std::uint32_t i = 0; i < graph.values().size(); ++i)
      if (graph.values()[i].constant && stays_constant(graph, ValueId(i)) == stays) order.push_back(i);
  bool is_shared = false;
  for (const std::uint32_t i : order) {
    const ConstantRef& constant = graph.values()[i].constant;
    if (!constant->storage.bound() || constant->storage.size() < kLeastShared ||
        graph.is_output(ValueId(i)) || !has(target, Op::kTosaReshape, {constant->dtype, constant->dtype}))
      continue;
    std::vector<ValueId>& known = alike[sample_of(constant->storage)];
    const auto found = std::find_if(known.begin(), known.end(), [&](ValueId other) {
      const Constant& own = *graph.value(other).constant;
      return own.dtype == constant->dtype && same_elements(own.storage, constant->storage);
    });
    if (found == known.end() || stays_constant(graph, ValueId(i)))
      known.push_back(ValueId(i));
    else
      first[i] = *found, is_shared = true;
  }
  if (!is_shared) return std::nullopt;
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    for (const ValueId operand : graph.operands(node)) {
      if (!operand.valid() || !first[operand.index()].valid()) continue;
      const ValueId source = std::exchange(first[operand.index()], ValueId());
      Graph& out = rewriter.begin_output(node);
      const std::array operands{rewriter.map(source)};
      rewriter.bind(operand, out.add(Op::kTosaReshape, ShapeAttrs{graph.type(operand).shape}, operands,
                                     node.origin, graph.value(operand).name));
    }
    rewriter.copy(node);
  }
  return std::move(rewriter).finish();
}

// True if the value is the weight of an i8 convolution for which TOSA also allows weights of i4.
bool takes_i4(const Graph& graph, const Node& node, ValueId value) {
  const std::span<const ValueId> operands = graph.operands(node);
  const auto* attrs = get_if<TosaConvAttrs>(node.attrs.get());
  const auto* transposed = get_if<TosaTransposeConvAttrs>(node.attrs.get());
  if ((attrs == nullptr || attrs->weight_zp != 0) && (transposed == nullptr || transposed->weight_zp != 0))
    return false;
  return operands[1] == value && operands[0] != value && operands[2] != value &&
         graph.type(operands[0]).dtype == DType::kI8;
}

// Turns weights of i8 whose integers are from -7 to 7 into weights of i4.
std::optional<Graph> with_weights_of_i4(const Graph& graph, const target::TargetSpec& target) {
  constexpr std::int64_t kMost = 7;
  if (!target.has(target::Extension::kInt4)) return std::nullopt;
  Rewriter rewriter(graph);
  std::vector<bool> is_done(graph.values().size());
  for (const Node& node : graph.nodes()) {
    for (const ValueId operand : graph.operands(node)) {
      if (!operand.valid() || is_done[operand.index()]) continue;
      is_done[operand.index()] = true;
      const ConstantRef& constant = graph.value(operand).constant;
      if (!constant || constant->dtype != DType::kI8 || constant->storage.size() < kLeastSaved ||
          graph.is_output(operand))
        continue;
      const std::span<const NodeId> users = graph.users(operand);
      if (!std::all_of(users.begin(), users.end(),
                       [&](NodeId user) { return takes_i4(graph, graph.node(user), operand); }))
        continue;
      const ValueRange range = extremes_of(*constant);
      if (range.low < -kMost || range.high > kMost) continue;
      static_cast<void>(rewriter.begin_output(node));
      rewriter.bind(operand,
                    rewriter.constant(node, constant_over(constant->name, ConstantKind::kFolded, DType::kI4,
                                                          constant->shape, constant->storage)));
    }
    rewriter.copy(node);
  }
  return std::move(rewriter).finish();
}

// Replaces `now` by `next`, unless `next` is empty.
void take(std::optional<Graph>& now, std::optional<Graph> next) {
  if (next) now = std::move(next);
}

}  // namespace

// Adds notes on constants of one-byte dtypes of the source that `graph` does not store, because it has floats
// that were computed from them by operators that no NarrowForm describes. A constant counts as stored if its
// memory, or another one-byte constant with as many elements, is in the graph.
void add_lost_forms(const Graph& graph, const Graph& source, std::vector<ConstantNote>& notes) {
  std::set<const void*> kept;
  std::set<std::int64_t> narrow_sizes;
  bool has_large_floats = false;
  for (const Value& value : graph.values()) {
    if (!value.constant) continue;
    kept.insert(origin_of(value.constant->storage));
    const NarrowForm* form = exec::narrow_form(*value.constant);
    if (form != nullptr) kept.insert(origin_of(form->narrow->storage));
    if (byte_size(value.constant->dtype) == 1) narrow_sizes.insert(num_elements(value.constant->shape));
    has_large_floats = has_large_floats || (form == nullptr && is_float(value.constant->dtype) &&
                                            value.constant->storage.size() >= kLeastSaved);
  }
  if (!has_large_floats) return;
  for (const Value& value : source.values()) {
    const ConstantRef& constant = value.constant;
    if (!constant || constant->dtype == DType::kBool || byte_size(constant->dtype) != 1) continue;
    const std::int64_t elements = num_elements(constant->shape);
    if (constant->storage.size() < kLeastSaved || narrow_sizes.contains(elements)) continue;
    if (!kept.insert(origin_of(constant->storage)).second) continue;
    notes.push_back({"grown-weight", constant->name,
                     quoted(constant->name) + " is not stored as " + std::string(to_string(constant->dtype)) +
                         ": floats that were computed from it are constants, about " +
                         std::to_string(sizeof(float)) +
                         " times as large, as after a norm, a flip, a pad or a concatenation"});
  }
}

std::vector<ConstantNote> constant_notes(const Graph& graph, const Graph& source,
                                         const target::TargetSpec& target) {
  std::unordered_map<const void*, std::string> names;  // by the memory of a constant of the source
  for (const Value& value : source.values())
    if (value.constant) names.try_emplace(origin_of(value.constant->storage), value.constant->name);
  const auto name_of = [&](const Storage& storage, const std::string& otherwise) {
    const auto found = names.find(origin_of(storage));
    return found != names.end() ? found->second : otherwise;
  };
  std::vector<ConstantNote> notes;
  std::map<std::pair<const void*, std::size_t>, std::string> stored;  // by memory and size: the first name
  for (const Value& value : graph.values()) {
    const ConstantRef& constant = value.constant;
    if (!constant || constant->storage.size() < kLeastSaved) continue;
    if (const NarrowForm* form = exec::narrow_form(*constant)) {
      const std::string lack = lacking(target, *form);
      if (lack.empty()) continue;
      const std::string name = name_of(form->narrow->storage, form->root);
      const double times = static_cast<double>(constant->storage.size()) / static_cast<double>(form->bytes());
      std::ostringstream text;
      text.precision(2);
      text << quoted(name) << " is stored as " << to_string(constant->dtype) << ", " << times
           << " times as large as its " << to_string(form->root_dtype) << ": " << to_string(target)
           << " lacks " << lack;
      notes.push_back({"grown-weight", name, text.str()});
      continue;
    }
    const auto [first, is_new] =
        stored.try_emplace({origin_of(constant->storage), constant->storage.size()}, constant->name);
    if (is_new) continue;
    const std::string name = name_of(constant->storage, first->second);
    notes.push_back({"two-layouts", name,
                     quoted(name) + " is stored twice, as " + quoted(first->second) + " and " +
                         quoted(constant->name) +
                         ": their readers need other orders of its axes, or scales"});
  }
  add_lost_forms(graph, source, notes);
  return notes;
}

std::optional<Graph> store_constants(const Graph& graph, const PassOptions& options) {
  std::optional<Graph> now = Narrowing(graph, options).run();
  if (now) take(now, common_subexpressions(*now));
  take(now, with_shared_elements(now ? *now : graph, options.target));
  take(now, with_weights_of_i4(now ? *now : graph, options.target));
  if (now) take(now, dead_code(*now));
  return now;
}

}  // namespace tosaic::passes
