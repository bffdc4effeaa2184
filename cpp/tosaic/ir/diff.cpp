#include "tosaic/ir/diff.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "tosaic/ir/field_text.h"
#include "tosaic/ir/print.h"

namespace tosaic {
namespace {

constexpr std::uint32_t kUnmatched = 0xffffffffu;

std::size_t mix(std::size_t seed, std::size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2));
}
std::size_t text_hash(std::string_view text) { return std::hash<std::string_view>()(text); }

std::string array_text(const TensorType& type) {
  return std::string(to_string(type.dtype)) + to_string(type.shape);
}

bool same_constant(const Constant& a, const Constant& b) {
  if (&a == &b) return true;
  if (a.dtype != b.dtype || !(a.shape == b.shape)) return false;
  if (!a.storage.bound() || !b.storage.bound()) return a.name == b.name;
  const auto bytes_a = a.bytes();
  const auto bytes_b = b.bytes();
  if (bytes_a.data() == bytes_b.data()) return bytes_a.size() == bytes_b.size();
  return std::equal(bytes_a.begin(), bytes_a.end(), bytes_b.begin(), bytes_b.end());
}

std::string origin_key(const Node& node) {
  std::string key;
  for (const OriginRef& leaf : leaves(node.origin)) {
    key += leaf->fx_name;
    key += '\n';
  }
  return key;
}

// Hashes the type and a sample of the data, or the name if the data is not bound. This distinguishes parallel
// branches of equal shape by their weights.
std::size_t constant_hash(const Constant& constant) {
  constexpr std::size_t kSamples = 64;
  std::size_t hash = mix(text_hash(to_string(constant.dtype)), text_hash(to_string(constant.shape)));
  if (!constant.storage.bound()) return mix(hash, text_hash(constant.name));
  const std::span<const std::byte> bytes = constant.bytes();
  const std::size_t step = bytes.size() / kSamples + 1;
  for (std::size_t i = 0; i < bytes.size(); i += step)
    hash = mix(hash, std::to_integer<std::size_t>(bytes[i]));
  return hash;
}

// For each node, the hash of the expression that it computes: its operator and attributes, and recursively
// the expressions of its operands, up to the graph inputs.
std::vector<std::size_t> structure_hashes(const Graph& graph) {
  std::vector<std::size_t> values(graph.values().size());
  std::vector<std::size_t> nodes;
  nodes.reserve(graph.nodes().size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Value& value = graph.values()[i];
    if (value.kind == ValueKind::kInput) values[i] = mix(1, value.result_index);
    if (value.kind == ValueKind::kConstant) values[i] = mix(2, constant_hash(*value.constant));
  }
  for (const Node& node : graph.nodes()) {
    std::size_t hash = mix(3, static_cast<std::size_t>(node.op));
    hash = mix(hash, text_hash(to_string(*node.attrs)));
    hash = mix(hash, node.regions.size());
    for (const ValueId operand : graph.operands(node))
      hash = mix(hash, operand.valid() ? values[operand.index()] : 4);
    for (std::uint32_t i = 0; i < node.result_count; ++i) {
      const std::size_t value = node.first_result + i;
      values[value] = mix(mix(hash, i), text_hash(array_text(graph.values()[value].type)));
    }
    nodes.push_back(hash);
  }
  return nodes;
}

