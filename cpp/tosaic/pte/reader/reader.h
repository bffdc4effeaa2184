// reader: the entry point of this folder, a function that reads a `.pte` file from aligned bytes.
#pragma once

#include "tosaic/ir/storage.h"
#include "tosaic/pte/file.h"

namespace tosaic::pte {

// See read(). `bytes` are aligned to 16.
[[nodiscard]] File read_aligned(const Storage& bytes);

}  // namespace tosaic::pte
