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
// Unsigned integers have an unsigned dtype, although RESCALE stores the same bits in the signed dtype.
//
// The values have the qparams of the graph. If `canonical` is not null, it is the graph at stage integer that
// the graph was legalized from. A value without qparams then has the qparams of the canonical value of its
// name. Data movement passes qparams on: the slices of a quantized value represent numbers, too.
class RunValues {
 public:
  RunValues(const Graph& graph, const std::vector<TracedValue>& trace, const Graph* canonical = nullptr);
  [[nodiscard]] const ArrayView& operator[](ValueId value) const { return views_[value.index()]; }
  // The qparams of the value's integers, their axis counted in the graph's axes. Null if they are not known.
  [[nodiscard]] const QParamsRef& qparams(ValueId value) const { return qparams_[value.index()]; }
  [[nodiscard]] const Graph& graph() const { return graph_; }

 private:
  const Graph& graph_;
  std::vector<ArrayView> views_;
  std::vector<QParamsRef> qparams_;
};

}  // namespace tosaic::exec
