// module_stacks: the modules around a node.
//
//   "L__self__,,Net;L__self___conv,conv,torch.nn.Conv2d"  ->  (L__self__, "", Net), (L__self___conv, conv,
//                                                             ..)
#pragma once

#include <string_view>
#include <unordered_map>

#include "tosaic/pt2/nodes.h"

namespace tosaic::pt2 {

// Reads the text of each stack and of each module once: the nodes of a module have the same stack, and its
// stack begins with the stack of the module around it.
class ModuleStacks {
 public:
  explicit ModuleStacks(ProgramNodes& program) : program_(program) {}

  // Reads the text of a module stack, and returns the position of the stack in the program. Throws WrongJson
  // if the text is not a module stack.
  [[nodiscard]] std::uint32_t read(std::string_view recorded);

 private:
  const Module& module_of(std::string_view text);

  ProgramNodes& program_;
  std::unordered_map<std::string_view, std::uint32_t> stacks_;
  std::unordered_map<std::string_view, Module> modules_;
};

}  // namespace tosaic::pt2
