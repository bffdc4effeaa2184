#include "tosaic/tosa/writer/region_names.h"

namespace tosaic::tosa {

const std::string& RegionNames::name(const Graph& region) {
  const auto [it, fresh] = names_.try_emplace(&region);
  if (fresh) {
    const std::string wanted = region.name.empty() ? "region" : region.name;
    it->second = wanted;
    for (int i = 1; !taken_.insert(it->second).second; ++i) it->second = wanted + "_" + std::to_string(i);
    in_order_.push_back(&region);
  }
  return it->second;
}

}  // namespace tosaic::tosa
