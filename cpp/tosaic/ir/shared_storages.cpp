#include "tosaic/ir/shared_storages.h"

#include <algorithm>
#include <utility>

#include "tosaic/ir/same_elements.h"

namespace tosaic {

Storage SharedStorages::shared(Storage storage) {
  if (!storage.bound() || storage.is_view()) return storage;
  std::vector<Storage>& alike = known_[sample_of(storage)];
  const auto found =
      std::ranges::find_if(alike, [&](const Storage& each) { return same_elements(each, storage); });
  if (found != alike.end()) return *found;
  alike.push_back(storage);
  return storage;
}

ConstantRef SharedStorages::shared(const ConstantRef& constant) {
  Storage storage = shared(constant->storage);
  if (storage.identity() == constant->storage.identity()) return constant;
  auto copy = std::make_shared<Constant>(*constant);
  copy->storage = std::move(storage);
  return copy;
}

}  // namespace tosaic
