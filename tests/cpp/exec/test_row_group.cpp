// Checks which steps form groups that are computed some rows at a time, and that groups change no byte, no
// watched value and no error.
#include "tosaic/exec/row_group.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "exec/chain.h"

namespace tosaic::exec {
namespace {

// A graph and random arrays for its inputs.
class Case {
 public:
  explicit Case(unsigned seed) : random_(seed) {}

  ValueId input(const std::string& name, DType dtype, const Shape& shape) {
    std::vector<std::byte> bytes(byte_size(dtype) * static_cast<std::size_t>(num_elements(shape)));
    if (dtype == DType::kF32) {
      std::normal_distribution<float> normal;
      for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
        const float value = normal(random_);
        std::memcpy(bytes.data() + i, &value, sizeof value);
      }
    } else {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    }
    shapes_.push_back(shape);
    dtypes_.push_back(dtype);
    data_.push_back(std::move(bytes));
    return b.input(name, tensor(dtype, shape));
  }
  // An input of i32 with one element.
  ValueId integer(const std::string& name, const Shape& shape, std::int32_t value) {
    const ValueId made = input(name, DType::kI32, shape);
    std::memcpy(data_.back().data(), &value, sizeof value);
    return made;
  }
  ValueId floats(const std::string& name, const Shape& shape) { return input(name, DType::kF32, shape); }
  ValueId reduce_max(ValueId value, const std::string& name) {
    const auto last = static_cast<std::int64_t>(b.graph->type(value).shape.size()) - 1;
    return b.add(Op::kTosaReduceMax, {value}, name, TosaAxisNanAttrs{last, NanMode::kPropagate});
  }
  ValueId reduce_sum(ValueId value, const std::string& name) {
    const auto last = static_cast<std::int64_t>(b.graph->type(value).shape.size()) - 1;
    return b.add(Op::kTosaReduceSum, {value}, name, AxisAttrs{last});
  }
  ValueId reshape(ValueId value, const Shape& shape, const std::string& name) {
    return b.add(Op::kTosaReshape, {value}, name, ShapeAttrs{shape});
  }

  [[nodiscard]] std::vector<ArrayView> inputs() const {
    std::vector<ArrayView> views;
    for (std::size_t i = 0; i < data_.size(); ++i)
      views.push_back(ArrayView::dense(data_[i].data(), dtypes_[i], shapes_[i]));
    return views;
  }

  Builder b;

