// same_elements: whether two storages hold the same bytes, as far as that can be told without computing them.
#pragma once

#include <cstdint>

#include "tosaic/ir/storage.h"

namespace tosaic {

// True if the bytes are equal: bytes in memory are compared, and bytes of deferred storages are equal if the
// same recipe computes them from equal bytes. Bytes that their owner changed since import equal no others.
[[nodiscard]] bool same_elements(const Storage& a, const Storage& b);

// A number that is equal for storages with the same elements, and differs for most others. It is a hash of
// all bytes of a small storage, and of a few bytes of a large one, so that weights are not read for it. For a
// deferred storage, it is the hash of the source.
[[nodiscard]] std::uint64_t sample_of(const Storage& storage);

}  // namespace tosaic
