// Result types of shape changes, data movement and creation of tensors.
#include <algorithm>
#include <cmath>

#include "tosaic/ir/infer.h"
#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {
namespace {

// torch.cat ignores tensors of shape [0], whatever the rank of the other tensors.
bool is_legacy_empty(const TensorType& type) { return type.rank() == 1 && type.shape[0] == 0; }

void require_some(const Call& call) {
  if (call.count() == 0) call.fail("no operands", "1 or more", "0");
}

// Modes other than constant copy elements of the input, so the pad is limited: reflect to extent - 1,
// circular to the extent, replicate to any pad of a non-empty axis. Negative pads are unsupported in these
// modes.
void require_pad_in_reach(const Call& call, const PadAttrs& attrs, std::size_t axis, std::int64_t pad) {
  const std::int64_t extent = call.operand(0).shape[axis];
  if (attrs.mode == PadMode::kConstant || pad == 0) return;
  if (pad < 0)
    call.unsupported("a negative pad on axis " + std::to_string(axis), "mode constant", std::to_string(pad));
  const bool reachable = attrs.mode == PadMode::kReflect    ? pad < extent
                         : attrs.mode == PadMode::kCircular ? pad <= extent
                                                            : extent > 0;
  if (!reachable)
    call.fail("the pad on axis " + std::to_string(axis) + " reaches beyond the input",
              "at most the extent " + std::to_string(extent), std::to_string(pad));
}

// ceil((end - start) / step). For i64, torch first truncates all three to integers. More than kMaxElements
// elements are returned as kMaxElements + 1, which the check of the result rejects.
std::int64_t arange_count(const Call& call, const ArangeAttrs& attrs) {
  __extension__ using Wide = __int128;
  const double start = as_double(attrs.start), end = as_double(attrs.end), step = as_double(attrs.step);
  if (!std::isfinite(start) || !std::isfinite(end) || !std::isfinite(step))
    call.fail("'start', 'end' and 'step'", "finite numbers",
              std::to_string(start) + ", " + std::to_string(end) + ", " + std::to_string(step));
  const auto require_direction = [&](bool zero, bool away) {
    if (zero) call.fail("attribute 'step'", "not 0", "0");
    if (away)
      call.fail("'step' leads away from 'end'", "the sign of end - start",
                std::to_string(start) + ", " + std::to_string(end) + ", " + std::to_string(step));
  };
  require_direction(step == 0, step > 0 ? end < start : end > start);
  if (attrs.dtype == DType::kI64) {
    const Wide first = as_int(attrs.start), last = as_int(attrs.end), by = as_int(attrs.step);
    require_direction(by == 0, by > 0 ? last < first : last > first);
    const Wide count = (last - first) / by + ((last - first) % by != 0 ? 1 : 0);
    return static_cast<std::int64_t>(std::min<Wide>(count, kMaxElements + 1));
  }
  const double count = std::ceil((end - start) / step);
  return count <= static_cast<double>(kMaxElements) ? static_cast<std::int64_t>(count) : kMaxElements + 1;
}

// Advanced indexing: if the indexed axes are adjacent, the axes of the broadcast index replace them in place.
// If they are not, the axes of the index come first.
//
//   input [A,B,C,D], indices of shape [N] for axes 1 and 2:  [A,N,D]
//                                         for axes 0 and 2:  [N,B,D]
//
// Returns the shape of the elements that are read or written. Operand first_index + k is the index for axis
// k.
Shape indexed_shape(const Call& call, std::size_t first_index) {
  const Shape& input = call.operand(0).shape;
  if (call.count() - first_index > input.size())
    call.fail("too many indices", "at most " + std::to_string(input.size()),
              std::to_string(call.count() - first_index));
  Shape index_shape, kept;
  std::optional<std::size_t> first;
  std::size_t last = 0, indexed = 0, place = 0;
  for (std::size_t axis = 0; axis < input.size(); ++axis) {
    const TensorType* const index = call.optional(axis + first_index);
    if (index == nullptr) {
      kept.push_back(input[axis]);
      continue;
    }
    if (index->dtype == DType::kBool || index->dtype == DType::kU8)
      call.unsupported("a mask as index: the result's shape depends on data", "i32 or i64",
                       std::string(to_string(index->dtype)));
    call.require_index(axis + first_index);
    index_shape = broadcast(index_shape, index->shape);
    if (!first) {
      first = axis;
      place = kept.size();
    }
    last = axis;
    ++indexed;
  }
  if (!first) call.fail("every index is absent", "at least one index", "none");
  if (last - *first + 1 != indexed) place = 0;
  Shape shape(kept.span().first(place));
  for (const std::int64_t extent : index_shape) shape.push_back(extent);
  for (const std::int64_t extent : kept.span().subspan(place)) shape.push_back(extent);
  return shape;
}

}  // namespace

