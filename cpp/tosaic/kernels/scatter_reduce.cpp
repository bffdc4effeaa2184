// scatter_reduce: products and extrema of values at positions on one axis, in double or 64-bit integers.
//
// The values are visited in row-major order. Products are rounded to the dtype after each factor, as in
// torch.

#include <cmath>
#include <cstring>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/scratch.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

struct Plan {
  ScatterReduction reduction = ScatterReduction::kProd;
  DType dtype = DType::kF32, index_dtype = DType::kI64;
  Shape extents;                  // of index and source
  Dims strides;                   // of the result over these axes; 0 for the axis of the positions
  int64_t limit = 0, stride = 0;  // extent and stride of the axis of the positions
  bool include_self = true;
  std::size_t written = 0;  // offset in scratch of a flag per element: it has a value
  ConvertBlock load = nullptr, store = nullptr;
  std::size_t bytes = 0;  // of the input
};

// The product of integers wraps. An extremum with a NaN is NaN.
int64_t reduced(ScatterReduction reduction, int64_t a, int64_t b) {
  if (reduction == ScatterReduction::kProd)
    return static_cast<int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  return reduction == ScatterReduction::kAmax ? std::max(a, b) : std::min(a, b);
}
double reduced(ScatterReduction reduction, double a, double b) {
  if (reduction == ScatterReduction::kProd) return a * b;
  if (std::isnan(a) || std::isnan(b)) return NAN;
  return reduction == ScatterReduction::kAmax ? std::max(a, b) : std::min(a, b);
}

template <class T>
void run_reduce(const Plan& plan, const Arrays& arrays) {
  std::byte* to = arrays.results[0];
  if (plan.bytes != 0 && to != arrays.operands[0]) std::memcpy(to, arrays.operands[0], plan.bytes);
  const int64_t count = num_elements(plan.extents);
  bool* written = piece<bool>(arrays.scratch, plan.written);
  if (!plan.include_self) std::memset(written, 0, plan.bytes / byte_size(plan.dtype));
  const auto width = static_cast<int64_t>(byte_size(plan.dtype));
  Dims at = Dims::filled(plan.extents.size(), 0);
  for (int64_t from = 0; from < count; ++from) {
    const std::byte* indices = arrays.operands[1];
    const int64_t index = plan.index_dtype == DType::kI64
                              ? reinterpret_cast<const int64_t*>(indices)[from]
                              : reinterpret_cast<const std::int32_t*>(indices)[from];
    if (index < 0 || index >= plan.limit) fail_index(Op::kScatterReduce, index, 0, plan.limit);
    int64_t offset = index * plan.stride;
    for (std::size_t i = 0; i < at.size(); ++i) offset += at[i] * plan.strides[i];
    T own{}, value{};
    plan.load(to + offset * width, &own, 1);
    plan.load(arrays.operands[2] + from * width, &value, 1);
    const bool has_own = plan.include_self || std::exchange(written[offset], true);
    own = has_own ? reduced(plan.reduction, own, value) : value;
    plan.store(&own, to + offset * width, 1);
    for (std::size_t axis = at.size(); axis > 0 && ++at[axis - 1] == plan.extents[axis - 1]; --axis)
      at[axis - 1] = 0;
  }
}

}  // namespace

Kernel prepare_scatter_reduce(const Request& request) {
  const auto& attrs = attrs_of<ScatterReduceAttrs>(request);
  const Operand &input = request.operands[0], &index = request.operands[1];
  if (index.dtype != DType::kI64 && index.dtype != DType::kI32) fail_unsupported(request);
  const Domain domain = domain_of(input.dtype, true);
  const Isa isa = request.options.reference ? Isa::kBaseline : request.options.isa;
  Plan plan;
  plan.reduction = attrs.reduction;
  plan.dtype = input.dtype;
  plan.index_dtype = index.dtype;
  plan.extents = index.shape;
  plan.strides = contiguous_strides(input.shape);
  if (input.shape.empty()) {
    plan.limit = 1;
  } else {
    const std::size_t axis = normalize_axis(attrs.axis, input.shape.size());
    plan.limit = input.shape[axis];
    plan.stride = std::exchange(plan.strides[axis], 0);
  }
  plan.load = convert_kernels(isa).load(input.dtype, domain);
  plan.store = convert_kernels(isa).store(domain, input.dtype, Rounding::kTruncate);
  plan.bytes = static_cast<std::size_t>(num_elements(input.shape)) * byte_size(input.dtype);
  plan.include_self = attrs.include_self;
  Kernel kernel;
  ScratchPlan scratch;
  if (!plan.include_self) plan.written = scratch.take<bool>(num_elements(input.shape));
  kernel.scratch_bytes = scratch.bytes();
  kernel.in_place = 1;
  kernel.run = [plan, domain](const Arrays& arrays) {
    if (is_float(domain))
      run_reduce<double>(plan, arrays);
    else
      run_reduce<int64_t>(plan, arrays);
  };
  return kernel;
}

}  // namespace tosaic::kernels