 private:
  std::mt19937 random_;
  std::vector<Shape> shapes_;
  std::vector<DType> dtypes_;
  std::vector<std::vector<std::byte>> data_;
};

PrepareOptions grouping(bool groups) {
  PrepareOptions options;
  options.least_group_bytes = groups ? 0 : std::size_t{1} << 40;
  return options;
}

// The number of steps with a kernel that each group computes.
std::vector<std::size_t> group_sizes(const Prepared& prepared) {
  std::vector<std::size_t> sizes;
  for (const Step& step : prepared.steps())
    if (step.group) sizes.push_back(step.group->steps.size());
  return sizes;
}

std::vector<std::vector<std::byte>> bytes_of(const std::vector<Array>& arrays) {
  std::vector<std::vector<std::byte>> out;
  for (const Array& array : arrays)
    out.emplace_back(array.storage.bytes().begin(), array.storage.bytes().end());
  return out;
}

void check_same_bytes(const Case& c, const std::vector<std::size_t>& sizes) {
  for (const kernels::Isa isa : kernels::usable_isas()) {
    PrepareOptions options = grouping(false);
    options.kernels.isa = isa;
    Session apart(prepare(c.b.graph, options));
    REQUIRE(group_sizes(apart.prepared()).empty());
    const auto expected = bytes_of(apart.run(c.inputs()).outputs);
    options.least_group_bytes = 0;
    for (const std::uint32_t threads : {1U, 2U, 3U, 8U}) {
      options.kernels.threads = {threads, true};
      Session together(prepare(c.b.graph, options));
      INFO(kernels::to_string(isa) << ", threads " << threads);
      CHECK(group_sizes(together.prepared()) == sizes);
      CHECK(bytes_of(together.run(c.inputs()).outputs) == expected);
      CHECK(bytes_of(together.run(c.inputs()).outputs) == expected);
    }
  }
}

// softmax(query keyT + mask) value as TOSA has it. A transpose of the value is computed in the middle of it.
struct Attention {
  std::int64_t heads, rows, depth, keys, width;
  Shape mask;  // broadcasts to [1, heads, rows, keys]
};

ValueId add_attention(Case& c, const Attention& a) {
  Builder& b = c.b;
  const ValueId query = c.floats("query", {a.heads, a.rows, a.depth});
  const ValueId key = c.floats("key", {a.heads, a.depth, a.keys});
  const ValueId value = c.floats("value", {a.keys, a.heads, a.width});
  const ValueId mask = c.floats("mask", a.mask);
  const ValueId product = b.add(Op::kTosaMatmul, {query, key}, "product");
  const ValueId scores = c.reshape(product, {1, a.heads, a.rows, a.keys}, "scores");
  const ValueId masked = b.add(Op::kTosaAdd, {scores, mask}, "masked");
  const ValueId less = b.add(Op::kTosaSub, {masked, c.reduce_max(masked, "max")}, "less");
  const ValueId exponentials = b.add(Op::kTosaExp, {less}, "exp");
  const ValueId inverse = b.add(Op::kTosaReciprocal, {c.reduce_sum(exponentials, "sum")}, "inverse");
  const ValueId weights = b.add(Op::kTosaMul, {exponentials, inverse}, "weights");
  const ValueId by_head = b.add(Op::kTosaTranspose, {value}, "by_head", PermuteAttrs{{1, 0, 2}});
  const ValueId matrices = c.reshape(weights, {a.heads, a.rows, a.keys}, "matrices");
  return b.add(Op::kTosaMatmul, {matrices, by_head}, "out");
}

}  // namespace

TEST_CASE("an attention is one group", "[exec]") {
  const Attention all[] = {
      {3, 53, 7, 37, 5, {1, 1, 1, 37}},   {2, 130, 16, 150, 33, {1, 2, 1, 1}},
      {1, 2, 1, 1, 1, {1, 1, 2, 1}},      {4, 29, 64, 64, 64, {1, 1, 29, 64}},
      {5, 200, 3, 9, 2, {1, 5, 200, 9}},  {1, 300, 20, 300, 40, {1, 1, 1, 1}},
      {2, 17, 5, 2000, 3, {1, 2, 17, 1}},
  };
  unsigned seed = 1;
  for (const Attention& a : all) {
    INFO(a.heads << " heads, " << a.rows << " rows, " << a.keys << " keys");
    Case c(seed++);
    c.b.output(add_attention(c, a));
    check_same_bytes(c, {9});
  }
}

TEST_CASE("values that live across a group are not overwritten by it", "[exec]") {
  Case c(11);
  Builder& b = c.b;
  const ValueId out = add_attention(c, {2, 40, 8, 40, 8, {1, 1, 1, 40}});
  std::vector<ValueId> others;  // computed before the group, and read after it
  const ValueId wide = c.floats("wide", {2, 40, 40});
  const ValueId twice = b.add(Op::kTosaAdd, {wide, wide}, "twice");
  const ValueId turned = b.add(Op::kTosaTranspose, {twice}, "turned", PermuteAttrs{{0, 2, 1}});
  b.output(b.add(Op::kTosaAdd, {turned, twice}, "both"));
  b.output(b.add(Op::kTosaAbs, {out}, "abs"));
  check_same_bytes(c, {10});
}

TEST_CASE("elementwise operators are one group, over all axes but the last at once", "[exec]") {
  for (const Shape& shape :
       {Shape{1, 7, 11, 13}, Shape{1, 1, 3000, 5}, Shape{2, 3, 1, 64}, Shape{1, 100, 1, 1}}) {
    Case c(12);
    Builder& b = c.b;
    const ValueId x = c.floats("x", shape);
    const ValueId channels = c.floats("channels", {1, 1, 1, shape.back()});
    const ValueId scaled = b.add(Op::kTosaMul, {x, channels}, "scaled");
    const ValueId erf = b.add(Op::kTosaErf, {scaled}, "erf");
    const ValueId half = b.add(Op::kTosaMul, {channels, x}, "half");
    const ValueId product = b.add(Op::kTosaMul, {half, erf}, "product");
    const ValueId large = b.add(Op::kTosaGreater, {product, x}, "large");
    b.output(b.add(Op::kTosaSelect, {large, product, scaled}, "select"));
    check_same_bytes(c, {6});
  }
}

