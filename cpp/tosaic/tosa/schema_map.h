// schema_map: the names and numbers of operators and dtypes in the file format, and how it packs elements.
//
// The numbers come from tosa.fbs. An operator's number is found by its name (tosa.avg_pool2d is
// AVG_POOL2D), so there is no second list of operators to maintain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tosaic/ir/dtype.h"
#include "tosaic/ir/op.h"

namespace tosaic::tosa {

// The number of a tosa.* operator. Returns nothing for other operators.
[[nodiscard]] std::optional<std::uint32_t> op_code(Op op);
// Returns nothing if the number is unknown or if ops.def lacks the operator.
[[nodiscard]] std::optional<Op> op_from_code(std::uint32_t code);
// "CONV2D"; "number 99" if the format has no such operator.
[[nodiscard]] std::string op_code_name(std::uint32_t code);

// Returns nothing if TOSA has no such dtype (u8, u16, i64, f64).
[[nodiscard]] std::optional<std::uint32_t> dtype_code(DType dtype);
[[nodiscard]] std::optional<DType> dtype_from_code(std::uint32_t code);
[[nodiscard]] std::string dtype_code_name(std::uint32_t code);

// True if the elements of `dtype` have the same bytes in the file as in memory (all but bool, i4, i48).
[[nodiscard]] bool same_layout(DType dtype);
// The number of bytes of `count` elements in the file.
[[nodiscard]] std::size_t packed_size(DType dtype, std::size_t count);
// pack() converts elements in memory to elements in the file, and unpack() converts them back. `packed` has
// packed_size() bytes.
void pack(DType dtype, std::span<const std::byte> elements, std::span<std::byte> packed);
void unpack(DType dtype, std::span<const std::byte> packed, std::span<std::byte> elements);

}  // namespace tosaic::tosa
