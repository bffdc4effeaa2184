// executable: a graph as it can be prepared and run.
#pragma once

#include <memory>

#include "tosaic/exec/prepare.h"
#include "tosaic/ir/graph.h"

namespace tosaic::pipeline {

// Operators without a kernel of their own (trait kExpanded) give way to the expansions that `decompose` uses,
// also inside regions; a graph at stage quantized runs as what its operators mean, in f32 between dequantize
// and quantize. Results keep their names. Nodes with an override stay. Constants that are views of others'
// memory are copied, so that a run depends on nobody's memory but the caller's arrays. The graph itself where
// there is nothing to do.
[[nodiscard]] std::shared_ptr<const Graph> executable(std::shared_ptr<const Graph> graph,
                                                      const exec::Overrides& overrides = {});

}  // namespace tosaic::pipeline
