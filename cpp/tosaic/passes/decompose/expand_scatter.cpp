// expand_scatter: turns writes at indices into writes of whole rows of a matrix (rows, kept axes), which
// TOSA's SCATTER does.
//
//   scatter(x, axis, index, source)  ->  index_put with the position on every axis
//   slice_scatter                    ->  cat of the parts around the source; with a step, a lookup in both
//   scatter_reduce(x, index, source)  ->  the values of all pairs of an index and a position, reduced
//   index_put at constant places     ->  each place is written once, with its last value or their sum
//
// SCATTER requires that no row is written twice, and its result is unpredictable otherwise. For places that
// are known only at run time:
//
//   one value for all places     where(any(index == position), value, x): places may repeat, as in torch
//   values that are accumulated  are written one after the other, or, if they are more than kMostSteps,
//                                summed by position: sum(where(index == position, value, 0))
//   other values of scatter      each position takes the value of the last index that names it, found by
//                                comparison with all indices. If there are more than kMostReduced pairs, the
//                                values are written one after the other; if there are more than kMostSteps,
//                                the indices are assumed to differ. Indices of a sort are known to differ
//   other values of index_put    the places are assumed to differ: torch does not define the order of the
//                                writes

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <ranges>
#include <set>

#include "tosaic/base/error.h"
#include "tosaic/passes/decompose/expansions.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/place_notes.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kMostSteps = 64;
constexpr std::int64_t kMostCompared = std::int64_t{1} << 22;  // pairs of an index and a position at once

// Pairs of a value and a position that are reduced at once: numbers of 32 bits, in the SRAM of a device.
constexpr std::int64_t kMostReduced = std::int64_t{1} << 17;

using Places = std::vector<std::int64_t>;

ValueId rows_of(Emitter& e, ValueId x, const Places& places) {
  const std::vector<double> values(places.begin(), places.end());
  const auto count = static_cast<std::int64_t>(places.size());
  if (count == e.type(x).shape[0] &&
      std::is_sorted(places.begin(), places.end(), [](auto a, auto b) { return a <= b; }))
    return x;  // the places are all rows, once and in order
  return e.emit(Op::kIndexSelect, AxisAttrs{0}, {x, e.constant(DType::kI64, {count}, values)});
}

ValueId write_rows(Emitter& e, ValueId rows, ValueId values, ValueId index) {
  return e.emit(Op::kIndexPut, IndexPutAttrs{false}, {rows, values, e.cast(index, DType::kI32)});
}

ValueId write_rows(Emitter& e, ValueId rows, ValueId values, const Places& places) {
  const std::vector<double> index(places.begin(), places.end());
  return write_rows(e, rows, values,
                    e.constant(DType::kI32, {static_cast<std::int64_t>(places.size())}, index));
}

// The row numbers that an index_put writes. Returns nothing if an index tensor is not a constant or an index
// is out of range.
std::optional<Places> constant_places(const Emitter& e, const Shape& index_shape) {
  const Shape& shape = e.type(e.operand(0)).shape;
  const std::int64_t count = num_elements(index_shape);
  Places places(static_cast<std::size_t>(count), 0);
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (!e.has(axis + 2)) continue;
    const Constant* index = constant_of(e.graph(), e.operand(axis + 2));
    if (index == nullptr || !index->storage.bound()) return std::nullopt;
    const Dims own = contiguous_strides(index->shape), strides = contiguous_strides(index_shape);
    const std::size_t lead = index_shape.size() - index->shape.size();
    const Elements elements(*index);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t at = 0;
      for (std::size_t k = 0; k < index->shape.size(); ++k)
        if (index->shape[k] != 1) at += i / strides[lead + k] % index_shape[lead + k] * own[k];
      const std::int64_t read = elements.as_int(static_cast<std::size_t>(at));
      const std::int64_t place = read < 0 ? read + shape[axis] : read;
      if (place < 0 || place >= shape[axis]) return std::nullopt;  // a run of the node reports the error
      places[static_cast<std::size_t>(i)] = places[static_cast<std::size_t>(i)] * shape[axis] + place;
    }
  }
  return places;
}

// For each place (row of the result), the rows of `values` that are written to it, in order.
std::map<std::int64_t, Places> rows_by_place(const Places& places) {
  std::map<std::int64_t, Places> rows;
  for (std::size_t i = 0; i < places.size(); ++i) rows[places[i]].push_back(static_cast<std::int64_t>(i));
  return rows;
}

ValueId put_last(Emitter& e, ValueId rows, ValueId values, const Places& places) {
  Places targets, sources;
  for (const auto& [place, from] : rows_by_place(places)) {
    targets.push_back(place);
    sources.push_back(from.back());
  }
  if (targets.size() == places.size()) return write_rows(e, rows, values, places);
  return write_rows(e, rows, rows_of(e, values, sources), targets);
}

