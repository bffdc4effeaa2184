#include <limits>

#include "run_kernel.h"
#include "tosaic/base/error.h"

namespace tosaic::kernels::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Call same_shape(Op op, Attrs attrs, std::vector<Array> operands) {
  const DType dtype = operands[0].dtype;
  const Shape shape = operands[0].shape;
  return {
      .op = op, .attrs = std::move(attrs), .operands = std::move(operands), .dtype = dtype, .shape = shape};
}

void check_unit_scale(const Call& call) {
  check_fast_paths(call, std::vector<double>(static_cast<std::size_t>(num_elements(call.shape)), 1.0));
}

void check_near(const Call& call, const std::vector<double>& expected) {
  const std::vector<double> values = reference(call);
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == Approx(expected[i]).margin(1e-7));
  check_unit_scale(call);
}

TEST_CASE("softmax along any axis") {
  check_near(
      same_shape(Op::kSoftmax, AxisDtypeAttrs{1, {}}, {array(DType::kF32, {1, 2}, {0, std::log(3.0)})}),
      {0.25, 0.75});
  check_near(same_shape(Op::kLogSoftmax, AxisDtypeAttrs{0, {}}, {array(DType::kF32, {2, 1}, {0, 0})}),
             {-std::log(2.0), -std::log(2.0)});
  std::mt19937 random(2);
  for (const Op op : {Op::kSoftmax, Op::kSafeSoftmax, Op::kLogSoftmax})
    for (const auto& [shape, axis] : std::vector<std::pair<Shape, std::int64_t>>{
             {{3, 700}, 1}, {{70, 5}, 0}, {{2, 9, 70}, 1}, {{}, 0}, {{0, 3}, 1}, {{3, 0}, 1}})
      check_unit_scale(same_shape(op, AxisDtypeAttrs{axis, {}}, {normal_array(random, shape)}));
}

TEST_CASE("a softmax row of -inf is NaN, and zeros with safe_softmax") {
  const Array input = array(DType::kF32, {2, 2}, {-kInf, -kInf, 0, -kInf});
  const std::vector<double> plain = reference(same_shape(Op::kSoftmax, AxisDtypeAttrs{1, {}}, {input}));
  CHECK(std::isnan(plain[0]));
  CHECK(plain[2] == 1);
  CHECK(reference(same_shape(Op::kSafeSoftmax, AxisDtypeAttrs{1, {}}, {input})) ==
        std::vector<double>{0, 0, 1, 0});
  check_unit_scale(same_shape(Op::kSafeSoftmax, AxisDtypeAttrs{1, {}}, {input}));
  check_unit_scale(same_shape(Op::kSafeSoftmax, AxisDtypeAttrs{0, {}}, {input}));
}

TEST_CASE("batch_norm scales and shifts each channel") {
  const auto channel = [](double a, double b) { return array(DType::kF32, {2}, {a, b}); };
  const BatchNormAttrs attrs{0};
  check_near(same_shape(Op::kBatchNorm, attrs,
                        {array(DType::kF32, {1, 2, 2}, {1, 2, 3, 4}), channel(2, 1), channel(0, 1),
                         channel(1, 3), channel(4, 1)}),
             {0, 1, 1, 2});
  check_near(
      same_shape(Op::kBatchNorm, attrs,
                 {array(DType::kF32, {2, 2}, {1, 2, 3, 4}), kAbsent, kAbsent, channel(1, 3), channel(4, 1)}),
      {0, -1, 1, 1});
}

