// claimant: who takes nodes of a program, as data.
//
//   TOSA, Ethos-U, VGF    a group is lowered to the claimant's TOSA target. A node is taken if it lowers by itself,
//                         and if the operators of TOSA that it becomes are within the limits of the device.
//   Cortex-M, Neutron     a node is taken if its canonical operator is within the limits.
//   host                  takes everything
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tosaic/claimant/limits.h"

namespace tosaic::target {
struct LayoutNeeds;
}

namespace tosaic::claimant {

// How the average of n integers is rounded.
enum class AveragePool : std::uint8_t {
  kMultiply,  // as TOSA's AVG_POOL2D: the sum times a rounded reciprocal of n
  kDivide,    // the sum divided by n, rounded half away from zero
};

// How softmax is computed with integers.
enum class Softmax : std::uint8_t {
  kExpansion,   // as tosaic expands it: a table of exponentials, a sum, a reciprocal
  kFixedPoint,  // exponential and reciprocal in fixed point, as in CMSIS-NN and TensorFlow Lite
};

[[nodiscard]] std::string_view to_string(AveragePool pool);
[[nodiscard]] std::string_view to_string(Softmax softmax);

struct IntegerSemantics {
  RoundingMode rounding = RoundingMode::kSingleRound;
  AveragePool average_pool = AveragePool::kMultiply;
  Softmax softmax = Softmax::kExpansion;
};

struct Claimant {
  std::string name;    // "ethos-u55-128"
  std::string target;  // the TOSA target for which groups are lowered; empty if they are not lowered to TOSA
  // The limits of the device. They are about operators of TOSA if there is a target, and about canonical operators
  // if not. Null: no limits.
  std::shared_ptr<const Limits> limits;
  IntegerSemantics integers = {};
  bool connected = true;                        // a group may not have parts that are not connected
  std::uint32_t least_size = 1;                 // of a group, in nodes
  std::vector<Op> preserved = {};               // composite operators that have to reach the claimant whole
  const target::LayoutNeeds* layout = nullptr;  // null: operators take any dim order

  [[nodiscard]] bool lowers_to_tosa() const { return !target.empty(); }
};

// The claimant of a name: "host", "vgf", "neutron", "ethos-u55-128", "cortex-m55", or a TOSA target. Throws InvalidGraph,
// which lists the known names, for another name.
[[nodiscard]] Claimant claimant(std::string_view name);
// The names besides TOSA's targets.
[[nodiscard]] std::vector<std::string> claimant_names();

}  // namespace tosaic::claimant
