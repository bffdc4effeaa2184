#include <numeric>

#include "passes/pass_case.h"
#include "tosaic/exec/narrow_constant.h"
#include "tosaic/passes/constant_notes.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kRows = 64, kColumns = 32;

ValueId integers(Case& c, DType dtype = DType::kI8) {
  std::vector<double> values(kRows * kColumns);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>((i * 37) % 100) - (dtype == DType::kU8 ? 0 : 50);
  return c.constant("w", {kRows, kColumns}, values, dtype);
}

std::vector<double> scales(std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 1.0);
  for (double& value : values) value /= 64;
  return values;
}

// A graph at stage tosa that adds x to the only result of `c`, whose nodes are folded.
Graph folded(Case& c, ValueId value) {
  c.output(c.add(Op::kTosaAdd, {c.input("x", c.graph.type(value).shape), value}));
  c.graph.stage = Stage::kTosa;
  std::optional<Graph> out = fold_constants(c.graph);
  REQUIRE(out);
  return std::move(*out);
}

PassOptions options(const std::string& target) { return {.target = target::parse_target(target)}; }

Graph stored(const Graph& graph, const std::string& target) {
  std::optional<Graph> out = store_constants(graph, options(target));
  REQUIRE(out);
  verify(*out);
  CHECK(results_of(graph) == results_of(*out));
  CHECK_FALSE(store_constants(*out, options(target)));
  return std::move(*out);
}

std::size_t constant_bytes(const Graph& graph, DType dtype) {
  std::size_t bytes = 0;
  for (const Value& value : graph.values())
    if (value.constant && value.type.dtype == dtype) bytes += value.type.bytes();
  return bytes;
}

TEST_CASE("a weight with scales by row, transposed, stays in bytes", "[passes][store-constants]") {
  Case c;
  ValueId w = c.add(Op::kTosaCast, {integers(c)}, CastAttrs{DType::kF32});
  w = c.add(Op::kTosaSub, {w, c.constant("zero", {kRows, 1}, std::vector<double>(kRows, 3.0))});
  w = c.add(Op::kTosaMul, {w, c.constant("scale", {kRows, 1}, scales(kRows))});
  w = c.add(Op::kTosaTranspose, {w}, PermuteAttrs{{1, 0}});
  const Graph graph = folded(c, w);
  CHECK(ops_of(graph) == "tosa.add");
  const Graph after = stored(graph, "TOSA-1.0+FP");
  CHECK(ops_of(after) == "tosa.cast tosa.sub tosa.mul tosa.add");
  CHECK(constant_bytes(after, DType::kI8) == kRows * kColumns);
  CHECK(constant_bytes(after, DType::kF32) == 2 * 4 * kRows);
}

TEST_CASE("a weight with groups is moved with its groups", "[passes][store-constants]") {
  Case c;
  ValueId w = c.add(Op::kTosaCast, {integers(c)}, CastAttrs{DType::kF32});
  w = c.add(Op::kTosaReshape, {w}, ShapeAttrs{{kRows, 4, kColumns / 4}});
  w = c.add(Op::kTosaMul, {w, c.constant("scale", {kRows, 4, 1}, scales(kRows * 4))});
  w = c.add(Op::kTosaReshape, {w}, ShapeAttrs{{kRows, kColumns}});
  w = c.add(Op::kTosaTranspose, {w}, PermuteAttrs{{1, 0}});
  w = c.add(Op::kTosaSlice, {w}, TosaSliceAttrs{{0, 8}, {kColumns, 40}});
  w = c.add(Op::kTosaReshape, {w}, ShapeAttrs{{1, kColumns, 40, 1}});
  const Graph after = stored(folded(c, w), "TOSA-1.0+FP");
  CHECK(ops_of(after) == "tosa.cast tosa.mul tosa.reshape tosa.add");
  CHECK(constant_bytes(after, DType::kI8) == 40 * kColumns);
  CHECK(constant_bytes(after, DType::kF32) == 4 * 40 * 4);
}

TEST_CASE("a u8 is stored as i8, less 128", "[passes][store-constants]") {
  Case c;
  const Graph after = stored(
      folded(c, c.add(Op::kTosaCast, {integers(c, DType::kU8)}, CastAttrs{DType::kF32})), "TOSA-1.0+FP");
  CHECK(ops_of(after) == "tosa.cast tosa.add tosa.reshape tosa.add");
}

TEST_CASE("a narrow float without its extension stays wide, and is named", "[passes][store-constants]") {
  Case c;
  const Graph graph = folded(c, c.add(Op::kTosaCast, {integers(c, DType::kF8E4M3)}, CastAttrs{DType::kF32}));
  CHECK_FALSE(store_constants(graph, options("TOSA-1.0+FP")));
  const std::vector<ConstantNote> notes = constant_notes(graph, c.graph, target::parse_target("TOSA-1.0+FP"));
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].rule == "grown-weight");
  CHECK(notes[0].name == "w");
  CHECK(notes[0].message ==
        "'w' is stored as f32, 4 times as large as its f8e4m3: TOSA-1.0+FP lacks EXT-FP8E4M3");
  const Graph after = stored(graph, "TOSA-1.0+FP+fp8e4m3");
  CHECK(constant_bytes(after, DType::kF8E4M3) == kRows * kColumns);
}

TEST_CASE("a sum that another constant broadcasts is folded as before", "[passes][store-constants]") {
  Case c;
  const ValueId w = c.add(Op::kTosaCast, {integers(c)}, CastAttrs{DType::kF32});
  const Graph graph = folded(c, c.add(Op::kTosaAdd, {w, c.weights("other", {kRows, kColumns})}));
  CHECK_FALSE(store_constants(graph, options("TOSA-1.0+FP")));
}

}  // namespace
}  // namespace tosaic::passes
