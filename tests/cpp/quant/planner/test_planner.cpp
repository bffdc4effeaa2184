#include "tosaic/quant/planner/planner.h"

#include "passes/pass_case.h"
#include "tosaic/quant/planner/behaviour.h"

namespace tosaic::quant {
namespace {

using passes::Case;
using testing::tensor;

const ObservedSpec kInt8{.dtype = "i8", .qmin = -128, .qmax = 127, .scheme = "per_tensor_affine"};
const ObservedSpec kWeights{.dtype = "i8", .qmin = -127, .qmax = 127, .scheme = "per_channel_symmetric"};

// Plans a graph of which each node is one call: inputs and constants are placeholders. The last call is read
// by the output.
struct Planned {
  std::vector<CallNode> calls;
  std::vector<std::string> names;
  std::optional<AnnotationPlan> plan;
  std::vector<LeftFloat> left;
  std::vector<JoinedOperand> joined;

  explicit Planned(const Case& c, const Precision& precision,
                   const std::vector<std::string>& not_selected = {}, const Graph* recognized = nullptr,
                   bool every_operator = false) {
    const Graph& graph = c.graph;
    std::vector<ValueId> values;
    std::vector<NodeIndex> call_of(graph.values().size());
    const auto write = [&](ValueId value, CallNode call) {
      call_of[value.index()] = NodeIndex(static_cast<std::uint32_t>(calls.size()));
      call.dtype = std::string(to_string(graph.type(value).dtype));
      calls.push_back(std::move(call)), values.push_back(value);
    };
    for (std::uint32_t i = 0; i < graph.values().size(); ++i)
      if (graph.producer(ValueId(i)) == nullptr)
        write(ValueId(i), {.name = "source" + std::to_string(i), .kind = CallKind::kPlaceholder});
    for (const Node& node : graph.nodes()) {
      CallNode call{.name = std::string(graph.node_name(node)), .target = std::string(info(node.op).name)};
      for (const ValueId operand : graph.operands(node)) {
        if (!operand.valid()) continue;
        call.operands.push_back(
            {"args[" + std::to_string(call.operands.size()) + "]", call_of[operand.index()], ""});
      }
      write(graph.result(node), std::move(call));
    }
    CallNode output{.name = "output", .kind = CallKind::kOutput};
    std::vector<GraphPort> outputs;
    for (const auto& each : graph.outputs()) {
      output.operands.push_back({"args[0]", call_of[each.value.index()], ""});
      outputs.push_back({"out", call_of[each.value.index()]});
    }
    calls.push_back(output), values.emplace_back();
    for (const CallNode& call : calls) names.push_back(call.name);
    plan.emplace(std::make_shared<const CallGraph>(calls, std::vector<GraphPort>{}, std::move(outputs)));
    PlannerInput input{.graph = graph, .recognized = recognized != nullptr ? *recognized : graph};
    input.values = values;
    input.every_operator = every_operator;
    input.precisions = {precision};
    for (const std::string& name : names)
      input.precision.push_back(std::ranges::find(not_selected, name) == not_selected.end()
                                    ? std::optional<std::uint32_t>(0)
                                    : std::nullopt);
    PlannedSpecs specs = plan_specs(input, *plan);
    left = std::move(specs.left_float), joined = std::move(specs.joined);
  }
  [[nodiscard]] NodeIndex at(const std::string& name) const {
    const auto found = std::ranges::find(names, name);
    REQUIRE(found != names.end());
    return NodeIndex(static_cast<std::uint32_t>(found - names.begin()));
  }
  // The spec of a result, null if there is none.
  [[nodiscard]] const QSpec* output(const std::string& name) const {
    const PlanEntry* entry = plan->output(at(name));
    return entry == nullptr ? nullptr : &entry->spec;
  }
  [[nodiscard]] const QSpec* edge(const std::string& producer, const std::string& user) const {
    const PlanEntry* entry = plan->find(Slot::edge(at(producer), at(user)));
    return entry == nullptr ? nullptr : &entry->spec;
  }
  [[nodiscard]] std::string reason(const std::string& name) const {
    for (const LeftFloat& each : left)
      if (each.call == at(name)) return std::string(each.reason);
    return "";
  }
};

const Precision kPrecision{.activation = kInt8, .weight = kWeights, .bias = DerivedSpec{.dtype = "i32"}};

// source0 -> conv (weight source1, bias source2) -> relu
Case convolution() {
  Case c;
  const ValueId x = c.input("x", {1, 3, 8, 8});
  ConvAttrs attrs;
  attrs.stride = attrs.dilation = {1, 1};
  attrs.pad_before = attrs.pad_after = attrs.output_padding = {0, 0};
  const ValueId w = c.weights("w", {4, 3, 3, 3}), b = c.weights("b", {4});
  return c.output(c.add(Op::kRelu, {c.add(Op::kConv, {x, w, b}, attrs, "conv")}, "relu"));
}

TEST_CASE("a convolution is rounded behind its activation", "[planner]") {
  const Planned found(convolution(), kPrecision);
  CHECK(found.output("conv") == nullptr);
  CHECK(found.reason("conv") == "the activation after it bounds it");
  REQUIRE(found.output("relu") != nullptr);
  CHECK(*found.output("relu") == QSpec(kInt8));
}

TEST_CASE("a weight has the axis of its channels, and a bias is derived from both", "[planner]") {
  const Planned found(convolution(), kPrecision);
  ObservedSpec weight = kWeights;
  weight.axis = 0;
  REQUIRE(found.edge("source1", "conv") != nullptr);
  CHECK(*found.edge("source1", "conv") == QSpec(weight));
  const auto& bias = std::get<DerivedSpec>(*found.edge("source2", "conv"));
  CHECK(bias.from == std::vector<Slot>{Slot::edge(found.at("source0"), found.at("conv")),
                                       Slot::edge(found.at("source1"), found.at("conv"))});
  CHECK(bias.scheme == "per_channel_symmetric");
}

TEST_CASE("a call that is not selected stays float, and says so", "[planner]") {
  const Planned found(convolution(), kPrecision, {"conv"});
  CHECK(found.edge("source0", "conv") == nullptr);
  CHECK(found.reason("conv") == "it is not selected");
  CHECK(found.output("relu") == nullptr);  // it has the numbers of conv
}

TEST_CASE("inputs and constants are rounded where they are returned", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {2, 4}), y = c.input("y", {4}), table = c.weights("table", {4});
  const ValueId relu = c.add(Op::kRelu, {x}, "relu");
  c.output(c.add(Op::kAdd, {x, y}, AlphaAttrs{}, "add")).output(relu).output(table);
  c.output(c.add(Op::kClamp, {c.input("z", {4})}, ClampAttrs{-0.5, 0.5}, "clamp"));
  const Planned found(c, kPrecision);
  REQUIRE(found.edge("source0", "relu") != nullptr);
  CHECK(*found.edge("source0", "relu") ==
        QSpec(SharedSpec{Slot::edge(found.at("source0"), found.at("add"))}));
  REQUIRE(found.edge("source2", "output") != nullptr);
  CHECK(*found.edge("source2", "output") == QSpec(kInt8));
  CHECK(found.edge("relu", "output") == nullptr);  // has the integers of x
  const auto z = Slot::edge(found.at("source5"), found.at("clamp"));
  REQUIRE(found.plan->find(z) != nullptr);
  REQUIRE(found.edge("clamp", "output") != nullptr);
  CHECK(*found.edge("clamp", "output") == QSpec(SharedSpec{z}));
}

TEST_CASE("an input that a float call reads stays float where it is returned", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {2, 4});
  c.output(c.add(Op::kExp, {x}, "exp")).output(c.add(Op::kRelu, {x}, "relu"));
  const Planned found(c, kPrecision, {"exp"});
  CHECK(found.edge("source0", "relu") == nullptr);
  CHECK(found.reason("relu") == "it moves numbers that stay float");
}

