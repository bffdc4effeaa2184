// example_graphs: graphs that the tests of ir/ share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor_types.h"
#include "tosaic/ir/graph.h"

namespace tosaic::testing {

inline OriginRef leaf(std::string fx_name, std::string target, std::int32_t line) {
  auto origin = std::make_shared<Origin>();
  origin->fx_name = std::move(fx_name);
  origin->target = std::move(target);
  origin->module_path = "layer1.0";
  origin->file = "/home/me/my \"model\".py";
  origin->line = line;
  return origin;
}

inline ConstantRef constant(std::string name, DType dtype, Shape shape, const std::vector<double>& values) {
  return make_constant(std::move(name), dtype, shape, values);
}

inline ValueId add(Graph& graph, Op op, Attrs attrs, std::vector<ValueId> operands, std::string name = "",
                   OriginRef origin = nullptr) {
  return graph.add(op, std::move(attrs), operands, std::move(origin), std::move(name));
}

inline void returns(Graph& graph, ValueId value, std::string path = "out[0]") {
  graph.add_output({value, OutputKind::kUser, std::move(path), 0, {}});
}

// relu(x) + relu(x) * 2. All names start with `prefix`.
inline Graph small_graph(const std::string& prefix = "") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, prefix + "x", f32({2, 3}), "args[0]");
  const ValueId two = graph.add_constant(constant(prefix + "two", DType::kF32, {}, {2.0}));
  const ValueId relu = add(graph, Op::kRelu, NoAttrs{}, {x}, prefix + "relu");
  const ValueId mul = add(graph, Op::kMul, NoAttrs{}, {relu, two}, prefix + "mul");
  returns(graph, add(graph, Op::kAdd, AlphaAttrs{}, {relu, mul}, prefix + "add"));
  return graph;
}

// A branch of `cond` that computes op(x).
inline std::shared_ptr<const Graph> branch(const std::string& name, Op op) {
  Graph graph;
  graph.name = name;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2, 3}), "");
  returns(graph, add(graph, op, NoAttrs{}, {x}, "y", leaf("inner", "aten.op.default", 7)), "");
  return std::make_shared<const Graph>(std::move(graph));
}

// A graph with one of everything that the text form can express.
inline Graph full_graph() {
  Graph graph;
  graph.name = "a graph";
  BoundaryFormat boundary;
  boundary.source_dtype = DType::kI64;
  boundary.range_min = -5;
  boundary.range_max = 100;
  boundary.order = DimOrder({0, 2, 3, 1});
  boundary.physical = true;
  TensorType image = f32({1, 4, 8, 8});
  image.order = DimOrder::channels_last(4);
  const ValueId x = graph.add_input(InputKind::kUser, "x", image, "kwargs['x']", boundary);
  const ValueId flag = graph.add_input(InputKind::kUser, "is it?", tensor(DType::kBool, {}), "args[1]");
  const ValueId cache =
      graph.add_input(InputKind::kState, "cache", f32({2, 3}), "cache", {},
                      constant("cache.0", DType::kF32, {2, 3}, {0.1, -0.0, 1e-40, 3e38, 5, 6}));
  const ValueId weight =
      graph.add_constant(constant("conv.weight", DType::kF32, {4, 4, 3, 3}, std::vector<double>(144, 0.5)));
  const OriginRef conv_origin = leaf("conv2d", "aten.conv2d.default", 41);
  const ValueId conv = add(graph, Op::kConv, ConvAttrs{{1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, 1, false},
                           {x, weight, ValueId()}, "conv2d", conv_origin);
  auto qparams = std::make_shared<QParams>();
  qparams->axis = 1;
  qparams->scales = {0.1, 1.0 / 3, 2, 1e-12};
  qparams->zero_points = {0, -128, 127, 3};
  TensorType quantized = f32({1, 4, 8, 8});
  quantized.qparams = qparams;
  const ValueId conv_operand[] = {conv};
  graph.add_node(Op::kRelu, share(NoAttrs{}), conv_operand, std::span(&quantized, 1), nullptr, "relu");
  const OriginRef split_origin = leaf("split", "aten.split.Tensor", 42);
  const std::vector<TensorType> halves{f32({1, 2, 8, 8}), f32({1, 2, 8, 8})};
  const NodeId split = graph.add_node(Op::kSplit, share(SplitAttrs{1, {2, 2}}), conv_operand, halves,
                                      merge({conv_origin, split_origin}), "split");
  graph.add_node(Op::kOpaque, share(OpaqueAttrs{"my::log", "[{\"$\": 0}, \"a\\n\"]"}), conv_operand, {},
                 nullptr, "log");
  const ValueId clamped =
      add(graph, Op::kClamp, ClampAttrs{Scalar(std::int64_t{0}), Scalar(1.0 / 0.0)}, {cache}, "clamp");
  const ValueId opaque_operands[] = {clamped, ValueId(cache)};
  const std::vector<TensorType> three{f32({2, 3}), tensor(DType::kI64, {}), f32({0, 3})};
  graph.add_node(Op::kOpaque, share(OpaqueAttrs{"my::op", ""}), opaque_operands, three, split_origin,
                 "opaque");
  const ValueId cond_operands[] = {flag, cache};
  const std::vector<TensorType> cond_types{f32({2, 3})};
  const NodeId cond = graph.add_node(Op::kCond, share(NoAttrs{}), cond_operands, cond_types, conv_origin,
                                     "cond", {branch("then", Op::kRelu), branch("or else", Op::kTanh)});
  BoundaryFormat logical;
  logical.order = DimOrder::channels_last(4);
  graph.add_output({graph.result(graph.node(split), 1), OutputKind::kUser, "out['a']", 0, logical});
  graph.add_output({graph.result(graph.node(cond)), OutputKind::kMutation, "cache", 2, {}});
  return graph;
}

// x = x + relu(conv(x) + bias), `blocks` times.
inline Graph conv_network(int blocks) {
  Graph graph;
  ValueId x = graph.add_input(InputKind::kUser, "x", f32({1, 4, 8, 8}), "args[0]");
  for (int i = 0; i < blocks; ++i) {
    const std::string at = "layer" + std::to_string(i);
    const OriginRef origin = leaf(at, "aten.conv2d.default", i + 1);
    const ValueId weight = graph.add_constant(
        constant(at + ".weight", DType::kF32, {4, 4, 1, 1}, std::vector<double>(16, i / 7.0)));
    const ValueId bias = graph.add_constant(constant(at + ".bias", DType::kF32, {4}, {0, 1, 2, i / 3.0}));
    const ValueId conv = add(graph, Op::kConv, ConvAttrs{{1, 1}, {0, 0}, {0, 0}, {1, 1}, {0, 0}, 1, false},
                             {x, weight, bias}, at + ".conv", origin);
    const ValueId relu = add(graph, Op::kRelu, NoAttrs{}, {conv}, at + ".relu", origin);
    x = add(graph, Op::kAdd, AlphaAttrs{}, {x, relu}, at + ".add", leaf(at + "_add", "aten.add.Tensor", i));
  }
  returns(graph, x);
  return graph;
}

// The text of the Error that the call throws; "" if it does not throw.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace tosaic::testing
