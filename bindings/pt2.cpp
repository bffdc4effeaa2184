// Bindings of .pt2 files: values of JSON as Python objects, and the nodes of a graph as objects with the
// attributes of torch.fx.Node, of the classes that the caller passes.
#include <pybind11/stl.h>

#include <algorithm>
#include <deque>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bind.h"
#include "slotted.h"
#include "tosaic/ir/graph_builder.h"
#include "tosaic/ir/print.h"
#include "tosaic/pt2/fields.h"
#include "tosaic/pt2/input_specs.h"
#include "tosaic/pt2/json.h"
#include "tosaic/pt2/nodes.h"
#include "tosaic/pt2/scalar_types.h"
#include "tosaic/pt2/weights.h"
#include "tosaic/pt2/zip_index.h"

namespace tosaic::python {
namespace {

using pt2::Argument;

// A value of a document, which keeps the document and its text alive.
struct JsonPart {
  std::shared_ptr<const pt2::JsonDocument> document;
  py::buffer text;
  pt2::Json value;
};

JsonPart read_json(py::buffer text, const std::string& what) {
  const py::buffer_info bytes = text.request();
  const std::string_view view(static_cast<const char*>(bytes.ptr), static_cast<std::size_t>(bytes.size));
  auto document = std::make_shared<const pt2::JsonDocument>(view, what);
  const pt2::Json root = document->root();
  return {std::move(document), std::move(text), root};
}

JsonPart part_of(const JsonPart& part, const std::string& what, const py::args& keys) {
  pt2::Json value = part.value;
  pt2::read_part([&] { return what; },
                 [&] {
                   for (const py::handle key : keys) value = pt2::entry(value, key.cast<std::string>());
                 });
  return {part.document, part.text, value};
}

py::object stolen(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

py::object to_python(std::string_view text) {
  return stolen(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr));
}

py::object to_python(pt2::Json value) {
  switch (value.kind()) {
    case pt2::JsonKind::kNull:
      return py::none();
    case pt2::JsonKind::kBool:
      return py::bool_(value.truth());
    case pt2::JsonKind::kInteger:
      return py::int_(value.integer());
    case pt2::JsonKind::kFloat:
      return py::float_(value.number());
    case pt2::JsonKind::kLongInteger:
      return stolen(PyLong_FromString(std::string(value.raw()).c_str(), nullptr, 10));
    case pt2::JsonKind::kString:
      return value.has_escapes() ? to_python(std::string_view(value.decoded())) : to_python(value.raw());
    case pt2::JsonKind::kArray: {
      py::list list(value.size());
      std::size_t i = 0;
      pt2::for_each_item(value, [&](pt2::Json each) { list[i++] = to_python(each); });
      return list;
    }
    case pt2::JsonKind::kObject: {
      py::dict dict;
      pt2::for_each_entry(value,
                          [&](pt2::Json key, pt2::Json held) { dict[to_python(key)] = to_python(held); });
      return dict;
    }
  }
  return py::none();
}

// The classes and tables of tosaic.pt2 of which the nodes are made.
struct Classes {
  SlottedClass<7> node;
  SlottedClass<6> tensor;
  py::object graph, symbolic, device, named, getitem;
  py::dict dtypes, memory_formats, layouts;

