// Bindings of memory plans that are made outside of sessions.
#include <pybind11/stl.h>

#include "bind.h"
#include "tosaic/exec/node.h"
#include "tosaic/memory/place.h"
#include "tosaic/memory/plan.h"
#include "views.h"

namespace tosaic::python {
namespace {

// (bytes, alignment, first step, last step, alias, target or -1, offset in the target)
using BufferFields = std::tuple<std::size_t, std::size_t, std::uint32_t, std::uint32_t, std::string,
                                std::int64_t, std::size_t>;

memory::AliasKind alias_from(const std::string& text) {
  for (const memory::AliasKind kind :
       {memory::AliasKind::kNone, memory::AliasKind::kView, memory::AliasKind::kInPlace})
    if (text == memory::to_string(kind)) return kind;
  throw InvalidGraph({.where = "place_shared",
                      .what = "unknown kind of sharing",
                      .expected = "none, view or in_place",
                      .got = text});
}

py::tuple place_shared(const std::vector<BufferFields>& buffers) {
  std::vector<memory::Buffer> made;
  for (const auto& [bytes, alignment, first, last, alias, target, target_offset] : buffers)
    made.push_back({.bytes = bytes,
                    .alignment = alignment,
                    .first = first,
                    .last = last,
                    .alias = alias_from(alias),
                    .target = target < 0 ? memory::kNoTarget : static_cast<std::uint32_t>(target),
                    .target_offset = target_offset});
  const memory::Placement placement = memory::place(made);
  return py::make_tuple(placement.offsets, placement.bytes, memory::live_bytes(made));
}

py::tuple place_buffers(const std::vector<std::tuple<std::size_t, std::uint32_t, std::uint32_t>>& buffers,
                        std::size_t alignment) {
  std::vector<memory::Buffer> made;
  for (const auto& [bytes, first, last] : buffers)
    made.push_back({.bytes = bytes, .alignment = alignment, .first = first, .last = last});
  const memory::Placement placement = memory::place(made);
  return py::make_tuple(placement.offsets, placement.bytes, placement.lower_bound);
}

}  // namespace

void bind_memory(py::module_& m) {
  m.def("place_buffers", &place_buffers, py::arg("buffers"), py::kw_only(), py::arg("alignment"),
        "Offsets in one arena for buffers (bytes, first step, last step): (offsets, size, lower bound).");
  m.def("place_shared", &place_shared, py::arg("buffers"),
        "Offsets in one arena for buffers (bytes, alignment, first step, last step, alias, target or -1, "
        "offset "
        "in the target): (offsets, size, live bytes per step).");
  m.def(
      "in_place_operands",
      [](const NodeView& node) { return exec::in_place_operands(*node.graph, node.node()); }, py::arg("node"),
      "Bit i: the first result may be computed in the memory of operand i, if both have the same size.");
  m.def(
      "view_offsets",
      [](const NodeView& node, std::size_t alignment) {
        return memory::view_offsets(*node.graph, node.node(), alignment);
      },
      py::arg("node"), py::kw_only(), py::arg("alignment"),
      "The byte offset of each result in operand 0 if the results are views of it, else None.");
}

}  // namespace tosaic::python
