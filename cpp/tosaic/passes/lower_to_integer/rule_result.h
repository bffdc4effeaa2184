// rule_result: the result of a rule, or the reason why it cannot lower a node.
//
//   rule -> RuleResult   a ScaledInteger, which the caller rounds to the qparams of the result
//                        the final value: integers in these qparams, bools or indices
//                        a Refusal: why the rule cannot lower this node
//
// Arithmetic below the rules (rescaling.h, operands) throws NoIntegerForm where a range or a scale rules the
// computation out, since each of its callers would only pass the refusal on. attempt() and value_or_nothing()
// are the only places that catch it; nothing above them sees an exception.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <variant>

#include "tosaic/base/error.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

// Why a node, or a part of its expansion, cannot be computed with integers.
struct Refusal {
  std::string reason;     // empty: the rule or the route is not for such nodes
  bool by_scale = false;  // RESCALE cannot express a scale: then no other route is tried
};

using RuleResult = std::variant<ScaledInteger, ValueId, Refusal>;

// The outcome of an attempt to lower a node: kLowered, or the reason why the attempt failed.
using Outcome = std::optional<Refusal>;
inline constexpr std::nullopt_t kLowered = std::nullopt;

// The reason of a rule that has no number for minus infinity (scaled_integer.h).
inline constexpr const char* kNoInfinity = "its operand may be minus infinity";

class NoIntegerForm : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Calls `compute`, whose result can be a Refusal: a RuleResult, an Outcome or an optional RuleResult. If
// `compute` throws NoIntegerForm, or QuantMismatch for a scale, the result is the Refusal.
template <class Compute>
[[nodiscard]] auto attempt(Compute&& compute) -> decltype(compute()) {
  try {
    return compute();
  } catch (const NoIntegerForm& why) {
    return Refusal{why.what()};
  } catch (const QuantMismatch& why) {
    return Refusal{why.parts().what, true};
  }
}

// Calls `compute`, which returns a std::optional. Returns nothing if it throws NoIntegerForm.
template <class Compute>
[[nodiscard]] auto value_or_nothing(Compute&& compute) -> decltype(compute()) {
  try {
    return compute();
  } catch (const NoIntegerForm&) {
    return std::nullopt;
  }
}

}  // namespace tosaic::passes
