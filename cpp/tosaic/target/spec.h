// The target: which TOSA 1.0 profiles, extensions and level an implementation has.
//
//   "TOSA-1.0+INT+FP+int16+8k"
//
// A version, at least one profile, then extensions and a level in any order. Without a level it is 8K, "none"
// lifts it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tosaic::target {

enum class Profile : std::uint8_t { kInt, kFp };
enum class Extension : std::uint8_t {
  kInt16,
  kInt4,
  kBf16,
  kFp8E4M3,
  kFp8E5M2,
  kFft,
  kVariable,
  kControlFlow,
  kDynamic,
  kDoubleRound,
  kInexactRound
};
enum class Level : std::uint8_t { k8K, kNone };

// Names of the specification: "PRO-INT", "EXT-INT16".
[[nodiscard]] std::string_view to_string(Profile profile);
[[nodiscard]] std::string_view to_string(Extension extension);

// What a level allows at most (section "Levels" of the specification).
struct LevelLimits {
  std::string_view name;
  std::int64_t max_rank, max_kernel, max_stride, max_scale, max_log2_size, max_nesting, max_tensor_list_size;
};
[[nodiscard]] const LevelLimits& limits(Level level);

// A set of profiles and extensions as bits.
using Features = std::uint32_t;
[[nodiscard]] constexpr Features bit(Profile profile) { return 1u << static_cast<unsigned>(profile); }
[[nodiscard]] constexpr Features bit(Extension extension) { return 4u << static_cast<unsigned>(extension); }
// "PRO-INT, EXT-INT16"
[[nodiscard]] std::string feature_names(Features features);

struct TargetSpec {
  Features features = 0;
  Level level = Level::k8K;

  [[nodiscard]] bool has(Profile profile) const { return (features & bit(profile)) != 0; }
  [[nodiscard]] bool has(Extension extension) const { return (features & bit(extension)) != 0; }
  bool operator==(const TargetSpec&) const = default;
};

// Profiles and extensions are accepted in any case. Throws InvalidGraph, listing what is known, for an
// unknown version or part, a missing profile, or an extension of a profile that is not there.
[[nodiscard]] TargetSpec parse_target(std::string_view text);

// The canonical text: parts in the order of their declaration, the level only if it is not 8K.
[[nodiscard]] std::string to_string(const TargetSpec& spec);

}  // namespace tosaic::target
