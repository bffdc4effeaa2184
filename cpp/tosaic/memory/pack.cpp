#include "tosaic/memory/pack.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "tosaic/memory/failures.h"
#include "tosaic/memory/heights.h"

namespace tosaic::memory {
namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
constexpr std::uint32_t kNobody = 0xffffffffu;

// Which of the items that may lie on a floor is tried first.
enum class Preference : std::uint8_t { kLongest, kLargest, kArea };
constexpr Preference kPreferences[] = {Preference::kLongest, Preference::kArea, Preference::kLargest};

// Units of work for each preference in the first round, and the factor from one round to the next.
constexpr std::size_t kFirstAttempt = 2'000'000;
constexpr std::size_t kGrowth = 3;

// The search is recursive: one level for each item that is placed, and for each floor that rises.
constexpr std::size_t kMostDepth = 3'000;

// reach() computes heights only if an arena has at most kMostUnits units, and if at most 1 / kLeastShare of
// it may be wasted in a clique. With more waste, nearly all heights are reached.
constexpr std::size_t kMostUnits = 16'384;
constexpr std::size_t kLeastShare = 16;

}  // namespace

class Packer::Search {
 public:
  explicit Search(const Items& items)
      : items_(items.items), grain_(items.grain), cliques_(cliques_of(items.items)) {
    const std::size_t count = items_.size();
    release_.assign(count, 0);
    placed_.assign(count, false);
    offsets_.assign(count, 0);
    state_.resize(cliques_.members.size());
    crossing_.assign(cliques_.members.size(), 0);
    cuts_.assign(cliques_.members.size(), 1);
    is_dirty_.assign(cliques_.members.size(), false);
    keys_.resize(cliques_.members.size());
    unit_ = 0;
    for (const Item& item : items_)
      unit_ = std::gcd(unit_, std::gcd(item.bytes, std::max(item.alignment, grain_)));
    for (std::uint32_t i = 0; i < count; ++i)
      if (items_[i].bytes == 0) placed_[i] = true;
  }

  std::optional<PackResult> pack(std::size_t capacity, Effort& effort) {
    capacity_ = capacity;
    needed_ = kNever;
    failures_.clear();
    for (std::size_t units = kFirstAttempt;; units *= kGrowth)
      for (const Preference preference : kPreferences) {
        if (effort.left() == 0) return std::nullopt;
        rank(preference);
        Effort part = effort.share(units);
        effort_ = &part;
        const Outcome outcome = attempt();
        effort.settle(part, units);
        if (outcome == Outcome::kFits) return PackResult{offsets_, 0};
        if (outcome == Outcome::kFails) return PackResult{{}, needed_};
      }
  }

 private:
  enum class Outcome : std::uint8_t { kFits, kFails, kOutOfEffort };

  // The state of the unplaced items of a clique.
  struct State {
    std::size_t floor = kNever;  // kNever: all items are placed
    std::size_t top = 0;         // lower bound of the top of the items, stacked above their releases
    std::size_t bytes = 0;
    std::uint32_t lowest = 0;  // the number of items whose release is the floor
  };

  // What the search changed, so that it can undo it: it raised the release of an item, changed the state of a
  // clique, or placed an item.
  struct Change {
    enum class Kind : std::uint8_t { kRelease, kState, kPlaced } kind;
    std::uint32_t index = 0;
    std::size_t release = 0;
    State state;
    bool by_reach = false;  // the release rose in reach()
  };

  struct Branching {
    std::uint32_t clique = kNobody;
    std::uint32_t begin = 0, end = 0;  // the valley: cliques begin..end - 1
  };

