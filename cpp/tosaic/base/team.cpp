#include "tosaic/base/team.h"

#include <atomic>
#include <cfenv>
#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#define TOSAIC_POSIX 1
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace tosaic {
namespace {

// How long a thread looks for work before it sleeps: longer than most steps of a run that do not use threads,
// and than the time between runs that follow each other. To wake a thread up takes 50 to 100 microseconds.
constexpr std::chrono::microseconds kSpin{200};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Watches `word` for at most kSpin. Returns true as soon as it differs from `old`, and false if it does not
// in that time.
bool changes_soon(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 16; ++i) {
      if (word.load(std::memory_order_acquire) != old) return true;
      for (int k = 0; k < 4; ++k) pause();  // leaves the core to its other thread, if it has one
    }
  } while (std::chrono::steady_clock::now() - start < kSpin);
  return false;
}

// Returns when `word` is no longer `old`.
void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
  if (!changes_soon(word, old)) word.wait(old, std::memory_order_acquire);
}

// The parts of a range that no thread has taken. One word has the number of the job, the next part and the
// end of the range, so that a thread takes only parts of the job that it has read, never of a later job.
struct alignas(64) Range {
  std::atomic<std::uint64_t> word{0};

  static std::uint64_t packed(std::uint32_t job, std::uint32_t next, std::uint32_t end) {
    return std::uint64_t{job} << 32 | std::uint64_t{next} << 16 | end;
  }
  static std::uint32_t next(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 16) & 0xffff; }
  static std::uint32_t end(std::uint64_t word) { return static_cast<std::uint32_t>(word) & 0xffff; }
};

}  // namespace

// What the threads of a team share. The fields of a job are written before its ranges, and not again until
// all of its parts are done. So a thread that takes a part has read the fields of the same job.
struct Team::Shared {
  static constexpr std::uint32_t kClosed = 0xffffffff;

  explicit Shared(std::uint32_t threads) : ranges(threads) { std::fegetenv(&environment); }

  std::fenv_t environment;
  std::atomic<std::uint32_t> job{0};  // counts the calls of run_parts(); kClosed: there are no more
  std::atomic<Call> call{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<std::uint32_t> done{0};  // parts of the job
  std::vector<Range> ranges;           // one per thread
  std::mutex failure_mutex;
  std::exception_ptr failure;
  std::uint32_t failed_part = 0;
  const void* lender = nullptr;  // the pool that lent threads to this team
  std::uint32_t lent = 0;        // the number of lent threads

  void work(std::uint32_t worker) {
    const auto threads = static_cast<std::uint32_t>(ranges.size());
    for (std::uint32_t i = 0; i < threads; ++i) work_on(ranges[(worker + i) % threads], worker);
  }

  // Serves the team until it is closed.
  void serve(std::uint32_t worker) {
    std::fesetenv(&environment);
    for (std::uint32_t seen = 0;;) {
      wait_for_change(job, seen);
      seen = job.load(std::memory_order_acquire);
      if (seen == kClosed) return;
      work(worker);
    }
  }

 private:
  void work_on(Range& range, std::uint32_t worker) {
    std::uint64_t word = range.word.load(std::memory_order_acquire);
    while (Range::next(word) < Range::end(word)) {
      const Call function = call.load(std::memory_order_relaxed);
      void* const argument = context.load(std::memory_order_relaxed);
      const std::uint32_t part = Range::next(word);
      if (!range.word.compare_exchange_weak(word, word + (1U << 16), std::memory_order_acq_rel,
                                            std::memory_order_acquire))
        continue;
      try {
        function(argument, part, worker);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure || part < failed_part) {
          failure = std::current_exception();
          failed_part = part;
        }
      }
      done.fetch_add(1, std::memory_order_acq_rel);
      word = range.word.load(std::memory_order_acquire);
    }
  }
};

namespace {

// The cores that a thread may use. If the system does not tell them, the set is unknown, and give_to() does
// nothing.
#if defined(__linux__)
class Cores {
 public:
  static Cores of_this_thread() {
    Cores out;
    out.is_known_ = sched_getaffinity(0, sizeof out.set_, &out.set_) == 0;
    return out;
  }
  // The number of cores; 0 if they are unknown.
  [[nodiscard]] std::uint32_t count() const {
    return is_known_ ? static_cast<std::uint32_t>(CPU_COUNT(&set_)) : 0;
  }
  // This set without the core that this thread runs on. If it has no other core, the whole set.
  [[nodiscard]] Cores without_this_one() const {
    Cores out = *this;
    const int core = sched_getcpu();
    if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(static_cast<std::size_t>(core), &out.set_);
    return CPU_COUNT(&out.set_) > 0 ? out : *this;
  }
  void give_to(std::thread::native_handle_type thread) const {
    if (is_known_) pthread_setaffinity_np(thread, sizeof set_, &set_);
  }
  bool operator==(const Cores& other) const {
    return is_known_ == other.is_known_ && CPU_EQUAL(&set_, &other.set_);
  }

