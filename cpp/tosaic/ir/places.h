// Places: where the elements of deferred constants are to be written: into the bytes of a file, for example.
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
