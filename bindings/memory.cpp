// Bindings of memory plans that are made outside of sessions.
#include <pybind11/stl.h>

#include "bind.h"
#include "tosaic/exec/node.h"
#include "tosaic/memory/check.h"
#include "tosaic/memory/place.h"
#include "tosaic/memory/plan.h"
#include "views.h"

namespace tosaic::python {
namespace {

// (bytes, alignment, first step, last step, alias, target or -1, offset in the target)
using BufferFields = std::tuple<std::size_t, std::size_t, std::uint32_t, std::uint32_t, std::string,
                                std::int64_t, std::size_t>;

memory::AliasKind alias_from(const std::string& text) {
  for (const memory::AliasKind kind : {memory::AliasKind::kNone, memory::AliasKind::kView,
                                       memory::AliasKind::kInPlace, memory::AliasKind::kPart})
    if (text == memory::to_string(kind)) return kind;
  throw InvalidGraph({.where = "place_shared",
                      .what = "unknown kind of sharing",
                      .expected = "none, view, in_place or part",
                      .got = text});
}

std::vector<memory::Buffer> buffers_from(const std::vector<BufferFields>& buffers) {
  std::vector<memory::Buffer> made;
  for (const auto& [bytes, alignment, first, last, alias, target, target_offset] : buffers)
    made.push_back({.bytes = bytes,
                    .alignment = alignment,
                    .first = first,
                    .last = last,
                    .alias = alias_from(alias),
                    .target = target < 0 ? memory::kNoTarget : static_cast<std::uint32_t>(target),
                    .target_offset = target_offset});
  return made;
}

memory::PlaceOptions options_from(std::size_t enough, std::size_t budget, std::optional<double> seconds) {
  memory::PlaceOptions options{.budget = budget, .enough = enough};
  if (seconds)
    options.deadline = std::chrono::steady_clock::now() +
                       std::chrono::microseconds(static_cast<std::int64_t>(*seconds * 1e6));
  return options;
}

py::tuple place_shared(const std::vector<BufferFields>& buffers, std::size_t enough, std::size_t budget,
                       std::optional<double> seconds) {
  const std::vector<memory::Buffer> made = buffers_from(buffers);
  const memory::Placement placement = memory::place(made, options_from(enough, budget, seconds));
  return py::make_tuple(placement.offsets, placement.bytes, placement.lower_bound, memory::live_bytes(made));
}

std::string placement_fault(const std::vector<BufferFields>& buffers, std::vector<std::size_t> offsets,
                            std::size_t bytes) {
  return memory::placement_fault(buffers_from(buffers), {std::move(offsets), bytes, 0});
}

py::tuple place_buffers(const std::vector<std::tuple<std::size_t, std::uint32_t, std::uint32_t>>& buffers,
                        std::size_t alignment, std::size_t budget, std::optional<double> seconds) {
  std::vector<memory::Buffer> made;
  for (const auto& [bytes, first, last] : buffers)
    made.push_back({.bytes = bytes, .alignment = alignment, .first = first, .last = last});
  const memory::Placement placement = memory::place(made, options_from(0, budget, seconds));
  return py::make_tuple(placement.offsets, placement.bytes, placement.lower_bound);
}

}  // namespace

void bind_memory(py::module_& m) {
  const std::size_t budget = memory::PlaceOptions{}.budget;
  m.attr("PLACE_BUDGET") = budget;
  m.def("place_buffers", &place_buffers, py::arg("buffers"), py::kw_only(), py::arg("alignment"),
        py::arg("budget") = budget, py::arg("seconds") = py::none(),
        "Offsets in one arena for buffers (bytes, first step, last step): (offsets, size, lower bound).");
  m.def("place_shared", &place_shared, py::arg("buffers"), py::kw_only(), py::arg("enough") = std::size_t{0},
        py::arg("budget") = budget, py::arg("seconds") = py::none(),
        "Offsets in one arena for buffers (bytes, alignment, first step, last step, alias, target or -1, "
        "offset in the target): (offsets, size, lower bound, live bytes per step). The search ends at an "
        "arena of `enough` bytes, after `budget` units of about a nanosecond, or after `seconds`.");
  m.def("placement_fault", &placement_fault, py::arg("buffers"), py::arg("offsets"), py::arg("size"),
        "The first fault of offsets in an arena, as the independent check finds it; empty if there is none.");
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
  m.def(
      "part_offsets",
      [](const NodeView& node,
         std::size_t alignment) -> std::optional<std::vector<std::optional<std::size_t>>> {
        const auto offsets = memory::part_offsets(*node.graph, node.node(), alignment);
        if (!offsets) return std::nullopt;
        std::vector<std::optional<std::size_t>> found;
        for (const std::size_t offset : *offsets)
          found.push_back(offset == memory::kNoPart ? std::nullopt : std::optional(offset));
        return found;
      },
      py::arg("node"), py::kw_only(), py::arg("alignment"),
      "The byte offset of each operand in the result if the node concatenates whole blocks, else None. The "
      "offset of an operand is None if it is empty or not aligned.");
}

}  // namespace tosaic::python
