// streams: residual streams, which are sums that read one another.
//
//   x = conv -> + pos -> norm -> .. -> linear -> sum -> norm -> .. -> linear -> sum -> norm
//                  |________________________________|  |________________________________|
//
// The rounding error of a sum remains in all later sums. If a norm reads one of them, they are not rounded
// (kNone), or have 16 bits (kInt16), and so have the contractions and the movement from which only these sums
// are computed: Ethos-U adds two operands of one dtype at no more than the cost of 8 bits.
#include <algorithm>

#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {

std::optional<StreamRounding> Planner::stream_rounding(NodeIndex i) const {
  const Precision* p = precision(i);
  if (p == nullptr) return {};
  return p->stream.value_or(input_.every_operator ? StreamRounding::kActivation : StreamRounding::kInt16);
}

void Planner::find_streams() {
  find_wide_sums();
  round_streams_to_16_bits();
}

// The calls that read the elements of a result, directly or through movement. False if the graph returns it.
bool Planner::collect_readers(NodeIndex i, std::vector<NodeIndex>& out) {
  for (const NodeIndex user : node(i).users) {
    if (node(user).kind != CallKind::kCall) return false;
    if (call(user).behaviour == Behaviour::kMovement && !call(user).within) {
      if (!collect_readers(user, out)) return false;
    } else {
      out.push_back(user);
    }
  }
  return true;
}

// The only call that reads a result, through movement, and is quantized in the same way; else invalid.
NodeIndex Planner::only_reader(NodeIndex i) {
  std::vector<NodeIndex> readers;
  if (!collect_readers(i, readers) || readers.size() != 1) return {};
  return are_alike(i, readers[0]) ? readers[0] : NodeIndex();
}

bool Planner::is_sum(NodeIndex i) {
  const Call& c = call(i);
  if (c.main == nullptr || c.nodes.size() != 1 || c.within || c.large || precision(i) == nullptr)
    return false;
  if (c.main->op != Op::kAdd && c.main->op != Op::kSub) return false;
  return c.operands.size() == 2 && std::ranges::all_of(c.operands, [&](NodeIndex p) {
           return is_data(p) && elements_of(p) == elements_of(i);
         });
}

// True if the call can read 32 bits: it is a part of a unit, or a norm.
bool Planner::reads_wide(NodeIndex i) {
  const Call& c = call(i);
  if (c.within) return true;
  return c.behaviour == Behaviour::kComposite && c.main != nullptr && c.main->op != Op::kRecurrent &&
         c.main->op != Op::kGlu;
}

// Sums that read one another are a residual stream. If a norm reads one of them, no sum is rounded, since its
// error would remain in all later sums.
void Planner::find_wide_sums() {
  std::vector<std::uint32_t> stream(calls_.size());
  std::vector<bool> has_norm(calls_.size(), false);
  const auto root = [&](std::uint32_t i) {
    while (stream[i] != i) i = stream[i] = stream[stream[i]];
    return i;
  };
  std::vector<std::uint32_t> sums;
  for (std::uint32_t i = 0; i < calls_.size(); ++i) {
    stream[i] = i;
    if (!is_sum(NodeIndex(i)) || stream_rounding(NodeIndex(i)) == StreamRounding::kActivation) continue;
    sums.push_back(i);
    for (NodeIndex p : calls_[i].operands) {
      while (call(p).behaviour == Behaviour::kMovement && call(p).operands.size() == 1)
        p = call(p).operands[0];
      if (!call(p).wide) continue;
      const std::uint32_t a = root(p.index()), b = root(i);
      stream[b] = a;
      has_norm[a] = has_norm[a] || has_norm[b];
    }
    std::vector<NodeIndex> readers;
    calls_[i].wide = collect_readers(NodeIndex(i), readers);
    if (calls_[i].wide && std::ranges::any_of(readers, [&](NodeIndex r) { return reads_wide(r); }))
      has_norm[root(i)] = true;
  }
  for (const std::uint32_t i : sums) calls_[i].wide = calls_[i].wide && has_norm[root(i)];
  for (std::uint32_t i = 0; i < calls_.size(); ++i)
    if (starts_stream(NodeIndex(i))) calls_[i].wide = true;
}

