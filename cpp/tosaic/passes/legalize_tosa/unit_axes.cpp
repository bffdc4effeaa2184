// unit-axes: gives chains of operators four axes, with leading axes of extent 1, if fewer tensors are then
// read in two shapes.
//
//   %c: i16[1,1,9,8] = rescale(%conv)             %c: i16[1,1,9,8] = rescale(%conv)
//   %r: i16[1,9,8] = reshape(%c)
//   %a = add(%r, %b)  %s = reduce_sum(%r)   ->    %a.4 = add(%c, %b.4)  %s.4 = reduce_sum(%c)
//   %k: i8[1,1,9,8] = reshape(%q)                 %k: i8[1,1,9,8] = %q.4
//
// Vela copies a tensor that is read in two shapes. A linear layer is a convolution, with four axes, and
// the sums and norms next to it have those of torch's program. A chain consists of operators that read
// one another and compute in any number of axes: elementwise operators, reductions and movement. The
// target must be able to reshape all tensors of a chain.
#include <algorithm>
#include <numeric>
#include <vector>

#include "tosaic/ir/op_table.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"
#include "tosaic/target/type_support.h"

namespace tosaic::passes {
namespace {

constexpr std::size_t kAxes = 4;

Shape in_four_axes(const Shape& shape) {
  Shape out = shape;
  while (out.size() < kAxes) out.insert(0, 1);
  return out;
}

void prepend(Dims& dims, std::int64_t number, std::int64_t more) {
  for (std::int64_t k = 0; k < more; ++k) dims.insert(0, number);
}

// What leading axes change in the attributes of an operator.
using AddAxes = void (*)(Attrs&, std::int64_t more);

template <class T>
void move_axis(Attrs& attrs, std::int64_t more) {
  get<T>(attrs).axis += more;
}

void add_to_pad(Attrs& attrs, std::int64_t more) {
  prepend(get<TosaPadAttrs>(attrs).before, 0, more);
  prepend(get<TosaPadAttrs>(attrs).after, 0, more);
}

void add_to_slice(Attrs& attrs, std::int64_t more) {
  prepend(get<TosaSliceAttrs>(attrs).start, 0, more);
  prepend(get<TosaSliceAttrs>(attrs).size, 1, more);
}

void add_to_transpose(Attrs& attrs, std::int64_t more) {
  Dims& perm = get<PermuteAttrs>(attrs).perm;
  for (std::int64_t& axis : perm) axis += more;
  prepend(perm, 0, more);
  std::iota(perm.begin(), perm.begin() + more, 0);
}

// The operators of a chain, beside the elementwise ones, which have no axes.
constexpr OpTable<AddAxes> kAddAxes = {{Op::kTosaReduceAll, move_axis<AxisAttrs>},
                                       {Op::kTosaReduceAny, move_axis<AxisAttrs>},
                                       {Op::kTosaReduceProduct, move_axis<AxisAttrs>},
                                       {Op::kTosaReduceSum, move_axis<AxisAttrs>},
                                       {Op::kTosaConcat, move_axis<AxisAttrs>},
                                       {Op::kTosaReverse, move_axis<AxisAttrs>},
                                       {Op::kTosaReduceMax, move_axis<TosaAxisNanAttrs>},
                                       {Op::kTosaReduceMin, move_axis<TosaAxisNanAttrs>},
                                       {Op::kTosaPad, add_to_pad},
                                       {Op::kTosaSlice, add_to_slice},
                                       {Op::kTosaTranspose, add_to_transpose}};

// The attributes of an operator on four axes instead of `kAxes - more`. Returns nothing if the operator is
// not one of a chain.
std::optional<Attrs> with_more_axes(const Node& node, std::int64_t more) {
  Attrs attrs = *node.attrs;
  const AddAxes* add_axes = kAddAxes.find(node.op);
  if (add_axes)
    (*add_axes)(attrs, more);
  else if (!info(node.op).has(kElementwise))
    return std::nullopt;
  return attrs;
}

QParamsRef with_more_axes(const QParamsRef& qparams, std::int64_t more) {
  if (!qparams || !qparams->axis) return qparams;
  auto moved = std::make_shared<QParams>(*qparams);
  *moved->axis += more;
  if (moved->groups) moved->groups->axis += more;
  return moved;
}

class UnitAxes {
 public:
  UnitAxes(const Graph& graph, const target::TargetSpec& target)
      : graph_(graph),
        dtypes_(target::dtypes_of(target, Op::kTosaReshape, 1)),
        chain_(graph.nodes().size()),
        is_wide_(graph.nodes().size(), false),
        from_(graph.values().size()),
        readers_(graph.values().size()),
        rewriter_(graph),
        made_(graph.values().size()),
        reshaped_(graph.values().size()) {}

