// own_constants: makes a graph independent of memory that somebody else owns.
//
//   %w = view of torch's memory  ->  %w = copy of it, with the same name and kind
//
// Constants that are views (Storage::is_view) are copied, in regions too. All other constants are shared with
// the source graph. A graph without views is returned unchanged.
//
// The copies take time in proportion to the weights, and a later pass copies most weights once more, into
// another layout. A lowering therefore defers the copies to its end, where compute_constants() makes them.
#pragma once

#include <memory>
#include <span>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/places.h"

namespace tosaic {

class Team;

// Throws InvalidGraph, naming the constant and a node that reads it, if the owner changed the memory since
// import or during the copy.
[[nodiscard]] std::shared_ptr<const Graph> own_constants(const std::shared_ptr<const Graph>& graph);

// As own_constants(), but does not copy yet: the constants are deferred storages (ir/recipe.h), which
// compute_constants() or their first reader copies.
[[nodiscard]] std::shared_ptr<const Graph> own_constants_later(const std::shared_ptr<const Graph>& graph);

// Computes the deferred constants of `graph` and of its regions, and writes each to its place if `places` has
// one. The threads of `team` share the work; if it is null, the calling thread does all. Then does the same,
// without places, for deferred constants of `others` that are still views. Most are not, since their sources
// are constants of `graph`. Does not check whether owners changed their memory: use verify_views() on the
// graph that was imported.
void compute_constants(const Graph& graph, std::span<const std::shared_ptr<const Graph>> others, Team* team,
                       const Places& places = {});

// Throws InvalidGraph, naming the constant and a node that reads it, if the owner of a view changed its
// memory since import.
void verify_views(const Graph& graph);

}  // namespace tosaic
