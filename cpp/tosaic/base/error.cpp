#include "tosaic/base/error.h"

namespace tosaic {

std::string format_error(const ErrorParts& parts) {
  std::string text;
  if (!parts.where.empty()) text += "[" + parts.where + "] ";
  text += parts.what;
  if (!parts.expected.empty() || !parts.got.empty()) {
    text += ": ";
    if (!parts.expected.empty()) text += "expected " + parts.expected;
    if (!parts.expected.empty() && !parts.got.empty()) text += ", ";
    if (!parts.got.empty()) text += "got " + parts.got;
  }
  std::string place;
  const auto add = [&place](const std::string& part) {
    if (part.empty()) return;
    if (!place.empty()) place += ", ";
    place += part;
  };
  if (!parts.node.empty()) add("node '" + parts.node + "'");
  if (!parts.module_path.empty()) add("module '" + parts.module_path + "'");
  add(parts.source);
  if (!place.empty()) text += " (" + place + ")";
  if (!parts.hint.empty()) text += ". " + parts.hint + ".";
  return text;
}

}  // namespace tosaic