  std::optional<Graph> run() && {
    find_chains();
    find_readers();
    if (!choose()) return std::nullopt;
    for (const Node& node : graph_.nodes()) {
      if (is_wide_[index(node)])
        rewrite(node);
      else if (const ValueId same = is_chain_reshape(node) ? in_shape(node, graph_.operands(node)[0],
                                                                      graph_.type(graph_.result(node)).shape)
                                                           : ValueId();
               same.valid())
        rewriter_.replace(node, same);
      else
        rewriter_.copy(node);
    }
    return without_dead_code(std::move(rewriter_).finish());
  }

 private:
  [[nodiscard]] std::size_t index(const Node& node) const {
    return static_cast<std::size_t>(&node - graph_.nodes().data());
  }

  // An operand that has the axes of the operator: a TABLE's table has not, and constants are stored in any
  // shape.
  [[nodiscard]] bool is_read(const Node& node, std::size_t i) const {
    const ValueId operand = graph_.operands(node)[i];
    return operand.valid() && !info(node.op).is_table(i) && constant_of(graph_, operand) == nullptr;
  }

  // True for a node of a chain: an operator with one result of 1 to 3 axes, whose operands have as many.
  [[nodiscard]] bool is_of_chain(const Node& node) const {
    if (node.result_count != 1 || !node.regions.empty() || !with_more_axes(node, 1)) return false;
    const std::size_t rank = graph_.type(graph_.result(node)).rank();
    if (rank == 0 || rank >= kAxes || !can_reshape(graph_.result(node))) return false;
    for (std::size_t i = 0; i < node.operand_count; ++i)
      if (const ValueId operand = graph_.operands(node)[i];
          operand.valid() && !info(node.op).is_table(i) &&
          (graph_.type(operand).rank() != rank || (is_read(node, i) && !can_reshape(operand))))
        return false;
    return true;
  }

  [[nodiscard]] bool can_reshape(ValueId value) const {
    return std::ranges::find(dtypes_, graph_.type(value).dtype) != dtypes_.end();
  }

  void find_chains() {
    std::iota(chain_.begin(), chain_.end(), std::size_t{0});
    for (const Node& node : graph_.nodes()) {
      if (!is_of_chain(node)) {
        chain_[index(node)] = kNone;
        continue;
      }
      for (std::size_t i = 0; i < node.operand_count; ++i)
        if (const Node* const producer =
                is_read(node, i) ? graph_.producer(graph_.operands(node)[i]) : nullptr;
            producer != nullptr && chain_[index(*producer)] != kNone)
          chain_[root(index(*producer))] = root(index(node));
    }
  }

  std::size_t root(std::size_t n) {
    while (chain_[n] != n) n = chain_[n] = chain_[chain_[n]];
    return n;
  }

  // A reader of a tensor, in the shape of `value`.
  struct Reader {
    ValueId value;
    std::size_t chain;  // of the node that reads; kNone: no node of a chain, or an output of the graph
  };

