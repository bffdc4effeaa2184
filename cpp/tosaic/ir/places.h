// Places: where to write the elements of deferred constants, for example into the bytes of a file.
//
//   lay out the file  ->  places  ->  compute the constants there (own_constants.h)
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>

namespace tosaic {

class Deferred;

struct Place {
  std::byte* begin = nullptr;
  std::shared_ptr<const void> owner;
};
using Places = std::unordered_map<const Deferred*, Place>;

}  // namespace tosaic
