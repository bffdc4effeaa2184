// module_stacks: the modules around a node.
//
//   "L__self__,,Net;L__self___conv,conv,torch.nn.Conv2d"   ->   (L__self__, "", Net), (L__self___conv, conv, ...)
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "tosaic/pt2/nodes.h"

namespace tosaic::pt2 {

// Reads each text once: most nodes of a module have the same.
class ModuleStacks {
 public:
  explicit ModuleStacks(std::vector<ModuleStack>& stacks) : stacks_(stacks) {}

  // Reads the text of a module stack, and returns the position of the stack in `stacks`. Throws WrongJson if the
  // text is no module stack.
  [[nodiscard]] std::uint32_t read(std::string_view recorded);

 private:
  std::vector<ModuleStack>& stacks_;
  std::unordered_map<std::string_view, std::uint32_t> known_;
};

}  // namespace tosaic::pt2
