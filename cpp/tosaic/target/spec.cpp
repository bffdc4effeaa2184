#include "tosaic/target/spec.h"

#include <array>
#include <optional>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"

namespace tosaic::target {
namespace {

// The versions that a target may have, in the order of their age.
struct VersionRow {
  TosaVersion version;
  std::string_view text;
};
constexpr std::array<VersionRow, 1> kVersions{{{{1, 0}, "TOSA-1.0"}}};

struct ProfileRow {
  Profile profile;
  std::string_view text, name;
};
constexpr std::array<ProfileRow, 2> kProfiles{
    {{Profile::kInt, "INT", "PRO-INT"}, {Profile::kFp, "FP", "PRO-FP"}}};

constexpr Features kInt = bit(Profile::kInt);
constexpr Features kFp = bit(Profile::kFp);

struct ExtensionRow {
  Extension extension;
  std::string_view text, name;
  Features profiles;  // the target needs at least one of these
};
constexpr std::array<ExtensionRow, 11> kExtensions{{
    {Extension::kInt16, "int16", "EXT-INT16", kInt},
    {Extension::kInt4, "int4", "EXT-INT4", kInt},
    {Extension::kBf16, "bf16", "EXT-BF16", kFp},
    {Extension::kFp8E4M3, "fp8e4m3", "EXT-FP8E4M3", kFp},
    {Extension::kFp8E5M2, "fp8e5m2", "EXT-FP8E5M2", kFp},
    {Extension::kFft, "fft", "EXT-FFT", kFp},
    {Extension::kVariable, "variable", "EXT-VARIABLE", kInt | kFp},
    {Extension::kControlFlow, "cf", "EXT-CONTROLFLOW", kInt | kFp},
    {Extension::kDynamic, "dynamic", "EXT-DYNAMIC", kInt | kFp},
    {Extension::kDoubleRound, "doubleround", "EXT-DOUBLEROUND", kInt},
    {Extension::kInexactRound, "inexactround", "EXT-INEXACTROUND", kInt},
}};

constexpr std::int64_t kMax32 = 2147483647;
constexpr std::array<LevelLimits, 2> kLimits{
    {{"8K", 6, 8192, 8192, 256, 31, 6, 64}, {"none", 32, kMax32, kMax32, 2048, 63, 256, 256}}};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find('+');
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string known_parts() {
  std::string text = "INT, FP";
  for (const ExtensionRow& row : kExtensions) text.append(", ").append(row.text);
  return text + ", 8k, none";
}

[[noreturn]] void fail(std::string what, std::string expected, std::string_view got, std::string hint = "") {
  throw InvalidGraph({.where = "target",
                      .what = std::move(what),
                      .expected = std::move(expected),
                      .got = quoted(got),
                      .hint = std::move(hint)});
}

TosaVersion version_of(std::string_view part, std::string_view text) {
  std::string known;
  for (const VersionRow& row : kVersions) {
    if (lower(part) == lower(row.text)) return row.version;
    known.append(known.empty() ? "" : " or ").append(row.text);
  }
  fail("unknown target", known + " and a profile, such as 'TOSA-1.0+INT'", text);
}

// The feature or the level that one part of the text names.
struct Part {
  Features feature = 0;
  std::optional<Level> level;
};

Part parse_part(std::string_view text) {
  const std::string name = lower(text);
  for (const ProfileRow& row : kProfiles)
    if (lower(row.text) == name) return {bit(row.profile), {}};
  for (const ExtensionRow& row : kExtensions)
    if (row.text == name) return {bit(row.extension), {}};
  if (name == "controlflow") return {bit(Extension::kControlFlow), {}};
  if (name == "8k") return {0, Level::k8K};
  if (name == "none") return {0, Level::kNone};
  fail("unknown part of a target", "one of " + known_parts(), text);
}

void require_profiles(const TargetSpec& spec, std::string_view text) {
  if ((spec.features & (kInt | kFp)) == 0)
    fail("the target has no profile", "+INT, +FP or both", text, "For example 'TOSA-1.0+INT'");
  for (const ExtensionRow& row : kExtensions)
    if (spec.has(row.extension) && (spec.features & row.profiles) == 0)
      fail("the extension " + std::string(row.text) + " needs its profile", feature_names(row.profiles),
           text);
}

}  // namespace

std::string_view to_string(Extension extension) {
  return kExtensions.at(static_cast<std::size_t>(extension)).name;
}

const LevelLimits& limits(Level level) { return kLimits.at(static_cast<std::size_t>(level)); }

std::string feature_names(Features features) {
  std::string text;
  const auto add = [&text](std::string_view name) { text.append(text.empty() ? "" : ", ").append(name); };
  for (const ProfileRow& row : kProfiles)
    if ((features & bit(row.profile)) != 0) add(row.name);
  for (const ExtensionRow& row : kExtensions)
    if ((features & bit(row.extension)) != 0) add(row.name);
  return text;
}

TargetSpec with_features(TargetSpec spec, Features features) {
  spec.features |= features;
  for (const ExtensionRow& row : kExtensions)
    if (spec.has(row.extension) && (spec.features & row.profiles) == 0)
      spec.features |= row.profiles & ~(row.profiles - 1);
  return spec;
}

Features extensions_of(Features features) { return features & ~(kInt | kFp); }

std::vector<std::string_view> profile_texts(const TargetSpec& spec) {
  std::vector<std::string_view> out;
  for (const ProfileRow& row : kProfiles)
    if (spec.has(row.profile)) out.push_back(row.text);
  return out;
}

std::vector<std::string_view> extension_texts(const TargetSpec& spec) {
  std::vector<std::string_view> out;
  for (const ExtensionRow& row : kExtensions)
    if (spec.has(row.extension)) out.push_back(row.text);
  return out;
}

TargetSpec parse_target(std::string_view text) {
  const std::vector<std::string_view> parts = split(text);
  TargetSpec spec;
  spec.version = version_of(parts.front(), text);
  std::optional<Level> level;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const Part part = parse_part(parts[i]);
    if ((spec.features & part.feature) != 0 || (part.level && level))
      fail("a part of the target is given twice", "each part, and one level, once", parts[i]);
    spec.features |= part.feature;
    if (part.level) level = part.level;
  }
  spec.level = level.value_or(Level::k8K);
  require_profiles(spec, text);
  return spec;
}

std::string to_string(const TargetSpec& spec) {
  std::string text = "TOSA-" + tosaic::to_string(spec.version);
  for (const std::string_view part : profile_texts(spec)) text.append("+").append(part);
  for (const std::string_view part : extension_texts(spec)) text.append("+").append(part);
  if (spec.level == Level::kNone) text += "+none";
  return text;
}

}  // namespace tosaic::target
