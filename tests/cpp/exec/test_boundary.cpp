// Checks that floats become integers, and integers floats, at the boundary of a program as
// ir/quantized_value.h says.
#include "tosaic/exec/boundary.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "tosaic/ir/quantized_value.h"

namespace tosaic::exec {
namespace {

struct Case {
  DType storage;
  std::int64_t zero_point, qmin, qmax;
};

const std::vector<Case> kCases = {{DType::kI8, 0, -128, 127},
                                  {DType::kI8, -128, -128, 127},
                                  {DType::kI8, 127, -127, 127},
                                  {DType::kI8, 5, -20, 30},
                                  {DType::kI8, 3, -8, 7},
                                  {DType::kI16, 0, -32768, 32767},
                                  {DType::kI16, -1234, -32768, 100},
                                  {DType::kI32, 17, -2147483648LL, 2147483647},
                                  {DType::kI32, 0, -100, 100}};

std::vector<float> numbers(float scale) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> values{0, -0.0F, kInf, -kInf, std::nanf(""), 1e30F, -1e30F, 3e9F, -3e9F, 1e-40F};
  for (int q = -300; q <= 300; ++q)
    for (const float part : {0.0F, 0.25F, 0.5F, 0.49999997F})
      values.push_back((static_cast<float>(q) + part) * scale);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 200 * scale);
  std::normal_distribution<float> wide(0, 1e6F * scale);
  for (int i = 0; i < 2000; ++i) {
    values.push_back(normal(random));
    values.push_back(wide(random));
  }
  return values;
}

QParams qparams_of(const Case& c, float scale) {
  QParams qparams;
  qparams.scales = {scale};
  qparams.zero_points = {c.zero_point};
  qparams.qmin = c.qmin;
  qparams.qmax = c.qmax;
  qparams.storage = c.storage;
  return qparams;
}

ArrayFormat format_of(const QParams& qparams, const Shape& shape) {
  ArrayFormat form;
  form.dtype = DType::kF32;
  form.converts = true;
  form.shape = shape;
  form.axes = form.memory = Dims::iota(shape.size());
  form.qparams = std::make_shared<const QParams>(qparams);
  return form;
}

std::int64_t integer(const std::vector<std::byte>& bytes, std::size_t i, DType dtype) {
  return static_cast<std::int64_t>(load_element(dtype, bytes.data() + i * byte_size(dtype)));
}

}  // namespace

TEST_CASE("floats become the integers that the definition says", "[exec]") {
  for (const Case& c : kCases)
    for (const float scale : {1.0F, 0.0173F, 3.5e-5F, 40.0F}) {
      const QParams qparams = qparams_of(c, scale);
      const std::vector<float> values = numbers(scale);
      const Shape shape{static_cast<std::int64_t>(values.size())};
      TensorType type;
      type.dtype = c.storage;
      type.shape = shape;
      std::vector<float> spread(2 * values.size());
      for (std::size_t i = 0; i < values.size(); ++i) spread[2 * i] = values[i];
      ArrayView strided =
          ArrayView::dense(reinterpret_cast<const std::byte*>(spread.data()), DType::kF32, shape);
      strided.strides[0] = 2 * sizeof(float);
      for (const ArrayView& array :
           {ArrayView::dense(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, shape),
            strided}) {
        std::vector<std::byte> found(values.size() * byte_size(c.storage));
        import_array(format_of(qparams, shape), type, {}, array, found.data(), "x", nullptr);
        for (std::size_t i = 0; i < values.size(); ++i) {
          const std::int64_t expected = bound_quantized(
              quantize_unbounded(values[i], inverse_scale(scale), c.zero_point), c.qmin, c.qmax);
          if (integer(found, i, c.storage) == expected) continue;
          INFO("value " << values[i] << ", scale " << scale << ", zero point " << c.zero_point);
          CHECK(integer(found, i, c.storage) == expected);
        }
      }
    }
}

TEST_CASE("integers become the floats that the definition says", "[exec]") {
  for (const Case& c : kCases) {
    const float scale = 0.0173F;
    const QParams qparams = qparams_of(c, scale);
    std::vector<std::int64_t> integers;
    for (std::int64_t q = std::max<std::int64_t>(c.qmin, -400); q <= std::min<std::int64_t>(c.qmax, 400); ++q)
      integers.push_back(q);
    integers.insert(integers.end(), {c.qmin, c.qmax});
    const Shape shape{static_cast<std::int64_t>(integers.size())};
    TensorType type;
    type.dtype = c.storage;
    type.shape = shape;
    std::vector<std::byte> bytes(integers.size() * byte_size(c.storage));
    for (std::size_t i = 0; i < integers.size(); ++i)
      store_element(c.storage, bytes.data() + i * byte_size(c.storage), static_cast<double>(integers[i]));
    std::vector<float> found(integers.size());
    export_array(format_of(qparams, shape), type, bytes.data(),
                 MutableArrayView::dense(reinterpret_cast<std::byte*>(found.data()), DType::kF32, shape));
    for (std::size_t i = 0; i < integers.size(); ++i)
      CHECK(found[i] == dequantize_value(integers[i], scale, c.zero_point));
  }
}

}  // namespace tosaic::exec