  explicit Classes(const py::object& from)
      : node(from.attr("node"), {"op", "name", "target", "args", "kwargs", "meta", "users"}),
        tensor(from.attr("tensor"), {"dtype", "shape", "_strides", "offset", "device", "layout"}),
        graph(from.attr("graph")),
        symbolic(from.attr("symbolic")),
        device(from.attr("device")),
        named(from.attr("named")),
        getitem(from.attr("getitem")),
        dtypes(from.attr("dtypes")),
        memory_formats(from.attr("memory_formats")),
        layouts(from.attr("layouts")) {}
};

py::object symbolic(const pt2::Symbolic& value, const Classes& classes) {
  static constexpr std::string_view kKinds[] = {"int", "float", "bool"};
  return classes.symbolic(to_python(value.expression),
                          to_python(kKinds[static_cast<std::size_t>(value.kind)]));
}

py::object size(const pt2::Size& value, const Classes& classes) {
  const auto* const number = std::get_if<std::int64_t>(&value);
  return number != nullptr ? py::int_(*number) : symbolic(std::get<pt2::Symbolic>(value), classes);
}

py::object sizes(const std::vector<pt2::Size>& values, const Classes& classes) {
  py::tuple made(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), size(values[i], classes).release().ptr());
  return made;
}

py::object tensor(const pt2::TensorMeta& value, const Classes& classes) {
  py::object device =
      value.device == "cpu" ? py::reinterpret_borrow<py::object>(interned("cpu")) : to_python(value.device);
  return classes.tensor(classes.dtypes[py::int_(value.dtype)].cast<py::object>(), sizes(value.sizes, classes),
                        sizes(value.strides, classes), size(value.offset, classes), std::move(device),
                        py::int_(value.layout));
}

// Makes the Python objects of a program's graphs.
class Maker {
 public:
  Maker(const pt2::ProgramNodes& program, const Classes& classes) : program_(program), classes_(classes) {
    modules_.resize(program.modules);
    tensors_.resize(program.tensors.size());
    metas_.resize(program.tensors.size());
    for (const pt2::ModuleStack& stack : program.stacks) stacks_.push_back(stack_of(stack));
  }

  // The module stacks of the nodes of a graph, each once, in the order of the nodes.
  [[nodiscard]] py::list stacks_of(const pt2::GraphNodes& graph) const {
    py::list used;
    std::vector<bool> known(stacks_.size());
    for (const pt2::Node& node : graph.nodes) {
      if (!node.modules || known[*node.modules]) continue;
      known[*node.modules] = true;
      used.append(stacks_[*node.modules]);
    }
    return used;
  }