TEST_CASE("an operand that follows some of the axes is read by them", "[exec]") {
  Case c(13);
  Builder& b = c.b;
  const ValueId x = c.floats("x", {4, 5, 6, 7});
  ValueId value = b.add(Op::kTosaExp, {x}, "exp");
  int i = 0;
  for (const Shape& shape : {Shape{4, 1, 1, 7}, Shape{1, 5, 1, 1}, Shape{1, 1, 6, 7}, Shape{4, 1, 6, 1}}) {
    const std::string name = "y" + std::to_string(i++);
    value = b.add(Op::kTosaAdd, {c.floats(name, shape), value}, "add_" + name);
  }
  b.output(value);
  check_same_bytes(c, {5});
}

TEST_CASE("an attention of integers is one group", "[exec]") {
  Case c(14);
  Builder& b = c.b;
  const ValueId query = c.input("query", DType::kI8, {3, 70, 24});
  const ValueId key = c.input("key", DType::kI8, {3, 24, 90});
  const ValueId value = c.input("value", DType::kI8, {3, 90, 20});
  const ValueId sums = b.add(Op::kTosaMatmul, {query, key}, "sums", TosaMatmulAttrs{-3, 5, std::nullopt});
  TosaRescaleAttrs narrow;
  narrow.dtype = DType::kI8;
  narrow.output_zp = -7;
  narrow.multiplier = {1 << 30};
  narrow.shift = {41};
  const ValueId scores = b.add(Op::kTosaRescale, {sums}, "scores", narrow);
  const ValueId wide = b.add(Op::kTosaCast, {scores}, "wide", CastAttrs{DType::kI32});
  const ValueId less = b.add(Op::kTosaSub, {wide, c.reduce_max(wide, "max")}, "less");
  TosaRescaleAttrs back = narrow;
  back.shift = {31};
  const ValueId weights = b.add(Op::kTosaRescale, {less}, "weights", back);
  const ValueId out = b.add(Op::kTosaMatmul, {weights, value}, "out", TosaMatmulAttrs{-7, 0, std::nullopt});
  b.output(b.add(Op::kTosaRescale, {out}, "result", narrow));
  for (const kernels::Isa isa : kernels::usable_isas()) {
    PrepareOptions options = grouping(false);
    options.kernels.isa = isa;
    Session apart(prepare(b.graph, options));
    const auto expected = bytes_of(apart.run(c.inputs()).outputs);
    options.least_group_bytes = 0;
    for (const std::uint32_t threads : {1U, 3U}) {
      options.kernels.threads = {threads, true};
      Session together(prepare(b.graph, options));
      INFO(kernels::to_string(isa) << ", threads " << threads);
      CHECK_FALSE(group_sizes(together.prepared()).empty());
      CHECK(bytes_of(together.run(c.inputs()).outputs) == expected);
    }
  }
}

TEST_CASE("a softmax of the last axis joins, other axes do not", "[exec]") {
  for (const std::int64_t axis : {0, 1, 2}) {
    Case c(15);
    Builder& b = c.b;
    const ValueId x = c.floats("x", {3, 40, 50}), y = c.floats("y", {3, 50, 9});
    const ValueId less = b.add(Op::kNeg, {x}, "neg");
    const ValueId weights = b.add(Op::kSoftmax, {less}, "softmax", AxisDtypeAttrs{axis, std::nullopt});
    b.output(b.add(Op::kMatmul, {weights, y}, "out"));
    check_same_bytes(c, axis == 2 ? std::vector<std::size_t>{3} : std::vector<std::size_t>{});
  }
}

