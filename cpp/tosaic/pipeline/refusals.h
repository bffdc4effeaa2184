// refusals: errors that name the one cause of many problems.
//
// A float program for a target without floats breaks a rule at nearly every node, and so does a quantized
// program for a target without integer arithmetic. `lower` calls these functions after a failure. Each throws
// an error that begins with the cause, or returns if the failure has another cause.
#pragma once

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"
#include "tosaic/pipeline/pipeline.h"
#include "tosaic/target/spec.h"

namespace tosaic::pipeline {

// If a fault of the pipeline is the cause of `error`, throws an error with this cause, followed by `error`.
// There are two such faults: a pass of section quantize that a quantized program needs was removed, or a pass
// that replaces `decompose` leaves composites. `decomposed` is the graph after section decompose, or null if
// it was not reached.
void refuse_changed_pipeline(const Graph& exported, const Graph* decomposed, const Error& error,
                             const Pipeline& pipeline);

// Call it for a target without profile FP. `exported` is the graph before quantization was folded,
// `quantized` the graph before lower-to-integer. Throws UnsupportedOp, which names the operators that compute
// with floats.
void refuse_floats(const Graph& exported, const Graph& quantized, const target::TargetSpec& target);

// Call it for a target without profile INT. If the program is quantized, throws an error with this cause,
// followed by `error`.
void refuse_quantization(const Graph& exported, const UnsupportedOp& error, const target::TargetSpec& target);
void refuse_quantization(const Graph& exported, const SpecViolation& error, const target::TargetSpec& target);

}  // namespace tosaic::pipeline
