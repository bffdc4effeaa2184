// Computes softmax(query key^T scale + mask) value, head by head and 32 query rows at a time. All arithmetic
// is in double:
//
//   key, value of a head --convert, pack--> panels;  query rows --multiply--> scores --mask, softmax-->
//   --multiply--> rows
//
// Threads share the blocks of query rows of all heads. Leading axes broadcast. With enable_gqa, consecutive
// query heads share one key head and one value head. If all keys of a row are masked, the row of the result is
// zero, as in torch.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/isa_tables.h"
#include "tosaic/kernels/normalize_block.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/reduce_block.h"
#include "tosaic/kernels/scratch.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

constexpr int64_t kQueryRows = 32;
constexpr double kInf = std::numeric_limits<double>::infinity();

// The positions of the heads of an operand. `strides` has an entry for each leading axis of the result: the
// number of elements of the operand that one step along that axis skips.
struct Heads {
  ConvertBlock load = nullptr;
  int64_t bytes = 0;
  Dims strides;
  int64_t shared = 1;  // query heads per head of this operand (enable_gqa)
};

struct Plan {
  bool reference = false;
  const GemmKernels<double>* gemm = nullptr;
  double (*exp_scores)(double*, int64_t, double) = nullptr;
  FoldAlong largest = nullptr;
  Shape leading;
  Heads query, key, value, mask;
  bool has_mask = false, bool_mask = false, is_causal = false;
  int64_t mask_row = 0, mask_column = 0;  // strides in the mask
  int64_t rows = 0, keys = 0, depth = 0, width = 0;
  double scale = 1;
  ConvertBlock store = nullptr;
  int64_t result_bytes = 0;
  PerWorker workers;
  // Of a worker.
  std::size_t raw = 0, key_panels = 0, value_panels = 0, query_rows = 0, scores = 0, mask_values = 0, out = 0;
};

int64_t head_offset(const Heads& heads, const Dims& at) {
  int64_t offset = 0;
  for (std::size_t i = 0; i < at.size(); ++i)
    offset += (i + 1 == at.size() ? at[i] / heads.shared : at[i]) * heads.strides[i];
  return offset;
}

void multiply(const Plan& plan, const double* a, int64_t rows, int64_t depth, const double* b, int64_t cols,
              double* c) {
  if (plan.reference) {  // b is not packed: [depth, cols]
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        double sum = 0.0;
        for (int64_t k = 0; k < depth; ++k) sum += a[i * depth + k] * b[k * cols + j];
        c[i * cols + j] = sum;
      }
    return;
  }
  GemmBlock<double> block;
  block.rows = rows;
  block.cols = cols;
  block.depth = depth;
  block.a = a;
  block.a_stride = depth;
  block.b = b;
  block.c = c;
  block.c_stride = cols;
  plan.gemm->multiply(block);
}

void pack_head(const Plan& plan, const Arrays& arrays, const Dims& at) {
  auto* raw = piece<double>(arrays.scratch, plan.raw);
  auto* keys = piece<double>(arrays.scratch, plan.key_panels);
  auto* values = piece<double>(arrays.scratch, plan.value_panels);
  plan.key.load(arrays.operands[1] + head_offset(plan.key, at) * plan.key.bytes, raw, plan.keys * plan.depth);
  if (plan.reference) {
    for (int64_t s = 0; s < plan.keys; ++s)
      for (int64_t e = 0; e < plan.depth; ++e) keys[e * plan.keys + s] = raw[s * plan.depth + e];
  } else {
    plan.gemm->pack_transposed(raw, plan.depth, plan.depth, plan.keys, keys);
  }
  const std::byte* from = arrays.operands[2] + head_offset(plan.value, at) * plan.value.bytes;
  plan.value.load(from, plan.reference ? values : raw, plan.keys * plan.width);
  if (!plan.reference) plan.gemm->pack(raw, plan.width, plan.keys, plan.width, values);
}

void apply_mask(const Plan& plan, const Arrays& arrays, const Dims& at, int64_t row, double* scores) {
  if (plan.is_causal) std::fill(scores + std::min(plan.keys, row + 1), scores + plan.keys, -kInf);
  if (!plan.has_mask) return;
  auto* mask = piece<double>(arrays.scratch, plan.mask_values);
  const std::byte* from =
      arrays.operands[3] + (head_offset(plan.mask, at) + row * plan.mask_row) * plan.mask.bytes;
  plan.mask.load(from, mask, plan.mask_column == 0 ? 1 : plan.keys);
  for (int64_t s = 0; s < plan.keys; ++s) {
    const double value = mask[s * plan.mask_column];
    if (!plan.bool_mask)
      scores[s] += value;
    else if (value == 0.0)
      scores[s] = -kInf;
  }
}

