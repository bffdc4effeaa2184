// replay: runs a's nodes on b's values. This distinguishes the errors that a node of b makes from the errors
// of its operands.
//
//   a     x -> conv -> relu -> linear
//   b     x -> conv+relu -> r -> linear -> y
//
//   relu     compares a's conv and relu, run on x, with r
//   linear   compares a's linear, run on r, with y
//
// Among the values of b that may be the counterpart of a's result, the first that is right is chosen. Later
// nodes of a run on that value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tosaic/exec/compare/matching.h"
#include "tosaic/exec/local_error.h"

namespace tosaic::exec {

// How the qparams of a value of b, the program that is compared, differ from the qparams of the reference a.
enum class Quantization : std::uint8_t {
  kSame,   // they are equal, or one side has none
  kNear,   // they differ as after two calibrations
  kOther,  // they differ by more
};

// What a result of a was compared with.
struct ReplayedResult {
  Match match;
  const Node* node = nullptr;               // the node of a that computes the result
  std::optional<Metrics> local, inherited;  // absent if not known or not wanted
  std::optional<double> share;              // as CompareRow::local_share
  Quantization quantization = Quantization::kSame;
  // b has no value for the result: a later node of b rounds it (Matcher::may_be_rounded_later).
  bool rounded_later = false;
};

// Sets a's inputs to the values that a's run used.
void set_inputs(LocalReference& local, const Graph& graph, const Session& session,
                std::span<const ArrayView> inputs);
// The error of the graph's rescales in addition to one rounding to nearest, in units.
[[nodiscard]] double rescale_error(const Graph& graph);

// The errors that a comparison finds, and what it does with them.
enum class Errors : std::uint8_t {
  kTotal,     // total errors only
  kMeasured,  // local and inherited errors, too
  kJudged,    // these are also compared with their bounds
};

// Runs a's nodes in order. `local` has a's inputs. Total errors are measured against `references`; only
// results of a that are among them are compared.
[[nodiscard]] std::map<FxResult, ReplayedResult> replay(const RunValues& a, const NodesOfFx& nodes_a,
                                                        const Matcher& matcher,
                                                        const std::vector<Reference>& references,
                                                        Errors errors, LocalReference& local);
// True if b has values with other qparams than a.
[[nodiscard]] bool is_quantized_otherwise(const std::map<FxResult, ReplayedResult>& replayed);
// Removes the shares: if b is quantized otherwise, its integers differ from a's, and no bound follows from a.
// Values whose qparams differ by more than after two calibrations get an infinite share: they are wrong.
void drop_bounds(std::map<FxResult, ReplayedResult>& replayed);

}  // namespace tosaic::exec
