#include <catch2/catch.hpp>

#include "example_graphs.h"
#include "tosaic/ir/op.h"
#include "tosaic/ir/origin.h"

namespace tosaic {
namespace {

using testing::add;
using testing::error_of;
using testing::f32;

std::vector<std::uint32_t> users_of(const Graph& graph, ValueId value) {
  std::vector<std::uint32_t> out;
  for (const NodeId user : graph.users(value)) out.push_back(user.index());
  return out;
}

TEST_CASE("names are made unique, and an empty name becomes that of the operator", "[ir][graph]") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "", f32({2}), "x");
  CHECK(graph.value(x).name == "input");
  CHECK(graph.value(add(graph, Op::kRelu, NoAttrs{}, {x})).name == "relu");
  CHECK(graph.value(add(graph, Op::kRelu, NoAttrs{}, {x})).name == "relu_1");
  CHECK(graph.value(add(graph, Op::kRelu, NoAttrs{}, {x}, "relu_2")).name == "relu_2");
  CHECK(graph.value(add(graph, Op::kRelu, NoAttrs{}, {x})).name == "relu_3");
}

TEST_CASE("a constant that is added twice is one value", "[ir][graph]") {
  Graph graph;
  const ConstantRef one = testing::constant("one", DType::kF32, {}, {1});
  const ConstantRef other = testing::constant("one", DType::kF32, {}, {1});
  CHECK(graph.add_constant(one) == graph.add_constant(one));
  CHECK(graph.add_constant(one) != graph.add_constant(other));
  CHECK(graph.value(graph.add_constant(other)).name == "one_1");
}

TEST_CASE("users are listed once per use and are updated with the graph", "[ir][graph]") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2}), "x");
  const ValueId mul = add(graph, Op::kMul, NoAttrs{}, {x, x});
  CHECK(users_of(graph, x) == std::vector<std::uint32_t>{0, 0});
  CHECK_FALSE(graph.is_output(mul));
  add(graph, Op::kRelu, NoAttrs{}, {x});
  testing::returns(graph, mul);
  CHECK(users_of(graph, x) == std::vector<std::uint32_t>{0, 0, 1});
  CHECK(users_of(graph, mul).empty());
  CHECK(graph.is_output(mul));
}

TEST_CASE("users of values that are added after the first query are known", "[ir][graph]") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2}), "x");
  CHECK(users_of(graph, x).empty());
  const ValueId y = graph.add_input(InputKind::kUser, "y", f32({2}), "y");
  CHECK(users_of(graph, y).empty());
  CHECK_FALSE(graph.is_output(y));
  const ValueId one = graph.add_constant(testing::constant("one", DType::kF32, {}, {1}));
  CHECK(users_of(graph, one).empty());
}

TEST_CASE("an operand must exist before its user", "[ir][graph]") {
  Graph graph;
  const ValueId late(3);
  const TensorType type = f32({2});
  CHECK(error_of([&] {
          graph.add_node(Op::kRelu, share(NoAttrs{}), std::span(&late, 1), std::span(&type, 1), nullptr,
                         "relu");
        }) == "[graph] operand does not exist before its user: expected an id below 0, got 3 (node 'relu')");
}

TEST_CASE("results of a node are consecutive and know their producer", "[ir][graph]") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2, 3}), "x");
  const std::vector<TensorType> types{f32({3}), f32({3})};
  const NodeId id = graph.add_node(Op::kUnbind, share(AxisAttrs{0}), std::span(&x, 1), types, nullptr, "u");
  const Node& node = graph.node(id);
  CHECK(graph.producer(x) == nullptr);
  CHECK(graph.producer(graph.result(node, 1)) == &node);
  CHECK(graph.value(graph.result(node, 1)).name == "u.1");
  CHECK(graph.value(graph.result(node, 1)).result_index == 1);
  CHECK(graph.node_name(node) == "u");
}

TEST_CASE("the operator table is consistent", "[ir][op]") {
  for (const OpInfo& row : all_ops()) {
    CAPTURE(row.name);
    CHECK(parse_op(row.name) == row.op);
    CHECK(&info(row.op) == &row);
    CHECK(default_attrs(row.op).index() == row.attrs_index);
    CHECK(row.is_tosa == row.name.starts_with("tosa."));
    CHECK(row.min_operands <= row.max_operands);
  }
  CHECK_FALSE(parse_op("no such operator").has_value());
}

TEST_CASE("operands know their names and which may be absent", "[ir][op]") {
  CHECK(info(Op::kConv).operand_name(2) == "bias");
  CHECK(info(Op::kConv).operand_optional(2));
  CHECK_FALSE(info(Op::kConv).operand_optional(1));
  CHECK(info(Op::kCat).operand_name(7) == "tensors");
  CHECK_FALSE(info(Op::kCat).operand_optional(0));
  CHECK(info(Op::kIndex).operand_optional(3));
  CHECK(info(Op::kBatchNorm).min_operands == 5);
  CHECK(info(Op::kCond).max_operands == 255);
}

TEST_CASE("origins merge to the union of their leaves", "[ir][origin]") {
  const OriginRef a = testing::leaf("a", "", 1);
  const OriginRef b = testing::leaf("b", "", 2);
  CHECK(merge({}) == nullptr);
  CHECK(merge({nullptr, a, a}) == a);
  const OriginRef both = merge({a, b});
  CHECK(leaves(both) == std::vector<OriginRef>{a, b});
  CHECK(merge({both, a}) == both);
  CHECK(leaves(merge({b, both})) == std::vector<OriginRef>{b, a});
}

TEST_CASE("errors are located by the first call, but not by a quantize call that is merged into a node",
          "[ir][origin]") {
  const auto text = [](const std::vector<OriginRef>& calls, const std::string& node) {
    return format_error(located({.where = "here", .what = "wrong"}, merge(calls), node));
  };
  const OriginRef a = testing::leaf("a", "", 1), b = testing::leaf("b", "", 2);
  const OriginRef q = testing::leaf("q", "dequantize.default", 3);
  CHECK(text({a}, "n") == "[here] wrong (node 'a', module 'layer1.0', my \"model\".py:1)");
  CHECK(text({a, b}, "b") == "[here] wrong (node 'a', module 'layer1.0', my \"model\".py:1)");
  CHECK(text({q, b}, "b") == "[here] wrong (node 'b', module 'layer1.0', my \"model\".py:2)");
  CHECK(text({q, a, b}, "b") == "[here] wrong (node 'b', module 'layer1.0', my \"model\".py:2)");
  CHECK(text({q, a, b}, "n") == "[here] wrong (node 'n', module 'layer1.0', my \"model\".py:1)");
  CHECK(text({}, "n") == "[here] wrong (node 'n')");
}

}  // namespace
}  // namespace tosaic
