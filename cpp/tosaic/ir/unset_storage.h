// unset_storage: memory for results that is not zeroed: zeroing it would take as long as a fast kernel.
#pragma once

#include <cstddef>

#include "tosaic/ir/storage.h"

namespace tosaic {

// As Storage::allocate(), but does not set the bytes: the caller writes all of them.
[[nodiscard]] Storage unset_storage(std::size_t size);

}  // namespace tosaic
