#include <algorithm>
#include <cmath>

#include "passes/pass_case.h"
#include "tosaic/ir/recipe.h"

namespace tosaic::passes {
namespace {

// An attention at stage tosa, over rows of i8, with linear layers before it and a transpose behind it.
struct Attention : Case {
  std::int64_t heads = 2, rows = 128, width = 16;
  bool with_layers = true;

  ValueId rescale(ValueId x, DType dtype, const std::string& name, std::int64_t multiplier = 1 << 30) {
    TosaRescaleAttrs attrs;
    attrs.dtype = dtype;
    attrs.multiplier = {multiplier};
    attrs.shift = {30};
    return add(Op::kTosaRescale, {x}, attrs, name);
  }

  ValueId linear(ValueId x, const std::string& name, bool one_bias = false) {
    const std::int64_t channels = heads * width;
    std::vector<double> weight, bias;
    for (std::int64_t i = 0; i < channels * channels; ++i)
      weight.push_back(static_cast<double>((i * 31 + static_cast<std::int64_t>(name.size())) % 15 - 7));
    for (std::int64_t i = 0; i < channels; ++i) bias.push_back(static_cast<double>(i * 5 - 40));
    if (one_bias) bias.resize(1);
    TosaConvAttrs attrs{{0, 0, 0, 0}, {1, 1}, {1, 1}, 0, 0, DType::kI32, false};
    const ValueId sum = add(Op::kTosaConv2d,
                            {x, constant(name + ".w", {channels, 1, 1, channels}, weight, DType::kI8),
                             constant(name + ".b", {std::ssize(bias)}, bias, DType::kI32)},
                            attrs, name + ".conv");
    TosaRescaleAttrs scale;
    scale.per_channel = true;
    for (std::int64_t i = 0; i < channels; ++i) {
      scale.multiplier.push_back((1 << 30) + i * 7'000'000);
      scale.shift.push_back(35);
    }
    return add(Op::kTosaRescale, {sum}, scale, name);
  }

  ValueId by_head(ValueId x, Dims perm, const std::string& name) {
    const ValueId apart = add(Op::kTosaReshape, {x}, ShapeAttrs{{rows, heads, width}}, name + ".apart");
    return add(Op::kTosaTranspose, {apart}, PermuteAttrs{std::move(perm)}, name + ".order");
  }

  ValueId scores(ValueId q, ValueId k) {
    const ValueId sum = add(Op::kTosaMatmul, {q, k}, TosaMatmulAttrs{}, "scores.sum");
    return rescale(sum, DType::kI8, "scores", 1 << 24);
  }

  // Not a softmax, but with its operators.
  ValueId weights_of(ValueId s, std::optional<ValueId> mask = {}) {
    ValueId wide = rescale(s, DType::kI32, "wide");
    if (mask) wide = add(Op::kTosaAdd, {wide, *mask}, "masked");
    const ValueId top = add(Op::kTosaReduceMax, {s}, TosaAxisNanAttrs{2, NanMode::kPropagate}, "top");
    const ValueId below = add(Op::kTosaSub, {wide, rescale(top, DType::kI32, "top.wide")}, "below");
    const ValueId narrow = rescale(below, DType::kI8, "below.narrow");
    std::vector<double> table;
    for (std::int64_t i = 0; i < 256; ++i) table.push_back(static_cast<double>(i / 2));
    const ValueId e =
        add(Op::kTosaTable, {narrow, constant("table", {256}, table, DType::kI8)}, NoAttrs{}, "e");
    const ValueId sum = add(Op::kTosaReduceSum, {rescale(e, DType::kI32, "e.wide")}, AxisAttrs{2}, "sum");
    return rescale(add(Op::kTosaAdd, {rescale(e, DType::kI32, "e.wide2"), sum}, "p.sum"), DType::kI8, "p",
                   1 << 25);
  }

  ValueId joined(ValueId p, ValueId v) {
    const ValueId a =
        rescale(add(Op::kTosaMatmul, {p, v}, TosaMatmulAttrs{}, "a.sum"), DType::kI8, "a", 1 << 22);
    const ValueId order = add(Op::kTosaTranspose, {a}, PermuteAttrs{{1, 0, 2}}, "a.order");
    return add(Op::kTosaReshape, {order}, ShapeAttrs{{1, 1, rows, heads * width}}, "joined");
  }

