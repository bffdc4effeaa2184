// Tests of compare(), which matches the values of two graph runs by their origins, and of fold(), which
// computes a node with constant operands.
#include <catch2/catch.hpp>

#include "exec/chain.h"
#include "tosaic/exec/compare/compare.h"
#include "tosaic/exec/fold.h"

namespace tosaic::exec {
namespace {

// The graph n = neg(x), r = relu(n), add(r, n).
std::shared_ptr<Graph> chain() {
  Builder b;
  const ValueId x = b.input("x", f32({2, 3}));
  const ValueId n = b.add(Op::kNeg, {x}, "neg");
  const ValueId r = b.add(Op::kRelu, {n}, "relu");
  b.output(b.add(Op::kAdd, {r, n}, "add"));
  return b.graph;
}

const std::vector<float> kData{1, -2, 3, -4, 5, -6};

}  // namespace

TEST_CASE("equal graphs compare without a divergence", "[compare]") {
  const std::vector<ArrayView> inputs{view(kData, {2, 3})};
  const auto result = compare(chain(), chain(), inputs, inputs);
  REQUIRE(result.rows.size() == 3);
  CHECK(result.unmatched.empty());
  CHECK_FALSE(result.first_divergence);
  CHECK(result.rows[0].fx_name == "neg");
  CHECK(result.rows[0].module_path == "net");
  CHECK(result.rows[0].source == "model.py:7");
  for (const auto& row : result.rows) {
    CHECK(row.total.mismatches == 0);
    REQUIRE(row.local);
    CHECK(row.local->mismatches == 0);
  }
}

TEST_CASE("an error is local at the node that makes it and inherited by the nodes that read it",
          "[compare]") {
  const std::vector<ArrayView> inputs{view(kData, {2, 3})};
  CompareOptions options;
  options.b.overrides.nodes["relu"] = affine(0.5f, 0);
  const auto result = compare(chain(), chain(), inputs, inputs, options);
  REQUIRE(result.rows.size() == 3);
  CHECK(result.rows[0].total.mismatches == 0);
  CHECK(result.first_divergence == std::size_t{1});
  CHECK(result.rows[1].local->mismatches == 6);
  CHECK(result.rows[1].inherited->mismatches == 0);
  CHECK(result.rows[2].total.mismatches > 0);
  CHECK(result.rows[2].local->mismatches == 0);
  CHECK(result.rows[2].inherited->mismatches == result.rows[2].total.mismatches);
}

TEST_CASE("values in another dim order are permuted before they are compared", "[compare]") {
  Builder b;
  const ValueId x = b.input("x", f32({3, 2}));
  const ValueId n = b.add(Op::kNeg, {x}, "neg");
  const ValueId r = b.add(Op::kRelu, {n}, "relu");
  const ValueId sum = b.add(Op::kAdd, {r, n}, "add");
  b.output(sum);
  const std::vector<float> transposed{1, -4, -2, 5, 3, -6};
  const auto untold =
      compare(chain(), b.graph, std::vector{view(kData, {2, 3})}, std::vector{view(transposed, {3, 2})});
  for (const ValueId value : {n, r, sum}) b.graph->set_canonical_order(value, DimOrder(Dims{1, 0}));
  const auto result =
      compare(chain(), b.graph, std::vector{view(kData, {2, 3})}, std::vector{view(transposed, {3, 2})});
  REQUIRE(result.rows.size() == 3);
  for (const auto& row : result.rows) {
    CHECK(row.total.mismatches == 0);
    CHECK(row.local->mismatches == 0);
  }
  REQUIRE(untold.rows.size() == 3);  // the permutation is found: only one fits the shapes
  for (const auto& row : untold.rows) CHECK(row.local_share == 0.0);
}

TEST_CASE("a fused node is compared with its latest source node", "[compare]") {
  Builder b;
  const ValueId x = b.input("x", f32({6}));
  const ValueId fused =
      b.graph->add(Op::kNeg, NoAttrs{}, std::vector{x}, merge({leaf("relu"), leaf("neg")}), "fused");
  b.output(fused);
  PrepareOptions options;
  const auto result =
      compare(chain(), b.graph, std::vector{view(kData, {2, 3})}, std::vector{view(kData, {6})});
  REQUIRE(result.rows.size() == 1);
  CHECK(result.rows[0].fx_name == "relu");
  CHECK(result.rows[0].value_b == "fused");
  REQUIRE(result.rows[0].local);  // against a's neg and relu, run from the input
  CHECK(result.rows[0].local->mismatches > 0);
  CHECK(result.rows[0].local_share > 1.0);
  CHECK(result.unmatched.size() == 2);
  CHECK(result.unmatched[0].fx_name == "neg");
  CHECK(result.unmatched[0].reason == "no node in b");
}

TEST_CASE("quantized values are dequantized before they are compared", "[compare]") {
  auto qparams = std::make_shared<QParams>();
  qparams->scales = {0.5};
  qparams->zero_points = {3};
  TensorType quantized = f32({2, 3});
  quantized.dtype = DType::kI8;
  quantized.qparams = qparams;
  Builder b;
  b.output(b.opaque({b.input("x", f32({2, 3}))}, quantized, "lib.q.default", "neg"));
  CompareOptions options;
  options.b.overrides.ops["lib.q.default"] = [](const NodeCall& call) {
    const auto* from = reinterpret_cast<const float*>(call.operands[0].data);
    auto* to = reinterpret_cast<std::int8_t*>(call.results[0].data);
    for (int i = 0; i < 6; ++i) to[i] = static_cast<std::int8_t>(-from[i] / 0.5f + 3 + (i == 5 ? 1 : 0));
  };
  const std::vector<ArrayView> inputs{view(kData, {2, 3})};
  const auto result = compare(chain(), b.graph, inputs, inputs, options);
  REQUIRE(result.rows.size() == 1);
  CHECK(result.rows[0].total.mismatches == 1);
  CHECK(result.rows[0].total.max_abs == 0.5);
  CHECK(result.rows[0].total.max_ulp == 1);
}

TEST_CASE("arrays from elsewhere are compared by name", "[compare]") {
  const std::vector<float> neg{-1, 2, -3, 4, -5, 6}, add{-1, 4, -3, 8, -5, 13};
  const std::vector<NamedArray> reference{
      {"neg", 0, view(neg, {2, 3})}, {"add", 0, view(add, {2, 3})}, {"mul", 0, view(add, {2, 3})}};
  const auto result = compare_traces(reference, chain(), std::vector{view(kData, {2, 3})});
  REQUIRE(result.rows.size() == 2);
  CHECK(result.rows[0].total.mismatches == 0);
  CHECK(result.rows[1].total.mismatches == 1);
  REQUIRE(result.unmatched.size() == 1);
  CHECK(result.unmatched[0].fx_name == "mul");
}

TEST_CASE("a node whose operands are constants is evaluated", "[fold]") {
  Builder b;
  const ConstantRef c = make_constant("c", DType::kF32, {2}, std::vector<double>{1, -2});
  const ValueId v = b.graph->add_constant(c);
  const ValueId s = b.add(Op::kAdd, {v, v}, "sum");
  const ValueId r = b.add(Op::kReshape, {v}, "view", ShapeAttrs{{1, 2}});
  const ValueId o = b.opaque({v}, f32({2}), "lib.op.default", "foreign");
  const auto node = [&](ValueId value) -> const Node& { return *b.graph->producer(value); };
  const auto sum = evaluate(*b.graph, node(s), std::vector{c, c});
  REQUIRE(sum);
  CHECK((*sum)[0]->name == "sum");
  CHECK((*sum)[0]->kind == ConstantKind::kFolded);
  CHECK(element_as_double(*(*sum)[0], 1) == -4);
  const auto shaped = evaluate(*b.graph, node(r), std::vector{c});
  REQUIRE(shaped);
  CHECK((*shaped)[0]->shape == Shape{1, 2});
  CHECK((*shaped)[0]->storage.bytes().data() == c->storage.bytes().data());
  CHECK_FALSE(evaluate(*b.graph, node(o), std::vector{c}));
  auto unbound = std::make_shared<Constant>(*c);
  unbound->storage = Storage();
  CHECK_FALSE(evaluate(*b.graph, node(s), std::vector<ConstantRef>{unbound, unbound}));
}

}  // namespace tosaic::exec
