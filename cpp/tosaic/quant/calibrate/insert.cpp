#include "tosaic/quant/calibrate/insert.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tosaic/ir/quantized.h"

namespace tosaic::quant {
namespace {

class Inserter {
 public:
  Inserter(const Graph& source, std::span<const Placement> placements) : source_(source) {
    for (const Placement& each : placements) {
      if (each.qparams) require_qparams(*each.qparams, source.type(each.value).shape);
      require_elements(each);
      at_[each.value.index()].push_back(&each);
    }
  }

  InsertedQuantization run() {
    out_.graph.name = source_.name;
    out_.graph.stage = source_.stage;
    map_.assign(source_.values().size(), ValueId());
    for (const Input& input : source_.inputs()) {
      const Value& value = source_.value(input.value);
      define(input.value, out_.graph.add_input(input.kind, value.name, value.type, input.path, input.boundary,
                                               input.initial));
    }
    for (std::uint32_t v = 0; v < source_.values().size(); ++v)
      if (source_.values()[v].kind == ValueKind::kConstant) define_constant(ValueId(v));
    for (const Node& node : source_.nodes()) copy(node);
    for (const Output& output : source_.outputs()) {
      Output made = output;
      made.value = read_by_output(output.value);
      out_.graph.add_output(std::move(made));
    }
    return std::move(out_);
  }

 private:
  using Place = std::pair<std::uint32_t, std::uint32_t>;  // value, and its reader: a node or kOutputs
  static constexpr std::uint32_t kOutputs = 0xffffffffU;

  void copy(const Node& node) {
    std::vector<ValueId> operands;
    for (const ValueId operand : source_.operands(node))
      operands.push_back(operand.valid() ? read(operand, source_.id(node).index()) : operand);
    const NodeId made = out_.graph.add_copy(source_, node, operands);
    for (std::uint32_t i = 0; i < node.result_count; ++i)
      define(source_.result(node, i), out_.graph.result(out_.graph.node(made), i));
  }

  [[nodiscard]] ValueId read(ValueId value, std::uint32_t node) const {
    const auto own = read_.find({value.index(), node});
    return own == read_.end() ? map_[value.index()] : own->second;
  }

  [[nodiscard]] ValueId read_by_output(ValueId value) const { return read(value, kOutputs); }

  // Adds the nodes that quantize a value, directly after it.
  void define(ValueId old, ValueId fresh) {
    map_[old.index()] = fresh;
    const auto found = at_.find(old.index());
    if (found == at_.end()) return;
    QParamsRef everywhere;
    for (const Placement* each : found->second)
      if (each->for_all) {
        map_[old.index()] = quantized(old, fresh, *each);
        everywhere = each->qparams;
      }
    std::vector<std::pair<QParamsRef, ValueId>> made;
    for (const Placement* each : found->second) {
      if (each->for_all || same_qparams(each->qparams, everywhere)) continue;
      const auto known =
          std::ranges::find_if(made, [&](const auto& one) { return same_qparams(one.first, each->qparams); });
      const ValueId value = known != made.end() ? known->second : quantized(old, map_[old.index()], *each);
      if (known == made.end()) made.emplace_back(each->qparams, value);
      for (const NodeId user : each->users) read_[{old.index(), user.index()}] = value;
      if (each->for_outputs) read_[{old.index(), kOutputs}] = value;
    }
  }

  ValueId quantized(ValueId old, ValueId from, const Placement& placement) {
    const QParamsRef& qparams = placement.qparams;
    const DType dtype = source_.type(old).dtype;
    const std::string& name = source_.value(old).name;
    const OriginRef origin = origin_of(old);
    const ValueId integers =
        out_.graph.add(Op::kQuantize, attrs_of_qparams<QuantizeAttrs>(qparams->storage, *qparams),
                       std::span(&from, 1), origin, name + ".quantize");
    const ValueId numbers = dequantized(integers, dtype, *qparams, origin, name);
    return placement.infinite_below ? with_infinity(numbers, *placement.infinite_below, origin, name)
                                    : numbers;
  }

