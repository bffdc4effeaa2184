// attributes: reads the attribute table of an operator in the file as the attributes of its node.
//
//   CONV2D {pad=[1,1,1,1], stride=[1,1], ...}   ->   TosaConvAttrs
//
// Constant operands are read by operands.h.
#pragma once

#include <span>

#include "tosaic/ir/attributes.h"
#include "tosaic/ir/type.h"
#include "tosaic/tosa/reader/place.h"

namespace tosaic::tosa {

// The attribute table of the operator, of schema type T. Throws if the file has none.
template <class T>
const T& attribute_table(const Place& place) {
  if (place.op->attribute() == nullptr || place.op->attribute_type() == schema::Attribute::NONE)
    fail<InvalidGraph>(place, "the attributes are missing");
  return *static_cast<const T*>(place.op->attribute());
}

// A number of the dtype, as it is in memory, as a scalar attribute.
[[nodiscard]] Scalar scalar_at(DType dtype, const std::byte* bytes);

// Returns `defaults` with the values of all fields that the table has. `operands` has the dtypes of the
// node's operands, and `result` the type of its first result, which some attributes repeat.
[[nodiscard]] Attrs read_attributes(const Place& place, Attrs defaults, std::span<const DType> operands,
                                    const TensorType& result);

}  // namespace tosaic::tosa