Types infer_reshape(const Call& call) {
  const Shape& shape = call.attrs<ShapeAttrs>().shape;
  call.require_sane("attribute 'shape'", shape);
  const std::int64_t count = num_elements(call.operand(0).shape);
  if (num_elements(shape) != count)
    call.fail("the number of elements changes",
              std::to_string(count) + " of " + to_string(call.operand(0).shape),
              std::to_string(num_elements(shape)) + " of " + to_string(shape));
  return single_result(call.operand(0).dtype, shape);
}

Types infer_clone(const Call& call) {
  const TensorType& input = call.operand(0);
  const std::optional<Dims>& order = call.attrs<CloneAttrs>().order;
  if (order && !is_permutation_of_axes(*order, input.rank()))
    call.fail("attribute 'order'", "a permutation of " + std::to_string(input.rank()) + " axes",
              to_string(*order));
  return single_result(input.dtype, input.shape);
}

Types infer_permute(const Call& call) {
  const TensorType& input = call.operand(0);
  const Dims& perm = call.attrs<PermuteAttrs>().perm;
  if (!is_permutation_of_axes(perm, input.rank()))
    call.fail("attribute 'perm'", "a permutation of " + std::to_string(input.rank()) + " axes",
              to_string(perm));
  return single_result(input.dtype, permuted(input.shape, perm));
}

Types infer_expand(const Call& call) {
  const TensorType& input = call.operand(0);
  const Shape& shape = call.attrs<ShapeAttrs>().shape;
  call.require_sane("attribute 'shape'", shape);
  bool expands = shape.size() >= input.rank();
  for (std::size_t i = 0; expands && i < input.rank(); ++i) {
    const std::int64_t from = input.shape[i];
    expands = from == 1 || from == shape[shape.size() - input.rank() + i];
  }
  if (!expands) call.fail("the input does not expand to 'shape'", to_string(shape), to_string(input.shape));
  return single_result(input.dtype, shape);
}

Types infer_repeat(const Call& call) {
  const TensorType& input = call.operand(0);
  Shape shape = call.attrs<ShapeAttrs>().shape;
  if (shape.size() < input.rank())
    call.fail("too few repeats", "at least " + std::to_string(input.rank()), to_string(shape));
  call.require_at_least("shape", shape, 0);
  const std::size_t lead = shape.size() - input.rank();
  for (std::size_t i = 0; i < input.rank(); ++i)
    shape[lead + i] = call.times(shape[lead + i], input.shape[i]);
  return single_result(input.dtype, shape);
}

Types infer_cat(const Call& call) {
  require_some(call);
  const DType dtype = promoted_dtype(call.operands());
  std::size_t first = 0;
  for (std::size_t i = call.count(); i-- > 0;) {
    call.require_rank_between(i, 1, kMaxRank);
    if (!is_legacy_empty(call.operand(i))) first = i;
  }
  Shape shape = call.operand(first).shape;
  const std::size_t axis = call.axis(call.attrs<AxisAttrs>().axis, shape.size());
  for (std::size_t i = first + 1; i < call.count(); ++i) {
    if (is_legacy_empty(call.operand(i))) continue;
    call.require_rank(i, shape.size());
    Shape expected = shape;
    expected[axis] = call.operand(i).shape[axis];
    call.require_shape(i, expected);
    shape[axis] = call.plus(shape[axis], expected[axis]);
  }
  return single_result(dtype, shape);
}