TEST_CASE("a reduction of another axis is in no group, even if the axis has one element", "[exec]") {
  Case c(16);
  const ValueId x = c.floats("x", {56, 1, 9});
  const ValueId squares = c.b.add(Op::kTosaMul, {x, x}, "squares");
  const ValueId sum = c.b.add(Op::kTosaReduceSum, {squares}, "sum", AxisAttrs{1});
  c.b.output(c.b.add(Op::kTosaAdd, {sum, x}, "add"));
  check_same_bytes(c, {});
}

TEST_CASE("a group ends before a value that has readers outside", "[exec]") {
  Case c(17);
  Builder& b = c.b;
  const ValueId x = c.floats("x", {1, 8, 9});
  const ValueId first = b.add(Op::kTosaExp, {x}, "first");
  const ValueId second = b.add(Op::kTosaAbs, {first}, "second");
  const ValueId turned = b.add(Op::kTosaTranspose, {second}, "turned", PermuteAttrs{{0, 2, 1}});
  const ValueId third = b.add(Op::kTosaNegate, {second}, "third", TosaZeroPointAttrs{});
  b.output(third).output(turned);
  b.output(b.add(Op::kTosaTanh, {b.add(Op::kTosaSigmoid, {x}, "fourth")}, "fifth"));
  check_same_bytes(c, {2, 2});
}

TEST_CASE("both branches of a sum belong to its group", "[exec]") {
  TosaRescaleAttrs widen;
  widen.dtype = DType::kI32;
  widen.input_zp = 5;
  widen.multiplier = {1 << 30};
  widen.shift = {11};
  TosaRescaleAttrs narrow;
  narrow.dtype = DType::kI8;
  narrow.output_zp = -3;
  narrow.multiplier = {1 << 30};
  narrow.shift = {50};
  const auto graph = [&](unsigned seed, bool is_read_twice, bool goes_on) {
    Case c(seed);
    Builder& b = c.b;
    const ValueId x = c.input("x", DType::kI8, {2, 9, 31, 5}), y = c.input("y", DType::kI8, {2, 9, 31, 5});
    const ValueId left = b.add(Op::kTosaRescale, {x}, "left", widen);
    const ValueId turned = b.add(Op::kTosaTranspose, {y}, "turned", PermuteAttrs{{0, 2, 1, 3}});
    const ValueId back = b.add(Op::kTosaTranspose, {turned}, "back", PermuteAttrs{{0, 2, 1, 3}});
    const ValueId inverted = b.add(Op::kTosaBitwiseNot, {back}, "inverted");
    const ValueId right = b.add(Op::kTosaRescale, {inverted}, "right", widen);
    const ValueId sum = b.add(Op::kTosaAdd, {left, right}, "sum");
    if (is_read_twice) b.output(b.add(Op::kTosaTranspose, {right}, "also", PermuteAttrs{{3, 0, 1, 2}}));
    if (goes_on) {  // sum has a reader outside, so the group ends there
      b.output(b.add(Op::kTosaTranspose, {sum}, "outside", PermuteAttrs{{3, 0, 1, 2}}));
      const ValueId other = c.input("z", DType::kI32, {2, 9, 31, 5});
      b.output(b.add(Op::kTosaAdd, {sum, b.add(Op::kTosaAbs, {other}, "abs")}, "more"));
    } else {
      b.output(b.add(Op::kTosaRescale, {sum}, "result", narrow));
    }
    return c;
  };
  check_same_bytes(graph(24, false, false), {5});
  check_same_bytes(graph(25, true, false), {2, 3});
  check_same_bytes(graph(26, false, true), {4, 2});
}

// A softmax of integers in the forms of NPUs: exponentials are looked up by GATHER, behind reshapes to one
// axis, and both sums read equal steps.
struct IntegerSoftmax {
  std::int64_t heads, rows, depth, keys;
};

ValueId gather(Case& c, ValueId indices, const std::string& name) {
  const std::int64_t count = num_elements(c.b.graph->type(indices).shape);
  const ValueId table = c.input(name + "_table", DType::kI32, {1, 256, 1});
  const ValueId by_batch = c.reshape(indices, {1, count}, name + "_indices");
  return c.reshape(c.b.add(Op::kTosaGather, {table, by_batch}, name), {count}, name + "_found");
}