Shape with_rows(Emitter& e, ValueId x, Dims first) {
  const Shape shape = e.type(x).shape;
  for (std::size_t i = 1; i < shape.size(); ++i) first.push_back(shape[i]);
  return first;
}

// The sum of each group of rows. A group with fewer than `width` rows is filled up with the last row of
// `padded`, a row of zeros.
ValueId summed_rows(Emitter& e, ValueId padded, const std::vector<Places>& groups, std::size_t width) {
  Places table;
  for (const Places& group : groups) {
    table.insert(table.end(), group.begin(), group.end());
    table.insert(table.end(), width - group.size(), e.type(padded).shape[0] - 1);
  }
  const ValueId picked = rows_of(e, padded, table);
  if (width == 1) return picked;
  const Dims split{static_cast<std::int64_t>(groups.size()), static_cast<std::int64_t>(width)};
  const ValueId sum = e.reduce(Op::kSum, e.reshape(picked, with_rows(e, padded, split)), Dims{1}, false);
  return e.cast(sum, e.type(padded).dtype);
}

// Places whose numbers of values are equal after rounding up to a power of two are summed in one step. So the
// number of gathered rows is at most twice the number of values.
ValueId put_sums(Emitter& e, ValueId rows, ValueId values, const Places& places) {
  std::map<std::size_t, std::pair<Places, std::vector<Places>>> classes;
  for (const auto& [place, from] : rows_by_place(places)) {
    auto& [targets, groups] = classes[std::bit_ceil(from.size())];
    targets.push_back(place);
    groups.push_back(from);
  }
  const DType dtype = e.type(values).dtype;
  const Shape zeros = with_rows(e, values, {1});
  const ValueId zero = e.expand(e.number(0.0, dtype), zeros);
  const ValueId padded = e.emit(Op::kCat, AxisAttrs{0}, {values, zero});
  Places targets;
  std::vector<ValueId> sums;
  for (const auto& [width, members] : classes) {
    targets.insert(targets.end(), members.first.begin(), members.first.end());
    sums.push_back(summed_rows(e, width == 1 ? values : padded, members.second, width));
  }
  const ValueId sum = sums.size() == 1 ? sums[0] : e.emit(Op::kCat, AxisAttrs{0}, sums);
  return write_rows(e, rows, e.add(rows_of(e, rows, targets), sum), targets);
}

// ---- one value for all places ----

// The number that all elements of a tensor equal, with extents 1: a constant, or a number that is expanded.
std::optional<ValueId> only_number(Emitter& e, ValueId x) {
  const TensorType type = e.type(x);
  const Shape one = Dims::filled(type.shape.size(), 1);
  for (ValueId at = x; at.valid();) {
    if (num_elements(e.type(at).shape) == 1) return e.reshape(at, one);
    const Node* node = e.graph().producer(at);
    if (node == nullptr || node->operand_count != 1 || (node->op != Op::kExpand && node->op != Op::kReshape))
      break;
    at = e.graph().operands(*node)[0];
  }
  const Constant* constant = constant_of(e.graph(), x);
  if (constant == nullptr || !constant->storage.bound()) return std::nullopt;
  const Elements elements(*constant);
  const double first = elements.size() == 0 ? 0.0 : elements.as_double(0);
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (elements.as_double(i) != first && !(std::isnan(first) && std::isnan(elements.as_double(i))))
      return std::nullopt;
  return elements.size() == 0 ? std::nullopt : std::optional(e.constant(type.dtype, one, {first}));
}

// The values of an index_put with extent 1 on the `count` axes of the result from `first` on, if every index
// writes the same values.
std::optional<ValueId> same_at_all_places(Emitter& e, ValueId values, std::size_t rank, std::size_t first,
                                          std::size_t count) {
  if (const std::optional<ValueId> one = only_number(e, values)) return one;
  if (const Node* expand = produced_by(e.graph(), values, Op::kExpand))
    values = e.graph().operands(*expand)[0];
  const Shape shape = e.type(values).shape;
  for (std::size_t axis = first; axis < first + count; ++axis)
    if (axis + shape.size() >= rank && shape[axis + shape.size() - rank] != 1) return std::nullopt;
  return values;
}

