// fx_nodes: the FX nodes of a comparison, and the nodes of a graph that belong to each of them.
//
//   reference   conv2d, batch_norm, relu        (in this order)
//   graph       %c = tosa.conv2d   origins conv2d, batch_norm   ->  batch_norm
//               %r = tosa.clamp    origin relu                  ->  relu
//
// A node belongs to the latest FX node among its origins. An origin has torch's name of the FX node. The name
// is looked up once here; everything else refers to FX nodes by id.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tosaic/base/ids.h"
#include "tosaic/ir/graph.h"

namespace tosaic::exec {

using FxId = Id<struct FxTag>;

// One result of an FX node.
struct FxResult {
  FxId fx;
  std::uint32_t index = 0;
  auto operator<=>(const FxResult&) const = default;
};

class FxNodes {
 public:
  // The id of the FX node of that name. Ids are in the order of the first calls.
  FxId add(const std::string& name);
  [[nodiscard]] const std::string& name(FxId id) const { return names_[id.index()]; }
  [[nodiscard]] std::size_t size() const { return names_.size(); }
  // Adds the FX nodes of a, and records which of them b has, too: latest() prefers FX nodes that both have.
  void add_origins_of(const Graph& a, const Graph& b);
  // The latest FX node among the origins, if possible one that both programs have. The id is not valid if no
  // origin is an FX node of the comparison.
  [[nodiscard]] FxId latest(const OriginRef& origin) const;
  // Excludes an FX node that quantizes or dequantizes and that only one of the programs has. Its graph nodes
  // belong to the FX node that owns the producer of their operand.
  void leave_out(const std::string& name) { left_out_.insert(name); }
  [[nodiscard]] bool is_left_out(const std::string& name) const { return left_out_.contains(name); }
  // How reports show a result: "conv2d", "split.1".
  [[nodiscard]] std::string label(const FxResult& result) const;

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, FxId> ids_;
  std::set<std::string> left_out_;
  std::vector<bool> common_;  // by id: both programs have it; missing: not known
};

// The nodes of a graph that belong to each FX node, in order. If the FX node of a node is a key of `moved`,
// the node belongs to the FX node to which `moved` maps it.
//
// A node that only carries values of other FX nodes into the FX node does not count: the reshape of an
// operand, or the rounding of an input. It counts if the FX node has no other nodes: a flip, for example,
// only moves numbers.
class NodesOfFx {
 public:
  NodesOfFx(const Graph& graph, const FxNodes& fx, const std::map<FxId, FxId>& moved = {});
  [[nodiscard]] const std::vector<const Node*>& of(FxId id) const { return nodes_[id.index()]; }
  // The FX node that the node belongs to; not valid if there is none.
  [[nodiscard]] FxId owner(const Node& node) const { return owners_.at(&node); }

 private:
  void find_owners(const Graph& graph, const FxNodes& fx, const std::map<FxId, FxId>& moved);
  void drop_carried(const Graph& graph, const FxNodes& fx);
  void drop_roundings_of_readers(const Graph& graph, const FxNodes& fx);
  // `nodes` without carriers of values of other FX nodes: nodes whose operator satisfies `is_carrier` and
  // that read no result of the remaining nodes. A node whose result is called `name` remains.
  static std::vector<const Node*> computing(const Graph& graph, const std::vector<const Node*>& nodes,
                                            bool (*is_carrier)(Op), std::string_view name = {});

  std::unordered_map<const Node*, FxId> owners_;
  std::set<const Node*> unrounded_;  // of left-out FX nodes, with a float result: not yet rounded
  std::vector<std::vector<const Node*>> nodes_;
};

}  // namespace tosaic::exec