Types infer_stack(const Call& call) {
  require_some(call);
  Shape shape = call.operand(0).shape;
  for (std::size_t i = 1; i < call.count(); ++i) call.require_shape(i, shape);
  const std::size_t axis = call.axis(call.attrs<AxisAttrs>().axis, shape.size() + 1);
  shape.insert(axis, static_cast<std::int64_t>(call.count()));
  return single_result(promoted_dtype(call.operands()), shape);
}

Types infer_split(const Call& call) {
  const auto& attrs = call.attrs<SplitAttrs>();
  const TensorType& input = call.operand(0);
  const std::size_t axis = call.axis(attrs.axis, input.rank());
  if (attrs.sizes.empty() || attrs.sizes.size() > static_cast<std::size_t>(kMaxResults))
    call.unsupported("number of results", "1 to " + std::to_string(kMaxResults),
                     std::to_string(attrs.sizes.size()));
  std::int64_t total = 0;
  Types types;
  for (const std::int64_t size : attrs.sizes) {
    call.require_at_least("sizes", size, 0);
    total = call.plus(total, size);
    types.push_back({.dtype = input.dtype, .shape = input.shape, .order = {}, .qparams = nullptr});
    types.back().shape[axis] = size;
  }
  if (total != input.shape[axis])
    call.fail("'sizes' do not add up to the extent", std::to_string(input.shape[axis]),
              std::to_string(total));
  return types;
}

Types infer_unbind(const Call& call) {
  const TensorType& input = call.operand(0);
  const std::size_t axis = call.axis(call.attrs<AxisAttrs>().axis, input.rank());
  const std::int64_t count = input.shape[axis];
  if (count < 1 || count > kMaxResults)
    call.unsupported("number of results", "1 to " + std::to_string(kMaxResults), std::to_string(count));
  Shape shape = input.shape;
  shape.erase(axis);
  return Types(static_cast<std::size_t>(count), single_result(input.dtype, shape).front());
}

Types infer_select(const Call& call) {
  const auto& attrs = call.attrs<SelectAttrs>();
  Shape shape = call.operand(0).shape;
  const std::size_t axis = call.axis(attrs.axis, shape.size());
  if (attrs.index < 0 || attrs.index >= shape[axis])
    call.fail("attribute 'index'", "an index in [0, " + std::to_string(shape[axis]) + ")",
              std::to_string(attrs.index));
  shape.erase(axis);
  return single_result(call.operand(0).dtype, shape);
}

Types infer_slice(const Call& call) {
  const auto& attrs = call.attrs<SliceAttrs>();
  Shape shape = call.operand(0).shape;
  const std::size_t axis = call.axis(attrs.axis, shape.size());
  call.require_at_least("step", attrs.step, 1);
  if (attrs.start < 0 || attrs.start > attrs.end || attrs.end > shape[axis])
    call.fail("'start' and 'end'", "0 <= start <= end <= " + std::to_string(shape[axis]),
              std::to_string(attrs.start) + " and " + std::to_string(attrs.end));
  const std::int64_t length = attrs.end - attrs.start;
  shape[axis] = length / attrs.step + (length % attrs.step != 0 ? 1 : 0);
  return single_result(call.operand(0).dtype, shape);
}

Types infer_flip(const Call& call) {
  call.require_axes(call.attrs<AxesAttrs>().axes, call.operand(0).rank());
  return single_result(call.operand(0).dtype, call.operand(0).shape);
}

Types infer_pad(const Call& call) {
  const auto& attrs = call.attrs<PadAttrs>();
  Shape shape = call.operand(0).shape;
  call.require_size("before", attrs.before, shape.size());
  call.require_size("after", attrs.after, shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::int64_t before = attrs.before[i], after = attrs.after[i];
    require_pad_in_reach(call, attrs, i, before);
    require_pad_in_reach(call, attrs, i, after);
    const std::int64_t cropped =
        call.plus(shape[i], call.plus(std::min<std::int64_t>(before, 0), std::min<std::int64_t>(after, 0)));
    if (cropped < 0)
      call.fail("negative pads crop more than there is on axis " + std::to_string(i),
                "at most " + std::to_string(shape[i]),
                std::to_string(before) + " and " + std::to_string(after));
    shape[i] = call.plus(call.plus(shape[i], before), after);
  }
  return single_result(call.operand(0).dtype, shape);
}