// For index (outer, count, inner): a bool (outer, extent, inner) that is true at the positions 0 .. extent -
// 1 that occur among the `count` indices.
ValueId occurring(Emitter& e, ValueId index, std::int64_t extent) {
  const Shape shape = e.type(index).shape;
  const DType dtype = e.type(index).dtype;
  std::vector<double> numbers;
  for (std::int64_t at = 0; at < extent; ++at) numbers.push_back(static_cast<double>(at));
  const std::int64_t count = shape[1];
  if (num_elements(shape) <= kMostCompared / std::max<std::int64_t>(extent, 1)) {
    const ValueId each = e.reshape(index, {shape[0], count, 1, shape[2]});
    const ValueId equal = e.binary(Op::kEq, each, e.constant(dtype, {1, 1, extent, 1}, numbers));
    return e.reduce(Op::kAny, equal, Dims{1}, false);
  }
  if (count > kMostSteps)
    throw UnsupportedOp({.where = "decompose",
                         .what = "one value is written at " + std::to_string(num_elements(shape)) +
                                 " places of " + std::to_string(extent) +
                                 " that are known only when run, and TOSA writes each place once",
                         .expected = "constant indices, at most " + std::to_string(kMostCompared) +
                                     " pairs of an index and a position, or at most " +
                                     std::to_string(kMostSteps) + " indices",
                         .hint = "Make the indices constants, or select by a mask: torch.where"});
  const ValueId positions = e.constant(dtype, {1, extent, 1}, numbers);
  ValueId found;
  for (std::int64_t i = 0; i < count; ++i) {
    const ValueId equal = e.binary(Op::kEq, e.slice(index, 1, i, i + 1), positions);
    found = found.valid() ? e.binary(Op::kLogicalOr, found, equal) : equal;
  }
  return found;
}

// The shape [outer, extent of `axis`, inner] of a tensor whose axes before and after `axis` are merged.
Shape around_axis(const Shape& covered, std::size_t axis) {
  Shape out{1, covered[axis], 1};
  for (std::size_t i = 0; i < covered.size(); ++i)
    if (i != axis) out[i < axis ? 0 : 2] *= covered[i];
  return out;
}

// x in which made(part) replaces `part`, the elements that an index tensor of shape `covered` covers.
template <class Made>
ValueId on_covered_part(Emitter& e, ValueId x, const Shape& covered, std::size_t axis, Made made) {
  const Shape whole = e.type(x).shape;
  ValueId part = x;
  for (std::size_t i = 0; i < whole.size(); ++i)
    if (i != axis && covered[i] != whole[i]) part = e.slice(part, i, 0, covered[i]);
  ValueId y = made(part);
  // The part that the index does not cover, one axis after the other.
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (i == axis || covered[i] == whole[i]) continue;
    ValueId rest = e.slice(x, i, covered[i], whole[i]);
    for (std::size_t k = i + 1; k < whole.size(); ++k)
      if (k != axis && covered[k] != whole[k]) rest = e.slice(rest, k, 0, covered[k]);
    y = e.emit(Op::kCat, AxisAttrs{static_cast<std::int64_t>(i)}, {y, rest});
  }
  return y;
}

// scatter of one value: on the part of x that the index covers, where(occurring, value, x).
ValueId scatter_number(Emitter& e, ValueId x, ValueId index, std::size_t axis, ValueId value) {
  const Shape covered = e.type(index).shape;
  return on_covered_part(e, x, covered, axis, [&](ValueId part) {
    const Shape shape = e.type(part).shape;
    const ValueId hit = occurring(e, e.reshape(index, around_axis(covered, axis)), shape[axis]);
    return e.where(e.reshape(hit, shape), value, part);
  });
}

bool is_known(const Graph& graph, ValueId index) {
  const Constant* constant = constant_of(graph, index);
  return constant != nullptr && constant->storage.bound();
}

// True if all rows of a matrix are known to be equal, even if they are computed.
bool has_equal_rows(const Graph& graph, ValueId rows) {
  if (const Node* expand = produced_by(graph, rows, Op::kExpand)) {
    const Shape& shape = graph.type(graph.operands(*expand)[0]).shape;
    return shape.size() < 2 || shape[0] == 1;
  }
  const Constant* constant = constant_of(graph, rows);
  if (constant == nullptr || !constant->storage.bound()) return false;
  const auto width = static_cast<std::size_t>(constant->shape[1]);
  const Elements elements(*constant);
  for (std::size_t i = width; i < elements.size(); ++i)
    if (elements.as_double(i) != elements.as_double(i - width)) return false;
  return true;
}

// Adds to each row the sum of the values whose index is that row, in one step.
ValueId add_by_position(Emitter& e, ValueId rows, ValueId values, ValueId index) {
  const Shape shape = e.type(rows).shape;
  const std::int64_t count = e.type(index).shape[0];
  std::vector<double> numbers;
  for (std::int64_t at = 0; at < shape[0]; ++at) numbers.push_back(static_cast<double>(at));
  const DType dtype = e.type(values).dtype;
  const ValueId hit = e.binary(Op::kEq, e.reshape(index, {1, count, 1}),
                               e.constant(e.type(index).dtype, {shape[0], 1, 1}, numbers));
  const ValueId kept = e.where(hit, e.reshape(values, {1, count, shape[1]}), e.number(0.0, dtype));
  return e.add(rows, e.cast(e.reduce(Op::kSum, kept, Dims{1}, false), dtype));
}

