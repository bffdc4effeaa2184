#include "tosaic/ir/scale_grid.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "tosaic/ir/parse.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/verify.h"
#include "tosaic/quant/quantize.h"

namespace tosaic {
namespace {

// The position of each element's scale, from its indices.
std::vector<std::size_t> by_index(const Shape& shape, std::int64_t axis, const Groups& groups) {
  const std::int64_t per_channel = shape[static_cast<std::size_t>(groups.axis)] / groups.size;
  std::vector<std::size_t> out;
  for (std::int64_t i = 0; i < num_elements(shape); ++i) {
    std::vector<std::int64_t> index(shape.size());
    std::int64_t rest = i;
    for (std::size_t k = shape.size(); k-- > 0;) {
      index[k] = rest % shape[k];
      rest /= shape[k];
    }
    out.push_back(static_cast<std::size_t>(index[static_cast<std::size_t>(axis)] * per_channel +
                                           index[static_cast<std::size_t>(groups.axis)] / groups.size));
  }
  return out;
}

TensorType type_with(const Shape& shape, std::optional<std::int64_t> axis, std::optional<Groups> groups,
                     std::size_t scales) {
  return {DType::kI8,
          shape,
          {},
          std::make_shared<const QParams>(QParams{DType::kI8, -8, 7, axis, std::vector(scales, 0.5),
                                                  std::vector<std::int64_t>(scales, 0), groups})};
}

TEST_CASE("each element has the scale of its channel and group", "[scale_grid]") {
  const Shape shape{4, 6, 2};
  for (std::int64_t axis = 0; axis < 3; ++axis)
    for (std::int64_t along = 0; along < 3; ++along)
      for (const std::int64_t size : {1, 2, 3, 4, 6}) {
        const Groups groups{along, size};
        if (scale_grid_fault(shape, axis, groups) != nullptr) continue;
        const ScaleGrid grid(shape, axis, groups);
        const std::vector<std::size_t> expected = by_index(shape, axis, groups);
        for (std::int64_t i = 0; i < num_elements(shape); ++i) {
          REQUIRE(grid.of(i) == expected[static_cast<std::size_t>(i)]);
          REQUIRE(grid.of(i / grid.run() * grid.run()) == grid.of(i));
        }
        CHECK(static_cast<std::int64_t>(expected.back()) + 1 == scale_count(shape, axis, groups));
      }
}

TEST_CASE("groups that do not fit their tensor are refused", "[scale_grid]") {
  const Shape shape{4, 6};
  CHECK(scale_grid_fault(shape, 0, Groups{1, 3}) == nullptr);
  for (const Groups& groups : {Groups{0, 2}, Groups{2, 2}, Groups{-1, 2}, Groups{1, 4}, Groups{1, 0},
                               Groups{1, -3}, Groups{1, std::numeric_limits<std::int64_t>::max()}}) {
    CHECK(scale_grid_fault(shape, 0, groups) != nullptr);
    CHECK(qparams_fault(type_with(shape, 0, groups, 4)).has_value());
    CHECK_THROWS(quant::require_qparams(*type_with(shape, 0, groups, 4).qparams, shape));
  }
  CHECK(scale_grid_fault(shape, std::nullopt, Groups{1, 3}) != nullptr);
  CHECK(qparams_fault(type_with(shape, 0, Groups{1, 3}, 4))->expected == "8 scales and zero points");
  CHECK_FALSE(qparams_fault(type_with(shape, 0, Groups{1, 3}, 8)).has_value());
}

TEST_CASE("an empty tensor has no scales and no elements", "[scale_grid]") {
  for (const Shape& shape : {Shape{0, 6}, Shape{4, 0}, Shape{0, 0}}) {
    const std::int64_t size = std::numeric_limits<std::int64_t>::max();
    const Groups groups{1, shape[1] == 0 ? size : 3};
    CHECK(scale_grid_fault(shape, 0, groups) == nullptr);
    CHECK(scale_count(shape, 0, groups) == 0);
    QParams qparams{DType::kI8, -8, 7, 0, {}, {}, groups};
    CHECK(quant::quantize({}, shape, qparams).storage.size() == 0);
  }
}

TEST_CASE("groups are part of the text and of equality", "[scale_grid]") {
  const TensorType type = type_with({2, 4}, 0, Groups{1, 2}, 4);
  CHECK(to_string(*type.qparams) == "q(i8 -8..7 axis 0 group 2 on 1 scale 0.5,0.5,0.5,0.5 zp 0,0,0,0)");
  QParams other = *type.qparams;
  other.groups = Groups{1, 4};
  CHECK_FALSE(other == *type.qparams);
  CHECK_FALSE(same_grid(other, *type.qparams));
  const auto attrs = attrs_of_qparams<DequantizeAttrs>(DType::kF32, *type.qparams);
  CHECK(*qparams_of(attrs, DType::kI8) == *type.qparams);
  CHECK(to_string(Attrs(attrs)).ends_with("groups=[1,2]}"));
  CHECK(to_string(Attrs(DequantizeAttrs{})).find("groups") == std::string::npos);
}

TEST_CASE("quantizing and dequantizing use the scale of the group", "[scale_grid]") {
  const QParams qparams{DType::kI8, -8, 7, 1, {1, 2, 4, 8}, {0, 1, -1, 2}, Groups{0, 2}};
  const std::vector<float> x{8, 8, 16, 16,
                             8, 8, 16, 16};  // shape [4,2]: columns are channels, rows in groups
  const quant::Quantized q = quant::quantize(x, {4, 2}, qparams);
  const auto* found = reinterpret_cast<const std::int8_t*>(q.storage.bytes().data());
  CHECK(std::vector<std::int8_t>(found, found + 8) == std::vector<std::int8_t>{7, 1, 7, 3, 5, 3, 7, 4});
}

TEST_CASE("permutes and reshapes move groups with their axis, or drop the parameters", "[scale_grid]") {
  Graph graph;
  const TensorType type = type_with({4, 6}, 0, Groups{1, 3}, 8);
  const ValueId x = graph.add_input(InputKind::kUser, "x", type, "x");
  const auto after = [&](Op op, Attrs attrs) {
    const ValueId operands[] = {x};
    const ValueId made = graph.add(op, std::move(attrs), operands, nullptr);
    return qparams_after(graph, *graph.producer(made), type.qparams);
  };
  const auto turned = after(Op::kPermute, PermuteAttrs{{1, 0}});
  REQUIRE(turned);
  CHECK((*turned)->axis == 1);
  CHECK((*turned)->groups == Groups{0, 3});
  const auto longer = after(Op::kReshape, ShapeAttrs{{4, 1, 6}});
  REQUIRE(longer);
  CHECK((*longer)->groups == Groups{2, 3});
  CHECK_FALSE(after(Op::kReshape, ShapeAttrs{{4, 2, 3}}));
  CHECK_FALSE(after(Op::kReshape, ShapeAttrs{{24}}));
  CHECK((*after(Op::kExpand, ShapeAttrs{{5, 4, 6}}))->groups == Groups{2, 3});
  CHECK(*after(Op::kSlice, SliceAttrs{0, 0, 4, 1}) == type.qparams);
  CHECK_FALSE(after(Op::kSlice, SliceAttrs{0, 1, 4, 1}));
  CHECK_FALSE(after(Op::kSlice, SliceAttrs{1, 0, 3, 1}));
  CHECK_FALSE(after(Op::kFlip, AxesAttrs{{1}}));
}

}  // namespace
}  // namespace tosaic
