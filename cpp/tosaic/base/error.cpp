#include "tosaic/base/error.h"

#include <string_view>

namespace tosaic {
namespace {

constexpr std::string_view kIndent = "  ";  // of each error in a summary

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

// A text with newlines as escapes, but for the newlines of summarize(): it may quote names.
std::string quoting(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins_line = text[i] == '\n' && text.compare(i + 1, kIndent.size(), kIndent) != 0;
    out += begins_line ? "\\n" : text.substr(i, 1);
  }
  return out;
}

}  // namespace

std::string format_error(const ErrorParts& parts) {
  std::string text;
  if (!parts.where.empty()) text += "[" + parts.where + "] ";
  text += quoting(parts.what);
  if (!parts.expected.empty() || !parts.got.empty()) {
    text += ": ";
    if (!parts.expected.empty()) text += "expected " + quoting(parts.expected);
    if (!parts.expected.empty() && !parts.got.empty()) text += ", ";
    if (!parts.got.empty()) text += "got " + quoting(parts.got);
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
  if (!parts.hint.empty()) text += ". " + quoting(parts.hint) + ".";
  return text;
}

ErrorParts Error::summarize(const std::string& where, const std::string& headline,
                            const std::vector<ErrorParts>& each) {
  if (each.size() == 1) return each.front();
  std::string all = std::to_string(each.size()) + " " + headline;
  for (const ErrorParts& parts : each) all += "\n" + std::string(kIndent) + format_error(parts);
  return {.where = where, .what = std::move(all)};
}

}  // namespace tosaic
