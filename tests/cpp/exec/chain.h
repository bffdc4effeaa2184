// Small graphs and arrays for the tests of exec/ and memory/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tensor_types.h"
#include "tosaic/exec/session.h"

namespace tosaic::exec {

using testing::f32;
using testing::tensor;

inline OriginRef leaf(const std::string& fx_name, int line = 0) {
  auto origin = std::make_shared<Origin>();
  origin->fx_name = fx_name;
  origin->module_path = "net";
  origin->file = "/x/model.py";
  origin->line = line;
  return origin;
}

// A graph under construction, with short functions to add values, nodes and outputs.
struct Builder {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();

  ValueId input(const std::string& name, TensorType type, BoundaryFormat boundary = {}) {
    return graph->add_input(InputKind::kUser, name, std::move(type), name, std::move(boundary));
  }
  ValueId state(const std::string& name, ConstantRef initial) {
    const TensorType type = tensor(initial->dtype, initial->shape);
    return graph->add_input(InputKind::kState, name, type, name, {}, std::move(initial));
  }
  ValueId add(Op op, std::vector<ValueId> operands, const std::string& name, Attrs attrs) {
    return graph->add(op, std::move(attrs), operands, leaf(name, 7), name);
  }
  ValueId add(Op op, std::vector<ValueId> operands, const std::string& name) {
    return add(op, std::move(operands), name, default_attrs(op));
  }
  ValueId opaque(std::vector<ValueId> operands, TensorType type, const std::string& target,
                 const std::string& name) {
    const NodeId node = graph->add_node(Op::kOpaque, share(OpaqueAttrs{target, "[]"}), operands,
                                        std::span(&type, 1), leaf(name, 9), name);
    return graph->result(graph->node(node));
  }
  Builder& output(ValueId value, const std::string& path = "") {
    graph->add_output({value, OutputKind::kUser, path, 0, {}});
    return *this;
  }
  Builder& mutation(ValueId value, const std::string& path, std::uint32_t input) {
    graph->add_output({value, OutputKind::kMutation, path, input, {}});
    return *this;
  }
};

template <class T>
ArrayView view(const std::vector<T>& values, DType dtype, Shape shape) {
  return ArrayView::dense(reinterpret_cast<const std::byte*>(values.data()), dtype, shape);
}
inline ArrayView view(const std::vector<float>& values, Shape shape) {
  return view(values, DType::kF32, shape);
}

inline std::vector<double> doubles(const ArrayView& array) {
  std::vector<double> out(static_cast<std::size_t>(num_elements(array.shape)));
  read_doubles(array, 0, out);
  return out;
}
inline std::vector<double> doubles(const Array& array) { return doubles(array.view()); }

// out = scale * in + offset, over f32.
inline NodeFunction affine(float scale, float offset) {
  return [=](const NodeCall& call) {
    const auto* from = reinterpret_cast<const float*>(call.operands[0].data);
    auto* to = reinterpret_cast<float*>(call.results[0].data);
    for (std::int64_t i = 0; i < num_elements(call.results[0].shape); ++i) to[i] = scale * from[i] + offset;
  };
}

}  // namespace tosaic::exec
