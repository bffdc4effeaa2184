// Computes softmax(query key^T scale + mask) value, head by head and some query rows at a time:
//
//   key, value of a head --convert, pack--> panels;  query rows --multiply--> scores --mask, exponentials-->
//   --multiply--> sums of values --divide by the sums of the exponentials--> rows
//
// The arithmetic is in float, for results of f64 and in the reference in double. The sums of the exponentials
// are in double. Threads share the blocks of query rows of all heads. Leading axes broadcast. With
// enable_gqa, consecutive query heads share one key head and one value head. If all keys of a row are masked,
// the row of the result is zero, as in torch.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/gemm/gemm.h"
#include "tosaic/kernels/normalize_block.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/reduce_block.h"
#include "tosaic/kernels/scratch.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

constexpr double kInf = std::numeric_limits<double>::infinity();
// The number of keys whose weighted values are summed in one go. These sums are then added, because the
// rounding error of a sum grows with its length.
constexpr int64_t kBandKeys = 256;

// The positions of the heads of an operand. `strides` has an entry for each leading axis of the result: the
// number of elements of the operand that one step along that axis skips.
struct Heads {
  ConvertBlock load = nullptr;
  int64_t bytes = 0;
  Dims strides;
  int64_t shared = 1;  // query heads per head of this operand (enable_gqa)
};

// T is the type of the arithmetic: float or double.
template <class T>
struct Plan {
  bool reference = false;
  const GemmKernels<T>* gemm = nullptr;
  ExpScores<T> exp_scores = nullptr;
  FoldAlong largest = nullptr;
  Shape leading;
  Heads query, key, value, mask;
  bool has_mask = false, bool_mask = false, is_causal = false;
  int64_t mask_row = 0, mask_column = 0;  // strides in the mask
  int64_t rows = 0, keys = 0, depth = 0, width = 0;
  int64_t block_rows = 1;   // query rows of a block
  int64_t panel_width = 0;  // `width`, rounded up to whole panels
  double scale = 1;
  ConvertBlock store = nullptr;
  int64_t result_bytes = 0;
  PerWorker workers;
  // Offsets in the scratch memory of a worker.
  std::size_t raw = 0, key_panels = 0, value_panels = 0, query_rows = 0, scores = 0, mask_values = 0, out = 0;

  [[nodiscard]] int64_t blocks() const { return (rows + block_rows - 1) / block_rows; }
};

int64_t head_offset(const Heads& heads, const Dims& at) {
  int64_t offset = 0;
  for (std::size_t i = 0; i < at.size(); ++i)
    offset += (i + 1 == at.size() ? at[i] / heads.shared : at[i]) * heads.strides[i];
  return offset;
}

// C = A B, with A[rows x depth] and B[depth x cols]. The reference does not pack B.
template <class T>
void multiply(const Plan<T>& plan, const T* a, int64_t a_stride, int64_t rows, int64_t depth, const T* b,
              int64_t cols, bool accumulate, T* c) {
  if (plan.reference) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        T sum = accumulate ? c[i * cols + j] : T{};
        for (int64_t k = 0; k < depth; ++k) sum += a[i * a_stride + k] * b[k * cols + j];
        c[i * cols + j] = sum;
      }
    return;
  }
  GemmBlock<T> block;
  block.rows = rows;
  block.cols = cols;
  block.depth = depth;
  block.a = a;
  block.a_stride = a_stride;
  block.b = b;
  block.c = c;
  block.c_stride = cols;
  block.accumulate = accumulate;
  plan.gemm->multiply(block);
}

// Calls use(first, count) for each band of keys.
template <class F>
void for_each_band(int64_t keys, F&& use) {
  for (int64_t first = 0; first < keys; first += kBandKeys) use(first, std::min(kBandKeys, keys - first));
}