ValueId add_one_by_one(Emitter& e, ValueId rows, ValueId values, ValueId index) {
  const std::int64_t count = e.type(index).shape[0];
  if (count > kMostSteps &&
      num_elements(e.type(values).shape) <= kMostReduced / std::max<std::int64_t>(e.type(rows).shape[0], 1))
    return add_by_position(e, rows, values, index);
  if (count > kMostSteps)
    throw UnsupportedOp({.where = "decompose",
                         .what = "index_put adds at " + std::to_string(count) +
                                 " places that are known only when run, and TOSA writes each place once",
                         .expected = "constant indices, at most " + std::to_string(kMostReduced) +
                                     " pairs of a value and a position, or at most " +
                                     std::to_string(kMostSteps) + " indices",
                         .hint = "Make the indices constants, or sum with a matmul of a one-hot matrix"});
  for (std::int64_t i = 0; i < count; ++i) {
    const ValueId at = e.slice(index, 0, i, i + 1);
    const ValueId old = e.emit(Op::kIndexSelect, AxisAttrs{0}, {rows, at});
    rows = write_rows(e, rows, e.add(old, e.slice(values, 0, i, i + 1)), at);
  }
  return rows;
}

}  // namespace

bool is_row_write(const Graph& graph, const Node& node) {
  const std::span<const ValueId> operands = graph.operands(node);
  if (Graph::attrs<IndexPutAttrs>(node).accumulate || operands.size() != 3) return false;
  const Shape& rows = graph.type(operands[0]).shape;
  const Shape& index = graph.type(operands[2]).shape;
  if (rows.size() != 2 || index.size() != 1) return false;
  if (graph.type(operands[1]).shape != Shape{index[0], rows[1]}) return false;
  if (graph.type(operands[2]).dtype != DType::kI32) return false;  // i64 indices may count from the end
  if (!is_known(graph, operands[2])) return index[0] == 1 || !has_equal_rows(graph, operands[1]);
  const Constant* constant = constant_of(graph, operands[2]);
  std::vector<bool> seen(static_cast<std::size_t>(rows[0]), false);
  const Elements elements(*constant);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::int64_t at = elements.as_int(i);
    if (at < 0 || at >= rows[0] || seen[static_cast<std::size_t>(at)]) return false;
    seen[static_cast<std::size_t>(at)] = true;
  }
  return true;
}

ValueId expand_index_put(Emitter& e) {
  const IndexedRows plan = indexed_rows(e, 2);
  const bool accumulate = e.attrs<IndexPutAttrs>().accumulate;
  const std::int64_t count = num_elements(plan.index_shape), width = num_elements(plan.kept);
  Shape written(plan.kept.span().first(plan.kept_before));
  for (const std::int64_t extent : plan.index_shape) written.push_back(extent);
  for (const std::int64_t extent : plan.kept.span().subspan(plan.kept_before)) written.push_back(extent);
  if (num_elements(written) == 0) return e.operand(0);
  const std::optional<Places> places = constant_places(e, plan.index_shape);
  if (!places && !accumulate && count > 1)
    if (const std::optional<ValueId> same =
            same_at_all_places(e, e.operand(1), written.size(), plan.kept_before, plan.index_shape.size())) {
      const std::int64_t extent = e.type(plan.rows).shape[0];
      Shape one = written;
      for (std::size_t i = 0; i < plan.index_shape.size(); ++i) one[plan.kept_before + i] = 1;
      ValueId value = e.expand(*same, one);
      if (plan.kept_before != 0) value = e.permute(value, plan.to_front());
      const ValueId hit = occurring(e, e.reshape(plan.index, {1, count, 1}), extent);
      const ValueId y = e.where(e.reshape(hit, {extent, 1}), e.reshape(value, {1, width}),
                                e.reshape(plan.rows, {extent, width}));
      return e.permute(e.reshape(y, permuted(e.result_type().shape, plan.perm)),
                       inverse_permutation(plan.perm));
    }
  ValueId values = e.expand(e.operand(1), written);
  if (plan.kept_before != 0) values = e.permute(values, plan.to_front());
  values = e.reshape(values, {count, width});
  ValueId rows = e.reshape(plan.rows, {e.type(plan.rows).shape[0], width});
  if (places) {
    rows = accumulate ? put_sums(e, rows, values, *places) : put_last(e, rows, values, *places);
  } else if (accumulate) {
    rows = add_one_by_one(e, rows, values, plan.index);
  } else {
    rows = write_rows(e, rows, values, plan.index);
  }
  const ValueId y = e.reshape(rows, permuted(e.result_type().shape, plan.perm));
  return e.permute(y, inverse_permutation(plan.perm));
}

