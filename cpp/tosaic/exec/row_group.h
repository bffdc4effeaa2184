// row_group: steps that are computed together, some rows at a time, so that the values between them stay in
// the cache.
//
//   scores = q kT -> max -> sub -> exp -> sum -> reciprocal -> mul = weights -> weights v       one group
//
//   for each block of rows:
//     for each segment of the group:
//       for each tile of rows of the block:
//         for each step of the segment: compute these rows
//
// A product needs the rows of a block, to read its right operand seldom, and steps with an element for each
// row are called seldom, too. Each of them is a segment whose tile is the block.
//
// The rows of a value are all its axes but the last. A step belongs to a group if each row of its result
// depends on the same row of the other values of the group only: elementwise operators, tables, reductions
// and softmaxes of the last axis, and products of matrices. Every row of such a product
// reads the whole right operand, which is therefore computed before the group.
//
// Reshapes between the steps are allowed. If they change the rows, they may be read by steps that compute
// element by element, which then work on the rows of the group:
//
//   [6, 1500, 1500] -> reshape -> [13500000] -> shift -> gather -> reshape -> [6, 1500, 1500] -> sum
//
// A group computes equal steps once. Only the last value of a group has readers outside; the group runs in
// place of its last step. A run that must show an inner value runs the steps one by one, with the same bytes
// as result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tosaic/exec/steps.h"

namespace tosaic::exec {

// An operand of a step in a group, for a block of rows. The block has an index along each outer axis.
struct RowOperand {
  enum class Kind : std::uint8_t { kAbsent, kBuffer, kTable };
  Kind kind = Kind::kAbsent;
  std::uint32_t operand = 0;   // kTable: the operand of the step
  std::size_t offset = 0;      // kBuffer: in the memory of a worker
  Dims outer;                  // kTable: bytes from one index of an outer axis to the next
  std::int64_t row_bytes = 0;  // bytes from one row to the next; 0: the same for all rows, or for all tiles
};

// A step with the kernels that compute it for a whole tile of its segment and for the last one of all, which
// may be shorter.
struct RowStep {
  std::uint32_t step = 0;
  std::vector<RowOperand> operands;
  bool is_last = false;               // writes the result of the group
  std::uint32_t in_place = 0;         // Kernel::in_place
  std::size_t result = 0;             // unless is_last: offset of its result in the memory of a worker
  std::int64_t result_row_bytes = 0;  // as RowOperand::row_bytes
  std::function<void(const kernels::Arrays&)> whole, rest;
  std::optional<kernels::RowProduct> product;  // in place of `whole` and `rest`
  std::size_t scratch = 0;                     // its offset in the memory of a worker
};

// Consecutive steps that compute a block tile by tile: all steps compute the first rows of the block, then
// all compute the next rows, so that the values between them stay in the first-level cache. A value that only
// the segment uses has memory for one tile.
struct RowSegment {
  std::uint32_t begin = 0, end = 0;  // of the steps
  std::int64_t rows = 0;             // of a tile; those of a block are a multiple
};

class RowGroup {
 public:
  // Computes `result`. Operand i of `all[s]` is at `table[all[s].first_operand + i]`. `scratch` has
  // scratch_bytes().
  void run(std::span<const Step> all, std::span<const std::byte* const> table, std::byte* result,
           std::byte* scratch, Team* team) const;

  [[nodiscard]] std::size_t scratch_bytes() const { return worker_bytes * workers; }

  std::string kernel;            // "rows.avx512"
  std::optional<DType> factors;  // Kernel::factors of its products
  std::vector<RowStep> steps;
  std::vector<RowSegment> segments;
  std::vector<std::uint32_t>
      members;  // all steps that it computes, in order: those above and the ones fused with them
  Dims outer;   // extents of the outer axes
  std::int64_t rows = 0, block_rows = 0;
  std::int64_t result_row_bytes = 0;
  std::size_t worker_bytes = 0;
  std::uint32_t workers = 1;
  double block_cost = 0;  // nanoseconds

 private:
  [[nodiscard]] std::int64_t blocks() const { return (rows + block_rows - 1) / block_rows; }
  void run_block(std::span<const Step> all, std::span<const std::byte* const> table, const Dims& at,
                 std::int64_t block, std::byte* result, std::byte* memory) const;
  void run_tile(std::span<const Step> all, std::span<const std::byte* const> table, const Dims& at,
                const RowSegment& segment, std::int64_t row, std::int64_t first, std::int64_t count,
                std::byte* result, std::byte* memory) const;
  void pack(std::span<const Step> all, std::span<const std::byte* const> table, const Dims& at,
            std::byte* memory) const;
};

// Finds groups. `steps` are the steps of the graph with their chains, and this function sets in `needs` what
// the memory plan must know. A group is worth while if the values between its steps have at least
// `least_bytes` together.
void group_rows(const Graph& graph, std::vector<Step>& steps, std::vector<memory::NodeNeeds>& needs,
                const kernels::Options& options, std::size_t least_bytes);

}  // namespace tosaic::exec
