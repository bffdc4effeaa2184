#include "tosaic/tosa/reader/definitions.h"

#include <limits>

#include "tosaic/tosa/constant_operands.h"
#include "tosaic/tosa/schema_map.h"

namespace tosaic::tosa {
namespace {

std::uint32_t code_of(const schema::TosaOperator& op) { return static_cast<std::uint32_t>(op.op()); }

void check_supported(const Place& place) {
  const std::uint32_t code = code_of(*place.op);
  const auto attribute = static_cast<std::uint32_t>(place.op->attribute_type());
  if (!is_constant(*place.op) && !op_from_code(code))
    fail<UnsupportedOp>(place, "this operator is not supported", "an operator of 'tosaic ops'",
                        op_code_name(code));
  if (attribute != 0 && attribute != code)
    fail<InvalidGraph>(place, "the attributes are of another operator", op_code_name(code),
                       op_code_name(attribute));
}

void check_operand_count(const Place& place) {
  const std::optional<Op> op = op_of(*place.op);
  if (op && !info(*op).has(kEffect)) {
    static_cast<void>(node_operands(place, *op, default_attrs(*op)));
    return;
  }
  const std::size_t expected = op && op != Op::kTosaVariable ? 1 : 0;  // VARIABLE_READ and _WRITE list one
  const std::size_t got = length(place.op->inputs());
  if (got != expected)
    fail<InvalidGraph>(place, "wrong number of operands", std::to_string(expected), std::to_string(got));
}

// The number of results that this operator must list in the file. Returns none if every number is allowed.
std::optional<std::size_t> result_count(const schema::TosaOperator& op) {
  if (is_constant(op)) return 1;
  const OpInfo& row = info(*op_of(op));
  if (row.results < 0) return std::nullopt;
  return row.has(kEffect) ? 1 : static_cast<std::size_t>(row.results);
}

void check_result_count(const Place& place) {
  const std::optional<std::size_t> expected = result_count(*place.op);
  const std::size_t got = length(place.op->outputs());
  if (expected && got != *expected)
    fail<InvalidGraph>(place, "wrong number of results", std::to_string(*expected), std::to_string(got));
}

bool lists_variable_as_result(const schema::TosaOperator& op) {
  return op.op() == schema::Op::VARIABLE || op.op() == schema::Op::VARIABLE_WRITE;
}

void define(const Place& place, std::string_view name, TensorTable& tensors) {
  TensorEntry& entry = tensors.find(place, name);
  if (entry.is_variable != lists_variable_as_result(*place.op))
    fail<InvalidGraph>(place, "the result " + quoted_readable(name) + " is of the wrong kind",
                       entry.is_variable ? "a tensor" : "a variable",
                       entry.is_variable ? "a variable" : "a tensor");
  if (entry.is_variable) return;
  if (entry.is_input || entry.producer != TensorEntry::kNone)
    fail<InvalidGraph>(place, "the result " + quoted_readable(name) + " is defined already");
  if ((entry.shape != nullptr) != (place.op->op() == schema::Op::CONST_SHAPE))
    fail<InvalidGraph>(place, "the result " + quoted_readable(name) + " is of the wrong kind",
                       entry.shape != nullptr ? "a tensor" : "a shape value",
                       entry.shape != nullptr ? "a shape value" : "a tensor");
  entry.producer = place.index;
}

// Counts the constant operands that visit_constant_operands visits.
struct ConstantOperandCounter {
  std::size_t count = 0;
  void zero_point(const char* /*name*/, DType /*dtype*/, std::int64_t /*value*/, bool /*is_unsigned*/) {
    ++count;
  }
  void weight_zero_point(const char* /*name*/, DType /*dtype*/, std::int64_t /*value*/) { ++count; }
  void elements(const char* /*name*/, DType /*dtype*/, const std::vector<std::int64_t>& /*values*/) {
    ++count;
  }
  void element(const char* /*name*/, DType /*dtype*/, const Scalar& /*value*/) { ++count; }
  void shift(const char* /*name*/, std::int64_t /*value*/) { ++count; }
  void dims(const char* /*name*/, const Dims& /*value*/) { ++count; }
  void padding(const char* /*name*/, const Dims& /*before*/, const Dims& /*after*/) { ++count; }
};

std::size_t count_constant_operands(const Attrs& attrs, std::size_t node_operands) {
  ConstantOperandCounter counter;
  const std::vector<DType> dtypes(node_operands, DType::kF32);  // any dtype: it does not change the number
  visit([&](const auto& a) { visit_constant_operands(a, std::span<const DType>(dtypes), counter); }, attrs);
  return counter.count;
}

}  // namespace

bool is_constant(const schema::TosaOperator& op) {
  return op.op() == schema::Op::CONST || op.op() == schema::Op::CONST_SHAPE;
}

std::optional<Op> op_of(const schema::TosaOperator& op) { return op_from_code(code_of(op)); }

std::size_t node_operands(const Place& place, Op op, const Attrs& attrs) {
  const OpInfo& row = info(op);
  const std::size_t got = length(place.op->inputs());
  if (row.max_operands == std::numeric_limits<std::uint8_t>::max()) {
    const std::size_t least = op == Op::kTosaCustom ? 0 : 1;
    if (got < least)
      fail<InvalidGraph>(place, "wrong number of operands", "at least " + std::to_string(least),
                         std::to_string(got));
    return got;
  }
  const std::size_t expected = row.max_operands + count_constant_operands(attrs, row.max_operands);
  if (got != expected)
    fail<InvalidGraph>(place, "wrong number of operands", std::to_string(expected), std::to_string(got));
  return row.max_operands;
}

void define_results(BlockState& state) {
  for (std::uint32_t i = 0; i < state.operator_count(); ++i) {
    const Place place = state.place(i);
    check_supported(place);
    check_operand_count(place);
    check_result_count(place);
    const Names* results = place.op->outputs();
    state.file.budget.spend_names(place, length(results));
    for (std::size_t r = 0; r < length(results); ++r) define(place, name_at(results, r), state.tensors);
  }
}

}  // namespace tosaic::tosa