  ValueId x() { return input("x", tensor(DType::kI8, {1, 1, rows, heads * width})); }

  Graph finished(ValueId out) {
    output(out);
    graph.stage = Stage::kTosa;
    return graph;
  }
};

Graph attention(Attention c) {
  const ValueId x = c.x();
  const ValueId q = c.by_head(c.linear(x, "q"), {1, 0, 2}, "q");
  const ValueId k = c.by_head(c.linear(x, "key"), {1, 2, 0}, "k");
  const ValueId v = c.by_head(c.linear(x, "value", true), {1, 0, 2}, "v");
  return c.finished(c.joined(c.weights_of(c.scores(q, k)), v));
}

std::size_t count(const Graph& graph, Op op) {
  return static_cast<std::size_t>(
      std::ranges::count_if(graph.nodes(), [&](const Node& node) { return node.op == op; }));
}

const Value& value_of(const Graph& graph, const std::string& name) {
  const auto found =
      std::ranges::find_if(graph.values(), [&](const Value& each) { return each.name == name; });
  REQUIRE(found != graph.values().end());
  return *found;
}

TEST_CASE("heads are computed one by one, each from weights of its own", "[passes][split-attentions]") {
  const Graph graph = attention({});
  const Graph parts = changed_by(split_attentions, graph);
  CHECK(count(parts, Op::kTosaMatmul) == 4);
  CHECK(count(parts, Op::kTosaConv2d) == 6);
  CHECK(count(parts, Op::kTosaSlice) == 0);
  CHECK(count(parts, Op::kTosaTranspose) == 2);  // of the keys, which MATMUL reads by column
  CHECK(count(parts, Op::kTosaConcat) == 1);
  CHECK(value_of(parts, "q.w.part").type.shape == Shape{16, 1, 1, 32});
  CHECK(value_of(parts, "value.b").type.shape == Shape{1});
  CHECK(value_of(parts, "joined").type.shape == Shape{1, 1, 128, 32});
  for (const Node& node : parts.nodes()) {
    const std::string& name = node.origin->fx_name;
    CAPTURE(parts.node_name(node));
    CHECK((parts.node_name(node) == "joined" || parts.node_name(node).starts_with(name)));
  }
}

TEST_CASE("a value that others read is sliced, not made in parts", "[passes][split-attentions]") {
  Attention c;
  const ValueId x = c.x();
  const ValueId q = c.by_head(c.linear(x, "q"), {1, 0, 2}, "q");
  const ValueId k = c.by_head(x, {1, 2, 0}, "k");
  c.output(q);
  const Graph parts = changed_by(
      split_attentions, c.finished(c.joined(c.weights_of(c.scores(q, k)), c.by_head(x, {1, 0, 2}, "v"))));
  CHECK(count(parts, Op::kTosaConv2d) == 1);
  CHECK(count(parts, Op::kTosaSlice) == 4);  // two parts of x, two of q
}

TEST_CASE("masks are split if they have heads, and shared if not", "[passes][split-attentions]") {
  for (const std::int64_t extent : {1, 2}) {
    CAPTURE(extent);
    Attention c;
    const ValueId x = c.x();
    const ValueId mask = c.input("mask", tensor(DType::kI32, {extent, c.rows, c.rows}));
    const ValueId q = c.by_head(x, {1, 0, 2}, "q"), k = c.by_head(x, {1, 2, 0}, "k");
    const ValueId p = c.weights_of(c.scores(q, k), mask);
    const Graph parts = changed_by(split_attentions, c.finished(c.joined(p, c.by_head(x, {1, 0, 2}, "v"))));
    CHECK(count(parts, Op::kTosaMatmul) == 4);
    CHECK(count(parts, Op::kTosaSlice) == (extent == 1 ? 2 : 4));
  }
}

TEST_CASE("constant masks are stored in parts", "[passes][split-attentions]") {
  Attention c;
  const ValueId x = c.x();
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < c.heads * c.rows * c.rows; ++i) numbers.push_back(static_cast<double>(i % 7));
  const ValueId mask = c.constant("mask", {c.heads, c.rows, c.rows}, numbers, DType::kI32);
  const ValueId q = c.by_head(x, {1, 0, 2}, "q"), k = c.by_head(x, {1, 2, 0}, "k");
  const ValueId p = c.weights_of(c.scores(q, k), mask);
  const Graph parts = changed_by(split_attentions, c.finished(c.joined(p, c.by_head(x, {1, 0, 2}, "v"))));
  CHECK(value_of(parts, "mask.part").type.shape == Shape{1, 128, 128});
}

TEST_CASE("the rows of a single head are split if the scores need most memory",
          "[passes][split-attentions]") {
  Attention c;
  c.heads = 1;
  c.rows = 320;
  const ValueId q = c.input("q", tensor(DType::kI8, {1, 320, 16}));
  const ValueId k = c.input("k", tensor(DType::kI8, {1, 16, 320}));
  const ValueId v = c.input("v", tensor(DType::kI8, {1, 320, 16}));
  const ValueId p = c.weights_of(c.scores(q, k));
  const Graph parts =
      changed_by(split_attentions, c.finished(c.add(Op::kTosaMatmul, {p, v}, TosaMatmulAttrs{}, "a")));
  CHECK(count(parts, Op::kTosaMatmul) > 4);
  for (const Node& node : parts.nodes())
    if (node.op == Op::kTosaSlice) CHECK(parts.value(parts.operands(node)[0]).name == "q");
  CHECK(parts.value(parts.outputs()[0].value).type.shape == Shape{1, 320, 16});
}

TEST_CASE("uneven parts have all rows", "[passes][split-attentions]") {
  Attention c;
  const ValueId q = c.input("q", tensor(DType::kI8, {1, 331, 16}));  // a prime
  const ValueId k = c.input("k", tensor(DType::kI8, {1, 16, 331}));
  const ValueId v = c.input("v", tensor(DType::kI8, {1, 331, 16}));
  const ValueId p = c.weights_of(c.scores(q, k));
  changed_by(split_attentions, c.finished(c.add(Op::kTosaMatmul, {p, v}, TosaMatmulAttrs{}, "a")));
}

TEST_CASE("a reshape into batches and heads is split into batches", "[passes][split-attentions]") {
  Attention c;
  const ValueId q = c.input("q", tensor(DType::kI8, {6, 96, 16}));
  const ValueId k = c.input("k", tensor(DType::kI8, {6, 16, 96}));
  const ValueId v = c.input("v", tensor(DType::kI8, {6, 96, 16}));
  ValueId s = c.scores(q, k);
  s = c.add(Op::kTosaReshape, {s}, ShapeAttrs{{3, 2, 96, 96}}, "apart");
  const ValueId one = c.constant("one", {1, 2, 1, 1}, {1, 2}, DType::kI8);
  s = c.add(Op::kTosaMaximum, {s, one}, TosaNanAttrs{NanMode::kPropagate}, "per.head");
  s = c.add(Op::kTosaReshape, {s}, ShapeAttrs{{6, 96, 96}}, "together");
  const ValueId p = c.weights_of(s);
  const Graph parts =
      changed_by(split_attentions, c.finished(c.add(Op::kTosaMatmul, {p, v}, TosaMatmulAttrs{}, "a")));
  CHECK(count(parts, Op::kTosaMatmul) == 6);
}

TEST_CASE("an attention over the result of an attention reads all of it", "[passes][split-attentions]") {
  for (const std::int64_t heads : {1, 2}) {
    CAPTURE(heads);
    Attention c;
    const ValueId q = c.input("q", tensor(DType::kI8, {heads, 320, 16}));
    const ValueId k = c.input("k", tensor(DType::kI8, {heads, 16, 320}));
    const ValueId v = c.input("v", tensor(DType::kI8, {heads, 320, 16}));
    const auto attend = [&](ValueId x) {
      const ValueId p = c.weights_of(c.scores(x, k));
      return c.rescale(c.add(Op::kTosaMatmul, {p, v}, TosaMatmulAttrs{}, "a.sum"), DType::kI8, "a", 1 << 22);
    };
    const ValueId first = attend(q);
    const ValueId both = c.add(Op::kTosaMaximum, {attend(first), first}, TosaNanAttrs{NanMode::kPropagate});
    const Graph parts = changed_by(split_attentions, c.finished(both));
    CHECK(count(parts, Op::kTosaConcat) == 2);
  }
}

TEST_CASE("attentions stay whole", "[passes][split-attentions]") {
  SECTION("if they are small") {
    Attention c;
    c.rows = 8;
    CHECK_FALSE(split_attentions(attention(c)));
  }
  SECTION("if the target cannot concatenate the results") {
    PassOptions options;
    CHECK(split_attentions(attention({}), options));
    options.target = target::parse_target("TOSA-1.0+FP");
    CHECK_FALSE(split_attentions(attention({}), options));
  }
  SECTION("if the scores are an output") {
    Attention c;
    const ValueId x = c.x();
    const ValueId s = c.scores(c.by_head(x, {1, 0, 2}, "q"), c.by_head(x, {1, 2, 0}, "k"));
    c.output(s);
    CHECK_FALSE(split_attentions(c.finished(c.joined(c.weights_of(s), c.by_head(x, {1, 0, 2}, "v")))));
  }
  SECTION("if a sum over the heads is part of them") {
    Attention c;
    const ValueId x = c.x();
    const ValueId s = c.scores(c.by_head(x, {1, 0, 2}, "q"), c.by_head(x, {1, 2, 0}, "k"));
    const ValueId all = c.add(Op::kTosaReduceMax, {s}, TosaAxisNanAttrs{0, NanMode::kPropagate}, "all");
    const ValueId mixed = c.add(Op::kTosaMaximum, {s, all}, TosaNanAttrs{NanMode::kPropagate}, "mixed");
    CHECK_FALSE(split_attentions(c.finished(c.joined(c.weights_of(mixed), c.by_head(x, {1, 0, 2}, "v")))));
  }
  SECTION("in floats") {
    Case c;
    const ValueId q = c.input("q", {2, 256, 16}), k = c.input("k", {2, 16, 256});
    const ValueId s = c.add(Op::kTosaMatmul, {q, k}, TosaMatmulAttrs{});
    c.output(c.add(Op::kTosaMatmul, {c.add(Op::kTosaExp, {s}), q}, TosaMatmulAttrs{}));
    c.graph.stage = Stage::kTosa;
    CHECK_FALSE(split_attentions(c.graph));
  }
}

// Doubles each byte, in units of two.
class Doubled final : public Recipe {
 public:
  using Recipe::Recipe;
  [[nodiscard]] std::size_t unit_bytes() const override { return 2; }
  void compute(std::size_t begin, std::size_t end, std::byte* to) const override {
    const auto from = source().bytes();
    for (std::size_t i = 2 * begin; i < 2 * end; ++i)
      *to++ = static_cast<std::byte>(2 * static_cast<int>(from[i]));
  }
};

TEST_CASE("rows of a deferred storage are computed without the others", "[ir][recipe]") {
  const Storage source = Storage::of(std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6, 7, 8});
  const Storage doubled = Storage::deferred(8, std::make_shared<const Doubled>(source));
  const Storage part = part_of_rows(doubled, 4, 1, 2);
  REQUIRE(part.size() == 4);
  CHECK(part.recipe() != nullptr);
  const auto bytes = part.bytes();
  CHECK(std::vector<std::byte>(bytes.begin(), bytes.end()) ==
        std::vector<std::byte>{std::byte{6}, std::byte{8}, std::byte{10}, std::byte{12}});
  CHECK(doubled.in_memory() == nullptr);
  const auto plain = part_of_rows(source, 4, 3, 1).bytes();
  CHECK(std::vector<std::byte>(plain.begin(), plain.end()) ==
        std::vector<std::byte>{std::byte{7}, std::byte{8}});
}

}  // namespace
}  // namespace tosaic::passes
