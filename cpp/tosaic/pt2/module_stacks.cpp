#include "tosaic/pt2/module_stacks.h"

#include <array>

#include "tosaic/base/error_text.h"

namespace tosaic::pt2 {
namespace {

// Splits a module at commas that are outside of brackets.
Module read_module(std::string_view text) {
  std::array<std::string_view, 3> parts;
  std::size_t count = 0, begin = 0;
  int depth = 0;
  const auto add = [&](std::size_t end) {
    if (count < parts.size()) parts[count] = text.substr(begin, end - begin);
    ++count;
    begin = end + 1;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == '[' || letter == '(') ++depth;
    if (letter == ']' || letter == ')') --depth;
    if (letter == ',' && depth == 0) add(i);
  }
  add(text.size());
  if (count != parts.size()) throw WrongJson("key, path and type of a module", quoted(text.substr(0, 120)));
  return {.text = text, .key = parts[0], .path = parts[1], .type = parts[2]};
}

}  // namespace

const Module& ModuleStacks::module_of(std::string_view text) {
  if (const auto found = modules_.find(text); found != modules_.end()) return found->second;
  Module module = read_module(text);
  module.index = program_.modules++;
  return modules_.emplace(text, module).first->second;
}

std::uint32_t ModuleStacks::read(std::string_view recorded) {
  if (const auto found = stacks_.find(recorded); found != stacks_.end()) return found->second;
  ModuleStack stack;
  std::size_t begin = 0;
  if (!program_.stacks.empty()) {  // most stacks begin as the one before
    for (const Module& module : program_.stacks.back()) {
      const std::string_view rest = recorded.substr(begin);
      const std::size_t size = module.text.size();
      if (rest.size() <= size || rest[size] != ';' || !rest.starts_with(module.text)) break;
      stack.push_back(module);
      begin += size + 1;
    }
  }
  for (;;) {
    const std::size_t end = recorded.find(';', begin);
    stack.push_back(module_of(recorded.substr(begin, end - begin)));
    if (end == std::string_view::npos) break;
    begin = end + 1;
  }
  program_.stacks.push_back(std::move(stack));
  return stacks_[recorded] = static_cast<std::uint32_t>(program_.stacks.size() - 1);
}

}  // namespace tosaic::pt2
