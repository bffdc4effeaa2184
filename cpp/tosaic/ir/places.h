// Places: the memory into which deferred storages are computed, for example that of a file whose layout is known.
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
