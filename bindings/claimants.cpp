// Bindings of claimant/.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "tosaic/base/error_text.h"
#include "tosaic/claimant/border_integers.h"
#include "tosaic/claimant/claimant.h"
#include "tosaic/claimant/emitted.h"
#include "tosaic/claimant/verdicts.h"
#include "tosaic/ir/constant_factor.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

claimant::Match match_of(const std::string& text) {
  if (text == "name") return claimant::Match::kName;
  if (text == "where") return claimant::Match::kPredicate;
  if (text == "module") return claimant::Match::kModule;
  return claimant::Match::kOp;
}

// Rules as (kind, value, function or None, allow, text). The function takes the graph and the index of a
// node.
std::vector<claimant::Rule> rules_of(const py::sequence& rules, const SharedGraph& graph) {
  std::vector<claimant::Rule> out;
  for (const py::handle each : rules) {
    const auto fields = py::reinterpret_borrow<py::tuple>(each);
    claimant::Rule rule{.match = match_of(fields[0].cast<std::string>()),
                        .value = fields[1].cast<std::string>(),
                        .allow = fields[3].cast<bool>(),
                        .text = fields[4].cast<std::string>()};
    if (rule.match == claimant::Match::kPredicate)
      rule.predicate = [graph, function = owned(py::reinterpret_borrow<py::object>(fields[2]))](
                           const Graph& of, const Node& node) {
        const py::gil_scoped_acquire gil;
        return py::bool_((*function)(graph, of.id(node).index())).cast<bool>();
      };
    out.push_back(std::move(rule));
  }
  return out;
}

py::list verdicts(const SharedGraph& graph, const claimant::Claimant& by, const py::sequence& rules,
                  bool whole) {
  const std::vector<claimant::Rule> own = rules_of(rules, graph);
  std::vector<claimant::Verdict> found;
  {
    const py::gil_scoped_release release;
    found = claimant::verdicts(graph, by, own,
                               whole ? claimant::Unmatched::kRefused : claimant::Unmatched::kAllowed);
  }
  py::list out;
  for (const claimant::Verdict& verdict : found) {
    py::list reasons;
    for (const claimant::Reason& reason : verdict.reasons)
      reasons.append(py::make_tuple(reason.rule, error_parts_to_dict(reason.parts)));
    out.append(reasons);
  }
  return out;
}

std::vector<bool> allowed_nodes(const SharedGraph& graph, const py::sequence& rules) {
  const std::vector<claimant::Rule> own = rules_of(rules, graph);
  std::vector<bool> out;
  for (const claimant::Rule* rule : claimant::deciding_rules(*graph, own, claimant::Unmatched::kAllowed))
    out.push_back(rule != nullptr && rule->allow);
  return out;
}

py::list exceeded_limits(const Graph& tosa, const claimant::Claimant& by, bool planned) {
  std::vector<claimant::EmittedReason> found;
  {
    const py::gil_scoped_release release;
    found =
        claimant::exceeded_limits(tosa, by, planned ? claimant::Borders::kPlanned : claimant::Borders::kOpen);
  }
  py::list out;
  for (const claimant::EmittedReason& each : found)
    out.append(py::make_tuple(each.node, each.reason.rule, error_parts_to_dict(each.reason.parts)));
  return out;
}

py::list unfit_readers(const Graph& graph, const std::vector<std::uint32_t>& group,
                       const py::array_t<bool, py::array::c_style | py::array::forcecast>& lowered,
                       const Graph& tosa) {
  std::vector<NodeId> nodes(group.begin(), group.end());
  std::ranges::sort(nodes);
  if (static_cast<std::size_t>(lowered.size()) != graph.nodes().size() ||
      (!nodes.empty() && nodes.back().index() >= graph.nodes().size()))
    throw py::index_error("no such node");
  const std::vector<bool> flags(lowered.data(), lowered.data() + lowered.size());
  py::list out;
  for (const claimant::UnfitReader& each : claimant::unfit_readers(graph, nodes, flags, tosa))
    out.append(py::make_tuple(each.node.index(), error_parts_to_dict(each.reason)));
  return out;
}

std::vector<std::int64_t> scratch_bytes(const Graph& graph, const claimant::Claimant& by) {
  std::vector<std::int64_t> out;
  if (by.kernels)
    for (const Node& node : graph.nodes()) out.push_back(claimant::scratch_bytes(graph, node, *by.kernels));
  return out;
}

std::vector<std::optional<std::tuple<std::size_t, double, bool>>> constant_factors(const Graph& graph) {
  std::vector<std::optional<std::tuple<std::size_t, double, bool>>> out(graph.nodes().size());
  for (const Node& node : graph.nodes())
    if (const std::optional<ConstantFactor> found = constant_factor(graph, node)) {
      const QParamsRef &from = graph.type(graph.operands(node)[found->data]).qparams,
                       &to = graph.type(graph.result(node)).qparams;
      out[graph.id(node).index()] = {found->data, found->factor,
                                     from && to && keeps_integers(*from, found->factor, *to)};
    }
  return out;
}

}  // namespace

void bind_claimants(py::module_& m) {
  m.def("verdicts", &verdicts, py::arg("graph").none(false), py::arg("claimant"),
        py::arg("rules") = py::tuple(), py::arg("whole") = true,
        "By node, the reasons (rule, error parts) why the claimant does not take it. `rules`: (kind, value, "
        "function of graph and index or None, allow, text). Each matches a node if the graph is whole.");
  m.def("allowed_nodes", &allowed_nodes, py::arg("graph").none(false), py::arg("rules"),
        "By node, whether the rule that decides about it allows it. `rules` as for verdicts().");
  m.def("exceeded_limits", &exceeded_limits, py::arg("tosa"), py::arg("claimant"), py::arg("planned") = true,
        "The limits of the claimant that a lowered graph exceeds: (operator, rule, error parts). If the dim "
        "orders of inputs and outputs are not planned yet, their transposes are not judged.");
  m.def("unfit_readers", &unfit_readers, py::arg("graph"), py::arg("group"), py::arg("lowered"),
        py::arg("tosa"),
        "The nodes of a group that read integers of other parts which may not fit the lowered group, with "
        "error parts. `lowered`: by node, whether it is in a group that is lowered.");
  m.def("scratch_bytes", &scratch_bytes, py::arg("graph").none(false), py::arg("claimant"),
        "By node, the bytes of the temporary buffers of its kernel; empty for a claimant without kernels.");
  m.def("constant_factors", &constant_factors, py::arg("graph").none(false),
        "By node: the number by which a product or quotient multiplies its other operand, and whether that "
        "only "
        "changes the scale. None for other nodes.");
}

}  // namespace tosaic::python
