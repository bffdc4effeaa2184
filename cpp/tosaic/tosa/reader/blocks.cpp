#include "tosaic/tosa/reader/blocks.h"

#include "tosaic/tosa/reader/lists.h"
#include "tosaic/tosa/reader/place.h"

namespace tosaic::tosa {

BlockTable::BlockTable(const schema::TosaGraph& root) {
  for (std::size_t r = 0; r < length(root.regions()); ++r) {
    const auto* region = at(root.regions(), r);
    for (std::size_t b = 0; b < length(region->blocks()); ++b) {
      const auto* block = at(region->blocks(), b);
      regions_.emplace(utf8_text({}, "the name of a region", view(region->name())), entries_.size());
      blocks_.emplace(utf8_text({}, "the name of a block", view(block->name())), entries_.size());
      entries_.emplace_back().block = block;
    }
  }
  if (entries_.empty()) fail<InvalidGraph>({}, "the file has no block of operators");
}

BlockEntry& BlockTable::program() {
  const auto it = regions_.find("main");
  return entries_[it == regions_.end() ? 0 : it->second];
}

BlockEntry* BlockTable::find(std::string_view name) {
  for (const auto* names : {&regions_, &blocks_})
    if (const auto it = names->find(std::string(name)); it != names->end()) return &entries_[it->second];
  return nullptr;
}

void BlockTable::require_all_used() const {
  for (const BlockEntry& entry : entries_)
    if (!entry.used)
      fail<InvalidGraph>({},
                         "block " + quoted_readable(view(entry.block->name())) + " is used by no operator");
}

}  // namespace tosaic::tosa
