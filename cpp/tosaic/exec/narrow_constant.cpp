#include "tosaic/exec/narrow_constant.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "tosaic/exec/array.h"
#include "tosaic/exec/moved_constant.h"
#include "tosaic/exec/node.h"
#include "tosaic/ir/deferred.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/ir/recipe.h"
#include "tosaic/ir/same_elements.h"
#include "tosaic/kernels/strided_copy.h"

namespace tosaic::exec {
namespace {

constexpr std::size_t kLeastBytes = 1024;  // of a result; smaller ones are not deferred
constexpr std::size_t kMostAxes = 6;       // of a form: the greatest rank of TOSA's default level

using Extents = std::vector<std::int64_t>;

Shape shape_of(const Extents& extents) { return Shape(std::span<const std::int64_t>(extents)); }

std::size_t bytes_of(const Constant& constant) { return constant.storage.size(); }

// The constant with its elements in another shape.
ConstantRef with_shape(const Constant& constant, const Shape& shape) {
  return constant_over(constant.name, constant.kind, constant.dtype, shape, constant.storage);
}

// The constant with its axes in another order.
ConstantRef with_axes(const ConstantRef& constant, const Dims& perm) {
  std::int64_t last = -1;
  const bool stays = std::all_of(perm.begin(), perm.end(), [&](std::int64_t axis) {
    if (constant->shape[static_cast<std::size_t>(axis)] == 1) return true;
    return std::exchange(last, axis) < axis;
  });
  const Shape shape = permuted(constant->shape, perm);
  if (stays) return with_shape(*constant, shape);
  return constant_over(constant->name, ConstantKind::kFolded, constant->dtype, shape,
                       deferred_permute(constant->storage, constant->dtype, constant->shape, perm));
}

// The part of a constant that begins at `start`.
ConstantRef sliced(const ConstantRef& constant, const Dims& start, const Dims& size) {
  const std::size_t width = byte_size(constant->dtype);
  const Dims strides = contiguous_strides(constant->shape), own = contiguous_strides(size);
  const std::vector<std::int64_t> from(strides.begin(), strides.end()), to(own.begin(), own.end());
  Storage out = Storage::allocate(static_cast<std::size_t>(num_elements(size)) * width);
  const std::int64_t first = std::inner_product(start.begin(), start.end(), strides.begin(), std::int64_t{0});
  kernels::StridedCopy copy(width, {size.begin(), size.end()}, from, to, kernels::Options());
  copy.run(constant->bytes().data() + static_cast<std::size_t>(first) * width, out.writable(), nullptr);
  return constant_over(constant->name, ConstantKind::kFolded, constant->dtype, size, std::move(out));
}

NarrowForm mapped(const NarrowForm& form, const std::function<ConstantRef(const ConstantRef&)>& function) {
  NarrowForm out = form;
  out.narrow = function(form.narrow);
  for (NarrowStep& step : out.steps)
    if (step.number) step.number = function(step.number);
  return out;
}

// Merges neighbouring axes along which the operands of all steps either change or do not, and drops axes of
// extent 1.
NarrowForm with_few_axes(const NarrowForm& form) {
  const Shape& shape = form.narrow->shape;
  const auto changes_alike = [&](std::size_t a, std::size_t b) {
    return std::all_of(form.steps.begin(), form.steps.end(), [&](const NarrowStep& step) {
      return !step.number || (step.number->shape[a] == 1) == (step.number->shape[b] == 1);
    });
  };
  std::vector<std::vector<std::size_t>> merged;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    if (!merged.empty() && changes_alike(merged.back().back(), axis))
      merged.back().push_back(axis);
    else
      merged.push_back({axis});
  }
  return mapped(form, [&](const ConstantRef& constant) {
    Extents extents;
    for (const std::vector<std::size_t>& axes : merged) {
      std::int64_t extent = 1;
      for (const std::size_t axis : axes) extent *= constant->shape[axis];
      extents.push_back(extent);
    }
    if (extents.empty()) extents.push_back(1);
    return with_shape(*constant, shape_of(extents));
  });
}

// Computes the steps with the kernels, so that the floats equal the floats that the nodes would compute.
class FromNarrow final : public Recipe {
 public:
  FromNarrow(NarrowForm form, std::size_t size)
      : Recipe(form.narrow->storage), form_(std::move(form)), size_(size) {}

