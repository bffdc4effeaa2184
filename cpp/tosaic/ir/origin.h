// Origin: the FX nodes and source lines that a node came from.
//
// Origins are shared and immutable. A rewrite merges origins and never drops them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tosaic/base/error.h"

namespace tosaic {

struct Origin;
using OriginRef = std::shared_ptr<const Origin>;

// Either a leaf, which names one FX node, or a union, in which only `parents` is set. Parents are leaves,
// without duplicates, in the order of first appearance.
struct Origin {
  std::string fx_name;      // "conv2d_3"
  std::string target;       // "aten.conv2d.default"
  std::string module_path;  // "layer1.0.conv1"
  std::string file;
  std::int32_t line = 0;
  std::vector<OriginRef> parents;

  // "model.py:41": the last component of the path, and the line. Empty if the file is unknown.
  [[nodiscard]] std::string source() const;
};

// The leaves of an origin: the origin itself if it is a leaf, and an empty list for null.
[[nodiscard]] std::vector<OriginRef> leaves(const OriginRef& origin);
// The union of all leaves. Null origins are skipped. Returns null if there are no leaves, and the leaf itself
// if there is one.
[[nodiscard]] OriginRef merge(const std::vector<OriginRef>& origins);

// True if a value is an intermediate value of an FX call, so that it may get the name of the call if it
// replaces the call's result. `value` is the value's name and `from` its origin; `result` is the
// result's name and `at` its origin.
//
//   %pool.sums = ..                loc(pool)
//   %pool = permute(%pool.sums)    loc(pool)   replaced by its operand, which becomes %pool
[[nodiscard]] bool is_inside_call(const std::string& value, const OriginRef& from, const std::string& result,
                                  const OriginRef& at);

// Fills in the node, module_path and source of an error, where they are empty, from the first call of the
// origin. If calls that quantize or dequantize are merged with others, the node is `node_name`. Then
// module_path and source come from the call of this name, or else of the first call that does neither.
[[nodiscard]] ErrorParts located(ErrorParts parts, const OriginRef& origin, const std::string& node_name);

}  // namespace tosaic
