// Bindings of cost/: estimates of a graph as plain data.
#include "tosaic/cost/estimate.h"

#include <pybind11/stl.h>

#include <string>

#include "bind.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

py::tuple to_indices(const cost::Row& row) {
  py::tuple out(row.fused.size() + 1);
  out[0] = row.node.index();
  for (std::size_t i = 0; i < row.fused.size(); ++i) out[i + 1] = row.fused[i].index();
  return out;
}

py::dict to_dict(const cost::Row& row) {
  return py::dict(py::arg("nodes") = to_indices(row), py::arg("device_op") = std::string(row.name),
                  py::arg("cycles") = row.cycles, py::arg("npu_cycles") = row.computing,
                  py::arg("near_cycles") = row.near, py::arg("far_cycles") = row.far,
                  py::arg("result_bytes") = row.bytes, py::arg("macs") = row.macs);
}

const char* place_of(const cost::Memory& memory) {
  constexpr const char* kPlaces[] = {"sram", "dram", "on_chip_flash", "off_chip_flash"};
  return kPlaces[static_cast<std::size_t>(memory.place)];
}

py::dict estimate(const SharedGraph& graph, const std::string& device, const std::string& system,
                  const std::string& mode) {
  const cost::Named chip = cost::named(device, system, mode);
  cost::Estimate found;
  {
    const py::gil_scoped_release release;
    found = cost::estimate(*graph, chip.machine, chip.system, chip.mode);
  }
  py::list rows;
  for (const cost::Row& row : found.rows) rows.append(to_dict(row));
  return py::dict(
      py::arg("rows") = rows, py::arg("system_config") = std::string(chip.system.name),
      py::arg("memory_mode") = std::string(chip.mode.name), py::arg("clock_hz") = chip.system.clock_hz,
      py::arg("far") = place_of(chip.system.far), py::arg("constants_near") = chip.mode.constants_near,
      py::arg("results_near") = chip.mode.results_near, py::arg("cache_bytes") = chip.mode.cache_bytes,
      py::arg("macs_per_cycle") = chip.machine.macs, py::arg("result_bytes") = found.result_bytes,
      py::arg("constant_bytes") = found.constant_bytes);
}

}  // namespace

void bind_cost(py::module_& m) {
  m.def("estimate_cost", &estimate, py::arg("graph").none(false), py::arg("device"),
        py::arg("system_config") = "", py::arg("memory_mode") = "",
        "What a graph at stage tosa costs on a device, by tosaic's own model.");
  m.def(
      "cost_devices",
      [] {
        std::vector<std::string> out;
        for (const cost::Machine& each : cost::machines()) out.emplace_back(each.name);
        return out;
      },
      "The devices of tosaic's own cost model.");
}

}  // namespace tosaic::python