ValueId add_softmax(Case& c, const IntegerSoftmax& s) {
  Builder& b = c.b;
  const Shape whole{1, s.heads, s.rows, s.keys};
  const ValueId query = c.input("query", DType::kI8, {s.heads, s.rows, s.depth});
  const ValueId key = c.input("key", DType::kI8, {s.heads, s.depth, s.keys});
  const ValueId value = c.input("value", DType::kI8, {s.heads, s.keys, 5});
  const ValueId one = c.integer("one", {1, 1, 1, 1}, 1);
  const ValueId mask = c.integer("mask", {1}, 255);
  const ValueId eight = c.integer("eight", {1}, 8);
  const ValueId sums = b.add(Op::kTosaMatmul, {query, key}, "sums", TosaMatmulAttrs{1, 2, std::nullopt});
  const ValueId scores = c.reshape(sums, whole, "scores");
  const ValueId less = b.add(Op::kTosaSub, {scores, c.reduce_max(scores, "max")}, "less");
  const ValueId flat = c.reshape(less, {num_elements(whole)}, "flat");
  const ValueId shifted = b.add(Op::kTosaArithmeticRightShift, {flat, eight}, "shifted", TosaShiftAttrs{});
  const ValueId high = gather(c, b.add(Op::kTosaBitwiseAnd, {shifted, mask}, "high"), "power");
  const ValueId low = gather(c, b.add(Op::kTosaBitwiseAnd, {flat, mask}, "low"), "slope");
  const ValueId product = b.add(Op::kTosaMul, {high, low}, "product", TosaMulAttrs{20});
  const ValueId exponentials = c.reshape(product, whole, "exponentials");
  const ValueId half =
      b.add(Op::kTosaArithmeticRightShift, {exponentials, one}, "half", TosaShiftAttrs{true});
  const ValueId again =
      b.add(Op::kTosaArithmeticRightShift, {exponentials, one}, "again", TosaShiftAttrs{true});
  const ValueId total = c.reduce_sum(half, "total");
  const ValueId other = b.add(Op::kTosaBitwiseXor, {c.reduce_sum(again, "total_again"), one}, "other");
  const ValueId norm = b.add(Op::kTosaAdd, {total, b.add(Op::kTosaClz, {other}, "clz")}, "norm");
  const ValueId weights = b.add(Op::kTosaMul, {again, norm}, "weights", TosaMulAttrs{31});
  const ValueId bytes = b.add(Op::kTosaCast, {weights}, "bytes", CastAttrs{DType::kI8});
  const ValueId matrices = c.reshape(bytes, {s.heads, s.rows, s.keys}, "matrices");
  return b.add(Op::kTosaMatmul, {matrices, value}, "out", TosaMatmulAttrs{0, 3, std::nullopt});
}

TEST_CASE("a softmax of integers with lookups behind reshapes is one group", "[exec]") {
  const IntegerSoftmax all[] = {
      {3, 53, 7, 37}, {1, 300, 5, 64}, {2, 61, 8, 1500}, {1, 29, 3, 1}, {1, 2, 1, 4001}};
  unsigned seed = 40;
  for (const IntegerSoftmax& s : all) {
    INFO(s.heads << " heads, " << s.rows << " rows, " << s.keys << " keys");
    Case c(seed++);
    c.b.output(add_softmax(c, s));
    check_same_bytes(c, {17});
  }
}

TEST_CASE("wide rows are computed in tiles, narrow ones and products by block", "[exec]") {
  Case c(50);
  c.b.output(add_softmax(c, {1, 61, 8, 1500}));
  const Prepared prepared = prepare(c.b.graph, grouping(true));
  std::vector<std::vector<std::string>> names;
  for (const Step& step : prepared.steps()) {
    if (!step.group) continue;
    const std::int64_t block = step.group->block_rows;
    for (const RowSegment& segment : step.group->segments) {
      names.emplace_back();
      for (std::uint32_t i = segment.begin; i < segment.end; ++i)
        names.back().push_back(prepared.steps()[step.group->steps[i].step].name);
      const bool in_tiles = names.size() == 2 || names.size() == 4;
      CHECK((segment.rows < block) == in_tiles);
      CHECK(block % segment.rows == 0);
    }
  }
  CHECK(names == std::vector<std::vector<std::string>>{
                     {"sums"},
                     {"max", "less", "shifted", "high", "power", "low", "slope", "product", "half", "total"},
                     {"other", "clz", "norm"},
                     {"weights", "bytes"},
                     {"out"}});
}

