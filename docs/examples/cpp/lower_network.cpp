// Lowers a network to TOSA, with a pass and an operator that tosaic does not have:
//
//   lower_network network.tosa
//
//   input -> conv -> swish -> conv -> gelu -> output
//
// tosaic does not know `swish`. This file describes the operator and has its kernel. The pass `quick-gelu`
// writes gelu as x * sigmoid(1.702 x), which some devices compute faster.
#include <tosaic/exec/session.h>
#include <tosaic/ir/print.h>
#include <tosaic/ir/rewriter.h>
#include <tosaic/passes/pass.h>
#include <tosaic/pipeline/executable.h>
#include <tosaic/pipeline/lower.h>
#include <tosaic/pipeline/pipeline.h>
#include <tosaic/target/spec.h>
#include <tosaic/tosa/deserialize.h>
#include <tosaic/tosa/serialize.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

using SharedGraph = std::shared_ptr<const tosaic::Graph>;

// ---- an operator of your own: a description, and a kernel ----

// The description is a node `opaque` of the graph. tosaic cannot infer the type of the result, so the node
// has it. `target` finds the kernel of the node. `domain` and `name` are written into the CUSTOM that the
// node becomes in the file. `arguments`, a JSON object, is copied into the file, with a key "dim_orders" if a
// tensor is not in row-major order. It is the call in Python's form, swish(operand 0, 1.5), so that Python
// runs the file with a description of swish. With layout kAny the operator computes each element by itself,
// so it takes its tensors in any dim order.
tosaic::ValueId add_swish(tosaic::Graph& graph, tosaic::ValueId x) {
  tosaic::OpaqueAttrs attrs;
  attrs.target = "my_library.swish";
  attrs.arguments = R"({"args":[{"$":0},1.5],"kwargs":{}})";
  attrs.domain = "my_library";
  attrs.name = "swish";
  attrs.layout = tosaic::ForeignLayout::kAny;
  const tosaic::TensorType result = graph.type(x);
  const tosaic::NodeId node = graph.add_node(tosaic::Op::kOpaque, tosaic::share(attrs), std::span(&x, 1),
                                             std::span(&result, 1), nullptr, "swish");
  return graph.result(graph.node(node));
}

// The memory of the result is allocated. The kernel writes each of its elements, and nothing else.
void swish(const tosaic::exec::NodeCall& call) {
  const auto* from = reinterpret_cast<const float*>(call.operands[0].data);
  auto* to = reinterpret_cast<float*>(call.results[0].data);
  const std::int64_t count = tosaic::num_elements(call.results[0].shape);
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] / (1 + std::exp(-1.5f * from[i]));
}

// A run finds the kernel of an opaque node by its target or by "domain.name", and the kernel of a CUSTOM by
// "domain.name". So one key serves before and after lowering.
tosaic::exec::PrepareOptions with_swish() {
  tosaic::exec::PrepareOptions options;
  options.overrides.ops["my_library.swish"] = swish;
  return options;
}

// ---- a pass of your own: a function from graph to changed graph ----

std::optional<tosaic::Graph> quick_gelu(const tosaic::Graph& graph, const tosaic::passes::PassOptions&) {
  using tosaic::Op;
  tosaic::Rewriter rewriter(graph);
  for (const tosaic::Node& node : graph.nodes()) {
    if (node.op != Op::kGelu) {
      rewriter.copy(node);
      continue;
    }
    // emit() adds nodes to the new graph. map() finds there the value that the old node read.
    const tosaic::ValueId factor = rewriter.constant(
        node, tosaic::make_constant("factor", tosaic::DType::kF32, {}, std::vector<double>{1.702}));
    const tosaic::ValueId x = rewriter.map(graph.operands(node)[0]);
    const tosaic::ValueId scaled = rewriter.emit(node, Op::kMul, tosaic::NoAttrs{}, {x, factor});
    const tosaic::ValueId gate = rewriter.emit(node, Op::kSigmoid, tosaic::NoAttrs{}, {scaled});
    rewriter.replace(node, rewriter.emit(node, Op::kMul, tosaic::NoAttrs{}, {x, gate}));
  }
  return std::move(rewriter).finish();  // nothing if every node was copied
}

