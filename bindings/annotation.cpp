// Bindings of quant/annotation. In Python, slots and specs are the dataclasses of tosaic.annotation.specs,
// which refer to nodes by name.
#include "annotation.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>

namespace tosaic::python {
namespace {

using quant::AnnotationPlan;
using quant::CallGraph;
using quant::NodeIndex;
using quant::QSpec;
using quant::Slot;
using SharedCallGraph = std::shared_ptr<CallGraph>;
using Names = std::unordered_map<std::string, std::string>;

// The classes of tosaic.annotation.specs, and its names of dtypes.
struct SpecModule {
  py::object edge, output, observed, fixed, shared, derived, foreign, float_type, float_value, observer;
  Names torch_names, graph_names;
};

const SpecModule& specs() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<SpecModule> storage;
  return storage
      .call_once_and_store_result([] {
        const py::module_ m = py::module_::import("tosaic.annotation.specs");
        return SpecModule{m.attr("Edge"),
                          m.attr("Output"),
                          m.attr("Observed"),
                          m.attr("Fixed"),
                          m.attr("Shared"),
                          m.attr("Derived"),
                          m.attr("Foreign"),
                          m.attr("Float"),
                          m.attr("FLOAT"),
                          m.attr("Observer"),
                          m.attr("TORCH_NAMES").cast<Names>(),
                          m.attr("GRAPH_NAMES").cast<Names>()};
      })
      .get_stored();
}

std::string renamed(const Names& names, std::string name) {
  const auto found = names.find(name);
  return found == names.end() ? std::move(name) : found->second;
}

InvalidGraph refusal(const char* where, const char* what, const char* expected, py::handle got) {
  return InvalidGraph(
      {.where = where, .what = what, .expected = expected, .got = py::repr(got).cast<std::string>()});
}

bool is(py::handle object, const py::object& type) { return py::isinstance(object, type); }

// ---- slots ----

Slot slot_from(const CallGraph& graph, py::handle object) {
  const SpecModule& m = specs();
  const auto node = [&](const char* field) {
    return graph.at(object.attr(field).cast<std::string_view>(), "plan");
  };
  if (is(object, m.output)) return Slot::output(node("node"));
  if (is(object, m.edge)) return Slot::edge(node("producer"), node("user"));
  throw refusal("plan", "a slot is wrong", "Edge(producer, user) or Output(node)", object);
}

py::object slot_to_python(const CallGraph& graph, Slot slot) {
  if (!slot.is_edge()) return specs().output(graph.node(slot.node).name);
  return specs().edge(graph.node(slot.producer).name, graph.node(slot.node).name);
}

// ---- specs ----

std::string field_of(py::handle value) {
  if (value.is_none()) return quant::field_text(std::optional<std::int64_t>());
  if (py::isinstance<py::bool_>(value)) return quant::field_text(value.cast<bool>());
  if (py::isinstance<py::float_>(value)) return quant::field_text(value.cast<double>());
  if (py::isinstance<py::int_>(value)) return quant::field_text(std::optional(value.cast<std::int64_t>()));
  return py::str(value).cast<std::string>();
}

quant::ForeignSpec foreign_from(PlanObject& plan, py::handle object) {
  // The key is the address of the foreign object. The plan stores the dataclass that wraps the object.
  const py::object inner = object.attr("object");
  const auto [found, added] =
      plan.foreign_ids.emplace(inner.ptr(), static_cast<std::uint32_t>(plan.objects.size()));
  if (added) plan.objects.push_back(py::reinterpret_borrow<py::object>(object));
  quant::ForeignSpec spec{.object = quant::ObjectId(found->second)};
  for (const auto& [name, value] : py::dict(object.attr("fields"))) {
    auto field = name.cast<std::string>();
    std::string text = field == "scale" ? quant::field_text(value.cast<double>()) : field_of(value);
    if (field == "dtype") text = renamed(specs().graph_names, std::move(text));
    spec.fields.emplace_back(std::move(field), std::move(text));
  }
  return spec;
}

template <class Spec>
void read_common(Spec& spec, py::handle object) {
  spec.dtype = renamed(specs().graph_names, object.attr("dtype").cast<std::string>());
  spec.qmin = object.attr("qmin").cast<std::optional<std::int64_t>>();
  spec.qmax = object.attr("qmax").cast<std::optional<std::int64_t>>();
  spec.scheme = object.attr("scheme").cast<std::optional<std::string>>();
  spec.dynamic = object.attr("dynamic").cast<bool>();
}

QSpec spec_from(PlanObject& plan, py::handle object) {
  const SpecModule& m = specs();
  const CallGraph& graph = plan.plan.graph();
  if (is(object, m.observed)) {
    quant::ObservedSpec spec;
    read_common(spec, object);
    spec.axis = object.attr("axis").cast<std::optional<std::int64_t>>();
    spec.observer = plan.intern(object.attr("observer"));
    spec.group_size = object.attr("group_size").cast<std::optional<std::int64_t>>();
    return spec;
  }
  if (is(object, m.fixed)) {
    quant::FixedSpec spec;
    read_common(spec, object);
    spec.scale = object.attr("scale").cast<double>();
    spec.zero_point = object.attr("zero_point").cast<std::int64_t>();
    return spec;
  }
  if (is(object, m.shared)) return quant::SharedSpec{slot_from(graph, object.attr("slot"))};
  if (is(object, m.derived)) {
    quant::DerivedSpec spec;
    read_common(spec, object);
    spec.axis = object.attr("axis").cast<std::optional<std::int64_t>>();
    spec.function = plan.intern(object.attr("function"));
    for (const py::handle slot : object.attr("slots")) spec.from.push_back(slot_from(graph, slot));
    return spec;
  }
  if (is(object, m.float_type)) return quant::FloatSpec{};
  if (is(object, m.foreign)) return foreign_from(plan, object);
  throw refusal("plan", "a spec is wrong", "Observed, Fixed, Shared, Derived, Foreign or FLOAT", object);
}

struct SpecToPython {
  const PlanObject& plan;

