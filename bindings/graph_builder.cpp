// GraphBuilder: the importer builds a graph with it node by node, with as little work per call as possible.
#include <pybind11/stl.h>

#include "bind.h"
#include "tosaic/base/error.h"
#include "tosaic/ir/infer.h"

namespace tosaic::python {
namespace {

std::string text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<std::size_t>(size)};
}

// (fx_name, target, module_path, file, line)
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

class GraphBuilder {
 public:
  GraphBuilder(std::string name, const std::string& stage) : graph_(std::make_shared<Graph>()) {
    graph_->name = std::move(name);
    const std::optional<Stage> parsed = parse_stage(stage);
    if (!parsed) throw InvalidGraph({.where = "graph builder", .what = "unknown stage", .got = stage});
    graph_->stage = *parsed;
  }

  std::uint32_t add_input(std::string name, py::handle dtype, py::handle shape, std::string path,
                          py::handle order, const std::shared_ptr<Constant>& initial) {
    BoundaryFormat border;
    border.order = order_from(order);
    const InputKind kind = initial ? InputKind::kState : InputKind::kUser;
    return graph()
        .add_input(kind, std::move(name), type_from(dtype, shape), std::move(path), std::move(border),
                   initial)
        .index();
  }

  std::uint32_t add_constant(const std::shared_ptr<Constant>& constant) {
    return graph().add_constant(constant).index();
  }

  std::uint32_t add(int op, py::handle attrs, py::handle operands, const py::object& name,
                    const py::tuple& origin, py::handle dtype, py::handle shape) {
    if (dtype.is_none()) return emit(op, attrs, operands, name, origin, {}, {});
    const TensorType expected = type_from(dtype, shape);
    return emit(op, attrs, operands, name, origin, std::span(&expected, 1), {});
  }

  std::uint32_t add_many(int op, py::handle attrs, py::handle operands, const py::object& name,
                         const py::tuple& origin, const py::list& types,
                         const std::vector<std::shared_ptr<Graph>>& regions) {
    std::vector<TensorType> expected;
    for (const py::handle type : types) {
      const auto pair = py::reinterpret_borrow<py::tuple>(type);
      expected.push_back(type_from(pair[0], pair[1]));
    }
    return emit(op, attrs, operands, name, origin, expected, {regions.begin(), regions.end()});
  }

  void add_output(std::uint32_t value, std::string path, std::optional<std::uint32_t> mutated_input,
                  py::handle order) {
    Output output;
    output.value = checked(value);
    output.kind = mutated_input ? OutputKind::kMutation : OutputKind::kUser;
    output.path = std::move(path);
    output.mutated_input = mutated_input.value_or(0);
    output.border.order = order_from(order);
    graph().add_output(std::move(output));
  }

  [[nodiscard]] py::tuple type(std::uint32_t value) {
    const TensorType& type = graph().type(checked(value));
    return py::make_tuple(static_cast<int>(type.dtype), to_tuple(type.shape));
  }

  // The constant that a value is, or is a clone or reshape of; null if there is none.
  [[nodiscard]] std::shared_ptr<Constant> constant(std::uint32_t value) {
    ValueId id = checked(value);
    while (const Node* node = graph().producer(id)) {
      if (node->op != Op::kClone && node->op != Op::kReshape) return nullptr;
      id = graph().operands(*node)[0];
    }
    return std::const_pointer_cast<Constant>(graph().value(id).constant);
  }

  std::shared_ptr<Graph> finish() {
    static_cast<void>(graph());
    return std::move(graph_);
  }

 private:
  Graph& graph() {
    if (!graph_) throw InternalError({.where = "graph builder", .what = "used after finish()"});
    return *graph_;
  }

  ValueId checked(std::uint32_t value) {
    if (value >= graph().values().size())
      throw InternalError({.where = "graph builder", .what = "no such value", .got = std::to_string(value)});
    return ValueId(value);
  }