// Matches the nodes of two graphs in the steps that diff.h lists.
class Matcher {
 public:
  Matcher(const Graph& a, const Graph& b)
      : a_(a), b_(b), to_b_(a.nodes().size(), kUnmatched), to_a_(b.nodes().size(), kUnmatched) {
    const std::vector<std::size_t> hashes_a = structure_hashes(a);
    const std::vector<std::size_t> hashes_b = structure_hashes(b);
    const auto with_hash = [](const std::vector<std::size_t>& hashes) {
      return [&hashes](const Graph& graph, std::uint32_t i) {
        return std::to_string(hashes[i]) + "\n" + graph.node_name(graph.nodes()[i]);
      };
    };
    by_key(with_hash(hashes_a), with_hash(hashes_b));
    const auto hash_only = [](const std::vector<std::size_t>& hashes) {
      return [&hashes](const Graph&, std::uint32_t i) { return std::to_string(hashes[i]); };
    };
    by_key(hash_only(hashes_a), hash_only(hashes_b));
    const auto op_text = [](const Node& node) { return std::string(info(node.op).name) + "\n"; };
    const auto origin_and_op = [&](const Graph& graph, std::uint32_t i) {
      const std::string key = origin_key(graph.nodes()[i]);
      return key.empty() ? key : op_text(graph.nodes()[i]) + key;
    };
    by_key(origin_and_op, origin_and_op);
    const auto name_and_op = [&](const Graph& graph, std::uint32_t i) {
      return op_text(graph.nodes()[i]) + graph.node_name(graph.nodes()[i]);
    };
    by_key(name_and_op, name_and_op);
    by_operand();
    by_user();
    const auto op_and_attributes = [&](const Graph& graph, std::uint32_t i) {
      return op_text(graph.nodes()[i]) + to_string(*graph.nodes()[i].attrs);
    };
    by_key(op_and_attributes, op_and_attributes);
    const auto name = [](const Graph& graph, std::uint32_t i) { return graph.node_name(graph.nodes()[i]); };
    by_key(name, name);
    const auto origin = [](const Graph& graph, std::uint32_t i) { return origin_key(graph.nodes()[i]); };
    by_key(origin, origin);
  }

  [[nodiscard]] std::uint32_t to_b(std::uint32_t node) const { return to_b_[node]; }
  [[nodiscard]] std::uint32_t to_a(std::uint32_t node) const { return to_a_[node]; }

  [[nodiscard]] bool same_value(ValueId in_a, ValueId in_b) const {
    if (!in_a.valid() || !in_b.valid()) return in_a.valid() == in_b.valid();
    const Value& a = a_.value(in_a);
    const Value& b = b_.value(in_b);
    if (a.kind != b.kind) return false;
    if (a.kind == ValueKind::kConstant) return same_constant(*a.constant, *b.constant);
    if (a.result_index != b.result_index) return false;
    return a.kind == ValueKind::kInput || to_b_[a.producer.index()] == b.producer.index();
  }

 private:
  void pair(std::uint32_t a, std::uint32_t b) {
    to_b_[a] = b;
    to_a_[b] = a;
  }
  [[nodiscard]] bool can_pair(std::uint32_t a, std::uint32_t b) const {
    return to_b_[a] == kUnmatched && to_a_[b] == kUnmatched && a_.nodes()[a].op == b_.nodes()[b].op;
  }

  // Matches unmatched nodes with equal, non-empty keys, in order.
  template <class KeyA, class KeyB>
  void by_key(const KeyA& key_a, const KeyB& key_b) {
    std::unordered_map<std::string, std::vector<std::uint32_t>> waiting;
    for (auto i = static_cast<std::uint32_t>(to_a_.size()); i-- > 0;)
      if (to_a_[i] == kUnmatched) waiting[key_b(b_, i)].push_back(i);
    for (std::uint32_t i = 0; i < to_b_.size(); ++i) {
      if (to_b_[i] != kUnmatched) continue;
      const std::string key = key_a(a_, i);
      const auto it = waiting.find(key);
      if (key.empty() || it == waiting.end() || it->second.empty()) continue;
      pair(i, it->second.back());
      it->second.pop_back();
    }
  }

