#include "tosaic/ir/verify.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <unordered_set>

#include "tosaic/base/error_text.h"
#include "tosaic/base/work.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/infer.h"
#include "tosaic/ir/json_object.h"
#include "tosaic/ir/lexical.h"

namespace tosaic {
namespace {

constexpr std::size_t kMaxTosaRank = 6;
constexpr std::size_t kMaxRegionDepth = 64;

enum class Fault : std::uint8_t { kInvalid, kSpec, kUnsupported };
using Report = std::function<void(Fault, ErrorParts)>;

bool same_array(const TensorType& a, const TensorType& b) { return a.dtype == b.dtype && a.shape == b.shape; }

std::string array_text(DType dtype, const Shape& shape) {
  return std::string(to_string(dtype)) + to_string(shape);
}
std::string array_text(const TensorType& type) { return array_text(type.dtype, type.shape); }

std::string value_text(ValueId id) { return id.valid() ? "value " + std::to_string(id.index()) : "no value"; }

bool order_fits(const DimOrder& order, std::size_t rank) { return order.axes(rank).size() == rank; }

// The bytes of a dense array, or nullopt if their number does not fit 63 bits.
std::optional<std::int64_t> dense_bytes(DType dtype, const Shape& shape) {
  auto bytes = static_cast<std::int64_t>(byte_size(dtype));
  for (const std::int64_t extent : shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  return bytes;
}

// The name of a string attribute that is not UTF-8, or null. `implementation_attrs` of custom operators may
// hold any bytes.
const char* field_that_is_no_text(const Attrs& attrs) {
  const char* found = nullptr;
  const auto look = [&found](const char* name, const auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::string>)
      if (std::string_view(name) != "implementation_attrs" && !is_utf8(value)) found = name;
  };
  visit([&look](const auto& fields) { fields.fields(fields, look); }, attrs);
  return found;
}

// The types of the variables declared so far in the program, by name.
using Variables = std::map<std::string, TensorType>;

class Checker {
 public:
  Checker(const Graph& graph, const VerifyOptions& options, Report report, Variables& variables,
          std::size_t depth)
      : graph_(graph), options_(options), report_(std::move(report)), variables_(variables), depth_(depth) {}

  void run() {
    work::add(graph_.values().size() + graph_.nodes().size());
    values();
    for (const Input& input : graph_.inputs()) this->input(input);
    for (const Node& node : graph_.nodes()) this->node(node);
    for (const Output& output : graph_.outputs()) this->output(output);
  }

 private:
  void invalid(ErrorParts parts) {
    parts.where = "verify";
    report_(Fault::kInvalid, std::move(parts));
  }
  void invalid(const Node& node, ErrorParts parts) {
    invalid(located(std::move(parts), node.origin, node_name(node)));
  }
  [[nodiscard]] std::string node_name(const Node& node) const {
    const bool named = node.result_count != 0 && node.first_result < graph_.values().size();
    return named ? graph_.values()[node.first_result].name : std::string(info(node.op).name);
  }
  [[nodiscard]] bool exists(ValueId id) const { return id.valid() && id.index() < graph_.values().size(); }

  void values();
  bool shape(const Value& value);
  void qparams(const TensorType& type, const std::string& name);
  void boundary_qparams(const BoundaryFormat& boundary, const TensorType& type, const std::string& name);
  void link(ValueId id, const Value& value);
  void constant(const Constant& constant, const TensorType& type, const std::string& name);
  void input(const Input& input);
  void output(const Output& output);
  void boundary(const BoundaryFormat& boundary, const TensorType& type, const std::string& name);
  void node(const Node& node);
  bool operands(const Node& node);
  bool results(const Node& node);
  bool attributes(const Node& node);
  void description(const Node& node);
  void origin(const Node& node);
  void types(const Node& node);
  void stage(const Node& node);
  bool regions(const Node& node);
  void cond(const Node& node);
  void while_loop(const Node& node);
  void variable(const Node& node);
  void variable_use(const Node& node);
  void predicate(const Node& node, const TensorType& type, const std::string& what);
  void region_inputs(const Node& node, const Graph& region, std::span<const ValueId> operands);
  void region_outputs(const Node& node, const Graph& region, std::span<const Value> expected);

