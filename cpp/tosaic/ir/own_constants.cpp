#include "tosaic/ir/own_constants.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/deferred.h"
#include "tosaic/ir/recipe.h"

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
  explicit Copies(bool later) : later_(later) {}

  ConstantRef of(const ConstantRef& constant) {
    if (!constant->storage.is_view()) return constant;
    if (const std::shared_ptr<const Recipe> recipe = constant->storage.recipe()) {
      if (later_) return constant;
      if (!recipe->is_copy()) {
        static_cast<void>(constant->bytes());
        return constant;
      }
    }
    ConstantRef& own = constants_[constant];
    if (own) return own;
    Storage& storage = bytes_[{constant->storage.identity(), constant->storage.size()}];
    if (!storage.bound())
      storage = later_ ? deferred_copy(constant->storage) : copy(constant->storage.bytes());
    own = std::make_shared<const Constant>(
        Constant{constant->name, constant->kind, constant->dtype, constant->shape, storage});
    return own;
  }

 private:
  static Storage copy(std::span<const std::byte> from) {
    Storage out = Storage::allocate(from.size());
    if (!from.empty()) std::memcpy(out.writable(), from.data(), from.size());
    return out;
  }

  bool later_;
  std::map<ConstantRef, ConstantRef> constants_;
  // The copies, by the memory that was copied. Constants that share memory, such as folded reshapes of one
  // constant, also share the copy.
  std::map<std::pair<const void*, std::size_t>, Storage> bytes_;
};

void collect(const Graph& graph, bool views_only, std::vector<std::shared_ptr<Deferred>>& deferred) {
  for (const Value& value : graph.values()) {
    if (!value.constant) continue;
    const Storage& storage = value.constant->storage;
    if (storage.recipe() != nullptr && (!views_only || storage.is_view()))
      deferred.push_back(storage.deferred_state());
  }
  for (const Node& node : graph.nodes())
    for (const auto& region : node.regions) collect(*region, views_only, deferred);
}

std::shared_ptr<const Graph> with_copies(const std::shared_ptr<const Graph>& graph, bool later) {
  if (!has_views(*graph)) return graph;
  verify_views(*graph);
  Copies copies(later);
  std::shared_ptr<const Graph> out =
      Graph::with_constants(*graph, [&copies](const ConstantRef& constant) { return copies.of(constant); });
  if (!later) verify_views(*graph);
  return out != nullptr ? out : graph;
}

}  // namespace

void compute_constants(const Graph& graph, std::span<const std::shared_ptr<const Graph>> others, Team* team,
                       const Places& places) {
  std::vector<std::shared_ptr<Deferred>> deferred;
  collect(graph, false, deferred);
  compute(deferred, team, places);
  deferred.clear();
  for (const std::shared_ptr<const Graph>& other : others) collect(*other, true, deferred);
  compute(deferred, team);
}

void verify_views(const Graph& graph) {
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    const ConstantRef& constant = graph.values()[i].constant;
    if (!constant || !constant->storage.is_view()) continue;
    try {
      constant->require_unchanged();
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
  return with_copies(graph, false);
}

std::shared_ptr<const Graph> own_constants_later(const std::shared_ptr<const Graph>& graph) {
  return with_copies(graph, true);
}

}  // namespace tosaic
