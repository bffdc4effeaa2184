#include "tosaic/claimant/claimant.h"

#include <algorithm>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/base/near_names.h"
#include "tosaic/target/layout_needs.h"
#include "tosaic/target/spec.h"

namespace tosaic::claimant {
namespace {

// The composite operators that the rows of the limits list.
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

target::LayoutNeeds make_preserving_needs() {
  target::LayoutNeeds out = target::tosa_layout_needs();
  for (const OpInfo& row : all_ops())
    if (row.has(kComposite) && row.attrs_index == kAttrsIndex<AxisDtypeAttrs>)
      out.ops[static_cast<std::size_t>(row.op)].need = target::LayoutNeed::kAxisInnermost;
  for (const Op op : {Op::kAdaptiveAvgPool, Op::kAdaptiveMaxPool})
    out.ops[static_cast<std::size_t>(op)].need = target::LayoutNeed::kChannelsLast;
  return out;
}

const target::LayoutNeeds& preserving_layout_needs() {
  static const target::LayoutNeeds needs = make_preserving_needs();
  return needs;
}

const target::LayoutNeeds* needs_of(Orders orders) {
  switch (orders) {
    case Orders::kTosa:
      return &target::tosa_layout_needs();
    case Orders::kPreserving:
      return &preserving_layout_needs();
    case Orders::kAny:
      break;
  }
  return nullptr;
}

RoundingMode rounding_of(const std::string& target) {
  const bool doubles = target::parse_target(target).has(target::Extension::kDoubleRound);
  return doubles ? RoundingMode::kDoubleRound : RoundingMode::kSingleRound;
}

std::string canonical(const std::string& target) {
  return target.empty() ? target : target::to_string(target::parse_target(target));
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

[[noreturn]] void refuse(std::string_view name, const std::vector<std::string>& names, std::string expected) {
  std::vector<KnownName> known;
  for (const std::string& each : names) known.push_back({each});
  throw InvalidGraph({.where = "claimant",
                      .what = "unknown claimant",
                      .expected = std::move(expected) + joined(names),
                      .got = quoted(name),
                      .hint = did_you_mean(lower_case(name), known)});
}

// A device that has everything that the TOSA target has.
std::shared_ptr<const Device> device_of_target(std::string_view text) {
  std::string target = target::to_string(target::parse_target(text));
  return std::make_shared<const Device>(Device{.name = target, .members = {{target}}, .target = target});
}

}  // namespace

const target::LayoutNeeds& joint_layout_needs(std::span<const Claimant> claimants) {
  // preserving_layout_needs() fits TOSA, too: it differs only for composites, which graphs for TOSA lack.
  const bool preserves = std::ranges::any_of(
      claimants, [](const Claimant& each) { return each.layout == &preserving_layout_needs(); });
  return preserves ? preserving_layout_needs() : target::tosa_layout_needs();
}

Claimant claimant_of(const std::shared_ptr<const Device>& device, std::string_view member) {
  const auto found = std::ranges::find(device->members, member, &Device::Member::name);
  if (found == device->members.end()) {
    const std::shared_ptr<const Device> one[] = {device};
    refuse(member, claimant_names(one), "one of ");
  }
  Claimant out;
  out.name = found->name;
  out.kernels = found->kernels;
  out.target = canonical(device->target);
  out.arithmetic = device->arithmetic.empty() ? out.target : canonical(device->arithmetic);
  if (device->limits) out.limits = {device, &*device->limits};
  out.integers = device->integers;
  if (out.lowers_to_tosa() && !out.integers.rounding) out.integers.rounding = rounding_of(out.target);
  if (device->preserves_composites && out.limits) out.preserved = composites_of(*out.limits);
  out.layout = needs_of(device->orders);
  out.connected = device->connected;
  out.least_size = device->least_size;
  return out;
}

Claimant claimant(std::string_view name, std::span<const std::shared_ptr<const Device>> devices) {
  const std::string wanted = lower_case(name);
  for (const std::shared_ptr<const Device>& device : devices)
    for (const Device::Member& member : device->members)
      if (member.name == wanted) return claimant_of(device, wanted);
  if (wanted.starts_with("tosa")) {
    const std::shared_ptr<const Device> found = device_of_target(name);
    return claimant_of(found, found->name);
  }
  refuse(name, claimant_names(devices), "a TOSA target such as 'TOSA-1.0+INT', or one of ");
}

std::vector<std::string> claimant_names(std::span<const std::shared_ptr<const Device>> devices) {
  std::vector<std::string> out;
  for (const std::shared_ptr<const Device>& device : devices)
    for (const Device::Member& member : device->members) out.push_back(member.name);
  return out;
}

}  // namespace tosaic::claimant
