#include "tosaic/ir/origin.h"

#include <algorithm>

namespace tosaic {
namespace {

void collect(const OriginRef& origin, std::vector<OriginRef>& out) {
  if (!origin) return;
  if (origin->parents.empty()) {
    if (std::find(out.begin(), out.end(), origin) == out.end()) out.push_back(origin);
    return;
  }
  for (const OriginRef& parent : origin->parents) collect(parent, out);
}

}  // namespace

std::string Origin::source() const {
  if (file.empty()) return {};
  const std::size_t slash = file.find_last_of('/');
  return (slash == std::string::npos ? file : file.substr(slash + 1)) + ":" + std::to_string(line);
}

std::vector<OriginRef> leaves(const OriginRef& origin) {
  std::vector<OriginRef> out;
  collect(origin, out);
  return out;
}

OriginRef merge(const std::vector<OriginRef>& origins) {
  std::vector<OriginRef> all;
  for (const OriginRef& origin : origins) collect(origin, all);
  if (all.empty()) return nullptr;
  if (all.size() == 1) return all.front();
  for (const OriginRef& origin : origins)  // nothing new: keep the handle
    if (origin && origin->parents == all) return origin;
  auto merged = std::make_shared<Origin>();
  merged->parents = std::move(all);
  return merged;
}

ErrorParts located(ErrorParts parts, const OriginRef& origin, const std::string& node_name) {
  const std::vector<OriginRef> from = leaves(origin);
  if (parts.node.empty())
    parts.node = from.empty() || from.front()->fx_name.empty() ? node_name : from.front()->fx_name;
  if (from.empty()) return parts;
  if (parts.module_path.empty()) parts.module_path = from.front()->module_path;
  if (parts.source.empty()) parts.source = from.front()->source();
  return parts;
}

}  // namespace tosaic
