#include "tosaic/ir/own_constants.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "tosaic/base/error.h"

namespace tosaic {
namespace {

bool has_views(const Graph& graph) {
  const auto is_view = [](const Value& value) { return value.constant && value.constant->storage.is_view(); };
  const auto in_regions = [](const Node& node) {
    return std::any_of(node.regions.begin(), node.regions.end(),
                       [](const auto& region) { return has_views(*region); });
  };
  return std::any_of(graph.values().begin(), graph.values().end(), is_view) ||
         std::any_of(graph.nodes().begin(), graph.nodes().end(), in_regions);
}

class Copies {
 public:
  ConstantRef of(const ConstantRef& constant) {
    if (!constant->storage.is_view()) return constant;
    ConstantRef& own = constants_[constant];
    if (own) return own;
    const std::span<const std::byte> from = constant->storage.bytes();
    Storage& storage = bytes_[{from.data(), from.size()}];
    if (!storage.bound()) {
      storage = Storage::allocate(from.size());
      if (!from.empty()) std::memcpy(storage.writable(), from.data(), from.size());
    }
    own = std::make_shared<const Constant>(
        Constant{constant->name, constant->kind, constant->dtype, constant->shape, storage});
    return own;
  }

 private:
  std::map<ConstantRef, ConstantRef> constants_;
  // The copies, by the memory that was copied. Constants that share memory, such as folded reshapes of one
  // constant, also share the copy.
  std::map<std::pair<const std::byte*, std::size_t>, Storage> bytes_;
};

}  // namespace

void verify_views(const Graph& graph) {
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    const ConstantRef& constant = graph.values()[i].constant;
    if (!constant || !constant->storage.is_view()) continue;
    try {
      static_cast<void>(constant->bytes());
    } catch (const InvalidGraph& error) {
      const std::span<const NodeId> users = graph.users(ValueId(i));
      if (users.empty()) throw;
      const Node& node = graph.node(users.front());
      throw InvalidGraph(located(error.parts(), node.origin, graph.node_name(node)));
    }
  }
  for (const Node& node : graph.nodes())
    for (const auto& region : node.regions) verify_views(*region);
}

std::shared_ptr<const Graph> own_constants(const std::shared_ptr<const Graph>& graph) {
  if (!has_views(*graph)) return graph;
  verify_views(*graph);
  Copies copies;
  std::shared_ptr<const Graph> out =
      Graph::with_constants(*graph, [&copies](const ConstantRef& constant) { return copies.of(constant); });
  verify_views(*graph);
  return out;
}

}  // namespace tosaic