namespace {

bool is_position(DType dtype) { return dtype == DType::kI32 || dtype == DType::kI64; }

// True if the elements of an index are known to differ along an axis: constants, the order of a sort or a
// part of it, or these plus one number.
bool differs_along(const Graph& graph, ValueId index, std::size_t axis) {
  const Shape& shape = graph.type(index).shape;
  if (axis >= shape.size()) return false;
  if (shape[axis] <= 1) return true;
  if (const Constant* constant = constant_of(graph, index)) {
    if (!constant->storage.bound()) return false;
    const Elements elements(*constant);
    const Shape lines = around_axis(shape, axis);
    std::set<std::array<std::int64_t, 3>> seen;
    for (std::int64_t i = 0; i < num_elements(shape); ++i)
      if (!seen.insert(
                   {i / (lines[1] * lines[2]), i % lines[2], elements.as_int(static_cast<std::size_t>(i))})
               .second)
        return false;
    return true;
  }
  const Node* node = graph.producer(index);
  if (node == nullptr) return false;
  const std::span<const ValueId> operands = graph.operands(*node);
  // The axis of an operand that is `axis` once the operand is broadcast.
  const auto own_axis = [&](ValueId operand) { return axis + graph.type(operand).rank() - shape.size(); };
  const auto is_one_number = [&](ValueId operand) {
    const Shape& own = graph.type(operand).shape;
    return own.size() + axis < shape.size() || own[own_axis(operand)] == 1;
  };
  // open switch: of most operators nothing is known
  switch (node->op) {
    case Op::kArgsort:
      return static_cast<std::size_t>(Graph::attrs<SortAttrs>(*node).axis) == axis;
    case Op::kClone:
    case Op::kSlice:
      return differs_along(graph, operands[0], axis);
    case Op::kCast:
      return is_integer(graph.type(operands[0]).dtype) && is_position(graph.type(index).dtype) &&
             differs_along(graph, operands[0], axis);
    case Op::kExpand:
      return !is_one_number(operands[0]) && differs_along(graph, operands[0], own_axis(operands[0]));
    case Op::kReshape: {
      const Shape& own = graph.type(operands[0]).shape;
      const Shape lines = around_axis(shape, axis);
      for (std::size_t i = 0; i < own.size(); ++i)
        if (around_axis(own, i) == lines) return differs_along(graph, operands[0], i);
      return false;
    }
    case Op::kAdd:
    case Op::kSub:
      for (const std::size_t i : {0, 1})
        if (is_one_number(operands[1 - i]) && !is_one_number(operands[i]) &&
            (i == 0 || Graph::attrs<AlphaAttrs>(*node) == AlphaAttrs{}))
          return differs_along(graph, operands[i], own_axis(operands[i]));
      return false;
    default:
      return false;
  }
}

// For index (outer, count, inner): for each position 0 .. extent - 1, the last of the `count` indices that
// names it, and -1 if none does.
ValueId last_writers(Emitter& e, ValueId index, std::int64_t extent) {
  const Shape shape = e.type(index).shape;
  std::vector<double> positions, order;
  for (std::int64_t at = 0; at < extent; ++at) positions.push_back(static_cast<double>(at));
  for (std::int64_t at = 0; at < shape[1]; ++at) order.push_back(static_cast<double>(at));
  const ValueId each = e.reshape(index, {shape[0], shape[1], 1, shape[2]});
  const ValueId hit = e.binary(Op::kEq, each, e.constant(DType::kI32, {1, 1, extent, 1}, positions));
  const ValueId writer = e.constant(DType::kI32, {1, shape[1], 1, 1}, order);
  return e.reduce(Op::kAmax, e.where(hit, writer, e.number(-1, DType::kI32)), Dims{1}, false);
}

// `part`, in which each position that indices name has the value (of `values`) of the last such index.
ValueId put_last_written(Emitter& e, ValueId part, ValueId index, ValueId values) {
  const ValueId last = last_writers(e, index, e.type(part).shape[1]);
  const ValueId zero = e.number(0, DType::kI32);
  const ValueId found = e.emit(Op::kGather, AxisAttrs{1}, {values, e.binary(Op::kMaximum, last, zero)});
  return e.where(e.binary(Op::kGe, last, zero), found, part);
}

// scatter at indices that may repeat: the last value stays, as on the CPU in torch.
ValueId scatter_by_position(Emitter& e, std::size_t axis) {
  const Shape covered = e.type(e.operand(1)).shape;
  const Shape lines = around_axis(covered, axis);
  const ValueId index = e.cast(e.reshape(e.operand(1), lines), DType::kI32);
  const ValueId values = e.reshape(e.expand(e.operand(2), covered), lines);
  return on_covered_part(e, e.operand(0), covered, axis, [&](ValueId part) {
    const Shape shape = e.type(part).shape;
    return e.reshape(put_last_written(e, e.reshape(part, around_axis(shape, axis)), index, values), shape);
  });
}

// One write for each of the indices along the axis, in order. The places of one write differ.
ValueId scatter_one_by_one(Emitter& e, std::size_t axis) {
  const Shape covered = e.type(e.operand(1)).shape;
  const ValueId source = e.expand(e.operand(2), covered);
  ValueId x = e.operand(0);
  for (std::int64_t i = 0; i < covered[axis]; ++i)
    x = e.emit(Op::kScatter, AxisAttrs{static_cast<std::int64_t>(axis)},
               {x, e.slice(e.operand(1), axis, i, i + 1), e.slice(source, axis, i, i + 1)});
  return x;
}

}  // namespace

