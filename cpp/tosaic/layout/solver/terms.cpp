#include "tosaic/layout/solver/terms.h"

#include <algorithm>
#include <bitset>

namespace tosaic::layout {
namespace {

StateMask all_states(std::size_t states) { return ~StateMask{0} >> (kMostStates - states); }

StateMask states_with(const Access& access, std::uint8_t order) {
  StateMask mask = 0;
  for (std::size_t s = 0; s < access.order.size(); ++s)
    if (access.order[s] == order) mask |= StateMask{1} << s;
  return mask;
}

class Builder {
 public:
  explicit Builder(const Problem& problem) : problem_(problem) {
    out_.unary_begin.reserve(problem.states.size());
    std::size_t entries = 0;
    for (const std::uint32_t states : problem.states) {
      out_.unary_begin.push_back(entries);
      entries += states;
    }
    out_.unary.assign(entries, 0);
  }

  Terms build() {
    for (std::uint32_t t = 0; t < problem_.tensors.size(); ++t) add_tensor(t);
    return std::move(out_);
  }

 private:
  void add_tensor(std::uint32_t t) {
    const Tensor& tensor = problem_.tensors[t];
    if (tensor.weight == 0 || tensor.read.empty()) return;
    std::bitset<256> read;
    std::uint8_t most = 0;
    for (const Access& access : tensor.read) {
      for (const std::uint8_t order : access.order) {
        read.set(order);
        most = std::max(most, order);
      }
    }
    for (unsigned order = 0; order <= most; ++order)
      if (read[order]) add_transpose(tensor, {t, static_cast<std::uint8_t>(order)});
  }

  void add_transpose(const Tensor& tensor, const Certificate::Term& name) {
    const VariableId p = tensor.made.variable;
    const StateMask all = all_states(tensor.made.order.size());
    StateMask missing = all & ~states_with(tensor.made, name.order);
    if (missing == 0) return;
    if (!gather_readers(tensor, name.order)) return charge(p, missing, tensor.weight);
    const auto self =
        std::find_if(readers_.begin(), readers_.end(), [p](const Reader& r) { return r.variable == p; });
    if (self != readers_.end()) {
      charge(p, missing & self->states, tensor.weight);
      missing &= ~self->states;
      readers_.erase(self);
    }
    if (missing == 0 || readers_.empty()) return;
    if (missing == all && readers_.size() == 1)
      return charge(readers_[0].variable, readers_[0].states, tensor.weight);
    const auto first = static_cast<std::uint32_t>(out_.readers.size());
    out_.readers.insert(out_.readers.end(), readers_.begin(), readers_.end());
    const auto last = static_cast<std::uint32_t>(out_.readers.size());
    out_.terms.push_back({tensor.weight, missing == all ? kNoVariable : p, missing, first, last});
    out_.names.push_back(name);
  }

  // Collects in readers_ the variables that may read this order, one entry each. Returns false if one of them
  // reads it in all of its states.
  bool gather_readers(const Tensor& tensor, std::uint8_t order) {
    readers_.clear();
    for (const Access& access : tensor.read)
      if (const StateMask states = states_with(access, order)) readers_.push_back({access.variable, states});
    const auto before = [](const Reader& a, const Reader& b) { return a.variable < b.variable; };
    if (!std::is_sorted(readers_.begin(), readers_.end(), before))
      std::sort(readers_.begin(), readers_.end(), before);
    std::size_t kept = 0;
    for (const Reader& reader : readers_) {
      if (kept != 0 && readers_[kept - 1].variable == reader.variable)
        readers_[kept - 1].states |= reader.states;
      else
        readers_[kept++] = reader;
    }
    readers_.resize(kept);
    return std::none_of(readers_.begin(), readers_.end(), [this](const Reader& reader) {
      return reader.states == all_states(problem_.states[reader.variable]);
    });
  }

  void charge(VariableId variable, StateMask states, Cost weight) {
    const std::uint32_t count = problem_.states[variable];
    if (states == all_states(count)) {
      out_.constant += weight;
      return;
    }
    for (std::uint32_t s = 0; s < count; ++s)
      if (states >> s & 1u) out_.unary[out_.unary_begin[variable] + s] += weight;
  }

  const Problem& problem_;
  Terms out_;
  std::vector<Reader> readers_;
};

}  // namespace

Terms terms_of(const Problem& problem) { return Builder(problem).build(); }

}  // namespace tosaic::layout
