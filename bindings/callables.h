// callables: Python callables as functions of the executor. Any thread may call and release them. They
// receive copies of arrays, so they may store them.
#pragma once

#include <map>
#include <string>

#include "bind.h"
#include "tosaic/exec/prepare.h"

namespace tosaic::python {

// Converts {name: callable(*operands) -> array, or a sequence of arrays if the node has several results}. A
// callable with the attribute `takes_arguments` is called with (arguments, operands, [(dtype, shape) of each
// result]).
[[nodiscard]] std::map<std::string, exec::NodeFunction> overrides_of(const py::dict& table);
// Converts [(node, callable(*operands) -> array or arrays)]. The operands are arrays of the node's values.
[[nodiscard]] std::map<exec::NodeIdentity, exec::NodeFunction> models_of(const py::sequence& pairs);
// Converts a callable(name, results).
[[nodiscard]] exec::NodeFunction observer_of(py::object callable);

}  // namespace tosaic::python