  const Graph& graph_;
  const VerifyOptions& options_;
  Report report_;
  Variables& variables_;
  std::size_t depth_;
  bool values_ok_ = true;                        // all shapes are valid, so that infer() may use them
  std::unordered_set<std::uint32_t> mutated_{};  // inputs that an output already updates
};

void Checker::values() {
  std::unordered_set<std::string_view> names;
  names.reserve(graph_.values().size());
  std::size_t inputs = 0;
  for (std::uint32_t i = 0; i < graph_.values().size(); ++i) {
    const ValueId id(i);
    const Value& value = graph_.value(id);
    if (value.name.empty()) invalid({.what = "a value has no name", .got = value_text(id)});
    if (!names.insert(value.name).second)
      invalid({.what = "two values have the same name", .expected = "unique names", .node = value.name});
    if (shape(value)) {
      qparams(value.type, value.name);
    } else {
      values_ok_ = false;
    }
    if (value.kind == ValueKind::kInput && value.result_index != inputs++)
      invalid({.what = "inputs are not in the order of their values", .node = value.name});
    link(id, value);
  }
}

bool Checker::shape(const Value& value) {
  const TensorType& type = value.type;
  for (const std::int64_t extent : type.shape)
    if (extent < 0 || extent > kMaxExtent) {
      invalid({.what = "an extent is out of range",
               .expected = "0 to 2^48",
               .got = to_string(type.shape),
               .node = value.name});
      return false;
    }
  Shape strided = type.shape;  // for strides, an empty axis counts as extent 1
  for (std::int64_t& extent : strided) extent = std::max<std::int64_t>(extent, 1);
  if (!dense_bytes(type.dtype, strided)) {
    invalid(
        {.what = "the array does not fit the address space", .got = array_text(type), .node = value.name});
    return false;
  }
  if (!order_fits(type.order, type.rank())) {
    invalid({.what = "the dim order has another rank than the shape",
             .expected = "rank " + std::to_string(type.rank()),
             .got = to_string(type.order.axes(type.rank())),
             .node = value.name});
    return false;
  }
  if (graph_.stage != Stage::kTosa || !options_.stage) return true;
  ErrorParts parts{.where = "verify", .what = {}, .node = value.name};
  if (value.kind == ValueKind::kResult && value.producer.index() < graph_.nodes().size())
    parts = located(std::move(parts), graph_.node(value.producer).origin, value.name);
  if (!type.order.is_identity()) {
    parts.what = "a value at stage tosa has a dim order";
    parts.expected = "the identity: shapes are physical";
    parts.got = to_string(type.order.axes(type.rank()));
    report_(Fault::kSpec, std::move(parts));
  } else if (type.rank() > kMaxTosaRank) {
    parts.what = "a value at stage tosa has too many axes";
    parts.expected = "at most " + std::to_string(kMaxTosaRank);
    parts.got = array_text(type);
    report_(Fault::kSpec, std::move(parts));
  }
  return true;
}

void Checker::qparams(const TensorType& type, const std::string& name) {
  std::optional<ErrorParts> fault = qparams_fault(type);
  if (!fault) return;
  fault->node = name;
  invalid(*std::move(fault));
}

void Checker::link(ValueId id, const Value& value) {
  bool linked = false;
  switch (value.kind) {
    case ValueKind::kInput:
      linked = value.result_index < graph_.inputs().size() && graph_.inputs()[value.result_index].value == id;
      break;
    case ValueKind::kConstant:
      linked = value.constant != nullptr;
      if (linked) constant(*value.constant, value.type, value.name);
      break;
    case ValueKind::kResult:
      if (value.producer.valid() && value.producer.index() < graph_.nodes().size()) {
        const Node& node = graph_.node(value.producer);
        linked =
            value.result_index < node.result_count && node.first_result + value.result_index == id.index();
      }
      break;
  }
  if (!linked)
    invalid({.what = "a value does not belong to its input, constant or node",
             .got = value_text(id),
             .node = value.name});
}

void Checker::constant(const Constant& constant, const TensorType& type, const std::string& name) {
  if (constant.dtype != type.dtype || !(constant.shape == type.shape)) {
    invalid({.what = "constant '" + constant.name + "' has another type than its value",
             .expected = array_text(type),
             .got = array_text(constant.dtype, constant.shape),
             .node = name});
    return;
  }
  if (!constant.storage.bound()) return;
  const std::optional<std::int64_t> bytes = dense_bytes(constant.dtype, constant.shape);
  if (!bytes || static_cast<std::size_t>(*bytes) != constant.storage.size())
    invalid({.what = "constant '" + constant.name + "' has the wrong size",
             .expected = (bytes ? std::to_string(*bytes) : array_text(type)) + " bytes",
             .got = std::to_string(constant.storage.size()),
             .node = name});
}

void Checker::boundary(const BoundaryFormat& boundary, const TensorType& type, const std::string& name) {
  if (!order_fits(boundary.order, type.rank()))
    invalid({.what = "the dim order at the boundary has another rank than the shape",
             .expected = "rank " + std::to_string(type.rank()),
             .got = to_string(boundary.order.axes(type.rank())),
             .node = name});
  if (boundary.range_min > boundary.range_max)
    invalid({.what = "the range at the boundary is empty",
             .got = std::to_string(boundary.range_min) + ".." + std::to_string(boundary.range_max),
             .node = name});
  boundary_qparams(boundary, type, name);
}

void Checker::boundary_qparams(const BoundaryFormat& boundary, const TensorType& type,
                               const std::string& name) {
  if (!boundary.qparams) return;
  TensorType labelled = type;
  labelled.qparams = boundary.qparams;
  // TOSA stores u8 values as i8, but the caller's array may be u8.
  const DType storage = boundary.qparams->storage;
  if (boundary.source_dtype == storage && without_sign(storage) == type.dtype) labelled.dtype = storage;
  qparams(labelled, name);
  if (storage != labelled.dtype || boundary.qparams->axis)
    invalid({.what = "the quantization at the boundary does not fit its value",
             .expected = std::string(to_string(type.dtype)) + " with one scale",
             .got = to_string(*boundary.qparams),
             .node = name});
}

void Checker::input(const Input& input) {
  if (!exists(input.value) || graph_.value(input.value).kind != ValueKind::kInput) {
    invalid({.what = "an input has no value of its own", .got = value_text(input.value)});
    return;
  }
  const Value& value = graph_.value(input.value);
  boundary(input.boundary, value.type, value.name);
  if (!input.initial) return;
  if (input.kind != InputKind::kState)
    invalid({.what = "only state has an initial value", .got = "a user input", .node = value.name});
  constant(*input.initial, value.type, value.name);
}

void Checker::output(const Output& output) {
  if (!exists(output.value)) {
    invalid({.what = "an output does not exist", .got = value_text(output.value)});
    return;
  }
  const Value& value = graph_.value(output.value);
  boundary(output.boundary, value.type, value.name);
  if (output.kind != OutputKind::kMutation) return;
  if (output.mutated_input >= graph_.inputs().size()) {
    invalid({.what = "a mutation has no such input",
             .expected = "an index below " + std::to_string(graph_.inputs().size()),
             .got = std::to_string(output.mutated_input),
             .node = value.name});
    return;
  }
  if (!mutated_.insert(output.mutated_input).second)
    invalid({.what = "two outputs update the same input", .node = value.name});
  const ValueId target = graph_.inputs()[output.mutated_input].value;
  if (exists(target) && !same_array(graph_.type(target), value.type))
    invalid({.what = "a mutation changes the type of '" + graph_.value(target).name + "'",
             .expected = array_text(graph_.type(target)),
             .got = array_text(value.type),
             .node = value.name});
}

void Checker::node(const Node& node) {
  // All checks of the structure run, so that all faults of a node are reported. Types are checked only if the
  // structure is sound.
  const bool sound_operands = operands(node);
  const bool sound_results = results(node);
  const bool sound_attributes = attributes(node);
  origin(node);
  const bool sound_regions = regions(node);
  if (options_.stage) stage(node);
  if (!sound_operands || !sound_results || !values_ok_) return;
  if (sound_attributes && options_.types && has_inference(node.op)) types(node);
  if (!sound_regions) return;
  if (is_cond(node.op)) cond(node);
  if (is_while_loop(node.op)) while_loop(node);
  if (!sound_attributes) return;
  if (node.op == Op::kTosaVariable) variable(node);
  if (node.op == Op::kTosaVariableRead || node.op == Op::kTosaVariableWrite) variable_use(node);
}

bool Checker::operands(const Node& node) {
  const OpInfo& row = info(node.op);
  const auto count = static_cast<std::size_t>(node.operand_count);
  const bool variadic = row.max_operands == 255;
  if (count < row.min_operands || (!variadic && count > row.max_operands)) {
    std::string expected =
        variadic ? "at least " + std::to_string(row.min_operands) : std::to_string(row.min_operands);
    if (!variadic && row.max_operands != row.min_operands)
      expected += " to " + std::to_string(row.max_operands);
    invalid(node, {.what = std::string(row.name) + " has the wrong number of operands",
                   .expected = std::move(expected),
                   .got = std::to_string(count)});
    return false;
  }
  bool sound = true;
  for (std::size_t i = 0; i < count; ++i) {
    const ValueId operand = graph_.operands(node)[i];
    const std::string role = "operand " + std::to_string(i) + " (" + std::string(row.operand_name(i)) +
                             ") of " + std::string(row.name);
    if (!operand.valid()) {
      if (row.operand_optional(i)) continue;
      invalid(node, {.what = role + " is absent", .expected = "a value", .got = "none"});
      sound = false;
    } else if (!exists(operand) || operand.index() >= node.first_result) {
      invalid(node, {.what = role + " is used before it is defined",
                     .expected = "a value before " + std::to_string(node.first_result),
                     .got = value_text(operand)});
      sound = false;
    }
  }
  return sound;
}

bool Checker::results(const Node& node) {
  const OpInfo& row = info(node.op);
  if (row.results >= 0 && node.result_count != static_cast<std::uint32_t>(row.results)) {
    invalid(node, {.what = std::string(row.name) + " has the wrong number of results",
                   .expected = std::to_string(row.results),
                   .got = std::to_string(node.result_count)});
    return false;
  }
  const std::size_t end = static_cast<std::size_t>(node.first_result) + node.result_count;
  bool consistent = end <= graph_.values().size();
  for (std::size_t i = node.first_result; consistent && i < end; ++i) {
    const Value& value = graph_.values()[i];
    consistent = value.kind == ValueKind::kResult && value.producer == graph_.id(node);
  }
  const std::uint32_t index = graph_.id(node).index();
  if (index != 0 && consistent) {
    const Node& before = graph_.nodes()[index - 1];
    consistent = node.first_result >= before.first_result + before.result_count;
  }
  if (!consistent) invalid(node, {.what = "the results of a node are not its own consecutive values"});
  return consistent;
}

bool Checker::attributes(const Node& node) {
  const OpInfo& row = info(node.op);
  if (node.attrs && node.attrs->index() == row.attrs_index) {
    const char* const wrong = field_that_is_no_text(*node.attrs);
    if (wrong != nullptr)
      invalid(node, {.what = std::string(wrong) + " of " + std::string(row.name) + " is not UTF-8",
                     .expected = "text",
                     .got = to_string(*node.attrs)});
    if (node.op == Op::kOpaque) description(node);
    return true;
  }
  const auto text = [](const Attrs& attrs) {
    return std::string(struct_name(attrs.index())) + " " + to_string(attrs);
  };
  invalid(node, {.what = std::string(row.name) + " has attributes of another operator",
                 .expected = text(default_attrs(node.op)),
                 .got = node.attrs ? text(*node.attrs) : "none"});
  return false;
}

// A described foreign operator has a name for its tosa.custom, and arguments to which passes add entries: the
// pass lower-to-integer adds "qparams", and legalize-tosa adds "dim_orders".
void Checker::description(const Node& node) {
  const auto& attrs = Graph::attrs<OpaqueAttrs>(node);
  if (attrs.domain.empty() != attrs.name.empty())
    invalid(node, {.what = "foreign operator " + quoted(attrs.target) + " has a domain or a name alone",
                   .expected = "both, or neither",
                   .got = "domain " + quoted(attrs.domain) + " and name " + quoted(attrs.name)});
  if ((attrs.name.empty() && !attrs.integers) || is_blank(attrs.arguments)) return;
  const std::string of = " of foreign operator " + quoted(attrs.target);
  const std::optional<std::vector<std::string>> keys = json_keys(attrs.arguments);
  if (!keys) {
    invalid(node, {.what = "the arguments" + of + " are not a JSON object",
                   .expected = R"(an object such as {"args":[{"$":0}],"kwargs":{}}, or nothing)",
                   .got = quoted(attrs.arguments)});
    return;
  }
  const bool is_lowered = graph_.stage == Stage::kInteger;  // after lower-to-integer
  for (const std::string& key : *keys)
    if (key == "dim_orders" || (key == "qparams" && !is_lowered))
      invalid(node, {.what = "the arguments" + of + " have a key that tosaic writes itself",
                     .expected = "other keys than 'dim_orders' and 'qparams'",
                     .got = quoted(key)});
}

void Checker::origin(const Node& node) {
  if (!node.origin) return;
  for (const OriginRef& parent : node.origin->parents)
    if (!parent || !parent->parents.empty()) {
      ErrorParts parts{.what = "the parents of an origin are not leaves", .node = node_name(node)};
      invalid(std::move(parts));
      return;
    }
}

void Checker::types(const Node& node) {
  const std::span<const ValueId> operands = graph_.operands(node);
  if (node.op == Op::kUnbind) {  // compare the count first: infer() makes one type per index of the axis
    const Shape& shape = graph_.type(operands[0]).shape;
    const std::int64_t axis = Graph::attrs<AxisAttrs>(node).axis;
    if (axis >= 0 && axis < static_cast<std::int64_t>(shape.size()) &&
        shape[static_cast<std::size_t>(axis)] != static_cast<std::int64_t>(node.result_count)) {
      invalid(node, {.what = "unbind has the wrong number of results",
                     .expected = std::to_string(shape[static_cast<std::size_t>(axis)]),
                     .got = std::to_string(node.result_count)});
      return;
    }
  }
  std::vector<TensorType> inferred;
  try {
    inferred = infer_node(graph_, node.op, *node.attrs, operands, node.origin, node_name(node));
  } catch (const UnsupportedOp& error) {
    report_(Fault::kUnsupported, error.parts());
    return;
  } catch (const InvalidGraph& error) {
    report_(Fault::kInvalid, error.parts());
    return;
  }
  if (inferred.size() != node.result_count) {
    invalid(node, {.what = std::string(info(node.op).name) + " has the wrong number of results",
                   .expected = std::to_string(inferred.size()),
                   .got = std::to_string(node.result_count)});
    return;
  }
  for (std::uint32_t i = 0; i < node.result_count; ++i) {
    const Value& value = graph_.value(graph_.result(node, i));
    if (dtype_seen_by(graph_, node.op, value.type) == inferred[i].dtype &&
        value.type.shape == inferred[i].shape)
      continue;
    invalid(node, {.what = "the stored type of result '" + value.name + "' of " +
                           std::string(info(node.op).name) + " is not the inferred one",
                   .expected = array_text(inferred[i]),
                   .got = array_text(value.type)});
  }
}

void Checker::stage(const Node& node) {
  const OpInfo& row = info(node.op);
  if (allowed_at(node.op, graph_.stage)) return;
  ErrorParts parts{
      .where = "verify",
      .what = std::string(row.name) + " may not stand at stage " + std::string(to_string(graph_.stage)),
      .expected = row.is_tosa                    ? "a canonical operator"
                  : graph_.stage == Stage::kTosa ? "a tosa.* operator"
                                                 : "integer arithmetic at stage integer",
      .got = std::string(row.name)};
  report_(Fault::kSpec, located(std::move(parts), node.origin, node_name(node)));
}

bool Checker::regions(const Node& node) {
  const std::size_t expected = is_cond(node.op) || is_while_loop(node.op) ? 2 : 0;
  if (node.regions.size() != expected) {
    invalid(node, {.what = std::string(info(node.op).name) + " has the wrong number of regions",
                   .expected = std::to_string(expected),
                   .got = std::to_string(node.regions.size())});
    return false;
  }
  if (expected != 0 && depth_ == kMaxRegionDepth) {
    invalid(node, {.what = "regions are nested too deeply",
                   .expected = "at most " + std::to_string(kMaxRegionDepth)});
    return false;
  }
  for (const auto& region : node.regions) {
    if (!region) {
      invalid(node, {.what = "a region is missing"});
      return false;
    }
    if (region->stage != graph_.stage)
      invalid(node, {.what = "region '" + region->name + "' stands at another stage",
                     .expected = std::string(to_string(graph_.stage)),
                     .got = std::string(to_string(region->stage))});
    Checker(*region, options_, report_, variables_, depth_ + 1).run();
  }
  return true;
}

void Checker::predicate(const Node& node, const TensorType& type, const std::string& what) {
  bool one = true;
  for (const std::int64_t extent : type.shape) one = one && extent == 1;
  if (type.dtype != DType::kBool || !one)
    invalid(node,
            {.what = what + " is no single truth value", .expected = "bool[]", .got = array_text(type)});
}

void Checker::region_inputs(const Node& node, const Graph& region, std::span<const ValueId> operands) {
  if (region.inputs().size() != operands.size()) {
    invalid(node, {.what = "region '" + region.name + "' takes another number of inputs",
                   .expected = std::to_string(operands.size()),
                   .got = std::to_string(region.inputs().size())});
    return;
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const ValueId inner = region.inputs()[i].value;
    if (!operands[i].valid() || inner.index() >= region.values().size())
      continue;  // reported by other checks
    if (!same_array(graph_.type(operands[i]), region.type(inner)))
      invalid(node, {.what = "region '" + region.name + "' takes another type as input " + std::to_string(i),
                     .expected = array_text(graph_.type(operands[i])),
                     .got = array_text(region.type(inner))});
  }
}

void Checker::region_outputs(const Node& node, const Graph& region, std::span<const Value> expected) {
  if (region.outputs().size() != expected.size()) {
    invalid(node, {.what = "region '" + region.name + "' gives another number of outputs",
                   .expected = std::to_string(expected.size()),
                   .got = std::to_string(region.outputs().size())});
    return;
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const ValueId inner = region.outputs()[i].value;
    if (inner.index() >= region.values().size()) continue;
    if (!same_array(expected[i].type, region.type(inner)))
      invalid(node, {.what = "region '" + region.name + "' gives another type as output " + std::to_string(i),
                     .expected = array_text(expected[i].type),
                     .got = array_text(region.type(inner))});
  }
}

void Checker::cond(const Node& node) {
  const std::span<const ValueId> operands = graph_.operands(node);
  predicate(node, graph_.type(operands[0]), "the predicate of " + std::string(info(node.op).name));
  for (const auto& region : node.regions) {
    region_inputs(node, *region, operands.subspan(1));
    region_outputs(node, *region, graph_.values().subspan(node.first_result, node.result_count));
  }
}

// A loop with n results carries its first n operands from iteration to iteration. All other operands have the
// same value in every iteration. tosa.while_loop carries all operands.
void Checker::while_loop(const Node& node) {
  const std::span<const ValueId> operands = graph_.operands(node);
  const std::string name(info(node.op).name);
  const Graph& condition = *node.regions[0];
  const Graph& body = *node.regions[1];
  if (node.op == Op::kTosaWhileLoop && node.result_count != operands.size()) {
    invalid(node, {.what = name + " gives another number of results than it takes operands",
                   .expected = std::to_string(operands.size()),
                   .got = std::to_string(node.result_count)});
    return;
  }
  if (node.result_count > operands.size()) {
    invalid(node, {.what = name + " has more results than operands",
                   .expected = "at most " + std::to_string(operands.size()),
                   .got = std::to_string(node.result_count)});
    return;
  }
  region_inputs(node, condition, operands);
  region_inputs(node, body, operands);
  region_outputs(node, body, graph_.values().subspan(node.first_result, node.result_count));
  for (std::uint32_t i = 0; i < node.result_count; ++i)
    if (!same_array(graph_.type(operands[i]), graph_.type(graph_.result(node, i))))
      invalid(node, {.what = name + " changes the type of carried operand " + std::to_string(i),
                     .expected = array_text(graph_.type(operands[i])),
                     .got = array_text(graph_.type(graph_.result(node, i)))});
  if (condition.outputs().size() != 1) {
    invalid(node, {.what = "the condition of " + name + " has the wrong number of outputs",
                   .expected = "1",
                   .got = std::to_string(condition.outputs().size())});
    return;
  }
  const ValueId truth = condition.outputs()[0].value;
  if (truth.index() < condition.values().size())
    predicate(node, condition.type(truth), "the condition of " + name);
}

void Checker::variable(const Node& node) {
  const auto& attrs = Graph::attrs<TosaVariableAttrs>(node);
  if (depth_ != 0)
    invalid(node, {.what = "variable '" + attrs.name + "' is declared inside a region",
                   .expected = "declarations in the program's own graph"});
  TensorType type;
  type.dtype = attrs.dtype;
  type.shape = attrs.shape;
  if (!variables_.emplace(attrs.name, type).second)
    invalid(node, {.what = "variable '" + attrs.name + "' is declared twice"});
  const std::span<const ValueId> operands = graph_.operands(node);
  if (!operands.empty() && operands[0].valid() && graph_.value(operands[0]).kind != ValueKind::kConstant)
    invalid(node, {.what = "the initial value of variable '" + attrs.name + "' is computed",
                   .expected = "a constant",
                   .got = quoted(graph_.value(operands[0]).name)});
}

void Checker::variable_use(const Node& node) {
  const auto& attrs = Graph::attrs<TosaVariableAccessAttrs>(node);
  const auto declared = variables_.find(attrs.name);
  if (declared == variables_.end()) {
    invalid(node, {.what = "variable '" + attrs.name + "' is used before it is declared"});
    return;
  }
  if (declared->second.dtype != attrs.dtype || !(declared->second.shape == attrs.shape))
    invalid(node, {.what = "variable '" + attrs.name + "' is used as another type than declared",
                   .expected = array_text(declared->second),
                   .got = array_text(attrs.dtype, attrs.shape)});
}

[[noreturn]] void raise(Fault fault, const ErrorParts& parts) {
  switch (fault) {
    case Fault::kSpec:
      throw SpecViolation(parts);
    case Fault::kUnsupported:
      throw UnsupportedOp(parts);
    case Fault::kInvalid:
      break;
  }
  throw InvalidGraph(parts);
}

}  // namespace

std::optional<ErrorParts> qparams_fault(const TensorType& type) {
  if (!type.qparams) return std::nullopt;
  const QParams& q = *type.qparams;
  const auto fail = [](std::string expected, std::string got) {
    return ErrorParts{.what = "quantization parameters make no sense",
                      .expected = std::move(expected),
                      .got = std::move(got)};
  };
  const std::optional<ValueRange> range = integer_limits(q.storage);
  if (!range) return fail("an integer storage dtype", std::string(to_string(q.storage)));
  if (q.qmin > q.qmax || q.qmin < range->low || q.qmax > range->high)
    return fail("a range within " + std::to_string(range->low) + ".." + std::to_string(range->high),
                std::to_string(q.qmin) + ".." + std::to_string(q.qmax));
  if (q.axis && (*q.axis < 0 || *q.axis >= static_cast<std::int64_t>(type.rank())))
    return fail("an axis of " + to_string(type.shape), std::to_string(*q.axis));
  if (const char* const expected = scale_grid_fault(type.shape, q.axis, q.groups))
    return fail(expected, "groups of " + std::to_string(q.groups->size) + " on axis " +
                              std::to_string(q.groups->axis) + " of " + to_string(type.shape));
  const std::int64_t channels = scale_count(type.shape, q.axis, q.groups);
  if (static_cast<std::int64_t>(q.scales.size()) != channels || q.zero_points.size() != q.scales.size())
    return fail(std::to_string(channels) + " scales and zero points",
                std::to_string(q.scales.size()) + " and " + std::to_string(q.zero_points.size()));
  for (const double scale : q.scales)
    if (!std::isfinite(scale) || scale <= 0) return fail("positive finite scales", std::to_string(scale));
  for (const std::int64_t zero_point : q.zero_points)
    if (zero_point < range->low || zero_point > range->high)
      return fail("zero points that " + std::string(to_string(q.storage)) + " holds",
                  std::to_string(zero_point));
  return std::nullopt;
}

void verify(const Graph& graph, const VerifyOptions& options) {
  Variables variables;
  Checker(graph, options, raise, variables, 0).run();
}

std::vector<ErrorParts> check(const Graph& graph, const VerifyOptions& options) {
  std::vector<ErrorParts> problems;
  Variables variables;
  const auto add = [&problems](Fault, ErrorParts parts) { problems.push_back(std::move(parts)); };
  Checker(graph, options, add, variables, 0).run();
  return problems;
}

}  // namespace tosaic