TEST_CASE("operands that only a concatenation reads share the scale of its result", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {2, 4});
  const ValueId a = c.add(Op::kSin, {x}, "a"), b = c.add(Op::kCos, {x}, "b");
  const Planned found(c.output(c.add(Op::kCat, {a, b}, AxisAttrs{0}, "cat")), kPrecision);
  const QSpec shared = SharedSpec{Slot::output(found.at("a"))};
  CHECK(*found.output("a") == QSpec(kInt8));
  CHECK(*found.output("b") == shared);
  CHECK(*found.output("cat") == shared);
  CHECK(found.joined.empty());
}

TEST_CASE("an operand keeps its scale if another call reads it, or if its range is known", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {2, 4});
  const ValueId a = c.add(Op::kSin, {x}, "a"), b = c.add(Op::kCos, {x}, "b");
  const ValueId unit = c.add(Op::kSigmoid, {x}, "unit");
  const ValueId moved = c.add(Op::kReshape, {a}, ShapeAttrs{{2, 4}}, "moved");
  c.output(c.add(Op::kMul, {a, b}, "product"));
  const Planned found(
      c.output(c.add(Op::kCat, {moved, c.add(Op::kExp, {x}, "e"), unit}, AxisAttrs{0}, "cat")), kPrecision);
  CHECK(*found.output("a") == QSpec(kInt8));
  CHECK(*found.output("e") == QSpec(kInt8));
  CHECK(*found.output("cat") == QSpec(SharedSpec{Slot::output(found.at("e"))}));
  CHECK(std::holds_alternative<FixedSpec>(*found.output("unit")));
  CHECK(found.joined ==
        std::vector<JoinedOperand>{{Slot::output(found.at("a")), Slot::output(found.at("cat"))}});
}

