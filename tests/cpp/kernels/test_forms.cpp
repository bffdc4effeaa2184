// Tests of the table of forms (gemm/forms.def), generated from its rows.
#include "tosaic/kernels/gemm/forms.h"

#include <algorithm>
#include <set>

#include "run_kernel.h"

namespace tosaic::kernels::testing {
namespace {

std::int64_t draw(std::mt19937& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// Bytes of the whole range, or small ones, of which few pairs have an excess.
Array draw_bytes(std::mt19937& random, const Shape& shape) {
  Array result{.dtype = DType::kI8, .shape = shape, .values = {}};
  const bool is_small = draw(random, 0, 1) == 1;
  for (std::int64_t i = 0; i < num_elements(shape); ++i)
    result.values.push_back(static_cast<double>(is_small ? draw(random, -50, 50) : draw(random, -128, 127)));
  return result;
}

// The dtypes of the operands and of the sums.
struct Dtypes {
  DType left, right, sums;
};
constexpr Dtypes kDtypes[] = {{DType::kI8, DType::kI8, DType::kI32},
                              {DType::kI8, DType::kI8, DType::kI32},
                              {DType::kI16, DType::kI8, DType::kI48},
                              {DType::kF32, DType::kF32, DType::kF32}};

Array draw_array(std::mt19937& random, DType dtype, const Shape& shape) {
  return dtype == DType::kI8 ? draw_bytes(random, shape) : random_array(random, dtype, shape);
}

// A dense or depthwise convolution of TOSA, whose extents are on both sides of the bounds of the rules: few
// rows and many, weights that are constant or not, zero points of weights.
Call draw_call(std::mt19937& random) {
  const Dtypes dtypes = kDtypes[draw(random, 0, std::size(kDtypes) - 1)];
  const bool is_depthwise = draw(random, 0, 2) == 0, has_zero_points = dtypes.left == DType::kI8;
  const std::int64_t taps = draw(random, 0, 1) == 0 ? 1 : 3,
                     size = draw(random, 0, 2) == 0 ? 1 : draw(random, 2, 9);
  const std::int64_t channels = draw(random, 1, 70), multiplier = draw(random, 0, 3) == 0 ? 2 : 1;
  const std::int64_t filters = is_depthwise ? channels * multiplier : draw(random, 1, 70), pad = taps / 2;
  Array weight = draw_array(
      random, dtypes.right,
      is_depthwise ? Shape{taps, taps, channels, multiplier} : Shape{filters, taps, taps, channels});
  weight.constant = draw(random, 0, 3) > 0;
  const std::int64_t input_zp = has_zero_points ? draw(random, -128, 127) : 0,
                     weight_zp = has_zero_points && draw(random, 0, 2) == 0 ? draw(random, -128, 127) : 0;
  return {
      .op = is_depthwise ? Op::kTosaDepthwiseConv2d : Op::kTosaConv2d,
      .attrs = TosaConvAttrs{{pad, pad, pad, pad}, {1, 1}, {1, 1}, input_zp, weight_zp, dtypes.sums, false},
      .operands = {draw_array(random, dtypes.left, {1, size, size, channels}), weight,
                   random_array(random, dtypes.sums, {filters})},
      .dtype = dtypes.sums,
      .shape = {1, size, size, filters}};
}

// Leaves out all rows except `row` and the baseline rows, which every processor runs.
Options with_row(std::size_t row) {
  Options options{.isa = form_rows()[row].set};
  for (std::size_t i = 0; i < form_rows().size(); ++i)
    if (i != row && form_rows()[i].set != Isa::kBaseline) options.left_out |= std::uint64_t{1} << i;
  return options;
}

bool is_usable(const FormRow& row) {
  return std::ranges::find(usable_isas(), row.set) != usable_isas().end();
}

TEST_CASE("each form equals plain loops, where its rule is true and where it is not", "[forms]") {
  std::mt19937 random(41);
  std::vector<std::set<bool>> chosen(form_rows().size());
  for (int i = 0; i < 300; ++i) {
    const Call call = draw_call(random);
    Call absolutes = call;
    for (Array& operand : absolutes.operands) operand = absolute(operand);
    const std::vector<double> expected = reference(call), scales = reference(absolutes);
    for (std::size_t row = 0; row < form_rows().size(); ++row) {
      if (!is_usable(form_rows()[row])) continue;
      CAPTURE(i, form_rows()[row].name);
      const Outcome outcome = run(call, with_row(row));
      check_outcome(call, outcome, expected, scales);
      chosen[row].insert(outcome.form_row == row);
    }
  }
  for (std::size_t row = 0; row < form_rows().size(); ++row) {
    CAPTURE(form_rows()[row].name);
    if (!is_usable(form_rows()[row]) || form_rows()[row].kind == "lines" || form_rows()[row].rule == "is_any")
      continue;
    CHECK(chosen[row] == std::set<bool>{false, true});
  }
}

TEST_CASE("lines that are read in place give the bytes of gathered patches", "[forms]") {
  std::mt19937 random(43);
  for (int i = 0; i < 200; ++i) {
    const Call call = draw_call(random);
    for (std::size_t row = 0; row < form_rows().size(); ++row)
      if (form_rows()[row].kind == "lines" && is_usable(form_rows()[row]))
        for (const Isa isa : usable_isas())
          CHECK(run(call, {.isa = isa}).values ==
                run(call, {.isa = isa, .left_out = std::uint64_t{1} << row}).values);
  }
}

TEST_CASE("a form stays for what it saves, or for a reason", "[forms]") {
  std::set<std::string_view> names;
  for (const FormRow& row : form_rows()) {
    CAPTURE(row.name);
    CHECK((row.saves >= kLeastSaved || row.saves == 0));
    CHECK_FALSE(row.measured.empty());
    CHECK(names.insert(row.name).second);
  }
  CHECK(form_rows().size() <= 64);  // bits of Options::left_out
  CHECK_THROWS_WITH(rows_named(std::vector<std::string>{"dense.Quads"}),
                    Catch::Matchers::Contains("no form 'dense.Quads'"));
}

}  // namespace
}  // namespace tosaic::kernels::testing
