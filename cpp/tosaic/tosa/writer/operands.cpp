#include "tosaic/tosa/writer/operands.h"

#include "tosaic/ir/attributes.h"
#include "tosaic/tosa/constant_operands.h"

namespace tosaic::tosa {
namespace {

std::int64_t lowest(DType dtype) {
  const std::size_t bits = dtype == DType::kI4 ? 4 : dtype == DType::kI48 ? 48 : byte_size(dtype) * 8;
  return -(std::int64_t{1} << (bits - 1));
}

// Adds constant operands. visit_constant_operands calls its functions in the order of the operands.
class ConstantOperandWriter {
 public:
  ConstantOperandWriter(const Graph& graph, const Node& node, TensorList& tensors,
                        std::vector<std::uint32_t>& operands)
      : graph_(graph), node_(node), tensors_(tensors), operands_(operands) {}

  // An unsigned zero point is written with its bits, as the signed dtype.
  void zero_point(const char* name, DType dtype, std::int64_t value, bool is_unsigned) {
    const std::int64_t low = is_unsigned ? 0 : lowest(dtype);
    const std::int64_t high = is_unsigned ? -2 * lowest(dtype) - 1 : -(lowest(dtype) + 1);
    if (is_float(dtype) ? value != 0 : value < low || value > high)
      fail(std::string(name) + " does not fit its dtype", std::string(to_string(dtype)),
           std::to_string(value));
    const bool wraps = is_unsigned && value > -(lowest(dtype) + 1);
    append("zp", dtype, static_cast<double>(wraps ? value + 2 * lowest(dtype) : value));
  }
  void weight_zero_point(const char* name, DType dtype, std::int64_t value) {
    zero_point(name, dtype, value, false);
  }
  void elements(const char* name, DType dtype, const std::vector<std::int64_t>& values) {
    std::vector<double> numbers;
    for (const std::int64_t value : values) {
      if (value < lowest(dtype) || value > -(lowest(dtype) + 1))
        fail(std::string(name) + " does not fit its dtype", std::string(to_string(dtype)),
             std::to_string(value));
      numbers.push_back(static_cast<double>(value));
    }
    operands_.push_back(
        tensors_.of_elements(dtype, numbers, std::string(name) + "_" + std::string(to_string(dtype))));
  }
  void element(const char* /*name*/, DType dtype, const Scalar& value) {
    append("value", dtype, as_double(value));
  }
  void shift(const char* name, std::int64_t value) {
    if (value < 0 || value > 63)
      fail(std::string(name) + " is out of range", "0 to 63", std::to_string(value));
    append("shift", DType::kI8, static_cast<double>(value));
  }
  void dims(const char* /*name*/, const Dims& value) {
    operands_.push_back(tensors_.of_extents({value.begin(), value.end()}));
  }
  void padding(const char* /*name*/, const Dims& before, const Dims& after) {
    if (before.size() != after.size())
      fail("padding differs in rank", std::to_string(before.size()), std::to_string(after.size()));
    std::vector<std::int64_t> both;
    for (std::size_t i = 0; i < before.size(); ++i) both.insert(both.end(), {before[i], after[i]});
    operands_.push_back(tensors_.of_extents(both));
  }

 private:
  [[noreturn]] void fail(std::string what, std::string expected, std::string got) const {
    fail_at(graph_, node_, std::move(what), std::move(expected), std::move(got));
  }

  // Appends a tensor of one element. Its name is like "zp_i8_3" or, for floats, "value_f32".
  void append(const std::string& role, DType dtype, double value) {
    const std::string text = is_float(dtype) ? "" : "_" + std::to_string(static_cast<std::int64_t>(value));
    operands_.push_back(
        tensors_.of_elements(dtype, std::span(&value, 1), role + "_" + std::string(to_string(dtype)) + text));
  }

  const Graph& graph_;
  const Node& node_;
  TensorList& tensors_;
  std::vector<std::uint32_t>& operands_;
};

}  // namespace

void fail_at(const Graph& graph, const Node& node, std::string what, std::string expected, std::string got) {
  throw InvalidGraph(located(
      {.where = "tosa", .what = std::move(what), .expected = std::move(expected), .got = std::move(got)},
      node.origin, graph.node_name(node)));
}

void append_constant_operands(const Graph& graph, const Node& node, std::span<const DType> dtypes,
                              TensorList& tensors, std::vector<std::uint32_t>& operands) {
  ConstantOperandWriter writer(graph, node, tensors, operands);
  visit([&](const auto& attrs) { visit_constant_operands(attrs, dtypes, writer); }, *node.attrs);
}

}  // namespace tosaic::tosa
