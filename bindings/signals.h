// signals: lets Ctrl-C stop long work in C++.
#pragma once

#include <functional>

#include "bind.h"

namespace tosaic::python {

// A function that throws KeyboardInterrupt after Ctrl-C. It checks for Ctrl-C at most ten times a second, so
// it may be called often. Any thread may call it, without the GIL.
[[nodiscard]] std::function<void()> signal_check();

}  // namespace tosaic::python
