// outputs: compares the outputs of two runs.
//
// If one output of a pair is float, or both have qparams, integers are dequantized before the comparison. b's
// output is brought into a's logical axes.
#pragma once

#include <span>
#include <vector>

#include "tosaic/exec/compare/compare.h"
#include "tosaic/exec/compare/traced_run.h"
#include "tosaic/exec/local_error.h"

namespace tosaic::exec {

// One of the two compared runs, and the values that it recorded.
struct ComparedSide {
  const TracedRun& run;
  const RunValues& values;
  std::span<const ArrayView> inputs;
};

// `local` has a's nodes after they have run on b's values; it is null if local errors are not wanted.
// `inputs_a` has the inputs of a's run.
[[nodiscard]] std::vector<ComparedOutput> compare_outputs(const ComparedSide& a, const ComparedSide& b,
                                                          const LocalReference* local,
                                                          const CompareOptions& options);

}  // namespace tosaic::exec