 private:
  cpu_set_t set_{};
  bool is_known_ = false;
};
#else
struct Cores {
  static Cores of_this_thread() { return {}; }
  [[nodiscard]] std::uint32_t count() const { return 0; }
  [[nodiscard]] Cores without_this_one() const { return {}; }
  void give_to(std::thread::native_handle_type /*thread*/) const {}
  bool operator==(const Cores&) const = default;
};
#endif

// The pool gives one of these to each thread that it lends: the team to serve, the thread's worker number in
// that team, and the cores that the thread may use. These are the cores of the thread that made the team.
struct Loan {
  std::shared_ptr<Team::Shared> team;
  std::uint32_t worker = 0;
  Cores cores;
};

// A thread of the process that teams borrow. While it is idle, only the pool writes `loan` and `cores`, and
// changes `loans` afterwards. While it serves, only the thread itself writes them.
struct Helper {
  std::thread::native_handle_type thread{};
  std::atomic<bool> sleeps{false};
  std::atomic<std::uint32_t> loans{0};
  Loan loan;
  Cores cores;  // that it may use now

  void use(const Cores& wanted) {
    if (cores == wanted) return;
    cores = wanted;
    cores.give_to(thread);
  }
};

// The pool starts a thread only if all its threads serve open teams. So it never has more threads than were
// needed at the same time. A run that directly follows another run gets the thread of that run, which is most
// often awake.
//
// Linux may wake a thread up on the core of the thread that wakes it, although other cores are idle: virtual
// machines with Linux 6.18 did so half of the time after a pause of 20 ms. Then the two threads share that
// core for up to 5 ms, which is longer than many runs take. So a helper that sleeps, or is new, may not use
// the core of the lending thread until the team is closed.
class Pool {
 public:
  // Lends `count` threads to the team, as workers 1, 2, ... Threads that come back from closed teams are
  // preferred to threads that sleep. Returns how many threads the team gets: fewer than `count` if the system
  // can start no more.
  std::uint32_t lend(const std::shared_ptr<Team::Shared>& team, std::uint32_t count) {
    const Cores usable = Cores::of_this_thread();
    const std::lock_guard lock(mutex_);
    for (std::uint32_t worker = 1; worker <= count; ++worker)
      if (!lend_one({team, worker, usable})) return worker - 1;
    return count;
  }

  // To be called before a team is closed that got `lent` threads. From then on, the pool counts on these
  // threads to come back. Loans that still wait are cancelled.
  void expect_back(const std::shared_ptr<Team::Shared>& team, std::uint32_t lent) {
    const std::lock_guard lock(mutex_);
    coming_back_ += lent - std::erase_if(waiting_, [&](const Loan& loan) { return loan.team == team; });
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  // Lends one thread. Returns false if no thread is free or coming back, and the system cannot start another
  // one.
  bool lend_one(Loan loan) {
    const bool is_one_awake = !idle_.empty() && !idle_.back()->sleeps.load(std::memory_order_acquire);
    try {
      if (!is_one_awake && waiting_.size() < coming_back_) {
        waiting_.push_back(std::move(loan));
        return true;
      }
      if (idle_.empty()) start(loan.cores);
    } catch (const std::exception&) {
      return false;
    }
    Helper& helper = *idle_.back();
    idle_.pop_back();
    helper.use(is_one_awake ? loan.cores : loan.cores.without_this_one());
    helper.loan = std::move(loan);
    helper.loans.fetch_add(1);
    helper.loans.notify_one();
    return true;
  }

  // Starts a thread and puts it among the idle ones. The system gives it the cores of this thread,
  // `inherited`. It takes no signals: the threads of the program do. Throws if the system has no more threads
  // or memory.
  void start(const Cores& inherited) {
    idle_.reserve(started_ + 1);
    auto helper = std::make_unique<Helper>();
    helper->cores = inherited;
    const NoSignals no_signals;
    std::thread thread([this, own = helper.get()] { live(*own); });
    helper->thread = thread.native_handle();
    thread.detach();
    idle_.push_back(helper.release());
    ++started_;
  }

  // As long as an object of this class exists, this thread takes no signals. Threads that it starts meanwhile
  // never do.
  class NoSignals {
   public:
    NoSignals(const NoSignals&) = delete;
    NoSignals& operator=(const NoSignals&) = delete;
#if defined(TOSAIC_POSIX)
    NoSignals() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, &before_);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

   private:
    sigset_t before_{};
#else
    NoSignals() = default;
#endif
  };

