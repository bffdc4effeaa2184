#include "tosaic/claimant/border_integers.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tosaic/analysis/ranges/ranges.h"
#include "tosaic/base/error_text.h"

namespace tosaic::claimant {
namespace {

using analysis::integers_of_bits;

bool is_wide_integer(const TensorType& type) {
  return (type.dtype == DType::kI64 || type.dtype == DType::kI32) && !type.qparams;
}

// The ranges of all values, if the host computes in 64 bits and the lowered groups in 32 bits.
analysis::IntegerRanges ranges_between(const Graph& graph, const std::vector<bool>& lowered) {
  const ValueRange narrow = integers_of_bits(31);
  std::vector<ValueRange> known = analysis::initial_integer_ranges(graph);
  for (std::size_t i = 0; i < known.size(); ++i) {
    const Value& value = graph.values()[i];
    if (value.kind == ValueKind::kConstant) continue;
    const bool in_32_bits = value.kind == ValueKind::kInput || lowered[value.producer.index()];
    if (value.type.dtype == DType::kI64 && in_32_bits) known[i] = narrow;
    // TOSA's casts saturate to i32. The host's casts do not.
    const bool saturates = known[i].low == narrow.low || known[i].high == narrow.high;
    if (is_float(value.type.dtype) && saturates) known[i] = ValueRange::all();
  }
  return {graph, std::move(known), {.foreign = analysis::ForeignResults::kInitial}};
}

class Search {
 public:
  Search(const Graph& graph, std::span<const NodeId> group, const std::vector<bool>& lowered,
         const Graph& tosa)
      : graph_(graph), group_(group), lowered_(lowered), tosa_(tosa) {}

  std::vector<UnfitReader> run() {
    std::vector<UnfitReader> found;
    // A node that leaves the group computes in 64 bits, so its readers may have to leave the group, too.
    for (std::size_t before = 1; before != found.size();) {
      before = found.size();
      for (const NodeId id : group_)
        if (is_inside(id))
          if (std::optional<ErrorParts> why = why_not(graph_.node(id)))
            found.push_back({id, std::move(*why)});
      for (const UnfitReader& each : found) lowered_[each.node.index()] = false;
      ranges_.reset();
    }
    std::ranges::sort(found, {}, &UnfitReader::node);
    return found;
  }

 private:
  [[nodiscard]] bool is_inside(NodeId node) const {
    return lowered_[node.index()] && std::ranges::binary_search(group_, node);
  }

  [[nodiscard]] std::optional<ErrorParts> why_not(const Node& node) {
    for (std::size_t i = 0; i < node.operand_count; ++i) {
      const ValueId operand = graph_.operands(node)[i];
      if (!operand.valid() || !is_wide_integer(graph_.type(operand))) continue;
      const Node* const producer = graph_.producer(operand);
      if (producer == nullptr || is_inside(graph_.id(*producer)) || chooses(node, i)) continue;
      const ValueRange taken = taken_of(operand);
      if (!taken.contains(ranges().of(operand))) return reason(node, operand, taken);
    }
    return {};
  }

  // The range of integers that the lowered group accepts for a value of another part.
  [[nodiscard]] ValueRange taken_of(ValueId value) const {
    for (const Input& input : tosa_.inputs())
      if (input.path == graph_.value(value).name && input.boundary.source_dtype)
        return {input.boundary.range_min, input.boundary.range_max};
    return integers_of_bits(31);
  }

  // True if the operand only chooses elements of another operand, directly or through views in the group.
  [[nodiscard]] bool chooses(const Node& node, std::size_t operand) const {
    if (const std::string_view name = info(node.op).operand_name(operand);
        name == "index" || name == "indices")
      return true;
    if (node.operand_count != 1 || !(info(node.op).has(kView) || info(node.op).has(kMovement))) return false;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = graph_.result(node, r);
      if (graph_.is_output(result)) return false;
      for (const NodeId user : graph_.users(result)) {
        const Node& reader = graph_.node(user);
        for (std::size_t i = 0; i < reader.operand_count; ++i)
          if (graph_.operands(reader)[i] == result && !(is_inside(user) && chooses(reader, i))) return false;
      }
    }
    return true;
  }

  [[nodiscard]] ErrorParts reason(const Node& node, ValueId value, const ValueRange& taken) {
    const auto text = [](const ValueRange& range) {
      return std::to_string(range.low) + " to " + std::to_string(range.high);
    };
    return located({.where = "partition",
                    .what = quoted(info(node.op).name) +
                            " reads integers of another part, which are not known to fit the i32 of TOSA",
                    .expected = text(taken),
                    .got = text(ranges().of(value)) + " in " + quoted(graph_.value(value).name),
                    .hint = "Bound them where they are made, e.g. with clamp or %"},
                   node.origin, graph_.node_name(node));
  }

  const analysis::IntegerRanges& ranges() {
    if (!ranges_) ranges_.emplace(ranges_between(graph_, lowered_));
    return *ranges_;
  }

  const Graph& graph_;
  std::span<const NodeId> group_;
  std::vector<bool> lowered_;
  const Graph& tosa_;
  std::optional<analysis::IntegerRanges>
      ranges_;  // for `lowered_`; computed for the first integer that another part has
};

}  // namespace

std::vector<UnfitReader> unfit_readers(const Graph& graph, std::span<const NodeId> group,
                                       const std::vector<bool>& lowered, const Graph& tosa) {
  return Search(graph, group, lowered, tosa).run();
}

}  // namespace tosaic::claimant