template <class T>
void pack_head(const Plan<T>& plan, const Arrays& arrays, const Dims& at) {
  T* raw = piece<T>(arrays.scratch, plan.raw);
  T* keys = piece<T>(arrays.scratch, plan.key_panels);
  T* values = piece<T>(arrays.scratch, plan.value_panels);
  plan.key.load(arrays.operands[1] + head_offset(plan.key, at) * plan.key.bytes, raw, plan.keys * plan.depth);
  if (plan.reference) {
    for (int64_t s = 0; s < plan.keys; ++s)
      for (int64_t e = 0; e < plan.depth; ++e) keys[e * plan.keys + s] = raw[s * plan.depth + e];
  } else {
    plan.gemm->pack_transposed(raw, plan.depth, plan.depth, plan.keys, keys);
  }
  const std::byte* from = arrays.operands[2] + head_offset(plan.value, at) * plan.value.bytes;
  plan.value.load(from, plan.reference ? values : raw, plan.keys * plan.width);
  if (plan.reference) return;
  for_each_band(plan.keys, [&](int64_t first, int64_t count) {
    plan.gemm->pack(raw + first * plan.width, plan.width, count, plan.width,
                    values + first * plan.panel_width);
  });
}

template <class T>
void apply_mask(const Plan<T>& plan, const Arrays& arrays, const Dims& at, int64_t row, T* scores) {
  constexpr auto kMasked = static_cast<T>(-kInf);
  if (plan.is_causal) std::fill(scores + std::min(plan.keys, row + 1), scores + plan.keys, kMasked);
  if (!plan.has_mask) return;
  T* mask = piece<T>(arrays.scratch, plan.mask_values);
  const std::byte* from =
      arrays.operands[3] + (head_offset(plan.mask, at) + row * plan.mask_row) * plan.mask.bytes;
  plan.mask.load(from, mask, plan.mask_column == 0 ? 1 : plan.keys);
  for (int64_t s = 0; s < plan.keys; ++s) {
    const T value = mask[s * plan.mask_column];
    if (!plan.bool_mask)
      scores[s] += value;
    else if (value == T{})
      scores[s] = kMasked;
  }
}

// Replaces the scores of a row by their exponentials. Returns the factor by which the row's sum of values is
// to be multiplied.
template <class T>
double exponentials(const Plan<T>& plan, T* scores) {
  Accumulator max{.real = -kInf};
  plan.largest(scores, plan.keys, 0.0, &max);
  if (max.real == -kInf) {
    std::fill_n(scores, plan.keys, T{});
    return 0.0;
  }
  return 1.0 / plan.exp_scores(scores, plan.keys, static_cast<T>(max.real));
}

template <class T>
void run_rows(const Plan<T>& plan, const Arrays& arrays, const Dims& at, int64_t first, int64_t rows,
              std::byte* result) {
  T* query = piece<T>(arrays.scratch, plan.query_rows);
  T* scores = piece<T>(arrays.scratch, plan.scores);
  T* out = piece<T>(arrays.scratch, plan.out);
  const T* values = piece<T>(arrays.scratch, plan.value_panels);
  const int64_t from = head_offset(plan.query, at) + first * plan.depth;
  plan.query.load(arrays.operands[0] + from * plan.query.bytes, query, rows * plan.depth);
  for (int64_t i = 0; i < rows * plan.depth; ++i) query[i] *= static_cast<T>(plan.scale);
  multiply<T>(plan, query, plan.depth, rows, plan.depth, piece<T>(arrays.scratch, plan.key_panels), plan.keys,
              false, scores);
  std::array<double, kMostBlockRows> factors;
  for (int64_t i = 0; i < rows; ++i) {
    apply_mask<T>(plan, arrays, at, first + i, scores + i * plan.keys);
    factors[static_cast<std::size_t>(i)] = exponentials<T>(plan, scores + i * plan.keys);
  }
  if (plan.keys == 0) std::fill_n(out, rows * plan.width, T{});
  for_each_band(plan.keys, [&](int64_t key, int64_t count) {
    multiply<T>(plan, scores + key, plan.keys, rows, count, values + key * plan.panel_width, plan.width,
                key > 0, out);
  });
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < plan.width; ++j)
      out[i * plan.width + j] =
          static_cast<T>(static_cast<double>(out[i * plan.width + j]) * factors[static_cast<std::size_t>(i)]);
  plan.store(out, result, rows * plan.width);
}

