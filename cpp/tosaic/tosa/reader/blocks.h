// blocks: the blocks of a file by name. The program and each region of control flow are one block.
#pragma once

#include <tosa_generated.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::tosa {

struct BlockEntry {
  const schema::TosaBasicBlock* block = nullptr;
  std::unordered_map<std::string_view, const schema::TosaTensor*> tensors;  // by name; added at the first use
  std::shared_ptr<const Graph> graph;                                       // a region that was read; or null
  std::size_t regions = 1;  // this block and all regions inside, each once per use
  bool open = false;        // this block is being read
  bool used = false;
};

class BlockTable {
 public:
  // Throws if the file has no block, or if a name is not UTF-8.
  explicit BlockTable(const schema::TosaGraph& root);

  // The program: the first block of the region "main" or, if there is no such region, of the file.
  [[nodiscard]] BlockEntry& program();
  // The first block of the region of this name. If there is no such region, the block of this name, or null.
  [[nodiscard]] BlockEntry* find(std::string_view name);
  // Throws if no operator refers to some block.
  void require_all_used() const;

 private:
  std::vector<BlockEntry> entries_;
  std::unordered_map<std::string, std::size_t> regions_, blocks_;
};

}  // namespace tosaic::tosa
