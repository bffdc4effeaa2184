#include "tosaic/claimant/limits.h"

#include <algorithm>
#include <string>

#include "tosaic/base/error_text.h"
#include "tosaic/claimant/measure.h"

namespace tosaic::claimant {
namespace {

bool concerns(const std::vector<Op>& ops, Op op) { return std::ranges::find(ops, op) != ops.end(); }

std::vector<DType> dtypes_of(const Graph& graph, std::span<const ValueId> values) {
  std::vector<DType> out;
  for (const ValueId value : values)
    if (value.valid()) out.push_back(graph.type(value).dtype);
  return out;
}

std::string text_of(const std::vector<DType>& dtypes) {
  std::vector<std::string> names;
  for (const DType dtype : dtypes) names.emplace_back(to_string(dtype));
  return joined(names);
}

std::string text_of(const DTypes& dtypes) {
  if (dtypes.any()) return "any";
  std::string out;
  for (unsigned i = 0; i <= static_cast<unsigned>(DType::kF64); ++i)
    if (const auto dtype = static_cast<DType>(i); dtypes.has(dtype))
      out.append(out.empty() ? "" : " or ").append(to_string(dtype));
  return out;
}

std::string text_of(const OperatorRow& row) {
  std::string out = text_of(row.input);
  if (!row.second.any()) out += ", " + text_of(row.second);
  return out + " -> " + text_of(row.result);
}

bool fits(const Graph& graph, const Node& node, const OperatorRow& row) {
  const std::vector<DType> operands = dtypes_of(graph, graph.operands(node));
  if (!operands.empty() && !row.input.has(operands[0])) return false;
  if (operands.size() > 1 && !row.second.has(operands[1])) return false;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    if (!row.result.has(graph.type(graph.result(node, r)).dtype)) return false;
  return true;
}

void judge_operator(const Graph& graph, const Node& node, const Limits& limits, const std::string& who,
                    std::vector<Reason>& reasons) {
  std::string rows;
  bool known = false;
  for (const OperatorRow& row : limits.operators) {
    if (!concerns(row.ops, node.op)) continue;
    if (fits(graph, node, row)) return;
    known = true;
    rows += (rows.empty() ? "" : "; ") + text_of(row);
  }
  const std::string name = quoted(tosaic::info(node.op).name);
  if (!known) return reasons.push_back({"operator", {.where = "claimant", .what = who + " has no " + name}});
  std::vector<DType> results;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    results.push_back(graph.type(graph.result(node, r)).dtype);
  reasons.push_back({"dtype",
                     {.where = "claimant",
                      .what = who + " does not compute " + name + " with these dtypes",
                      .expected = rows,
                      .got = text_of(dtypes_of(graph, graph.operands(node))) + " -> " + text_of(results)}});
}

std::string bounds(const LimitRow& row) {
  if (row.most == kNoLimit) return "at least " + std::to_string(row.least);
  if (row.least == row.most) return std::to_string(row.least);
  return std::to_string(row.least) + " to " + std::to_string(row.most);
}

void judge_limit(const NodeView& view, const LimitRow& row, const std::string& who,
                 std::vector<Reason>& reasons) {
  const QuantityInfo& quantity = info(row.quantity);
  for (const std::int64_t found : quantity.measure(view)) {
    if (found >= row.least && found <= row.most) continue;
    ErrorParts parts{.where = "claimant",
                     .what = std::string(quantity.what) + " of " + quoted(tosaic::info(view.node.op).name) +
                             std::string(text_of(row.when)) + " is not what " + who + " takes"};
    const bool is_flag = !quantity.yes.empty();
    parts.expected = is_flag ? std::string(row.least == 1 ? quantity.yes : quantity.no) : bounds(row);
    parts.got = is_flag ? std::string(found == 1 ? quantity.yes : quantity.no) : std::to_string(found);
    return reasons.push_back({std::string(quantity.name), std::move(parts)});
  }
}

}  // namespace

std::string_view name_of(Quantity quantity) { return info(quantity).name; }

bool lists_floats(const Limits& limits, Op op) {
  return std::ranges::any_of(limits.operators, [&](const OperatorRow& row) {
    return concerns(row.ops, op) && !row.input.any() && row.input.has(DType::kF32) &&
           row.second.has(DType::kF32);
  });
}

void judge(const Graph& graph, const Node& node, const Limits& limits, std::string_view who,
           std::vector<Reason>& reasons) {
  const std::string name(who);
  judge_operator(graph, node, limits, name, reasons);
  for (const LimitRow& row : limits.limits) {
    const NodeView view{graph, node, row.unit};
    if (concerns(row.ops, node.op) && holds(row.when, view)) judge_limit(view, row, name, reasons);
  }
}

}  // namespace tosaic::claimant