  // Walks graph a forward. If an operand of a node n of a is matched with a value of graph b, n is matched
  // with an unmatched node of b that has the same operator and reads that value.
  void by_operand() {
    for (std::uint32_t i = 0; i < to_b_.size(); ++i) {
      const Node& node = a_.nodes()[i];
      for (const ValueId operand : a_.operands(node)) {
        if (to_b_[i] != kUnmatched) break;
        const std::optional<ValueId> image = operand.valid() ? match_of(operand) : std::nullopt;
        if (!image) continue;
        for (const NodeId user : b_.users(*image))
          if (can_pair(i, user.index())) {
            pair(i, user.index());
            break;
          }
      }
    }
  }
  void pair_producers(ValueId in_a, ValueId in_b) {
    if (!in_a.valid() || !in_b.valid()) return;
    const Node* from_a = a_.producer(in_a);
    const Node* from_b = b_.producer(in_b);
    if (from_a == nullptr || from_b == nullptr) return;
    const std::uint32_t index_a = a_.id(*from_a).index();
    const std::uint32_t index_b = b_.id(*from_b).index();
    if (can_pair(index_a, index_b)) pair(index_a, index_b);
  }
  // Walks backward. Matches the producers of the k-th output of both graphs, then the producers of the k-th
  // operand of two matched nodes.
  void by_user() {
    for (std::size_t k = 0; k < std::min(a_.outputs().size(), b_.outputs().size()); ++k)
      pair_producers(a_.outputs()[k].value, b_.outputs()[k].value);
    for (auto i = static_cast<std::uint32_t>(to_b_.size()); i-- > 0;) {
      if (to_b_[i] == kUnmatched) continue;
      const auto operands_a = a_.operands(a_.nodes()[i]);
      const auto operands_b = b_.operands(b_.nodes()[to_b_[i]]);
      for (std::size_t k = 0; k < std::min(operands_a.size(), operands_b.size()); ++k)
        pair_producers(operands_a[k], operands_b[k]);
    }
  }
  [[nodiscard]] std::optional<ValueId> match_of(ValueId in_a) const {
    const Value& value = a_.value(in_a);
    if (value.kind == ValueKind::kInput && value.result_index < b_.inputs().size())
      return b_.inputs()[value.result_index].value;
    if (value.kind != ValueKind::kResult || to_b_[value.producer.index()] == kUnmatched) return std::nullopt;
    const Node& image = b_.nodes()[to_b_[value.producer.index()]];
    if (value.result_index >= image.result_count) return std::nullopt;
    return b_.result(image, value.result_index);
  }

  const Graph& a_;
  const Graph& b_;
  std::vector<std::uint32_t> to_b_, to_a_;
};

// Collects the text of each field of an attribute struct, by field name.
class FieldCollector {
 public:
  explicit FieldCollector(std::map<std::string, std::string>& texts) : texts_(texts) {}
  template <class T>
  void operator()(const char* name, const T& value) {
    FieldText(texts_[name]).append(value);
  }

 private:
  std::map<std::string, std::string>& texts_;
};

std::map<std::string, std::string> field_texts(const Attrs& attrs) {
  std::map<std::string, std::string> texts;
  visit([&texts](const auto& fields) { fields.fields(fields, FieldCollector(texts)); }, attrs);
  return texts;
}

class Comparison {
 public:
  Comparison(const Graph& a, const Graph& b) : a_(a), b_(b), matcher_(a, b) {}

  Diff run() {
    compare(diff_.graph, "stage", std::string(to_string(a_.stage)), std::string(to_string(b_.stage)));
    inputs();
    outputs();
    for (std::uint32_t i = 0; i < a_.nodes().size(); ++i)
      if (matcher_.to_b(i) == kUnmatched) diff_.removed.push_back(line(a_, a_.nodes()[i]));
    for (std::uint32_t i = 0; i < b_.nodes().size(); ++i) {
      const std::uint32_t before = matcher_.to_a(i);
      if (before == kUnmatched)
        diff_.added.push_back(line(b_, b_.nodes()[i]));
      else
        nodes(a_.nodes()[before], b_.nodes()[i]);
    }
    return std::move(diff_);
  }

 private:
  static NodeLine line(const Graph& graph, const Node& node) {
    return {graph.node_name(node), print_node(graph, node)};
  }
  static void compare(std::vector<Change>& changes, std::string what, std::string before, std::string after) {
    if (before != after) changes.push_back({std::move(what), std::move(before), std::move(after)});
  }

