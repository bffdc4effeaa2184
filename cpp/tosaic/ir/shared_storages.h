// shared_storages: stores equal bytes once.
//
//   %a.table: i32[4097,1]     %b.table: i32[4097,1]     two constants with the same elements share a storage
//
// Passes make thousands of equal constants, such as the table of a function for each step of an RNN.
// common-subexpressions merges them later, but until then each would have memory of its own.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tosaic/ir/storage.h"

namespace tosaic {

class SharedStorages {
 public:
  // A storage with the same bytes: the first one that was passed, or `storage` itself. Does not compute a
  // deferred storage. Views are not shared: their owners may change one of them.
  [[nodiscard]] Storage shared(Storage storage);
  // The constant, with a shared storage.
  [[nodiscard]] ConstantRef shared(const ConstantRef& constant);

 private:
  std::unordered_map<std::uint64_t, std::vector<Storage>> known_;  // by sample_of()
};

}  // namespace tosaic