TEST_CASE("a concatenation of numbers of one known range has their integers", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {2, 4});
  const ValueId a = c.add(Op::kSigmoid, {x}, "a"), b = c.add(Op::kSigmoid, {c.add(Op::kSin, {x}, "s")}, "b");
  const Planned found(c.output(c.add(Op::kCat, {a, b}, AxisAttrs{0}, "cat")), kPrecision);
  CHECK(found.output("cat") == nullptr);
}

TEST_CASE("a softmax has the scale of its range unless fixed ranges are off", "[planner]") {
  Case c;
  c.output(c.add(Op::kSoftmax, {c.input("x", {2, 4})}, AxisDtypeAttrs{1, std::nullopt}, "softmax"));
  const Planned planned(c, kPrecision);
  const auto& fixed = std::get<FixedSpec>(*planned.output("softmax"));
  CHECK(fixed.scale == 1.0 / 256);
  CHECK(fixed.zero_point == -128);
  Precision free = kPrecision;
  free.fixed_ranges = false;
  CHECK(*Planned(c, free).output("softmax") == QSpec(kInt8));
}

TEST_CASE("functions of one tensor are rounded once", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {4});
  const ValueId gate =
      c.add(Op::kSigmoid, {c.add(Op::kMul, {x, c.constant("k", {}, {1.702})}, "scaled")}, "gate");
  const Planned found(c.output(c.add(Op::kMul, {x, gate}, "gelu")), kPrecision);
  CHECK(found.output("scaled") == nullptr);
  CHECK(found.output("gate") == nullptr);
  CHECK(found.output("gelu") != nullptr);
  CHECK(found.reason("gate") == "it is a part of a function of one tensor");
}

// x -> a -> + -> norm -> .. and the same sum again: a residual stream
TEST_CASE("sums that a norm reads have 32 bits", "[planner]") {
  for (const bool wide : {true, false}) {
    Case c;
    const ValueId x = c.input("x", {2, 4});
    const ValueId sum = c.add(Op::kAdd, {c.add(Op::kSin, {x}, "a"), c.add(Op::kCos, {x}, "b")}, "sum");
    const ValueId norm = c.add(Op::kLayerNorm, {sum, ValueId(), ValueId()}, NormAttrs{1, 1e-5}, "norm");
    c.output(norm);
    Precision precision = kPrecision;
    precision.stream = wide ? StreamRounding::kNone : StreamRounding::kActivation;
    const Planned found(c, precision);
    CHECK((found.output("sum") == nullptr) == wide);
    CHECK((found.reason("sum") == "norms and sums read it with 32 bits") == wide);
  }
}

