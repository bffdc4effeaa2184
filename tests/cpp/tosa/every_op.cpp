#include "tosa/every_op.h"

#include "tensor_types.h"

namespace tosaic::testing {
namespace {

// A graph of one node, whose operands are graph inputs (named in<operand>) and constants (c<operand>).
class Case {
 public:
  Case(std::string name, Op op, Attrs attrs) : name_(std::move(name)), op_(op), attrs_(std::move(attrs)) {
    graph_.stage = Stage::kTosa;
  }

  Case& in(DType dtype, const Shape& shape) {
    const std::string input = "in" + std::to_string(operands_.size());
    operands_.push_back(graph_.add_input(InputKind::kUser, input, tensor(dtype, shape), input));
    return *this;
  }
  Case& constant(DType dtype, const Shape& shape) {
    const std::string constant = "c" + std::to_string(operands_.size());
    operands_.push_back(graph_.add_constant(counting_constant(constant, dtype, shape)));
    return *this;
  }
  TosaCase done() {
    give(graph_.add(op_, attrs_, operands_, nullptr, "result"));
    return {name_, std::move(graph_)};
  }
  // Finishes a case of an operator without type inference, or with several results.
  TosaCase done(const std::vector<TensorType>& results,
                std::vector<std::shared_ptr<const Graph>> regions = {}) {
    const NodeId node = graph_.add_node(op_, share(attrs_), operands_, results, nullptr, "result", regions);
    for (std::size_t i = 0; i < results.size(); ++i) give(graph_.result(graph_.node(node), i));
    return {name_, std::move(graph_)};
  }

 private:
  void give(ValueId value) {
    Output output;
    output.value = value;
    output.path = "out" + std::to_string(graph_.outputs().size());
    graph_.add_output(output);
  }

