// Checks which nodes are fused into chains, and that fusion changes no result, no trace and no error.
#include <catch2/catch.hpp>
#include <random>

#include "exec/chain.h"
#include "tosaic/base/error.h"
#include "tosaic/exec/steps.h"

namespace tosaic::exec {
namespace {

class Data {
 public:
  explicit Data(unsigned seed) : random_(seed) {}

  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  // Random integers of which many are -128 or 127.
  std::vector<std::int8_t> bytes(const Shape& shape) {
    std::vector<std::int8_t> values(static_cast<std::size_t>(num_elements(shape)));
    for (std::int8_t& value : values)
      value = static_cast<std::int8_t>(std::clamp<std::int64_t>(between(-160, 160), -128, 127));
    return values;
  }
  ConstantRef constant(const std::string& name, DType dtype, const Shape& shape) {
    std::vector<double> values;
    if (dtype == DType::kI8)
      for (const std::int8_t value : bytes(shape)) values.push_back(value);
    else
      for (std::int64_t i = 0; i < num_elements(shape); ++i)
        values.push_back(static_cast<double>(between(-100000, 100000)));
    return make_constant(name, dtype, shape, values);
  }
  TosaRescaleAttrs rescale(std::int64_t channels, DType to, std::int64_t least_shift = 34) {
    TosaRescaleAttrs attrs;
    attrs.dtype = to;
    attrs.output_zp = to == DType::kI8 ? between(-128, 127) : 0;
    attrs.rounding_mode = between(0, 1) != 0 ? RoundingMode::kDoubleRound : RoundingMode::kSingleRound;
    attrs.per_channel = channels > 1;
    for (std::int64_t c = 0; c < channels; ++c) {
      attrs.multiplier.push_back(between(1 << 30, 0x7fffffff));
      attrs.shift.push_back(between(least_shift, 44));
    }
    return attrs;
  }

