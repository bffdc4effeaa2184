// Bindings of partition/: groups of the nodes of dags and graphs, as plain data.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "tosaic/claimant/claimant.h"
#include "tosaic/partition/border_bytes.h"
#include "tosaic/partition/border_orders.h"
#include "tosaic/partition/check.h"
#include "tosaic/partition/claims.h"
#include "tosaic/partition/connected.h"
#include "tosaic/partition/float_regions.h"
#include "tosaic/partition/levels.h"
#include "tosaic/partition/regions.h"
#include "tosaic/partition/split.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

template <class T>
using Numbers = py::array_t<T, py::array::c_style | py::array::forcecast>;

partition::Dag make_dag(std::uint32_t size, const Numbers<std::uint32_t>& edges) {
  std::vector<partition::Edge> found;
  for (py::ssize_t i = 0; i + 1 < edges.size(); i += 2)
    found.push_back({edges.data()[i], edges.data()[i + 1]});
  return {size, std::move(found)};
}

py::array_t<std::int64_t> to_array(const partition::Groups& groups) {
  py::array_t<std::int64_t> out(static_cast<py::ssize_t>(groups.of.size()));
  auto at = out.mutable_unchecked<1>();
  for (std::size_t i = 0; i < groups.of.size(); ++i)
    at(static_cast<py::ssize_t>(i)) =
        groups.of[i] == partition::kNoGroup ? -1 : static_cast<std::int64_t>(groups.of[i]);
  return out;
}

partition::Groups groups_from(const Numbers<std::int64_t>& of) {
  std::vector<std::uint32_t> labels;
  const auto at = of.unchecked<1>();
  for (py::ssize_t i = 0; i < at.shape(0); ++i)
    labels.push_back(at(i) < 0 ? partition::kNoGroup : static_cast<std::uint32_t>(at(i)));
  return partition::numbered(labels);
}

std::vector<bool> flags_from(const partition::Dag& dag, const Numbers<bool>& flags) {
  const auto at = flags.unchecked<1>();
  if (at.shape(0) != static_cast<py::ssize_t>(dag.size()))
    throw InvalidGraph({.where = "partition",
                        .what = "there has to be one flag for each node",
                        .expected = std::to_string(dag.size()),
                        .got = std::to_string(at.shape(0))});
  std::vector<bool> out;
  for (py::ssize_t i = 0; i < at.shape(0); ++i) out.push_back(at(i));
  return out;
}

py::tuple level_groups(const partition::Dag& dag, const Numbers<bool>& supported) {
  const std::vector<bool> flags = flags_from(dag, supported);
  const partition::Groups groups = partition::level_groups(partition::levels(dag, flags), flags);
  return py::make_tuple(to_array(groups), partition::least_proof(dag, flags));
}

py::tuple connected_groups(const partition::Dag& dag, const Numbers<bool>& supported, std::uint64_t work) {
  const std::vector<bool> flags = flags_from(dag, supported);
  const partition::ConnectedGroups found = [&] {
    const py::gil_scoped_release release;
    return partition::connected_groups(dag, flags, work);
  }();
  return py::make_tuple(to_array(found.groups), found.at_least);
}

const char* text_of(partition::Refusal why) {
  switch (why) {
    case partition::Refusal::kTooSmall:
      return "too_small";
    case partition::Refusal::kRejected:
      return "rejected";
    case partition::Refusal::kSplit:
      return "split";
  }
  return "";
}

// Claims as (supported, connected, sizes or None, least size, function or None).
py::tuple claim(const partition::Dag& dag, const py::sequence& claims,
                const std::vector<std::vector<partition::DagNode>>& together,
                const std::vector<partition::BorderValue>& values) {
  std::vector<partition::Claim> made;
  for (const py::handle each : claims) {
    const auto fields = py::reinterpret_borrow<py::tuple>(each);
    partition::Claim one{.supported = flags_from(dag, fields[0].cast<Numbers<bool>>()),
                         .connected = fields[1].cast<bool>(),
                         .least_size = fields[3].cast<std::uint32_t>()};
    if (!fields[2].is_none()) one.size = fields[2].cast<std::vector<std::uint32_t>>();
    if (!fields[4].is_none())
      one.rejected = [held = owned(py::reinterpret_borrow<py::object>(fields[4]))](
                         std::span<const partition::DagNode> group, const std::vector<bool>& taken) {
        const py::gil_scoped_acquire gil;
        Numbers<bool> flags(static_cast<py::ssize_t>(taken.size()));
        std::ranges::copy(taken, flags.mutable_data());
        return (*held)(std::vector<partition::DagNode>(group.begin(), group.end()), std::move(flags))
            .cast<std::vector<partition::DagNode>>();
      };
    made.push_back(std::move(one));
  }
  const partition::Claimed found = partition::claim(dag, made, together, values);
  py::list refused;
  for (const partition::Refused& each : found.refused)
    refused.append(py::make_tuple(each.node, each.claimant, text_of(each.why)));
  return py::make_tuple(to_array(found.groups), found.claimant, found.at_least, refused);
}