  [[noreturn]] void live(Helper& helper) {
    for (std::uint32_t seen = 0;; ++seen) {
      if (!changes_soon(helper.loans, seen)) {
        helper.sleeps.store(true, std::memory_order_release);
        helper.loans.wait(seen, std::memory_order_acquire);
        helper.sleeps.store(false, std::memory_order_relaxed);
      }
      do {
        helper.loan.team->serve(helper.loan.worker);
        helper.loan.team.reset();
        helper.use(helper.loan.cores);
      } while (takes_waiting(helper));
    }
  }

  // Called by a helper whose team was closed. If a loan waits, gives it to the helper and returns true.
  // Otherwise puts the helper among the idle ones and returns false.
  bool takes_waiting(Helper& helper) {
    const std::lock_guard lock(mutex_);
    --coming_back_;
    if (waiting_.empty()) {
      idle_.push_back(&helper);
      return false;
    }
    helper.loan = std::move(waiting_.front());
    waiting_.pop_front();
    helper.use(helper.loan.cores);
    return true;
  }

  std::mutex mutex_;
  std::vector<Helper*> idle_;    // the one that served last at the end; helpers live as long as the process
  std::deque<Loan> waiting_;     // for the threads that come back next
  std::size_t coming_back_ = 0;  // threads of closed teams that are not idle yet
  std::size_t started_ = 0;
};

Pool* the_pool = nullptr;  // never destroyed, because its threads never end

#if defined(TOSAIC_POSIX)
void before_fork() { the_pool->lock(); }
void after_fork_in_parent() { the_pool->unlock(); }
// The threads of the pool exist in the parent only.
void after_fork_in_child() { the_pool = new Pool; }
#endif

Pool& pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    the_pool = new Pool;
#if defined(TOSAIC_POSIX)
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
#endif
  });
  return *the_pool;
}

}  // namespace

std::uint32_t usable_cores() {
  const std::uint32_t known = Cores::of_this_thread().count();
  return known > 0 ? known : std::max(1U, std::thread::hardware_concurrency());
}

Team::Team(std::uint32_t threads, bool share_all)
    : size_(std::max<std::uint32_t>(1, threads)), share_all_(share_all) {
  if (size_ == 1) return;
  shared_ = std::make_shared<Shared>(size_);
  Pool& lender = pool();
  shared_->lender = &lender;
  shared_->lent = lender.lend(shared_, size_ - 1);
}

Team::~Team() {
  if (shared_ == nullptr) return;
  // After fork(), a child process has a new pool, which lent nothing to the teams that the child copied.
  if (Pool& lender = pool(); shared_->lender == &lender) lender.expect_back(shared_, shared_->lent);
  // Sequentially consistent: else notify_all() could read that nobody waits before the store is visible.
  shared_->job.store(Shared::kClosed);
  shared_->job.notify_all();
}

void Team::run_parts(std::uint32_t parts, Call call, void* context) {
  if (shared_ == nullptr || parts <= 1) {
    for (std::uint32_t part = 0; part < parts; ++part) call(context, part, 0);
    return;
  }
  Shared& shared = *shared_;
  std::uint32_t job = shared.job.load(std::memory_order_relaxed) + 1;
  if (job == Shared::kClosed) job = 1;
  shared.call.store(call, std::memory_order_relaxed);
  shared.context.store(context, std::memory_order_relaxed);
  shared.done.store(0, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < size_; ++i) {
    const auto bound = [&](std::uint32_t range) {
      return static_cast<std::uint32_t>(std::uint64_t{parts} * range / size_);
    };
    shared.ranges[i].word.store(Range::packed(job, bound(i), bound(i + 1)), std::memory_order_release);
  }
  shared.job.store(job);
  shared.job.notify_all();
  shared.work(0);
  for (int tries = 0; shared.done.load(std::memory_order_acquire) != parts; ++tries) {
    if (tries < 4096)
      pause();
    else
      std::this_thread::yield();
  }
  if (shared.failure) std::rethrow_exception(std::exchange(shared.failure, nullptr));
}

}  // namespace tosaic