  std::string name_;
  Op op_;
  Attrs attrs_;
  Graph graph_;
  std::vector<ValueId> operands_;
};

std::string named(Op op, DType dtype) {
  return std::string(info(op).name) + "_" + std::string(to_string(dtype));
}

struct ConvDTypes {
  DType input, weight, bias, acc;
};

constexpr ConvDTypes kConvDTypes[] = {{DType::kF32, DType::kF32, DType::kF32, DType::kF32},
                                      {DType::kI8, DType::kI8, DType::kI32, DType::kI32},
                                      {DType::kI8, DType::kI4, DType::kI32, DType::kI32},
                                      {DType::kI16, DType::kI8, DType::kI48, DType::kI48},
                                      {DType::kF16, DType::kF16, DType::kF16, DType::kF32},
                                      {DType::kBF16, DType::kBF16, DType::kBF16, DType::kF32},
                                      {DType::kF8E4M3, DType::kF8E4M3, DType::kF16, DType::kF16}};

void add_convolutions(std::vector<TosaCase>& cases) {
  for (const ConvDTypes& d : kConvDTypes) {
    TosaConvAttrs conv;
    conv.pad = {1, 0, 1, 0};
    conv.stride = {2, 1};
    conv.dilation = {1, 2};
    conv.acc_type = d.acc;
    conv.input_zp = d.input == DType::kI8 ? -7 : 0;
    conv.weight_zp = d.weight == DType::kI8 && d.input == DType::kI8 ? 2 : 0;
    TosaConvAttrs volume = conv;
    volume.pad = {0, 0, 1, 0, 1, 0};
    volume.stride = {1, 2, 1};
    volume.dilation = {1, 1, 2};
    TosaTransposeConvAttrs transpose;
    transpose.out_pad = {0, -1, 1, 0};
    transpose.stride = {2, 1};
    transpose.acc_type = d.acc;
    transpose.input_zp = conv.input_zp;
    transpose.weight_zp = conv.weight_zp;
    const std::string dtypes = "_" + std::string(to_string(d.input)) + "_" + std::string(to_string(d.weight));
    cases.push_back(Case("tosa.conv2d" + dtypes, Op::kTosaConv2d, conv)
                        .in(d.input, {1, 6, 6, 3})
                        .constant(d.weight, {5, 3, 3, 3})
                        .constant(d.bias, {5})
                        .done());
    cases.push_back(Case("tosa.depthwise_conv2d" + dtypes, Op::kTosaDepthwiseConv2d, conv)
                        .in(d.input, {1, 6, 6, 3})
                        .constant(d.weight, {3, 3, 3, 1})
                        .constant(d.bias, {1})
                        .done());
    cases.push_back(Case("tosa.conv3d" + dtypes, Op::kTosaConv3d, volume)
                        .in(d.input, {1, 2, 6, 6, 3})
                        .constant(d.weight, {2, 2, 3, 3, 3})
                        .constant(d.bias, {2})
                        .done());
    cases.push_back(Case("tosa.transpose_conv2d" + dtypes, Op::kTosaTransposeConv2d, transpose)
                        .in(d.input, {1, 3, 3, 3})
                        .constant(d.weight, {2, 3, 3, 3})
                        .constant(d.bias, {2})
                        .done());
  }
}

void add_windows(std::vector<TosaCase>& cases) {
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI16, DType::kF16, DType::kBF16}) {
    TosaAvgPoolAttrs average;
    average.kernel = {3, 2};
    average.stride = {1, 2};
    average.pad = {1, 1, 0, 0};
    average.acc_type = is_float(dtype) ? DType::kF32 : DType::kI32;
    average.input_zp = dtype == DType::kI8 ? 5 : 0;
    average.output_zp = dtype == DType::kI8 ? -128 : 0;
    TosaMaxPoolAttrs maximum;
    maximum.kernel = average.kernel;
    maximum.stride = average.stride;
    maximum.pad = average.pad;
    maximum.nan_mode = NanMode::kIgnore;
    cases.push_back(
        Case(named(Op::kTosaAvgPool2d, dtype), Op::kTosaAvgPool2d, average).in(dtype, {1, 4, 6, 2}).done());
    cases.push_back(
        Case(named(Op::kTosaMaxPool2d, dtype), Op::kTosaMaxPool2d, maximum).in(dtype, {1, 4, 6, 2}).done());
  }
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI16})
    for (const ResizeMode mode : {ResizeMode::kNearest, ResizeMode::kBilinear}) {
      TosaResizeAttrs resize;
      resize.mode = mode;
      resize.scale = {4, 2, 2, 1};
      resize.offset = {-1, 0};
      resize.border = {1, 1};
      const char* suffix = mode == ResizeMode::kNearest ? "_nearest" : "_bilinear";
      cases.push_back(Case(named(Op::kTosaResize, dtype) + suffix, Op::kTosaResize, resize)
                          .in(dtype, {1, 4, 5, 2})
                          .done());
    }
}

void add_matmul(std::vector<TosaCase>& cases) {
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI16, DType::kF16, DType::kBF16}) {
    TosaMatmulAttrs attrs;
    if (dtype == DType::kI8) attrs = {-3, 4, std::nullopt};
    cases.push_back(Case(named(Op::kTosaMatmul, dtype), Op::kTosaMatmul, attrs)
                        .in(dtype, {2, 3, 4})
                        .constant(dtype, {2, 4, 5})
                        .done());
  }
  cases.push_back(
      Case(named(Op::kTosaMatmul, DType::kF16) + "_f32", Op::kTosaMatmul, TosaMatmulAttrs{0, 0, DType::kF32})
          .in(DType::kF16, {2, 3, 4})
          .constant(DType::kF16, {2, 4, 5})
          .done());
}

