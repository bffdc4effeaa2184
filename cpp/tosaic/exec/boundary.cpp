#include "tosaic/exec/boundary.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "tosaic/ir/quantized_value.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/quantize_block.h"

namespace tosaic::exec {
namespace {

// The range of the integers that an array for this input or output may contain.
ValueRange allowed(const TensorType& type, const BoundaryFormat& boundary) {
  if (boundary.source_dtype) return {boundary.range_min, boundary.range_max};
  return integer_limits(type.dtype).value_or(ValueRange::all());
}

std::string index_text(const Shape& shape, std::int64_t flat) {
  Dims index = Dims::filled(shape.size(), 0);
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return to_string(index);
}

// The elements in row-major order: the array itself, or a copy in `copied`.
std::span<const float> floats_of(const ArrayView& array, std::vector<float>& copied) {
  const auto count = static_cast<std::size_t>(num_elements(array.shape));
  if (array.dtype == DType::kF32 && is_dense(array.shape, array.strides, array.dtype) &&
      reinterpret_cast<std::uintptr_t>(array.data) % alignof(float) == 0)
    return {reinterpret_cast<const float*>(array.data), count};
  copied.resize(count);
  if (array.dtype == DType::kF32) {
    copy(array,
         MutableArrayView::dense(reinterpret_cast<std::byte*>(copied.data()), DType::kF32, array.shape));
    return copied;
  }
  std::vector<double> wide(count);
  read_doubles(array, 0, wide);
  std::transform(wide.begin(), wide.end(), copied.begin(), [](double x) { return static_cast<float>(x); });
  return copied;
}

// True for bounds and zero points of integers of 8 or 16 bits, with or without a sign.
bool is_narrow(std::int64_t value) { return value >= -65536 && value <= 65536; }

void quantize_floats(std::span<const float> floats, const QParams& qparams, std::byte* to) {
  const std::int64_t zero_point = qparams.zero_points.front();
  const std::size_t width = byte_size(qparams.storage);
  const float inverse = inverse_scale(qparams.scales.front());
  if (width <= 2 && is_narrow(zero_point) && is_narrow(qparams.qmin) && is_narrow(qparams.qmax)) {
    const kernels::NarrowQuantization by{inverse, static_cast<float>(zero_point),
                                         static_cast<float>(qparams.qmin), static_cast<float>(qparams.qmax)};
    const kernels::QuantizeKernels& loops = kernels::quantize_kernels(kernels::best_isa());
    const auto count = static_cast<std::int64_t>(floats.size());
    if (width == 1) return loops.to_bytes(floats.data(), count, by, reinterpret_cast<std::int8_t*>(to));
    return loops.to_words(floats.data(), count, by, reinterpret_cast<std::int16_t*>(to));
  }
  for (const float x : floats) {
    const std::int64_t q =
        bound_quantized(quantize_unbounded(x, inverse, zero_point), qparams.qmin, qparams.qmax);
    std::memcpy(to, &q, width);  // little endian: the low bytes
    to += width;
  }
}

void quantize(const ArrayView& from, std::byte* to, const QParams& qparams, Team* team) {
  std::vector<float> copied;
  const std::span<const float> floats = floats_of(from, copied);
  const auto width = static_cast<std::int64_t>(byte_size(qparams.storage));
  const kernels::Loop elements{
      .count = static_cast<std::int64_t>(floats.size()), .step = 64, .unit_cost = 2 * kernels::cost::kCopy};
  kernels::parallel_for(team, elements, [&](std::int64_t begin, std::int64_t end, kernels::Worker) {
    quantize_floats(floats.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
                    qparams, to + begin * width);
  });
}

template <class T>
void dequantize_narrow(const std::byte* from, const QParams& qparams, std::span<float> to) {
  const auto* integers = reinterpret_cast<const T*>(from);
  const auto zero_point = static_cast<float>(qparams.zero_points.front());
  const auto scale = static_cast<float>(qparams.scales.front());
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = (static_cast<float>(integers[i]) - zero_point) * scale;
}

void dequantize(const ArrayView& from, const MutableArrayView& to, const QParams& qparams) {
  const auto count = static_cast<std::size_t>(num_elements(from.shape));
  std::vector<float> out(count);
  const bool is_plain = is_dense(from.shape, from.strides, from.dtype);
  if (is_plain && from.dtype == DType::kI8) {
    dequantize_narrow<std::int8_t>(from.data, qparams, out);
  } else if (is_plain && from.dtype == DType::kI16) {
    dequantize_narrow<std::int16_t>(from.data, qparams, out);
  } else {
    std::vector<std::int64_t> integers(count);
    read_integers(from, 0, integers);
    for (std::size_t i = 0; i < count; ++i)
      out[i] = dequantize_value(integers[i], qparams.scales.front(), qparams.zero_points.front());
  }
  if (to.dtype == DType::kF32)
    return copy(ArrayView::dense(reinterpret_cast<const std::byte*>(out.data()), DType::kF32, from.shape),
                to);
  const std::size_t width = byte_size(to.dtype);
  std::vector<std::byte> rounded(count * width);
  for (std::size_t i = 0; i < count; ++i) store_element(to.dtype, rounded.data() + i * width, out[i]);
  copy(ArrayView::dense(rounded.data(), to.dtype, from.shape), to);
}

std::int64_t integer_at(const ArrayView& array, std::int64_t flat) {
  std::int64_t value = 0;
  read_integers(array, static_cast<std::size_t>(flat), std::span(&value, 1));
  return value;
}

// True if the strides are consistent with `order`: in this order, their absolute values never increase. Axes
// of extent 1 and axes of stride 0 (repeated elements) are ignored.
bool shows(const ArrayView& array, const Dims& order) {
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t axis : order) {
    const auto at = static_cast<std::size_t>(axis);
    const std::int64_t stride = std::abs(array.strides[at]);
    if (array.shape[at] <= 1 || stride == 0) continue;
    if (stride > last) return false;
    last = stride;
  }
  return true;
}

Dims order_shown(const ArrayView& array) {
  Dims axes = Dims::iota(array.shape.size());
  std::stable_sort(axes.begin(), axes.end(), [&](std::int64_t a, std::int64_t b) {
    return std::abs(array.strides[static_cast<std::size_t>(a)]) >
           std::abs(array.strides[static_cast<std::size_t>(b)]);
  });
  return axes;
}

// True if the strides (in logical axes) are a memory format's: contiguous or channels last. Such strides were
// chosen by the caller. Other strides are side effects of operations such as slices, transposes, flips and
// repeats.
bool shows_memory_format(const ArrayView& array) {
  const std::size_t rank = array.shape.size();
  return (rank == 4 || rank == 5) &&
         (shows(array, Dims::iota(rank)) || shows(array, DimOrder::channels_last(rank).axes(rank)));
}

// True if an array of the physical shape is not row-major, but its logical view has the strides of a memory
// format.
bool is_in_another_order(const ArrayView& array, const BoundaryFormat& boundary) {
  const std::size_t rank = array.shape.size();
  return !shows(array, Dims::iota(rank)) &&
         shows_memory_format(permuted(array, inverse_permutation(boundary.order.axes(rank))));
}

std::string line_that_mends(const Dims& order) {
  if (is_identity_permutation(order)) return "Pass numpy.ascontiguousarray(x), or x.contiguous()";
  const std::string there = to_string(order), back = to_string(inverse_permutation(order));
  const bool last = order.size() == 4 && DimOrder(order) == DimOrder::channels_last(4);
  return "Pass numpy.ascontiguousarray(x.transpose(" + there + ")).transpose(" + back + ")" +
         (last ? ", or x.to(memory_format=torch.channels_last)" : "") +
         "; or declare the order that arrays have: orders= of tosaic.lower";
}

}  // namespace

