#include "tosaic/tosa/reader/reader.h"

#include <algorithm>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/verify.h"
#include "tosaic/tosa/reader/block.h"
#include "tosaic/tosa/reader/envelope.h"

namespace tosaic::tosa {

Read read_program(const Storage& file) {
  FileState state{file, BlockTable(checked_root(file.bytes())), Budget(file.size()), {}};
  Graph graph = read_block(state, state.blocks.program(), 0);
  state.blocks.require_all_used();
  const auto nodes = graph.nodes();
  const bool has_variables =
      std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return touches_variables(node); });
  if (has_variables) verify(graph, {.types = false, .stage = false});  // the use of variables across regions
  return {std::move(graph), std::move(state.notes)};
}

}  // namespace tosaic::tosa