  py::list nodes_of(const pt2::GraphNodes& graph) {
    std::vector<py::object> nodes;
    std::vector<Users> users(graph.nodes.size());
    nodes.reserve(graph.nodes.size());
    for (const pt2::Node& node : graph.nodes)
      for (const std::uint32_t input : node.inputs) ++users[input].left;
    for (std::size_t i = 0; i < users.size(); ++i) {
      users[i].tuple = users[i].left == 0 ? nothing_ : py::tuple(users[i].left);
      const pt2::Node& node = graph.nodes[i];
      nodes.push_back(object_of(node, nodes, users[i].tuple));
      for (const std::uint32_t input : node.inputs) users[input].add(nodes.back());
    }
    py::list list(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i)
      PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), nodes[i].release().ptr());
    return list;
  }

 private:
  // The users of a node, from the first to the last.
  struct Users {
    py::tuple tuple = py::tuple();
    std::size_t left = 0;  // users that are still to be made

    void add(const py::object& user) {
      const std::size_t position = tuple.size() - left--;
      PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(position), user.inc_ref().ptr());
    }
  };

  py::object object_of(const pt2::Node& node, const std::vector<py::object>& nodes, const py::object& users) {
    py::object name = to_python(node.name);
    py::object target = target_of(node, name);
    py::tuple args = node.args.empty() ? nothing_ : py::tuple(node.args.size());
    for (std::size_t i = 0; i < node.args.size(); ++i)
      PyTuple_SET_ITEM(args.ptr(), static_cast<Py_ssize_t>(i), value_of(node.args[i], nodes).release().ptr());
    py::dict kwargs = node.kwargs.empty() ? no_keywords_ : py::dict();
    for (const auto& [key, value] : node.kwargs) kwargs[to_python(key)] = value_of(value, nodes);
    return classes_.node(op_of(node.kind), std::move(name), std::move(target), std::move(args),
                         std::move(kwargs), meta_of(node, nodes), users);
  }

  py::object op_of(pt2::NodeKind kind) const {
    switch (kind) {
      case pt2::NodeKind::kPlaceholder:
        return placeholder_;
      case pt2::NodeKind::kAttribute:
        return attribute_;
      case pt2::NodeKind::kOutput:
        return output_;
      case pt2::NodeKind::kCall:
      case pt2::NodeKind::kGetItem:
        break;
    }
    return call_;
  }

  py::object target_of(const pt2::Node& node, const py::object& name) {
    if (node.kind == pt2::NodeKind::kGetItem) return classes_.getitem;
    if (node.kind != pt2::NodeKind::kCall) return name;
    py::object& known = targets_[node.target];
    if (!known) known = to_python(node.target);
    return known;
  }

  py::object meta_of(const pt2::Node& node, const std::vector<py::object>& nodes) {
    const auto* const type = node.kind == pt2::NodeKind::kPlaceholder && node.recorded
                                 ? std::get_if<pt2::TensorRef>(&node.recorded->value)
                                 : nullptr;
    if (type != nullptr && metas_[type->index]) return metas_[type->index];
    py::dict meta;
    if (node.kind == pt2::NodeKind::kCall || node.kind == pt2::NodeKind::kGetItem)
      meta[module_stack_] = node.modules ? stacks_[*node.modules] : no_modules_;
    if (node.stack_trace) meta[stack_trace_] = trace_of(*node.stack_trace);
    if (node.recorded) meta[recorded_] = value_of(*node.recorded, nodes);
    if (type != nullptr) metas_[type->index] = meta;
    return meta;
  }

  // Nodes that have the same trace text in the program share one Python string.
  py::object trace_of(std::string_view trace) {
    py::object& known = traces_[trace.data()];
    if (!known) known = to_python(trace);
    return known;
  }

  // Stacks share the objects of a module.
  py::object stack_of(const pt2::ModuleStack& stack) {
    py::dict modules;
    for (const pt2::Module& module : stack) {
      auto& [key, value] = modules_[module.index];
      if (!key) {
        key = to_python(module.key);
        value = py::make_tuple(to_python(module.path), to_python(module.type));
      }
      if (PyDict_SetItem(modules.ptr(), key.ptr(), value.ptr()) != 0) throw py::error_already_set();
    }
    return modules;
  }

  py::object value_of(const Argument& argument, const std::vector<py::object>& nodes) {
    return std::visit([&](const auto& value) { return one(value, nodes); }, argument.value);
  }

  using Nodes = std::vector<py::object>;
  py::object one(std::monostate, const Nodes&) { return py::none(); }
  py::object one(bool value, const Nodes&) { return py::bool_(value); }
  py::object one(std::int64_t value, const Nodes&) { return py::int_(value); }
  py::object one(double value, const Nodes&) { return py::float_(value); }
  py::object one(std::complex<double> value, const Nodes&) {
    return stolen(PyComplex_FromDoubles(value.real(), value.imag()));
  }
  py::object one(std::string_view value, const Nodes&) { return to_python(value); }
  py::object one(pt2::NodeRef value, const Nodes& nodes) { return nodes[value.index]; }
  py::object one(const pt2::Symbolic& value, const Nodes&) { return symbolic(value, classes_); }
  py::object one(pt2::DtypeNumber value, const Nodes&) { return classes_.dtypes[py::int_(value.number)]; }
  py::object one(pt2::MemoryFormatNumber value, const Nodes&) {
    return classes_.memory_formats[py::int_(value.number)];
  }
  py::object one(pt2::LayoutNumber value, const Nodes&) { return classes_.layouts[py::int_(value.number)]; }
  py::object one(const pt2::OperatorName& value, const Nodes&) {
    return classes_.named(to_python(value.name));
  }
  py::object one(const pt2::Device& value, const Nodes&) {
    return classes_.device(to_python(value.type),
                           value.index ? py::object(py::int_(*value.index)) : py::none());
  }
  py::object one(const pt2::Items& values, const Nodes& nodes) {
    py::list list(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) list[i] = value_of(values[i], nodes);
    return list;
  }
  py::object one(const pt2::Keyed& values, const Nodes& nodes) {
    py::dict dict;
    for (const auto& [key, value] : values) dict[to_python(key)] = value_of(value, nodes);
    return dict;
  }
  py::object one(pt2::TensorRef value, const Nodes&) {
    py::object& known = tensors_[value.index];
    if (!known) known = tensor(program_.tensors[value.index], classes_);
    return known;
  }
  py::object one(pt2::GraphRef value, const Nodes&) {
    return classes_.graph(nodes_of(program_.graphs[value.index]));
  }

  const pt2::ProgramNodes& program_;
  const Classes& classes_;
  std::vector<std::pair<py::object, py::object>> modules_;  // by the module's index
  std::vector<py::object> stacks_;
  std::vector<py::object> tensors_, metas_;  // by the position of a type; metas_: of placeholders
  std::unordered_map<std::string_view, py::object> targets_;
  std::unordered_map<const char*, py::object> traces_;  // by their place in the text
  py::str placeholder_{"placeholder"}, call_{"call_function"}, attribute_{"get_attr"}, output_{"output"};
  py::str module_stack_{"nn_module_stack"}, stack_trace_{"stack_trace"}, recorded_{"val"};
  py::dict no_modules_, no_keywords_;
  py::tuple nothing_;
};