  void rank(Preference preference) {
    std::vector<std::uint32_t> order(items_.size());
    std::iota(order.begin(), order.end(), 0u);
    const auto length = [&](std::uint32_t i) {
      return std::size_t{cliques_.last[i]} - cliques_.first[i] + 1;
    };
    const auto key = [&](std::uint32_t i) {
      switch (preference) {
        case Preference::kLongest:
          return std::pair(length(i), items_[i].bytes);
        case Preference::kLargest:
          return std::pair(items_[i].bytes, length(i));
        case Preference::kArea:
          break;
      }
      return std::pair(items_[i].bytes * length(i), length(i));
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return key(a) > key(b); });
    rank_.resize(items_.size());
    for (std::uint32_t at = 0; at < order.size(); ++at) rank_[order[at]] = at;
  }

  Outcome attempt() {
    std::fill(keys_.begin(), keys_.end(), SearchKey{});
    for (std::uint32_t i = 0; i < items_.size(); ++i) {
      placed_[i] = items_[i].bytes == 0;
      release_[i] = 0;
      toggle(i);
    }
    trail_.clear();
    dirty_.clear();
    std::fill(is_dirty_.begin(), is_dirty_.end(), false);
    std::fill(crossing_.begin(), crossing_.end(), 0u);
    for (std::uint32_t i = 0; i < items_.size(); ++i)
      if (!placed_[i])
        for (std::uint32_t c = cliques_.first[i]; c < cliques_.last[i]; ++c) ++crossing_[c];
    for (std::uint32_t c = 0; c < state_.size(); ++c) {
      state_[c] = {};
      touch(c);
    }
    depth_ = reached_ = 0;
    if (!update()) return Outcome::kFails;
    return solve(0, static_cast<std::uint32_t>(state_.size()));
  }

  // ---- the search ----

  // Places the unplaced items of cliques begin..end - 1. These items are in no clique outside the range.
  Outcome solve(std::uint32_t begin, std::uint32_t end) {
    const std::size_t mark = trail_.size();
    for (std::uint32_t from = begin; from < end;) {
      std::uint32_t to = from;
      while (crossing_[to] != 0) ++to;
      ++to;
      if (state_[from].floor != kNever || to - from > 1) {
        const Outcome outcome = branch(from, to);
        if (outcome != Outcome::kFits) {
          undo(mark);
          return outcome;
        }
      }
      from = to;
    }
    return Outcome::kFits;
  }

  // As solve(), for a range in which each clique shares an unplaced item with the next one.
  Outcome branch(std::uint32_t begin, std::uint32_t end) {
    SearchKey key;
    for (std::uint32_t c = begin; c < end; ++c) key ^= keys_[c];
    const bool has_effort = effort_->spend(5 * (end - begin) + 200);
    if (failures_.contains(key)) return Outcome::kFails;
    if (!has_effort || depth_ == kMostDepth) return Outcome::kOutOfEffort;
    ++depth_;
    const Outcome outcome = try_branches(begin, end);
    --depth_;
    if (outcome == Outcome::kFails) failures_.add(key);
    return outcome;
  }

  Outcome try_branches(std::uint32_t begin, std::uint32_t end) {
    const Branching at = choose(begin, end);
    const std::size_t floor = state_[at.clique].floor, mark = trail_.size();
    for (const std::uint32_t i : candidates(at.clique)) {
      if (is_exchanged(i, at.clique)) continue;
      place(i, floor);
      if (update()) {
        const Outcome outcome = solve(begin, end);
        if (outcome != Outcome::kFails) return outcome;
      }
      undo(mark);
    }
    if (raise(at) && update()) {
      const Outcome outcome = solve(begin, end);
      if (outcome != Outcome::kFails) return outcome;
    }
    undo(mark);
    return Outcome::kFails;
  }

  // The clique of least difficulty() among all cliques in valleys, and its valley.
  Branching choose(std::uint32_t begin, std::uint32_t end) const {
    Branching best;
    double best_key = 0;
    for (std::uint32_t from = begin; from < end;) {
      std::uint32_t to = from + 1;
      while (to < end && state_[to].floor == state_[from].floor) ++to;
      const std::size_t floor = state_[from].floor;
      const bool is_valley =
          (from == begin || state_[from - 1].floor > floor) && (to == end || state_[to].floor > floor);
      for (std::uint32_t c = from; is_valley && c < to; ++c) {
        const double key = difficulty(c);
        if (best.clique != kNobody && key >= best_key) continue;
        best = {c, from, to};
        best_key = key;
      }
      from = to;
    }
    return best;
  }

  // Low numbers are tried first: cliques with one branch, then those with few branches and many cuts so far.
  double difficulty(std::uint32_t clique) const {
    const std::size_t slack = capacity_ - state_[clique].top;
    const double branches = state_[clique].lowest + (slack >= grain_ ? 1.0 : 0.0);
    if (branches <= 1) return 0;
    const double share = static_cast<double>(slack) / static_cast<double>(capacity_);
    return (branches + 0.1 * share) / static_cast<double>(cuts_[clique]);
  }

  std::vector<std::uint32_t> candidates(std::uint32_t clique) const {
    std::vector<std::uint32_t> found;
    for (const std::uint32_t i : cliques_.members[clique])
      if (!placed_[i] && release_[i] == state_[clique].floor) found.push_back(i);
    std::sort(found.begin(), found.end(),
              [&](std::uint32_t a, std::uint32_t b) { return rank_[a] < rank_[b]; });
    return found;
  }

  // True if an equal item, which could take the place of this one, is tried before it.
  bool is_exchanged(std::uint32_t i, std::uint32_t clique) const {
    return std::any_of(cliques_.members[clique].begin(), cliques_.members[clique].end(),
                       [&](std::uint32_t other) {
                         return !placed_[other] && rank_[other] < rank_[i] && is_parallel(other, i) &&
                                items_[other].bytes == items_[i].bytes && release_[other] == release_[i];
                       });
  }

  bool is_parallel(std::uint32_t a, std::uint32_t b) const {
    return cliques_.first[a] == cliques_.first[b] && cliques_.last[a] == cliques_.last[b] &&
           items_[a].alignment == items_[b].alignment;
  }

  void place(std::uint32_t i, std::size_t offset) {
    trail_.push_back({Change::Kind::kPlaced, i, 0, {}});
    toggle(i);
    placed_[i] = true;
    offsets_[i] = offset;
    const std::size_t top = offset + items_[i].bytes;
    for (std::uint32_t c = cliques_.first[i]; c <= cliques_.last[i]; ++c) {
      if (c < cliques_.last[i]) --crossing_[c];
      touch(c);
      for (const std::uint32_t other : cliques_.members[c]) release(other, top);
      effort_->spend(20 + 10 * cliques_.members[c].size());
    }
  }

  // Nothing lies on the floor of the clique. The lowest item of the clique then lies on an item that is not
  // in the clique. Returns false if that cannot be.
  bool raise(const Branching& at) {
    const std::size_t floor = state_[at.clique].floor;
    std::size_t top = kNever;  // the least top of an item in the valley that is not in the clique
    for (std::uint32_t c = at.begin; c < at.end; ++c)
      for (const std::uint32_t i : cliques_.members[c])
        if (!placed_[i] && (cliques_.first[i] > at.clique || cliques_.last[i] < at.clique))
          top = std::min(top, release_[i] + items_[i].bytes);
    std::size_t level = kNever;
    for (const std::uint32_t i : cliques_.members[at.clique]) {
      if (placed_[i]) continue;
      if (release_[i] > floor)
        level = std::min(level, release_[i]);
      else if (top != kNever)
        level = std::min(level, round_up(top, items_[i].alignment));
    }
    if (level == kNever) return false;
    for (const std::uint32_t i : cliques_.members[at.clique]) release(i, level);
    return true;
  }

  // ---- consequences ----

  void release(std::uint32_t i, std::size_t offset, bool by_reach = false) {
    if (placed_[i] || release_[i] >= offset) return;
    trail_.push_back({Change::Kind::kRelease, i, release_[i], {}, by_reach});
    if (by_reach) ++reached_;
    toggle(i);
    release_[i] = round_up(offset, std::max(items_[i].alignment, grain_));
    toggle(i);
    for (std::uint32_t c = cliques_.first[i]; c <= cliques_.last[i]; ++c) touch(c);
  }

  // Adds the item and its release to the key of its first clique, or removes them if they are in the key.
  void toggle(std::uint32_t i) {
    if (items_[i].bytes != 0) keys_[cliques_.first[i]] ^= SearchKey::of(i, release_[i]);
  }

  void touch(std::uint32_t clique) {
    if (is_dirty_[clique]) return;
    is_dirty_[clique] = true;
    dirty_.push_back(clique);
  }

  // Computes the states of the cliques that changed. Returns false if one of them does not fit any more.
  bool update() {
    bool fits = true;
    for (std::size_t at = 0; at < dirty_.size(); ++at) {  // the list grows
      const std::uint32_t c = dirty_[at];
      is_dirty_[c] = false;
      if (!fits) continue;
      trail_.push_back({Change::Kind::kState, c, 0, state_[c]});
      compute(c);
      if (state_[c].top <= capacity_) {
        reach(c);
        continue;
      }
      fits = false;
      // A larger arena has more room for waste, so if reach() raised releases, only this size is excluded.
      needed_ = std::min(needed_, reached_ == 0 ? state_[c].top : capacity_ / unit_ * unit_ + unit_);
      ++cuts_[c];
    }
    dirty_.clear();
    return fits;
  }

  void compute(std::uint32_t clique) {
    State& state = state_[clique];
    state.floor = kNever;
    state.top = state.bytes = 0;
    state.lowest = 0;
    stack_.clear();
    for (const std::uint32_t i : cliques_.members[clique]) {
      if (placed_[i]) continue;
      stack_.emplace_back(release_[i], items_[i].bytes);
      state.bytes += items_[i].bytes;
      if (release_[i] < state.floor) {
        state.floor = release_[i];
        state.lowest = 0;
      }
      if (release_[i] == state.floor) ++state.lowest;
    }
    std::sort(stack_.begin(), stack_.end());
    for (const auto& [release, bytes] : stack_) state.top = std::max(state.top, release) + bytes;
    effort_->spend(40 + 20 * cliques_.members[clique].size());
  }

  // An item lies on some of the others of its clique, so its offset is a sum of sizes above the floor, plus
  // waste. Raises releases to the next offset of this kind.
  void reach(std::uint32_t clique) {
    const State& state = state_[clique];
    if (state.floor == kNever) return;
    const std::size_t most = (capacity_ - state.floor) / unit_;
    const std::size_t waste = (capacity_ - state.floor - state.bytes) / unit_;
    if (most > kMostUnits || waste > most / kLeastShare || state.lowest == stack_.size()) return;
    heights_.start(most);
    for (const auto& [release, bytes] : stack_) heights_.add(bytes / unit_);
    heights_.add_waste(waste);
    effort_->spend(20 + stack_.size() * heights_.words());
    for (const std::uint32_t i : cliques_.members[clique])
      if (!placed_[i] && release_[i] != state.floor)
        release(i, state.floor + heights_.next((release_[i] - state.floor) / unit_) * unit_, true);
  }

  void undo(std::size_t mark) {
    for (const std::uint32_t c : dirty_) is_dirty_[c] = false;
    dirty_.clear();
    for (; trail_.size() > mark; trail_.pop_back()) {
      const Change& change = trail_.back();
      switch (change.kind) {
        case Change::Kind::kRelease:
          if (change.by_reach) --reached_;
          toggle(change.index);
          release_[change.index] = change.release;
          toggle(change.index);
          break;
        case Change::Kind::kState:
          state_[change.index] = change.state;
          break;
        case Change::Kind::kPlaced:
          placed_[change.index] = false;
          toggle(change.index);
          for (std::uint32_t c = cliques_.first[change.index]; c < cliques_.last[change.index]; ++c)
            ++crossing_[c];
          break;
      }
    }
  }

  const std::vector<Item>& items_;
  std::size_t grain_, unit_ = 1;  // every size and alignment is a multiple of a unit
  Cliques cliques_;
  std::size_t capacity_ = 0, needed_ = kNever, depth_ = 0;
  std::size_t reached_ = 0;                     // the number of changes in the trail that reach() made
  std::vector<std::size_t> release_, offsets_;  // per item
  std::vector<bool> placed_;                    // per item
  std::vector<std::uint32_t> rank_;             // per item
  std::vector<State> state_;                    // per clique
  std::vector<std::uint32_t> crossing_;         // per clique: unplaced items that are in the next one, too
  std::vector<std::uint64_t> cuts_;             // per clique
  std::vector<Change> trail_;
  std::vector<std::uint32_t> dirty_;
  std::vector<bool> is_dirty_;
  std::vector<std::pair<std::size_t, std::size_t>> stack_;
  std::vector<SearchKey> keys_;  // per clique: of the unplaced items that begin there
  Failures failures_;            // with this capacity
  Heights heights_;
  Effort* effort_ = nullptr;
};

Packer::Packer(const Items& items) : search_(std::make_unique<Search>(items)) {}
Packer::~Packer() = default;
Packer::Packer(Packer&&) noexcept = default;
Packer& Packer::operator=(Packer&&) noexcept = default;

std::optional<PackResult> Packer::pack(std::size_t capacity, Effort& effort) {
  return search_->pack(capacity, effort);
}

}  // namespace tosaic::memory