  // A value in an operand list: its name, and for constants the type.
  static std::string value_text(const Graph& graph, ValueId id) {
    if (!id.valid()) return "none";
    const Value& value = graph.value(id);
    std::string text = "%";
    append_name(text, value.name);
    if (value.kind == ValueKind::kConstant) text += ": " + array_text(value.type);
    return text;
  }

  void operand(std::vector<Change>& changes, std::string what, ValueId before, ValueId after) const {
    if (matcher_.same_value(before, after)) return;
    std::string text_before = value_text(a_, before);
    std::string text_after = value_text(b_, after);
    if (text_before == text_after) {  // two different values have the same name
      const bool constants = a_.value(before).kind == ValueKind::kConstant;
      text_after += constants ? " (other data)" : " (another value)";
    }
    changes.push_back({std::move(what), std::move(text_before), std::move(text_after)});
  }

  static void boundaries(std::vector<Change>& changes, const std::string& what, const BoundaryFormat& a,
                         const BoundaryFormat& b, std::size_t rank) {
    if (a == b) return;
    const auto text = [rank](const BoundaryFormat& boundary) {
      std::string out =
          boundary.source_dtype ? std::string(to_string(*boundary.source_dtype)) + " " : "as it is ";
      out += std::to_string(boundary.range_min) + ".." + std::to_string(boundary.range_max);
      out += " order " + to_string(boundary.order.axes(rank)) + (boundary.physical ? " physical" : "");
      return boundary.qparams ? out + " " + to_string(*boundary.qparams) : out;
    };
    changes.push_back({what + " boundary", text(a), text(b)});
  }

  void inputs() {
    compare(diff_.graph, "number of inputs", std::to_string(a_.inputs().size()),
            std::to_string(b_.inputs().size()));
    for (std::size_t i = 0; i < std::min(a_.inputs().size(), b_.inputs().size()); ++i) {
      const Input& before = a_.inputs()[i];
      const Input& after = b_.inputs()[i];
      const std::string what = "input " + std::to_string(i);
      const auto kind = [](const Input& input) { return input.kind == InputKind::kUser ? "user" : "state"; };
      compare(diff_.graph, what + " kind", kind(before), kind(after));
      compare(diff_.graph, what + " path", before.path, after.path);
      compare(diff_.graph, what + " type", to_string(a_.type(before.value)), to_string(b_.type(after.value)));
      boundaries(diff_.graph, what, before.boundary, after.boundary, a_.type(before.value).rank());
      const bool equal = before.initial && after.initial ? same_constant(*before.initial, *after.initial)
                                                         : before.initial == after.initial;
      if (!equal) diff_.graph.push_back({what + " initial value", {}, {}});
    }
  }

  void outputs() {
    compare(diff_.graph, "number of outputs", std::to_string(a_.outputs().size()),
            std::to_string(b_.outputs().size()));
    for (std::size_t i = 0; i < std::min(a_.outputs().size(), b_.outputs().size()); ++i) {
      const Output& before = a_.outputs()[i];
      const Output& after = b_.outputs()[i];
      const std::string what = "output " + std::to_string(i);
      const auto kind = [](const Output& output) {
        return output.kind == OutputKind::kUser ? std::string("user")
                                                : "mutation of input " + std::to_string(output.mutated_input);
      };
      compare(diff_.graph, what + " kind", kind(before), kind(after));
      compare(diff_.graph, what + " path", before.path, after.path);
      operand(diff_.graph, what, before.value, after.value);
      boundaries(diff_.graph, what, before.boundary, after.boundary, a_.type(before.value).rank());
    }
  }

