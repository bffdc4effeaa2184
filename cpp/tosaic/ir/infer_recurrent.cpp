// Result types of recurrent layers: (output, h_n) or, for lstm, (output, h_n, c_n).
#include <string>

#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {
namespace {

// The number of gates: weights have this many rows per element of the hidden state.
std::int64_t gates_of(Cell cell) {
  switch (cell) {
    case Cell::kLstm:
      return 4;
    case Cell::kGru:
      return 3;
    case Cell::kRnnTanh:
    case Cell::kRnnRelu:
      return 1;
  }
  return 1;
}

struct Sizes {
  std::int64_t directions, gates, hidden,
      output;  // output features of one direction: the projected size, or `hidden` without a projection
};

void require_dtypes(const Call& call) {
  call.require_float(0);
  for (std::size_t i = 1; i < call.count(); ++i)
    if (call.optional(i) != nullptr) call.require_same_dtype(i, 0);
}

// Checks the weights of one layer and direction, which start at operand `at`, for `features` input features.
void require_weights(const Call& call, const RecurrentAttrs& attrs, std::size_t at, const Sizes& sizes,
                     std::int64_t features) {
  const std::int64_t rows = call.times(sizes.gates, sizes.hidden);
  call.require_shape(at++, {rows, features});
  call.require_shape(at++, {rows, sizes.output});
  if (attrs.bias) {
    call.require_shape(at++, {rows});
    call.require_shape(at++, {rows});
  }
  if (attrs.projection) call.require_shape(at, {sizes.output, sizes.hidden});
}

// The shape of a state: (layers * directions, batch, elements), without the batch if the input has none.
Shape state_shape(const Call& call, const RecurrentAttrs& attrs, const Sizes& sizes, std::int64_t elements) {
  Shape shape{call.times(attrs.layers, sizes.directions)};
  const Shape& input = call.operand(0).shape;
  if (input.size() == 3) shape.push_back(input[attrs.batch_first ? 0 : 1]);
  shape.push_back(elements);
  return shape;
}

}  // namespace

Types infer_recurrent(const Call& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const bool lstm = attrs.cell == Cell::kLstm;
  call.require_at_least("layers", attrs.layers, 1);
  require_dtypes(call);
  call.require_rank_between(0, 2, 3);
  if (lstm != (call.optional(2) != nullptr))
    call.fail(lstm ? "operand 'cell' is absent" : "operand 'cell' belongs to lstm alone");
  if (attrs.projection && !lstm) call.fail("'projection' belongs to lstm alone");
  const std::size_t each = 2 + (attrs.bias ? 2 : 0) + (attrs.projection ? 1 : 0);
  const std::int64_t directions = attrs.bidirectional ? 2 : 1;
  const std::int64_t sets = call.times(attrs.layers, directions);
  if (static_cast<std::int64_t>(call.count()) != 3 + sets * static_cast<std::int64_t>(each))
    call.fail("wrong number of weights", std::to_string(sets * static_cast<std::int64_t>(each)),
              std::to_string(call.count() - 3));
  for (std::size_t i = 3; i < call.count(); ++i)
    if (call.optional(i) == nullptr) call.fail("a weight is absent");
  call.require_rank(4, 2);
  const std::int64_t gates = gates_of(attrs.cell);
  const Sizes sizes{directions, gates, call.operand(4).shape[0] / gates, call.operand(4).shape[1]};
  if (sizes.hidden < 1) call.fail("the hidden state is empty");
  std::int64_t features = call.operand(0).shape.back();
  for (std::int64_t set = 0; set < sets; ++set) {
    if (set == directions) features = call.times(directions, sizes.output);
    require_weights(call, attrs, 3 + static_cast<std::size_t>(set) * each, sizes, features);
  }
  if (!attrs.projection && sizes.output != sizes.hidden)
    call.fail("the hidden state and its weights differ", std::to_string(sizes.hidden),
              std::to_string(sizes.output));
  const Shape hidden = state_shape(call, attrs, sizes, sizes.output);
  call.require_shape(1, hidden);
  Shape output = call.operand(0).shape;
  output[output.size() - 1] = call.times(directions, sizes.output);
  const DType dtype = call.operand(0).dtype;
  Types types = single_result(dtype, output);
  types.push_back(single_result(dtype, hidden).front());
  if (lstm) {
    const Shape cell = state_shape(call, attrs, sizes, sizes.hidden);
    call.require_shape(2, cell);
    types.push_back(single_result(dtype, cell).front());
  }
  return types;
}

}  // namespace tosaic::rules