py::tuple split(const SharedGraph& graph, const Numbers<std::int64_t>& of, std::uint32_t first) {
  partition::Split found = partition::split(*graph, groups_from(of), first);
  const auto names = [&](const std::vector<ValueId>& values) {
    py::list out;
    for (const ValueId value : values) out.append(graph->value(value).name);
    return out;
  };
  py::list parts;
  for (partition::Part& part : found.parts)
    parts.append(py::make_tuple(std::make_shared<Graph>(std::move(part.graph)), names(part.inputs),
                                names(part.outputs)));
  return py::make_tuple(std::make_shared<Graph>(std::move(found.host)), parts);
}

py::list axes_of(const std::vector<DimOrder>& orders, const std::vector<std::size_t>& ranks) {
  py::list out;
  for (std::size_t i = 0; i < orders.size(); ++i) out.append(to_tuple(orders[i].axes(ranks[i])));
  return out;
}

std::vector<std::size_t> ranks_of(const Graph& graph, bool inputs) {
  std::vector<std::size_t> out;
  if (inputs)
    for (const Input& each : graph.inputs()) out.push_back(graph.type(each.value).rank());
  else
    for (const Output& each : graph.outputs()) out.push_back(graph.type(each.value).rank());
  return out;
}

py::dict border_orders(const SharedGraph& host, const std::vector<SharedGraph>& parts,
                       const std::vector<claimant::Claimant>& claimants, const py::object& objective) {
  const layout::Objective measure = objective_of(objective);
  const std::vector<std::shared_ptr<const Graph>> graphs(parts.begin(), parts.end());
  partition::BorderOrders found;
  {
    const py::gil_scoped_release release;
    found = partition::plan_border_orders(*host, graphs, measure, claimant::joint_layout_needs(claimants));
  }
  py::list orders;
  for (std::size_t i = 0; i < graphs.size(); ++i)
    orders.append(py::make_tuple(axes_of(found.parts[i].inputs, ranks_of(*graphs[i], true)),
                                 axes_of(found.parts[i].outputs, ranks_of(*graphs[i], false))));
  return py::dict(py::arg("parts") = orders, py::arg("transposes") = found.transposes,
                  py::arg("bytes") = found.bytes, py::arg("cost") = found.cost,
                  py::arg("bound") = found.bound);
}

}  // namespace

