// writer: writes a graph as a .tosa file. See tosa/serialize.h for what a file may hold.
//
//   graph --file_plan.h--> tensors and operators as plain data --encode.h--> flatbuffer with holes
//                                                          --writer.cpp--> FileImage
//
// Further parts of the writer: tensor_list.h (names, shared constants), operands.h (attributes that are
// operands), variables.h, region_names.h, attributes.h (attribute tables).
#pragma once

#include "tosaic/tosa/serialize.h"

namespace tosaic::tosa {

[[nodiscard]] FileImage write_program(const Graph& graph, const SerializeOptions& options);

}  // namespace tosaic::tosa
