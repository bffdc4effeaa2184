// Reduction loops. Along a block, kLanes accumulators run side by side. At the end they are merged by halves:
// each accumulator of the upper half is merged into one of the lower half, until one is left. So the order of
// additions depends on the length only, not on the instruction set.
#include "tosaic/kernels/reduce_block.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using std::int64_t;

// The type in which accumulators are added: integers wrap.
template <class A>
using Wrapping = std::conditional_t<std::is_same_v<A, std::int32_t>, std::uint32_t,
                                    std::conditional_t<std::is_integral_v<A>, std::uint64_t, A>>;

template <class A>
inline constexpr A kLowest = -__builtin_inf();
template <>
inline constexpr int64_t kLowest<int64_t> = INT64_MIN;
template <>
inline constexpr std::int32_t kLowest<std::int32_t> = INT32_MIN;
template <class A>
inline constexpr A kHighest = __builtin_inf();
template <>
inline constexpr int64_t kHighest<int64_t> = INT64_MAX;
template <>
inline constexpr std::int32_t kHighest<std::int32_t> = INT32_MAX;

template <Fold kFold, class A>
[[gnu::always_inline]] constexpr A start() {
  switch (kFold) {
    case Fold::kProduct:
    case Fold::kAll:
      return A{1};
    case Fold::kMax:
    case Fold::kMaxNumbers:
      return kLowest<A>;
    case Fold::kMin:
    case Fold::kMinNumbers:
      return kHighest<A>;
    case Fold::kSum:
    case Fold::kAny:
    case Fold::kSquares:
      return A{0};
  }
  return A{0};
}

// Merges two accumulators.
template <Fold kFold, class A>
[[gnu::always_inline]] inline A merge(A a, A b) {
  using W = Wrapping<A>;
  if constexpr (kFold == Fold::kSum || kFold == Fold::kSquares) {
    return static_cast<A>(static_cast<W>(a) + static_cast<W>(b));
  } else if constexpr (kFold == Fold::kProduct) {
    return static_cast<A>(static_cast<W>(a) * static_cast<W>(b));
  } else if constexpr (kFold == Fold::kMax) {
    const A larger = b > a ? b : a;
    return b != b ? b : larger;
  } else if constexpr (kFold == Fold::kMin) {
    const A smaller = b < a ? b : a;
    return b != b ? b : smaller;
  } else if constexpr (kFold == Fold::kMaxNumbers) {
    return b > a ? b : a;
  } else if constexpr (kFold == Fold::kMinNumbers) {
    return b < a ? b : a;
  } else if constexpr (kFold == Fold::kAny) {
    return b != A{} ? A{1} : a;
  } else {
    return b == A{} ? A{0} : a;
  }
}

// Folds one element into an accumulator.
template <Fold kFold, class A, class T>
[[gnu::always_inline]] inline A accumulate(A a, T value, [[maybe_unused]] double centre) {
  if constexpr (kFold == Fold::kSquares) {
    const double distance = static_cast<double>(value) - centre;
    return static_cast<A>(static_cast<double>(a) + distance * distance);
  } else {
    return merge<kFold, A>(a, static_cast<A>(value));
  }
}

template <class A>
[[gnu::always_inline]] inline A& member(Accumulator& accumulator);
template <>
[[gnu::always_inline]] inline double& member<double>(Accumulator& accumulator) {
  return accumulator.real;
}
template <>
[[gnu::always_inline]] inline int64_t& member<int64_t>(Accumulator& accumulator) {
  return accumulator.whole;
}

inline constexpr int kLanes = 32;

// True if the result is one of the elements, so that accumulators need not be wider than elements.
template <Fold kFold>
inline constexpr bool kChooses =
    kFold == Fold::kMax || kFold == Fold::kMin || kFold == Fold::kMaxNumbers || kFold == Fold::kMinNumbers;

template <Fold kFold, class T, class A>
void fold_along(const void* block, int64_t count, double centre, Accumulator* accumulator) {
  const auto* values = static_cast<const T*>(block);
  // The low bits of integers do not depend on the high ones.
  using L = std::conditional_t<kChooses<kFold> || std::is_integral_v<T>, T, A>;
  L lanes[kLanes];
  for (L& lane : lanes) lane = start<kFold, L>();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = accumulate<kFold, L, T>(lanes[lane], values[i + lane], centre);
  for (int lane = 0; i < count; ++i, ++lane)
    lanes[lane] = accumulate<kFold, L, T>(lanes[lane], values[i], centre);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] = merge<kFold, L>(lanes[lane], lanes[lane + half]);
  A& total = member<A>(*accumulator);
  total = merge<kFold, A>(total, static_cast<A>(lanes[0]));
}

template <Fold kFold, class T, class A>
void fold_across(const void* block, int64_t count, const double* centres, Accumulator* accumulators) {
  const auto* values = static_cast<const T*>(block);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    A& total = member<A>(accumulators[i]);
    const double centre = kFold == Fold::kSquares ? centres[i] : 0.0;
    total = accumulate<kFold, A, T>(total, values[i], centre);
  }
}

template <Fold kFold>
FoldLoops find_domain(Domain domain) {
  switch (domain) {
    case Domain::kF32:
      return {fold_along<kFold, float, double>, fold_across<kFold, float, double>};
    case Domain::kF64:
      return {fold_along<kFold, double, double>, fold_across<kFold, double, double>};
    case Domain::kI64:
      return {fold_along<kFold, int64_t, int64_t>, fold_across<kFold, int64_t, int64_t>};
    case Domain::kI32:
      return {fold_along<kFold, std::int32_t, int64_t>, fold_across<kFold, std::int32_t, int64_t>};
  }
  return {};
}

FoldLoops find_fold(Fold fold, Domain domain) {
  return with_fold(fold, [domain](auto constant) { return find_domain<constant()>(domain); });
}

}  // namespace

const ReduceKernels kReduceKernels{find_fold};

}  // namespace tosaic::kernels::TOSAIC_ISA
