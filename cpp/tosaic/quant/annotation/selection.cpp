#include "tosaic/quant/annotation/selection.h"

#include <algorithm>
#include <regex>
#include <set>
#include <string_view>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/base/near_names.h"

namespace tosaic::quant {
namespace {

// True if the whole text has the pattern: * is any text, ? any letter.
bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string_view short_type(std::string_view type) { return type.substr(type.rfind('.') + 1); }

std::string_view without_overload(std::string_view target) {
  const std::size_t last = target.rfind('.');
  return last == target.find('.') ? target : target.substr(0, last);
}

// True if the path, or a prefix of it that ends before a dot, matches the pattern. Prefixes count since
// nobody calls a container such as a ModuleList: it occurs only as a part of the paths of its children.
bool is_below(std::string_view path, std::string_view pattern) {
  for (std::size_t end = path.find('.'); end != std::string_view::npos; end = path.find('.', end + 1))
    if (matches_glob(pattern, path.substr(0, end))) return true;
  return matches_glob(pattern, path);
}

bool is_in_module(const CallNode& node, const std::string& pattern) {
  return std::any_of(node.modules.begin(), node.modules.end(),
                     [&](const ModuleScope& scope) { return is_below(scope.path, pattern); });
}

bool is_in_type(const CallNode& node, const std::string& type) {
  return std::any_of(node.modules.begin(), node.modules.end(), [&](const ModuleScope& scope) {
    return scope.type == type || short_type(scope.type) == type;
  });
}

bool has_op(const CallNode& node, const std::string& op) {
  return node.target == op || short_target(node.target) == op || without_overload(node.target) == op;
}

// True if the name of the call, or of a call that was merged into it, meets the condition.
template <class Condition>
bool has_name(const CallNode& node, Condition&& condition) {
  return condition(node.name) || std::any_of(node.aliases.begin(), node.aliases.end(), condition);
}

std::regex compiled(const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    throw InvalidGraph({.where = "Select",
                        .what = "the regular expression is malformed: " + std::string(error.what()),
                        .expected = {},
                        .got = quoted(text)});
  }
}

// Names that would satisfy a condition, each with its short form.
using Names = std::set<std::pair<std::string, std::string>>;

std::string near(const std::string& name, const Names& names) {
  std::vector<KnownName> known;
  for (const auto& [full, brief] : names) known.push_back({full, brief});
  const std::string found = did_you_mean(name, known);
  return found.empty() ? found : ". " + found;
}

Names names_of(const CallGraph& graph, std::pair<std::string, std::string> (*name)(const CallNode&)) {
  Names names;
  for (const CallNode& node : graph.nodes()) names.insert(name(node));
  return names;
}

Names scopes_of(const CallGraph& graph, bool types) {
  Names names;
  for (const CallNode& node : graph.nodes())
    for (const ModuleScope& scope : node.modules)
      names.emplace(types ? scope.type : scope.path, types ? std::string(short_type(scope.type)) : "");
  return names;
}

// A sentence about one condition, empty if it holds for some node.
std::string explain_condition(const CallGraph& graph, const Selection& one, const std::string& near_names) {
  return select(graph, one).empty() ? "no node has " + describe(one) + near_names : std::string();
}

}  // namespace

std::vector<NodeIndex> select(const CallGraph& graph, const Selection& selection) {
  std::vector<bool> listed;
  if (selection.nodes) {
    listed.resize(graph.size());
    for (const std::string& name : *selection.nodes) listed[graph.at(name, "Select").index()] = true;
  }
  const bool names_nodes = selection.name || selection.regex || selection.nodes;
  const std::optional<std::regex> regex =
      selection.regex ? std::optional(compiled(*selection.regex)) : std::nullopt;
  std::vector<NodeIndex> out;
  for (std::uint32_t n = 0; n < graph.size(); ++n) {
    const CallNode& node = graph.nodes()[n];
    if (!names_nodes && node.kind != CallKind::kCall) continue;
    if (selection.name && !has_name(node, [&](const std::string& name) { return name == *selection.name; }))
      continue;
    if (selection.op && !has_op(node, *selection.op)) continue;
    if (selection.nodes && !listed[n]) continue;
    if (selection.type && !is_in_type(node, *selection.type)) continue;
    if (selection.module && !is_in_module(node, *selection.module)) continue;
    if (regex && !has_name(node, [&](const std::string& name) { return std::regex_search(name, *regex); }))
      continue;
    out.emplace_back(n);
  }
  return out;
}

std::string describe(const Selection& selection) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, const std::optional<std::string>& value) {
    if (value) parts.push_back(std::string(name) + "=" + quoted(*value));
  };
  add("name", selection.name);
  add("regex", selection.regex);
  add("module", selection.module);
  add("type", selection.type);
  add("op", selection.op);
  if (selection.nodes) parts.push_back(std::to_string(selection.nodes->size()) + " nodes");
  return parts.empty() ? "all calls" : joined(parts);
}

std::string explain_empty(const CallGraph& graph, const Selection& selection) {
  using Pair = std::pair<std::string, std::string>;
  std::string text;
  if (selection.name)
    text = explain_condition(
        graph, {.name = selection.name},
        near(*selection.name, names_of(graph, [](const CallNode& n) { return Pair{n.name, ""}; })));
  if (text.empty() && selection.op)
    text = explain_condition(graph, {.op = selection.op},
                             near(*selection.op, names_of(graph, [](const CallNode& n) {
                               return Pair{n.target, short_target(n.target)};
                             })));
  if (text.empty() && selection.module)
    text = explain_condition(graph, {.module = selection.module},
                             near(*selection.module, scopes_of(graph, false)));
  if (text.empty() && selection.type)
    text = explain_condition(graph, {.type = selection.type}, near(*selection.type, scopes_of(graph, true)));
  if (text.empty() && selection.regex) text = explain_condition(graph, {.regex = selection.regex}, "");
  if (!text.empty()) return text;
  return "no node has " + describe(selection) + (graph.size() == 0 ? "" : " at once");
}

}  // namespace tosaic::quant