namespace {

// How a scatter of several values at an index that may repeat is written.
enum class ScatterForm : std::uint8_t { kDifferent, kByPosition, kOneByOne, kAssumedDifferent };

ScatterForm form_of_scatter(const Graph& graph, const Node& node) {
  const std::span<const ValueId> operands = graph.operands(node);
  const Shape& shape = graph.type(operands[1]).shape;
  if (shape.empty() || num_elements(shape) == 0) return ScatterForm::kDifferent;
  const auto axis = static_cast<std::size_t>(Graph::attrs<AxisAttrs>(node).axis);
  if (is_known(graph, operands[1]) || differs_along(graph, operands[1], axis)) return ScatterForm::kDifferent;
  const std::int64_t extent = std::max<std::int64_t>(graph.type(operands[0]).shape[axis], 1);
  if (num_elements(shape) <= kMostReduced / extent) return ScatterForm::kByPosition;
  return shape[axis] <= kMostSteps ? ScatterForm::kOneByOne : ScatterForm::kAssumedDifferent;
}

// True if scatter_number() writes these values.
bool repeats_one_number(const Graph& graph, ValueId x) {
  for (ValueId at = x; at.valid();) {
    if (num_elements(graph.type(at).shape) == 1) return true;
    const Node* node = graph.producer(at);
    if (node == nullptr || (node->op != Op::kExpand && node->op != Op::kReshape)) break;
    at = graph.operands(*node)[0];
  }
  const Constant* constant = constant_of(graph, x);
  if (constant == nullptr || !constant->storage.bound()) return false;
  const Elements elements(*constant);
  for (std::size_t i = 1; i < elements.size(); ++i)
    if (elements.as_double(i) != elements.as_double(0)) return false;
  return true;
}

}  // namespace

std::vector<ConstantNote> place_notes(const Graph& graph) {
  std::vector<ConstantNote> notes;
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kScatter || form_of_scatter(graph, node) != ScatterForm::kAssumedDifferent) continue;
    const std::span<const ValueId> operands = graph.operands(node);
    if (repeats_one_number(graph, operands[2])) continue;
    const auto axis = static_cast<std::size_t>(Graph::attrs<AxisAttrs>(node).axis);
    const std::string name = graph.value(graph.result(node)).name;
    notes.push_back(
        {"assumed-places", name,
         "'" + name + "' writes at " + std::to_string(graph.type(operands[1]).shape[axis]) +
             " places of an axis of " + std::to_string(graph.type(operands[0]).shape[axis]) +
             " that are known only when run, and TOSA writes each place once: if a place occurs "
             "twice, the result is unpredictable. At most " +
             std::to_string(kMostReduced) + " pairs of an index and a position are compared, and " +
             std::to_string(kMostSteps) +
             " writes follow each other. Scatter fewer elements in each call, or make the indices "
             "constants"});
  }
  return notes;
}

ValueId scatter_at_places_that_differ(Emitter& e, ValueId x, ValueId index, ValueId source,
                                      std::size_t axis) {
  const Shape shape = e.type(index).shape;
  std::vector<ValueId> operands{x, source};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == axis) {
      operands.push_back(index);
      continue;
    }
    Shape own = Dims::filled(shape.size(), 1);
    own[i] = shape[i];
    std::vector<double> positions;
    for (std::int64_t at = 0; at < shape[i]; ++at) positions.push_back(static_cast<double>(at));
    operands.push_back(e.constant(DType::kI64, own, positions));
  }
  return e.emit(Op::kIndexPut, IndexPutAttrs{false}, operands);
}

