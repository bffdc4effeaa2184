// pass_case: small graphs for the tests of passes, and the checks for every pass. The graph is valid before
// and after, a second run changes nothing, and results do not change.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tensor_types.h"
#include "tosaic/exec/session.h"
#include "tosaic/ir/verify.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

using testing::f32;
using testing::tensor;

inline OriginRef leaf(const std::string& fx_name) {
  auto origin = std::make_shared<Origin>();
  origin->fx_name = fx_name;
  return origin;
}

// A graph under construction. The origin of a node has the node's name as FX name.
struct Case {
  Graph graph;

  ValueId input(const std::string& name, TensorType type) {
    return graph.add_input(InputKind::kUser, name, std::move(type), name);
  }
  ValueId input(const std::string& name, Shape shape) { return input(name, f32(shape)); }
  ValueId constant(const std::string& name, Shape shape, std::vector<double> values,
                   DType dtype = DType::kF32) {
    return graph.add_constant(make_constant(name, dtype, shape, values));
  }
  // Weights of which no two are equal.
  ValueId weights(const std::string& name, Shape shape) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < num_elements(shape); ++i)
      values.push_back(std::sin(1.0 + static_cast<double>(i)));
    return constant(name, shape, values);
  }
  ValueId add(Op op, std::vector<ValueId> operands, Attrs attrs, const std::string& name = "") {
    const std::string named = name.empty() ? std::string(info(op).name) : name;
    return graph.add(op, std::move(attrs), operands, leaf(named), named);
  }
  ValueId add(Op op, std::vector<ValueId> operands, const std::string& name = "") {
    return add(op, std::move(operands), default_attrs(op), name);
  }
  Case& output(ValueId value) {
    graph.add_output(
        {value, OutputKind::kUser, "out[" + std::to_string(graph.outputs().size()) + "]", 0, {}});
    return *this;
  }
};

inline std::string ops_of(const Graph& graph) {
  std::string text;
  for (const Node& node : graph.nodes()) text += (text.empty() ? "" : " ") + std::string(info(node.op).name);
  return text;
}

// Runs the graph and returns the elements of its outputs. elements[i] has the elements of input i; those that
// it lacks are integers from -5 to 5 (bool: 0 and 1 in turn).
inline std::vector<std::vector<double>> results_of(const Graph& graph,
                                                   std::vector<std::vector<double>> elements = {}) {
  std::vector<ConstantRef> held;
  std::vector<exec::ArrayView> inputs;
  for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
    const TensorType& type = graph.type(graph.inputs()[i].value);
    const BoundaryFormat& boundary = graph.inputs()[i].boundary;
    const DType dtype = boundary.source_dtype.value_or(type.dtype);
    const Shape shape = graph.stage == Stage::kTosa && !boundary.order.is_identity()
                            ? permuted(type.shape, inverse_permutation(boundary.order.axes(type.rank())))
                            : type.shape;
    std::vector<double> values = i < elements.size() ? elements[i] : std::vector<double>();
    for (std::int64_t k = 0; values.size() < static_cast<std::size_t>(num_elements(shape)); ++k)
      values.push_back(dtype == DType::kBool ? static_cast<double>(k % 2)
                                             : static_cast<double>((k * 7 + 3) % 11 - 5));
    held.push_back(make_constant("", dtype, shape, values));
    inputs.push_back(exec::ArrayView::dense(held.back()->bytes().data(), dtype, shape));
  }
  std::vector<std::vector<double>> out;
  for (const exec::Array& array : exec::run(std::make_shared<const Graph>(graph), inputs)) {
    out.emplace_back(static_cast<std::size_t>(num_elements(array.shape)));
    exec::read_doubles(array.view(), 0, out.back());
  }
  return out;
}

inline void require_same(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b,
                         double tolerance = 1e-5) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (std::size_t k = 0; k < a[i].size(); ++k) {
      CAPTURE(i, k, a[i][k], b[i][k]);
      const bool alike = a[i][k] == b[i][k] || (std::isnan(a[i][k]) && std::isnan(b[i][k]));
      CHECK((alike || std::abs(a[i][k] - b[i][k]) <= tolerance * std::max(1.0, std::abs(a[i][k]))));
    }
  }
}

// Runs a pass, which must change the graph, and makes the checks described at the top. Results are compared
// for the inputs `elements` (results_of).
template <class P>
Graph changed_by(P pass, const Graph& graph, const std::vector<std::vector<double>>& elements = {}) {
  const auto run = [&](const Graph& before) {
    if constexpr (std::is_invocable_v<P, const Graph&>)
      return pass(before);
    else
      return pass(before, PassOptions{});
  };
  verify(graph);
  std::optional<Graph> after = run(graph);
  REQUIRE(after.has_value());
  verify(*after);
  CHECK_FALSE(run(*after).has_value());
  require_same(results_of(graph, elements), results_of(*after, elements));
  return std::move(*after);
}

}  // namespace tosaic::passes