  [[nodiscard]] const NarrowForm& form() const { return form_; }
  [[nodiscard]] bool is_remembered() const override { return true; }
  [[nodiscard]] bool computes_as(const Recipe& other) const override {
    const auto* narrow = dynamic_cast<const FromNarrow*>(&other);
    return narrow != nullptr && form_.narrow->dtype == narrow->form_.narrow->dtype &&
           form_.narrow->shape == narrow->form_.narrow->shape &&
           std::equal(form_.steps.begin(), form_.steps.end(), narrow->form_.steps.begin(),
                      narrow->form_.steps.end(), is_same_step);
  }
  [[nodiscard]] std::size_t unit_bytes() const override { return size_; }
  void prepare() const override { static_cast<void>(source().bytes()); }
  void compute(std::size_t begin, std::size_t end, std::byte* to) const override {
    if (begin == end) return;
    Graph graph;
    ValueId value = graph.add_constant(form_.narrow);
    Array now;
    ArrayView view = view_of(*form_.narrow);
    for (const NarrowStep& step : form_.steps) {
      std::vector<ValueId> operands{value};
      std::vector<ArrayView> views{view};
      if (step.number) {
        operands.push_back(graph.add_constant(step.number));
        views.push_back(view_of(*step.number));
      }
      Attrs attrs = default_attrs(step.op);
      if (step.op == Op::kCast) attrs = CastAttrs{step.dtype};
      value = graph.add(step.op, std::move(attrs), operands, nullptr);
      std::optional<std::vector<Array>> results = run_node(graph, *graph.producer(value), views);
      if (!results)
        throw InternalError({.where = "fold", .what = "a step of a narrow constant has no kernel"});
      now = std::move(results->front());
      view = now.view();
    }
    std::memcpy(to, view.data, size_);
  }

 private:
  static bool is_same_step(const NarrowStep& a, const NarrowStep& b) {
    if (a.op != b.op || a.dtype != b.dtype || (a.number == nullptr) != (b.number == nullptr)) return false;
    return !a.number ||
           (a.number->shape == b.number->shape && same_elements(a.number->storage, b.number->storage));
  }
  static ArrayView view_of(const Constant& constant) {
    return ArrayView::dense(constant.bytes().data(), constant.dtype, constant.shape);
  }