// The bound on `diagonal` ensures that row + diagonal fits 63 bits. Diagonals that far away select all
// elements or none.
Types infer_triangle(const Call& call) {
  const std::int64_t diagonal = call.attrs<DiagonalAttrs>().diagonal;
  call.require_rank_between(0, 2, kMaxRank);
  if (diagonal < -kMaxElements || diagonal > kMaxElements)
    call.unsupported("attribute 'diagonal'", "within +-2^56", std::to_string(diagonal));
  return single_result(call.operand(0).dtype, call.operand(0).shape);
}

namespace {

// The result of reading one element along the axis for each element of the index.
Types read_along(const Call& call, std::int64_t along) {
  const TensorType& input = call.operand(0);
  const TensorType& index = call.operand(1);
  const std::size_t axis = call.axis(along, input.rank());
  call.require_index(1);
  call.require_rank(1, input.rank());
  for (std::size_t i = 0; i < input.rank(); ++i)
    if (i != axis && index.shape[i] > input.shape[i])
      call.fail(call.operand_text(1) + " is larger than the input on axis " + std::to_string(i),
                "at most " + std::to_string(input.shape[i]), std::to_string(index.shape[i]));
  return single_result(input.dtype, index.shape);
}

Types written_along(const Call& call, std::int64_t axis) {
  static_cast<void>(read_along(call, axis));
  call.require_same_dtype(2, 0);
  call.require_shape(2, call.operand(1).shape);
  return single_result(call.operand(0).dtype, call.operand(0).shape);
}

}  // namespace

Types infer_gather(const Call& call) { return read_along(call, call.attrs<AxisAttrs>().axis); }

Types infer_index_select(const Call& call) {
  Shape shape = call.operand(0).shape;
  const std::size_t axis = call.axis(call.attrs<AxisAttrs>().axis, shape.size());
  call.require_index(1);
  call.require_rank_between(1, 0, 1);
  shape[axis] = num_elements(call.operand(1).shape);
  return single_result(call.operand(0).dtype, shape);
}

Types infer_index(const Call& call) { return single_result(call.operand(0).dtype, indexed_shape(call, 1)); }

Types infer_index_put(const Call& call) {
  call.require_same_dtype(1, 0);
  const Shape written = indexed_shape(call, 2);
  const Shape& values = call.operand(1).shape;
  bool expands = values.size() <= written.size();
  for (std::size_t i = 0; expands && i < values.size(); ++i) {
    const std::int64_t to = written[written.size() - values.size() + i];
    expands = values[i] == 1 || values[i] == to;
  }
  if (!expands)
    call.fail("the values do not expand to what is indexed", to_string(written), to_string(values));
  return single_result(call.operand(0).dtype, call.operand(0).shape);
}

Types infer_scatter(const Call& call) { return written_along(call, call.attrs<AxisAttrs>().axis); }

Types infer_scatter_reduce(const Call& call) {
  call.require_number(0);
  return written_along(call, call.attrs<ScatterReduceAttrs>().axis);
}

Types infer_slice_scatter(const Call& call) {
  const Types slice = infer_slice(call);
  call.require_same_dtype(1, 0);
  call.require_shape(1, slice.front().shape);
  return single_result(call.operand(0).dtype, call.operand(0).shape);
}

Types infer_arange(const Call& call) {
  const auto& attrs = call.attrs<ArangeAttrs>();
  if (attrs.dtype == DType::kBool) call.fail("attribute 'dtype'", "an integer or float dtype", "bool");
  return single_result(attrs.dtype, {arange_count(call, attrs)});
}

Types infer_full(const Call& call) {
  const auto& attrs = call.attrs<FullAttrs>();
  return single_result(attrs.dtype, attrs.shape);
}

}  // namespace tosaic::rules
