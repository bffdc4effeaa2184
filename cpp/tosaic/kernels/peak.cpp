#include "tosaic/kernels/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "tosaic/kernels/isa/peak.h"

namespace tosaic::kernels {
namespace {

constexpr int kTrials = 5;

const PeakKernels& peak_kernels(Isa isa) {
  switch (isa) {
#if defined(TOSAIC_HAVE_AVX512)
    case Isa::kAvx2:
      return avx2::kPeakKernels;
    case Isa::kAvxVnni:
      return avxvnni::kPeakKernels;
    case Isa::kAvx512:
      return avx512::kPeakKernels;
    case Isa::kAvx512Vnni:
      return avx512vnni::kPeakKernels;
    case Isa::kAmx:
      return amx::kPeakKernels;
#elif defined(TOSAIC_HAVE_DOTPROD)
    case Isa::kDotProd:
      return dotprod::kPeakKernels;
    case Isa::kI8mm:
      return i8mm::kPeakKernels;
#endif
    default:
      return baseline::kPeakKernels;
  }
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs `measure` on `threads` threads, which begin together, and returns the sum of its results.
double sum_of_threads(std::size_t threads, const std::function<double(std::size_t)>& measure) {
  if (threads <= 1) return measure(0);
  std::vector<double> rates(threads);
  std::atomic<std::size_t> waiting = threads;
  std::vector<std::thread> pool;
  for (std::size_t i = 0; i < threads; ++i)
    pool.emplace_back([&, i] {
      waiting.fetch_sub(1);
      while (waiting.load() != 0) std::this_thread::yield();
      rates[i] = measure(i);
    });
  for (std::thread& thread : pool) thread.join();
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

const PeakLoop& loop_of(const PeakKernels& kernels, DType factors) {
  static const PeakLoop kNone;
  switch (factors) {
    case DType::kF32:
      return kernels.f32;
    case DType::kF64:
      return kernels.f64;
    case DType::kI16:
      return kernels.i16;
    case DType::kI8:
      return kernels.i8;
    default:
      return kNone;
  }
}

}  // namespace

std::optional<double> peak_multiply_adds(Isa isa, DType factors, std::size_t threads) {
  const PeakLoop& loop = loop_of(peak_kernels(isa), factors);
  if (loop.run == nullptr) return std::nullopt;
  constexpr double kTrialSeconds = 2e-3;
  return sum_of_threads(threads, [&](std::size_t) {
    std::int64_t rounds = 1024;
    double seconds = 0;
    while ((seconds = seconds_of([&] { loop.run(rounds); })) < kTrialSeconds / 4) rounds *= 2;
    rounds = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(static_cast<double>(rounds) * kTrialSeconds / seconds));
    double least = 1e9;
    for (int trial = 0; trial < kTrials; ++trial)
      least = std::min(least, seconds_of([&] { loop.run(rounds); }));
    return static_cast<double>(rounds) * static_cast<double>(loop.products) / least;
  });
}

double peak_bandwidth(Isa isa, std::size_t threads) {
  constexpr std::int64_t kTotal = std::int64_t{8} << 20, kLeast = std::int64_t{1} << 20;
  const auto parts = static_cast<std::int64_t>(std::max<std::size_t>(threads, 1));
  const std::int64_t count = std::max(kTotal / parts / 64 * 64, kLeast);
  const PeakKernels& kernels = peak_kernels(isa);
  return sum_of_threads(threads, [&](std::size_t) {
    const std::vector<float> a(count, 1), b(count, 2);
    std::vector<float> to(count);
    double least = 1e9;
    for (int trial = 0; trial < kTrials; ++trial)
      least = std::min(least, seconds_of([&] { kernels.add(a.data(), b.data(), to.data(), count); }));
    return 3.0 * static_cast<double>(count) * sizeof(float) / least;
  });
}

}  // namespace tosaic::kernels
