// Packs: packed weights that the kernels of one preparation share, as the steps of an unrolled layer do.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tosaic::kernels {

class Packs {
 public:
  // What was made for this key before, else what `make` gives. The key says all that the packing depends on.
  template <class T, class Make>
  std::shared_ptr<const std::vector<T>> share(const std::string& key, Make&& make) {
    std::shared_ptr<const void>& known = known_[key];
    if (!known) known = std::make_shared<const std::vector<T>>(std::forward<Make>(make)());
    return std::static_pointer_cast<const std::vector<T>>(known);
  }

 private:
  std::map<std::string, std::shared_ptr<const void>> known_;
};

}  // namespace tosaic::kernels