void softmax_row(const Plan& plan, double* scores) {
  Accumulator max{.real = -kInf};
  plan.largest(scores, plan.keys, 0.0, &max);
  if (max.real == -kInf) {
    std::fill_n(scores, plan.keys, 0.0);
    return;
  }
  const double factor = 1.0 / plan.exp_scores(scores, plan.keys, max.real);
  for (int64_t s = 0; s < plan.keys; ++s) scores[s] *= factor;
}

void run_rows(const Plan& plan, const Arrays& arrays, const Dims& at, int64_t first, int64_t rows,
              std::byte* result) {
  auto* query = piece<double>(arrays.scratch, plan.query_rows);
  auto* scores = piece<double>(arrays.scratch, plan.scores);
  auto* out = piece<double>(arrays.scratch, plan.out);
  const int64_t from = head_offset(plan.query, at) + first * plan.depth;
  plan.query.load(arrays.operands[0] + from * plan.query.bytes, query, rows * plan.depth);
  for (int64_t i = 0; i < rows * plan.depth; ++i) query[i] *= plan.scale;
  multiply(plan, query, rows, plan.depth, piece<double>(arrays.scratch, plan.key_panels), plan.keys, scores);
  for (int64_t i = 0; i < rows; ++i) {
    apply_mask(plan, arrays, at, first + i, scores + i * plan.keys);
    softmax_row(plan, scores + i * plan.keys);
  }
  multiply(plan, scores, rows, plan.keys, piece<double>(arrays.scratch, plan.value_panels), plan.width, out);
  plan.store(out, result, rows * plan.width);
}

// The indices of head number `head` along the leading axes.
Dims indices_of(const Plan& plan, int64_t head) {
  Dims at = Dims::filled(plan.leading.size(), 0);
  for (std::size_t axis = at.size(); axis-- > 0; head /= plan.leading[axis])
    at[axis] = head % plan.leading[axis];
  return at;
}

// Computes blocks [begin, end) of query rows, which are numbered through all heads. The scratch memory is that
// of a worker.
void run_blocks(const Plan& plan, const Arrays& arrays, int64_t begin, int64_t end) {
  const int64_t blocks = (plan.rows + kQueryRows - 1) / kQueryRows;
  Dims at;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t head = block / blocks, row = block % blocks * kQueryRows;
    if (block == begin || row == 0) {
      at = indices_of(plan, head);
      pack_head(plan, arrays, at);
    }
    const int64_t rows = std::min(kQueryRows, plan.rows - row);
    run_rows(plan, arrays, at, row, rows,
             arrays.results[0] + (head * plan.rows + row) * plan.width * plan.result_bytes);
  }
}

void run_attention(const Plan& plan, const Arrays& arrays) {
  if (plan.rows == 0 || plan.width == 0) return;
  const int64_t blocks = (plan.rows + kQueryRows - 1) / kQueryRows;
  const double products = static_cast<double>(std::min(kQueryRows, plan.rows) * plan.keys);
  const Loop loop{.count = num_elements(plan.leading) * blocks,
                  .unit_cost = products * (static_cast<double>(plan.depth + plan.width) * cost::kMultiplyAdd +
                                           cost::kFunction)};
  parallel_for(arrays.team, loop, [&](int64_t begin, int64_t end, Worker worker) {
    run_blocks(plan, {arrays.operands, arrays.results, plan.workers.of(arrays.scratch, worker)}, begin, end);
  });
}

Heads heads_of(const Request& request, const Operand& operand, const Shape& leading,
               const ConvertKernels& convert, bool grouped) {
  Heads heads;
  heads.load = convert.load(operand.dtype, Domain::kF64);
  heads.bytes = static_cast<int64_t>(byte_size(operand.dtype));
  heads.strides = Dims::filled(leading.size(), 0);
  const Dims strides = contiguous_strides(operand.shape);
  if (operand.shape.size() > leading.size() + 2) fail_unsupported(request);
  const std::size_t lead = leading.size() + 2 - operand.shape.size();
  for (std::size_t i = lead; i < leading.size(); ++i) {
    const int64_t extent = operand.shape[i - lead];
    if (extent != 1) heads.strides[i] = strides[i - lead];
    if (grouped && i + 1 == leading.size() && extent != 0)
      heads.shared = std::max<int64_t>(1, leading[i] / extent);
  }
  return heads;
}

