// Data movement: operators that copy elements of their operands without changing them. Most of them are one
// strided copy, or one per operand or result. tril, triu, and pad in the modes reflect, replicate and
// circular have loops of their own. Lookups by index are in index.cpp, arange and full in creation.cpp.
#include <algorithm>
#include <cstring>
#include <memory>

#include "tosaic/base/error.h"
#include "tosaic/ir/storage.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/creation.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/strided_copy.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;
using Extents = std::vector<int64_t>;

// One copy from an operand to a result. Nothing is copied if the operand is already in place: its array
// begins at byte `part_at` of the result.
struct Move {
  std::size_t operand = 0, result = 0;
  StridedCopy copy;
  std::optional<std::size_t> part_at = {};
  bool is_done(const std::byte* from, const std::byte* to) const { return part_at && from == to + *part_at; }
};

Kernel run_moves(std::vector<Move> moves) {
  Kernel kernel;
  kernel.run = [moves = std::make_shared<const std::vector<Move>>(std::move(moves))](const Arrays& arrays) {
    for (const Move& move : *moves)
      if (!move.is_done(arrays.operands[move.operand], arrays.results[move.result]))
        move.copy.run(arrays.operands[move.operand], arrays.results[move.result], arrays.team);
  };
  return kernel;
}

Extents list(const Dims& dims) { return {dims.begin(), dims.end()}; }
Extents dense(const Shape& shape) { return list(contiguous_strides(shape)); }

StridedCopy copy_of(const Request& request, Extents extents, Extents source, Extents target) {
  return {byte_size(request.results[0].dtype), std::move(extents), std::move(source), std::move(target),
          request.options};
}

// A copy into the whole of result 0.
Kernel one_move(const Request& request, Extents source_strides, int64_t source_offset = 0) {
  const Shape& shape = request.results[0].shape;
  StridedCopy copy = copy_of(request, list(shape), std::move(source_strides), dense(shape));
  copy.source_offset = source_offset;
  std::vector<Move> moves;
  moves.push_back({0, 0, std::move(copy)});
  return run_moves(std::move(moves));
}

Kernel view(const Request& request) {
  const auto bytes =
      static_cast<std::size_t>(num_elements(request.results[0].shape)) * byte_size(request.results[0].dtype);
  Kernel kernel;
  kernel.in_place = 1;
  kernel.run = [bytes](const Arrays& arrays) {
    if (bytes != 0 && arrays.results[0] != arrays.operands[0])
      std::memcpy(arrays.results[0], arrays.operands[0], bytes);
  };
  return kernel;
}

Kernel permute(const Request& request) {
  const Dims& perm = attrs_of<PermuteAttrs>(request).perm;
  return one_move(request, list(permuted(contiguous_strides(request.operands[0].shape), perm)));
}

Kernel expand(const Request& request) {
  const Shape& from = request.operands[0].shape;
  const Shape& to = request.results[0].shape;
  const Dims strides = contiguous_strides(from);
  Extents source(to.size(), 0);
  const std::size_t lead = to.size() - from.size();
  for (std::size_t i = 0; i < from.size(); ++i) source[lead + i] = from[i] == 1 ? 0 : strides[i];
  return one_move(request, std::move(source));
}

// Splits axis i of the result into two axes (repeats, extent). The source stride of `repeats` is 0.
Kernel repeat(const Request& request) {
  const Shape& from = request.operands[0].shape;
  const Shape& to = request.results[0].shape;
  const Dims from_strides = contiguous_strides(from);
  const Dims to_strides = contiguous_strides(to);
  const std::size_t lead = to.size() - from.size();
  Extents extents;
  Extents source;
  Extents target;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const int64_t extent = i < lead ? 1 : from[i - lead];
    extents.insert(extents.end(), {extent == 0 ? 0 : to[i] / extent, extent});
    source.insert(source.end(), {0, i < lead ? 0 : from_strides[i - lead]});
    target.insert(target.end(), {to_strides[i] * extent, to_strides[i]});
  }
  std::vector<Move> moves;
  moves.push_back({0, 0, copy_of(request, std::move(extents), std::move(source), std::move(target))});
  return run_moves(std::move(moves));
}

