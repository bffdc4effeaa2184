#include "tosaic/base/error.h"

namespace tosaic {
namespace {

// A name with newlines as escapes: it must not look like a line of the message.
std::string one_line(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

}  // namespace

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
  if (!parts.node.empty()) add("node '" + one_line(parts.node) + "'");
  if (!parts.module_path.empty()) add("module '" + one_line(parts.module_path) + "'");
  add(one_line(parts.source));
  if (!place.empty()) text += " (" + place + ")";
  if (!parts.hint.empty()) text += ". " + parts.hint + ".";
  return text;
}

ErrorParts Error::summarize(const std::string& where, const std::string& headline,
                            const std::vector<ErrorParts>& each) {
  if (each.size() == 1) return each.front();
  std::string all = std::to_string(each.size()) + " " + headline;
  for (const ErrorParts& parts : each) all += "\n  " + format_error(parts);
  return {.where = where, .what = std::move(all)};
}

}  // namespace tosaic
