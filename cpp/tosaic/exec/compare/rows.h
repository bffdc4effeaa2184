// rows: writes what a comparison reports about each FX node.
#pragma once

#include <map>

#include "tosaic/exec/compare/replay.h"

namespace tosaic::exec {

// Collects the rows of a comparison, and the references without a counterpart in b.
class RowWriter {
 public:
  // `a` is null if there is no graph of a.
  RowWriter(const Graph* a, const FxNodes& fx, const Matcher& matcher, double threshold_db);

  // Adds a row that compares the reference with its counterpart in b, which replay() found. If replay() found
  // none, the counterpart is the last value of b that fits (Matcher::candidates), in the alignment that
  // Matcher::nearest chooses. If no value fits, no row is added and the reference is reported as unmatched.
  void add(const Reference& reference, const std::map<FxResult, ReplayedResult>& replayed);
  // Reports an FX node that is not compared.
  void add_unmatched(FxId fx, const std::string& reason);
  [[nodiscard]] Comparison finish() && { return std::move(out_); }

 private:
  void add_row(const Reference& reference, const ReplayedResult& found);

  const Graph* a_;
  const FxNodes& fx_;
  const Matcher& matcher_;
  Comparison out_;
};

}  // namespace tosaic::exec