Kernel cat(const Request& request) {
  const Shape& to = request.results[0].shape;
  const std::size_t axis = normalize_axis(attrs_of<AxisAttrs>(request).axis, to.size());
  std::vector<Move> moves;
  int64_t at = 0;
  for (std::size_t i = 0; i < request.operands.size(); ++i) {
    const Operand& part = request.operands[i];
    if (part.dtype != request.results[0].dtype) fail_unsupported(request);
    if (part.shape.size() != to.size()) continue;  // torch allows empty vectors among operands of any rank
    StridedCopy copy = copy_of(request, list(part.shape), dense(part.shape), dense(to));
    copy.target_offset = at * contiguous_strides(to)[axis];
    at += part.shape[axis];
    const auto part_at = static_cast<std::size_t>(copy.target_offset) * byte_size(part.dtype);
    moves.push_back({i, 0, std::move(copy), part_at});
  }
  return run_moves(std::move(moves));
}

Kernel stack(const Request& request) {
  const Shape& to = request.results[0].shape;
  const std::size_t axis = normalize_axis(attrs_of<AxisAttrs>(request).axis, to.size());
  const int64_t stride = contiguous_strides(to)[axis];
  Dims target = contiguous_strides(to);
  target.erase(axis);
  std::vector<Move> moves;
  for (std::size_t i = 0; i < request.operands.size(); ++i) {
    const Operand& part = request.operands[i];
    if (part.dtype != request.results[0].dtype) fail_unsupported(request);
    StridedCopy copy = copy_of(request, list(part.shape), dense(part.shape), list(target));
    copy.target_offset = static_cast<int64_t>(i) * stride;
    const auto part_at = static_cast<std::size_t>(copy.target_offset) * byte_size(part.dtype);
    moves.push_back({i, 0, std::move(copy), part_at});
  }
  return run_moves(std::move(moves));
}

// split, unbind: the results are consecutive parts of the operand along an axis. `keeps_axis` is true if the
// results have that axis, and false for unbind.
Kernel parts(const Request& request, int64_t along, bool keeps_axis) {
  const Shape& from = request.operands[0].shape;
  const std::size_t axis = normalize_axis(along, from.size());
  const Dims strides = contiguous_strides(from);
  Dims source = strides;
  if (!keeps_axis) source.erase(axis);
  std::vector<Move> moves;
  int64_t at = 0;
  for (std::size_t i = 0; i < request.results.size(); ++i) {
    const Shape& part = request.results[i].shape;
    StridedCopy copy = copy_of(request, list(part), list(source), dense(part));
    copy.source_offset = at * strides[axis];
    at += keeps_axis ? part[axis] : 1;
    moves.push_back({0, i, std::move(copy)});
  }
  return run_moves(std::move(moves));
}

Kernel split(const Request& request) { return parts(request, attrs_of<SplitAttrs>(request).axis, true); }
Kernel unbind(const Request& request) { return parts(request, attrs_of<AxisAttrs>(request).axis, false); }

Kernel select(const Request& request) {
  const auto& attrs = attrs_of<SelectAttrs>(request);
  const Shape& from = request.operands[0].shape;
  const std::size_t axis = normalize_axis(attrs.axis, from.size());
  Dims source = contiguous_strides(from);
  const int64_t offset = attrs.index * source[axis];
  source.erase(axis);
  return one_move(request, list(source), offset);
}

Kernel slice(const Request& request) {
  const auto& attrs = attrs_of<SliceAttrs>(request);
  const Shape& from = request.operands[0].shape;
  const std::size_t axis = normalize_axis(attrs.axis, from.size());
  Extents source = dense(from);
  const int64_t offset = attrs.start * source[axis];
  source[axis] *= attrs.step;
  return one_move(request, std::move(source), offset);
}

Kernel tosa_slice(const Request& request) {
  const auto& attrs = attrs_of<TosaSliceAttrs>(request);
  Extents source = dense(request.operands[0].shape);
  int64_t offset = 0;
  for (std::size_t i = 0; i < source.size(); ++i) offset += attrs.start[i] * source[i];
  return one_move(request, std::move(source), offset);
}

Kernel flip_axes(const Request& request, const Dims& axes) {
  const Shape& from = request.operands[0].shape;
  Extents source = dense(from);
  int64_t offset = 0;
  for (const int64_t along : axes) {
    if (from.empty()) break;
    const std::size_t axis = normalize_axis(along, from.size());
    offset += (from[axis] - 1) * source[axis];
    source[axis] = -source[axis];
  }
  return one_move(request, std::move(source), offset);
}

