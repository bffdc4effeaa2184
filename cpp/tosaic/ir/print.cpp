#include "tosaic/ir/print.h"

#include <array>
#include <cstring>
#include <unordered_map>

#include "tosaic/ir/lexical.h"

namespace tosaic {
namespace {

constexpr std::array<std::string_view, 4> kKindNames{"parameter", "buffer", "lifted", "folded"};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

void append_bits(std::string& out, const std::byte* at, std::size_t size) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += "0x";
  for (std::size_t i = size; i-- > 0;) {
    const auto byte = std::to_integer<unsigned>(at[i]);
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
}

// Floats of 16 bits and less are printed as f32, which represents them exactly.
void append_element(std::string& out, DType dtype, const std::byte* at) {
  if (dtype == DType::kBool) {
    const auto byte = std::to_integer<unsigned>(*at);
    if (byte > 1) return append_bits(out, at, 1);
    out += byte != 0 ? "true" : "false";
  } else if (!is_float(dtype)) {
    if (dtype == DType::kI48 || dtype == DType::kI64) return append_number(out, load<std::int64_t>(at));
    append_number(out, static_cast<std::int64_t>(load_element(dtype, at)));
  } else {
    const double value = load_element(dtype, at);
    if (value != value) return append_bits(out, at, byte_size(dtype));
    if (dtype == DType::kF64) return append_number(out, value);
    append_number(out, static_cast<float>(value));
  }
}

class Printer {
 public:
  explicit Printer(const PrintOptions& options) : options_(options) {}

  void graph(const Graph& graph);
  void node_line(const Graph& graph, const Node& node);
  void origin_table();
  [[nodiscard]] std::string take() && { return std::move(out_); }
  void version() { out_ += "tosaic " + std::to_string(kTextVersion) + "\n"; }

 private:
  void line() { out_.append(2 * depth_, ' '); }
  void value_ref(const Graph& graph, ValueId id);
  void named_type(const Value& value);
  void input(const Input& input, const Value& value);
  void constant(const Value& value);
  void node(const Graph& graph, const Node& node);
  void result(const Graph& graph, const Output& output);
  void boundary(const BoundaryFormat& boundary, std::size_t rank);
  void data(const Constant& constant);
  void string_field(std::string_view key, const std::string& text);
  std::size_t origin_number(const OriginRef& origin);

  PrintOptions options_;
  std::string out_;
  std::size_t depth_ = 0;
  std::unordered_map<const Origin*, std::size_t> origin_numbers_;
  std::vector<const Origin*> origins_;
};

void Printer::value_ref(const Graph& graph, ValueId id) {
  if (!id.valid()) {
    out_ += "none";
    return;
  }
  out_ += '%';
  if (id.index() < graph.values().size())
    append_name(out_, graph.value(id).name);
  else
    out_ += '#' + std::to_string(id.index());  // only in graphs that verify() rejects
}

void Printer::named_type(const Value& value) {
  out_ += '%';
  append_name(out_, value.name);
  out_ += ": ";
  out_ += to_string(value.type);
}

void Printer::string_field(std::string_view key, const std::string& text) {
  if (text.empty()) return;
  out_ += ' ';
  out_ += key;
  out_ += '=';
  append_quoted(out_, text);
}

void Printer::boundary(const BoundaryFormat& boundary, std::size_t rank) {
  if (boundary == BoundaryFormat{}) return;
  std::string parts;
  if (boundary.source_dtype) parts += " source=" + std::string(to_string(*boundary.source_dtype));
  if (boundary.range_min != 0 || boundary.range_max != 0)
    parts += " range=" + std::to_string(boundary.range_min) + ".." + std::to_string(boundary.range_max);
  if (!boundary.order.is_identity()) {
    const std::string axes = to_string(boundary.order.axes(rank));
    parts += " order(" + axes.substr(1, axes.size() - 2) + ")";
  }
  if (boundary.physical) parts += " physical";
  if (boundary.qparams) parts += " " + to_string(*boundary.qparams);
  out_ += " boundary(" + parts.substr(1) + ")";
}

void Printer::data(const Constant& constant) {
  const std::size_t size = byte_size(constant.dtype);
  std::size_t count = 1;
  bool fits = true;
  for (const std::int64_t extent : constant.shape)
    fits = fits && !__builtin_mul_overflow(count, static_cast<std::size_t>(extent), &count);
  if (!constant.storage.bound() || !fits || count > options_.max_inline_elements ||
      constant.storage.size() != count * size) {
    out_ += "ref(";
    append_number(out_, static_cast<std::uint64_t>(count * size));
    out_ += ')';
    return;
  }
  const std::span<const std::byte> bytes = constant.bytes();
  out_ += '[';
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0) out_ += ',';
    append_element(out_, constant.dtype, bytes.data() + i * size);
  }
  out_ += ']';
}

void Printer::input(const Input& input, const Value& value) {
  line();
  out_ += input.kind == InputKind::kUser ? "input " : "state ";
  named_type(value);
  string_field("path", input.path);
  if (input.initial) {
    const Constant& initial = *input.initial;
    out_ += " initial=(";
    out_ += to_string(initial.kind);
    string_field("name", initial.name);
    out_ += ' ';
    out_ += to_string(initial.dtype);
    out_ += to_string(initial.shape);
    out_ += ' ';
    data(initial);
    out_ += ')';
  }
  boundary(input.boundary, value.type.rank());
  out_ += '\n';
}