  void attributes(std::vector<Change>& changes, const Node& a, const Node& b) const {
    if (a.attrs == b.attrs) return;
    const std::map<std::string, std::string> before = field_texts(*a.attrs);
    const std::map<std::string, std::string> after = field_texts(*b.attrs);
    for (const auto& [name, text] : before) {
      const auto it = after.find(name);
      compare(changes, "attribute " + name, text, it == after.end() ? "" : it->second);
    }
    for (const auto& [name, text] : after)
      if (!before.contains(name)) changes.push_back({"attribute " + name, {}, text});
  }

  void nodes(const Node& a, const Node& b) {
    NodeChange change{a_.node_name(a), b_.node_name(b), {}};
    compare(change.changes, "operator", std::string(info(a.op).name), std::string(info(b.op).name));
    attributes(change.changes, a, b);
    compare(change.changes, "number of operands", std::to_string(a.operand_count),
            std::to_string(b.operand_count));
    for (std::size_t i = 0; i < std::min(a.operand_count, b.operand_count); ++i)
      operand(change.changes,
              "operand " + std::to_string(i) + " (" + std::string(info(b.op).operand_name(i)) + ")",
              a_.operands(a)[i], b_.operands(b)[i]);
    compare(change.changes, "number of results", std::to_string(a.result_count),
            std::to_string(b.result_count));
    for (std::size_t i = 0; i < std::min(a.result_count, b.result_count); ++i) {
      const TensorType& before = a_.type(a_.result(a, i));
      const TensorType& after = b_.type(b_.result(b, i));
      if (!(before == after))
        change.changes.push_back(
            {i == 0 ? "type" : "type of result " + std::to_string(i), to_string(before), to_string(after)});
    }
    regions(change.changes, a, b);
    if (!change.changes.empty())
      diff_.changed.push_back(std::move(change));
    else if (change.before != change.after)
      diff_.renamed.emplace_back(std::move(change.before), std::move(change.after));
    else
      ++diff_.unchanged;
  }

  static void regions(std::vector<Change>& changes, const Node& a, const Node& b) {
    compare(changes, "number of regions", std::to_string(a.regions.size()), std::to_string(b.regions.size()));
    for (std::size_t i = 0; i < std::min(a.regions.size(), b.regions.size()); ++i) {
      if (a.regions[i] == b.regions[i]) continue;
      const Diff inner = diff(*a.regions[i], *b.regions[i]);
      const std::string where = "region " + std::to_string(i) + " ";
      for (const Change& one : inner.graph) changes.push_back({where + one.what, one.before, one.after});
      for (const NodeLine& one : inner.removed) changes.push_back({where + "node", one.text, {}});
      for (const NodeLine& one : inner.added) changes.push_back({where + "node", {}, one.text});
      for (const NodeChange& node : inner.changed)
        for (const Change& one : node.changes)
          changes.push_back({where + "%" + node.after + " " + one.what, one.before, one.after});
    }
  }

  const Graph& a_;
  const Graph& b_;
  Matcher matcher_;
  Diff diff_;
};

std::string change_text(const Change& change) {
  if (change.before.empty() && change.after.empty()) return change.what + " differs";
  const auto shown = [](const std::string& text) { return text.empty() ? std::string("nothing") : text; };
  return change.what + " " + shown(change.before) + " -> " + shown(change.after);
}

}  // namespace

Diff diff(const Graph& a, const Graph& b) { return Comparison(a, b).run(); }

std::string to_string(const Diff& diff) {
  std::string out;
  for (const Change& change : diff.graph) out += "~ graph: " + change_text(change) + "\n";
  for (const NodeLine& node : diff.removed) out += "- " + node.text + "\n";
  for (const NodeLine& node : diff.added) out += "+ " + node.text + "\n";
  for (const NodeChange& node : diff.changed) {
    std::string name = "%";
    append_name(name, node.before);
    if (node.before != node.after) {
      name += " (now %";
      append_name(name, node.after);
      name += ")";
    }
    for (const Change& change : node.changes) out += "~ " + name + ": " + change_text(change) + "\n";
  }
  return out;
}

}  // namespace tosaic