DType array_dtype(const Graph& graph, const Input& input) {
  return input.boundary.source_dtype.value_or(graph.type(input.value).dtype);
}

ArrayFormat array_format(Stage stage, const TensorType& type, const BoundaryFormat& boundary) {
  const std::size_t rank = type.rank();
  const Dims order = boundary.order.is_identity() ? Dims::iota(rank) : boundary.order.axes(rank);
  if (order.size() != rank)
    throw InvalidGraph({.where = "run",
                        .what = "the dim order of a boundary does not fit its value",
                        .expected = "rank " + std::to_string(rank),
                        .got = to_string(order)});
  ArrayFormat form;
  if (boundary.source_dtype && is_float(*boundary.source_dtype) && boundary.qparams) {
    form.qparams = boundary.qparams;
  } else if (boundary.source_dtype && !(is_integer(*boundary.source_dtype) && is_integer(type.dtype)))
    throw UnsupportedOp({.where = "run",
                         .what = "a boundary converts integers only",
                         .got = std::string(to_string(*boundary.source_dtype)) + " for " +
                                std::string(to_string(type.dtype))});
  form.dtype = boundary.source_dtype.value_or(type.dtype);
  form.converts = boundary.source_dtype.has_value();
  form.shape = type.shape;
  form.axes = form.memory = Dims::iota(rank);
  const bool value_is_physical = stage == Stage::kTosa;
  if (value_is_physical && !boundary.physical) {
    form.axes = form.memory = order;
    form.shape = tosaic::permuted(type.shape, inverse_permutation(order));
  } else if (!value_is_physical && boundary.physical) {
    form.axes = inverse_permutation(order);
    form.shape = tosaic::permuted(type.shape, order);
  } else if (!value_is_physical) {
    form.memory = order;
  }
  return form;
}

