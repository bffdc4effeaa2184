// split: a graph cut into a graph for each group and a host graph that calls them.
//
//   x -> conv -> relu -> sort -> linear -> y        groups 0 = {conv, relu}, 1 = {linear}
//
//   host      x -> call(group0) -> sort -> call(group1) -> y
//   group 0   x -> conv -> relu
//   group 1   sort -> linear
//
// A border is a value that crosses from one part to another. It keeps its type: the integers of a quantized
// value cross as integers, with their qparams. States, and the conversions of the caller's arrays, stay with
// the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/partition/dag.h"
#include "tosaic/partition/groups.h"

namespace tosaic::partition {

// The nodes of the graph, by index, and which of them read which.
[[nodiscard]] Dag dag_of(const Graph& graph);

struct Part {
  Graph graph;  // its inputs and outputs have the names of the values
  // Values of the source, by input and by output of the part, ascending. Other parts, the host or the caller
  // read the outputs.
  std::vector<ValueId> inputs, outputs;
};

struct Split {
  // The nodes without a group, and an opaque node "group0", "group1" ... for each group, in a topological
  // order. Its operands and results are the inputs and outputs of the part.
  Graph host;
  std::vector<Part> parts;  // by group
};

// Whether a result that nothing reads is an output.
enum class Unread : std::uint8_t { kDropped, kOutput };

// The nodes, which ascend, as a graph with the name and stage of the source.
[[nodiscard]] Part part_of(const Graph& graph, std::span<const NodeId> nodes, Unread unread);

// The part of the group of this number. Throws InvalidGraph if one of the nodes, which ascend, reads or
// assigns variables.
[[nodiscard]] Part group_part(const Graph& graph, std::span<const NodeId> nodes, std::uint32_t number);

// Splits the graph into its groups: node n is in group `groups.of[n]`. The names of the groups are numbered
// from `first` on. Throws InvalidGraph, which names the nodes, if two groups read results of each other, or
// if a group reads or assigns variables.
[[nodiscard]] Split split(const Graph& graph, const Groups& groups, std::uint32_t first = 0);

}  // namespace tosaic::partition