TEST_CASE("layer_norm and rms_norm over trailing axes") {
  const Array input = array(DType::kF32, {2, 2}, {1, 3, -2, 2});
  check_near(same_shape(Op::kLayerNorm, NormAttrs{1, 0.0}, {input, kAbsent, kAbsent}), {-1, 1, -1, 1});
  check_near(same_shape(Op::kLayerNorm, NormAttrs{1, 0.0},
                        {input, array(DType::kF32, {2}, {2, 3}), array(DType::kF32, {2}, {1, 0})}),
             {-1, 3, -1, 3});
  check_near(same_shape(Op::kRmsNorm, NormAttrs{1, 0.0}, {input, kAbsent}),
             {1 / std::sqrt(5.0), 3 / std::sqrt(5.0), -1, 1});
  std::mt19937 random(9);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64})
    check_unit_scale(same_shape(
        Op::kLayerNorm, NormAttrs{2, 1e-5},
        {random_array(random, dtype, {3, 7, 100}), random_array(random, dtype, {7, 100}), kAbsent}));
}

TEST_CASE("rms_norm without eps uses the epsilon of f32, also for narrow floats") {
  const Call call =
      same_shape(Op::kRmsNorm, NormAttrs{1, {}}, {array(DType::kBF16, {1}, {0x1p-12}), kAbsent});
  CHECK(reference(call)[0] == Approx(0x1p-12 / std::sqrt(0x1p-24 + 0x1p-23)).epsilon(0.01));
}

TEST_CASE("group_norm normalizes runs of channels") {
  const Array input = array(DType::kF32, {1, 4, 1}, {1, 3, 10, 30});
  check_near(same_shape(Op::kGroupNorm, GroupNormAttrs{2, 0}, {input, kAbsent, kAbsent}), {-1, 1, -1, 1});
  std::mt19937 random(4);
  check_unit_scale(
      same_shape(Op::kGroupNorm, GroupNormAttrs{3, 1e-5},
                 {normal_array(random, {2, 6, 5, 9}), normal_array(random, {6}), normal_array(random, {6})}));
}

Call attention(SdpaAttrs attrs, Array query, Array key, Array value, Array mask = kAbsent) {
  Shape shape = query.shape;
  shape[shape.size() - 1] = value.shape.back();
  const DType dtype = query.dtype;
  return {.op = Op::kSdpa,
          .attrs = attrs,
          .operands = {std::move(query), std::move(key), std::move(value), std::move(mask)},
          .dtype = dtype,
          .shape = shape};
}

TEST_CASE("attention averages the values of equal keys; a fully masked row is zero") {
  const Array query = array(DType::kF32, {1, 2, 1}, {1, 1});
  const Array key = array(DType::kF32, {1, 2, 1}, {1, 1});
  const Array value = array(DType::kF32, {1, 2, 2}, {1, 2, 3, 6});
  check_near(attention({}, query, key, value), {2, 4, 2, 4});
  SdpaAttrs causal;
  causal.is_causal = true;
  check_near(attention(causal, query, key, value), {1, 2, 2, 4});
  check_near(attention({}, query, key, value, array(DType::kBool, {2, 2}, {0, 0, 0, 1})), {0, 0, 3, 6});
  check_near(attention({}, query, key, value, array(DType::kF32, {1, 2}, {0, std::log(3.0)})),
             {2.5, 5, 2.5, 5});
}

TEST_CASE("with grouped queries, consecutive query heads share a key and value head") {
  const Array query = array(DType::kF32, {1, 4, 1, 1}, {1, 1, 1, 1});
  const Array key = array(DType::kF32, {1, 2, 1, 1}, {1, 1});
  SdpaAttrs attrs;
  attrs.enable_gqa = true;
  check_near(attention(attrs, query, key, array(DType::kF32, {1, 2, 1, 1}, {5, 7})), {5, 5, 7, 7});
}

TEST_CASE("attention on larger heads equals the reference") {
  std::mt19937 random(8);
  const Array query = normal_array(random, {2, 3, 40, 24});
  check_unit_scale(attention({}, query, normal_array(random, {2, 3, 70, 24}),
                             normal_array(random, {2, 3, 70, 20}), normal_array(random, {2, 1, 40, 70})));
  check_unit_scale(
      attention({}, query, normal_array(random, {1, 3, 33, 24}), normal_array(random, {1, 3, 33, 24})));
}

}  // namespace
}  // namespace tosaic::kernels::testing