void verify_array(const ArrayFormat& form, const BoundaryFormat& boundary, const ArrayView& array,
                  const std::string& role, const std::string& name) {
  const std::string who = role + " '" + name + "'";
  const bool quantized_already = role == "input" && form.qparams && array.dtype == form.qparams->storage;
  const bool may_fit =
      role == "input" && is_integer(form.dtype) && is_integer(array.dtype);  // import_array checks the values
  if (array.dtype != form.dtype && array.dtype != container(form.dtype) && !quantized_already && !may_fit)
    throw LayoutMismatch({.where = "run",
                          .what = who + " has the wrong dtype",
                          .expected = std::string(to_string(form.dtype)),
                          .got = std::string(to_string(array.dtype))});
  if (array.shape != form.shape) {
    std::string hint;
    if (array.shape.size() == form.shape.size() && !boundary.order.is_identity()) {
      const Dims order = boundary.order.axes(form.shape.size());
      if (boundary.physical && tosaic::permuted(array.shape, order) == form.shape)
        hint =
            "This boundary takes arrays in physical order " + to_string(order) + ": pass the permuted array";
      if (!boundary.physical && tosaic::permuted(form.shape, order) == array.shape)
        hint = "This boundary takes arrays of the logical shape, their order is in the strides";
    }
    throw LayoutMismatch({.where = "run",
                          .what = who + " has the wrong shape",
                          .expected = to_string(form.shape),
                          .got = to_string(array.shape),
                          .hint = hint});
  }
  if (boundary.physical && !boundary.order.is_identity() &&
      !is_dense(array.shape, array.strides, array.dtype) &&
      (role != "input" || is_in_another_order(array, boundary)))
    throw LayoutMismatch(
        {.where = "run",
         .what = who + " is not row-major, though its boundary carries the physical shape",
         .expected = "strides of " + to_string(dense_strides(array.dtype, array.shape)) + " bytes",
         .got = to_string(array.strides),
         .hint = "A channels-last array of the logical shape must be permuted first"});
}

void verify_order(const ArrayFormat& form, const ArrayView& array, const std::string& name) {
  if (array.shape.size() < 3 || shows(array, form.memory)) return;
  if (is_identity_permutation(form.memory) && !shows_memory_format(array)) return;
  throw LayoutMismatch({.where = "run",
                        .what = "input '" + name + "' lies in another dim order than was declared",
                        .expected = to_string(form.memory),
                        .got = to_string(order_shown(array)),
                        .hint = line_that_mends(form.memory)});
}

ArrayView in_graph_axes(const ArrayFormat& form, const ArrayView& array) {
  return permuted(array, form.axes);
}

MutableArrayView in_graph_axes(const ArrayFormat& form, const MutableArrayView& array) {
  return permuted(array, form.axes);
}

void import_array(const ArrayFormat& form, const TensorType& type, const BoundaryFormat& boundary,
                  const ArrayView& array, std::byte* to, const std::string& name, Team* team) {
  const ArrayView source = in_graph_axes(form, array);
  const MutableArrayView target = MutableArrayView::dense(to, type.dtype, type.shape);
  if ((!form.converts || form.qparams) && array.dtype == type.dtype) {
    copy(source, target);
    return;
  }
  if (form.qparams) return quantize(source, to, *form.qparams, team);
  const ValueRange range = allowed(type, boundary);
  const std::int64_t bad = convert_integers(source, target, range.low, range.high);
  if (bad < 0) return;
  throw InvalidGraph(
      {.where = "run",
       .what = "input '" + name + "' holds a value outside its range at " + index_text(source.shape, bad),
       .expected = std::to_string(range.low) + " to " + std::to_string(range.high),
       .got = std::to_string(integer_at(source, bad))});
}

void export_array(const ArrayFormat& form, const TensorType& type, const std::byte* from,
                  const MutableArrayView& to) {
  const ArrayView source = ArrayView::dense(from, type.dtype, type.shape);
  const MutableArrayView target = in_graph_axes(form, to);
  if (!form.converts) {
    copy(source, target);
    return;
  }
  if (form.qparams) return dequantize(source, target, *form.qparams);
  constexpr ValueRange all = ValueRange::all();
  static_cast<void>(convert_integers(source, target, all.low, all.high));
}

Array allocate_array(const ArrayFormat& form) {
  Array array = Array::allocate(form.dtype, tosaic::permuted(form.shape, form.memory));
  array.strides = tosaic::permuted(array.strides, inverse_permutation(form.memory));
  array.shape = form.shape;
  return array;
}

}  // namespace tosaic::exec
