// device: a family of devices, as data: what its operators are, and how it computes.
//
//   Device{.name = "mine",                                            the family
//          .members = {{"mine-64"}, {"mine-128"}},                    names of claimants
//          .target = "TOSA-1.0+INT",                                  groups are lowered to this
//          .limits = {.operators = {{{Op::kTosaConv2d}, {DType::kI8}}},
//                     .limits = {{{Op::kTosaConv2d}, Quantity::kStride, 1, 2}}}}
//
// Nothing else in the compiler knows a device by its name: claimant_of() makes a claimant of a record. The
// records of tosaic's devices are in devices/. An operator that a record does not list is not taken, so an
// operator that is new in TOSA is taken by no device until its record says so.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tosaic/claimant/cmsis_nn_scratch.h"
#include "tosaic/claimant/limits.h"
#include "tosaic/target/integer_semantics.h"

namespace tosaic::claimant {

// The dim orders in which a device wants its operands.
enum class Orders : std::uint8_t {
  kAny,
  kTosa,        // as operators of TOSA read them
  kPreserving,  // as kTosa; a composite along an axis wants this axis innermost
};

struct Device {
  // A device of the family. claimant_of() finds it by `name`.
  struct Member {
    std::string name;
    std::optional<CmsisNnKernels> kernels = {};  // those that compute nodes, if they are CMSIS-NN's
  };

  std::string name;             // the family
  std::vector<Member> members;  // at least one
  std::string target = {};      // the TOSA target for which groups are lowered; empty if they are not lowered
  // The TOSA target in which the device's arithmetic is written, with `integers`; that of `target` if empty.
  // Groups of a device without a target are lowered to it, too: not for the device, but to compute its
  // integers.
  std::string arithmetic = {};
  // About operators of TOSA if there is a target, and about canonical operators if not. Absent: no limits.
  std::optional<Limits> limits = {};
  // If it states no rounding, a device with a target rounds as the target says.
  target::IntegerSemantics integers = {};
  Orders orders = Orders::kTosa;
  bool preserves_composites = false;  // the composites that `limits` lists are not expanded
  bool connected = true;              // a group may not have parts that are not connected
  std::uint32_t least_size = 1;       // of a group, in nodes
};

// The records of tosaic's devices. They live as long as the process.
[[nodiscard]] std::span<const std::shared_ptr<const Device>> built_in_devices();

}  // namespace tosaic::claimant
