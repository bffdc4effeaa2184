// moved_constant: a constant with its axes in another order, computed later (ir/recipe.h).
#pragma once

#include "tosaic/ir/storage.h"
#include "tosaic/ir/type.h"

namespace tosaic::exec {

// The elements of a dense tensor of `shape`, with axis perm[i] as axis i.
[[nodiscard]] Storage deferred_permute(const Storage& source, DType dtype, const Shape& shape,
                                       const Dims& perm);

}  // namespace tosaic::exec