  // Lists the readers of each tensor. The readers of a reshape's result count as readers of its operand.
  void find_readers() {
    for (std::uint32_t v = 0; v < from_.size(); ++v) {
      const Node* const producer = graph_.producer(ValueId(v));
      from_[v] = producer != nullptr && producer->op == Op::kTosaReshape
                     ? from_[graph_.operands(*producer)[0].index()]
                     : ValueId(v);
    }
    for (const Node& node : graph_.nodes()) {
      if (node.op == Op::kTosaReshape) continue;
      const std::size_t chain = chain_[index(node)] == kNone ? kNone : root(index(node));
      for (std::size_t i = 0; i < node.operand_count; ++i)
        if (is_read(node, i)) add_reader(graph_.operands(node)[i], chain);
    }
    for (const Output& output : graph_.outputs()) add_reader(output.value, kNone);
  }

  void add_reader(ValueId value, std::size_t chain) {
    readers_[from_[value.index()].index()].push_back({value, chain});
  }

  // The bytes of a tensor that are copied: once for each shape but one in which it is read. Nodes of
  // `tried` read it in four axes, as nodes of the chains that were chosen.
  std::int64_t copied(ValueId tensor, std::size_t tried) {
    std::vector<Shape> shapes;
    for (const Reader& reader : readers_[tensor.index()]) {
      const Shape& own = graph_.type(reader.value).shape;
      const bool is_wide = reader.chain != kNone && (reader.chain == tried || is_wide_[reader.chain]);
      Shape shape = is_wide ? in_four_axes(own) : own;
      if (std::ranges::find(shapes, shape) == shapes.end()) shapes.push_back(std::move(shape));
    }
    const auto more = static_cast<std::int64_t>(shapes.size()) - 1;
    return std::max<std::int64_t>(more, 0) * graph_.type(tensor).bytes();
  }

  // Marks, in is_wide_, the nodes of all chains for which four axes save copies. Returns false if no chain is
  // marked.
  bool choose() {
    std::vector<std::vector<ValueId>> tensors(graph_.nodes().size());  // by chain: what its nodes read
    for (std::uint32_t v = 0; v < readers_.size(); ++v)
      for (const Reader& reader : readers_[v])
        if (reader.chain != kNone &&
            (tensors[reader.chain].empty() || tensors[reader.chain].back() != ValueId(v)))
          tensors[reader.chain].push_back(ValueId(v));
    bool found = false;
    for (std::size_t chain = 0; chain < tensors.size(); ++chain) {
      std::int64_t before = 0, after = 0;
      for (const ValueId tensor : tensors[chain])
        before += copied(tensor, kNone), after += copied(tensor, chain);
      if (after >= before) continue;
      found = is_wide_[chain] = true;
    }
    for (std::size_t n = 0; n < chain_.size(); ++n)
      if (chain_[n] != kNone) is_wide_[n] = is_wide_[root(n)];
    return found;
  }

  // True for a reshape of a result that is computed in four axes.
  [[nodiscard]] bool is_chain_reshape(const Node& node) const {
    return node.op == Op::kTosaReshape && made_[graph_.operands(node)[0].index()].valid();
  }

  // True if the result is needed in its own shape, by an output or by a node that is not of a chosen chain.
  [[nodiscard]] bool is_read_in_own_shape(const Node& node) const {
    const ValueId result = graph_.result(node);
    const auto users = graph_.users(result);
    return std::ranges::any_of(graph_.outputs(), [&](const Output& each) { return each.value == result; }) ||
           std::ranges::any_of(users, [&](NodeId user) {
             return !is_wide_[user.index()] && graph_.node(user).op != Op::kTosaReshape;
           });
  }

