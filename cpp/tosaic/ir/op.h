// Op: the closed set of operators, and the row of each operator in ops.def.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tosaic/ir/attributes.h"

namespace tosaic {

enum class Op : std::uint16_t {
#define TOSAIC_OP(Name, ...) Name,
#include "tosaic/ir/ops.def"
};
inline constexpr std::size_t kOpCount = 0
#define TOSAIC_OP(...) +1
#include "tosaic/ir/ops.def"
    ;

// ops.def says what the traits mean.
enum Trait : std::uint16_t {
  kNone = 0,
  kElementwise = 1,
  kView = 2,
  kMovement = 4,
  kComposite = 8,
  kCommutative = 16,
  kEffect = 32,
  kComparison = 64,
  kSelection = 128,
  kElementsOfInput = 256,
};

inline constexpr int kNoInt16 = -1;  // the operator has no integer form

struct OpInfo {
  Op op;
  std::string_view name;      // the name in the text form
  std::string_view operands;  // the column `operands` of ops.def
  std::int8_t results;
  std::uint16_t traits;
  bool is_tosa;
  bool has_kernel;                          // false: the column `kernel` of ops.def is kNoKernel
  std::uint8_t attrs_index;                 // kAttrsIndex of its attribute struct
  std::uint8_t min_operands, max_operands;  // max 255 = variadic
  std::int8_t int16_units;                  // the error bound `int16` of ops.def, or kNoInt16

  [[nodiscard]] bool has(Trait trait) const { return (traits & trait) != 0; }
  // True for a composite without a kernel: the executor runs its expansion.
  [[nodiscard]] bool runs_as_expansion() const { return has(kComposite) && !has_kernel; }
  // The name of operand i, e.g. "weight". All operands of a variadic tail have the tail's name.
  [[nodiscard]] std::string_view operand_name(std::size_t i) const;
  [[nodiscard]] bool operand_optional(std::size_t i) const;
  // True for the operand `table` of tosa.table: it is read by position, and does not broadcast.
  [[nodiscard]] bool is_table(std::size_t i) const { return operand_name(i) == "table"; }
  // True for the operand `indices` of tosa.gather and tosa.scatter; the others hold elements.
  [[nodiscard]] bool is_index(std::size_t i) const { return operand_name(i) == "indices"; }
};

[[nodiscard]] const OpInfo& info(Op op);
[[nodiscard]] std::span<const OpInfo> all_ops();
[[nodiscard]] std::optional<Op> parse_op(std::string_view name);
// The default-constructed attribute struct of `op`.
[[nodiscard]] Attrs default_attrs(Op op);

}  // namespace tosaic
