// What a layout plan makes least.
#pragma once

#include <cstdint>

namespace tosaic::layout {

enum class Objective : std::uint8_t {
  kBytes,  // of all transposes; their number where the bytes are equal
  kCount,  // the number of transposes; their bytes where it is equal
};

}  // namespace tosaic::layout
