#include "tosaic/memory/check.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tosaic/base/error.h"

namespace tosaic::memory {
namespace {

// The buffer that holds a buffer's contents (the buffer itself, or the buffer at the end of its chain of
// views), and the byte in it at which the contents begin.
struct Contents {
  std::size_t written = 0;
  std::size_t offset = 0;
  bool operator==(const Contents&) const = default;
};

// The contents of each buffer. A target may be after the buffers that share its memory.
std::vector<Contents> contents_of(std::span<const Buffer> buffers) {
  std::vector<std::optional<Contents>> known(buffers.size());
  std::vector<std::size_t> chain;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    std::size_t at = i;
    for (; !known[at] && buffers[at].alias == AliasKind::kView; at = buffers[at].target) chain.push_back(at);
    if (!known[at]) known[at] = Contents{at, 0};
    for (; !chain.empty(); chain.pop_back()) {
      const Buffer& view = buffers[chain.back()];
      const Contents& shown = *known[view.target];
      known[chain.back()] = Contents{shown.written, shown.offset + view.target_offset};
    }
  }
  std::vector<Contents> out;
  for (const std::optional<Contents>& each : known) out.push_back(*each);
  return out;
}

// A buffer without a target, or whose chain of targets has no end; "" if there is none.
std::string chain_fault(std::span<const Buffer> buffers) {
  enum class Mark : std::uint8_t { kNew, kOnChain, kEnds };
  std::vector<Mark> marks(buffers.size(), Mark::kNew);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    std::size_t at = i;
    for (; marks[at] == Mark::kNew && buffers[at].alias != AliasKind::kNone; at = buffers[at].target) {
      marks[at] = Mark::kOnChain;
      if (buffers[at].target >= buffers.size())
        return "buffer " + std::to_string(at) + " shares memory with a buffer that is not there";
    }
    if (marks[at] == Mark::kOnChain) return "buffer " + std::to_string(at) + " shares memory with itself";
    for (at = i; marks[at] == Mark::kOnChain; at = buffers[at].target) marks[at] = Mark::kEnds;
  }
  return {};
}

class Checker {
 public:
  Checker(std::span<const Buffer> buffers, const Placement& placement)
      : buffers_(buffers), placement_(placement), contents_(contents_of(buffers)) {}

  std::string fault() const {
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      if (std::string text = own_fault(i); !text.empty()) return text;
    return overlap_fault();
  }

 private:
  std::size_t begin(std::size_t i) const { return placement_.offsets[i]; }
  std::size_t end(std::size_t i) const { return placement_.offsets[i] + buffers_[i].bytes; }

  std::string own_fault(std::size_t i) const {
    const Buffer& buffer = buffers_[i];
    const std::string name = "buffer " + std::to_string(i);
    if (end(i) > placement_.bytes) return name + " ends outside the arena";
    if (begin(i) % buffer.alignment != 0) return name + " is not aligned";
    if (buffer.alias == AliasKind::kNone) return {};
    if (begin(i) != begin(buffer.target) + buffer.target_offset) return name + " is away from its target";
    if (end(i) > end(buffer.target)) return name + " ends outside its target";
    if (buffer.alias == AliasKind::kView && buffers_[buffer.target].first > buffer.first)
      return name + " is a view of what does not exist yet";
    if (buffer.alias == AliasKind::kPart && buffers_[buffer.target].first < buffer.first)
      return name + " is written after that of which it is a part";
    return {};
  }

  // Sweeps over the steps: compares each buffer, in order of first step, with those that are still alive.
  std::string overlap_fault() const {
    std::vector<std::size_t> order(buffers_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return buffers_[a].first < buffers_[b].first; });
    std::vector<std::size_t> alive;
    for (const std::size_t i : order) {
      if (buffers_[i].bytes == 0) continue;
      std::erase_if(alive, [&](std::size_t other) { return buffers_[other].last < buffers_[i].first; });
      for (const std::size_t other : alive)
        if (begin(i) < end(other) && begin(other) < end(i) && !may_share(other, i))
          return "buffers " + std::to_string(other) + " and " + std::to_string(i) +
                 " overlap while both are live";
      alive.push_back(i);
    }
    return {};
  }

  // True if two buffers may overlap. `earlier` does not begin after `later`, and both are live at
  // later.first.
  bool may_share(std::size_t earlier, std::size_t later) const {
    const Contents& a = contents_[earlier];
    const Contents& b = contents_[later];
    if (a.written == b.written) return begin(earlier) + b.offset == begin(later) + a.offset;
    return replaces(later, earlier) || replaces(earlier, later) || is_part(a.written, b.written) ||
           is_part(b.written, a.written);
  }

  // True if the contents of `inner` become a part of the contents of `outer`, directly or as parts of parts.
  bool is_part(std::size_t inner, std::size_t outer) const {
    while (buffers_[inner].alias != AliasKind::kNone) {
      const bool is_direct = buffers_[inner].alias == AliasKind::kPart;
      inner = contents_[buffers_[inner].target].written;
      if (is_direct && inner == outer) return true;
    }
    return false;
  }

  // True if the contents of `fresh` are computed in place of the contents of `old`, at the step at which
  // `old` ends.
  bool replaces(std::size_t fresh, std::size_t old) const {
    const std::size_t writer = contents_[fresh].written;
    if (buffers_[writer].alias != AliasKind::kInPlace) return false;
    return contents_[buffers_[writer].target].written == contents_[old].written &&
           buffers_[old].last == buffers_[writer].first;
  }

  std::span<const Buffer> buffers_;
  const Placement& placement_;
  std::vector<Contents> contents_;
};

}  // namespace

std::string placement_fault(std::span<const Buffer> buffers, const Placement& placement) {
  if (placement.offsets.size() != buffers.size()) return "not one offset per buffer";
  if (std::string text = chain_fault(buffers); !text.empty()) return text;
  return Checker(buffers, placement).fault();
}

void check(std::span<const Buffer> buffers, const Placement& placement) {
  if (const std::string fault = placement_fault(buffers, placement); !fault.empty())
    throw InternalError({.where = "memory/check",
                         .what = "the planned arena is wrong, " + fault,
                         .hint = "Please report this with the graph's text"});
}

}  // namespace tosaic::memory
