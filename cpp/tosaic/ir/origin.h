// Origin: where a node came from. Shared and immutable; a rewrite unions origins, never drops them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tosaic/base/error.h"

namespace tosaic {

struct Origin;
using OriginRef = std::shared_ptr<const Origin>;

// A leaf names one FX node. A union has only parents (leaves, no duplicates, in order of first appearance).
struct Origin {
  std::string fx_name;      // "conv2d_3"
  std::string target;       // "aten.conv2d.default"
  std::string module_path;  // "layer1.0.conv1"
  std::string file;
  std::int32_t line = 0;
  std::vector<OriginRef> parents;

  // "model.py:41" with the file's last path component; "" if unknown.
  [[nodiscard]] std::string source() const;
};

// The leaves behind an origin (itself if it is a leaf; none for null).
[[nodiscard]] std::vector<OriginRef> leaves(const OriginRef& origin);
// Union of the leaves; null origins are skipped; a single leaf is returned as it is.
[[nodiscard]] OriginRef merge(const std::vector<OriginRef>& origins);

// Fills node, module_path and source of an error from the first leaf of the origin.
[[nodiscard]] ErrorParts located(ErrorParts parts, const OriginRef& origin, const std::string& node_name);

}  // namespace tosaic
