// Bindings of Rewriter, with which a pass that is written in Python makes a changed graph.
#include <pybind11/stl.h>

#include "bind.h"
#include "tosaic/base/error_text.h"
#include "tosaic/ir/checked_rewriter.h"
#include "views.h"

namespace tosaic::python {
namespace {

using Self = std::shared_ptr<CheckedRewriter>;

// A value of the graph that a rewriter makes. Its type and name are copies, since finish() moves the graph
// away.
struct NewValue {
  NewValue(Self of, ValueId value)
      : rewriter(std::move(of)),
        id(value),
        type(rewriter->current().type(value)),
        name(rewriter->current().value(value).name) {}

  Self rewriter;
  ValueId id;
  TensorType type;
  std::string name;
};

InvalidGraph refusal(const char* what, const char* expected, py::handle got) {
  return InvalidGraph(
      {.where = "rewriter", .what = what, .expected = expected, .got = py::repr(got).cast<std::string>()});
}

NodeId node_of(const Self& self, const NodeView& node) {
  if (node.graph != self->source())
    throw InvalidGraph({.where = "rewriter",
                        .what = "the node is of another graph",
                        .expected = "a node of rewriter.source",
                        .got = quoted(node.graph->node_name(node.node()))});
  return node.id;
}

// Converts a value of the source, a value that the rewriter made, or None.
ValueId value_of(const Self& self, py::handle value) {
  if (value.is_none()) return {};
  if (py::isinstance<NewValue>(value)) {
    const auto& fresh = value.cast<const NewValue&>();
    if (fresh.rewriter == self) return fresh.id;
  }
  if (py::isinstance<ValueView>(value)) {
    const auto& old = value.cast<const ValueView&>();
    if (old.graph == self->source()) return self->map(old.id);
  }
  throw refusal("this is no value of the graph", "a value of rewriter.source, or one that emit returned",
                value);
}

std::vector<ValueId> values_of(const Self& self, const py::sequence& values) {
  std::vector<ValueId> ids;
  for (const py::handle value : values) ids.push_back(value_of(self, value));
  return ids;
}

py::object wrapped(const Self& self, const std::vector<ValueId>& ids) {
  if (ids.size() == 1) return py::cast(NewValue(self, ids.front()));
  py::tuple out(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) out[i] = py::cast(NewValue(self, ids[i]));
  return out;
}

// Converts qparams of results: None, the qparams of the only result, or a sequence with an entry for each
// result.
std::vector<QParamsRef> result_qparams(const py::object& qparams) {
  std::vector<QParamsRef> out;
  if (qparams.is_none()) return out;
  if (py::isinstance<py::list>(qparams) || py::isinstance<py::tuple>(qparams)) {
    for (const py::handle each : qparams) out.push_back(qparams_from(each));
  } else {
    out.push_back(qparams_from(qparams));
  }
  return out;
}

// The attributes of a node that is emitted at `at`. Errors name that node.
Attrs attrs_at(const NodeView& at, Op op, const py::object& attrs) {
  try {
    return attrs_from(op, attrs);
  } catch (const InvalidGraph& error) {
    throw InvalidGraph(located(error.parts(), at.node().origin, at.graph->node_name(at.node())));
  }
}

py::object emit(const Self& self, const NodeView& at, const std::string& name, const py::sequence& operands,
                const py::object& attrs, const py::object& qparams) {
  const std::optional<Op> op = parse_op(name);
  if (!op) throw refusal("unknown operator", "a name that tosaic ops lists", py::str(name));
  return wrapped(self, self->emit(node_of(self, at), *op, attrs_at(at, *op, attrs), values_of(self, operands),
                                  result_qparams(qparams)));
}

void replace(const Self& self, const NodeView& node, const py::object& results) {
  const NodeId id = node_of(self, node);
  if (py::isinstance<NewValue>(results) || py::isinstance<ValueView>(results)) {
    const ValueId result = value_of(self, results);
    self->replace(id, std::span(&result, 1));
  } else if (py::isinstance<py::sequence>(results)) {
    self->replace(id, values_of(self, results));
  } else {
    throw refusal("a node is replaced by values", "a value or a sequence of values", results);
  }
}

}  // namespace

void bind_rewriter(py::module_& m) {
  py::class_<NewValue>(m, "NewValue", "A value of the graph that a Rewriter makes.")
      .def_property_readonly(
          "dtype", [](const NewValue& v) { return std::string(to_string(v.type.dtype)); },
          "``f32``, ``i8`` ...")
      .def_property_readonly(
          "shape", [](const NewValue& v) { return to_tuple(v.type.shape); }, "Extents.")
      .def_property_readonly(
          "qparams", [](const NewValue& v) { return qparams_to_python(v.type.qparams); },
          "Which numbers its integers represent, or None.")
      .def("__repr__",
           [](const NewValue& v) { return "<NewValue %" + v.name + ": " + to_string(v.type) + ">"; });
  py::class_<CheckedRewriter, Self>(m, "Rewriter")
      .def(py::init(
               [](const std::shared_ptr<Graph>& graph) { return std::make_shared<CheckedRewriter>(graph); }),
           py::arg("graph").none(false))
      .def_property_readonly("source",
                             [](const Self& self) { return std::const_pointer_cast<Graph>(self->source()); })
      .def(
          "copy", [](const Self& self, const NodeView& node) { self->copy(node_of(self, node)); },
          py::arg("node"))
      .def("replace", &replace, py::arg("node"), py::arg("results"))
      .def("emit", &emit, py::arg("at"), py::arg("op"), py::arg("operands"), py::arg("attrs") = py::none(),
           py::kw_only(), py::arg("qparams") = py::none())
      .def(
          "constant",
          [](const Self& self, const NodeView& at, const std::shared_ptr<Constant>& constant,
             const py::object& qparams) {
            return NewValue(self, self->constant(node_of(self, at), constant, qparams_from(qparams)));
          },
          py::arg("at"), py::arg("constant").none(false), py::kw_only(), py::arg("qparams") = py::none())
      .def("finish", [](const Self& self) -> std::shared_ptr<Graph> {
        std::optional<Graph> made = self->finish();
        return made ? std::make_shared<Graph>(std::move(*made)) : nullptr;
      });
}

}  // namespace tosaic::python
