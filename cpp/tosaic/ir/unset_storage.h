// unset_storage: memory for results. To zero the arrays of a run costs as much time as a fast kernel takes.
#pragma once

#include <cstddef>

#include "tosaic/ir/storage.h"

namespace tosaic {

// As Storage::allocate, but with bytes of any value, for a caller that writes all of them.
[[nodiscard]] Storage unset_storage(std::size_t size);

}  // namespace tosaic