tosaic::pipeline::Pipeline pipeline_with_quick_gelu() {
  tosaic::passes::Pass pass;
  pass.name = "quick-gelu";
  pass.summary = "Writes gelu as x * sigmoid(1.702 x).";
  pass.takes = {tosaic::Stage::kExported};
  pass.run = quick_gelu;
  tosaic::pipeline::Pipeline pipeline =
      tosaic::pipeline::default_pipeline(tosaic::target::parse_target("TOSA-1.0+FP"));
  pipeline.insert_before("decompose", pass);
  return pipeline;
}

// ---- the network ----

// A convolution of 4 channels with 3x3 weights, padded so that the image keeps its size. Axes are in torch's
// order: (image, channel, row, column).
tosaic::ValueId add_conv(tosaic::Graph& graph, tosaic::ValueId x, const std::string& name) {
  std::vector<double> weights;
  for (int i = 0; i < 4 * 4 * 3 * 3; ++i) weights.push_back(0.2 * std::sin(i));
  const tosaic::ValueId weight =
      graph.add_constant(tosaic::make_constant(name + ".weight", tosaic::DType::kF32, {4, 4, 3, 3}, weights));
  const tosaic::ValueId bias = graph.add_constant(
      tosaic::make_constant(name + ".bias", tosaic::DType::kF32, {4}, std::vector<double>(4, 0.1)));
  tosaic::ConvAttrs attrs;
  attrs.stride = attrs.pad_before = attrs.pad_after = attrs.dilation = {1, 1};
  attrs.output_padding = {0, 0};
  const tosaic::ValueId operands[] = {x, weight, bias};
  return graph.add(tosaic::Op::kConv, attrs, operands, nullptr, name);
}

SharedGraph network() {
  tosaic::Graph graph;
  tosaic::TensorType type;
  type.dtype = tosaic::DType::kF32;
  type.shape = {1, 4, 8, 8};
  tosaic::ValueId x = graph.add_input(tosaic::InputKind::kUser, "image", type, "image");
  x = add_conv(graph, x, "conv1");
  x = add_swish(graph, x);
  x = add_conv(graph, x, "conv2");
  x = graph.add(tosaic::Op::kGelu, tosaic::GeluAttrs{}, std::span(&x, 1), nullptr, "gelu");
  tosaic::Output output;
  output.value = x;
  output.path = "out";
  graph.add_output(output);
  return std::make_shared<const tosaic::Graph>(std::move(graph));
}

// ---- run, lower, write ----

std::vector<double> run(const SharedGraph& graph, const tosaic::exec::ArrayView& image) {
  const std::vector<tosaic::exec::Array> outputs =
      tosaic::exec::run(graph, std::span(&image, 1), with_swish());
  std::vector<double> numbers(static_cast<std::size_t>(tosaic::num_elements(outputs[0].shape)));
  tosaic::exec::read_doubles(outputs[0].view(), 0, numbers);
  return numbers;
}

void write_file(const std::string& path, const tosaic::Storage& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.bytes().data()), static_cast<std::streamsize>(bytes.size()));
}

void lower_to(const std::string& path) {
  const SharedGraph graph = network();
  const tosaic::pipeline::Lowered lowered = tosaic::pipeline::lower(graph, pipeline_with_quick_gelu());
  for (const tosaic::Node& node : lowered.tosa->nodes())
    std::cout << lowered.tosa->node_name(node) << ": " << info(node.op).name << '\n';

  const tosaic::Storage file = tosaic::tosa::serialize(*lowered.tosa);
  write_file(path, file);

  std::vector<float> pixels(1 * 4 * 8 * 8);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = std::cos(static_cast<float>(i));
  const auto image = tosaic::exec::ArrayView::dense(reinterpret_cast<const std::byte*>(pixels.data()),
                                                    tosaic::DType::kF32, {1, 4, 8, 8});
  const std::vector<double> before = run(graph, image);
  const std::vector<double> after = run(lowered.tosa, image);
  const auto read = std::make_shared<const tosaic::Graph>(tosaic::tosa::deserialize(file));
  double worst = 0;
  for (std::size_t i = 0; i < before.size(); ++i) worst = std::max(worst, std::abs(before[i] - after[i]));
  std::cout << "quick-gelu changes the output by less than 0.03: " << (worst < 0.03 ? "yes" : "no") << '\n'
            << "the file computes the same: " << (run(read, image) == after ? "yes" : "no") << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: lower_network network.tosa\n";
    return 2;
  }
  try {
    lower_to(argv[1]);
  } catch (const std::exception& error) {  // tosaic::Error is one, and names the node and what is wrong
    std::cerr << error.what() << '\n';
    return 1;
  }
}
