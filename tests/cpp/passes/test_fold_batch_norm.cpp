#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

ValueId norm(Case& c, ValueId x, std::int64_t channels) {
  const ValueId var =
      c.constant("var", {channels}, std::vector<double>(static_cast<std::size_t>(channels), 0.25));
  return c.add(
      Op::kBatchNorm,
      {x, c.weights("g", {channels}), c.weights("h", {channels}), c.weights("mean", {channels}), var},
      BatchNormAttrs{1e-5}, "norm");
}

ConvAttrs conv_attrs(std::int64_t groups, bool transposed) {
  return {{2, 1}, {1, 0}, {1, 0}, {1, 1}, {0, 0}, groups, transposed};
}

TEST_CASE("a batch norm is folded into the convolution before it, which gets its name",
          "[passes][fold-batch-norm]") {
  for (const std::int64_t groups : {1, 2, 4}) {
    Case c;
    const ValueId y = c.add(
        Op::kConv, {c.input("x", {1, 4, 5, 5}), c.weights("w", {8, 4 / groups, 3, 3}), c.weights("b", {8})},
        conv_attrs(groups, false), "conv");
    const Graph after = changed_by(fold_batch_norm, c.output(norm(c, y, 8)).graph);
    CHECK(ops_of(after) == "conv");
    CHECK(after.node_name(after.nodes()[0]) == "norm");
    CHECK(leaves(after.nodes()[0].origin).size() == 2);
  }
}

TEST_CASE("a transposed convolution scales the channels of each group", "[passes][fold-batch-norm]") {
  for (const std::int64_t groups : {1, 2}) {
    Case c;
    const ValueId y =
        c.add(Op::kConv, {c.input("x", {1, 4, 5, 5}), c.weights("w", {4, 6 / groups, 3, 2}), ValueId()},
              conv_attrs(groups, true), "conv");
    CHECK(ops_of(changed_by(fold_batch_norm, c.output(norm(c, y, 6)).graph)) == "conv");
  }
}

TEST_CASE("a convolution with another reader is not folded", "[passes][fold-batch-norm]") {
  Case c;
  const ValueId y = c.add(Op::kConv, {c.input("x", {1, 4, 5, 5}), c.weights("w", {8, 4, 3, 3}), ValueId()},
                          conv_attrs(1, false));
  CHECK_FALSE(fold_batch_norm(c.output(norm(c, y, 8)).output(y).graph).has_value());
}

TEST_CASE("a linear layer is folded only where its outputs are the channels", "[passes][fold-batch-norm]") {
  Case matrix, sequence;
  const ValueId y =
      matrix.add(Op::kLinear, {matrix.input("x", {3, 4}), matrix.weights("w", {6, 4}), ValueId()});
  CHECK(ops_of(changed_by(fold_batch_norm, matrix.output(norm(matrix, y, 6)).graph)) == "linear");
  const ValueId z =
      sequence.add(Op::kLinear, {sequence.input("x", {2, 6, 4}), sequence.weights("w", {6, 4}), ValueId()});
  CHECK_FALSE(fold_batch_norm(sequence.output(norm(sequence, z, 6)).graph).has_value());
}

}  // namespace
}  // namespace tosaic::passes