// True for a contraction that a norm and a wide sum read: its rounding error would reach all sums of the
// stream. If the stream has 16 bits, also for a sum with a constant, such as an embedding of positions.
bool Planner::starts_stream(NodeIndex i) {
  const Call& c = call(i);
  const std::optional<StreamRounding> rounding = stream_rounding(i);
  if (!rounding || rounding == StreamRounding::kActivation || c.within) return false;
  if (c.behaviour != Behaviour::kWeighted && c.behaviour != Behaviour::kNormalize &&
      (rounding != StreamRounding::kInt16 || !is_sum_of_constant(i)))
    return false;
  std::vector<NodeIndex> readers;
  return collect_readers(i, readers) &&
         std::ranges::any_of(readers, [&](NodeIndex r) { return reads_wide(r); }) &&
         std::ranges::any_of(readers, [&](NodeIndex r) { return call(r).wide && is_sum(r); });
}

// ---- streams of 16 bits ----

// All integers of 16 bits, so that the result of a sum needs no clamp.
ObservedSpec Planner::of_stream(const Precision& p) {
  ObservedSpec spec = in_16_bits(p);
  spec.qmin = -32768;
  return spec;
}

// True for the sum of data and a constant.
bool Planner::is_sum_of_constant(NodeIndex i) {
  const Call& c = call(i);
  if (c.main == nullptr || c.nodes.size() != 1 || (c.main->op != Op::kAdd && c.main->op != Op::kSub))
    return false;
  return !c.large && std::ranges::any_of(c.operands, [&](NodeIndex p) {
    return call(p).dependence == Dependence::kNothing && is_float_value(p);
  });
}

void Planner::round_streams_to_16_bits() {
  const auto count = static_cast<std::uint32_t>(calls_.size());
  for (Call& c : calls_)
    if (const NodeIndex i(static_cast<std::uint32_t>(&c - calls_.data()));
        c.wide && stream_rounding(i) == StreamRounding::kInt16)
      c.stream = true, c.wide = false;
  for (std::uint32_t i = count; i-- > 0;) calls_[i].stream = calls_[i].stream || feeds_stream(NodeIndex(i));
  for (std::uint32_t i = 0; i < count; ++i) calls_[i].stream = calls_[i].stream && keeps_stream(NodeIndex(i));
}

// True for a call of which only the stream is computed, and movement to the stream or to a norm of it.
bool Planner::feeds_stream(NodeIndex i) {
  const Call& c = call(i);
  if (stream_rounding(i) != StreamRounding::kInt16 || c.within || c.large || node(i).users.empty())
    return false;
  const auto is_of_stream = [this](NodeIndex user) {  // a contraction writes the stream, but reads 8 bits
    const Behaviour of = call(user).behaviour;
    return call(user).stream && of != Behaviour::kWeighted && of != Behaviour::kNormalize;
  };
  const auto& users = node(i).users;
  if (c.behaviour == Behaviour::kMovement)
    return std::ranges::any_of(users, [&](NodeIndex user) { return is_of_stream(user) || reads_wide(user); });
  const bool is_rounded = c.behaviour == Behaviour::kWeighted || c.behaviour == Behaviour::kNormalize ||
                          c.behaviour == Behaviour::kJoin || is_sum(i) || is_sum_of_constant(i);
  return is_rounded && is_float_value(i) && std::ranges::all_of(users, is_of_stream);
}

// Movement and joins have 16 bits only if their operands have.
bool Planner::keeps_stream(NodeIndex i) {
  const Call& c = call(i);
  if (c.behaviour != Behaviour::kMovement && c.behaviour != Behaviour::kJoin) return true;
  return std::ranges::all_of(c.operands, [&](NodeIndex p) { return !is_data(p) || call(p).stream; });
}

}  // namespace tosaic::quant