void plan_scratch(Plan& plan, ScratchPlan& scratch) {
  const int64_t panel = plan.reference ? 1 : plan.gemm->panel;
  const auto padded = [panel](int64_t cols) { return (cols + panel - 1) / panel * panel; };
  plan.raw = scratch.take<double>(plan.keys * std::max(plan.depth, plan.width));
  plan.key_panels = scratch.take<double>(plan.depth * padded(plan.keys));
  plan.value_panels = scratch.take<double>(plan.keys * padded(plan.width));
  plan.query_rows = scratch.take<double>(kQueryRows * plan.depth);
  plan.scores = scratch.take<double>(kQueryRows * plan.keys);
  plan.mask_values = scratch.take<double>(plan.keys);
  plan.out = scratch.take<double>(kQueryRows * plan.width);
}

// Reads the mask as (leading..., rows, keys). The stride of a missing axis, or one of extent 1, is 0.
void set_mask(Plan& plan, const Request& request, const ConvertKernels& convert) {
  plan.has_mask = request.operands.size() > 3 && request.operands[3].present;
  if (!plan.has_mask) return;
  const Operand& mask = request.operands[3];
  plan.bool_mask = mask.dtype == DType::kBool;
  Operand padded = mask;
  while (padded.shape.size() < 2) padded.shape.insert(0, 1);
  plan.mask = heads_of(request, padded, plan.leading, convert, false);
  plan.mask_column = padded.shape.back() == 1 ? 0 : 1;
  plan.mask_row = padded.shape[padded.shape.size() - 2] == 1 ? 0 : padded.shape.back();
}

}  // namespace

// Query times keys, and weights times values.
std::uint64_t attention_multiply_adds(const Request& request) {
  const Shape &query = request.operands[0].shape, &key = request.operands[1].shape;
  const Shape& result = request.results[0].shape;
  if (result.empty()) return 0;
  const int64_t rows = num_elements(result) / std::max<int64_t>(1, result.back());
  return static_cast<std::uint64_t>(rows * key[key.size() - 2] * (query.back() + result.back()));
}

Kernel prepare_attention(const Request& request) {
  const auto& attrs = attrs_of<SdpaAttrs>(request);
  const Operand& query = request.operands[0];
  const Operand& key = request.operands[1];
  const Operand& result = request.results[0];
  const std::size_t rank = result.shape.size();
  if (!is_float(result.dtype) || rank < 2) fail_unsupported(request);
  auto plan = std::make_shared<Plan>();
  plan->reference = request.options.reference;
  const Isa isa = plan->reference ? Isa::kBaseline : request.options.isa;
  const ConvertKernels& convert = convert_kernels(isa);
  const NormalizeKernels& loops = TOSAIC_SELECT_ISA(isa, kNormalizeKernels);
  plan->gemm = &gemm_kernels_f64(isa);
  const bool wide = plan->reference || result.dtype == DType::kF64;
  plan->exp_scores = wide ? loops.f64.exp_scores : loops.f32.exp_scores;
  plan->largest = TOSAIC_SELECT_ISA(isa, kReduceKernels).find(Fold::kMax, Domain::kF64).along;
  for (std::size_t i = 0; i + 2 < rank; ++i) plan->leading.push_back(result.shape[i]);
  plan->rows = result.shape[rank - 2];
  plan->width = result.shape[rank - 1];
  plan->depth = query.shape.back();
  plan->keys = key.shape[key.shape.size() - 2];
  plan->scale = attrs.scale.value_or(1.0 / std::sqrt(static_cast<double>(plan->depth)));
  plan->query = heads_of(request, query, plan->leading, convert, false);
  plan->key = heads_of(request, key, plan->leading, convert, attrs.enable_gqa);
  plan->value = heads_of(request, request.operands[2], plan->leading, convert, attrs.enable_gqa);
  plan->is_causal = attrs.is_causal;
  set_mask(*plan, request, convert);
  plan->store = convert.store(Domain::kF64, result.dtype, Rounding::kTruncate);
  plan->result_bytes = static_cast<int64_t>(byte_size(result.dtype));
  ScratchPlan own, scratch;
  plan_scratch(*plan, own);
  plan->workers = scratch.take_each(own, request.options.threads.count);
  Kernel kernel;
  kernel.scratch_bytes = scratch.bytes();
  kernel.name = kernel_name(request);
  kernel.factors = DType::kF64;
  kernel.run = [plan = std::shared_ptr<const Plan>(plan)](const Arrays& arrays) {
    run_attention(*plan, arrays);
  };
  return kernel;
}

}  // namespace tosaic::kernels
