#include "tosaic/pt2/module_stacks.h"

#include "tosaic/base/error_text.h"

namespace tosaic::pt2 {
namespace {

// Splits a module at commas that are outside of brackets.
Module read_module(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == '[' || letter == '(') ++depth;
    if (letter == ']' || letter == ')') --depth;
    if (letter != ',' || depth != 0) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(text.substr(begin));
  if (parts.size() != 3) throw WrongJson("key, path and type of a module", quoted(text.substr(0, 120)));
  return {text, parts[0], parts[1], parts[2]};
}

}  // namespace

std::uint32_t ModuleStacks::read(std::string_view recorded) {
  if (const auto found = known_.find(recorded); found != known_.end()) return found->second;
  ModuleStack stack;
  for (std::size_t begin = 0;;) {
    const std::size_t end = recorded.find(';', begin);
    stack.push_back(read_module(recorded.substr(begin, end - begin)));
    if (end == std::string_view::npos) break;
    begin = end + 1;
  }
  stacks_.push_back(std::move(stack));
  return known_[recorded] = static_cast<std::uint32_t>(stacks_.size() - 1);
}

}  // namespace tosaic::pt2