ValueId expand_scatter(Emitter& e) {
  const Shape shape = e.type(e.operand(1)).shape;
  if (shape.empty()) return e.operand(2);
  const auto axis = static_cast<std::size_t>(e.attrs<AxisAttrs>().axis);
  if (shape[axis] > 1 && num_elements(shape) != 0 && !is_known(e.graph(), e.operand(1)))
    if (const std::optional<ValueId> value = only_number(e, e.operand(2)))
      return scatter_number(e, e.operand(0), e.operand(1), axis, *value);
  switch (form_of_scatter(e.source(), e.node())) {
    case ScatterForm::kByPosition:
      return scatter_by_position(e, axis);
    case ScatterForm::kOneByOne:
      return scatter_one_by_one(e, axis);
    case ScatterForm::kDifferent:
    case ScatterForm::kAssumedDifferent:
      break;
  }
  return scatter_at_places_that_differ(e, e.operand(0), e.operand(1), e.operand(2), axis);
}

namespace {

// Numbers that do not change a reduction over axis 1. Its result is combined with `own`, or, if `own` is not
// valid, it has at least one of the values.
ValueId neutral(Emitter& e, ScatterReduction reduction, ValueId values, ValueId own) {
  const TensorType type = e.type(values);
  if (reduction == ScatterReduction::kProd) return e.number(1.0, type.dtype);
  if (own.valid()) return own;
  const bool greatest = reduction == ScatterReduction::kAmax;
  if (!is_float(type.dtype) || type.qparams)
    return e.reduce(greatest ? Op::kAmin : Op::kAmax, values, Dims{1}, true);
  const double infinity = std::numeric_limits<double>::infinity();
  return e.number(greatest ? -infinity : infinity, type.dtype);
}

}  // namespace

// Each position reduces the values whose index is its own: where(index == position, value, neutral). With
// `include_self`, the neutral number is 1 for a product, and the position's own element for a maximum or
// minimum, so a position that no index names keeps its element. Without it, a select puts the element back.
ValueId expand_scatter_reduce(Emitter& e) {
  const auto& attrs = e.attrs<ScatterReduceAttrs>();
  Shape covered = e.type(e.operand(1)).shape;
  if (num_elements(covered) == 0) return e.emit(Op::kClone, CloneAttrs{}, {e.operand(0)});
  const Shape whole = covered.empty() ? Shape{1} : e.type(e.operand(0)).shape;
  if (covered.empty()) covered = {1};
  const auto axis = static_cast<std::size_t>(attrs.axis);
  const Shape lines = around_axis(covered, axis);
  const std::int64_t extent = whole[axis];
  if (num_elements(lines) > kMostReduced / std::max<std::int64_t>(extent, 1))
    throw UnsupportedOp({.where = "decompose",
                         .what = "TOSA has no reduction at indices, and " +
                                 std::to_string(num_elements(lines)) + " indices and " +
                                 std::to_string(extent) + " positions have too many pairs",
                         .expected = "at most " + std::to_string(kMostReduced) + " pairs to compare",
                         .hint = "Reduce fewer elements, or leave the call to the host"});
  const bool is_product = attrs.reduction == ScatterReduction::kProd;
  const Op over_values = is_product                                   ? Op::kProd
                         : attrs.reduction == ScatterReduction::kAmax ? Op::kAmax
                                                                      : Op::kAmin;
  const Op with_own = is_product                                   ? Op::kMul
                      : attrs.reduction == ScatterReduction::kAmax ? Op::kMaximum
                                                                   : Op::kMinimum;
  const ValueId y = on_covered_part(e, e.reshape(e.operand(0), whole), covered, axis, [&](ValueId part) {
    const DType dtype = e.type(e.operand(1)).dtype;
    std::vector<double> numbers;
    for (std::int64_t at = 0; at < extent; ++at) numbers.push_back(static_cast<double>(at));
    const ValueId index = e.reshape(e.operand(1), {lines[0], lines[1], 1, lines[2]});
    const ValueId hit = e.binary(Op::kEq, index, e.constant(dtype, {1, 1, extent, 1}, numbers));
    const ValueId values = e.reshape(e.operand(2), {lines[0], lines[1], 1, lines[2]});
    const Shape shape = e.type(part).shape;
    const ValueId own = attrs.include_self ? e.reshape(part, {lines[0], 1, extent, lines[2]}) : ValueId();
    const ValueId kept = e.where(hit, values, neutral(e, attrs.reduction, values, own));
    const ValueId reduced = e.cast(e.reduce(over_values, kept, Dims{1}, false), e.type(part).dtype);
    const ValueId alone = e.reshape(reduced, shape);
    if (attrs.include_self) return e.binary(with_own, part, alone);
    return e.where(e.reshape(e.reduce(Op::kAny, hit, Dims{1}, false), shape), alone, part);
  });
  return e.reshape(y, e.result_type().shape);
}

