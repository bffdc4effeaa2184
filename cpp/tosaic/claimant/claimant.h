// claimant: who takes nodes of a program, as data.
//
//   TOSA, Ethos-U, VGF    The claimant's groups are lowered to its TOSA target. It takes a node that can be
//                         lowered alone, if all operators of TOSA that the node becomes are within the limits
//                         of the device.
//   Cortex-M, Neutron,    The claimant takes a node if the canonical operator is within the limits of the
//                         device.
//   grid sampler
//   host                  The claimant takes every node.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tosaic/claimant/cortex_m_scratch.h"
#include "tosaic/claimant/limits.h"
#include "tosaic/target/integer_semantics.h"

namespace tosaic::target {
struct LayoutNeeds;
}

namespace tosaic::claimant {

struct Claimant {
  std::string name;    // "ethos-u55-128"
  std::string target;  // the TOSA target for which groups are lowered; empty if they are not lowered to TOSA
  // The TOSA target in which the claimant's arithmetic is written, with `integers`. It is `target`, if there
  // is one. Groups of other claimants are lowered to it, too: not for the device, but to compute its
  // integers. Empty: no arithmetic of its own.
  std::string arithmetic;
  // The limits of the device. They are about operators of TOSA if there is a target, and about canonical
  // operators if not. Null: no limits.
  std::shared_ptr<const Limits> limits;
  target::IntegerSemantics integers = {};
  // The kernels of CMSIS-NN that compute nodes. Other claimants have none.
  std::optional<CortexMKernels> kernels = {};
  bool connected = true;                        // a group may not have parts that are not connected
  std::uint32_t least_size = 1;                 // of a group, in nodes
  std::vector<Op> preserved = {};               // composite operators that have to reach the claimant whole
  const target::LayoutNeeds* layout = nullptr;  // null: operators take any dim order

  [[nodiscard]] bool lowers_to_tosa() const { return !target.empty(); }
};

// The claimant of a name: "host", "vgf", "neutron", "grid-sampler", "ethos-u55-128", "cortex-m55", or a TOSA
// target. Throws InvalidGraph, which lists the known names, for another name.
[[nodiscard]] Claimant claimant(std::string_view name);
// The needs under which one layout plan serves all of these claimants.
[[nodiscard]] const target::LayoutNeeds& joint_layout_needs(std::span<const Claimant> claimants);
// The names, other than TOSA's targets.
[[nodiscard]] std::vector<std::string> claimant_names();

}  // namespace tosaic::claimant