void add_elementwise(std::vector<TosaCase>& cases) {
  using enum Op;
  const auto unary = [&](Op op, DType dtype, Attrs attrs = NoAttrs{}) {
    cases.push_back(Case(named(op, dtype), op, std::move(attrs)).in(dtype, {2, 1, 3}).done());
  };
  const auto binary = [&](Op op, DType dtype, Attrs attrs = NoAttrs{}) {
    cases.push_back(
        Case(named(op, dtype), op, std::move(attrs)).in(dtype, {2, 1, 3}).in(dtype, {2, 4, 1}).done());
  };
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    for (const Op op : {kTosaErf, kTosaSigmoid, kTosaTanh, kTosaAbs, kTosaCeil, kTosaCos, kTosaExp,
                        kTosaFloor, kTosaLog, kTosaReciprocal, kTosaRsqrt, kTosaSin})
      unary(op, dtype);
  for (const DType dtype : {DType::kI8, DType::kI16, DType::kI32}) unary(kTosaBitwiseNot, dtype);
  unary(kTosaAbs, DType::kI32);
  unary(kTosaClz, DType::kI32);
  unary(kTosaLogicalNot, DType::kBool);
  for (const DType dtype : {DType::kF32, DType::kI32, DType::kI16, DType::kF16})
    unary(kTosaNegate, dtype, TosaZeroPointAttrs{});
  unary(kTosaNegate, DType::kI8, TosaZeroPointAttrs{-2, 3});
  unary(kTosaClamp, DType::kF32, TosaClampAttrs{-0.5, 0.75, NanMode::kPropagate});
  unary(kTosaClamp, DType::kBF16, TosaClampAttrs{-0.5, 0.75, NanMode::kIgnore});
  unary(kTosaClamp, DType::kI8, TosaClampAttrs{std::int64_t{-5}, std::int64_t{100}, NanMode::kPropagate});
  unary(kTosaClamp, DType::kI16, TosaClampAttrs{std::int64_t{-300}, std::int64_t{300}, NanMode::kPropagate});
  for (const DType dtype : {DType::kF32, DType::kI32, DType::kF16, DType::kBF16}) {
    binary(kTosaAdd, dtype);
    binary(kTosaSub, dtype);
    binary(kTosaMaximum, dtype, TosaNanAttrs{});
    binary(kTosaMinimum, dtype, TosaNanAttrs{NanMode::kIgnore});
    binary(kTosaEqual, dtype);
    binary(kTosaGreater, dtype);
    binary(kTosaGreaterEqual, dtype);
    binary(kTosaMul, dtype, TosaMulAttrs{dtype == DType::kI32 ? 3 : 0});
    if (is_float(dtype)) binary(kTosaPow, dtype);
  }
  binary(kTosaMul, DType::kI8, TosaMulAttrs{});
  binary(kTosaMul, DType::kI16, TosaMulAttrs{});
  binary(kTosaIntdiv, DType::kI32);
  for (const DType dtype : {DType::kI8, DType::kI16, DType::kI32}) {
    binary(kTosaArithmeticRightShift, dtype, TosaShiftAttrs{true});
    for (const Op op :
         {kTosaBitwiseAnd, kTosaBitwiseOr, kTosaBitwiseXor, kTosaLogicalLeftShift, kTosaLogicalRightShift})
      binary(op, dtype);
  }
  for (const Op op : {kTosaLogicalAnd, kTosaLogicalOr, kTosaLogicalXor}) binary(op, DType::kBool);
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kBool})
    cases.push_back(Case(named(kTosaSelect, dtype), kTosaSelect, NoAttrs{})
                        .in(DType::kBool, {2, 1, 1})
                        .in(dtype, {1, 4, 3})
                        .in(dtype, {2, 1, 3})
                        .done());
  const auto cast = [&](DType from, DType to) {
    cases.push_back(Case(named(kTosaCast, from) + "_" + std::string(to_string(to)), kTosaCast, CastAttrs{to})
                        .in(from, {2, 3})
                        .done());
  };
  cast(DType::kF32, DType::kI8);
  cast(DType::kI32, DType::kF32);
  cast(DType::kBool, DType::kI32);
  cast(DType::kF32, DType::kF16);
  cast(DType::kF16, DType::kF8E5M2);
  cast(DType::kF32, DType::kBF16);
}

void add_reductions(std::vector<TosaCase>& cases) {
  using enum Op;
  const auto reduce = [&](Op op, DType dtype, Attrs attrs) {
    cases.push_back(Case(named(op, dtype), op, std::move(attrs)).in(dtype, {2, 5, 3}).done());
  };
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI16, DType::kF16})
    reduce(kTosaArgmax, dtype, TosaAxisNanAttrs{1, NanMode::kPropagate});
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI32, DType::kBF16}) {
    reduce(kTosaReduceMax, dtype, TosaAxisNanAttrs{2, NanMode::kIgnore});
    reduce(kTosaReduceMin, dtype, TosaAxisNanAttrs{0, NanMode::kPropagate});
  }
  for (const DType dtype : {DType::kF32, DType::kI32, DType::kF16})
    reduce(kTosaReduceSum, dtype, AxisAttrs{1});
  reduce(kTosaReduceProduct, DType::kF32, AxisAttrs{2});
  reduce(kTosaReduceAll, DType::kBool, AxisAttrs{0});
  reduce(kTosaReduceAny, DType::kBool, AxisAttrs{1});
}