py::tuple nodes_of(const JsonPart& graph, const std::vector<std::string>& constant_names,
                   const py::function& parameter_names, const py::object& classes) {
  const auto names = [&](std::string_view target) {
    return parameter_names(to_python(target)).cast<std::vector<std::string>>();
  };
  const pt2::ProgramNodes program = pt2::read_nodes(graph.value, constant_names, names);
  const Classes made(classes);
  Maker maker(program, made);
  const pt2::GraphNodes& outermost = program.graphs.front();
  return py::make_tuple(maker.nodes_of(outermost), maker.stacks_of(outermost));
}

// The entries of a mapped file, which they keep alive.
struct FileIndex {
  py::buffer file;
  pt2::ZipIndex entries;
};

FileIndex index_of(py::buffer file) {
  const py::buffer_info bytes = file.request();
  const std::span view(static_cast<const std::byte*>(bytes.ptr), static_cast<std::size_t>(bytes.size));
  return {std::move(file), pt2::ZipIndex(view)};
}

py::tuple place_of(const FileIndex& index, const std::string& name) {
  const pt2::ZipEntry& entry = index.entries.at(name);
  const std::span<const std::byte> packed = index.entries.packed_bytes(entry);
  return py::make_tuple(packed.data() - index.entries.file().data(), packed.size(), entry.size, entry.method);
}

// Lists of weights, each with its folder and the document that it is in.
class Weights {
 public:
  Weights(std::shared_ptr<FileIndex> index, const py::object& changed, const py::object& classes)
      : index_(std::move(index)), views_(owned(index_->file), callback(changed)), classes_(classes) {}

  void add(const std::string& folder, const JsonPart& document, const std::string& what) {
    lists_.push_back({folder, document, pt2::WeightList(document.value, what)});
  }

  py::object find(const std::string& name) {
    for (List& list : lists_)
      if (const std::optional<pt2::Weight> found = list.weights.find(name))
        return py::make_tuple(list.folder + std::string(found->path),
                              found->is_pickled ? py::none() : tensor(found->meta, classes_));
    return py::none();
  }

