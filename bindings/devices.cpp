// Bindings of claimant/device.h: devices and claimants as data.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "tosaic/base/error_text.h"
#include "tosaic/base/near_names.h"
#include "tosaic/claimant/claimant.h"
#include "tosaic/claimant/device.h"

namespace tosaic::python {
namespace {

using claimant::Device;

constexpr const char* kOrders[] = {"any", "tosa", "preserving"};
constexpr const char* kKernels[] = {"plain", "dsp", "mve"};

template <class Names>
[[noreturn]] void refuse(const char* what, const Names& names, const std::string& got) {
  std::vector<std::string> all(std::begin(names), std::end(names));
  std::vector<KnownName> known;
  for (const std::string& each : all) known.push_back({each});
  throw InvalidGraph({.where = "device",
                      .what = "unknown " + std::string(what),
                      .expected = all.size() > 8 ? "the name of one" : "one of " + joined(all),
                      .got = quoted(got),
                      .hint = did_you_mean(got, known)});
}

// The position of a name in a list of names.
template <class Names>
std::size_t place_of(const char* what, const Names& names, const std::string& name) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) refuse(what, names, name);
  return static_cast<std::size_t>(found - std::begin(names));
}

std::vector<std::string_view> op_names(bool tosa) {
  std::vector<std::string_view> out;
  for (const OpInfo& row : all_ops())
    if (row.is_tosa == tosa) out.push_back(row.name);
  return out;
}

std::vector<Op> ops_from(py::handle names, bool tosa) {
  std::vector<Op> out;
  for (const auto& name : names.cast<std::vector<std::string>>()) {
    const std::optional<Op> op = parse_op(name);
    if (!op || info(*op).is_tosa != tosa)
      refuse(tosa ? "operator of TOSA" : "canonical operator", op_names(tosa), name);
    out.push_back(*op);
  }
  return out;
}

py::tuple to_names(const std::vector<Op>& ops) {
  py::tuple out(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) out[i] = std::string(info(ops[i]).name);
  return out;
}

claimant::DTypes dtypes_from(py::handle names) {
  claimant::DTypes out;
  for (const py::handle each : names) out.add(to_dtype(each));
  return out;
}

py::tuple to_names(const claimant::DTypes& dtypes) {
  py::list out;
  for (unsigned i = 0; !dtypes.any() && i <= static_cast<unsigned>(DType::kF64); ++i)
    if (const auto dtype = static_cast<DType>(i); dtypes.has(dtype))
      out.append(std::string(to_string(dtype)));
  return py::tuple(out);
}

// Rows as (operators, dtypes of operand 0, of the second operand, of results); an empty list: all dtypes.
claimant::OperatorRow operator_from(const py::tuple& row, bool tosa) {
  return {ops_from(row[0], tosa), dtypes_from(row[1]), dtypes_from(row[2]), dtypes_from(row[3])};
}

// Rows as (operators, quantity, least, most or None, condition, unit).
claimant::LimitRow limit_from(const py::tuple& row, bool tosa) {
  claimant::LimitRow out;
  out.ops = ops_from(row[0], tosa);
  out.quantity = static_cast<claimant::Quantity>(
      place_of("quantity", claimant::quantity_names(), row[1].cast<std::string>()));
  out.least = row[2].cast<std::int64_t>();
  out.most = row[3].is_none() ? claimant::kNoLimit : row[3].cast<std::int64_t>();
  out.when =
      static_cast<claimant::When>(place_of("condition", claimant::when_names(), row[4].cast<std::string>()));
  out.unit = row[5].cast<std::int64_t>();
  return out;
}

claimant::Limits limits_from(const py::iterable& operators, const py::iterable& limits, bool tosa) {
  claimant::Limits out;
  for (const py::handle row : operators) out.operators.push_back(operator_from(row.cast<py::tuple>(), tosa));
  for (const py::handle row : limits) out.limits.push_back(limit_from(row.cast<py::tuple>(), tosa));
  return out;
}

std::vector<Device::Member> members_from(const py::iterable& members) {
  std::vector<Device::Member> out;
  for (const py::handle each : members) {
    const auto row = each.cast<py::tuple>();
    Device::Member member{row[0].cast<std::string>(), {}};
    if (!row[1].is_none())
      member.kernels =
          static_cast<claimant::CmsisNnKernels>(place_of("kernels", kKernels, row[1].cast<std::string>()));
    out.push_back(std::move(member));
  }
  return out;
}

py::tuple to_rows(const std::vector<Device::Member>& members) {
  py::tuple out(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const py::object kernels =
        members[i].kernels ? py::object(py::str(kKernels[static_cast<std::size_t>(*members[i].kernels)]))
                           : py::object(py::none());
    out[i] = py::make_tuple(members[i].name, kernels);
  }
  return out;
}