TEST_CASE("a trace of a graph with equal steps in a group has all of them", "[exec]") {
  Case c(51);
  c.b.output(add_softmax(c, {2, 40, 4, 50}));
  Session apart(prepare(c.b.graph, grouping(false))), together(prepare(c.b.graph, grouping(true)));
  RunOptions options;
  options.trace.all = true;
  const RunResult expected = apart.run(c.inputs(), options), found = together.run(c.inputs(), options);
  REQUIRE(found.trace.size() == expected.trace.size());
  for (std::size_t i = 0; i < found.trace.size(); ++i)
    CHECK(doubles(found.trace[i].array) == doubles(expected.trace[i].array));
}

TEST_CASE("a reshaped value joins only where each element is computed from the same element", "[exec]") {
  enum class Reader { kElementwise, kReduction, kOutside, kRows, kTableInside };
  const auto graph = [](Reader reader) {
    Case c(52);
    Builder& b = c.b;
    const ValueId x = c.input("x", DType::kI32, {4, 32, 8});
    const ValueId masked = b.add(Op::kTosaBitwiseAnd, {x, c.integer("mask", {1, 1, 1}, 127)}, "masked");
    const ValueId low = b.add(Op::kTosaAbs, {masked}, "low");
    if (reader == Reader::kReduction) {  // of two rows at a time
      const ValueId pairs = c.reshape(low, {4, 16, 16}, "pairs");
      b.output(b.add(Op::kTosaAbs, {c.reduce_sum(pairs, "sum")}, "result"));
      return c;
    }
    const ValueId flat = c.reshape(low, {1, 1024}, "flat");
    ValueId found = flat;
    if (reader == Reader::kElementwise)
      found = b.add(Op::kTosaNegate, {flat}, "negated", TosaZeroPointAttrs{});
    if (reader == Reader::kOutside)
      found = b.add(Op::kTosaAdd, {flat, c.input("y", DType::kI32, {1, 1024})}, "added");
    if (reader == Reader::kRows)  // looks up rows of two elements
      found = b.add(Op::kTosaGather, {c.input("table", DType::kI32, {1, 128, 2}), flat}, "gathered");
    if (reader == Reader::kTableInside)
      found = b.add(Op::kTosaGather, {c.reshape(low, {1, 1024, 1}, "table"), flat}, "gathered");
    b.output(b.add(Op::kTosaAbs, {found}, "result"));
    return c;
  };
  check_same_bytes(graph(Reader::kElementwise), {4});
  check_same_bytes(graph(Reader::kReduction), {2, 2});  // a group of its own
  for (const Reader reader : {Reader::kOutside, Reader::kRows, Reader::kTableInside})
    check_same_bytes(graph(reader), {2});
}

TEST_CASE("an index out of range in a group is named with its node", "[exec]") {
  Case c(53);
  Builder& b = c.b;
  const ValueId x = c.input("x", DType::kI32, {3, 11, 7});
  const ValueId wide = b.add(Op::kTosaBitwiseOr, {x, c.integer("bit", {1, 1, 1}, 1 << 10)}, "wide");
  const ValueId found = gather(c, c.reshape(wide, {231}, "flat"), "looked_up");
  b.output(b.add(Op::kTosaAbs, {c.reshape(found, {3, 11, 7}, "rows")}, "result"));
  Session session(prepare(b.graph, grouping(true)));
  REQUIRE(group_sizes(session.prepared()) == std::vector<std::size_t>{3});
  CHECK_THROWS_WITH(session.run(c.inputs()), Catch::Contains("index") && Catch::Contains("node 'looked_up'"));
}

