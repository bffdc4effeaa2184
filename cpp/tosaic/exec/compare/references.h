// references: the arrays that values of b are compared with, each a result of an FX node.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "tosaic/exec/compare/compare.h"
#include "tosaic/exec/compare/fx_nodes.h"
#include "tosaic/exec/compare/traced_run.h"

namespace tosaic::exec {

struct Reference {
  FxResult of;
  ArrayView array;
  QParamsRef qparams;
  bool rounded = false;                // the integers of a quantize node, with these parameters
  bool several = false;                // the FX node has more results
  std::optional<DimOrder> order = {};  // at stage tosa: canonical_order of a's value, if a knows it
};

// FX nodes that have several values of equal type in the graph which other FX nodes or outputs read, such as
// the two parts of a complex number, or several forms of the result: rounded for one reader, and as floats
// for another one. Then it is not known which value of b corresponds to which value of a.
[[nodiscard]] std::set<FxId> with_several_values(const Graph& graph, const NodesOfFx& nodes,
                                                 const FxNodes& fx);
// The last value of each FX node in a's run, except for the FX nodes `left_out`, in the order of a's nodes.
[[nodiscard]] std::vector<Reference> final_values(const RunValues& a, const NodesOfFx& nodes,
                                                  const std::set<FxId>& left_out);
// References from arrays that were computed elsewhere. Their FX nodes are added to `fx`.
[[nodiscard]] std::vector<Reference> given_values(std::span<const NamedArray> arrays, FxNodes& fx);
// Sets `several` of the references whose FX nodes have several results.
void mark_several(std::vector<Reference>& references);
// Adds the qparams of the quantize nodes of a's graph to the integers that they have computed.
void add_qparams(std::vector<Reference>& references, const NodesOfFx& nodes);

}  // namespace tosaic::exec
