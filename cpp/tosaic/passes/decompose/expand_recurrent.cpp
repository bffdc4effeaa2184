// expand_recurrent: unrolls recurrent layers over their static number of steps.
//
//   lstm(x, h, c)  ->  one linear layer (w_ih) of all steps of x
//                      for each step: a slice of that, a linear layer (w_hh) of h, the gates
//                      one concatenation of the hidden states of all steps
//
// Steps and batch remain separate axes, so that the layout plan may place either one outermost. The gates are
// in torch's order: i, f, g, o for lstm, and r, z, n for gru. The reverse direction walks the steps
// backwards. Every step adds a fixed number of nodes, so the size of the expansion is linear in steps *
// layers * directions.

#include "tosaic/passes/decompose/expansions.h"

namespace tosaic::passes {
namespace {

struct Weights {
  ValueId input, hidden;            // w_ih, w_hh
  ValueId input_bias, hidden_bias;  // invalid without bias
  ValueId projection;               // lstm's w_hr; invalid for other cells
};

struct States {
  ValueId hidden, cell;  // (1, batch, elements)
};

class Unrolled {
 public:
  explicit Unrolled(Emitter& e) : e_(e), attrs_(e.attrs<RecurrentAttrs>()) {
    const Shape& shape = e.type(e.operand(0)).shape;
    batched_ = shape.size() == 3;
    const bool transposed = batched_ && attrs_.batch_first;
    steps_ = shape[transposed ? 1 : 0];
    batch_ = !batched_ ? 1 : shape[transposed ? 0 : 1];
    directions_ = attrs_.bidirectional ? 2 : 1;
  }

  std::vector<ValueId> results() {
    ValueId x = e_.operand(0);
    if (batched_ && attrs_.batch_first) x = e_.permute(x, {1, 0, 2});
    x = e_.reshape(x, {steps_, batch_, e_.type(x).shape.back()});
    std::vector<States> last;
    for (std::int64_t layer = 0; layer < attrs_.layers; ++layer) {
      std::vector<ValueId> outputs;
      for (std::int64_t d = 0; d < directions_; ++d) {
        const auto set = static_cast<std::size_t>(layer * directions_ + d);
        outputs.push_back(direction(x, set, d == 1, last));
      }
      x = joined(outputs, 2);
    }
    std::vector<ValueId> out{output(x), stacked(last, &States::hidden, 1)};
    if (attrs_.cell == Cell::kLstm) out.push_back(stacked(last, &States::cell, 2));
    return out;
  }

 private:
  [[nodiscard]] Weights weights(std::size_t set) const {
    const std::size_t each = 2 + (attrs_.bias ? 2 : 0) + (attrs_.projection ? 1 : 0);
    std::size_t at = 3 + set * each;
    Weights w;
    w.input = e_.operand(at++);
    w.hidden = e_.operand(at++);
    if (attrs_.bias) {
      w.input_bias = e_.operand(at++);
      w.hidden_bias = e_.operand(at++);
    }
    if (attrs_.projection) w.projection = e_.operand(at);
    return w;
  }

  // Returns the hidden state of every step, (steps, batch, elements). Appends the states after the last step
  // to `last`.
  ValueId direction(ValueId x, std::size_t set, bool reverse, std::vector<States>& last) {
    Weights w = weights(set);
    const bool one_bias = attrs_.bias && attrs_.cell != Cell::kGru;  // only the sum of both is used
    if (one_bias) w.input_bias = e_.add(w.input_bias, w.hidden_bias);
    const ValueId projected = linear(x, w.input, w.input_bias);
    if (one_bias) w.hidden_bias = ValueId();
    States states{initial(1, set), attrs_.cell == Cell::kLstm ? initial(2, set) : ValueId()};
    std::vector<ValueId> outputs(static_cast<std::size_t>(steps_));
    for (std::int64_t i = 0; i < steps_; ++i) {
      const std::int64_t step = reverse ? steps_ - 1 - i : i;
      const ValueId now = steps_ == 1 ? projected : e_.slice(projected, 0, step, step + 1);
      states = stepped(now, states, w);
      outputs[static_cast<std::size_t>(step)] = states.hidden;
    }
    last.push_back(states);
    return joined(outputs, 0);
  }

