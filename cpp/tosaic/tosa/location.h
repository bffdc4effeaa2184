// Origins as the location text of an operator.
//
//   conv2d_3 | aten.conv2d.default | layer1.0.conv1 | model.py:41
//
// Leaves of a merged origin are separated by "; ", absent fields stay empty, and an origin that has a name
// only is that name. Text that is not of this form, from other writers, becomes the name, so reading and
// writing keeps every text.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "tosaic/ir/origin.h"

namespace tosaic::tosa {

// "" for null. Files are given by their last path component: the text does not depend on where a model lies.
[[nodiscard]] std::string location_text(const OriginRef& origin);

// Reads the location texts of one file; operators that share a leaf get the same Origin, so later merges see
// it once.
class LocationReader {
 public:
  // Null for "".
  [[nodiscard]] OriginRef read(std::string_view text);

 private:
  [[nodiscard]] OriginRef leaf(std::string_view text);
  std::unordered_map<std::string, OriginRef> texts_, leaves_;
};

}  // namespace tosaic::tosa