// y = linear(x) -> norm -> linear -> y + .. -> norm: rounding y would add an error to all later sums
TEST_CASE("a contraction that starts a residual stream has 32 bits", "[planner]") {
  for (const bool wide : {true, false}) {
    Case c;
    const ValueId x = c.input("x", {2, 4}), w = c.constant("w", {4, 4}, std::vector<double>(16, 0.5));
    const auto norm = [&](ValueId of, const char* name) {
      return c.add(Op::kLayerNorm, {of, ValueId(), ValueId()}, NormAttrs{1, 1e-5}, name);
    };
    const ValueId y = c.add(Op::kLinear, {x, w, ValueId()}, "y");
    const ValueId branch = c.add(Op::kLinear, {norm(y, "first"), w, ValueId()}, "branch");
    c.output(norm(c.add(Op::kAdd, {y, branch}, "sum"), "second"));
    Precision precision = kPrecision;
    precision.stream = wide ? StreamRounding::kNone : StreamRounding::kActivation;
    const Planned found(c, precision);
    CHECK((found.output("y") == nullptr) == wide);
    CHECK((found.reason("y") == "norms and sums read it with 32 bits") == wide);
  }
}

// conv -> + pos -> norm -> linear -> gelu -> linear -> + .. -> norm
TEST_CASE("a residual stream has 16 bits", "[planner]") {
  for (const bool every_operator : {true, false}) {
    Case c;
    const ValueId w = c.constant("w", {4, 4}, std::vector<double>(16, 0.5));
    const ValueId pos = c.constant("pos", {2, 4}, std::vector<double>(8, 0.5));
    const auto norm = [&](ValueId of, const char* name) {
      return c.add(Op::kLayerNorm, {of, ValueId(), ValueId()}, NormAttrs{1, 1e-5}, name);
    };
    const ValueId patches = c.add(Op::kLinear, {c.input("x", {2, 4}), w, ValueId()}, "patches");
    const ValueId moved = c.add(Op::kReshape, {patches}, ShapeAttrs{{2, 4}}, "moved");
    const ValueId start = c.add(Op::kAdd, {moved, pos}, "start");
    const ValueId hidden = c.add(Op::kLinear, {norm(start, "first"), w, ValueId()}, "hidden");
    const ValueId gelu = c.add(Op::kGelu, {hidden}, "gelu");
    const ValueId branch = c.add(Op::kLinear, {gelu, w, ValueId()}, "branch");
    const ValueId sum = c.add(Op::kAdd, {branch, start}, "sum");
    c.output(c.add(Op::kLinear, {norm(sum, "last"), w, ValueId()}, "head"));
    Precision precision = kPrecision;
    precision.stream = StreamRounding::kInt16;
    const Planned found(c, precision, {}, nullptr, every_operator);
    const auto dtype = [&](const char* name) {
      const QSpec* const entry = found.output(name);
      const auto* const spec = entry == nullptr ? nullptr : std::get_if<ObservedSpec>(entry);
      return spec == nullptr ? std::string() : spec->dtype;
    };
    for (const char* const name : {"start", "sum"}) CHECK(dtype(name) == "i16");
    for (const char* const name : {"first", "last"}) CHECK(dtype(name) == "i8");
    CHECK(found.edge("sum", "last") == nullptr);
    if (!every_operator) continue;
    for (const char* const name : {"patches", "branch"}) CHECK(dtype(name) == "i16");
    CHECK(dtype("hidden") == "i8");
  }
}

TEST_CASE("a result that only a function reads says so", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {2, 4}), w = c.constant("w", {4, 4}, std::vector<double>(16, 0.5));
  const ValueId y = c.add(Op::kLinear, {x, w, ValueId()}, "y");
  const ValueId z = c.add(Op::kLinear, {c.add(Op::kSilu, {y}, "silu"), w, ValueId()}, "z");
  const Planned found(c.output(z), kPrecision);
  const auto rule = [&](const char* name) {
    return found.plan->rule(found.plan->output(found.at(name))->rule).name;
  };
  CHECK(rule("y") == kBeforeFunction);
  CHECK(rule("silu") == "activation");
}