py::tuple to_rows(const std::vector<claimant::OperatorRow>& rows) {
  py::tuple out(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    out[i] = py::make_tuple(to_names(rows[i].ops), to_names(rows[i].input), to_names(rows[i].second),
                            to_names(rows[i].result));
  return out;
}

py::tuple to_rows(const std::vector<claimant::LimitRow>& rows) {
  py::tuple out(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const claimant::LimitRow& row = rows[i];
    const py::object most =
        row.most == claimant::kNoLimit ? py::object(py::none()) : py::object(py::int_(row.most));
    out[i] = py::make_tuple(to_names(row.ops), std::string(claimant::name_of(row.quantity)), row.least, most,
                            std::string(claimant::name_of(row.when)), row.unit);
  }
  return out;
}

std::string_view semantics_of(const target::IntegerSemantics& integers) {
  return integers == target::cmsis_nn_semantics() ? "cmsis-nn" : "tosa";
}

py::dict fields_of(const Device& device) {
  const claimant::Limits none, &limits = device.limits ? *device.limits : none;
  return py::dict(
      py::arg("name") = device.name, py::arg("members") = to_rows(device.members),
      py::arg("target") = device.target, py::arg("arithmetic") = device.arithmetic,
      py::arg("has_limits") = device.limits.has_value(), py::arg("operators") = to_rows(limits.operators),
      py::arg("limits") = to_rows(limits.limits), py::arg("semantics") = semantics_of(device.integers),
      py::arg("orders") = kOrders[static_cast<std::size_t>(device.orders)],
      py::arg("preserves_composites") = device.preserves_composites, py::arg("connected") = device.connected,
      py::arg("least_size") = device.least_size);
}

py::dict fields_of(const claimant::Claimant& claimant) {
  const target::IntegerSemantics& integers = claimant.integers;
  const auto rounding = static_cast<std::size_t>(integers.rounding.value_or(RoundingMode::kSingleRound));
  return py::dict(
      py::arg("name") = claimant.name, py::arg("target") = claimant.target,
      py::arg("arithmetic") = claimant.arithmetic, py::arg("semantics") = semantics_of(integers),
      py::arg("rounding") = kEnumNames<RoundingMode>[rounding],
      py::arg("average_pool") = integers.average == target::AverageForm::kRawSum ? "divide" : "multiply",
      py::arg("softmax") =
          integers.softmax == target::SoftmaxForm::kFixedPoint5_26 ? "fixed_point" : "expansion",
      py::arg("connected") = claimant.connected, py::arg("least_size") = claimant.least_size,
      py::arg("preserved") = to_names(claimant.preserved));
}

std::shared_ptr<Device> make_device(std::string name, const py::iterable& members, std::string target,
                                    std::string arithmetic, const py::iterable& operators,
                                    const py::iterable& limits, const std::string& semantics,
                                    const std::string& orders, bool preserves_composites, bool connected,
                                    std::uint32_t least_size) {
  const bool tosa = !target.empty();
  auto out = std::make_shared<Device>(
      Device{.name = std::move(name),
             .members = members_from(members),
             .target = std::move(target),
             .arithmetic = std::move(arithmetic),
             .limits = limits_from(operators, limits, tosa),
             .integers = target::semantics_named(semantics),
             .orders = static_cast<claimant::Orders>(place_of("orders", kOrders, orders)),
             .preserves_composites = preserves_composites,
             .connected = connected,
             .least_size = least_size});
  for (const Device::Member& member : out->members) (void)claimant::claimant_of(out, member.name);
  return out;
}

}  // namespace

void bind_devices(py::module_& m) {
  py::class_<claimant::Claimant>(m, "Claimant", "Who takes nodes of a program.")
      .def_property_readonly(
          "fields", [](const claimant::Claimant& self) { return fields_of(self); },
          "The fields of tosaic.Claimant.");
  py::class_<Device, std::shared_ptr<Device>>(m, "Device", "A family of devices, as data.")
      .def(py::init(&make_device), py::kw_only(), py::arg("name"), py::arg("members"), py::arg("target") = "",
           py::arg("arithmetic") = "", py::arg("operators") = py::tuple(), py::arg("limits") = py::tuple(),
           py::arg("semantics") = "tosa", py::arg("orders") = "tosa", py::arg("preserves_composites") = false,
           py::arg("connected") = true, py::arg("least_size") = 1,
           "`members`: (name, form of CMSIS-NN's kernels or None). `operators`: (names, dtypes of operand 0, "
           "of the second operand, of results), without dtypes for all. `limits`: (names, quantity, least, "
           "most or None, condition, unit).")
      .def_property_readonly(
          "fields", [](const Device& self) { return fields_of(self); }, "The parameters, by name.")
      .def(
          "claimant",
          [](const std::shared_ptr<Device>& self, const std::string& member) {
            return claimant::claimant_of(self, member);
          },
          py::arg("member"), "The claimant of a member.");
  m.def(
      "devices",
      [] {
        std::vector<std::shared_ptr<Device>> out;
        for (const std::shared_ptr<const Device>& each : claimant::built_in_devices())
          out.push_back(std::const_pointer_cast<Device>(each));
        return out;
      },
      "The records of tosaic's devices.");
  m.def(
      "claimant",
      [](const std::string& name, const std::optional<std::vector<std::shared_ptr<Device>>>& devices) {
        if (!devices) return claimant::claimant(name);
        const std::vector<std::shared_ptr<const Device>> known(devices->begin(), devices->end());
        return claimant::claimant(name, known);
      },
      py::arg("name"), py::arg("devices") = py::none(),
      "The claimant of a member of `devices`, by default tosaic's devices, or of a TOSA target.");
  m.def(
      "limit_names", [] { return std::pair(claimant::quantity_names(), claimant::when_names()); },
      "The names of quantities, and of the conditions under which they are limited.");
}

}  // namespace tosaic::python