Kernel flip(const Request& request) { return flip_axes(request, attrs_of<AxesAttrs>(request).axes); }

Kernel tosa_reverse(const Request& request) {
  return flip_axes(request, Dims{attrs_of<AxisAttrs>(request).axis});
}

// ---- padding ----

// Fills the result with the value, then copies the part of the operand that is inside the result. Negative
// padding crops the operand.
Kernel pad_constant(const Request& request, const Dims& before, const Dims& after, const Scalar& value) {
  const Shape& from = request.operands[0].shape;
  const Operand& result = request.results[0];
  Extents extents;
  for (std::size_t i = 0; i < from.size(); ++i)
    extents.push_back(
        std::max<int64_t>(0, from[i] + std::min<int64_t>(0, before[i]) + std::min<int64_t>(0, after[i])));
  const Extents source = dense(from);
  const Extents target = dense(result.shape);
  StridedCopy copy = copy_of(request, extents, source, target);
  for (std::size_t i = 0; i < from.size(); ++i) {
    copy.source_offset += std::max<int64_t>(0, -before[i]) * source[i];
    copy.target_offset += std::max<int64_t>(0, before[i]) * target[i];
  }
  const std::vector<std::byte> element = scalar_bytes(value, result.dtype);
  const int64_t count = num_elements(result.shape);
  Kernel kernel;
  kernel.run = [copy = std::make_shared<const StridedCopy>(std::move(copy)), element,
                count](const Arrays& arrays) {
    fill_elements(arrays.results[0], element, count);
    copy->run(arrays.operands[0], arrays.results[0], arrays.team);
  };
  return kernel;
}

// The index in the operand that is read for index i of the padded axis. i = 0 is the operand's first element.
int64_t border_index(int64_t i, int64_t extent, PadMode mode) {
  switch (mode) {
    case PadMode::kReflect:
      if (extent == 1) return 0;
      i = std::abs(i) % (2 * (extent - 1));
      return i < extent ? i : 2 * (extent - 1) - i;
    case PadMode::kReplicate:
      return std::clamp<int64_t>(i, 0, extent - 1);
    case PadMode::kCircular:
      return (i % extent + extent) % extent;
    case PadMode::kConstant:
      break;
  }
  return i;
}

// `offsets` has, for each axis, the source offset of each index of the result. `bytes` is the size of an
// element.
struct BorderPlan {
  std::vector<Extents> offsets;
  int64_t bytes = 0;
  int64_t rows = 1;
};

template <class T>
void copy_row(const std::byte* source, const Extents& offsets, std::byte* target) {
  const auto* from = reinterpret_cast<const T*>(source);
  auto* to = reinterpret_cast<T*>(target);
  for (std::size_t i = 0; i < offsets.size(); ++i) to[i] = from[offsets[i]];
}

void run_border(const BorderPlan& plan, const Arrays& arrays) {
  const std::size_t last = plan.offsets.size() - 1;
  std::byte* to = arrays.results[0];
  for (int64_t row = 0; row < plan.rows; ++row) {
    int64_t rest = row;
    int64_t offset = 0;
    for (std::size_t axis = last; axis-- > 0;) {
      const auto extent = static_cast<int64_t>(plan.offsets[axis].size());
      offset += plan.offsets[axis][static_cast<std::size_t>(rest % extent)];
      rest /= extent;
    }
    const std::byte* from = arrays.operands[0] + offset * plan.bytes;
    if (plan.bytes == 4)
      copy_row<std::uint32_t>(from, plan.offsets[last], to);
    else if (plan.bytes == 1)
      copy_row<std::uint8_t>(from, plan.offsets[last], to);
    else if (plan.bytes == 2)
      copy_row<std::uint16_t>(from, plan.offsets[last], to);
    else
      copy_row<std::uint64_t>(from, plan.offsets[last], to);
    to += static_cast<int64_t>(plan.offsets[last].size()) * plan.bytes;
  }
}

