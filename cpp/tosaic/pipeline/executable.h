// executable: converts a graph into one that can be prepared and run, at every stage.
#pragma once

#include <memory>

#include "tosaic/exec/prepare.h"
#include "tosaic/exec/session.h"
#include "tosaic/ir/graph.h"

namespace tosaic::pipeline {

// Returns a graph that computes the same and can be prepared. Composites without a kernel are replaced by the
// expansions that `decompose` uses, also in regions. Nodes with an override are not expanded. A graph at
// stage quantized runs with the meaning of its operators: they compute in f32 between dequantize and quantize
// nodes, except for nodes with a model, which stay as they are. Results have the same names as before.
// Constants that are views of memory that others own are copied, so that a run depends on no memory but the
// caller's arrays. Large floats that the graph computes from narrower constants are computed here, once,
// unless nodes have overrides. Returns the same graph if there is nothing to do.
[[nodiscard]] std::shared_ptr<const Graph> executable(std::shared_ptr<const Graph> graph,
                                                      const exec::Overrides& overrides = {});

// A session that runs the executable form of the graph.
[[nodiscard]] exec::Session make_session(const std::shared_ptr<const Graph>& graph,
                                         const exec::PrepareOptions& options);

}  // namespace tosaic::pipeline