// The indices of head number `head` along the leading axes.
Dims indices_of(const Shape& leading, int64_t head) {
  Dims at = Dims::filled(leading.size(), 0);
  for (std::size_t axis = at.size(); axis-- > 0; head /= leading[axis]) at[axis] = head % leading[axis];
  return at;
}

// Computes blocks [begin, end) of query rows, which are numbered through all heads. The scratch memory
// belongs to one worker.
template <class T>
void run_blocks(const Plan<T>& plan, const Arrays& arrays, int64_t begin, int64_t end) {
  const int64_t blocks = plan.blocks();
  Dims at;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t head = block / blocks, row = block % blocks * plan.block_rows;
    if (block == begin || row == 0) {
      at = indices_of(plan.leading, head);
      pack_head<T>(plan, arrays, at);
    }
    const int64_t rows = std::min(plan.block_rows, plan.rows - row);
    run_rows<T>(plan, arrays, at, row, rows,
                arrays.results[0] + (head * plan.rows + row) * plan.width * plan.result_bytes);
  }
}

template <class T>
void run_attention(const Plan<T>& plan, const Arrays& arrays) {
  if (plan.rows == 0 || plan.width == 0) return;
  const double products = static_cast<double>(std::min(plan.block_rows, plan.rows) * plan.keys);
  const Loop loop{.count = num_elements(plan.leading) * plan.blocks(),
                  .unit_cost = products * (static_cast<double>(plan.depth + plan.width) * cost::kMultiplyAdd +
                                           cost::kFunction)};
  parallel_for(arrays.team, loop, [&](int64_t begin, int64_t end, Worker worker) {
    run_blocks<T>(plan, {arrays.operands, arrays.results, plan.workers.of(arrays.scratch, worker)}, begin,
                  end);
  });
}

template <class T>
constexpr Domain kDomain = std::is_same_v<T, float> ? Domain::kF32 : Domain::kF64;

