// index_put: writes or adds values at the elements that index arrays select. The index arrays broadcast to
// one shape. Each of its elements is called a place.
//
// The places are visited in row-major order, so the last of several values for an element is its result. Sums
// are rounded to the dtype after each addition, as in torch.
#include <algorithm>
#include <cstring>

#include "tosaic/base/error.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/walk.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

struct Axis {
  std::size_t operand = 0;
  DType dtype = DType::kI64;
  Dims strides;  // strides of the index array along the axes of the places
  int64_t limit = 0, stride = 0;
};

// The axes of the values are (kept axes, axes of the places, kept axes). Kept axes are not indexed.
struct Plan {
  DType dtype = DType::kF32;
  bool accumulate = false;
  std::vector<Axis> axes;
  Shape extents;        // the extents of the axes above
  Dims values, target;  // strides of the values and of the result over these axes; 0 in `target` for places
  std::size_t first_place = 0, places = 0;  // the places are axes [first_place, first_place + places)
  std::size_t bytes = 0;                    // bytes of the input
};

int64_t read_index(DType dtype, const std::byte* array, int64_t i) {
  return dtype == DType::kI64 ? reinterpret_cast<const int64_t*>(array)[i]
                              : reinterpret_cast<const std::int32_t*>(array)[i];
}

int64_t wrapped(int64_t index, int64_t limit) {
  if (index < -limit || index >= limit) fail_index(Op::kIndexPut, index, -limit, limit);
  return index < 0 ? index + limit : index;
}

template <class T>
void add_integer(std::byte* to, const std::byte* from) {
  T a, b;
  std::memcpy(&a, to, sizeof a);
  std::memcpy(&b, from, sizeof b);
  using Unsigned = std::make_unsigned_t<T>;
  const T sum = static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  std::memcpy(to, &sum, sizeof sum);
}

void add_element(DType dtype, std::byte* to, const std::byte* from) {
  if (is_float(dtype)) return store_element(dtype, to, load_element(dtype, to) + load_element(dtype, from));
  if (dtype == DType::kBool) {
    *to |= *from;
    return;
  }
  switch (byte_size(dtype)) {
    case 1:
      return add_integer<std::int8_t>(to, from);
    case 2:
      return add_integer<std::int16_t>(to, from);
    case 4:
      return add_integer<std::int32_t>(to, from);
    default:
      return add_integer<int64_t>(to, from);
  }
}

void run_put(const Plan& plan, const Arrays& arrays) {
  std::byte* to = arrays.results[0];
  if (plan.bytes != 0 && to != arrays.operands[0]) std::memcpy(to, arrays.operands[0], plan.bytes);
  if (num_elements(plan.extents) == 0) return;
  const auto width = static_cast<int64_t>(byte_size(plan.dtype));
  Dims at = Dims::filled(plan.extents.size(), 0);
  for (;;) {
    int64_t from = 0, offset = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
      from += at[i] * plan.values[i];
      offset += at[i] * plan.target[i];
    }
    for (const Axis& axis : plan.axes) {
      int64_t place = 0;
      for (std::size_t i = 0; i < plan.places; ++i) place += at[plan.first_place + i] * axis.strides[i];
      offset +=
          wrapped(read_index(axis.dtype, arrays.operands[axis.operand], place), axis.limit) * axis.stride;
    }
    const std::byte* value = arrays.operands[1] + from * width;
    if (plan.accumulate)
      add_element(plan.dtype, to + offset * width, value);
    else
      std::memcpy(to + offset * width, value, static_cast<std::size_t>(width));
    std::size_t axis = at.size();
    while (axis > 0 && ++at[axis - 1] == plan.extents[axis - 1]) at[--axis] = 0;
    if (axis == 0) return;
  }
}

// Strides of `shape` over `rank` axes, aligned at the last axis; 0 where the shape is broadcast.
Dims broadcast_strides(const Shape& shape, std::size_t rank) {
  const Dims dense = contiguous_strides(shape);
  Dims strides = Dims::filled(rank, 0);
  const std::size_t lead = rank - shape.size();
  for (std::size_t i = 0; i < shape.size(); ++i) strides[lead + i] = shape[i] == 1 ? 0 : dense[i];
  return strides;
}

}  // namespace

Kernel prepare_index_put(const Request& request) {
  const Operand& input = request.operands[0];
  const Dims strides = contiguous_strides(input.shape);
  Plan plan;
  plan.dtype = input.dtype;
  plan.accumulate = attrs_of<IndexPutAttrs>(request).accumulate;
  plan.bytes = static_cast<std::size_t>(num_elements(input.shape)) * byte_size(input.dtype);
  std::vector<std::size_t> indexed;
  Shape places;
  for (std::size_t axis = 0; axis + 2 < request.operands.size(); ++axis) {
    const Operand& index = request.operands[axis + 2];
    if (!index.present) continue;
    if (index.dtype != DType::kI64 && index.dtype != DType::kI32) fail_unsupported(request);
    indexed.push_back(axis);
    places = broadcast(places, index.shape);
  }
  if (indexed.empty()) fail_unsupported(request);
  for (const std::size_t axis : indexed) {
    const Operand& index = request.operands[axis + 2];
    plan.axes.push_back({axis + 2, index.dtype, broadcast_strides(index.shape, places.size()),
                         input.shape[axis], strides[axis]});
  }
  const bool adjacent = indexed.back() - indexed.front() + 1 == indexed.size();
  plan.first_place = adjacent ? indexed.front() : 0;
  plan.places = places.size();
  const auto add_places = [&] {
    for (const std::int64_t extent : places) {
      plan.extents.push_back(extent);
      plan.target.push_back(0);
    }
  };
  std::size_t kept = 0;
  for (std::size_t axis = 0; axis < input.shape.size(); ++axis) {
    if (std::find(indexed.begin(), indexed.end(), axis) != indexed.end()) continue;
    if (kept++ == plan.first_place) add_places();
    plan.extents.push_back(input.shape[axis]);
    plan.target.push_back(strides[axis]);
  }
  if (kept <= plan.first_place) add_places();
  plan.values = broadcast_strides(request.operands[1].shape, plan.extents.size());
  Kernel kernel;
  kernel.in_place = 1;
  kernel.run = [plan = std::make_shared<const Plan>(std::move(plan))](const Arrays& arrays) {
    run_put(*plan, arrays);
  };
  return kernel;
}

}  // namespace tosaic::kernels
