// parallel: loops of kernels that several threads share.
//
//   const Loop loop{.count = rows, .step = 1, .unit_cost = 0.1 * row_elements};
//   parallel_for(arrays.team, loop, [&](Index begin, Index end, Worker worker) { ... });
//
// The loop is cut into parts of about the same cost: one part if other threads would not save time, one part
// for each thread if the loop is short, and several parts for each thread if it is long. With several parts,
// other threads take over parts of a thread that is interrupted. The result of a unit must not depend on the
// part that it is in, so that all numbers of threads give the same results: units that a vector loop computes
// together have to be in one `step`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tosaic/base/team.h"

namespace tosaic::kernels {

using Worker = std::uint32_t;

// Estimates of the time of one thread, in nanoseconds, of one element or multiply-add. They only decide into
// how many parts a loop is cut.
namespace cost {
inline constexpr double kCopy = 0.15;     // an element that is copied, converted, added, ...
inline constexpr double kFunction = 1.0;  // an element of exp, tanh, ...
inline constexpr double kTransposed = 0.4;
inline constexpr double kScattered = 2.0;     // an element that is not next to the one before
inline constexpr double kMultiplyAdd = 0.05;  // outside of matrix products, see gemm.h
}  // namespace cost

// What a kernel uses in addition to its operands and results.
struct Workspace {
  std::byte* scratch = nullptr;
  Team* team = nullptr;  // null: the calling thread alone
};

inline constexpr double kLeastPart = 2000;         // nanoseconds; calling a thread takes 800
inline constexpr double kLeastFurtherPart = 8000;  // nanoseconds of each part if threads have several
inline constexpr std::uint32_t kPartsPerThread = 4;

struct Loop {
  std::int64_t count = 0;
  std::int64_t step = 1;                             // parts begin at multiples of it
  double unit_cost = 0;                              // nanoseconds
  std::uint32_t parts_per_thread = kPartsPerThread;  // at most
};

// The number of parts of a loop. It is smaller than the number of threads, or a multiple of it.
[[nodiscard]] inline std::int64_t parts_of(const Team* team, const Loop& loop) {
  if (team == nullptr || team->size() == 1) return 1;
  const std::int64_t steps = (loop.count + loop.step - 1) / loop.step, threads = team->size();
  const double cost = static_cast<double>(loop.count) * loop.unit_cost;
  // At most `most` parts; each part costs at least `least`.
  const auto parts = [&](std::int64_t most, double least) {
    if (team->shares_all() || cost / least >= static_cast<double>(most)) return most;
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(cost / least));
  };
  const std::int64_t wanted = parts(std::min(steps, threads), kLeastPart);
  if (wanted < threads) return wanted;
  return threads * parts(std::min<std::int64_t>(steps / threads, loop.parts_per_thread),
                         kLeastFurtherPart * static_cast<double>(threads));
}

// Cuts [0, count) into parts, and calls work(begin, end, worker) for each part. No part is more than one step
// longer than another one. If the count is 0, there is no call.
template <class F>
void parallel_for(Team* team, const Loop& loop, F&& work) {
  if (loop.count == 0) return;
  const std::int64_t parts = parts_of(team, loop);
  if (parts == 1) return work(std::int64_t{0}, loop.count, Worker{0});
  const std::int64_t steps = (loop.count + loop.step - 1) / loop.step;
  team->run(static_cast<std::uint32_t>(parts), [&](std::uint32_t part, Worker worker) {
    work(steps * part / parts * loop.step, std::min(steps * (part + 1) / parts * loop.step, loop.count),
         worker);
  });
}

}  // namespace tosaic::kernels
