#include "tosaic/pipeline/compare_programs.h"

#include <utility>

#include "tosaic/exec/local_error.h"
#include "tosaic/pipeline/executable.h"

namespace tosaic::pipeline {

exec::ComparedRuns compare_programs(const std::shared_ptr<const Graph>& a,
                                    const std::shared_ptr<const Graph>& b,
                                    std::span<const exec::ArrayView> inputs_a,
                                    std::span<const exec::ArrayView> inputs_b, exec::CompareOptions options,
                                    std::span<const exec::NamedArray> reference) {
  options.a.overrides = exec::with_quantizers(std::move(options.a.overrides));
  if (b->stage == Stage::kQuantized)
    options.b.overrides = exec::with_quantizers(std::move(options.b.overrides));
  return exec::compare_runs(executable(a, options.a.overrides), executable(b, options.b.overrides), inputs_a,
                            inputs_b, options, reference);
}

exec::Comparison compare_traces(std::span<const exec::NamedArray> reference,
                                const std::shared_ptr<const Graph>& b,
                                std::span<const exec::ArrayView> inputs_b,
                                const exec::CompareOptions& options) {
  return exec::compare_traces(reference, executable(b, options.b.overrides), inputs_b, options);
}

}  // namespace tosaic::pipeline