  static TensorType type_from(py::handle dtype, py::handle shape) {
    TensorType type;
    type.dtype = to_dtype(dtype);
    type.shape = to_dims(shape);
    return type;
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
      ids.push_back(id < 0 ? ValueId() : checked(static_cast<std::uint32_t>(id)));
    }
    return ids;
  }

  // `expected`: the types that torch recorded for the leading results. They are compared with the inferred
  // types; for an operator without inference they are the result types.
  std::uint32_t emit(int op_id, py::handle attrs, py::handle operands, const py::object& name,
                     const py::tuple& origin_parts, std::span<const TensorType> expected,
                     std::vector<std::shared_ptr<const Graph>> regions) {
    if (op_id < 0 || static_cast<std::size_t>(op_id) >= all_ops().size())
      throw InternalError(
          {.where = "graph builder", .what = "no such operator", .got = std::to_string(op_id)});
    const Op op = static_cast<Op>(op_id);
    const std::vector<ValueId> ids = operands_from(operands);
    const OriginRef origin = origin_from(origin_parts);
    std::string node_name = text_of(name.ptr());
    AttrsRef shared = share(attrs_from(op, attrs));
    std::vector<TensorType> types;
    if (has_inference(op)) {
      types = infer_node(graph(), op, *shared, ids, origin, node_name);
      check_expected(types, expected, origin, node_name);
    } else {
      types.assign(expected.begin(), expected.end());
    }
    const NodeId id =
        graph().add_node(op, std::move(shared), ids, types, origin, std::move(node_name), std::move(regions));
    return graph().node(id).first_result;
  }

  static void check_expected(std::span<const TensorType> inferred, std::span<const TensorType> expected,
                             const OriginRef& origin, const std::string& name) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (i < inferred.size() && inferred[i].dtype == expected[i].dtype &&
          inferred[i].shape == expected[i].shape)
        continue;
      throw InvalidGraph(located({.where = "import",
                                  .what = "result " + std::to_string(i) + " is not what torch recorded",
                                  .expected = to_string(expected[i]),
                                  .got = i < inferred.size() ? to_string(inferred[i]) : "no such result"},
                                 origin, name));
    }
  }

  std::shared_ptr<Graph> graph_;
};

}  // namespace

void bind_graph_builder(py::module_& m) {
  py::class_<GraphBuilder>(m, "GraphBuilder",
                           "Writes a graph front to back; values are named by their index.")
      .def(py::init<std::string, std::string>(), py::arg("name"), py::arg("stage") = "exported")
      .def("add_input", &GraphBuilder::add_input, py::arg("name"), py::arg("dtype"), py::arg("shape"),
           py::arg("path"), py::arg("order") = py::none(), py::arg("initial") = nullptr,
           "A user input; with `initial`, a state. `order`: how the caller's array lies in memory.")
      .def("add_constant", &GraphBuilder::add_constant, py::arg("constant"),
           "The same constant gives the same value.")
      .def("add", &GraphBuilder::add, py::arg("op"), py::arg("attrs"), py::arg("operands"), py::arg("name"),
           py::arg("origin"), py::arg("dtype"), py::arg("shape"),
           "A node with one checked result (dtype None: unchecked). Operand -1 is absent. Origin: (fx name, "
           "target, "
           "module path, file, line). Returns its first value.")
      .def("add_many", &GraphBuilder::add_many, py::arg("op"), py::arg("attrs"), py::arg("operands"),
           py::arg("name"), py::arg("origin"), py::arg("types"),
           py::arg("regions") = std::vector<std::shared_ptr<Graph>>{},
           "A node whose results are checked against, or given by, `types`: a list of (dtype, shape).")
      .def("add_output", &GraphBuilder::add_output, py::arg("value"), py::arg("path"),
           py::arg("mutated_input") = py::none(), py::arg("order") = py::none())
      .def("type", &GraphBuilder::type, py::arg("value"), "(position in DTYPES, shape)")
      .def("constant", &GraphBuilder::constant, py::arg("value"),
           "The constant that a value is, or is a clone or reshape of; None if it is none.")
      .def("finish", &GraphBuilder::finish, "The graph; the builder is used up.");
}

}  // namespace tosaic::python
