// compare_programs: compares runs of graphs at any stage, by their executable forms.
#pragma once

#include <memory>
#include <span>

#include "tosaic/exec/compare/compare.h"
#include "tosaic/ir/graph.h"

namespace tosaic::pipeline {

// exec::compare_runs() of the executable forms of both graphs. In a, quantize and dequantize run as single
// operators, so that the error before each rounding is known; in b they do, too, if b is at stage quantized.
[[nodiscard]] exec::ComparedRuns compare_programs(const std::shared_ptr<const Graph>& a,
                                                  const std::shared_ptr<const Graph>& b,
                                                  std::span<const exec::ArrayView> inputs_a,
                                                  std::span<const exec::ArrayView> inputs_b,
                                                  exec::CompareOptions options,
                                                  std::span<const exec::NamedArray> reference = {});

// exec::compare_traces() with the executable form of b.
[[nodiscard]] exec::Comparison compare_traces(std::span<const exec::NamedArray> reference,
                                              const std::shared_ptr<const Graph>& b,
                                              std::span<const exec::ArrayView> inputs_b,
                                              const exec::CompareOptions& options);

}  // namespace tosaic::pipeline
