#include <algorithm>

#include "tosaic/passes/qdq/integer_boundary.h"
#include "tosaic/passes/qdq/io_quantization.h"
#include "tosaic/passes/qdq/qdq.h"

namespace tosaic::passes {
namespace {

PortQuantization of_input(const Graph& graph, const Input& input) {
  if (input.kind != InputKind::kUser) return {};
  if (!has_integer_form(graph.type(input.value).dtype)) return {{}, "it is not f32, f16 or bf16"};
  ReadersQuantization readers = quantization_by_readers(graph, input.value);
  PortQuantization out{{}, std::move(readers.obstacle)};
  if (!out.obstacle.empty()) return out;
  for (const QuantizeAttrs& each : readers.found) out.found.push_back(qparams_of(each, each.dtype));
  return out;
}

PortQuantization of_output(const Graph& graph, const Output& output) {
  if (output.kind != OutputKind::kUser) return {};
  if (!has_integer_form(graph.type(output.value).dtype)) return {{}, "it is not f32, f16 or bf16"};
  const std::optional<DequantizedOutput> found = dequantized_output(graph, output.value);
  if (!found) return {{}, "it is not dequantized"};
  return {{found->qparams}, ""};
}

FloatIoForms forms_of(const std::vector<PortRequest>& ports) {
  FloatIoForms forms{.by_default = FloatIoForm::kFloat};
  for (const PortRequest& port : ports)
    forms.by_index.emplace_back(port.extract ? FloatIoForm::kInteger : FloatIoForm::kFloat);
  return forms;
}

// By port: the parameters that the caller wants, or null if the port cannot have any.
std::vector<QParamsRef> requantized(const std::vector<PortRequest>& ports,
                                    const std::vector<PortQuantization>& known) {
  std::vector<QParamsRef> out(ports.size());
  for (std::size_t i = 0; i < std::min(ports.size(), known.size()); ++i)
    if (!known[i].found.empty()) out[i] = ports[i].requantize;
  return out;
}

}  // namespace

IoQuantization io_quantization(const Graph& graph) {
  IoQuantization out;
  for (const Input& input : graph.inputs()) out.inputs.push_back(of_input(graph, input));
  for (const Output& output : graph.outputs()) out.outputs.push_back(of_output(graph, output));
  return out;
}

Graph extract_io(const Graph& graph, const std::vector<PortRequest>& inputs,
                 const std::vector<PortRequest>& outputs) {
  const IoQuantization known = io_quantization(graph);
  IntegerBoundary wanted{.inputs = forms_of(inputs), .outputs = forms_of(outputs), .states = false};
  wanted.requantized_inputs = requantized(inputs, known.inputs);
  wanted.requantized_outputs = requantized(outputs, known.outputs);
  return with_integer_boundary(graph, wanted).value_or(graph);
}

}  // namespace tosaic::passes