void Printer::constant(const Value& value) {
  line();
  out_ += "const ";
  named_type(value);
  out_ += " = ";
  out_ += to_string(value.constant->kind);
  if (value.constant->name != value.name) {
    out_ += " name=";
    append_quoted(out_, value.constant->name);
  }
  out_ += ' ';
  data(*value.constant);
  out_ += '\n';
}

void Printer::node_line(const Graph& graph, const Node& node) {
  if (node.result_count == 0) out_ += "()";
  for (std::uint32_t i = 0; i < node.result_count; ++i) {
    if (i != 0) out_ += ", ";
    named_type(graph.value(graph.result(node, i)));
  }
  out_ += " = ";
  out_ += info(node.op).name;
  out_ += '(';
  bool first = true;
  for (const ValueId operand : graph.operands(node)) {
    if (!first) out_ += ", ";
    first = false;
    value_ref(graph, operand);
  }
  out_ += ')';
  if (node.attrs && !holds<NoAttrs>(*node.attrs)) {
    out_ += ' ';
    out_ += to_string(*node.attrs);
  }
}

// Numbers the parents before their union, so that the table has no forward references.
std::size_t Printer::origin_number(const OriginRef& origin) {
  if (const auto it = origin_numbers_.find(origin.get()); it != origin_numbers_.end()) return it->second;
  for (const OriginRef& leaf : origin->parents.empty() ? std::vector<OriginRef>{} : leaves(origin))
    static_cast<void>(origin_number(leaf));
  const std::size_t number = origins_.size();
  origins_.push_back(origin.get());
  origin_numbers_.emplace(origin.get(), number);
  return number;
}

void Printer::node(const Graph& graph, const Node& node) {
  line();
  node_line(graph, node);
  if (options_.origins && node.origin) {
    out_ += " loc(#";
    append_number(out_, static_cast<std::uint64_t>(origin_number(node.origin)));
    out_ += ')';
  }
  if (!node.regions.empty()) {
    out_ += " regions {\n";
    ++depth_;
    for (const auto& region : node.regions) this->graph(*region);
    --depth_;
    line();
    out_ += '}';
  }
  out_ += '\n';
}

void Printer::result(const Graph& graph, const Output& output) {
  line();
  out_ += "return ";
  value_ref(graph, output.value);
  string_field("path", output.path);
  if (output.kind == OutputKind::kMutation) {
    out_ += " mutates=";
    const bool known = output.mutated_input < graph.inputs().size();
    value_ref(graph, known ? graph.inputs()[output.mutated_input].value : ValueId());
  }
  const bool known = output.value.valid() && output.value.index() < graph.values().size();
  boundary(output.boundary, known ? graph.type(output.value).rank() : 0);
  out_ += '\n';
}

void Printer::graph(const Graph& graph) {
  line();
  out_ += "graph @";
  append_name(out_, graph.name);
  out_ += " stage=";
  out_ += to_string(graph.stage);
  out_ += " {\n";
  ++depth_;
  std::size_t next = 0;  // nodes[0, next) are printed
  const std::span<const Node> nodes = graph.nodes();
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    while (next < nodes.size() && nodes[next].result_count == 0 && nodes[next].first_result <= i)
      node(graph, nodes[next++]);
    const Value& value = graph.value(ValueId(i));
    if (value.kind == ValueKind::kInput && value.result_index < graph.inputs().size())
      input(graph.inputs()[value.result_index], value);
    else if (value.kind == ValueKind::kConstant && value.constant)
      constant(value);
    else
      while (next < nodes.size() && next <= value.producer.index()) node(graph, nodes[next++]);
  }
  while (next < nodes.size()) node(graph, nodes[next++]);
  for (const Output& output : graph.outputs()) result(graph, output);
  --depth_;
  line();
  out_ += "}\n";
}

void Printer::origin_table() {
  if (origins_.empty()) return;
  out_ += "origins {\n";
  for (std::size_t i = 0; i < origins_.size(); ++i) {
    const Origin& origin = *origins_[i];
    out_ += "  #" + std::to_string(i) + " = ";
    if (origin.parents.empty()) {
      append_quoted(out_, origin.fx_name);
      string_field("target", origin.target);
      string_field("module", origin.module_path);
      string_field("file", origin.file);
      if (origin.line != 0) out_ += " line=" + std::to_string(origin.line);
    } else {
      std::string parents;
      for (const OriginRef& parent : origin.parents)
        for (const OriginRef& leaf : leaves(parent))
          parents += (parents.empty() ? "#" : ", #") + std::to_string(origin_number(leaf));
      out_ += "union(" + parents + ")";
    }
    out_ += '\n';
  }
  out_ += "}\n";
}

}  // namespace

std::string_view to_string(ConstantKind kind) { return kKindNames.at(static_cast<std::size_t>(kind)); }

std::optional<ConstantKind> parse_constant_kind(std::string_view text) {
  for (std::size_t i = 0; i < kKindNames.size(); ++i)
    if (kKindNames.at(i) == text) return static_cast<ConstantKind>(i);
  return std::nullopt;
}

std::string print(const Graph& graph, const PrintOptions& options) {
  Printer printer(options);
  printer.version();
  printer.graph(graph);
  printer.origin_table();
  return std::move(printer).take();
}

std::string print_node(const Graph& graph, const Node& node) {
  Printer printer({});
  printer.node_line(graph, node);
  return std::move(printer).take();
}

}  // namespace tosaic