  // Adds views of weights to a graph, and their values to `env`, until the first weight that has no view.
  // Returns how many it added.
  std::size_t add_views(GraphBuilder& builder, const py::dict& env, const py::object& value_type,
                        const py::list& nodes, const py::list& specs) {
    const SlottedClass<4> value(value_type, {"id", "dtype", "shape", "held"});
    const std::size_t count = std::min(nodes.size(), specs.size());
    for (std::size_t i = 0; i < count; ++i) {
      const py::tuple spec = specs[i];
      const ConstantRef constant = view(spec[1].cast<std::string_view>(),
                                        parse_constant_kind(spec[0].cast<std::string_view>()).value());
      if (constant == nullptr) return i;
      const py::int_ id(builder.add_constant(constant).index());
      const py::object made =
          value(id, py::int_(static_cast<int>(constant->dtype)), to_tuple(constant->shape), id);
      if (PyDict_SetItem(env.ptr(), PyList_GET_ITEM(nodes.ptr(), static_cast<Py_ssize_t>(i)), made.ptr()) !=
          0)
        throw py::error_already_set();
    }
    return count;
  }

 private:
  struct List {
    std::string folder;
    JsonPart document;
    pt2::WeightList weights;
  };

  // The constant over a weight. Null for one that is not known, or has to be copied or refused.
  ConstantRef view(std::string_view name, ConstantKind kind) {
    for (List& list : lists_)
      if (const std::optional<pt2::Weight> found = list.weights.find(name))
        return found->is_pickled ? nullptr : view(name, kind, *found, list.folder);
    return nullptr;
  }

  ConstantRef view(std::string_view name, ConstantKind kind, const pt2::Weight& weight,
                   const std::string& folder) {
    const pt2::ZipEntry& entry = index_->entries.at(folder + std::string(weight.path));
    if (!entry.is_stored()) return nullptr;
    return views_.view(name, kind, weight.meta, index_->entries.stored_bytes(entry));
  }

  std::shared_ptr<FileIndex> index_;
  pt2::WeightViews views_;
  Classes classes_;
  std::deque<List> lists_;
};

// A named tuple of three items.
py::object named_tuple(const py::type& type, const py::object& a, const py::object& b, const py::object& c) {
  const py::tuple given = py::make_tuple(py::make_tuple(a, b, c));
  return stolen(PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(type.ptr()), given.ptr(), nullptr));
}

py::tuple input_specs_of(const JsonPart& signature, const py::type& type, const py::dict& kinds) {
  pt2::Texts texts;
  const std::vector<pt2::InputSpec> found = pt2::read_input_specs(signature.value, texts);
  py::list specs(found.size());
  std::vector<std::string_view> constants(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool is_constant = found[i].kind == pt2::kConstantInput;
    if (is_constant) constants[i] = found[i].name;
    specs[i] = named_tuple(type, kinds[to_python(found[i].kind)],
                           to_python(is_constant ? std::string_view() : found[i].name), py::none());
  }
  return py::make_tuple(std::move(specs), py::cast(constants));
}

// Converts the items of a list one after another, when they are asked for.
struct JsonItems {
  JsonPart list;
  pt2::Json next = list.value.first();
  std::size_t left = list.value.size();

  py::object take() {
    if (left == 0) throw py::stop_iteration();
    --left;
    return to_python(std::exchange(next, next.next()));
  }
};

py::object items_of(const JsonPart& part, const std::string& key) {
  const bool is_object = part.value.kind() == pt2::JsonKind::kObject;
  const std::optional<pt2::Json> found = is_object ? part.value.find(key) : std::nullopt;
  if (!found || found->kind() != pt2::JsonKind::kArray) return found ? to_python(*found) : py::none();
  return py::cast(JsonItems{{part.document, part.text, *found}});
}

}  // namespace