void add_movement(std::vector<TosaCase>& cases) {
  using enum Op;
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI16, DType::kI32, DType::kBool, DType::kF16}) {
    const auto move = [&](Op op, Attrs attrs) {
      cases.push_back(Case(named(op, dtype), op, std::move(attrs)).in(dtype, {2, 4, 3}).done());
    };
    const Scalar fill = dtype == DType::kBool ? Scalar(true)
                        : is_float(dtype)     ? Scalar(1.5)
                                              : Scalar(std::int64_t{-3});
    move(kTosaPad, TosaPadAttrs{{0, 1, 2}, {3, 0, 1}, fill});
    move(kTosaReshape, ShapeAttrs{{6, 4}});
    move(kTosaReverse, AxisAttrs{1});
    move(kTosaSlice, TosaSliceAttrs{{1, 0, 1}, {1, 3, 2}});
    move(kTosaTile, ShapeAttrs{{1, 2, 3}});
    move(kTosaTranspose, PermuteAttrs{{2, 0, 1}});
    move(kTosaIdentity, NoAttrs{});
    cases.push_back(Case(named(kTosaConcat, dtype), kTosaConcat, AxisAttrs{1})
                        .in(dtype, {2, 4, 3})
                        .constant(dtype, {2, 1, 3})
                        .in(dtype, {2, 2, 3})
                        .done());
  }
  cases.push_back(Case("tosa.reshape_to_scalar", kTosaReshape, ShapeAttrs{}).in(DType::kF32, {1, 1}).done());
  cases.push_back(Case("tosa.identity_i48", kTosaIdentity, NoAttrs{}).constant(DType::kI48, {3}).done());
  cases.push_back(Case("tosa.identity_i4", kTosaIdentity, NoAttrs{}).constant(DType::kI4, {3}).done());
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI32}) {
    cases.push_back(Case(named(kTosaGather, dtype), kTosaGather, NoAttrs{})
                        .in(dtype, {2, 4, 3})
                        .in(DType::kI32, {2, 5})
                        .done());
    cases.push_back(Case(named(kTosaScatter, dtype), kTosaScatter, NoAttrs{})
                        .in(dtype, {2, 4, 3})
                        .in(DType::kI32, {2, 2})
                        .in(dtype, {2, 2, 3})
                        .done());
  }
}

void add_transforms(std::vector<TosaCase>& cases) {
  const TensorType whole = tensor(DType::kF32, {2, 4, 8});
  const TensorType half = tensor(DType::kF32, {2, 4, 5});
  cases.push_back(Case("tosa.fft2d", Op::kTosaFft2d, TosaFftAttrs{true, false})
                      .in(DType::kF32, {2, 4, 8})
                      .in(DType::kF32, {2, 4, 8})
                      .done({whole, whole}));
  cases.push_back(Case("tosa.rfft2d", Op::kTosaRfft2d, TosaRfftAttrs{true})
                      .in(DType::kF32, {2, 4, 8})
                      .done({half, half}));
}