  NarrowForm form_;
  std::size_t size_;
};

// True for dtypes whose elements TOSA can cast to floats.
bool casts_to_floats(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kU8 || dtype == DType::kI16 || dtype == DType::kF8E4M3 ||
         dtype == DType::kF8E5M2 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// TOSA has no u8: the integers are stored as i8, less 128.
NarrowForm without_sign_bit(const ConstantRef& constant, const OriginRef& origin, DType dtype) {
  const std::span<const std::byte> from = constant->bytes();
  Storage storage = Storage::allocate(from.size());
  std::transform(from.begin(), from.end(), storage.writable(),
                 [](std::byte each) { return each ^ std::byte{0x80}; });
  const ConstantRef signed_integers =
      constant_over(constant->name, ConstantKind::kFolded, DType::kI8, constant->shape, std::move(storage));
  const double half = 128;
  return {signed_integers,
          {{Op::kCast, dtype, nullptr, origin},
           {Op::kAdd, dtype,
            make_constant(constant->name + ".sign", dtype, Dims::filled(constant->shape.size(), 1),
                          std::span(&half, 1)),
            origin}},
          constant->name,
          DType::kU8};
}

std::optional<NarrowForm> cast_form(const OriginRef& origin, const ConstantRef& operand, DType dtype) {
  if (const NarrowForm* known = narrow_form(*operand)) {
    NarrowForm form = *known;
    // A cast of bytes to i32 and then to floats is a cast to floats.
    if (is_integer(operand->dtype) && is_float(dtype)) form.steps.clear();
    if (form.steps.empty() || operand->dtype != dtype)
      form.steps.push_back({Op::kCast, dtype, nullptr, origin});
    return form;
  }
  if (!casts_to_floats(operand->dtype) || (is_integer(dtype) && operand->dtype != DType::kI8))
    return std::nullopt;
  if (operand->dtype == DType::kU8) return with_few_axes(without_sign_bit(operand, origin, dtype));
  NarrowForm form{operand, {{Op::kCast, dtype, nullptr, origin}}, operand->name, operand->dtype};
  return with_few_axes(form);
}

// The operator of the NarrowStep that computes the same as the node; nothing if no step does.
std::optional<Op> step_op(const Node& node) {
  static constexpr OpTable<Op> kSteps = {{Op::kAdd, Op::kAdd}, {Op::kTosaAdd, Op::kAdd},
                                         {Op::kSub, Op::kSub}, {Op::kTosaSub, Op::kSub},
                                         {Op::kMul, Op::kMul}, {Op::kTosaMul, Op::kMul}};
  const Op* const found = kSteps.find(node.op);
  if (found == nullptr) return std::nullopt;
  const auto* const scaled = get_if<AlphaAttrs>(node.attrs.get());
  return scaled == nullptr || scaled->alpha == Scalar(std::int64_t{1}) ? std::optional(*found) : std::nullopt;
}

std::optional<NarrowForm> arithmetic_form(const Node& node, Op op, std::span<const ConstantRef> operands,
                                          const TensorType& type) {
  const bool is_first = narrow_form(*operands[0]) != nullptr;
  if (!is_first && op == Op::kSub) return std::nullopt;
  const ConstantRef &wide = operands[is_first ? 0 : 1], &number = operands[is_first ? 1 : 0];
  const NarrowForm* known = narrow_form(*wide);
  if (known == nullptr || !is_float(type.dtype) || wide->shape != type.shape || wide->dtype != type.dtype ||
      number->dtype != type.dtype || number->shape.size() > type.shape.size())
    return std::nullopt;
  std::optional<NarrowParts> parts = in_parts(*known, type.shape);
  if (!parts) return std::nullopt;
  Extents extents;
  for (std::size_t axis = 0, lead = type.shape.size() - number->shape.size(); axis < type.shape.size();
       ++axis)
    for (const std::int64_t part : parts->parts[axis])
      extents.push_back(axis < lead || number->shape[axis - lead] == 1 ? 1 : part);
  if (extents.empty()) extents.push_back(1);
  ConstantRef own = with_shape(*number, shape_of(extents));
  if (own->name.empty())
    own = constant_over(known->root + (op == Op::kMul ? ".scale" : ".zero_point"), own->kind, own->dtype,
                        own->shape, own->storage);
  parts->form.steps.push_back({op, type.dtype, std::move(own), node.origin});
  return with_few_axes(parts->form);
}

std::optional<NarrowForm> permuted_form(const Constant& operand, const Dims& perm) {
  const NarrowForm* known = narrow_form(operand);
  std::optional<NarrowParts> parts =
      known != nullptr ? in_parts(*known, operand.shape) : std::optional<NarrowParts>();
  if (!parts) return std::nullopt;
  std::vector<std::int64_t> first;  // of each axis of `operand`, its first axis in the form
  std::int64_t count = 0;
  for (const auto& part : parts->parts) {
    first.push_back(count);
    count += static_cast<std::int64_t>(part.size());
  }
  Dims axes;
  for (const std::int64_t axis : perm)
    for (std::size_t i = 0; i < parts->parts[static_cast<std::size_t>(axis)].size(); ++i)
      axes.push_back(first[static_cast<std::size_t>(axis)] + static_cast<std::int64_t>(i));
  if (axes.empty()) return parts->form;
  return with_few_axes(mapped(parts->form, [&](const ConstantRef& each) { return with_axes(each, axes); }));
}

std::optional<NarrowForm> sliced_form(const Constant& operand, const Dims& start, const Dims& size) {
  const NarrowForm* known = narrow_form(operand);
  std::optional<NarrowParts> parts =
      known != nullptr ? in_parts(*known, operand.shape) : std::optional<NarrowParts>();
  if (!parts) return std::nullopt;
  Dims own_start, own_size;
  for (std::size_t axis = 0; axis < start.size(); ++axis) {
    std::int64_t inner = 1;
    for (std::size_t i = 1; i < parts->parts[axis].size(); ++i) inner *= parts->parts[axis][i];
    if (start[axis] % inner != 0 || size[axis] % inner != 0) return std::nullopt;
    for (std::size_t i = 0; i < parts->parts[axis].size(); ++i) {
      own_start.push_back(i == 0 ? start[axis] / inner : 0);
      own_size.push_back(i == 0 ? size[axis] / inner : parts->parts[axis][i]);
    }
  }
  if (own_start.empty()) return parts->form;
  return with_few_axes(mapped(parts->form, [&](const ConstantRef& each) {
    Dims from = own_start, extents = own_size;
    for (std::size_t i = 0; i < from.size(); ++i)
      if (each->shape[i] == 1) from[i] = 0, extents[i] = 1;
    return sliced(each, from, extents);
  }));
}

std::optional<NarrowForm> form_of(const Node& node, std::span<const ConstantRef> operands,
                                  const TensorType& type) {
  if (node.op == Op::kCast || node.op == Op::kTosaCast)
    return cast_form(node.origin, operands[0], type.dtype);
  if (node.op == Op::kPermute || node.op == Op::kTosaTranspose)
    return permuted_form(*operands[0], Graph::attrs<PermuteAttrs>(node).perm);
  if (node.op == Op::kTosaSlice) {
    const auto& attrs = Graph::attrs<TosaSliceAttrs>(node);
    return sliced_form(*operands[0], attrs.start, attrs.size);
  }
  const std::optional<Op> op = step_op(node);
  return op ? arithmetic_form(node, *op, operands, type) : std::nullopt;
}

bool may_be_wide(DType dtype) {
  if (is_float(dtype)) return byte_size(dtype) > 1 && dtype != DType::kF64;
  return dtype == DType::kI16 || dtype == DType::kI32;
}

// The storage of a constant with this form. Returns nothing unless the form has less than `bytes` bytes.
std::optional<Storage> deferred(std::optional<NarrowForm> form, std::size_t bytes) {
  if (!form || form->bytes() >= bytes) return std::nullopt;
  return Storage::deferred(bytes, std::make_shared<const FromNarrow>(*std::move(form), bytes));
}

}  // namespace

std::size_t NarrowForm::bytes() const {
  std::size_t sum = bytes_of(*narrow);
  for (const NarrowStep& step : steps)
    if (step.number) sum += bytes_of(*step.number);
  return sum;
}

const NarrowForm* narrow_form(const Constant& constant) {
  const std::shared_ptr<Deferred>& state = constant.storage.deferred_state();
  const auto* recipe =
      state != nullptr ? dynamic_cast<const FromNarrow*>(state->remembered().get()) : nullptr;
  return recipe != nullptr ? &recipe->form() : nullptr;
}

std::optional<NarrowParts> in_parts(const NarrowForm& form, const Shape& shape) {
  const Shape& own = form.narrow->shape;
  NarrowParts out;
  std::vector<std::size_t> axis_of;  // by part: the axis of the form that it is a part of
  std::size_t at = 0;
  std::int64_t rest = own.empty() ? 1 : own[0];
  for (const std::int64_t extent : shape) {
    std::vector<std::int64_t>& parts = out.parts.emplace_back();
    for (std::int64_t left = extent; left != 1;) {
      while (rest == 1 && at + 1 < own.size()) rest = own[++at];
      const std::int64_t part = std::min(left, rest);
      if (part <= 1 || left % part != 0 || rest % part != 0) return std::nullopt;
      parts.push_back(part);
      axis_of.push_back(at);
      left /= part;
      rest /= part;
    }
  }
  if (axis_of.size() > kMostAxes) return std::nullopt;
  Extents all;
  for (const auto& parts : out.parts) all.insert(all.end(), parts.begin(), parts.end());
  out.form = mapped(form, [&](const ConstantRef& constant) {
    Extents extents;
    for (std::size_t i = 0; i < all.size(); ++i)
      extents.push_back(constant->shape[axis_of[i]] == own[axis_of[i]] ? all[i] : 1);
    if (extents.empty()) extents.push_back(1);
    return with_shape(*constant, shape_of(extents));
  });
  return out;
}

std::optional<Storage> computed_from_narrow(const Graph& graph, const Node& node,
                                            std::span<const ConstantRef> operands) {
  const TensorType& type = graph.type(graph.result(node));
  if (node.result_count != 1 || !may_be_wide(type.dtype) || type.bytes() < kLeastBytes ||
      std::any_of(operands.begin(), operands.end(), std::logical_not<>()))
    return std::nullopt;
  return deferred(form_of(node, operands, type), type.bytes());
}

std::optional<Storage> widened(const ConstantRef& constant, DType dtype) {
  const std::size_t bytes = static_cast<std::size_t>(num_elements(constant->shape)) * byte_size(dtype);
  if (!may_be_wide(dtype) || bytes < kLeastBytes || !constant->storage.bound()) return std::nullopt;
  return deferred(cast_form(nullptr, constant, dtype), bytes);
}

}  // namespace tosaic::exec
