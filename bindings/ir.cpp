// Bindings of graphs. In Python a graph is immutable, and its nodes and values are light views that keep it
// alive.
#include "tosaic/ir/diff.h"
#include "tosaic/ir/dot.h"
#include "tosaic/ir/own_constants.h"
#include "tosaic/ir/parse.h"
#include "tosaic/ir/print.h"
#include "tosaic/ir/verify.h"

#include <pybind11/stl.h>

#include "bind.h"
#include "tosaic/base/error.h"
#include "tosaic/exec/boundary.h"
#include "views.h"

namespace tosaic::python {

py::object qparams_to_python(const QParamsRef& qparams) {
  if (!qparams) return py::none();
  const py::object made = py::module_::import("tosaic.base.quantization").attr("QParams");
  return made(std::string(to_string(qparams->storage)), py::tuple(py::cast(qparams->scales)),
              py::tuple(py::cast(qparams->zero_points)), qparams->qmin, qparams->qmax, qparams->axis,
              qparams->groups ? py::object(py::make_tuple(qparams->groups->axis, qparams->groups->size))
                              : py::none());
}

QParamsRef qparams_from(py::handle object) {
  if (object.is_none()) return nullptr;
  const bool is_dict = py::isinstance<py::dict>(object);
  const auto field = [&](const char* name) -> py::object {
    return is_dict ? py::object(object[name]) : py::object(object.attr(name));
  };
  try {
    auto out = std::make_shared<QParams>();
    out->storage = to_dtype(field("dtype"));
    out->qmin = field("qmin").cast<std::int64_t>();
    out->qmax = field("qmax").cast<std::int64_t>();
    out->axis = field("axis").cast<std::optional<std::int64_t>>();
    out->scales = field("scales").cast<std::vector<double>>();
    out->zero_points = field("zero_points").cast<std::vector<std::int64_t>>();
    if (!is_dict || py::dict(py::reinterpret_borrow<py::dict>(object)).contains("groups"))
      if (const auto groups = field("groups").cast<std::optional<std::pair<std::int64_t, std::int64_t>>>())
        out->groups = Groups{groups->first, groups->second};
    return out;
  } catch (const std::exception&) {  // an attribute or key is missing, or has another type
    throw InvalidGraph(
        {.where = "qparams",
         .what = "these are no qparams",
         .expected = "a tosaic.ports.QParams, such as value.qparams, a dict of its fields, or None",
         .got = py::repr(object).cast<std::string>()});
  }
}

namespace {

// Sequences of nodes and values, which create their items on access.
struct NodeList {
  GraphRef graph;
  [[nodiscard]] std::size_t size() const { return graph->nodes().size(); }
  [[nodiscard]] NodeView at(std::size_t i) const { return {graph, NodeId(static_cast<std::uint32_t>(i))}; }
};
struct ValueList {
  GraphRef graph;
  [[nodiscard]] std::size_t size() const { return graph->values().size(); }
  [[nodiscard]] ValueView at(std::size_t i) const { return {graph, ValueId(static_cast<std::uint32_t>(i))}; }
};
struct InputView {
  GraphRef graph;
  std::size_t index;
  [[nodiscard]] const Input& input() const { return graph->inputs()[index]; }
};
struct OutputView {
  GraphRef graph;
  std::size_t index;
  [[nodiscard]] const Output& output() const { return graph->outputs()[index]; }
};

template <class List>
void bind_list(py::module_& m, const char* name) {
  py::class_<List>(m, name)
      .def("__len__", &List::size)
      .def("__getitem__",
           [](const List& list, std::int64_t i) {
             const auto count = static_cast<std::int64_t>(list.size());
             if (i < 0) i += count;
             if (i < 0 || i >= count)
               throw py::index_error("index " + std::to_string(i) + " of " + std::to_string(count));
             return list.at(static_cast<std::size_t>(i));
           })
      .def("__repr__", [name](const List& list) {
        return "<" + std::string(name) + " of " + std::to_string(list.size()) + ">";
      });
}

template <class View>
auto views(const GraphRef& graph, std::size_t count) {
  std::vector<View> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) out.push_back({graph, i});
  return out;
}

py::object order_to_python(const DimOrder& order, std::size_t rank) { return to_tuple(order.axes(rank)); }

std::string value_repr(const ValueView& view) {
  return "<Value %" + view.value().name + ": " + to_string(view.value().type) + ">";
}

std::string node_repr(const NodeView& view) {
  const Node& node = view.node();
  std::string text = "<Node %" + view.graph->node_name(node) + " = " + std::string(info(node.op).name) + "(";
  bool first = true;
  for (const ValueId operand : view.graph->operands(node)) {
    text +=
        std::string(first ? "" : ", ") + (operand.valid() ? "%" + view.graph->value(operand).name : "none");
    first = false;
  }
  return text + ")>";
}

std::string graph_repr(const Graph& graph) {
  std::size_t constants = 0;
  for (const Value& value : graph.values()) constants += value.kind == ValueKind::kConstant ? 1 : 0;
  return "<tosaic.program.Graph '" + graph.name + "' @" + std::string(to_string(graph.stage)) + ": " +
         std::to_string(graph.inputs().size()) + " inputs, " + std::to_string(graph.nodes().size()) +
         " nodes, " + std::to_string(constants) + " constants, " + std::to_string(graph.outputs().size()) +
         " outputs>";
}

std::vector<py::object> operands_of(const NodeView& view) {
  std::vector<py::object> out;
  for (const ValueId operand : view.graph->operands(view.node()))
    out.push_back(operand.valid() ? py::cast(ValueView{view.graph, operand}) : py::none());
  return out;
}

std::vector<ValueView> results_of(const NodeView& view) {
  std::vector<ValueView> out;
  for (std::size_t i = 0; i < view.node().result_count; ++i)
    out.push_back({view.graph, view.graph->result(view.node(), i)});
  return out;
}

std::vector<std::shared_ptr<Graph>> regions_of(const NodeView& view) {
  std::vector<std::shared_ptr<Graph>> out;
  for (const GraphRef& region : view.node().regions) out.push_back(std::const_pointer_cast<Graph>(region));
  return out;
}

std::vector<NodeView> users_of(const ValueView& view) {
  std::vector<NodeView> out;
  for (const NodeId user : view.graph->users(view.id)) out.push_back({view.graph, user});
  return out;
}

py::object producer_of(const ValueView& view) {
  const Node* node = view.graph->producer(view.id);
  return node == nullptr ? py::none() : py::cast(NodeView{view.graph, view.value().producer});
}

// The dtype, shape and layout of the caller's array for an input or output.
template <class Port>
exec::ArrayFormat boundary_of(const Graph& graph, const Port& port) {
  return exec::array_format(graph.stage, graph.type(port.value), port.boundary);
}
template <class Port>
std::string boundary_dtype(const Graph& graph, const Port& port) {
  return std::string(to_string(boundary_of(graph, port).dtype));
}
template <class Port>
py::tuple boundary_shape(const Graph& graph, const Port& port) {
  return to_tuple(boundary_of(graph, port).shape);
}

void bind_origin(py::module_& m) {
  py::class_<Origin, std::shared_ptr<Origin>>(m, "Origin", "The FX node from which a node came.")
      .def_readonly("fx_name", &Origin::fx_name, "Name of the FX node.")
      .def_readonly("target", &Origin::target, "What it calls: 'aten.conv2d.default'.")
      .def_readonly("module_path", &Origin::module_path, "Path of the module that it is in: 'layer1.conv'.")
      .def_readonly("file", &Origin::file, "Path of the source file, or ''.")
      .def_readonly("line", &Origin::line, "Line in the source file.")
      .def_property_readonly("source", &Origin::source, "'model.py:41', or '' if unknown.")
      .def("__repr__", [](const Origin& o) {
        return "<Origin '" + o.fx_name + "' " + o.target + (o.source().empty() ? "" : " " + o.source()) + ">";
      });
}

void bind_views(py::module_& m) {
  py::class_<ValueView>(m, "Value",
                        "One value of a graph: an input, a constant or a result of a node. Two objects are "
                        "equal if they are the same value of the same graph.")
      .def_property_readonly(
          "name", [](const ValueView& v) { return v.value().name; }, "Its name, which no other value has.")
      .def_property_readonly(
          "kind", [](const ValueView& v) { return std::string(to_string(v.value().kind)); }, "What it is.")
      .def_property_readonly(
          "dtype", [](const ValueView& v) { return std::string(to_string(v.value().type.dtype)); },
          "``f32``, ``i8`` ...; of quantized values the dtype of the integers.")
      .def_property_readonly(
          "shape", [](const ValueView& v) { return to_tuple(v.value().type.shape); },
          "The extents of torch's axes; at stage tosa, of the physical axes.")
      .def_property_readonly(
          "dim_order",
          [](const ValueView& v) { return order_to_python(v.value().type.order, v.value().type.rank()); },
          "The order of the axes, outermost first, as in ``torch.Tensor.dim_order()``.")
      .def_property_readonly(
          "qparams", [](const ValueView& v) { return qparams_to_python(v.value().type.qparams); },
          "How its integers represent numbers. None for floats, and if they represent themselves.")
      .def_property_readonly(
          "constant",
          [](const ValueView& v) { return std::const_pointer_cast<Constant>(v.value().constant); },
          "The elements of a constant, else None.")
      .def_property_readonly("producer", &producer_of, "The node whose result it is, or None.")
      .def_property_readonly("users", &users_of, "Nodes that read it, in order, one entry per use.")
      .def_property_readonly(
          "is_output", [](const ValueView& v) { return v.graph->is_output(v.id); },
          "Whether the graph returns it.")
      .def_property_readonly(
          "id", [](const ValueView& v) { return v.id.index(); }, "Its position in `Graph.values`.")
      .def(
          "__eq__", [](const ValueView& a, const ValueView& b) { return a.graph == b.graph && a.id == b.id; },
          py::is_operator())
      .def("__hash__",
           [](const ValueView& v) { return std::hash<const void*>()(v.graph.get()) ^ v.id.index(); })
      .def("__repr__", &value_repr);

  py::class_<NodeView>(
      m, "Node", "One node of a graph. Two objects are equal if they are the same node of the same graph.")
      .def_property_readonly(
          "op", [](const NodeView& n) { return std::string(info(n.node().op).name); },
          "The operator, as `tosaic ops` lists it: ``conv``, ``tosa.conv2d``.")
      .def_property_readonly(
          "name", [](const NodeView& n) { return n.graph->node_name(n.node()); },
          "The name of its first result.")
      .def_property_readonly("operands", &operands_of, "Values; None where an optional operand is absent.")
      .def_property_readonly("results", &results_of, "Values, mostly one.")
      .def_property_readonly(
          "attrs", [](const NodeView& n) { return attrs_to_dict(*n.node().attrs); }, "Attributes by name.")
      .def_property_readonly(
          "origins",
          [](const NodeView& n) {
            std::vector<std::shared_ptr<Origin>> out;
            for (const OriginRef& leaf : leaves(n.node().origin))
              out.push_back(std::const_pointer_cast<Origin>(leaf));
            return out;
          },
          "The FX nodes from which this node comes.")
      .def_property_readonly(
          "origin",
          [](const NodeView& n) -> std::shared_ptr<Origin> {
            const std::vector<OriginRef> all = leaves(n.node().origin);
            return all.empty() ? nullptr : std::const_pointer_cast<Origin>(all.front());
          },
          "The first FX node from which this node comes, or None.")
      .def_property_readonly("regions", &regions_of, "Graphs of cond and while_loop.")
      .def_property_readonly(
          "id", [](const NodeView& n) { return n.id.index(); }, "Its position in `Graph.nodes`.")
      .def(
          "__eq__", [](const NodeView& a, const NodeView& b) { return a.graph == b.graph && a.id == b.id; },
          py::is_operator())
      .def("__hash__",
           [](const NodeView& n) { return std::hash<const void*>()(n.graph.get()) ^ n.id.index(); })
      .def("__repr__", &node_repr);

  py::class_<InputView>(m, "Input", "One input of a graph, and the form of the caller's array.")
      .def_property_readonly("value", [](const InputView& i) { return ValueView{i.graph, i.input().value}; })
      .def_property_readonly("name", [](const InputView& i) { return i.graph->value(i.input().value).name; })
      .def_property_readonly("path", [](const InputView& i) { return i.input().path; })
      .def_property_readonly(
          "kind", [](const InputView& i) { return i.input().kind == InputKind::kUser ? "user" : "state"; })
      .def_property_readonly(
          "initial", [](const InputView& i) { return std::const_pointer_cast<Constant>(i.input().initial); })
      .def_property_readonly(
          "dim_order",
          [](const InputView& i) {
            return order_to_python(i.input().boundary.order, i.graph->type(i.input().value).rank());
          },
          "The memory order of the caller's array.")
      .def_property_readonly(
          "dtype", [](const InputView& i) { return boundary_dtype(*i.graph, i.input()); },
          "The dtype of the caller's array, which may be wider than that of the value.")
      .def_property_readonly(
          "shape", [](const InputView& i) { return boundary_shape(*i.graph, i.input()); },
          "The shape of the caller's array.")
      .def_property_readonly(
          "physical", [](const InputView& i) { return i.input().boundary.physical; },
          "True if the caller's array has the physical shape.")
      .def_property_readonly(
          "qparams", [](const InputView& i) { return qparams_to_python(i.input().boundary.qparams); },
          "The qparams with which an f32 array of the caller is quantized, or None.")
      .def("__repr__", [](const InputView& i) {
        return "<Input '" + i.input().path + "': " + to_string(i.graph->type(i.input().value)) + ">";
      });

  py::class_<OutputView>(m, "Output",
                         "One output of a graph: a user output, or the new value of a state or user input.")
      .def_property_readonly("value",
                             [](const OutputView& o) { return ValueView{o.graph, o.output().value}; })
      .def_property_readonly("path", [](const OutputView& o) { return o.output().path; })
      .def_property_readonly(
          "kind",
          [](const OutputView& o) { return o.output().kind == OutputKind::kUser ? "user" : "mutation"; })
      .def_property_readonly(
          "mutated_input",
          [](const OutputView& o) -> std::optional<std::uint32_t> {
            if (o.output().kind == OutputKind::kUser) return std::nullopt;
            return o.output().mutated_input;
          },
          "Index of the input that receives a mutation, else None.")
      .def_property_readonly("dim_order",
                             [](const OutputView& o) {
                               return order_to_python(o.output().boundary.order,
                                                      o.graph->type(o.output().value).rank());
                             })
      .def_property_readonly("dtype",
                             [](const OutputView& o) { return boundary_dtype(*o.graph, o.output()); })
      .def_property_readonly("shape",
                             [](const OutputView& o) { return boundary_shape(*o.graph, o.output()); })
      .def_property_readonly("physical", [](const OutputView& o) { return o.output().boundary.physical; })
      .def_property_readonly(
          "qparams", [](const OutputView& o) { return qparams_to_python(o.output().boundary.qparams); },
          "The qparams with which the output is dequantized to an f32 array, or None.")
      .def("__repr__", [](const OutputView& o) {
        return "<Output '" + o.output().path + "': " + to_string(o.graph->type(o.output().value)) + ">";
      });
  bind_list<NodeList>(m, "NodeList");
  bind_list<ValueList>(m, "ValueList");
}

py::dict constants_of(const Graph& graph) {
  py::dict out;
  for (const Value& value : graph.values())
    if (value.kind == ValueKind::kConstant)
      out[py::str(value.name)] = std::const_pointer_cast<Constant>(value.constant);
  return out;
}

ValueView find_value(const std::shared_ptr<Graph>& graph, const std::string& name) {
  const ValueId value = graph->find_value(name);
  if (!value.valid()) throw py::key_error(name);
  return {graph, value};
}

// `constants` is a mapping by name, or a callable that receives each constant without its bytes, in the order
// of the text, and returns the constant with its bytes. None means that the constant stays unbound.
std::shared_ptr<Graph> parse_graph(const std::string& text, const py::object& constants) {
  const bool callable = PyCallable_Check(constants.ptr()) != 0;
  return std::make_shared<Graph>(parse(text, [&constants, callable](const Constant& wanted) -> ConstantRef {
    const py::object found = callable ? constants(std::make_shared<Constant>(wanted))
                                      : constants.attr("get")(wanted.name, py::none());
    return found.is_none() ? nullptr : found.cast<std::shared_ptr<Constant>>();
  }));
}

void bind_graph(py::module_& m) {
  using Self = std::shared_ptr<Graph>;
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph",
                                            "One function as plain data, in topological order; immutable.")
      .def_readonly("name", &Graph::name, "The name of the program or region.")
      .def_property_readonly(
          "stage", [](const Graph& g) { return std::string(to_string(g.stage)); },
          "The stage, which says which operators it may contain.")
      .def_property_readonly(
          "inputs", [](const Self& g) { return views<InputView>(g, g->inputs().size()); },
          "The inputs in order: their values, and the forms of the caller's arrays.")
      .def_property_readonly(
          "outputs", [](const Self& g) { return views<OutputView>(g, g->outputs().size()); },
          "The outputs in order, including new values of states and of inputs.")
      .def_property_readonly(
          "nodes", [](const Self& g) { return NodeList{g}; }, "Nodes in topological order.")
      .def_property_readonly(
          "values", [](const Self& g) { return ValueList{g}; }, "Inputs, constants and results.")
      .def_property_readonly("constants", &constants_of, "Constants by value name.")
      .def("value", &find_value, py::arg("name"), "The value of this name. Raises KeyError.")
      .def(
          "text", [](const Graph& g) { return print(g); }, "The text form; `parse` reads it back.")
      .def("__str__", [](const Graph& g) { return print(g); })
      .def_static("parse", &parse_graph, py::arg("text"), py::arg("constants") = py::dict(),
                  "Reads a text form. `constants` has the constants of the text: a mapping by name, or a "
                  "callable that gets each constant without its bytes, in the order of the text, and returns "
                  "it with them. Other constants stay unbound. Raises InvalidGraph.")
      .def(
          "diff",
          [](const Graph& a, const Graph& b) {
            const Diff found = diff(a, b);
            return found.empty() ? std::string() : to_string(found);
          },
          py::arg("other"), "The differences of `other`, as text; empty if at most names differ.")
      .def(
          "dot", [](const Graph& g) { return dot(g); }, "Graphviz source.")
      .def(
          "verify", [](const Graph& g) { verify(g); },
          "Raises InvalidGraph if the graph breaks a rule of its stage.")
      .def(
          "own_constants",
          [](const Self& g) {
            const py::gil_scoped_release release;
            return std::const_pointer_cast<Graph>(own_constants(g));
          },
          "The graph with copies of constants that are views of memory that others own; the same object if "
          "there are none. Raises InvalidGraph if such a constant was changed since import.")
      .def(
          "__reduce__", [](const py::object& self) { return reduced(self, "reduce_graph"); },
          "Pickles the graph by value: its text and its constants.")
      .def("__len__", [](const Graph& g) { return g.nodes().size(); })
      .def("__repr__", &graph_repr);
}

