// team: the threads that share the work of one run.
//
//   Team team(4);                                  this thread, and up to three more
//   team.run(parts, [&](part, worker) { ... });    calls the function for each part; returns when all are
//                                                  done
//
// The additional threads belong to the process. They are started when they are first needed, are lent to one
// team at a time, and sleep when no team has them. A team never waits for threads: those that still come back
// from another team join it later. The threads of a team may use the cores that the thread that made it may
// use.
//
// run() gives each thread a range of the parts. A thread computes the parts of its own range first: in
// successive calls these are neighbouring parts of the data, which may still be in its cache. Then it takes
// parts that are left in the ranges of other threads. So a part must not depend on the thread that computes
// it. Threads compute in the floating-point environment (rounding, treatment of subnormal numbers) of the
// thread that made the team. A child process after fork() starts threads of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace tosaic {

// The number of cores that this process may use, at least 1.
[[nodiscard]] std::uint32_t usable_cores();

class Team {
 public:
  static constexpr std::uint32_t kMostParts = 0xffff;

  // `threads` is the number of threads with this one, at least 1. With `share_all`, they shall share all
  // work, even if that takes longer than to do it in one thread.
  explicit Team(std::uint32_t threads, bool share_all = false);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] bool shares_all() const { return share_all_; }

  // Calls work(part, worker) for each part < parts, where parts <= kMostParts. Calls with the same worker
  // (< size()) do not overlap in time. If calls throw, the exception of the least part among them is thrown
  // again when all calls have ended. Only the thread that made the team may call this; `work` must not.
  template <class F>
  void run(std::uint32_t parts, F&& work) {
    const auto call = [](void* context, std::uint32_t part, std::uint32_t worker) {
      (*static_cast<std::remove_reference_t<F>*>(context))(part, worker);
    };
    run_parts(parts, call, const_cast<void*>(static_cast<const void*>(&work)));
  }

  // Like run(), but for any number of parts.
  template <class F>
  void run_all(std::size_t parts, F&& work) {
    for (std::size_t first = 0; first < parts; first += kMostParts)
      run(static_cast<std::uint32_t>(std::min<std::size_t>(parts - first, kMostParts)),
          [&](std::uint32_t part, std::uint32_t worker) { work(first + part, worker); });
  }

  struct Shared;  // team.cpp

 private:
  using Call = void (*)(void* context, std::uint32_t part, std::uint32_t worker);
  void run_parts(std::uint32_t parts, Call call, void* context);

  std::uint32_t size_ = 1;
  bool share_all_ = false;
  std::shared_ptr<Shared> shared_;  // null if this thread is alone
};

// Calls work(part) for each part < parts: in the threads of the team, or in this one if there is no team.
template <class F>
void for_each_in(Team* team, std::size_t parts, F&& work) {
  if (team != nullptr && team->size() > 1)
    return team->run_all(parts, [&](std::size_t part, std::uint32_t) { work(part); });
  for (std::size_t part = 0; part < parts; ++part) work(part);
}

}  // namespace tosaic
