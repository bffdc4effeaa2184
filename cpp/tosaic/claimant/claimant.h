// claimant: what may take nodes of a program (a device, a TOSA target or the host), as data.
//
//   a device with a target      The claimant's groups are lowered to its TOSA target. It takes a node that
//                               can be lowered alone, if all operators of TOSA that the node becomes are
//                               within the limits of the device.
//   a device without a target   The claimant takes a node if the canonical operator is within the limits of
//                               the device.
//   a device without limits     The claimant takes every node that lowers; the host, which has no target,
//                               takes every node.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tosaic/claimant/cmsis_nn_scratch.h"
#include "tosaic/claimant/device.h"
#include "tosaic/claimant/limits.h"
#include "tosaic/target/integer_semantics.h"

namespace tosaic::target {
struct LayoutNeeds;
}

namespace tosaic::claimant {

struct Claimant {
  std::string name;    // of a member of a device, or a TOSA target
  std::string target;  // the TOSA target for which groups are lowered; empty if they are not lowered to TOSA
  // The TOSA target in which the claimant's arithmetic is written, with `integers`. It is `target`, if there
  // is one. Otherwise groups are lowered to it only to compute the integers of the device. Empty: no
  // arithmetic of its own.
  std::string arithmetic;
  // The limits of the device. They are about operators of TOSA if there is a target, and about canonical
  // operators if not. Null: no limits.
  std::shared_ptr<const Limits> limits;
  target::IntegerSemantics integers = {};
  // The kernels of CMSIS-NN that compute nodes. Other claimants have none.
  std::optional<CmsisNnKernels> kernels = {};
  bool connected = true;                        // a group may not have parts that are not connected
  std::uint32_t least_size = 1;                 // of a group, in nodes
  std::vector<Op> preserved = {};               // composite operators that must not be expanded
  const target::LayoutNeeds* layout = nullptr;  // null: operators take any dim order

  [[nodiscard]] bool lowers_to_tosa() const { return !target.empty(); }
};

// The claimant of a member of a device. Throws InvalidGraph if the device has no such member, or a target
// that does not exist.
[[nodiscard]] Claimant claimant_of(const std::shared_ptr<const Device>& device, std::string_view member);
// The claimant of a name: a member of a device, or a TOSA target, which is a device without limits. Throws
// InvalidGraph, which lists the known names, for another name. Upper and lower case are the same.
[[nodiscard]] Claimant claimant(std::string_view name,
                                std::span<const std::shared_ptr<const Device>> devices = built_in_devices());
// The needs with which one layout plan is valid for all of these claimants.
[[nodiscard]] const target::LayoutNeeds& joint_layout_needs(std::span<const Claimant> claimants);
// The names of all members of devices.
[[nodiscard]] std::vector<std::string> claimant_names(
    std::span<const std::shared_ptr<const Device>> devices = built_in_devices());

}  // namespace tosaic::claimant