TEST_CASE("a result of whole numbers says so", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {2, 4}), y = c.input("y", {2, 4});
  const ValueId round = c.add(Op::kRound, {x}, "round"), floor = c.add(Op::kFloor, {y}, "floor");
  const ValueId product = c.add(Op::kMul, {round, floor}, "product");
  const ValueId sum = c.add(Op::kAdd, {product, y}, "sum");
  const Planned found(c.output(sum), kPrecision);
  const auto rule = [&](const char* name) {
    return found.plan->rule(found.plan->output(found.at(name))->rule).name;
  };
  CHECK(rule("round") == kWholeNumbers);
  CHECK(rule("product") == kWholeNumbers);
  CHECK(rule("sum") == "activation");
}

// conv -> silu -> linear -> silu
TEST_CASE("contractions are not rounded before a function if that is asked for", "[planner]") {
  for (const bool wide : {true, false}) {
    Case c;
    const ValueId x = c.input("x", {1, 4, 4});
    const ValueId kernel = c.constant("kernel", {4, 4, 1}, std::vector<double>(16, 0.5));
    const ValueId w = c.constant("w", {4, 4}, std::vector<double>(16, 0.5));
    const ValueId conv = c.add(Op::kConv, {x, kernel, ValueId()}, ConvAttrs{{1}, {0}, {0}, {1}, {0}}, "conv");
    const ValueId line = c.add(Op::kLinear, {c.add(Op::kSilu, {conv}, "a"), w, ValueId()}, "linear");
    const ValueId b = c.add(Op::kSilu, {line}, "b");
    Precision precision = kPrecision;
    precision.wide_functions = wide;
    const Planned found(c.output(c.add(Op::kMatmul, {b, b}, "out")), precision);
    CHECK((found.output("conv") == nullptr) == wide);
    CHECK((found.output("linear") == nullptr) == wide);
  }
}

TEST_CASE("large numbers have no scale in common with scores", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {2, 2});
  const ValueId scores = c.add(Op::kSin, {x}, "scores");
  const ValueId masked = c.add(Op::kAdd, {scores, c.constant("mask", {2, 2}, {0, -1e9, 0, 0})}, "masked");
  c.output(c.add(Op::kSoftmax, {masked}, AxisDtypeAttrs{1, std::nullopt}, "softmax"));
  const Planned found(c, kPrecision);
  CHECK(found.output("scores") != nullptr);
  CHECK(found.output("masked") == nullptr);
  CHECK(found.reason("masked") == "it may hold numbers that leave no precision to the others");
}

TEST_CASE("masks and tables of integers have a scale where data meets them, and none before", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {4}), ids = c.input("ids", tensor(DType::kI64, {4}));
  const ValueId seen = c.add(Op::kCast, {ids}, CastAttrs{DType::kF32}, "seen");
  const ValueId angle = c.add(Op::kMul, {seen, c.constant("frequency", {}, {0.25})}, "angle");
  const ValueId table = c.add(Op::kCos, {angle}, "table");
  const ValueId rotated = c.add(Op::kMul, {x, table}, "rotated");
  c.output(c.add(Op::kMul, {rotated, seen}, "hidden"));
  const Planned found(c, kPrecision);
  CHECK(found.output("angle") == nullptr);
  CHECK(found.output("table") == nullptr);
  CHECK(found.output("seen") == nullptr);
  CHECK(std::get<ObservedSpec>(*found.edge("seen", "hidden")).dtype == "i16");
  const auto& spec = std::get<ObservedSpec>(*found.edge("table", "rotated"));
  CHECK(spec.dtype == "i16");
  CHECK(spec.scheme == "per_tensor_symmetric");
  CHECK(found.reason("table") == "it depends on integers only: positions or a mask");
}