  // x + where(x <= bound, -inf, 0). lower-to-integer recognises this sum as a mask made by comparisons, like
  // a mask that is made from bools.
  ValueId with_infinity(ValueId x, double bound, const OriginRef& origin, const std::string& name) {
    const DType dtype = out_.graph.type(x).dtype;
    const auto number = [&](const char* part, double value) {
      return out_.graph.add_constant(make_constant(name + part, dtype, {}, std::span(&value, 1)));
    };
    const ValueId compared[] = {x, number(".bound", bound)};
    const ValueId hidden = out_.graph.add(Op::kLe, NoAttrs{}, compared, origin, name + ".hidden");
    const ValueId chosen[] = {hidden, number(".infinity", -HUGE_VAL), number(".zero", 0)};
    const ValueId mask = out_.graph.add(Op::kWhere, NoAttrs{}, chosen, origin, name + ".mask");
    const ValueId added[] = {x, mask};
    return out_.graph.add(Op::kAdd, AlphaAttrs{}, added, origin, name + ".masked");
  }

  ValueId dequantized(ValueId integers, DType dtype, const QParams& qparams, const OriginRef& origin,
                      const std::string& name) {
    return out_.graph.add(Op::kDequantize, attrs_of_qparams<DequantizeAttrs>(dtype, qparams),
                          std::span(&integers, 1), origin, name + ".dequantize");
  }

  // The origin of the node that computes the value or, if no node does, of the first node that reads it.
  [[nodiscard]] OriginRef origin_of(ValueId value) const {
    if (const Node* const producer = source_.producer(value)) return producer->origin;
    const auto users = source_.users(value);
    return users.empty() ? nullptr : source_.node(users.front()).origin;
  }

  // A constant with placements becomes one constant of integers for each of its qparams. The floats stay if
  // some reader has no placement.
  void define_constant(ValueId old) {
    const auto found = at_.find(old.index());
    const ConstantRef& constant = source_.value(old).constant;
    if (found == at_.end()) {
      map_[old.index()] = out_.graph.add_constant(constant);
      return;
    }
    std::vector<std::pair<const Placement*, ValueId>> made;
    for (const Placement* each : found->second) {
      auto known = std::ranges::find_if(made, [&](const auto& one) {
        return one.first->elements == each->elements && same_qparams(one.first->qparams, each->qparams);
      });
      if (known == made.end()) {
        const Constant& elements = each->elements ? *each->elements : *constant;
        made.emplace_back(each, each->qparams ? integers_of(old, elements, *each->qparams)
                                              : out_.graph.add_constant(each->elements));
        known = std::prev(made.end());
      }
      if (each->for_all) map_[old.index()] = known->second;
      for (const NodeId user : each->users) read_[{old.index(), user.index()}] = known->second;
      if (each->for_outputs) read_[{old.index(), kOutputs}] = known->second;
    }
    if (!map_[old.index()].valid() && is_read_as_float(old))
      map_[old.index()] = out_.graph.add_constant(constant);
  }

  void require_elements(const Placement& placement) const {
    const Value& value = source_.value(placement.value);
    const Constant* const own = placement.elements.get();
    if (own == nullptr && placement.qparams) return;
    if (own != nullptr && value.constant && own->dtype == value.type.dtype && own->shape == value.type.shape)
      return;
    throw InternalError(
        {.where = "quantize", .what = "the elements of '" + value.name + "' are not a constant of its type"});
  }

  [[nodiscard]] bool is_read_as_float(ValueId old) const {
    if (source_.is_output(old) && !read_.contains({old.index(), kOutputs})) return true;
    return std::ranges::any_of(source_.users(old),
                               [&](NodeId user) { return !read_.contains({old.index(), user.index()}); });
  }

  ValueId integers_of(ValueId old, const Constant& constant, const QParams& qparams) {
    const Elements elements(constant);
    std::vector<float> values(elements.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(elements.as_double(i));
    Quantized quantized = quant::quantize(values, constant.shape, qparams);
    if (quantized.counts.saturated != 0 || quantized.counts.nans != 0)
      out_.saturated.push_back({source_.value(old).name, quantized.counts});
    const ValueId integers = out_.graph.add_constant(constant_over(
        constant.name, constant.kind, qparams.storage, constant.shape, std::move(quantized.storage)));
    return dequantized(integers, source_.type(old).dtype, qparams, origin_of(old), source_.value(old).name);
  }

  const Graph& source_;
  std::map<std::uint32_t, std::vector<const Placement*>> at_;
  std::vector<ValueId> map_;       // by old value: what readers without a placement of their own read
  std::map<Place, ValueId> read_;  // what other readers read
  InsertedQuantization out_;
};

}  // namespace

InsertedQuantization insert_quantization(const Graph& graph, std::span<const Placement> placements) {
  return Inserter(graph, placements).run();
}

}  // namespace tosaic::quant
