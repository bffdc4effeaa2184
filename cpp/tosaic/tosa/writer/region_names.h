// region_names: chooses the names of the blocks of a file.
//
//   the program              "main"
//   a region without name    "region", "region_1", ...
//
// A region has one block even if it is used several times.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::tosa {

class RegionNames {
 public:
  explicit RegionNames(const Graph& program) { names_.emplace(&program, "main"); }

  // The name of a region's block, or of the program's. At the first call for a region, adds the region to
  // in_order().
  const std::string& name(const Graph& region);
  // The regions that have a name, in the order of their first use.
  [[nodiscard]] const std::vector<const Graph*>& in_order() const { return in_order_; }

 private:
  std::unordered_map<const Graph*, std::string> names_;
  std::unordered_set<std::string> taken_{"main"};
  std::vector<const Graph*> in_order_;
};

}  // namespace tosaic::tosa
