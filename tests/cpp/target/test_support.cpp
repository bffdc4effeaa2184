#include <algorithm>
#include <catch2/catch.hpp>

#include "tensor_types.h"
#include "tosa/every_op.h"
#include "tosaic/target/support.h"
#include "tosaic/target/type_support.h"

namespace tosaic::target {
namespace {

using testing::tensor;

// A graph of one node, whose result type is not inferred and may be wrong.
struct Single {
  Graph graph;
  std::vector<ValueId> operands;

  Single& in(DType dtype, const Shape& shape) {
    operands.push_back(graph.add_input(InputKind::kUser, "x", tensor(dtype, shape), "x"));
    return *this;
  }
  Single& constant(DType dtype, const Shape& shape, const std::vector<double>& values) {
    operands.push_back(graph.add_constant(make_constant("c", dtype, shape, values)));
    return *this;
  }
  Graph& out(Op op, Attrs attrs, DType dtype, const Shape& shape) {
    graph.stage = Stage::kTosa;
    auto origin = std::make_shared<Origin>();
    origin->fx_name = "node_7";
    origin->module_path = "layer1";
    origin->file = "/src/model.py";
    origin->line = 41;
    const TensorType results[] = {tensor(dtype, shape)};
    graph.add_node(op, share(std::move(attrs)), operands, results, origin, "y");
    return graph;
  }
};

const char* const kEverything =
    "TOSA-1.0+INT+FP+int16+int4+bf16+fp8e4m3+fp8e5m2+fft+variable+cf+doubleround+inexactround";

std::vector<std::string> rules(const Graph& graph, const char* target) {
  std::vector<std::string> names;
  for (const Violation& violation : check(graph, parse_target(target))) names.push_back(violation.rule);
  return names;
}

std::string first_text(const Graph& graph, const char* target) {
  const std::vector<Violation> violations = check(graph, parse_target(target));
  return violations.empty() ? "" : format_error(violations.front().parts);
}

using Rules = std::vector<std::string>;

TosaMaxPoolAttrs pool(const Dims& kernel, const Dims& stride, const Dims& pad) {
  TosaMaxPoolAttrs attrs;
  attrs.kernel = kernel;
  attrs.stride = stride;
  attrs.pad = pad;
  return attrs;
}

}  // namespace

TEST_CASE("every tosa operator, and no other, has rows in the type table") {
  for (const OpInfo& row : all_ops()) {
    INFO(row.name);
    const bool takes_any = untyped_need(row.op) != nullptr;
    CHECK((takes_any || !type_modes(row.op, 2).empty()) == row.is_tosa);
  }
}

TEST_CASE("a target with every profile and extension supports every operator") {
  for (const testing::TosaCase& c : testing::every_tosa_op()) {
    INFO(c.name);
    CHECK(first_text(c.graph, kEverything) == "");
  }
}

TEST_CASE("dtypes of a profile or extension that the target lacks are violations") {
  Graph graph = Single().in(DType::kF32, {2}).out(Op::kTosaErf, NoAttrs{}, DType::kF32, {2});
  CHECK(rules(graph, "TOSA-1.0+FP").empty());
  CHECK(rules(graph, "TOSA-1.0+INT") == Rules{"profile", "profile"});
  const std::vector<Violation> violations = check(graph, parse_target("TOSA-1.0+INT"));
  CHECK(format_error(violations[0].parts) ==
        "[target] the target has no tensors of this dtype: expected PRO-FP, got f32 on TOSA-1.0+INT (node "
        "'x')");
  CHECK(format_error(violations[1].parts) ==
        "[target] tosa.erf with these dtypes is not in the target: expected PRO-FP, got f32 -> f32 on "
        "TOSA-1.0+INT "
        "(node 'node_7', module 'layer1', model.py:41)");
  CHECK_FALSE(violations[0].node.valid());
  CHECK(violations[1].node == NodeId(0));
}

TEST_CASE("a violation names the target with the extension that is missing") {
  const auto hint_of = [](const Graph& graph, const char* target) {
    const std::vector<Violation> violations = check(graph, parse_target(target));
    REQUIRE(!violations.empty());
    return violations.back().parts.hint;
  };
  Graph floats = Single().in(DType::kBF16, {2}).out(Op::kTosaErf, NoAttrs{}, DType::kBF16, {2});
  CHECK(hint_of(floats, "TOSA-1.0+FP") == "Lower for TOSA-1.0+FP+bf16");
  CHECK(hint_of(floats, "TOSA-1.0+INT+int4") == "Lower for TOSA-1.0+INT+FP+int4+bf16");
  Graph both =
      Single().in(DType::kF8E4M3, {2}).out(Op::kTosaCast, CastAttrs{DType::kBF16}, DType::kBF16, {2});
  CHECK(hint_of(both, "TOSA-1.0+FP+none") == "Lower for TOSA-1.0+FP+bf16+fp8e4m3+none");
  Graph shown =
      Single().in(DType::kI16, {2}).out(Op::kTosaArgmax, default_attrs(Op::kTosaArgmax), DType::kI32, {});
  CHECK(hint_of(shown, "TOSA-1.0+INT") == "Lower for TOSA-1.0+INT+int16");
}

TEST_CASE("int16 needs the extension for some operators only") {
  Graph clamp =
      Single()
          .in(DType::kI16, {2})
          .out(Op::kTosaClamp, TosaClampAttrs{std::int64_t{0}, std::int64_t{9}, NanMode::kPropagate},
               DType::kI16, {2});
  CHECK(rules(clamp, "TOSA-1.0+INT") == Rules{"profile"});
  CHECK(rules(clamp, "TOSA-1.0+INT+int16").empty());
  Graph reverse = Single().in(DType::kI16, {2}).out(Op::kTosaReverse, AxisAttrs{0}, DType::kI16, {2});
  CHECK(rules(reverse, "TOSA-1.0+INT").empty());
}

TEST_CASE("a combination of dtypes that no profile has is refused with the existing ones") {
  Graph graph =
      Single().in(DType::kI8, {2}).in(DType::kI8, {2}).out(Op::kTosaAdd, NoAttrs{}, DType::kI8, {2});
  CHECK(first_text(graph, kEverything) ==
        "[target] tosa.add has no such combination of dtypes: expected one of i32, i32 -> i32; f16, f16 -> "
        "f16; bf16, "
        "bf16 -> bf16; f32, f32 -> f32, got i8, i8 -> i8 (node 'node_7', module 'layer1', model.py:41)");
}

TEST_CASE("casts between narrow floats need both extensions") {
  Graph graph =
      Single().in(DType::kBF16, {2}).out(Op::kTosaCast, CastAttrs{DType::kF8E4M3}, DType::kF8E4M3, {2});
  CHECK(rules(graph, "TOSA-1.0+FP+bf16") == Rules{"profile"});
  CHECK(rules(graph, "TOSA-1.0+FP+bf16+fp8e4m3").empty());
}

TEST_CASE("operators of an extension need that extension") {
  const auto taken = [](const char* name, const char* target) {
    for (const testing::TosaCase& c : testing::every_tosa_op())
      if (c.name == name) return rules(c.graph, target);
    return Rules{"no case"};
  };
  CHECK(taken("tosa.fft2d", "TOSA-1.0+FP") == Rules{"profile"});
  CHECK(taken("tosa.fft2d", "TOSA-1.0+FP+fft").empty());
  CHECK(taken("tosa.cond_if", "TOSA-1.0+INT") == Rules{"profile"});
  CHECK(taken("tosa.cond_if", "TOSA-1.0+INT+cf").empty());
  CHECK(taken("tosa.variables", "TOSA-1.0+FP") == Rules(7, "profile"));
  CHECK(taken("tosa.variables", "TOSA-1.0+FP+variable").empty());
  CHECK(taken("tosa.rescale_i8_u8", "TOSA-1.0+INT").empty());
  CHECK(taken("tosa.rescale_u16_i8", "TOSA-1.0+INT") == Rules{"profile"});
  CHECK(taken("tosa.rescale_u16_i8", "TOSA-1.0+INT+doubleround").empty());
  CHECK(taken("tosa.rescale_i48_i16", "TOSA-1.0+INT+int16") == Rules{"profile"});
  CHECK(taken("tosa.rescale_i48_i16", "TOSA-1.0+INT+int16+inexactround").empty());
  CHECK(taken("tosa.custom", "TOSA-1.0+FP").empty());
  CHECK(taken("tosa.custom", "TOSA-1.0+INT") == Rules{"profile"});  // it has a constant of f16
}

TEST_CASE("the level limits how deeply control flow nests") {
  const TensorType type = tensor(DType::kF32, {2});
  const auto nested = [&type](int depth) {
    Graph graph;
    for (int i = 0; i <= depth; ++i) {
      Graph outer;
      outer.stage = Stage::kTosa;
      const ValueId p = outer.add_input(InputKind::kUser, "p", tensor(DType::kBool, {1}), "p");
      const std::vector<ValueId> operands{p, p};
      Output output;
      if (i == 0) {
        const ValueId one = outer.add_constant(make_constant("one", DType::kF32, {2}, std::vector{1.0, 1.0}));
        output.value = outer.add(Op::kTosaAbs, NoAttrs{}, std::vector{one}, nullptr, "y");
      } else {
        const auto region = std::make_shared<const Graph>(std::move(graph));
        const NodeId node = outer.add_node(Op::kTosaCondIf, share(NoAttrs{}), operands, std::span(&type, 1),
                                           nullptr, "y", {region, region});
        output.value = outer.result(outer.node(node));
      }
      outer.add_output(output);
      graph = std::move(outer);
    }
    return graph;
  };
  CHECK(rules(nested(6), "TOSA-1.0+FP+cf").empty());
  const Rules beyond = rules(nested(7), "TOSA-1.0+FP+cf");
  CHECK(std::count(beyond.begin(), beyond.end(), "level") == static_cast<long>(beyond.size()));
  CHECK(!beyond.empty());
  CHECK(rules(nested(7), "TOSA-1.0+FP+cf+none").empty());
}

TEST_CASE("level 8K limits rank, kernel, stride, scale, list and tensor size") {
  const Shape seven{1, 1, 1, 1, 1, 1, 2};
  Graph rank = Single().in(DType::kF32, seven).out(Op::kTosaAbs, NoAttrs{}, DType::kF32, seven);
  CHECK(rules(rank, "TOSA-1.0+FP") == Rules{"level", "level"});
  CHECK(rules(rank, "TOSA-1.0+FP+none").empty());
  CHECK(first_text(rank, "TOSA-1.0+FP") ==
        "[target] the rank is beyond level 8K: expected at most 6 (MAX_RANK), got 7 (node 'x')");

  Graph kernel =
      Single()
          .in(DType::kF32, {1, 8193, 1, 1})
          .out(Op::kTosaMaxPool2d, pool({8193, 1}, {1, 1}, {0, 0, 0, 0}), DType::kF32, {1, 1, 1, 1});
  CHECK(rules(kernel, "TOSA-1.0+FP") == Rules{"level"});
  Graph stride =
      Single()
          .in(DType::kF32, {1, 1, 1, 1})
          .out(Op::kTosaMaxPool2d, pool({1, 1}, {1, 8193}, {0, 0, 0, 0}), DType::kF32, {1, 1, 1, 1});
  CHECK(rules(stride, "TOSA-1.0+FP") == Rules{"level"});
  CHECK(rules(stride, "TOSA-1.0+FP+none").empty());

  TosaResizeAttrs resize;
  resize.scale = {257, 1, 1, 1};
  resize.offset = {0, 0};
  resize.border = {0, 0};
  Graph scale = Single().in(DType::kI8, {1, 1, 1, 1}).out(Op::kTosaResize, resize, DType::kI8, {1, 1, 1, 1});
  CHECK(rules(scale, "TOSA-1.0+INT") == Rules{"level"});

  Single many;
  for (int i = 0; i < 65; ++i) many.in(DType::kI8, {1});
  CHECK(rules(many.out(Op::kTosaConcat, AxisAttrs{0}, DType::kI8, {65}), "TOSA-1.0+INT") == Rules{"level"});

  const Shape large{65536, 32768};
  Graph size = Single().in(DType::kI8, large).out(Op::kTosaReverse, AxisAttrs{0}, DType::kI8, large);
  CHECK(rules(size, "TOSA-1.0+INT") == Rules{"level", "level"});
  CHECK(rules(size, "TOSA-1.0+INT+none").empty());
}

TEST_CASE("dilation counts towards the kernel limit") {
  TosaConvAttrs conv;
  conv.pad = {0, 0, 0, 0};
  conv.stride = {1, 1};
  conv.dilation = {1, 4097};
  Graph graph = Single()
                    .in(DType::kF32, {1, 1, 4098, 1})
                    .constant(DType::kF32, {1, 1, 2, 1}, {1, 2})
                    .constant(DType::kF32, {1}, {0})
                    .out(Op::kTosaConv2d, conv, DType::kF32, {1, 1, 1, 1});
  CHECK(rules(graph, "TOSA-1.0+FP") == Rules{"level"});
  CHECK(rules(graph, "TOSA-1.0+FP+none").empty());
}

TEST_CASE("the specification's ERROR_IF conditions are violations") {
  const auto pooled = [](const TosaMaxPoolAttrs& attrs, const Shape& result) {
    return rules(Single().in(DType::kI8, {1, 8, 8, 1}).out(Op::kTosaMaxPool2d, attrs, DType::kI8, result),
                 "TOSA-1.0+INT");
  };
  CHECK(pooled(pool({2, 2}, {2, 2}, {0, 0, 0, 0}), {1, 4, 4, 1}).empty());
  CHECK(pooled(pool({2, 2}, {2, 2}, {2, 0, 0, 0}), {1, 5, 4, 1}) ==
        Rules{"error_if"});  // the pad is not smaller than the kernel
  CHECK(pooled(pool({2, 2}, {2, 2}, {-1, 1, 0, 0}), {1, 4, 4, 1}) == Rules{"error_if"});  // negative pad
  CHECK(pooled(pool({2, 2}, {0, 2}, {0, 0, 0, 0}), {1, 4, 4, 1}) == Rules{"error_if"});   // stride 0
  CHECK(pooled(pool({3, 2}, {2, 2}, {0, 0, 0, 0}), {1, 3, 4, 1}) == Rules{"error_if"});   // inexact division
  CHECK(pooled(pool({2, 2}, {2, 2}, {0, 0, 0, 0}), {1, 5, 4, 1}) == Rules{"error_if"});   // wrong result

  const auto unary = [](Op op, const Attrs& attrs, const Shape& result) {
    return rules(Single().in(DType::kF32, {2, 3}).out(op, attrs, DType::kF32, result), "TOSA-1.0+FP");
  };
  const double nan = std::nan("");
  CHECK(unary(Op::kTosaClamp, TosaClampAttrs{1.0, 0.0, NanMode::kPropagate}, {2, 3}) == Rules{"error_if"});
  CHECK(unary(Op::kTosaClamp, TosaClampAttrs{nan, 0.0, NanMode::kPropagate}, {2, 3}) == Rules{"error_if"});
  CHECK(unary(Op::kTosaReshape, ShapeAttrs{{7}}, {7}) == Rules{"error_if"});
  CHECK(unary(Op::kTosaReduceSum, AxisAttrs{2}, {2, 3}) == Rules{"error_if"});
  CHECK(unary(Op::kTosaTranspose, PermuteAttrs{{1, 1}}, {3, 3}) == Rules{"error_if"});
  CHECK(unary(Op::kTosaPad, TosaPadAttrs{{-1, 0}, {0, 0}, 0.0}, {1, 3}) == Rules{"error_if"});
  CHECK(unary(Op::kTosaSlice, TosaSliceAttrs{{1, 0}, {2, 3}}, {2, 3}) == Rules{"error_if"});
  CHECK(unary(Op::kTosaNegate, TosaZeroPointAttrs{1, 0}, {2, 3}) == Rules{"error_if"});
}

TEST_CASE("constant operands and attributes with undefined results are violations") {
  const auto shifted = [](double amount) {
    return rules(Single()
                     .in(DType::kI32, {1})
                     .constant(DType::kI32, {1}, {amount})
                     .out(Op::kTosaLogicalLeftShift, NoAttrs{}, DType::kI32, {1}),
                 "TOSA-1.0+INT");
  };
  CHECK(shifted(31).empty());
  CHECK(shifted(32) == Rules{"constant"});
  CHECK(shifted(-1) == Rules{"constant"});
  Graph divide = Single()
                     .in(DType::kI32, {2})
                     .constant(DType::kI32, {2}, {3, 0})
                     .out(Op::kTosaIntdiv, NoAttrs{}, DType::kI32, {2});
  CHECK(first_text(divide, "TOSA-1.0+INT") ==
        "[target] tosa.intdiv: divisor 1 is zero: expected not 0, got 0 (node 'node_7', module 'layer1', "
        "model.py:41)");
  Graph gather = Single()
                     .in(DType::kI8, {1, 4, 1})
                     .constant(DType::kI32, {1, 2}, {0, 4})
                     .out(Op::kTosaGather, NoAttrs{}, DType::kI8, {1, 2, 1});
  CHECK(rules(gather, "TOSA-1.0+INT") == Rules{"constant"});
  Graph scatter = Single()
                      .in(DType::kI8, {1, 4, 1})
                      .constant(DType::kI32, {1, 2}, {2, 2})
                      .in(DType::kI8, {1, 2, 1})
                      .out(Op::kTosaScatter, NoAttrs{}, DType::kI8, {1, 4, 1});
  CHECK(rules(scatter, "TOSA-1.0+INT") == Rules{"constant"});
  Graph clamp =
      Single()
          .in(DType::kI8, {2})
          .out(Op::kTosaClamp, TosaClampAttrs{std::int64_t{-200}, std::int64_t{9}, NanMode::kPropagate},
               DType::kI8, {2});
  CHECK(rules(clamp, "TOSA-1.0+INT") == Rules{"constant"});
}

TEST_CASE("operators of other stages, empty tensors, and rank 0 where an axis is needed are violations") {
  CHECK(rules(Single().in(DType::kF32, {2}).out(Op::kRelu, NoAttrs{}, DType::kF32, {2}), "TOSA-1.0+FP") ==
        Rules{"operator"});
  CHECK(rules(Single().in(DType::kF32, {0}).out(Op::kTosaAbs, NoAttrs{}, DType::kF32, {0}), "TOSA-1.0+FP") ==
        Rules{"shape", "shape", "error_if"});
  const Rules transposed = rules(
      Single().in(DType::kF32, {}).out(Op::kTosaTranspose, PermuteAttrs{}, DType::kF32, {}), "TOSA-1.0+FP");
  CHECK(std::count(transposed.begin(), transposed.end(), "rank") == 1);
}

TEST_CASE("a violation says what the target lacks, and where") {
  Graph graph = Single().in(DType::kF32, {2}).out(Op::kTosaErf, NoAttrs{}, DType::kF32, {2});
  CHECK(check(graph, parse_target("TOSA-1.0+FP")).empty());
  const std::vector<Violation> violations = check(graph, parse_target("TOSA-1.0+INT"));
  REQUIRE(violations.size() == 2);
  CHECK(std::string(SpecViolation(violations[0].parts).what()) ==
        "[target] the target has no tensors of this dtype: expected PRO-FP, got f32 on TOSA-1.0+INT (node "
        "'x')");
}

TEST_CASE("what is newer than the target is a violation") {
  Single add;
  const Graph graph =
      add.in(DType::kF32, {2}).in(DType::kF32, {2}).out(Op::kTosaAdd, NoAttrs{}, DType::kF32, {2});
  const TargetSpec spec = parse_target("TOSA-1.0+FP");
  const SinceRow other[] = {{.version = {1, 1}, .op = Op::kTosaAdd, .dtype = DType::kF16}};
  CHECK(check(graph, spec, other).empty());
  const SinceRow newer[] = {{.version = {1, 1}, .op = Op::kTosaAdd, .dtype = DType::kF32}};
  const std::vector<Violation> found = check(graph, spec, newer);
  REQUIRE(found.size() == 1);
  CHECK(found[0].rule == "version");
  CHECK(found[0].parts.expected == "TOSA 1.1");
  CHECK(found[0].parts.got == "TOSA-1.0+FP");
  TargetSpec later = spec;
  later.version = {1, 1};
  CHECK(check(graph, later, newer).empty());
  CHECK(to_string(later) == "TOSA-1.1+FP");
}

}  // namespace tosaic::target
