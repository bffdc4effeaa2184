// graphs: random dags, and groupings by trying all.
#pragma once

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "tosaic/partition/check.h"
#include "tosaic/partition/dag.h"
#include "tosaic/partition/groups.h"

namespace tosaic::partition {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(engine_() % end); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }

 private:
  std::mt19937_64 engine_;
};

struct Sample {
  Dag dag;
  std::vector<bool> supported;
};

// Each node reads up to `most_inputs` of the `window` nodes before it.
inline Sample random_sample(Random& random, std::uint32_t size, std::uint32_t window,
                            std::uint32_t most_inputs, std::uint32_t percent_supported) {
  std::vector<Edge> edges;
  Sample sample;
  for (DagNode node = 0; node < size; ++node) {
    sample.supported.push_back(random.chance(percent_supported));
    const std::uint32_t reach = std::min(node, window);
    for (std::uint32_t i = random.below(most_inputs + 1); i > 0 && reach > 0; --i)
      edges.push_back({node - 1 - random.below(reach), node});
  }
  sample.dag = Dag(size, std::move(edges));
  return sample;
}

// The least number of groups of all groupings that are right, by trying all.
inline std::uint32_t least_by_trying(const Sample& sample, bool connected) {
  Groups groups{.of = std::vector<std::uint32_t>(sample.dag.size(), kNoGroup)};
  std::uint32_t least = UINT32_MAX;
  const std::function<void(DagNode)> place = [&](DagNode node) {
    if (node == sample.dag.size()) {
      if (groups.count < least && !path_back(sample.dag, groups) &&
          !(connected && disconnected_group(sample.dag, groups)))
        least = groups.count;
      return;
    }
    if (!sample.supported[node]) return place(node + 1);
    const std::uint32_t count = groups.count;
    for (std::uint32_t group = 0; group <= count; ++group) {
      groups.of[node] = group;
      groups.count = std::max(count, group + 1);
      place(node + 1);
    }
    groups.of[node] = kNoGroup;
    groups.count = count;
  };
  place(0);
  return least;
}

}  // namespace tosaic::partition
