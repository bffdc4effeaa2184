// spec: the target, which is the TOSA 1.0 profiles, extensions and level that an implementation has.
//
//   "TOSA-1.0+INT+FP+int16+8k"
//
// The text is a version, followed in any order by at least one profile, extensions and at most one level. The
// default level is 8K; "none" is the specification's level of the highest limits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tosaic/ir/since.h"

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

// The names that the specification uses: "PRO-INT", "EXT-INT16".
[[nodiscard]] std::string_view to_string(Extension extension);

// The limits of a level (section "Levels" of the specification).
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
  TosaVersion version = {};

  [[nodiscard]] bool has(Profile profile) const { return (features & bit(profile)) != 0; }
  [[nodiscard]] bool has(Extension extension) const { return (features & bit(extension)) != 0; }
  bool operator==(const TargetSpec&) const = default;
};

// The spec with these features. An extension without any of its profiles adds the first of them, too.
[[nodiscard]] TargetSpec with_features(TargetSpec spec, Features features);
// The names in the text of a target: "INT", "int16", "8K".
[[nodiscard]] std::vector<std::string_view> profile_texts(const TargetSpec& spec);
[[nodiscard]] std::vector<std::string_view> extension_texts(const TargetSpec& spec);

// The part of `features` that are extensions.
[[nodiscard]] Features extensions_of(Features features);

// Upper and lower case are the same. Throws InvalidGraph, which lists the known names, for an unknown version
// or part, a part given twice, a missing profile, or an extension whose profile is missing.
[[nodiscard]] TargetSpec parse_target(std::string_view text);

// The canonical text: the parts in the order of the enums above, and the level only if it is not 8K.
[[nodiscard]] std::string to_string(const TargetSpec& spec);

}  // namespace tosaic::target