  States stepped(ValueId x, const States& before, const Weights& w) {
    const ValueId h = linear(before.hidden, w.hidden, w.hidden_bias);
    switch (attrs_.cell) {
      case Cell::kLstm:
        return lstm(e_.add(x, h), before.cell, w);
      case Cell::kGru:
        return {gru(x, h, before.hidden), ValueId()};
      case Cell::kRnnTanh:
        return {e_.unary(Op::kTanh, e_.add(x, h)), ValueId()};
      case Cell::kRnnRelu:
        return {e_.unary(Op::kRelu, e_.add(x, h)), ValueId()};
    }
    return before;
  }

  States lstm(ValueId gates, ValueId cell, const Weights& w) {
    const ValueId input = e_.unary(Op::kSigmoid, gate(gates, 0, 4));
    const ValueId forget = e_.unary(Op::kSigmoid, gate(gates, 1, 4));
    const ValueId candidate = e_.unary(Op::kTanh, gate(gates, 2, 4));
    const ValueId output = e_.unary(Op::kSigmoid, gate(gates, 3, 4));
    cell = e_.add(e_.mul(forget, cell), e_.mul(input, candidate));
    ValueId hidden = e_.mul(output, e_.unary(Op::kTanh, cell));
    if (w.projection.valid()) hidden = linear(hidden, w.projection, ValueId());
    return {hidden, cell};
  }

  // The new state is n + z * (h - n), as in torch. The reset gate is a factor of the part of n that is
  // computed from the hidden state.
  ValueId gru(ValueId x, ValueId h, ValueId before) {
    const ValueId reset = e_.unary(Op::kSigmoid, e_.add(gate(x, 0, 3), gate(h, 0, 3)));
    const ValueId update = e_.unary(Op::kSigmoid, e_.add(gate(x, 1, 3), gate(h, 1, 3)));
    const ValueId fresh = e_.unary(Op::kTanh, e_.add(gate(x, 2, 3), e_.mul(reset, gate(h, 2, 3))));
    return e_.add(fresh, e_.mul(update, e_.sub(before, fresh)));
  }

  ValueId gate(ValueId gates, std::int64_t i, std::int64_t count) {
    const std::int64_t size = e_.type(gates).shape[2] / count;
    return e_.slice(gates, 2, i * size, (i + 1) * size);
  }

  ValueId linear(ValueId x, ValueId weight, ValueId bias) {
    return e_.emit(Op::kLinear, NoAttrs{}, {x, weight, bias});
  }

  ValueId joined(const std::vector<ValueId>& parts, std::int64_t axis) {
    return parts.size() == 1 ? parts.front() : e_.emit(Op::kCat, AxisAttrs{axis}, parts);
  }

  // The state of one layer and direction before the first step.
  ValueId initial(std::size_t operand, std::size_t set) {
    const ValueId all = e_.operand(operand);
    const auto at = static_cast<std::int64_t>(set);
    const ValueId own = e_.type(all).shape[0] == 1 ? all : e_.slice(all, 0, at, at + 1);
    return e_.reshape(own, {1, batch_, e_.type(all).shape.back()});
  }

  ValueId stacked(const std::vector<States>& last, ValueId States::* member, std::size_t result) {
    std::vector<ValueId> parts;
    for (const States& states : last) parts.push_back(states.*member);
    return e_.reshape(joined(parts, 0), e_.result_type(result).shape);
  }

  ValueId output(ValueId steps) {
    if (batched_ && attrs_.batch_first) return e_.permute(steps, {1, 0, 2});
    return e_.reshape(steps, e_.result_type(0).shape);
  }

  Emitter& e_;
  const RecurrentAttrs& attrs_;
  bool batched_ = true;
  std::int64_t steps_ = 0, batch_ = 1, directions_ = 1;
};

}  // namespace

std::vector<ValueId> expand_recurrent(Emitter& e) { return Unrolled(e).results(); }

}  // namespace tosaic::passes
