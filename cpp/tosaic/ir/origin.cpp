#include "tosaic/ir/origin.h"

#include <algorithm>
#include <unordered_set>

namespace tosaic {
namespace {

// Leaves in order of first appearance.
class Leaves {
 public:
  void add(const OriginRef& origin) {
    if (!origin) return;
    if (origin->parents.empty() && seen_.insert(origin.get()).second) found_.push_back(origin);
    for (const OriginRef& parent : origin->parents) add(parent);
  }
  [[nodiscard]] std::vector<OriginRef> found() && { return std::move(found_); }

 private:
  std::vector<OriginRef> found_;
  std::unordered_set<const Origin*> seen_;
};

bool quantizes(const OriginRef& call) { return call->target.find("quantize") != std::string::npos; }

// The FX call that an error about the node names. Calls that quantize or dequantize are merged into the nodes
// next to them. If the origin has none of these, the result is its first call. Otherwise the result is the
// call that has the name of the node, or else the first call that neither quantizes nor dequantizes.
OriginRef call_of(const std::vector<OriginRef>& calls, const std::string& node_name) {
  if (calls.empty()) return nullptr;
  if (std::ranges::none_of(calls, quantizes)) return calls.front();
  const auto named =
      std::ranges::find_if(calls, [&](const OriginRef& call) { return call->fx_name == node_name; });
  if (named != calls.end()) return *named;
  const auto computes = std::ranges::find_if_not(calls, quantizes);
  return computes != calls.end() ? *computes : calls.front();
}

}  // namespace

std::string Origin::source() const {
  if (file.empty()) return {};
  const std::size_t slash = file.find_last_of('/');
  return (slash == std::string::npos ? file : file.substr(slash + 1)) + ":" + std::to_string(line);
}

std::vector<OriginRef> leaves(const OriginRef& origin) {
  Leaves all;
  all.add(origin);
  return std::move(all).found();
}

OriginRef merge(const std::vector<OriginRef>& origins) {
  Leaves found;
  for (const OriginRef& origin : origins) found.add(origin);
  std::vector<OriginRef> all = std::move(found).found();
  if (all.empty()) return nullptr;
  if (all.size() == 1) return all.front();
  for (const OriginRef& origin : origins)  // reuse an equal union
    if (origin && origin->parents == all) return origin;
  auto merged = std::make_shared<Origin>();
  merged->parents = std::move(all);
  return merged;
}

bool is_inside_call(const std::string& value, const OriginRef& from, const std::string& result,
                    const OriginRef& at) {
  const auto has_call = [](const OriginRef& origin, const std::string& name) {
    const std::vector<OriginRef> calls = leaves(origin);
    return std::any_of(calls.begin(), calls.end(),
                       [&](const OriginRef& call) { return call->fx_name == name; });
  };
  return has_call(at, result) && has_call(from, result) && !has_call(from, value);
}

ErrorParts located(ErrorParts parts, const OriginRef& origin, const std::string& node_name) {
  const std::vector<OriginRef> from = leaves(origin);
  const OriginRef call = call_of(from, node_name);
  if (parts.node.empty()) {
    const bool is_named =
        call && !call->fx_name.empty() && (from.size() == 1 || std::ranges::none_of(from, quantizes));
    parts.node = is_named ? call->fx_name : node_name;
  }
  if (!call) return parts;
  if (parts.module_path.empty()) parts.module_path = call->module_path;
  if (parts.source.empty()) parts.source = call->source();
  return parts;
}

}  // namespace tosaic