TEST_CASE("a watched value of a group is computed", "[exec]") {
  Case c(18);
  c.b.output(add_attention(c, {2, 30, 4, 20, 6, {1, 1, 1, 20}}));
  Session apart(prepare(c.b.graph, grouping(false))), together(prepare(c.b.graph, grouping(true)));
  REQUIRE(group_sizes(together.prepared()).size() == 1);
  const Graph& graph = *c.b.graph;
  for (const std::string name : {"exp", "scores", "sum", "out", "by_head"}) {
    std::vector<bool> watched(graph.values().size(), false);
    for (std::size_t i = 0; i < watched.size(); ++i) watched[i] = graph.values()[i].name == name;
    std::vector<double> seen[2];
    for (int i = 0; i < 2; ++i) {
      RunOptions options;
      options.watched = &watched;
      options.observer = [&](const NodeCall& call) { seen[i] = doubles(call.results[0].read()); };
      static_cast<void>((i == 0 ? apart : together).run(c.inputs(), options));
    }
    INFO(name);
    CHECK_FALSE(seen[0].empty());
    CHECK(seen[0] == seen[1]);
  }
}

TEST_CASE("a trace of a graph with groups has all values", "[exec]") {
  Case c(19);
  c.b.output(add_attention(c, {2, 30, 4, 20, 6, {1, 1, 1, 20}}));
  Session apart(prepare(c.b.graph, grouping(false))), together(prepare(c.b.graph, grouping(true)));
  RunOptions options;
  options.trace.all = true;
  const RunResult expected = apart.run(c.inputs(), options), found = together.run(c.inputs(), options);
  REQUIRE(found.trace.size() == expected.trace.size());
  for (std::size_t i = 0; i < found.trace.size(); ++i)
    CHECK(doubles(found.trace[i].array) == doubles(expected.trace[i].array));
}

TEST_CASE("an error in a group names the node that caused it", "[exec]") {
  Case c(20);
  Builder& b = c.b;
  const ValueId x = c.input("x", DType::kI32, {1, 50, 8});
  const ValueId shifted = b.add(Op::kTosaAbs, {x}, "shifted");
  const ValueId low = b.add(Op::kTosaSub, {shifted, shifted}, "low");
  const ValueId quotient = b.add(Op::kTosaIntdiv, {x, low}, "quotient");
  b.output(b.add(Op::kTosaAdd, {quotient, x}, "out"));
  Session session(prepare(b.graph, grouping(true)));
  REQUIRE(group_sizes(session.prepared()) == std::vector<std::size_t>{4});
  CHECK_THROWS_WITH(session.run(c.inputs()), Catch::Contains("zero") && Catch::Contains("node 'quotient'"));
}

TEST_CASE("a profile shows a group as one step with all its nodes", "[exec]") {
  Case c(21);
  c.b.output(add_attention(c, {2, 30, 4, 20, 6, {1, 1, 1, 20}}));
  const Prepared prepared = prepare(c.b.graph, grouping(true));
  const std::vector<StepPlace> places = profiled_steps(prepared);
  REQUIRE(places.size() == 2);  // the transpose and the group
  CHECK(places[1].nodes.size() == 9);
  CHECK(places[1].step->name == "out");
  CHECK(places[1].work.multiply_adds == 2 * 30 * 20 * (4 + 6));
  CHECK(places[1].work.bytes_read == 4 * (2 * 30 * 4 + 2 * 4 * 20 + 20 + 2 * 20 * 6));
  CHECK(places[1].work.bytes_written == 4 * 2 * 30 * 6);
  CHECK(places[1].factors == DType::kF32);
}

TEST_CASE("small values are not grouped by default", "[exec]") {
  Case c(22);
  c.b.output(add_attention(c, {2, 30, 4, 20, 6, {1, 1, 1, 20}}));
  CHECK(group_sizes(prepare(c.b.graph)).empty());
  Case large(23);
  large.b.output(add_attention(large, {2, 300, 4, 500, 6, {1, 1, 1, 500}}));
  CHECK(group_sizes(prepare(large.b.graph)) == std::vector<std::size_t>{9});
}

}  // namespace tosaic::exec
