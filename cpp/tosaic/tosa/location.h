// location: writes and reads origins as the location text of an operator in a .tosa file.
//
//   conv2d_3 | aten.conv2d.default | layer1.0.conv1 | model.py:41
//   FX name    target                module path      source
//
// The leaves of a merged origin are separated by "; ". A missing field is empty. An origin that has only a
// name is written as that name. Any other text, from other writers, becomes the name of an origin, so that
// the text is the same when the graph is written again.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "tosaic/ir/origin.h"

namespace tosaic::tosa {

// The text of the origin; "" for null. Only the last component of a source file's path is written, so that
// the text does not depend on the folder of the model.
[[nodiscard]] std::string location_text(const OriginRef& origin);

// Reads the location texts of one file. Operators that share a leaf get the same Origin object, so that a
// later merge of their origins contains it once.
class LocationReader {
 public:
  // Returns null for "".
  [[nodiscard]] OriginRef read(std::string_view text);

 private:
  [[nodiscard]] OriginRef leaf(std::string_view text);
  std::unordered_map<std::string, OriginRef> texts_, leaves_;
};

}  // namespace tosaic::tosa
