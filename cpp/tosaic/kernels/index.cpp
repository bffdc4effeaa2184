// Kernels that read or write at positions from index arrays, except index_put (scatter.cpp). Every index is
// checked before it is used. Negative indices count from the end in `index` only, as in torch.

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "tosaic/base/error.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/isa/table.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/walk.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

struct IndexReader {
  DType dtype = DType::kI64;
  [[nodiscard]] int64_t at(const std::byte* array, int64_t i) const {
    return dtype == DType::kI64 ? reinterpret_cast<const int64_t*>(array)[i]
                                : reinterpret_cast<const std::int32_t*>(array)[i];
  }
};

IndexReader index_reader(const Request& request, std::size_t operand) {
  const DType dtype = request.operands[operand].dtype;
  if (dtype != DType::kI64 && dtype != DType::kI32) fail_unsupported(request);
  return {dtype};
}

int64_t checked(Op op, int64_t index, int64_t limit) {
  if (index < 0 || index >= limit) fail_index(op, index, 0, limit);
  return index;
}

void copy_element(std::byte* to, const std::byte* from, int64_t bytes) {
  switch (bytes) {
    case 1:
      *to = *from;
      return;
    case 2:
      std::memcpy(to, from, 2);
      return;
    case 4:
      std::memcpy(to, from, 4);
      return;
    case 8:
      std::memcpy(to, from, 8);
      return;
    default:
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
}

// result[o, w, :] = source[o, index[w], :], or source[o, index[o, w], :] if index_per_outer is set. The
// source is [outer, limit, row bytes], the result [outer, count, row bytes].
struct RowLookup {
  Op op = Op::kOpaque;
  int64_t outer = 1, limit = 1, count = 1, row = 0;
  bool index_per_outer = false;
  IndexReader indices;
};

// Looks up rows [begin, end) of the result.
void run_lookup(const RowLookup& plan, int64_t begin, int64_t end, const Arrays& arrays) {
  std::byte* result = arrays.results[0] + begin * plan.row;
  for (int64_t row = begin; row < end;) {
    const int64_t outer = row / plan.count;
    const int64_t stop = std::min(end, (outer + 1) * plan.count);
    const int64_t skipped = plan.index_per_outer ? 0 : outer * plan.count;
    for (; row < stop; ++row, result += plan.row) {
      const int64_t at = checked(plan.op, plan.indices.at(arrays.operands[1], row - skipped), plan.limit);
      copy_element(result, arrays.operands[0] + (outer * plan.limit + at) * plan.row, plan.row);
    }
  }
}

Kernel lookup(const RowLookup& plan) {
  Kernel kernel;
  kernel.run = [plan](const Arrays& arrays) {
    const Loop rows{.count = plan.outer * plan.count,
                    .unit_cost = cost::kScattered + static_cast<double>(plan.row) * cost::kCopy / 4};
    parallel_for(arrays.team, rows,
                 [&](int64_t begin, int64_t end, Worker) { run_lookup(plan, begin, end, arrays); });
  };
  return kernel;
}

RowLookup rows_along(const Request& request, std::size_t axis) {
  const Shape& shape = request.operands[0].shape;
  RowLookup plan;
  plan.op = request.op;
  plan.indices = index_reader(request, 1);
  plan.row = static_cast<int64_t>(byte_size(request.operands[0].dtype));
  for (std::size_t i = 0; i < shape.size(); ++i)
    (i < axis ? plan.outer : i == axis ? plan.limit : plan.row) *= shape[i];
  plan.count = num_elements(request.operands[1].shape);
  return plan;
}

Kernel index_select(const Request& request) {
  const std::size_t axis =
      normalize_axis(attrs_of<AxisAttrs>(request).axis, request.operands[0].shape.size());
  return lookup(rows_along(request, axis));
}

// Looks up elements of four bytes. If an index is out of range, the loop over rows names it.
Kernel lookup_words(const RowLookup& plan, const TableKernels& kernels) {
  Kernel kernel;
  kernel.run = [plan, &kernels](const Arrays& arrays) {
    const auto* table = reinterpret_cast<const std::int32_t*>(arrays.operands[0]);
    const auto* indices = reinterpret_cast<const std::int32_t*>(arrays.operands[1]);
    auto* results = reinterpret_cast<std::int32_t*>(arrays.results[0]);
    const auto limit = static_cast<std::int32_t>(plan.limit);
    const Loop loop{.count = plan.count, .step = 64, .unit_cost = cost::kScattered / 4};
    parallel_for(arrays.team, loop, [&](int64_t begin, int64_t end, Worker) {
      if (!kernels.gather(table, limit, indices + begin, results + begin, end - begin))
        run_lookup(plan, begin, end, arrays);
    });
  };
  return kernel;
}

Kernel tosa_gather(const Request& request) {
  RowLookup plan = rows_along(request, 1);
  plan.count = request.operands[1].shape[1];
  plan.index_per_outer = true;
  const bool has_words = plan.row == 4 && plan.outer == 1 && plan.indices.dtype == DType::kI32 &&
                         plan.limit <= std::numeric_limits<std::int32_t>::max();
  if (has_words && !request.options.reference)
    return lookup_words(plan, TOSAIC_SELECT_ISA(request.options.isa, kTable));
  return lookup(plan);
}

// TOSA's SCATTER may write each row of a batch at most once. `written` has a byte for each row.
void run_tosa_scatter(const RowLookup& plan, const Arrays& arrays) {
  const std::byte* row = arrays.operands[2];
  std::byte* const written = arrays.scratch;
  for (int64_t outer = 0; outer < plan.outer; ++outer) {
    std::memset(written, 0, static_cast<std::size_t>(plan.limit));
    for (int64_t i = 0; i < plan.count; ++i, row += plan.row) {
      const int64_t at =
          checked(plan.op, plan.indices.at(arrays.operands[1], outer * plan.count + i), plan.limit);
      if (written[at] != std::byte{0})
        throw InvalidGraph({.where = std::string(info(plan.op).name),
                            .what = "an index occurs twice",
                            .expected = "each index once per batch",
                            .got = std::to_string(at),
                            .hint = "The last value stays where torch.scatter writes few elements"});
      written[at] = std::byte{1};
      copy_element(arrays.results[0] + (outer * plan.limit + at) * plan.row, row, plan.row);
    }
  }
}

Kernel tosa_scatter(const Request& request) {
  RowLookup plan = rows_along(request, 1);
  plan.count = request.operands[1].shape[1];
  const auto bytes = static_cast<std::size_t>(plan.outer * plan.limit * plan.row);
  Kernel kernel;
  kernel.in_place = 1;
  kernel.scratch_bytes = static_cast<std::size_t>(plan.limit);
  kernel.run = [plan, bytes](const Arrays& arrays) {
    std::byte* result = arrays.results[0];
    if (bytes != 0 && result != arrays.operands[0]) std::memcpy(result, arrays.operands[0], bytes);
    run_tosa_scatter(plan, arrays);
  };
  return kernel;
}

// result[i, j, k] = input[i, index[i, j, k], k] (rank 3, axis 1). On the other axes, the index has at most
// the extents of the input.
Kernel gather(const Request& request) {
  const Operand& input = request.operands[0];
  const Shape& shape = request.results[0].shape;
  const std::size_t axis = normalize_axis(attrs_of<AxisAttrs>(request).axis, input.shape.size());
  const IndexReader indices = index_reader(request, 1);
  const auto bytes = static_cast<int64_t>(byte_size(input.dtype));
  const int64_t limit = input.shape.empty() ? 1 : input.shape[axis];
  const int64_t stride = input.shape.empty() ? 1 : contiguous_strides(input.shape)[axis];
  Dims strides = contiguous_strides(input.shape);
  if (!strides.empty()) strides[axis] = 0;
  const int64_t count = num_elements(shape);
  Kernel kernel;
  kernel.run = [=](const Arrays& arrays) {
    const Loop elements{.count = count, .step = 64, .unit_cost = cost::kScattered};
    parallel_for(arrays.team, elements, [&](int64_t begin, int64_t end, Worker) {
      Walk walk(shape, strides);
      walk.seek(begin);
      for (int64_t i = begin; i < end; ++i, walk.next()) {
        const int64_t at = checked(Op::kGather, indices.at(arrays.operands[1], i), limit);
        copy_element(arrays.results[0] + i * bytes,
                     arrays.operands[0] + (walk.offset() + at * stride) * bytes, bytes);
      }
    });
  };
  return kernel;
}

// Advanced indexing as in torch. The index arrays broadcast to one shape, whose axes are called lookup axes.
// In the result, the lookup axes replace the indexed axes if the indexed axes are adjacent. If not, the
// lookup axes come first. The axes that are not indexed (kept axes) are in the order of the input. An element
// of the result is in the input at
//
//   offset = sum over index arrays k of wrap(index_k[...]) * stride_k  +  sum over kept axes of i * stride
struct AdvancedIndex {
  struct Array {
    std::size_t operand = 0;
    IndexReader indices;
    Dims strides;  // strides of the index array along the lookup axes
    int64_t limit = 0, stride = 0;
  };
  std::vector<Array> arrays;
  Shape front, lookup,
      back;  // extents of the result: kept axes before the lookup axes, the lookup axes, kept axes after them
  Dims front_strides, back_strides;
  int64_t bytes = 0;
  int64_t row = 1;  // adjacent elements that one copy moves: the trailing axes that take_row() removed
};

int64_t wrapped(int64_t index, int64_t limit) {
  if (index < -limit || index >= limit) fail_index(Op::kIndex, index, -limit, limit);
  return index < 0 ? index + limit : index;
}

void run_advanced(const AdvancedIndex& plan, const Arrays& arrays) {
  const std::byte* source = arrays.operands[0];
  std::byte* result = arrays.results[0];
  if (num_elements(plan.front) == 0 || num_elements(plan.lookup) == 0 || num_elements(plan.back) == 0 ||
      plan.row == 0)
    return;
  Walk front(plan.front, plan.front_strides);
  do {
    Dims at = Dims::filled(plan.lookup.size(), 0);
    for (;;) {
      int64_t offset = front.offset();
      for (const AdvancedIndex::Array& array : plan.arrays) {
        int64_t place = 0;
        for (std::size_t i = 0; i < at.size(); ++i) place += at[i] * array.strides[i];
        offset +=
            wrapped(array.indices.at(arrays.operands[array.operand], place), array.limit) * array.stride;
      }
      Walk back(plan.back, plan.back_strides);
      do {
        copy_element(result, source + (offset + back.offset()) * plan.bytes, plan.row * plan.bytes);
        result += plan.row * plan.bytes;
      } while (back.next());
      std::size_t axis = at.size();
      while (axis > 0 && ++at[axis - 1] == plan.lookup[axis - 1]) at[--axis] = 0;
      if (axis == 0) break;
    }
  } while (front.next());
}

// Removes the trailing axes of `back` that are dense in the input, and multiplies `row` by their extents, so
// that one copy moves all of them.
void take_row(AdvancedIndex& plan) {
  while (!plan.back.empty() && plan.back_strides.back() == plan.row) {
    plan.row *= plan.back.back();
    plan.back.erase(plan.back.size() - 1);
    plan.back_strides.erase(plan.back_strides.size() - 1);
  }
}

Kernel advanced_index(const Request& request) {
  const Operand& input = request.operands[0];
  const Dims strides = contiguous_strides(input.shape);
  AdvancedIndex plan;
  plan.bytes = static_cast<int64_t>(byte_size(input.dtype));
  std::vector<std::size_t> indexed;
  for (std::size_t axis = 0; axis + 1 < request.operands.size(); ++axis) {
    if (!request.operands[axis + 1].present) continue;
    indexed.push_back(axis);
    plan.lookup = broadcast(plan.lookup, request.operands[axis + 1].shape);
  }
  const bool adjacent = !indexed.empty() && indexed.back() - indexed.front() + 1 == indexed.size();
  for (std::size_t axis = 0; axis < input.shape.size(); ++axis) {
    if (std::find(indexed.begin(), indexed.end(), axis) != indexed.end()) continue;
    const bool before = indexed.empty() || (adjacent && axis < indexed.front());
    (before ? plan.front : plan.back).push_back(input.shape[axis]);
    (before ? plan.front_strides : plan.back_strides).push_back(strides[axis]);
  }
  for (const std::size_t axis : indexed) {
    const Operand& index = request.operands[axis + 1];
    const Dims dense = contiguous_strides(index.shape);
    Dims over_lookup = Dims::filled(plan.lookup.size(), 0);
    const std::size_t lead = plan.lookup.size() - index.shape.size();
    for (std::size_t i = 0; i < index.shape.size(); ++i)
      over_lookup[lead + i] = index.shape[i] == 1 ? 0 : dense[i];
    plan.arrays.push_back(
        {axis + 1, index_reader(request, axis + 1), over_lookup, input.shape[axis], strides[axis]});
  }
  take_row(plan);
  Kernel kernel;
  kernel.run = [plan = std::make_shared<const AdvancedIndex>(std::move(plan))](const Arrays& arrays) {
    run_advanced(*plan, arrays);
  };
  return kernel;
}

Kernel embedding(const Request& request) { return lookup(rows_along(request, 0)); }

constexpr OpTable<Prepare> kKernels = {
    {Op::kGather, gather},       {Op::kIndexSelect, index_select}, {Op::kIndex, advanced_index},
    {Op::kEmbedding, embedding}, {Op::kTosaGather, tosa_gather},   {Op::kTosaScatter, tosa_scatter},
};
static_assert(complete<kKernels.mismatch(has_family<prepare_index>)>);

}  // namespace

Kernel prepare_index(const Request& request) { return (*kKernels.find(request.op))(request); }

}  // namespace tosaic::kernels