  template <class Spec>
  [[nodiscard]] py::dict common(const Spec& spec) const {
    return py::dict(py::arg("dtype") = renamed(specs().torch_names, spec.dtype), py::arg("qmin") = spec.qmin,
                    py::arg("qmax") = spec.qmax, py::arg("scheme") = spec.scheme,
                    py::arg("dynamic") = spec.dynamic);
  }
  py::object operator()(const quant::ObservedSpec& spec) const {
    return specs().observed(py::arg("axis") = spec.axis, py::arg("observer") = plan.object(spec.observer),
                            py::arg("group_size") = spec.group_size, **common(spec));
  }
  py::object operator()(const quant::FixedSpec& spec) const {
    return specs().fixed(py::arg("scale") = spec.scale, py::arg("zero_point") = spec.zero_point,
                         **common(spec));
  }
  py::object operator()(const quant::SharedSpec& spec) const {
    return specs().shared(slot_to_python(plan.plan.graph(), spec.with));
  }
  py::object operator()(const quant::DerivedSpec& spec) const {
    py::list from;
    for (const Slot slot : spec.from) from.append(slot_to_python(plan.plan.graph(), slot));
    return specs().derived(py::arg("slots") = py::tuple(from), py::arg("axis") = spec.axis,
                           py::arg("function") = plan.object(spec.function), **common(spec));
  }
  py::object operator()(const quant::FloatSpec&) const { return specs().float_value; }
  py::object operator()(const quant::ForeignSpec& spec) const { return plan.object(spec.object); }
};

py::object spec_to_python(const PlanObject& plan, const QSpec& spec) {
  return std::visit(SpecToPython{plan}, spec);
}

// ---- graphs ----

NodeIndex node_of(const std::unordered_map<std::string, NodeIndex>& nodes, py::handle name,
                  const std::string& reader) {
  const auto found = nodes.find(name.cast<std::string>());
  if (found != nodes.end()) return found->second;
  throw InvalidGraph({.where = "CallGraph",
                      .what = "'" + reader + "' names a node that the graph does not have",
                      .expected = {},
                      .got = py::repr(name).cast<std::string>()});
}

quant::CallNode call_from(py::handle object) {
  quant::CallNode node;
  node.name = object.attr("name").cast<std::string>();
  const auto kind = quant::parse_call_kind(object.attr("kind").cast<std::string_view>());
  if (!kind)
    throw refusal("CallGraph", "the kind of a node is wrong", "'placeholder', 'get_attr', 'call' or 'output'",
                  object.attr("kind"));
  node.kind = *kind;
  node.target = object.attr("target").cast<std::string>();
  node.source = object.attr("source").cast<std::string>();
  node.dtype = object.attr("dtype").cast<std::string>();
  node.shape = object.attr("shape").cast<std::optional<std::vector<std::int64_t>>>();
  for (const py::handle scope : object.attr("modules")) {
    const auto pair = py::reinterpret_borrow<py::sequence>(scope);
    node.modules.push_back({pair[0].cast<std::string>(), pair[1].cast<std::string>()});
  }
  return node;
}

std::vector<quant::GraphPort> ports_from(const py::sequence& objects,
                                         const std::unordered_map<std::string, NodeIndex>& nodes) {
  std::vector<quant::GraphPort> ports;
  for (const py::handle object : objects) {
    quant::GraphPort& port = ports.emplace_back();
    port.path = object.attr("path").cast<std::string>();
    const py::object node = object.attr("node");
    if (!node.is_none()) port.node = node_of(nodes, node, port.path);
  }
  return ports;
}

SharedCallGraph call_graph_from(const py::sequence& calls, const py::sequence& inputs,
                                const py::sequence& outputs) {
  std::vector<quant::CallNode> nodes;
  nodes.reserve(calls.size());
  std::unordered_map<std::string, NodeIndex> known;
  for (const py::handle object : calls) {
    quant::CallNode node = call_from(object);
    for (const py::handle operand : object.attr("operands"))
      node.operands.push_back({operand.attr("path").cast<std::string>(),
                               node_of(known, operand.attr("producer"), node.name),
                               operand.attr("name").cast<std::string>()});
    known.emplace(node.name, NodeIndex(static_cast<std::uint32_t>(nodes.size())));
    nodes.push_back(std::move(node));
  }
  std::size_t n = 0;
  for (const py::handle object : calls) {
    const py::object users = object.attr("users");
    if (!users.is_none())
      for (const py::handle user : users) nodes[n].users.push_back(node_of(known, user, nodes[n].name));
    ++n;
  }
  return std::make_shared<CallGraph>(std::move(nodes), ports_from(inputs, known), ports_from(outputs, known));
}

py::tuple users_in(const CallGraph& graph, const quant::CallNode& node) {
  py::list users;
  for (const NodeIndex user : node.users) users.append(graph.node(user).name);
  return py::tuple(users);
}

// The fields of a tosaic.annotation.Call, with operands as (path, producer, name).
py::dict call_to_python(const CallGraph& graph, const quant::CallNode& node) {
  py::list operands, modules;
  for (const quant::CallOperand& each : node.operands)
    operands.append(py::make_tuple(each.path, graph.node(each.producer).name, each.name));
  for (const quant::ModuleScope& scope : node.modules) modules.append(py::make_tuple(scope.path, scope.type));
  py::object shape = py::none();
  if (node.shape) shape = py::tuple(py::cast(*node.shape));
  return py::dict(py::arg("name") = node.name, py::arg("kind") = quant::to_string(node.kind),
                  py::arg("target") = node.target, py::arg("operands") = py::tuple(operands),
                  py::arg("modules") = py::tuple(modules), py::arg("source") = node.source,
                  py::arg("dtype") = node.dtype, py::arg("shape") = shape,
                  py::arg("users") = users_in(graph, node));
}

py::list ports_to_python(const CallGraph& graph, const std::vector<quant::GraphPort>& ports) {
  py::list out;
  for (const quant::GraphPort& port : ports) {
    out.append(py::make_tuple(port.path, port.node.valid() ? py::object(py::str(graph.node(port.node).name))
                                                           : py::object(py::none())));
  }
  return out;
}

void bind_call_graph(py::module_& m) {
  py::class_<CallGraph, SharedCallGraph>(
      m, "CallGraph", "The nodes of a graph of torch as plain data; see tosaic.annotation.")
      .def(py::init(&call_graph_from), py::arg("nodes"), py::arg("inputs"), py::arg("outputs"))
      .def("__len__", &CallGraph::size)
      .def(
          "call",
          [](const CallGraph& graph, py::object key) {
            const bool named = py::isinstance<py::str>(key);
            if (!named && key.cast<std::size_t>() >= graph.size()) throw py::index_error();
            return call_to_python(graph, named
                                             ? graph.node(graph.at(key.cast<std::string_view>(), "CallGraph"))
                                             : graph.nodes()[key.cast<std::size_t>()]);
          },
          py::arg("key"), "The fields of the node of a name or position.")
      .def("__contains__",
           [](const CallGraph& graph, std::string_view name) { return graph.find(name).valid(); })
      .def_property_readonly("names",
                             [](const CallGraph& graph) {
                               py::list names;
                               for (const quant::CallNode& node : graph.nodes()) names.append(node.name);
                               return py::tuple(names);
                             })
      .def_property_readonly("input_ports",
                             [](const CallGraph& graph) { return ports_to_python(graph, graph.inputs()); })
      .def_property_readonly("output_ports",
                             [](const CallGraph& graph) { return ports_to_python(graph, graph.outputs()); });
}

// ---- plans ----

// The rule of an index that Python holds.
quant::RuleId rule_of(const PlanObject& self, std::uint32_t rule) {
  if (rule >= self.plan.rules().size()) throw py::index_error("no such rule");
  return quant::RuleId(rule);
}

NodeIndex node_in(const PlanObject& self, std::string_view name) {
  return self.plan.graph().at(name, "plan");
}

void set_slot(PlanObject& self, py::handle object, py::handle spec, std::uint32_t rule, bool stale,
              std::string reason) {
  const CallGraph& graph = self.plan.graph();
  const Slot slot = slot_from(graph, object);
  if (!stale && !graph.contains(slot))
    throw InvalidGraph({.where = "plan",
                        .what = "'" + graph.node(slot.node).name + "' does not read '" +
                                graph.node(slot.producer).name + "'",
                        .expected = "an edge of the graph",
                        .got = py::repr(object).cast<std::string>(),
                        .node = graph.node(slot.node).name,
                        .source = graph.node(slot.node).source});
  self.plan.set(slot, spec_from(self, spec), rule_of(self, rule), std::move(reason));
}

py::list entries_of(const PlanObject& self, std::string_view name) {
  const NodeIndex node = node_in(self, name);
  py::list out;
  const auto add = [&](const quant::PlanEntry& entry) {
    out.append(py::make_tuple(slot_to_python(self.plan.graph(), entry.slot), spec_to_python(self, entry.spec),
                              entry.rule.index()));
  };
  for (const quant::PlanEntry& entry : self.plan.edges(node)) add(entry);
  if (const quant::PlanEntry* const output = self.plan.output(node)) add(*output);
  return out;
}

py::list slots_to_python(const PlanObject& self, const std::vector<Slot>& slots) {
  py::list out;
  for (const Slot slot : slots) out.append(slot_to_python(self.plan.graph(), slot));
  return out;
}

py::list history_of(const PlanObject& self, std::size_t first) {
  py::list out;
  const auto& history = self.plan.history();
  for (std::size_t i = first; i < history.size(); ++i) {
    const quant::PlanChange& change = history[i];
    out.append(
        py::make_tuple(slot_to_python(self.plan.graph(), change.slot), spec_to_python(self, change.before),
                       change.set_by.index(),
                       change.after ? spec_to_python(self, *change.after) : py::none().cast<py::object>(),
                       change.changed_by.index(), change.reason));
  }
  return out;
}

py::list conflicts_to_python(const CallGraph& graph, const std::vector<quant::SharingConflict>& conflicts) {
  py::list out;
  for (const quant::SharingConflict& each : conflicts)
    out.append(py::make_tuple(quant::to_string(each.kind), slot_to_python(graph, each.slot),
                              slot_to_python(graph, each.other), quant::describe(graph, each)));
  return out;
}

// Returns ([(members, root, slot that decides or None, its spec or None)], conflicts).
py::tuple groups_of(const PlanObject& self) {
  const CallGraph& graph = self.plan.graph();
  const quant::SharingGroups sharing(self.plan);
  py::list groups;
  for (const quant::SharingGroup& group : sharing.groups()) {
    py::object decides = py::none(), spec = py::none();
    if (group.spec) {
      decides = slot_to_python(graph, *group.spec);
      spec = spec_to_python(self, self.plan.find(*group.spec)->spec);
    }
    groups.append(py::make_tuple(py::tuple(slots_to_python(self, group.members)),
                                 slot_to_python(graph, group.root), decides, spec));
  }
  return py::make_tuple(groups, conflicts_to_python(graph, sharing.conflicts()));
}

py::dict resolution_of(const PlanObject& self) {
  const CallGraph& graph = self.plan.graph();
  const quant::Resolution found = quant::resolve(self.plan);
  py::list slots, requantized, left_float;
  std::unordered_map<Slot, std::pair<py::object, py::object>> decided;  // slot -> slot and spec, in Python
  for (const quant::ResolvedSlot& each : found.slots) {
    std::pair<py::object, py::object> decides = {py::none(), py::none()};
    if (each.decided_by) {
      const auto [known, added] = decided.emplace(*each.decided_by, decides);
      if (added)
        known->second = {slot_to_python(graph, *each.decided_by),
                         spec_to_python(self, self.plan.find(*each.decided_by)->spec)};
      decides = known->second;
    }
    const bool is_own = each.decided_by == each.slot;
    slots.append(py::make_tuple(
        is_own ? decides.first : slot_to_python(graph, each.slot),
        is_own ? decides.second : spec_to_python(self, self.plan.find(each.slot)->spec), decides.second,
        decides.first, each.group, self.plan.rule(each.set_by).name, each.is_stale));
  }
  for (const quant::RequantizedTensor& each : found.requantized)
    requantized.append(py::make_tuple(slot_to_python(graph, each.output), slot_to_python(graph, each.edge)));
  for (const quant::FloatTensor& each : found.left_float) {
    const quant::CallNode& node = graph.node(each.node);
    left_float.append(
        py::make_tuple(node.name, quant::to_string(each.reason),
                       each.rule.valid() ? self.plan.rule(each.rule).name : std::string(), node.target,
                       node.modules.empty() ? std::string() : node.modules.back().path, node.source));
  }
  return py::dict(py::arg("slots") = slots, py::arg("requantized") = requantized,
                  py::arg("left_float") = left_float);
}

// ---- rules ----

// None means float in a rule.
QSpec spec_of_rule(PlanObject& plan, py::handle object) {
  if (object.is_none()) return quant::FloatSpec{};
  return spec_from(plan, object);
}

quant::PortKey key_from(py::handle key) {
  if (py::isinstance<py::str>(key)) return key.cast<std::string>();
  if (py::isinstance<py::int_>(key) && !py::isinstance<py::bool_>(key)) return key.cast<std::int64_t>();
  throw refusal("rule", "an input, output or operand is wrong", "a position or a name", key);
}

quant::PortSpecs port_specs_from(PlanObject& plan, const py::dict& specs) {
  quant::PortSpecs out;
  for (const auto& [key, spec] : specs) out.emplace_back(key_from(key), spec_of_rule(plan, spec));
  return out;
}

quant::Selection selection_from(py::handle object) {
  using Text = std::optional<std::string>;
  return {.name = object.attr("name").cast<Text>(),
          .regex = object.attr("regex").cast<Text>(),
          .module = object.attr("module").cast<Text>(),
          .type = object.attr("type").cast<Text>(),
          .op = object.attr("op").cast<Text>(),
          .nodes = object.attr("nodes").cast<std::optional<std::vector<std::string>>>()};
}

// The rule of a kind from the fields of its dataclass.
quant::Rule rule_from(PlanObject& self, const std::string& kind, const py::dict& fields) {
  if (kind == "inputs") return quant::InputsRule{port_specs_from(self, fields["specs"])};
  if (kind == "outputs") return quant::OutputsRule{port_specs_from(self, fields["specs"])};
  if (kind == "clear") return quant::ClearRule{selection_from(fields["where"])};
  if (kind == "share") {
    quant::ShareRule rule;
    for (const py::handle slot : fields["slots"]) rule.slots.push_back(slot_from(self.plan.graph(), slot));
    return rule;
  }
  if (kind == "exclude") {
    quant::ExcludeFeedingRule rule{.where = selection_from(fields["where"]),
                                   .operand = key_from(fields["operand"])};
    if (!fields["until"].is_none()) rule.until = selection_from(fields["until"]);
    return rule;
  }
  quant::AroundRule rule{.where = selection_from(fields["where"]),
                         .operands = port_specs_from(self, fields["operands"])};
  if (fields.contains("result")) rule.result = spec_of_rule(self, fields["result"]);
  return rule;
}

std::size_t apply_rule(PlanObject& self, const std::string& kind, const py::dict& fields, std::string name,
                       bool allow_unmatched) {
  const quant::Rule rule = rule_from(self, kind, fields);
  const quant::RuleId id = self.plan.add_rule(std::move(name));
  quant::apply(rule, self.plan, id, allow_unmatched);
  return self.plan.rule(id).matches.value_or(0);
}

py::tuple selected(const PlanObject& self, py::handle selection) {
  py::list names;
  for (const NodeIndex node : quant::select(self.plan.graph(), selection_from(selection)))
    names.append(self.plan.graph().node(node).name);
  return py::tuple(names);
}

void bind_plan(py::module_& m) {
  py::class_<PlanObject, std::shared_ptr<PlanObject>>(m, "AnnotationPlan",
                                                      "Slot -> spec, with the rule that set it.")
      .def(py::init([](const SharedCallGraph& graph) { return PlanObject{AnnotationPlan(graph)}; }),
           py::arg("graph").none(false))
      .def("copy", [](const PlanObject& self) { return PlanObject(self); })
      .def_property_readonly(
          "graph",
          [](const PlanObject& self) { return std::const_pointer_cast<CallGraph>(self.plan.shared_graph()); })
      .def(
          "add_rule",
          [](PlanObject& self, std::string name) { return self.plan.add_rule(std::move(name)).index(); },
          py::arg("name"))
      .def_property_readonly("rules",
                             [](const PlanObject& self) {
                               py::list out;
                               for (const quant::RuleRecord& rule : self.plan.rules())
                                 out.append(py::make_tuple(rule.name, rule.matches, rule.notes));
                               return out;
                             })
      .def(
          "record_matches",
          [](PlanObject& self, std::uint32_t rule, std::size_t matches) {
            self.plan.rule(rule_of(self, rule)).matches = matches;
          },
          py::arg("rule"), py::arg("matches"))
      .def("__len__", [](const PlanObject& self) { return self.plan.size(); })
      .def(
          "get",
          [](const PlanObject& self, py::handle slot) -> py::object {
            const quant::PlanEntry* const entry = self.plan.find(slot_from(self.plan.graph(), slot));
            if (entry == nullptr) return py::none();
            return py::make_tuple(spec_to_python(self, entry->spec), entry->rule.index());
          },
          py::arg("slot"), "(spec, rule), or None if the slot has no spec.")
      .def("set", &set_slot, py::arg("slot"), py::arg("spec"), py::arg("rule"), py::arg("stale") = false,
           py::arg("reason") = "")
      .def(
          "erase",
          [](PlanObject& self, py::handle slot, std::uint32_t rule, std::string reason) {
            return self.plan.erase(slot_from(self.plan.graph(), slot), rule_of(self, rule),
                                   std::move(reason));
          },
          py::arg("slot"), py::arg("rule"), py::arg("reason") = "")
      .def(
          "clear",
          [](PlanObject& self, std::string_view node, std::uint32_t rule, std::string reason) {
            self.plan.clear(node_in(self, node), rule_of(self, rule), std::move(reason));
          },
          py::arg("node"), py::arg("rule"), py::arg("reason") = "")
      .def("slots", [](const PlanObject& self) { return slots_to_python(self, self.plan.slots()); })
      .def("entries", &entries_of, py::arg("node"),
           "(slot, spec, rule) of the node's edges, then its output.")
      .def(
          "has_annotation",
          [](const PlanObject& self, std::string_view node) {
            return self.plan.has_annotation(node_in(self, node));
          },
          py::arg("node"))
      .def(
          "flags",
          [](const PlanObject& self, std::string_view name) {
            const NodeIndex node = node_in(self, name);
            return py::make_tuple(self.plan.annotated(node), self.plan.allow_implicit_sharing(node));
          },
          py::arg("node"), "(annotated, allow_implicit_sharing).")
      .def(
          "set_flags",
          [](PlanObject& self, std::string_view name, std::optional<bool> annotated,
             std::optional<bool> allow_implicit_sharing) {
            const NodeIndex node = node_in(self, name);
            if (annotated) self.plan.set_annotated(node, *annotated);
            if (allow_implicit_sharing) self.plan.set_allow_implicit_sharing(node, *allow_implicit_sharing);
          },
          py::arg("node"), py::arg("annotated") = py::none(), py::arg("allow_implicit_sharing") = py::none())
      .def("resolve", &resolution_of)
      .def("apply", &apply_rule, py::arg("kind"), py::arg("fields"), py::arg("name"),
           py::arg("allow_unmatched") = false,
           "Applies a rule of tosaic.annotation.rules; returns its matches.")
      .def("select", &selected, py::arg("selection"))
      .def(
          "explain_empty",
          [](const PlanObject& self, py::handle selection) {
            return quant::explain_empty(self.plan.graph(), selection_from(selection));
          },
          py::arg("selection"), "Why a selection selects no node.")
      .def(
          "refer_to_first",
          [](PlanObject& self, std::uint32_t rule) {
            quant::refer_to_first(self.plan, {}, rule_of(self, rule));
          },
          py::arg("rule"))
      .def_property_readonly("edits", [](const PlanObject& self) { return self.plan.edits(); })
      .def("groups", &groups_of, "([(members, root, slot that decides, its spec)], conflicts).")
      .def("history", &history_of, py::arg("first") = 0);
}

}  // namespace

py::object slot_object(const PlanObject& plan, Slot slot) { return slot_to_python(plan.plan.graph(), slot); }

quant::ObjectId PlanObject::intern(const py::object& object) {
  if (object.is_none()) return {};
  py::object known = object;
  if (py::isinstance(object, specs().observer)) known = observers.attr("setdefault")(object, object);
  const auto [found, added] = ids.emplace(known.ptr(), static_cast<std::uint32_t>(objects.size()));
  if (added) objects.push_back(known);
  return quant::ObjectId(found->second);
}

py::object PlanObject::object(quant::ObjectId id) const {
  return id.valid() ? objects[id.index()] : py::none().cast<py::object>();
}

void bind_annotation(py::module_& m) {
  bind_call_graph(m);
  bind_plan(m);
}

}  // namespace tosaic::python
