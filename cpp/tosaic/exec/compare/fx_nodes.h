// fx_nodes: the FX nodes of a comparison, and the nodes of a graph that belong to each of them.
//
//   reference   conv2d, batch_norm, relu        (in this order)
//   graph       %c = tosa.conv2d   origins conv2d, batch_norm   ->  batch_norm
//               %r = tosa.clamp    origin relu                  ->  relu
//
// A node belongs to the latest FX node among its origins. Origins name an FX node by torch's own name of it.
// The name is looked up once here; everything else refers to FX nodes by id.
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
  // The FX nodes of both programs. Where one program has merged nodes, a node belongs to one that both have.
  void add_origins_of(const Graph& a, const Graph& b);
  // The latest FX node among the origins, if possible one that both programs have. The id is not valid if no
  // origin is an FX node of the comparison.
  [[nodiscard]] FxId latest(const OriginRef& origin) const;
  // Leaves an FX node out that quantizes or dequantizes, if only one of the programs has it. Other nodes of
  // the graph that compute for it belong to the FX node whose value they quantize.
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

// The nodes of a graph that belong to each FX node, in order. Nodes of FX nodes in `moved` belong to the FX
// nodes that `moved` has for them.
//
// A node that only carries values of other FX nodes into the FX node does not count: the reshape of an
// operand, or the rounding of an input. It counts if the FX node has no other nodes: a flip is a node that
// moves numbers.
class NodesOfFx {
 public:
  NodesOfFx(const Graph& graph, const FxNodes& fx, const std::map<FxId, FxId>& moved = {});
  [[nodiscard]] const std::vector<const Node*>& of(FxId id) const { return nodes_[id.index()]; }
  // The FX node that the node belongs to; not valid if there is none.
  [[nodiscard]] FxId owner(const Node& node) const { return owners_.at(&node); }

 private:
  void find_owners(const Graph& graph, const FxNodes& fx, const std::map<FxId, FxId>& moved);
  void drop_carried(const Graph& graph, const FxNodes& fx);
  // The nodes without nodes that only carry values of other FX nodes: `is_carrier` is true for these. A node
  // whose result has this name is not dropped.
  static std::vector<const Node*> computing(const Graph& graph, const std::vector<const Node*>& nodes,
                                            bool (*is_carrier)(Op), std::string_view name = {});

  std::unordered_map<const Node*, FxId> owners_;
  std::set<const Node*> unrounded_;  // floats of left-out FX nodes, such as integers before their rounding
  std::vector<std::vector<const Node*>> nodes_;
};

}  // namespace tosaic::exec