template <class T>
Heads heads_of(const Request& request, const Operand& operand, const Shape& leading,
               const ConvertKernels& convert, bool grouped) {
  Heads heads;
  heads.load = convert.load(operand.dtype, kDomain<T>);
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

template <class T>
void plan_scratch(Plan<T>& plan, ScratchPlan& scratch) {
  const int64_t panel = plan.reference ? 1 : plan.gemm->panel;
  const auto padded = [panel](int64_t cols) { return (cols + panel - 1) / panel * panel; };
  plan.panel_width = padded(plan.width);
  plan.raw = scratch.take<T>(plan.keys * std::max(plan.depth, plan.width));
  plan.key_panels = scratch.take<T>(plan.depth * padded(plan.keys));
  plan.value_panels = scratch.take<T>(plan.keys * plan.panel_width);
  plan.query_rows = scratch.take<T>(plan.block_rows * plan.depth);
  plan.scores = scratch.take<T>(plan.block_rows * plan.keys);
  plan.mask_values = scratch.take<T>(plan.keys);
  plan.out = scratch.take<T>(plan.block_rows * plan.width);
}

// The number of query rows of a block: at most those of four register tiles, fewer if their scores do not fit
// the second-level cache.
template <class T>
int64_t block_rows(const GemmKernels<T>& gemm, int64_t keys) {
  constexpr int64_t most_bytes = 393216, most_tiles = 4;
  const int64_t tile_bytes = gemm.max_rows * std::max<int64_t>(keys, 1) * static_cast<int64_t>(sizeof(T));
  return gemm.max_rows * std::clamp<int64_t>(most_bytes / tile_bytes, 1, most_tiles);
}

// Sets the strides of the mask as (leading..., rows, keys). They are 0 for missing axes and axes of extent 1.
template <class T>
void set_mask(Plan<T>& plan, const Request& request, const ConvertKernels& convert) {
  plan.has_mask = request.operands.size() > 3 && request.operands[3].present;
  if (!plan.has_mask) return;
  const Operand& mask = request.operands[3];
  plan.bool_mask = mask.dtype == DType::kBool;
  Operand padded = mask;
  while (padded.shape.size() < 2) padded.shape.insert(0, 1);
  plan.mask = heads_of<T>(request, padded, plan.leading, convert, false);
  plan.mask_column = padded.shape.back() == 1 ? 0 : 1;
  plan.mask_row = padded.shape[padded.shape.size() - 2] == 1 ? 0 : padded.shape.back();
}

template <class T>
Kernel prepare_in(const Request& request) {
  const auto& attrs = attrs_of<SdpaAttrs>(request);
  const Operand& query = request.operands[0];
  const Operand& key = request.operands[1];
  const Operand& result = request.results[0];
  const std::size_t rank = result.shape.size();
  auto plan = std::make_shared<Plan<T>>();
  plan->reference = request.options.reference;
  const Isa isa = plan->reference ? Isa::kBaseline : request.options.isa;
  const ConvertKernels& convert = convert_kernels(isa);
  plan->gemm = &gemm_kernels<T>(isa);
  plan->exp_scores = loops_of<T>(TOSAIC_SELECT_ISA(isa, kNormalizeKernels)).exp_scores;
  plan->largest = TOSAIC_SELECT_ISA(isa, kReduceKernels).find(Fold::kMax, kDomain<T>).along;
  for (std::size_t i = 0; i + 2 < rank; ++i) plan->leading.push_back(result.shape[i]);
  plan->rows = result.shape[rank - 2];
  plan->width = result.shape[rank - 1];
  plan->depth = query.shape.back();
  plan->keys = key.shape[key.shape.size() - 2];
  plan->block_rows = block_rows<T>(*plan->gemm, plan->keys);
  plan->scale = attrs.scale.value_or(1.0 / std::sqrt(static_cast<double>(plan->depth)));
  plan->query = heads_of<T>(request, query, plan->leading, convert, false);
  plan->key = heads_of<T>(request, key, plan->leading, convert, attrs.enable_gqa);
  plan->value = heads_of<T>(request, request.operands[2], plan->leading, convert, attrs.enable_gqa);
  plan->is_causal = attrs.is_causal;
  set_mask<T>(*plan, request, convert);
  plan->store = convert.store(kDomain<T>, result.dtype, Rounding::kTruncate);
  plan->result_bytes = static_cast<int64_t>(byte_size(result.dtype));
  ScratchPlan own, scratch;
  plan_scratch<T>(*plan, own);
  plan->workers = scratch.take_each(own, request.options.threads.count);
  Kernel kernel;
  kernel.scratch_bytes = scratch.bytes();
  kernel.name = kernel_name(request);
  kernel.factors = std::is_same_v<T, float> ? DType::kF32 : DType::kF64;
  kernel.run = [plan = std::shared_ptr<const Plan<T>>(plan)](const Arrays& arrays) {
    run_attention<T>(*plan, arrays);
  };
  return kernel;
}

}  // namespace

// Counts the products of queries and keys, and of exponentials and values.
std::uint64_t attention_multiply_adds(const Request& request) {
  const Shape &query = request.operands[0].shape, &key = request.operands[1].shape;
  const Shape& result = request.results[0].shape;
  if (result.empty()) return 0;
  const int64_t rows = num_elements(result) / std::max<int64_t>(1, result.back());
  return static_cast<std::uint64_t>(rows * key[key.size() - 2] * (query.back() + result.back()));
}

Kernel prepare_attention(const Request& request) {
  const Operand& result = request.results[0];
  if (!is_float(result.dtype) || result.shape.size() < 2) fail_unsupported(request);
  return request.options.reference || result.dtype == DType::kF64 ? prepare_in<double>(request)
                                                                  : prepare_in<float>(request);
}

}  // namespace tosaic::kernels