Kernel pad_border(const Request& request, const PadAttrs& attrs) {
  const Shape& from = request.operands[0].shape;
  const Shape& to = request.results[0].shape;
  const Dims strides = contiguous_strides(from);
  BorderPlan plan;
  plan.bytes = static_cast<int64_t>(byte_size(request.results[0].dtype));
  for (std::size_t axis = 0; axis < to.size(); ++axis) {
    if (from[axis] == 0 && to[axis] != 0)
      throw InvalidGraph({.where = "pad",
                          .what = "an empty axis has no border to repeat",
                          .expected = "at least one element along axis " + std::to_string(axis),
                          .got = to_string(from)});
    Extents offsets;
    for (int64_t i = 0; i < to[axis]; ++i)
      offsets.push_back(border_index(i - attrs.before[axis], from[axis], attrs.mode) * strides[axis]);
    if (axis + 1 < to.size()) plan.rows *= to[axis];
    plan.offsets.push_back(std::move(offsets));
  }
  if (to.empty()) return view(request);
  Kernel kernel;
  kernel.run = [plan = std::make_shared<const BorderPlan>(std::move(plan))](const Arrays& arrays) {
    run_border(*plan, arrays);
  };
  return kernel;
}

Kernel pad(const Request& request) {
  const auto& attrs = attrs_of<PadAttrs>(request);
  return attrs.mode == PadMode::kConstant ? pad_constant(request, attrs.before, attrs.after, attrs.value)
                                          : pad_border(request, attrs);
}

Kernel tosa_pad(const Request& request) {
  const auto& attrs = attrs_of<TosaPadAttrs>(request);
  return pad_constant(request, attrs.before, attrs.after, attrs.value);
}

// ---- triangles ----

// Copies columns [0, row + diagonal] (lower) or [row + diagonal, cols) of every row; the others become zero.
template <bool lower>
Kernel triangle(const Request& request) {
  const int64_t diagonal = attrs_of<DiagonalAttrs>(request).diagonal;
  const Shape& shape = request.operands[0].shape;
  if (shape.size() < 2) fail_unsupported(request);
  const int64_t rows = shape[shape.size() - 2];
  const int64_t cols = shape.back();
  const auto bytes = static_cast<int64_t>(byte_size(request.operands[0].dtype));
  const int64_t all_rows = cols == 0 ? 0 : num_elements(shape) / cols;
  Kernel kernel;
  kernel.in_place = 1;
  kernel.run = [=](const Arrays& arrays) {
    for (int64_t row = 0; row < all_rows; ++row) {
      const int64_t cut = std::clamp<int64_t>(row % rows + diagonal + (lower ? 1 : 0), 0, cols);
      const int64_t begin = lower ? 0 : cut;
      const int64_t end = lower ? cut : cols;
      const std::byte* from = arrays.operands[0] + row * cols * bytes;
      std::byte* to = arrays.results[0] + row * cols * bytes;
      std::fill(to, to + begin * bytes, std::byte{0});
      if (from != to) std::copy(from + begin * bytes, from + end * bytes, to + begin * bytes);
      std::fill(to + end * bytes, to + cols * bytes, std::byte{0});
    }
  };
  return kernel;
}

constexpr OpTable<Prepare> kKernels = {
    {Op::kReshape, view},
    {Op::kClone, view},
    {Op::kTosaReshape, view},
    {Op::kTosaIdentity, view},
    {Op::kPermute, permute},
    {Op::kTosaTranspose, permute},
    {Op::kExpand, expand},
    {Op::kRepeat, repeat},
    {Op::kTosaTile, repeat},
    {Op::kCat, cat},
    {Op::kTosaConcat, cat},
    {Op::kStack, stack},
    {Op::kSplit, split},
    {Op::kUnbind, unbind},
    {Op::kSelect, select},
    {Op::kSlice, slice},
    {Op::kTosaSlice, tosa_slice},
    {Op::kFlip, flip},
    {Op::kTosaReverse, tosa_reverse},
    {Op::kPad, pad},
    {Op::kTosaPad, tosa_pad},
    {Op::kTril, triangle<true>},
    {Op::kTriu, triangle<false>},
};
static_assert(complete<kKernels.mismatch(has_family<prepare_movement>)>);

}  // namespace

Kernel prepare_movement(const Request& request) { return (*kKernels.find(request.op))(request); }

}  // namespace tosaic::kernels
