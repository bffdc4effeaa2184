#include "tosaic/claimant/claimant.h"

#include <algorithm>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/base/near_names.h"
#include "tosaic/claimant/tables.h"
#include "tosaic/target/spec.h"

namespace tosaic::claimant {
namespace {

enum class Family : std::uint8_t { kHost, kEthosU55, kEthosU85, kVgf, kCortexM, kNeutron, kSampler };

struct NamedRow {
  std::string_view name;
  Family family;
  std::optional<CortexMKernels> kernels = {};
};

constexpr NamedRow kNames[] = {
    {"host", Family::kHost},
    {"vgf", Family::kVgf},
    {"ethos-u55-32", Family::kEthosU55},
    {"ethos-u55-64", Family::kEthosU55},
    {"ethos-u55-128", Family::kEthosU55},
    {"ethos-u55-256", Family::kEthosU55},
    {"ethos-u65-256", Family::kEthosU55},
    {"ethos-u65-512", Family::kEthosU55},
    {"ethos-u85-128", Family::kEthosU85},
    {"ethos-u85-256", Family::kEthosU85},
    {"ethos-u85-512", Family::kEthosU85},
    {"ethos-u85-1024", Family::kEthosU85},
    {"ethos-u85-2048", Family::kEthosU85},
    {"cortex-m0plus", Family::kCortexM, CortexMKernels::kPlain},
    {"cortex-m4", Family::kCortexM, CortexMKernels::kDsp},
    {"cortex-m33", Family::kCortexM, CortexMKernels::kDsp},
    {"cortex-m55", Family::kCortexM, CortexMKernels::kMve},
    {"cortex-m85", Family::kCortexM, CortexMKernels::kMve},
    {"neutron", Family::kNeutron},
    {"grid-sampler", Family::kSampler},
};

// A pointer to a table that lives as long as the process.
std::shared_ptr<const Limits> shared(const Limits& limits) { return {std::shared_ptr<void>(), &limits}; }

// The composite operators among those that a table has.
std::vector<Op> composites_of(const Limits& limits) {
  std::vector<Op> out;
  for (const OperatorRow& row : limits.operators)
    for (const Op op : row.ops)
      if (info(op).has(kComposite)) out.push_back(op);
  std::ranges::sort(out);
  const auto repeated = std::ranges::unique(out);
  out.erase(repeated.begin(), repeated.end());
  return out;
}

Claimant over_tosa(std::string name, std::string target, const Limits* limits) {
  const bool doubles = target::parse_target(target).has(target::Extension::kDoubleRound);
  Claimant out;
  out.name = std::move(name);
  out.target = target;
  out.arithmetic = std::move(target);
  if (limits != nullptr) out.limits = shared(*limits);
  out.integers.rounding = doubles ? RoundingMode::kDoubleRound : RoundingMode::kSingleRound;
  out.layout = &target::tosa_layout_needs();
  return out;
}

Claimant over_canonical(std::string name, const Limits& limits, std::optional<CortexMKernels> kernels = {}) {
  Claimant out;
  out.name = std::move(name);
  out.limits = shared(limits);
  out.kernels = kernels;
  // Nodes that quantize and dequantize have kernels, too, so the arithmetic has floats.
  out.arithmetic = "TOSA-1.0+INT+FP+int16+doubleround";
  out.integers = target::cmsis_nn_semantics();
  out.preserved = composites_of(limits);
  out.layout = &preserving_layout_needs();
  return out;
}

// Takes dequantize -> grid_sample -> quantize as one unit, with the integers of the texture sampler.
Claimant over_samplers(std::string name) {
  Claimant out;
  out.name = std::move(name);
  out.limits = shared(sampler_limits());
  out.arithmetic = "TOSA-1.0+INT+FP+int16";
  out.preserved = composites_of(sampler_limits());
  out.layout = &target::tosa_layout_needs();
  return out;
}

Claimant of_family(const NamedRow& row) {
  const std::string name(row.name);
  switch (row.family) {
    case Family::kEthosU55:
      return over_tosa(name, "TOSA-1.0+INT+int16+int4", &ethos_u55_limits());
    case Family::kEthosU85:
      return over_tosa(name, "TOSA-1.0+INT+int16+int4", &ethos_u85_limits());
    case Family::kVgf:
      return over_tosa(name, "TOSA-1.0+INT+FP+int16", &vgf_limits());
    case Family::kCortexM:
      return over_canonical(name, cortex_m_limits(), row.kernels);
    case Family::kNeutron:
      return over_canonical(name, neutron_limits());
    case Family::kSampler:
      return over_samplers(name);
    case Family::kHost:
      break;
  }
  Claimant host;
  host.name = name;
  host.connected = false;
  return host;
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

target::LayoutNeeds make_preserving_needs() {
  target::LayoutNeeds out = target::tosa_layout_needs();
  for (const OpInfo& row : all_ops())
    if (row.has(kComposite) && row.attrs_index == kAttrsIndex<AxisDtypeAttrs>)
      out.ops[static_cast<std::size_t>(row.op)].need = target::LayoutNeed::kAxisInnermost;
  for (const Op op : {Op::kAdaptiveAvgPool, Op::kAdaptiveMaxPool})
    out.ops[static_cast<std::size_t>(op)].need = target::LayoutNeed::kChannelsLast;
  return out;
}

}  // namespace

const target::LayoutNeeds& preserving_layout_needs() {
  static const target::LayoutNeeds needs = make_preserving_needs();
  return needs;
}

const target::LayoutNeeds& joint_layout_needs(std::span<const Claimant> claimants) {
  // Composites are expanded in graphs for TOSA, so the needs of composites have no effect there.
  const bool preserves = std::ranges::any_of(
      claimants, [](const Claimant& each) { return each.layout == &preserving_layout_needs(); });
  return preserves ? preserving_layout_needs() : target::tosa_layout_needs();
}

Claimant claimant(std::string_view name) {
  const std::string wanted = lower_case(name);
  for (const NamedRow& row : kNames)
    if (row.name == wanted) return of_family(row);
  if (wanted.starts_with("tosa")) {
    std::string target = target::to_string(target::parse_target(name));
    return over_tosa(target, target, nullptr);
  }
  std::vector<std::string> names;
  std::vector<KnownName> known;
  for (const std::string& each : claimant_names()) {
    names.push_back(each);
    known.push_back({each});
  }
  throw InvalidGraph({.where = "claimant",
                      .what = "unknown claimant",
                      .expected = "a TOSA target such as 'TOSA-1.0+INT', or one of " + joined(names),
                      .got = quoted(name),
                      .hint = did_you_mean(wanted, known)});
}

std::vector<std::string> claimant_names() {
  std::vector<std::string> out;
  for (const NamedRow& row : kNames) out.emplace_back(row.name);
  return out;
}

}  // namespace tosaic::claimant