py::tuple trait_names(const OpInfo& row) {
  constexpr std::pair<Trait, const char*> kNames[] = {
      {kElementwise, "elementwise"}, {kView, "view"},    {kMovement, "movement"}, {kComposite, "composite"},
      {kCommutative, "commutative"}, {kEffect, "effect"}};
  py::list out;
  for (const auto& [trait, name] : kNames)
    if (row.has(trait)) out.append(name);
  if (row.runs_as_expansion()) out.append("expanded");
  return py::tuple(out);
}

void bind_ops(py::module_& m) {
  py::class_<OpInfo>(m, "OpInfo", "One row of the operator table.")
      .def_property_readonly("id", [](const OpInfo& row) { return static_cast<int>(row.op); })
      .def_property_readonly("name", [](const OpInfo& row) { return std::string(row.name); })
      .def_property_readonly(
          "operands", [](const OpInfo& row) { return std::string(row.operands); },
          "Names in order; `name?` may be absent, `name*` is a variadic tail.")
      .def_property_readonly(
          "results", [](const OpInfo& row) { return static_cast<int>(row.results); },
          "Number of results; -1 = given by attributes or stored types.")
      .def_property_readonly("traits", &trait_names)
      .def_readonly("is_tosa", &OpInfo::is_tosa)
      .def_property_readonly(
          "int16_units",
          [](const OpInfo& row) {
            return row.int16_units == kNoInt16 ? std::nullopt : std::optional<int>(row.int16_units);
          },
          "The largest difference, in units of a 16-bit result, between integer arithmetic and torch's q/dq "
          "graph. None if the operator has no integer form. Derived in ops.def.")
      .def_property_readonly(
          "attributes", [](const OpInfo& row) { return attrs_to_dict(default_attrs(row.op)); },
          "Attributes and their defaults.")
      .def("__repr__", [](const OpInfo& row) { return "<OpInfo '" + std::string(row.name) + "'>"; });
  m.def("ops", [] { return std::vector<OpInfo>(all_ops().begin(), all_ops().end()); }, "The operator table.");
  py::list dtypes;
  for (int code = 0; code <= static_cast<int>(DType::kF64); ++code)
    dtypes.append(std::string(to_string(static_cast<DType>(code))));
  m.attr("DTYPES") = py::tuple(dtypes);
  m.def(
      "promote",
      [](int a, int b) { return static_cast<int>(promote(to_dtype(py::int_(a)), to_dtype(py::int_(b)))); },
      py::arg("a"), py::arg("b"),
      "The dtype of torch for operands of these dtypes and of equal rank. Dtypes are positions in DTYPES.");
}

}  // namespace

void bind_ir(py::module_& m) {
  bind_origin(m);
  bind_views(m);
  bind_graph(m);
  bind_ops(m);
}

}  // namespace tosaic::python
