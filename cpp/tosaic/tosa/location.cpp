#include "tosaic/tosa/location.h"

#include <charconv>
#include <vector>

namespace tosaic::tosa {
namespace {

constexpr std::string_view kFieldSeparator = " | ";
constexpr std::string_view kLeafSeparator = "; ";
constexpr std::size_t kFields = 4;
constexpr std::size_t kMaxLeaves = 256;  // longer lists are read as one name: merging is quadratic

std::string leaf_text(const Origin& leaf) {
  const std::string source = leaf.source();
  if (leaf.target.empty() && leaf.module_path.empty() && source.empty()) return leaf.fx_name;
  std::string text = leaf.fx_name;
  for (const std::string& field : {leaf.target, leaf.module_path, source})
    text.append(kFieldSeparator).append(field);
  return text;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + separator.size());
  }
}

OriginRef leaf_from_text(std::string_view text) {
  auto leaf = std::make_shared<Origin>();
  const std::vector<std::string_view> fields = split(text, kFieldSeparator);
  leaf->fx_name = fields.front();
  if (fields.size() != kFields) return leaf;
  leaf->target = fields[1];
  leaf->module_path = fields[2];
  const std::string_view source = fields[3];
  const std::size_t colon = source.rfind(':');
  if (colon == std::string_view::npos) return leaf;
  leaf->file = source.substr(0, colon);
  std::from_chars(source.data() + colon + 1, source.data() + source.size(), leaf->line);
  return leaf;
}

}  // namespace

std::string location_text(const OriginRef& origin) {
  std::string text;
  for (const OriginRef& leaf : leaves(origin)) {
    if (!text.empty()) text += kLeafSeparator;
    text += leaf_text(*leaf);
  }
  return text;
}

OriginRef LocationReader::leaf(std::string_view text) {
  OriginRef& known = leaves_[std::string(text)];
  if (!known) known = leaf_from_text(text);
  return known;
}

OriginRef LocationReader::read(std::string_view text) {
  if (text.empty()) return nullptr;
  OriginRef& known = texts_[std::string(text)];
  if (known) return known;
  const std::vector<std::string_view> parts = split(text, kLeafSeparator);
  if (parts.size() <= kMaxLeaves) {
    std::vector<OriginRef> parsed;
    for (const std::string_view part : parts) parsed.push_back(leaf(part));
    OriginRef origin = merge(parsed);
    if (location_text(origin) == text) return known = origin;
  }
  auto verbatim = std::make_shared<Origin>();
  verbatim->fx_name = text;
  return known = verbatim;
}

}  // namespace tosaic::tosa