 private:
  std::mt19937 random_;
};

// The first node of a chain: a contraction of x (i8). The channels of its result are on `axis`, or on the
// last axis if `axis` is not set.
struct Head {
  Op op;
  Attrs attrs;
  Shape x, weight;
  std::int64_t channels = 0;
  bool constant = true;
  std::optional<std::int64_t> axis = {};
};

TosaConvAttrs conv(Dims pad, Dims stride, Dims dilation, std::int64_t input_zp, std::int64_t weight_zp = 0) {
  return {pad, stride, dilation, input_zp, weight_zp, DType::kI32, false};
}

const std::vector<Head>& heads() {
  static const std::vector<Head> all{
      {Op::kTosaConv2d, conv({1, 1, 0, 2}, {1, 1}, {1, 1}, -128), {2, 5, 6, 7}, {19, 3, 3, 7}, 19},
      {Op::kTosaConv2d, conv({0, 0, 0, 0}, {1, 1}, {1, 1}, 3, -2), {1, 40, 40, 16}, {96, 1, 1, 16}, 96},
      {Op::kTosaConv2d, conv({0, 0, 0, 0}, {1, 1}, {1, 1}, 0), {1, 3, 3, 600}, {1, 1, 1, 600}, 1},
      {Op::kTosaConv2d, conv({2, 0, 2, 1}, {2, 2}, {2, 1}, 127), {1, 9, 10, 3}, {600, 2, 3, 3}, 600, false},
      {Op::kTosaDepthwiseConv2d, conv({1, 1, 1, 1}, {2, 2}, {1, 1}, -7), {1, 7, 9, 21}, {3, 3, 21, 1}, 21},
      {Op::kTosaDepthwiseConv2d, conv({1, 1, 1, 1}, {1, 1}, {1, 1}, 9), {2, 6, 6, 35}, {3, 3, 35, 2}, 70},
      {Op::kTosaConv3d,
       conv({1, 0, 1, 0, 1, 0}, {1, 1, 1}, {1, 1, 1}, 4),
       {1, 3, 4, 4, 5},
       {6, 2, 2, 2, 5},
       6},
      {Op::kTosaTransposeConv2d,
       TosaTransposeConvAttrs{{-1, 2, 0, 1}, {2, 3}, -5, 0, DType::kI32, false},
       {2, 4, 5, 6},
       {11, 2, 3, 6},
       11},
      {Op::kIntegerConv,
       IntegerConvAttrs{{{2, 1}, {1, 0}, {0, 1}, {1, 2}, {0, 0}, 3, false}, -128, 3},
       {2, 6, 8, 9},
       {12, 2, 3, 3},
       12,
       true,
       1},
      {Op::kIntegerConv,
       IntegerConvAttrs{{{1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, 21, false}, 7, 0},
       {1, 21, 6, 5},
       {42, 1, 3, 3},
       42,
       true,
       1},
      {Op::kIntegerConv,
       IntegerConvAttrs{{{2, 1}, {1, 0}, {1, 0}, {1, 1}, {0, 0}, 1, true}, 127, 0},
       {2, 6, 4, 5},
       {6, 9, 3, 2},
       9,
       true,
       1},
      {Op::kTosaMatmul, TosaMatmulAttrs{-128, 2, std::nullopt}, {2, 33, 70}, {2, 70, 40}, 40},
      {Op::kTosaMatmul, TosaMatmulAttrs{5, 0, std::nullopt}, {1, 3, 1200}, {1, 1200, 300}, 300, false}};
  return all;
}

// A graph and the arrays for its inputs.
struct Case {
  Builder b;
  std::vector<Shape> shapes;
  std::vector<std::vector<std::int8_t>> data;

  [[nodiscard]] std::vector<ArrayView> inputs() const {
    std::vector<ArrayView> views;
    for (std::size_t i = 0; i < data.size(); ++i) views.push_back(view(data[i], DType::kI8, shapes[i]));
    return views;
  }
};

ValueId add_input(Case& c, Data& data, const std::string& name, const Shape& shape) {
  c.shapes.push_back(shape);
  c.data.push_back(data.bytes(shape));
  return c.b.input(name, tensor(DType::kI8, shape));
}

ValueId add_head(Case& c, Data& data, const Head& head) {
  std::vector<ValueId> operands{add_input(c, data, "x", head.x)};
  operands.push_back(head.constant ? c.b.graph->add_constant(data.constant("w", DType::kI8, head.weight))
                                   : add_input(c, data, "w", head.weight));
  if (head.op != Op::kTosaMatmul)
    operands.push_back(c.b.graph->add_constant(data.constant("bias", DType::kI32, {head.channels})));
  return c.b.add(head.op, operands, "head", head.attrs);
}

ValueId add_rescale(Case& c, Data& data, const Head& head, ValueId sums, bool per_channel, DType to,
                    std::int64_t least_shift = 34) {
  const TosaRescaleAttrs attrs = data.rescale(per_channel ? head.channels : 1, to, least_shift);
  if (!head.axis) return c.b.add(Op::kTosaRescale, {sums}, "rescale", attrs);
  return c.b.add(Op::kRescale, {sums}, "rescale",
                 RescaleAttrs{attrs, attrs.per_channel ? head.axis : std::nullopt});
}

// The number of steps that are fused into the first step.
std::size_t fused_followers(const Prepared& prepared) { return prepared.steps()[0].fusion.followers.size(); }

void check_same_results(const Case& c, std::size_t followers) {
  PrepareOptions reference;
  reference.kernels.reference = true;
  const std::vector<double> expected = doubles(run(c.b.graph, c.inputs(), reference).at(0));
  for (const kernels::Isa isa : kernels::usable_isas()) {
    PrepareOptions options;
    options.kernels.isa = isa;
    Session session(prepare(c.b.graph, options));
    INFO(kernels::to_string(isa) << " " << session.prepared().steps()[0].kernel);
    CHECK(fused_followers(session.prepared()) == followers);
    RunOptions traced;
    traced.trace.all = true;
    CHECK(doubles(session.run(c.inputs()).outputs.at(0)) == expected);
    CHECK(doubles(session.run(c.inputs(), traced).outputs.at(0)) == expected);  // not fused: a traced run
  }
}

}  // namespace

TEST_CASE("a contraction fused with its rescale equals the separate nodes", "[exec]") {
  Data data(31);
  for (const Head& head : heads())
    for (const bool per_channel : {true, false})
      for (const DType to : {DType::kI8, DType::kI16, DType::kI32}) {
        Case c;
        const ValueId sums = add_head(c, data, head);
        c.b.output(add_rescale(c, data, head, sums, per_channel, to));
        check_same_results(c, 1);
      }
}

TEST_CASE("sums become elements of i32 with any shifts", "[exec]") {
  // Where the constants show that every sum has a result, the loops of the contraction rescale the sums
  // themselves.
  Data data(53);
  std::vector<Head> all = heads();
  all.push_back({Op::kTosaMatmul, TosaMatmulAttrs{1, 0, std::nullopt}, {1, 9, 40000}, {1, 40000, 20}, 20});
  all.push_back(
      {Op::kTosaConv2d, conv({1, 1, 1, 1}, {1, 1}, {1, 1}, -128), {1, 20, 20, 64}, {64, 3, 3, 64}, 64});
  all.push_back(
      {Op::kTosaConv2d, conv({0, 0, 0, 0}, {2, 2}, {1, 1}, 5), {1, 11, 9, 100}, {41, 1, 1, 100}, 41});
  for (const Head& head : all)
    for (const bool per_channel : {true, false})
      for (const std::int64_t least_shift : {27, 33}) {
        Case c;
        const std::int64_t least = head.x.back() == 40000 ? 33 : least_shift;
        const ValueId sums = add_head(c, data, head);
        c.b.output(add_rescale(c, data, head, sums, per_channel, DType::kI32, least));
        check_same_results(c, 1);
      }
}

TEST_CASE("sums that may have no result as i32 are refused where they have none", "[exec]") {
  Data data(59);
  const Head head{Op::kTosaConv2d, conv({0, 0, 0, 0}, {1, 1}, {1, 1}, 0), {1, 4, 4, 40}, {9, 1, 1, 40}, 9};
  Case c;
  const ValueId sums = add_head(c, data, head);
  TosaRescaleAttrs attrs = data.rescale(1, DType::kI32);
  attrs.shift = {12};  // sums beyond 2^14 or so have no result
  c.b.output(c.b.add(Op::kTosaRescale, {sums}, "rescale", attrs));
  for (const kernels::Isa isa : kernels::usable_isas()) {
    PrepareOptions options;
    options.kernels.isa = isa;
    Session session(prepare(c.b.graph, options));
    CHECK(fused_followers(session.prepared()) == 1);
    CHECK_THROWS_AS(session.run(c.inputs()), InvalidGraph);
  }
}

TEST_CASE("a contraction fused with its rescale and clamp equals the separate nodes", "[exec]") {
  Data data(37);
  for (const Head& head : heads()) {
    Case c;
    const ValueId sums = add_head(c, data, head);
    const ValueId narrow = add_rescale(c, data, head, sums, true, DType::kI8);
    const TosaClampAttrs bounds{std::int64_t{-50}, std::int64_t{61}, NanMode::kPropagate};
    c.b.output(c.b.add(Op::kTosaClamp, {narrow}, "clamp", bounds));
    check_same_results(c, 2);
  }
}

TEST_CASE("values with another reader, or that are outputs, are not fused away", "[exec]") {
  Data data(43);
  for (const bool as_output : {true, false}) {
    Case c;
    const ValueId sums = add_head(c, data, heads()[0]);
    c.b.output(c.b.add(Op::kTosaRescale, {sums}, "rescale", data.rescale(1, DType::kI8)));
    c.b.output(as_output ? sums : c.b.add(Op::kTosaAbs, {sums}, "abs"));
    check_same_results(c, 0);
  }
}

TEST_CASE("overridden nodes are not fused", "[exec]") {
  Data data(47);
  Case c;
  const ValueId sums = add_head(c, data, heads()[0]);
  c.b.output(c.b.add(Op::kTosaRescale, {sums}, "rescale", data.rescale(1, DType::kI8)));
  PrepareOptions options;
  options.overrides.nodes["rescale"] = [](const NodeCall& call) {
    std::fill_n(call.results[0].data, num_elements(call.results[0].shape), std::byte{3});
  };
  Session session(prepare(c.b.graph, options));
  CHECK(fused_followers(session.prepared()) == 0);
  const std::vector<double> found = doubles(session.run(c.inputs()).outputs.at(0));
  CHECK(found == std::vector<double>(found.size(), 3));
}

TEST_CASE("a trace of a fused graph has the intermediate values", "[exec]") {
  Data data(53);
  Case c;
  const ValueId sums = add_head(c, data, heads()[4]);
  const ValueId narrow = c.b.add(Op::kTosaRescale, {sums}, "rescale", data.rescale(1, DType::kI8));
  c.b.output(
      c.b.add(Op::kTosaAbs, {c.b.add(Op::kTosaCast, {narrow}, "cast", CastAttrs{DType::kI32})}, "abs"));
  PrepareOptions reference;
  reference.kernels.reference = true;
  Session fused(prepare(c.b.graph)), plain(prepare(c.b.graph, reference));
  CHECK(fused_followers(fused.prepared()) == 1);
  std::vector<std::string> seen;
  RunOptions options;
  options.trace.all = true;
  options.observer = [&](const NodeCall& call) { seen.push_back(call.name); };
  const RunResult found = fused.run(c.inputs(), options), expected = plain.run(c.inputs(), options);
  CHECK(seen.size() == 8);
  REQUIRE(found.trace.size() == expected.trace.size());
  for (std::size_t i = 0; i < found.trace.size(); ++i)
    CHECK(doubles(found.trace[i].array) == doubles(expected.trace[i].array));
}

TEST_CASE("an error of a fused step names the node that caused it", "[exec]") {
  Data data(59);
  Case c;
  const ValueId sums = add_head(c, data, heads()[1]);
  TosaRescaleAttrs attrs = data.rescale(1, DType::kI8);
  attrs.shift = {8};  // defined for values of 7 bits and a sign only
  c.b.output(c.b.add(Op::kTosaRescale, {sums}, "rescale", attrs));
  Session session(prepare(c.b.graph));
  CHECK(fused_followers(session.prepared()) == 1);
  CHECK_THROWS_WITH(session.run(c.inputs()),
                    Catch::Contains("tosa.rescale: a value less its zero point is out of") &&
                        Catch::Contains("node 'rescale'"));
}

TEST_CASE("fused chains do not overwrite values that stay live across them", "[exec]") {
  Data data(61);
  Case c;
  const ValueId x = add_input(c, data, "x", {1, 12, 12, 32});
  ValueId value = x;
  for (int i = 0; i < 6; ++i) {
    const std::string n = std::to_string(i);
    const ValueId w = c.b.graph->add_constant(data.constant("w" + n, DType::kI8, {32, 3, 3, 32}));
    const ValueId bias = c.b.graph->add_constant(data.constant("b" + n, DType::kI32, {32}));
    const ValueId sums =
        c.b.add(Op::kTosaConv2d, {value, w, bias}, "conv" + n, conv({1, 1, 1, 1}, {1, 1}, {1, 1}, i));
    const ValueId narrow = c.b.add(Op::kTosaRescale, {sums}, "rescale" + n, data.rescale(32, DType::kI8));
    const ValueId bounded = c.b.add(Op::kTosaClamp, {narrow}, "clamp" + n,
                                    TosaClampAttrs{std::int64_t{-90}, std::int64_t{i}, NanMode::kPropagate});
    const ValueId wide = c.b.add(Op::kTosaCast, {bounded}, "cast" + n, CastAttrs{DType::kI32});
    const ValueId old = c.b.add(Op::kTosaCast, {value}, "old" + n, CastAttrs{DType::kI32});
    const ValueId both = c.b.add(Op::kTosaAdd, {wide, old}, "add" + n);
    TosaRescaleAttrs back = data.rescale(1, DType::kI8);
    back.shift = {31};
    value = c.b.add(Op::kTosaRescale, {both}, "back" + n, back);
  }
  c.b.output(value);
  check_same_results(c, 2);
}

}  // namespace tosaic::exec
