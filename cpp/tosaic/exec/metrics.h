// metrics: measures how far one array is from another. Sums are computed in double.
#pragma once

#include <optional>

#include "tosaic/exec/array.h"
#include "tosaic/report/compare.h"

namespace tosaic::exec {

struct MetricsOptions {
  std::optional<double> unit;  // the unit of max_ulp and p99_ulp, e.g. the scale of quantized values
};

// The arrays may have any dtypes and strides. Throws LayoutMismatch if their shapes differ.
[[nodiscard]] report::Metrics compute_metrics(const ArrayView& reference, const ArrayView& value,
                                              const MetricsOptions& options = {});

}  // namespace tosaic::exec
