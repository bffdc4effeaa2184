// attributes: writes the attributes of a node as the attribute table of its operator in the file.
//
//   TosaConvAttrs   ->   CONV2D {pad=[1,1,1,1], stride=[1,1], ...}
//
// Attributes that are constant operands are written by operands.h.
#pragma once

#include <tosa_generated.h>

#include "tosaic/tosa/writer/file_plan.h"

namespace tosaic::tosa {

// The attribute table of an operator. The operator's block was planned from `graph`. Throws for attributes
// out of range.
[[nodiscard]] flatbuffers::Offset<void> write_attributes(flatbuffers::FlatBufferBuilder& builder,
                                                         const Graph& graph, const OperatorPlan& op);
// A list of extents. Throws unless the extents fit 32 bits. `node` is the node that errors name; it may be
// null.
[[nodiscard]] flatbuffers::Offset<flatbuffers::Vector<std::int32_t>> write_dims(
    flatbuffers::FlatBufferBuilder& builder, const Graph& graph, const Node* node, const char* field,
    const Dims& dims);

}  // namespace tosaic::tosa
