// Bindings of GraphBuilder. The importer calls it once per node, so its arguments are converted with as
// little work as possible.
#include "tosaic/ir/graph_builder.h"

#include <pybind11/stl.h>

#include "bind.h"
#include "slotted.h"
#include "tosaic/base/error.h"
#include "tosaic/passes/fold_value.h"

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

// Makes the origin of an FX node from the entries of its dictionary `meta`, which torch filled.
class OriginReader {
 public:
  OriginReader(py::function module_path, py::function source_of)
      : module_path_(std::move(module_path)), source_of_(std::move(source_of)) {}

  [[nodiscard]] OriginRef read(std::string fx_name, PyObject* target, PyObject* meta) const {
    auto origin = std::make_shared<Origin>();
    origin->fx_name = std::move(fx_name);
    origin->target = text_of(target);
    if (PyObject* stack = recorded(meta, "nn_module_stack"); stack != nullptr && PyDict_Check(stack))
      origin->module_path = path_of(stack);
    if (PyObject* trace = recorded(meta, "stack_trace"); trace != nullptr && PyObject_IsTrue(trace) == 1) {
      const auto source = py::reinterpret_steal<py::tuple>(called(source_of_, trace));
      origin->file = text_of(PyTuple_GET_ITEM(source.ptr(), 0));
      origin->line = static_cast<std::int32_t>(PyLong_AsLong(PyTuple_GET_ITEM(source.ptr(), 1)));
    }
    return origin;
  }

 private:
  static PyObject* recorded(PyObject* meta, const char* key) {
    return PyDict_Check(meta) ? PyDict_GetItem(meta, interned(key)) : nullptr;
  }
  static py::handle called(const py::function& function, PyObject* argument) {
    PyObject* const result = PyObject_CallOneArg(function.ptr(), argument);
    if (result == nullptr) throw py::error_already_set();
    return result;
  }
  // The path of the innermost module: the last entry of the stack is a tuple of its path and its type.
  [[nodiscard]] std::string path_of(PyObject* stack) const {
    PyObject* key = nullptr;
    PyObject* last = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(stack, &at, &key, &last) != 0;) continue;
    if (last == nullptr) return "";
    const auto path = py::reinterpret_steal<py::object>(PySequence_GetItem(last, 0));
    if (!path) throw py::error_already_set();
    return text_of(py::reinterpret_steal<py::object>(called(module_path_, path.ptr())).ptr());
  }

  py::function module_path_;  // of the recorded path
  py::function source_of_;    // (file, line) of a stack trace
};

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
                       std::string name, OriginRef origin, std::span<const TensorType> recorded,
                       std::vector<std::shared_ptr<const Graph>> regions) {
  const Op op = op_from(op_id);
  const std::vector<ValueId> ids = operands_from(operands);
  return builder
      .add_node({.op = op,
                 .attrs = attrs_from(op, attrs),
                 .operands = ids,
                 .origin = std::move(origin),
                 .name = std::move(name),
                 .recorded = recorded,
                 .regions = std::move(regions)})
      .index();
}

std::uint32_t add(GraphBuilder& builder, int op, py::handle attrs, py::handle operands,
                  const py::object& name, const py::tuple& origin, py::handle dtype, py::handle shape) {
  std::string text = text_of(name.ptr());
  if (dtype.is_none())
    return add_node(builder, op, attrs, operands, std::move(text), origin_from(origin), {}, {});
  const TensorType recorded = type_from(dtype, shape);
  return add_node(builder, op, attrs, operands, std::move(text), origin_from(origin), std::span(&recorded, 1),
                  {});
}

// Adds the nodes of calls of an FX graph, and makes their values.
struct CallWriter {
  OriginReader origins;
  SlottedClass<4> value;
};

py::object add_call(const CallWriter& writer, GraphBuilder& builder, int op, py::handle attrs,
                    py::handle operands, py::handle node, const std::string& prefix, py::handle target,
                    py::object dtype, py::object shape) {
  const TensorType recorded = type_from(dtype, shape);
  const auto name = py::reinterpret_steal<py::object>(PyObject_GetAttr(node.ptr(), interned("name")));
  if (!name) throw py::error_already_set();
  const auto meta = py::reinterpret_steal<py::object>(PyObject_GetAttr(node.ptr(), interned("meta")));
  if (!meta) throw py::error_already_set();
  std::string text = text_of(name.ptr());
  OriginRef origin = writer.origins.read(prefix + text, target.ptr(), meta.ptr());
  const std::uint32_t id =
      add_node(builder, op, attrs, operands, std::move(text), std::move(origin), std::span(&recorded, 1), {});
  return writer.value(py::int_(id), std::move(dtype), std::move(shape), py::none());
}

std::uint32_t add_many(GraphBuilder& builder, int op, py::handle attrs, py::handle operands,
                       const py::object& name, const py::tuple& origin, const py::list& types,
                       const std::vector<std::shared_ptr<Graph>>& regions) {
  std::vector<TensorType> recorded;
  for (const py::handle type : types) {
    const auto pair = py::reinterpret_borrow<py::tuple>(type);
    recorded.push_back(type_from(pair[0], pair[1]));
  }
  return add_node(builder, op, attrs, operands, text_of(name.ptr()), origin_from(origin), recorded,
                  {regions.begin(), regions.end()});
}

}  // namespace

void bind_graph_builder(py::module_& m) {
  py::class_<CallWriter>(m, "CallWriter", "Adds the nodes of calls of an FX graph, and makes their values.")
      .def(py::init([](py::function module_path, py::function source_of, const py::object& value_type) {
             return CallWriter{OriginReader(std::move(module_path), std::move(source_of)),
                               {value_type, {"id", "dtype", "shape", "held"}}};
           }),
           py::arg("module_path"), py::arg("source_of"), py::arg("value_type"),
           "`module_path` makes a path of a recorded one, `source_of` (file, line) of a stack trace. "
           "`value_type` is the class Ref.")
      .def("add", &add_call, py::arg("builder"), py::arg("op"), py::arg("attrs"), py::arg("operands"),
           py::arg("node"), py::arg("prefix"), py::arg("target"), py::arg("dtype"), py::arg("shape"),
           "As `GraphBuilder.add`, with the name of an FX node. The node is the origin, its name after "
           "`prefix`. Returns the value.");
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
      .def(
          "folded",
          [](const GraphBuilder& builder, std::uint32_t value) {
            static_cast<void>(builder.type(ValueId(value)));
            return std::const_pointer_cast<Constant>(passes::fold_value(builder.written(), ValueId(value)));
          },
          py::arg("value"), "The constant that a value is, or is computed to be; None if it is none.")
      .def("finish", &GraphBuilder::finish, "The graph; the builder is used up.");
}

}  // namespace tosaic::python
