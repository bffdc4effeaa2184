#include "tosaic/exec/override.h"

#include <exception>

#include "tosaic/base/error_text.h"
#include "tosaic/base/rethrow.h"
#include "tosaic/exec/steps.h"

namespace tosaic::exec {
namespace {

[[noreturn]] void refuse(const NodeCall& call, const std::exception& error) {
  const ErrorParts parts{.where = "run",
                         .what = "the function that computes this node threw an exception",
                         .got = quoted(error.what())};
  throw InvalidGraph(located(parts, call.node.origin, call.name));
}

}  // namespace

void call_override(const NodeFunction& function, const NodeCall& call) {
  with_node_location(call.node, call.name, [&] {
    with_exceptions_refused([&] { function(call); },
                            [&](const std::exception& error) { refuse(call, error); });
  });
}

std::string foreign_arguments(const Node& node) {
  if (node.op == Op::kOpaque) return Graph::attrs<OpaqueAttrs>(node).arguments;
  if (node.op == Op::kTosaCustom) return Graph::attrs<TosaCustomAttrs>(node).implementation_attrs;
  return {};
}

void store_results(const NodeCall& call, std::span<const ArrayView> returned) {
  if (returned.size() != call.results.size())
    throw InvalidGraph(
        {.where = "override",
         .what = "the function that computes node '" + call.name + "' returned the wrong number of arrays",
         .expected = std::to_string(call.results.size()),
         .got = std::to_string(returned.size())});
  for (std::size_t i = 0; i < returned.size(); ++i) {
    const MutableArrayView& result = call.results[i];
    const ArrayView view = as_declared(returned[i], result.dtype);
    if (view.shape != result.shape || container(result.dtype) != container(view.dtype))
      throw LayoutMismatch(
          {.where = "override",
           .what = "the function that computes node '" + call.name + "' returned the wrong array",
           .expected = std::string(to_string(result.dtype)) + to_string(result.shape),
           .got = std::string(to_string(view.dtype)) + to_string(view.shape)});
    copy(view, result);
  }
}

}  // namespace tosaic::exec