// image, flow -> base + flow / 4 -> grid sampler
Case warp(GridPadding padding, bool align_corners, ResizeMode mode = ResizeMode::kBilinear) {
  Case c;
  const ValueId image = c.input("image", {1, 3, 5, 9}), from = c.input("from", {1, 4, 4, 2});
  const ValueId flow = c.add(Op::kMul, {from, c.constant("quarter", {}, {0.25})}, "flow");
  const ValueId grid = c.add(Op::kAdd, {flow, c.weights("base", {1, 4, 4, 2})}, "grid");
  return c.output(
      c.add(Op::kGridSample, {image, grid}, GridSampleAttrs{mode, padding, align_corners}, "warped"));
}

TEST_CASE("the grid of a sampler has 16 bits, and what it is computed from is not rounded", "[planner]") {
  const Planned found(warp(GridPadding::kBorder, false), kPrecision);
  CHECK(found.output("flow") == nullptr);
  CHECK(found.reason("flow") == "positions are computed from it with 32 bits");
  const auto& grid = std::get<FixedSpec>(*found.output("grid"));
  CHECK(grid.dtype == "i16");
  CHECK(grid.scale == 1.0 / 32767);
  CHECK(grid.qmin == -32767);
  CHECK(*found.output("warped") == QSpec(kInt8));
}

TEST_CASE("the range of a grid reaches to where pixels are zero", "[planner]") {
  const auto range = [](GridPadding padding, bool align_corners, ResizeMode mode = ResizeMode::kBilinear) {
    const Planned found(warp(padding, align_corners, mode), kPrecision);
    return std::get<FixedSpec>(*found.output("grid")).scale * 32767;
  };
  CHECK(range(GridPadding::kZeros, false) == Approx(1.0 + 1.0 / 5));
  CHECK(range(GridPadding::kZeros, true) == Approx(1.0 + 2.0 / 4));
  CHECK(range(GridPadding::kBorder, true) == Approx(1.0));
  CHECK(range(GridPadding::kBorder, false, ResizeMode::kBicubic) == Approx(1.0 + 3.0 / 5));
  const Planned reflected(warp(GridPadding::kReflection, false), kPrecision);
  CHECK(std::get<ObservedSpec>(*reflected.output("grid")).dtype == "i16");
}

TEST_CASE("a tensor that is not a grid alone has a scale of its own", "[planner]") {
  Case c = warp(GridPadding::kBorder, false);
  const Graph graph = c.graph;
  c.output(graph.result(graph.nodes()[1]));  // the grid
  CHECK(*Planned(c, kPrecision).output("grid") == QSpec(kInt8));
}

TEST_CASE("parts of a recognised norm are not rounded", "[planner]") {
  Case c;
  const ValueId x = c.input("x", {3, 4});
  const ReduceAttrs rows{{1}, true, std::nullopt};
  const ValueId power = c.add(Op::kMean, {c.add(Op::kMul, {x, x}, "square")}, rows, "power");
  const ValueId root =
      c.add(Op::kRsqrt, {c.add(Op::kAdd, {power, c.constant("eps", {}, {1e-6})}, "sum")}, "root");
  c.output(c.add(Op::kMul, {x, root}, "norm"));
  const std::optional<Graph> recognized = passes::fuse_composites(c.graph);
  REQUIRE(recognized.has_value());
  const Planned found(c, kPrecision, {}, &*recognized);
  for (const char* inside : {"square", "power", "sum", "root"}) {
    CHECK(found.output(inside) == nullptr);
    CHECK(found.reason(inside) == "it is a part of a unit that is computed at once");
  }
  CHECK(found.output("norm") != nullptr);
}

TEST_CASE("every operator has a behaviour, and opaque ones stay float", "[planner]") {
  CHECK(behaviour_of(Op::kConv) == Behaviour::kWeighted);
  CHECK(behaviour_of(Op::kCond) == Behaviour::kFloatOnly);
  CHECK(behaviour_of(Op::kTosaAdd) == Behaviour::kFloatOnly);
}

}  // namespace
}  // namespace tosaic::quant