void bind_pt2(py::module_& m) {
  py::class_<JsonPart>(m, "Json", "A value of JSON text, which was checked when it was read.")
      .def(py::init(&read_json), py::arg("text"), py::arg("what"),
           "Reads bytes of UTF-8. `what` names the text in errors.")
      .def("part", &part_of, py::arg("what"),
           "The value under these keys. If there is none, InvalidGraph says that `what` is damaged.")
      .def(
          "get",
          [](const JsonPart& part, const std::string& key) {
            const bool is_object = part.value.kind() == pt2::JsonKind::kObject;
            const std::optional<pt2::Json> found = is_object ? part.value.find(key) : std::nullopt;
            return found ? to_python(*found) : py::none();
          },
          py::arg("key"), "The value under a key, as objects of Python; None if there is none.")
      .def("items", &items_of, py::arg("key"),
           "The items of the list under a key, which are converted one by one; for anything else as `get`.")
      .def("value", [](const JsonPart& part) { return to_python(part.value); }, "As objects of Python.");
  py::class_<JsonItems>(m, "JsonItems", "Iterates over the items of a list.")
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", &JsonItems::take);
  m.def(
      "pt2_nodes", &nodes_of, py::arg("graph"), py::arg("constant_names"), py::arg("parameter_names"),
      py::arg("classes"),
      "The nodes of a graph, of the classes in `classes` (tosaic.pt2.nodes), and the distinct module stacks "
      "of its nodes. `parameter_names(target)` has the parameters of an operator, which files of older "
      "versions of torch need.");
  m.def("pt2_input_specs", &input_specs_of, py::arg("signature"), py::arg("spec_type"), py::arg("kinds"),
        "For each input a named tuple of the class `spec_type`: its kind, as `kinds` calls it, the name of a "
        "weight, and None. Then for each input the name of a constant input, or ''.");
  py::class_<FileIndex, std::shared_ptr<FileIndex>>(m, "Pt2Index", "The entries of a mapped .pt2 file.")
      .def(py::init(&index_of), py::arg("file"))
      .def("place", &place_of, py::arg("name"),
           "Where the bytes of an entry begin in the file, their number, that of what is unpacked, and the "
           "method.")
      .def("__contains__",
           [](const FileIndex& index, const std::string& name) { return index.entries.has(name); })
      .def(
          "names",
          [](const FileIndex& index, const std::string& folder) {
            py::list names;
            for (const pt2::ZipEntry& entry : index.entries.entries())
              if (entry.name.starts_with(folder)) names.append(to_python(entry.name));
            return names;
          },
          py::arg("folder"), "The paths of the entries in a folder.");
  py::class_<Weights>(m, "Pt2Weights", "The weights of a mapped .pt2 file.")
      .def(py::init<std::shared_ptr<FileIndex>, const py::object&, const py::object&>(), py::arg("index"),
           py::arg("changed"), py::arg("classes"),
           "`changed()` returns a message if the file was written since it was opened, else ''.")
      .def("add", &Weights::add, py::arg("folder"), py::arg("document"), py::arg("what"),
           "Adds a list of weights: the folder of their storages, and the JSON of the entry `what`.")
      .def("find", &Weights::find, py::arg("name"),
           "The path of the storage of a weight and its type, which is None if it is pickled. None if there "
           "is "
           "no such weight.")
      .def("add_views", &Weights::add_views, py::arg("builder"), py::arg("env"), py::arg("value_type"),
           py::arg("nodes"), py::arg("specs"),
           "Adds a constant over the mapped memory of each weight, and sets `env[node]` to a `value_type` "
           "(Ref) "
           "that holds the constant's value. `specs` has kind and name of each weight. Stops at the first "
           "weight "
           "that has to be copied or refused; returns the number of weights before it.");
  py::list types;
  for (const pt2::ScalarType& each : pt2::scalar_types()) {
    const auto code = [](const std::optional<DType>& dtype) { return dtype ? static_cast<int>(*dtype) : -1; };
    types.append(py::make_tuple(each.number, each.name, code(each.dtype), code(each.part), each.size));
  }
  m.attr("PT2_DTYPES") = py::tuple(types);
}

}  // namespace tosaic::python
