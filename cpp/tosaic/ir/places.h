// Places: where the bytes of deferred storages are to be, such as in a file that is laid out already.
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