namespace {

// The elements [start, end) of an axis of a value.
struct Part {
  ValueId from;
  std::int64_t start = 0, end = 0;
};

Part part_of_slice(const Emitter& e, ValueId x, std::size_t axis) {
  const Node* node = e.graph().producer(x);
  if (node != nullptr && node->op == Op::kSlice) {
    const auto& attrs = Graph::attrs<SliceAttrs>(*node);
    if (static_cast<std::size_t>(attrs.axis) == axis && attrs.step == 1)
      return {e.graph().operands(*node)[0], attrs.start, attrs.start + e.type(x).shape[axis]};
  }
  return {x, 0, e.type(x).shape[axis]};
}

// Values of the source graph that are written side by side into another value, the last write first.
struct Written {
  struct Write {
    AxisRange to;
    ValueId source;
  };
  ValueId into;
  std::vector<Write> writes;
};

// The chain of writes to one axis that ends in this node. If only another write reads the result of this
// node, the chain has this node alone, since nothing will read its expansion.
Written written_by(const Emitter& e, const AxisRange& last) {
  const Graph& graph = e.source();
  const ValueId result = graph.result(e.node());
  const auto range_of = [&](const Node* node) {
    const std::optional<AxisRange> range = written_range(graph, node);
    return range && range->axis == last.axis && range->start < range->end ? range : std::nullopt;
  };
  const bool is_read = graph.is_output(result) || !std::ranges::all_of(graph.users(result), [&](NodeId user) {
                         return range_of(&graph.node(user)) && graph.operands(graph.node(user))[0] == result;
                       });
  Written out;
  const Node* node = &e.node();
  for (std::optional<AxisRange> range = last; range; range = is_read ? range_of(node) : std::nullopt) {
    out.into = graph.operands(*node)[0];
    out.writes.push_back({*range, graph.operands(*node)[1]});
    node = graph.producer(out.into);
  }
  return out;
}

// Appends the elements [start, end) of the concatenated `parts`. Adjacent parts of one value become one part.
void add_range(std::vector<Part>& out, const std::vector<Part>& parts, std::int64_t start, std::int64_t end) {
  std::int64_t at = 0;
  for (const Part& part : parts) {
    const std::int64_t first = std::max(start, at), last = std::min(end, at + part.end - part.start);
    if (first < last) {
      const Part cut{part.from, part.start + first - at, part.start + last - at};
      if (!out.empty() && out.back().from == cut.from && out.back().end == cut.start)
        out.back().end = cut.end;
      else
        out.push_back(cut);
    }
    at += part.end - part.start;
  }
}

ValueId emit_parts(Emitter& e, std::size_t axis, const std::vector<Part>& parts) {
  std::vector<ValueId> values;
  for (const Part& part : parts) {
    const bool is_whole = part.start == 0 && part.end == e.type(part.from).shape[axis];
    values.push_back(is_whole ? part.from : e.slice(part.from, axis, part.start, part.end));
  }
  if (values.size() == 1) return values[0];
  return e.emit(Op::kCat, AxisAttrs{static_cast<std::int64_t>(axis)}, values);
}

}  // namespace

ValueId expand_slice_scatter(Emitter& e) {
  const auto& attrs = e.attrs<SliceAttrs>();
  const auto axis = static_cast<std::size_t>(attrs.axis);
  const ValueId x = e.operand(0), source = e.operand(1);
  const std::int64_t extent = e.type(x).shape[axis], count = e.type(source).shape[axis];
  if (count == 0) return x;
  if (const std::optional<AxisRange> last = written_range(e.source(), &e.node())) {
    const Written written = written_by(e, *last);
    std::vector<Part> parts{part_of_slice(e, e.mapped(written.into), axis)};
    for (const auto& [to, source_of_write] : std::views::reverse(written.writes)) {
      std::vector<Part> next;
      add_range(next, parts, 0, to.start);
      add_range(next, {part_of_slice(e, e.mapped(source_of_write), axis)}, 0, to.end - to.start);
      add_range(next, parts, to.end, extent);
      parts = std::move(next);
    }
    return emit_parts(e, axis, parts);
  }
  std::vector<double> from;
  for (std::int64_t i = 0; i < extent; ++i) {
    const bool written = i >= attrs.start && i < attrs.end && (i - attrs.start) % attrs.step == 0;
    from.push_back(static_cast<double>(written ? extent + (i - attrs.start) / attrs.step : i));
  }
  const ValueId both = e.emit(Op::kCat, AxisAttrs{attrs.axis}, {x, source});
  return e.emit(Op::kIndexSelect, AxisAttrs{attrs.axis}, {both, e.constant(DType::kI64, {extent}, from)});
}

}  // namespace tosaic::passes
