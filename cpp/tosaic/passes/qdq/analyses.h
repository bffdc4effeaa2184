// analyses: FloatRanges and Relevance (ranges.h) of a graph, each computed when it is first asked for.
#pragma once

#include <optional>

#include "tosaic/analysis/ranges/ranges.h"

namespace tosaic::passes {

// The graph must outlive this object.
class Analyses {
 public:
  explicit Analyses(const Graph& graph) : graph_(graph) {}
  Analyses(const Analyses&) = delete;  // relevance_ refers to ranges_
  Analyses& operator=(const Analyses&) = delete;

  [[nodiscard]] const analysis::FloatRanges& ranges() {
    if (!ranges_) ranges_.emplace(graph_);
    return *ranges_;
  }
  [[nodiscard]] const analysis::Relevance& relevance() {
    if (!relevance_) relevance_.emplace(graph_, ranges());
    return *relevance_;
  }

 private:
  const Graph& graph_;
  std::optional<analysis::FloatRanges> ranges_;
  std::optional<analysis::Relevance> relevance_;
};

}  // namespace tosaic::passes
