// Bindings of partition/compat.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "tosaic/partition/compat.h"

namespace tosaic::python {
namespace {

using Counts = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using Flags = py::array_t<bool, py::array::c_style | py::array::forcecast>;

std::vector<bool> flags_from(const Flags& flags) {
  return std::vector<bool>(flags.data(), flags.data() + flags.size());
}

std::vector<std::uint32_t> numbers_from(const Counts& counts, const char* what) {
  std::vector<std::uint32_t> out;
  out.reserve(static_cast<std::size_t>(counts.size()));
  for (const std::int64_t* each = counts.data(); each != counts.data() + counts.size(); ++each) {
    if (*each < 0 || *each > UINT32_MAX)
      throw InvalidGraph({.where = "partition",
                          .what = std::string(what) + " is out of range",
                          .expected = "0 to " + std::to_string(UINT32_MAX),
                          .got = std::to_string(*each)});
    out.push_back(static_cast<std::uint32_t>(*each));
  }
  return out;
}

std::vector<std::pair<std::uint32_t, std::vector<std::uint32_t>>> compat_partitions(
    const Counts& user_counts, const Counts& users, const Flags& supported, const Flags& getitem,
    const std::optional<Counts>& compute, bool skip_horizontal_fusion) {
  partition::CompatInput input{.dag = {},
                               .supported = flags_from(supported),
                               .getitem = flags_from(getitem),
                               .compute = {},
                               .user_order = numbers_from(users, "a user"),
                               .skip_horizontal_fusion = skip_horizontal_fusion};
  if (compute) input.compute = numbers_from(*compute, "a count of compute nodes");
  const std::vector<std::uint32_t> counts = numbers_from(user_counts, "a number of users");
  if (const std::uint64_t sum = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
      sum != input.user_order.size())
    throw InvalidGraph({.where = "partition",
                        .what = "the numbers of users do not sum to the number of users",
                        .expected = std::to_string(input.user_order.size()),
                        .got = std::to_string(sum)});
  std::vector<partition::Edge> edges;
  std::size_t next = 0;
  for (std::uint32_t node = 0; node < counts.size(); ++node) {
    for (const std::size_t end = next + counts[node]; next < end; ++next)
      edges.push_back({.from = node, .to = input.user_order[next]});
  }
  input.dag = partition::Dag(static_cast<std::uint32_t>(counts.size()), std::move(edges));
  std::vector<std::pair<std::uint32_t, std::vector<std::uint32_t>>> out;
  {
    const py::gil_scoped_release release;
    for (partition::CompatPartition& each : partition::compat_partitions(input))
      out.emplace_back(each.id, std::move(each.nodes));
  }
  return out;
}

}  // namespace

void bind_partition(py::module_& m) {
  m.def("compat_partitions", &compat_partitions, py::kw_only(), py::arg("user_counts"), py::arg("users"),
        py::arg("supported"), py::arg("getitem"), py::arg("compute") = py::none(),
        py::arg("skip_horizontal_fusion") = false,
        "The partitions that torch.fx's CapabilityBasedPartitioner proposes: their ids and nodes.");
}

}  // namespace tosaic::python
