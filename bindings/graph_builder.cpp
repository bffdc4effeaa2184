// Bindings of GraphBuilder. The importer calls it once per node, so its arguments are converted with as
// little work as possible.
#include "tosaic/ir/graph_builder.h"

#include <pybind11/stl.h>

#include "bind.h"
#include "tosaic/base/error.h"

namespace tosaic::python {
namespace {

std::string text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<std::size_t>(size)};
}

// The origin for a tuple (fx_name, target, module_path, file, line).
OriginRef origin_from(const py::tuple& parts) {
  if (parts.size() != 5) throw InternalError({.where = "graph builder", .what = "an origin has five parts"});
  auto origin = std::make_shared<Origin>();
  origin->fx_name = text_of(PyTuple_GET_ITEM(parts.ptr(), 0));
  origin->target = text_of(PyTuple_GET_ITEM(parts.ptr(), 1));
  origin->module_path = text_of(PyTuple_GET_ITEM(parts.ptr(), 2));
  origin->file = text_of(PyTuple_GET_ITEM(parts.ptr(), 3));
  origin->line = static_cast<std::int32_t>(PyLong_AsLong(PyTuple_GET_ITEM(parts.ptr(), 4)));
  return origin;
}

DimOrder order_from(py::handle order) { return order.is_none() ? DimOrder() : DimOrder(to_dims(order)); }

TensorType type_from(py::handle dtype, py::handle shape) {
  TensorType type;
  type.dtype = to_dtype(dtype);
  type.shape = to_dims(shape);
  return type;
}

Op op_from(int id) {
  if (id < 0 || static_cast<std::size_t>(id) >= all_ops().size())
    throw InternalError({.where = "graph builder", .what = "no such operator", .got = std::to_string(id)});
  return static_cast<Op>(id);
}

std::vector<ValueId> operands_from(py::handle operands) {
  const auto items =
      py::reinterpret_steal<py::object>(PySequence_Fast(operands.ptr(), "operands are a sequence"));
  if (!items) throw py::error_already_set();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
  std::vector<ValueId> ids;
  ids.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const long id = PyLong_AsLong(PySequence_Fast_GET_ITEM(items.ptr(), i));
    if (id == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    ids.push_back(id < 0 ? ValueId() : ValueId(static_cast<std::uint32_t>(id)));
  }
  return ids;
}

std::uint32_t add_input(GraphBuilder& builder, std::string name, py::handle dtype, py::handle shape,
                        std::string path, py::handle order, const std::shared_ptr<Constant>& initial) {
  return builder
      .add_input(std::move(name), type_from(dtype, shape), std::move(path), order_from(order), initial)
      .index();
}

std::uint32_t add_node(GraphBuilder& builder, int op_id, py::handle attrs, py::handle operands,
                       const py::object& name, const py::tuple& origin, std::span<const TensorType> recorded,
                       std::vector<std::shared_ptr<const Graph>> regions) {
  const Op op = op_from(op_id);
  const std::vector<ValueId> ids = operands_from(operands);
  return builder
      .add_node({.op = op,
                 .attrs = attrs_from(op, attrs),
                 .operands = ids,
                 .origin = origin_from(origin),
                 .name = text_of(name.ptr()),
                 .recorded = recorded,
                 .regions = std::move(regions)})
      .index();
}

std::uint32_t add(GraphBuilder& builder, int op, py::handle attrs, py::handle operands,
                  const py::object& name, const py::tuple& origin, py::handle dtype, py::handle shape) {
  if (dtype.is_none()) return add_node(builder, op, attrs, operands, name, origin, {}, {});
  const TensorType recorded = type_from(dtype, shape);
  return add_node(builder, op, attrs, operands, name, origin, std::span(&recorded, 1), {});
}

std::uint32_t add_many(GraphBuilder& builder, int op, py::handle attrs, py::handle operands,
                       const py::object& name, const py::tuple& origin, const py::list& types,
                       const std::vector<std::shared_ptr<Graph>>& regions) {
  std::vector<TensorType> recorded;
  for (const py::handle type : types) {
    const auto pair = py::reinterpret_borrow<py::tuple>(type);
    recorded.push_back(type_from(pair[0], pair[1]));
  }
  return add_node(builder, op, attrs, operands, name, origin, recorded, {regions.begin(), regions.end()});
}

}  // namespace

void bind_graph_builder(py::module_& m) {
  py::class_<GraphBuilder>(m, "GraphBuilder",
                           "Writes a graph front to back; values are named by their index.")
      .def(py::init([](std::string name, const std::string& stage) {
             const std::optional<Stage> parsed = parse_stage(stage);
             if (!parsed)
               throw InvalidGraph({.where = "graph builder", .what = "unknown stage", .got = stage});
             return GraphBuilder(std::move(name), *parsed);
           }),
           py::arg("name"), py::arg("stage") = "exported")
      .def("add_input", &add_input, py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("path"),
           py::arg("order") = py::none(), py::arg("initial") = nullptr,
           "A user input; with `initial`, a state. `order`: how the caller's array lies in memory.")
      .def(
          "add_constant",
          [](GraphBuilder& builder, const std::shared_ptr<Constant>& constant) {
            return builder.add_constant(constant).index();
          },
          py::arg("constant"), "The same constant gives the same value.")
      .def("add", &add, py::arg("op"), py::arg("attrs"), py::arg("operands"), py::arg("name"),
           py::arg("origin"), py::arg("dtype"), py::arg("shape"),
           "A node with one checked result (dtype None: unchecked). Operand -1 is absent. Origin: (fx name, "
           "target, module path, file, line). Returns its first value.")
      .def("add_many", &add_many, py::arg("op"), py::arg("attrs"), py::arg("operands"), py::arg("name"),
           py::arg("origin"), py::arg("types"), py::arg("regions") = std::vector<std::shared_ptr<Graph>>{},
           "A node whose results are checked against, or given by, `types`: a list of (dtype, shape).")
      .def(
          "add_output",
          [](GraphBuilder& builder, std::uint32_t value, std::string path,
             std::optional<std::uint32_t> mutated_input, py::handle order) {
            builder.add_output(ValueId(value), std::move(path), mutated_input, order_from(order));
          },
          py::arg("value"), py::arg("path"), py::arg("mutated_input") = py::none(),
          py::arg("order") = py::none())
      .def(
          "type",
          [](const GraphBuilder& builder, std::uint32_t value) {
            const TensorType& type = builder.type(ValueId(value));
            return py::make_tuple(static_cast<int>(type.dtype), to_tuple(type.shape));
          },
          py::arg("value"), "(position in DTYPES, shape)")
      .def(
          "constant",
          [](const GraphBuilder& builder, std::uint32_t value) {
            return std::const_pointer_cast<Constant>(builder.constant(ValueId(value)));
          },
          py::arg("value"), "The constant that a value is, or is a clone or reshape of; None if it is none.")
      .def("finish", &GraphBuilder::finish, "The graph; the builder is used up.");
}

}  // namespace tosaic::python
