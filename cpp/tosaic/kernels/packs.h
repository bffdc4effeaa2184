// Packs: packed weights that the kernels of one program share, e.g. the steps of an unrolled recurrent layer.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tosaic/base/large_pages.h"

namespace tosaic::kernels {

class Packs {
 public:
  // Returns the weights that were packed for this key before. If there are none, calls `make` and stores its
  // result. The key contains everything on which the result depends, T included.
  template <class T, class Make>
  std::shared_ptr<const LargeArray<T>> share(const std::string& key, Make&& make) {
    std::shared_ptr<const void>& known = known_[key];
    if (!known) known = std::make_shared<const LargeArray<T>>(std::forward<Make>(make)());
    return std::static_pointer_cast<const LargeArray<T>>(known);
  }

 private:
  std::map<std::string, std::shared_ptr<const void>> known_;
};

}  // namespace tosaic::kernels