  // The tensor in another shape: without a reshape if it was made in that shape.
  ValueId in_shape(const Node& at, ValueId old, const Shape& shape) {
    for (ValueId each = old;;) {
      const ValueId fresh = made_[each.index()].valid() ? made_[each.index()] : rewriter_.map(each);
      if (rewriter_.current().type(fresh).shape == shape) return fresh;
      const Node* const producer = graph_.producer(each);
      if (producer == nullptr || producer->op != Op::kTosaReshape) break;
      each = graph_.operands(*producer)[0];
    }
    const ValueId from = from_[old.index()];
    auto& known = reshaped_[from.index()];
    for (const ValueId each : known)
      if (rewriter_.current().type(each).shape == shape) return each;
    const ValueId fresh = made_[from.index()].valid() ? made_[from.index()] : rewriter_.map(from);
    known.push_back(rewriter_.emit(at, Op::kTosaReshape, ShapeAttrs{shape}, {fresh}));
    if (const QParamsRef& qparams = graph_.type(from).qparams; qparams && !qparams->axis)
      rewriter_.begin_output(at).set_qparams(known.back(), qparams);
    return known.back();
  }

  ValueId operand_in_four_axes(const Node& node, std::size_t i) {
    const ValueId old = graph_.operands(node)[i];
    if (!old.valid() || info(node.op).is_table(i)) return rewriter_.map(old);
    const Shape shape = in_four_axes(graph_.type(old).shape);
    const Constant* const constant = constant_of(graph_, old);
    if (constant == nullptr) return in_shape(node, old, shape);
    auto& known = reshaped_[old.index()];
    if (known.empty()) {
      auto reshaped = std::make_shared<Constant>(*constant);
      reshaped->shape = shape;
      known.push_back(rewriter_.constant(node, std::move(reshaped)));
    }
    return known.front();
  }

  // The new value represents the result, which nothing reads any more.
  void stand_for(ValueId made, const Node& node) {
    const Value& old = graph_.value(graph_.result(node));
    Graph& out = rewriter_.begin_output(node);
    out.try_rename(made, old.name);
    out.set_source(made, old.source);
    if (!old.canonical_order) return;
    Dims order = old.canonical_order->axes(old.type.rank());
    while (order.size() < kAxes) {
      for (std::int64_t& axis : order) ++axis;
      order.insert(0, 0);
    }
    out.set_canonical_order(made, DimOrder(order));
  }

  void rewrite(const Node& node) {
    static_cast<void>(rewriter_.begin_output(node));
    const TensorType& type = graph_.type(graph_.result(node));
    std::vector<ValueId> operands;
    for (std::size_t i = 0; i < node.operand_count; ++i) operands.push_back(operand_in_four_axes(node, i));
    const auto more = static_cast<std::int64_t>(kAxes - type.rank());
    const ValueId made = rewriter_.emit(node, node.op, *with_more_axes(node, more), operands);
    rewriter_.begin_output(node).set_qparams(made, with_more_axes(type.qparams, more));
    made_[node.first_result] = made;
    if (!is_read_in_own_shape(node)) stand_for(made, node);
    const ValueId same = rewriter_.emit(node, Op::kTosaReshape, ShapeAttrs{type.shape}, {made});
    rewriter_.begin_output(node).set_qparams(same, type.qparams);
    rewriter_.replace(node, same);
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  const Graph& graph_;
  std::vector<DType> dtypes_;                 // of the tensors that the target can reshape
  std::vector<std::size_t> chain_;            // by node: a node of the same chain, up to the first one
  std::vector<bool> is_wide_;                 // by node, also by chain: computes in four axes
  std::vector<ValueId> from_;                 // by value: the tensor of which it is a reshaped form
  std::vector<std::vector<Reader>> readers_;  // by tensor
  Rewriter rewriter_;
  std::vector<ValueId> made_;                   // by old value: the new value with four axes
  std::vector<std::vector<ValueId>> reshaped_;  // by old tensor or constant: new values in other shapes
};

}  // namespace

std::optional<Graph> unit_axes(const Graph& graph, const PassOptions& options) {
  return UnitAxes(graph, options.target).run();
}

}  // namespace tosaic::passes
