#include "callables.h"

#include "arrays.h"
#include "tosaic/exec/override.h"
#include "views.h"

namespace tosaic::python {
namespace {

// callable(*operands) -> array, or a sequence of arrays if the node has several results. A callable with the
// attribute `takes_arguments` is called with (arguments, operands, [(dtype, shape) of each result]).
exec::NodeFunction override_of(py::object callable) {
  const bool takes_arguments = py::hasattr(callable, "takes_arguments");
  return [takes_arguments, held = owned(std::move(callable))](const exec::NodeCall& call) {
    const py::gil_scoped_acquire gil;
    py::list operands;
    for (const exec::ArrayView& operand : call.operands) operands.append(copied(operand));
    py::object made;
    try {
      if (takes_arguments) {
        py::list types;
        for (const exec::MutableArrayView& result : call.results)
          types.append(py::make_tuple(std::string(to_string(result.dtype)), to_tuple(result.shape)));
        made = (*held)(exec::foreign_arguments(call.node), operands, types);
      } else {
        made = (*held)(*py::tuple(operands));
      }
    } catch (const py::error_already_set& error) {
      // add_note: from Python 3.11 on. Errors of tosaic have `parts`, and name the node themselves.
      if (py::hasattr(error.value(), "add_note") && !py::hasattr(error.value(), "parts"))
        error.value().attr("add_note")("in the function that computes node '" + call.name + "'");
      throw;
    }
    GivenArrays returned;
    if (call.results.size() == 1 && !py::isinstance<py::tuple>(made) && !py::isinstance<py::list>(made)) {
      returned.add(made);
    } else {
      const auto sequence = made.cast<py::sequence>();
      for (std::size_t i = 0; i < py::len(sequence); ++i) returned.add(py::object(sequence[i]));
    }
    exec::store_results(call, returned.views);
  };
}

}  // namespace

exec::NodeFunction observer_of(py::object callable) {
  return [held = owned(std::move(callable))](const exec::NodeCall& call) {
    const py::gil_scoped_acquire gil;
    py::list results;
    for (const exec::MutableArrayView& result : call.results) results.append(copied(result.read()));
    (*held)(call.name, results);
  };
}

std::map<std::string, exec::NodeFunction> overrides_of(const py::dict& table) {
  std::map<std::string, exec::NodeFunction> out;
  for (const auto& [name, callable] : table)
    out[name.cast<std::string>()] = override_of(py::reinterpret_borrow<py::object>(callable));
  return out;
}

std::map<exec::NodeIdentity, exec::NodeFunction> models_of(const py::sequence& pairs) {
  std::map<exec::NodeIdentity, exec::NodeFunction> out;
  for (const py::handle pair : pairs) {
    const auto& view = pair[py::int_(0)].cast<const NodeView&>();
    out[exec::identity_of(*view.graph, view.node())] = override_of(pair[py::int_(1)]);
  }
  return out;
}

}  // namespace tosaic::python
