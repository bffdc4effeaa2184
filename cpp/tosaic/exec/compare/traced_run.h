// traced_run: a run that records every value.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tosaic/exec/session.h"

namespace tosaic::exec {

struct TracedRun {
  TracedRun(const std::shared_ptr<const Graph>& graph, std::span<const ArrayView> inputs,
            const PrepareOptions& options);
  Session session;
  RunResult result;
};

// The values of one run by value id, dense and in the graph's axes. Values that are not known have no data.
// Unsigned integers have an unsigned dtype, although RESCALE stores them as the same bits in the signed one.
class RunValues {
 public:
  RunValues(const Graph& graph, const std::vector<TracedValue>& trace);
  [[nodiscard]] const ArrayView& operator[](ValueId value) const { return views_[value.index()]; }
  [[nodiscard]] const Graph& graph() const { return graph_; }

 private:
  const Graph& graph_;
  std::vector<ArrayView> views_;
};

}  // namespace tosaic::exec