void add_quantized(std::vector<TosaCase>& cases) {
  cases.push_back(Case("tosa.table_i8", Op::kTosaTable, NoAttrs{})
                      .in(DType::kI8, {2, 3})
                      .constant(DType::kI8, {256})
                      .done());
  cases.push_back(Case("tosa.table_i16", Op::kTosaTable, NoAttrs{})
                      .in(DType::kI16, {2, 3})
                      .constant(DType::kI16, {513})
                      .done());
  TosaRescaleAttrs rescale;
  rescale.input_zp = -3;
  rescale.output_zp = 200;
  rescale.output_unsigned = true;
  rescale.per_channel = true;
  rescale.multiplier = {1 << 30, 3, 0};
  rescale.shift = {31, 2, 62};
  cases.push_back(Case("tosa.rescale_i8_u8", Op::kTosaRescale, rescale).in(DType::kI8, {2, 3}).done());
  TosaRescaleAttrs wide;
  wide.dtype = DType::kI16;
  wide.scale32 = false;
  wide.rounding_mode = RoundingMode::kInexactRound;
  wide.multiplier = {32767};
  wide.shift = {20};
  cases.push_back(Case("tosa.rescale_i48_i16", Op::kTosaRescale, wide).in(DType::kI48, {2, 3}).done());
  TosaRescaleAttrs from_unsigned;
  from_unsigned.input_zp = 32768;
  from_unsigned.input_unsigned = true;
  from_unsigned.rounding_mode = RoundingMode::kDoubleRound;
  from_unsigned.multiplier = {1 << 30};
  from_unsigned.shift = {38};
  cases.push_back(Case("tosa.rescale_u16_i8", Op::kTosaRescale, from_unsigned).in(DType::kI16, {2}).done());
}

std::shared_ptr<const Graph> region(std::string name, Op op, DType dtype) {
  Graph graph;
  graph.stage = Stage::kTosa;
  graph.name = std::move(name);
  const ValueId a = graph.add_input(InputKind::kUser, "a", tensor(dtype, {2}), "a");
  const ValueId b = graph.add_input(InputKind::kUser, "b", tensor(dtype, {2}), "b");
  for (const ValueId value : {graph.add(op, NoAttrs{}, std::vector{a, b}, nullptr, "c"), b}) {
    Output output;
    output.value = value;
    graph.add_output(output);
  }
  return std::make_shared<const Graph>(std::move(graph));
}

// The condition of a loop: the first element of `a` is below 2.
std::shared_ptr<const Graph> below_two() {
  Graph graph;
  graph.stage = Stage::kTosa;
  graph.name = "below_two";
  const ValueId a = graph.add_input(InputKind::kUser, "a", tensor(DType::kI32, {2}), "a");
  graph.add_input(InputKind::kUser, "b", tensor(DType::kI32, {2}), "b");
  const ValueId two = graph.add_constant(make_constant("two", DType::kI32, {1}, std::vector{2.0}));
  const ValueId first = graph.add(Op::kTosaSlice, TosaSliceAttrs{{0}, {1}}, std::vector{a}, nullptr, "first");
  Output output;
  output.value = graph.add(Op::kTosaGreater, NoAttrs{}, std::vector{two, first}, nullptr, "go_on");
  graph.add_output(output);
  return std::make_shared<const Graph>(std::move(graph));
}

void add_control(std::vector<TosaCase>& cases) {
  const TensorType type = tensor(DType::kI32, {2});
  const auto sum = region("sum", Op::kTosaAdd, DType::kI32);
  cases.push_back(Case("tosa.cond_if", Op::kTosaCondIf, NoAttrs{})
                      .in(DType::kBool, {1})
                      .in(DType::kI32, {2})
                      .in(DType::kI32, {2})
                      .done({type, type}, {sum, region("difference", Op::kTosaSub, DType::kI32)}));
  cases.push_back(Case("tosa.while_loop", Op::kTosaWhileLoop, NoAttrs{})
                      .in(DType::kI32, {2})
                      .constant(DType::kI32, {2})
                      .done({type, type}, {below_two(), sum}));
  cases.push_back(Case("tosa.custom", Op::kTosaCustom, TosaCustomAttrs{"twist", "lab", "\x01\xff{}"})
                      .in(DType::kI32, {2})
                      .constant(DType::kF16, {3})
                      .done({type, tensor(DType::kBool, {})}));
}