void bind_groups(py::module_& m) {
  py::class_<partition::BorderValue>(m, "BorderValue", "A value that may cross between parts of a program.")
      .def(py::init([](std::optional<partition::DagNode> maker, std::vector<partition::DagNode> readers,
                       std::uint64_t bytes, bool is_output) {
             return partition::BorderValue{maker, std::move(readers), bytes, is_output};
           }),
           py::arg("maker"), py::arg("readers"), py::arg("size"), py::arg("is_output") = false);
  m.def(
      "border_values", [](const SharedGraph& graph) { return partition::border_values(*graph); },
      py::arg("graph").none(false),
      "The values of a graph that are no constants. Nodes are numbered as in Dag.of.");
  m.def(
      "border_bytes",
      [](const std::vector<partition::BorderValue>& values, const Numbers<std::int64_t>& of) {
        return partition::border_bytes(values, groups_from(of));
      },
      py::arg("values"), py::arg("groups"),
      "The bytes of the values that cross between groups and the host.");
  py::class_<partition::Dag>(m, "Dag", "Nodes in topological order, and which of them read which.")
      .def(py::init(&make_dag), py::arg("size"), py::arg("edges"),
           "`edges`: rows (from, to), with from < to < size.")
      .def_static(
          "of", [](const SharedGraph& graph) { return partition::dag_of(*graph); }, py::arg("graph"))
      .def("__len__", &partition::Dag::size)
      .def("level_groups", &level_groups, py::arg("supported"),
           "The fewest groups, and the nodes of a path that prove it. A group of -1 is none.")
      .def("connected_groups", &connected_groups, py::arg("supported"), py::arg("work") = 20'000'000,
           "The fewest groups that are connected, and a number that no grouping is below.")
      .def("claim", &claim, py::arg("claims"),
           py::arg("together") = std::vector<std::vector<partition::DagNode>>(),
           py::arg("values") = std::vector<partition::BorderValue>(),
           "Groups of several claimants, one after another: (groups, claimant of each group, at least by "
           "claimant, refused nodes). `claims`: (supported, connected, sizes or None, least size, function "
           "that returns the nodes of a group that are rejected, or None; it gets the group, and by node "
           "whether the claimant has it).")
      .def(
          "with_fewer_border_bytes",
          [](const partition::Dag& dag, const Numbers<std::int64_t>& of,
             const std::vector<partition::BorderValue>& values, bool connected, std::uint64_t work) {
            return to_array(partition::with_fewer_border_bytes(
                dag, groups_from(of), values,
                {.connected = connected, .size = {}, .least_size = 0, .work = work}));
          },
          py::arg("groups"), py::arg("values"), py::arg("connected") = true, py::arg("work") = 20'000'000,
          "Groups of one claimant, not more, between which fewer bytes cross, or as many.")
      .def(
          "path_back",
          [](const partition::Dag& dag, const Numbers<std::int64_t>& of) {
            return partition::path_back(dag, groups_from(of));
          },
          py::arg("groups"), "A path that leaves a group and comes back to it, or None.")
      .def(
          "disconnected_group",
          [](const partition::Dag& dag, const Numbers<std::int64_t>& of) {
            return partition::disconnected_group(dag, groups_from(of));
          },
          py::arg("groups"), "The first group that is not connected, or None.");
  m.def(
      "with_own_dequantize",
      [](const SharedGraph& graph) {
        return std::make_shared<Graph>(partition::with_own_dequantize(*graph));
      },
      py::arg("graph").none(false),
      "The graph with a dequantize node for each reader of a dequantized value.");
  m.def(
      "float_regions", [](const SharedGraph& graph) { return partition::float_regions(*graph); },
      py::arg("graph").none(false), "The nodes that compute with floats between integers, by region.");
  m.def("border_orders", &border_orders, py::arg("host").none(false), py::arg("parts"), py::kw_only(),
        py::arg("claimants"), py::arg("objective") = "bytes",
        "By part, the dim orders of its inputs and of its outputs, from one plan of the whole program.");
  m.def(
      "region_with_constants",
      [](const SharedGraph& graph, std::uint32_t node, std::size_t region) {
        return std::make_shared<Graph>(
            partition::region_with_constants(*graph, graph->nodes()[node], region));
      },
      py::arg("graph").none(false), py::arg("node"), py::arg("region"),
      "A region of a node, with constants in place of inputs that are constants of the graph.");
  m.def(
      "with_regions",
      [](const SharedGraph& graph, const std::map<std::string, std::vector<SharedGraph>>& regions) {
        partition::Regions found;
        for (const Node& node : graph->nodes())
          if (const auto each = regions.find(graph->node_name(node)); each != regions.end())
            found[graph->id(node)] = {each->second.begin(), each->second.end()};
        return std::make_shared<Graph>(partition::with_regions(*graph, found));
      },
      py::arg("graph").none(false), py::arg("regions"),
      "The graph with other regions of some nodes, by the names of the nodes.");
  m.def("split", &split, py::arg("graph"), py::arg("groups"), py::arg("first") = 0,
        "The host graph, and (graph, names of inputs, names of outputs) of each group.");
  m.def(
      "group_part",
      [](const SharedGraph& graph, std::vector<partition::DagNode> nodes) {
        std::ranges::sort(nodes);
        if (!nodes.empty() && nodes.back() >= graph->nodes().size()) throw py::index_error("no such node");
        const std::vector<NodeId> ids(nodes.begin(), nodes.end());
        return std::make_shared<Graph>(std::move(partition::group_part(*graph, ids, 0).graph));
      },
      py::arg("graph").none(false), py::arg("nodes"), "The graph of a group of these nodes.");
}

}  // namespace tosaic::python