// Two variables: `count`, which has an initial value and is read, increased and read again, and `last`, which
// has no initial value and is written before it is read.
TosaCase variables() {
  Graph graph;
  graph.stage = Stage::kTosa;
  const TensorType type = tensor(DType::kF32, {2});
  const ValueId x = graph.add_input(InputKind::kUser, "x", type, "x");
  const std::vector<ValueId> start{graph.add_constant(counting_constant("start", DType::kF32, {2}))};
  const AttrsRef count = share(TosaVariableAccessAttrs{"count", DType::kF32, {2}});
  const AttrsRef last = share(TosaVariableAccessAttrs{"last", DType::kF32, {2}});
  graph.add_node(Op::kTosaVariable, share(TosaVariableAttrs{"count", DType::kF32, {2}}), start, {}, nullptr,
                 "");
  graph.add_node(Op::kTosaVariable, share(TosaVariableAttrs{"last", DType::kF32, {2}}), {}, {}, nullptr, "");
  const auto read = [&](const AttrsRef& variable, const char* name) {
    const NodeId node =
        graph.add_node(Op::kTosaVariableRead, variable, {}, std::span(&type, 1), nullptr, name);
    return graph.result(graph.node(node));
  };
  const auto write = [&](const AttrsRef& variable, ValueId value) {
    graph.add_node(Op::kTosaVariableWrite, variable, std::span(&value, 1), {}, nullptr, "");
  };
  write(last, x);
  const ValueId before = read(count, "before");
  write(count, graph.add(Op::kTosaAdd, NoAttrs{}, std::vector{before, read(last, "again")}, nullptr, "sum"));
  for (const ValueId value : {before, read(count, "after")}) {
    Output output;
    output.value = value;
    graph.add_output(output);
  }
  return {"tosa.variables", std::move(graph)};
}

}  // namespace

ConstantRef counting_constant(std::string name, DType dtype, const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(num_elements(shape)));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = dtype == DType::kBool ? static_cast<double>(i % 2) : static_cast<double>(i % 7) - 3;
  return make_constant(std::move(name), dtype, shape, values);
}

std::vector<TosaCase> every_tosa_op() {
  std::vector<TosaCase> cases;
  add_convolutions(cases);
  add_windows(cases);
  add_matmul(cases);
  add_elementwise(cases);
  add_reductions(cases);
  add_movement(cases);
  add_transforms(cases);
  add_quantized(cases);
  add_control(cases);
  cases.push_back(variables());
  return cases;
}

Graph small_tosa_network() {
  Graph graph;
  graph.stage = Stage::kTosa;
  const auto origin = [](const char* name, const char* target, int line) {
    auto leaf = std::make_shared<Origin>();
    leaf->fx_name = name;
    leaf->target = target;
    leaf->module_path = "body." + std::string(name);
    leaf->file = "/home/me/model.py";
    leaf->line = line;
    return OriginRef(leaf);
  };
  const OriginRef conv_origin = origin("conv2d", "aten.conv2d.default", 12);
  const OriginRef relu_origin = origin("relu", "aten.relu.default", 13);
  const ValueId x = graph.add_input(InputKind::kUser, "x", tensor(DType::kI8, {1, 8, 8, 3}), "x");
  const ValueId weight = graph.add_constant(counting_constant("conv.weight", DType::kI4, {4, 3, 3, 3}));
  const ValueId bias = graph.add_constant(counting_constant("conv.bias", DType::kI32, {4}));
  TosaConvAttrs conv;
  conv.pad = {1, 1, 1, 1};
  conv.stride = {1, 1};
  conv.dilation = {1, 1};
  conv.acc_type = DType::kI32;
  const ValueId y = graph.add(Op::kTosaConv2d, conv, std::vector{x, weight, bias}, conv_origin, "conv2d");
  const ValueId zero = graph.add_constant(counting_constant("zero", DType::kI32, {1, 1, 1, 4}));
  const ValueId relu = graph.add(Op::kTosaMaximum, TosaNanAttrs{}, std::vector{y, zero},
                                 merge({conv_origin, relu_origin}), "relu");
  const ValueId flat =
      graph.add(Op::kTosaReshape, ShapeAttrs{{1, 64, 4}}, std::vector{relu}, nullptr, "flat");
  const ValueId padded = graph.add(Op::kTosaPad, TosaPadAttrs{{0, 0, 1}, {0, 0, 1}, std::int64_t{0}},
                                   std::vector{flat}, relu_origin, "padded");
  for (const ValueId value : {padded, x, padded, weight}) {
    Output output;
    output.value = value;
    output.path = "out[" + std::to_string(graph.outputs().size()) + "]";
    graph.add_output(output);
  }
  return graph;
}

}  // namespace tosaic::testing
