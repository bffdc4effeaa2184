#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "tensor_types.h"
#include "tosa/every_op.h"
#include "tosa/flatbuffer_walk.h"
#include "tosaic/base/error.h"
#include "tosaic/ir/own_constants.h"
#include "tosaic/ir/parse.h"
#include "tosaic/ir/print.h"
#include "tosaic/ir/recipe.h"
#include "tosaic/ir/since.h"
#include "tosaic/ir/verify.h"
#include "tosaic/tosa/deserialize.h"
#include "tosaic/tosa/serialize.h"

namespace tosaic {
namespace {

using testing::tensor;

std::vector<std::byte> bytes_of(const Storage& storage) {
  return {storage.bytes().begin(), storage.bytes().end()};
}

void require_same_nodes(const Graph& a, const Graph& b) {
  REQUIRE(a.nodes().size() == b.nodes().size());
  for (std::size_t i = 0; i < a.nodes().size(); ++i) {
    CHECK(a.nodes()[i].op == b.nodes()[i].op);
    CHECK(to_string(*a.nodes()[i].attrs) == to_string(*b.nodes()[i].attrs));
    REQUIRE(a.nodes()[i].result_count == b.nodes()[i].result_count);
    for (std::uint32_t r = 0; r < a.nodes()[i].result_count; ++r) {
      const Value &before = a.value(a.result(a.nodes()[i], r)), &after = b.value(b.result(b.nodes()[i], r));
      CHECK(before.type == after.type);
      CHECK(before.name == after.name);
    }
    REQUIRE(a.nodes()[i].regions.size() == b.nodes()[i].regions.size());
    for (std::size_t r = 0; r < a.nodes()[i].regions.size(); ++r) {
      CHECK(a.nodes()[i].regions[r]->name == b.nodes()[i].regions[r]->name);
      require_same_nodes(*a.nodes()[i].regions[r], *b.nodes()[i].regions[r]);
    }
    const auto left = a.operands(a.nodes()[i]), right = b.operands(b.nodes()[i]);
    REQUIRE(left.size() == right.size());
    for (std::size_t k = 0; k < left.size(); ++k) {
      CHECK(a.value(left[k]).name == b.value(right[k]).name);
      const ConstantRef& constant = a.value(left[k]).constant;
      if (constant) CHECK(std::ranges::equal(constant->bytes(), b.value(right[k]).constant->bytes()));
    }
  }
}

Graph one_node(Op op, Attrs attrs, const TensorType& type) {
  Graph graph;
  graph.stage = Stage::kTosa;
  const ValueId x = graph.add_input(InputKind::kUser, "x", type, "x");
  const TensorType results[] = {type};
  const NodeId node = graph.add_node(op, share(std::move(attrs)), std::vector{x}, results, nullptr, "y");
  Output output;
  output.value = graph.result(graph.node(node));
  graph.add_output(output);
  return graph;
}

// Constants of several sizes, each an operand of a maximum; deferred copies if asked for.
Graph maxima_with_constants(bool deferred) {
  Graph graph;
  graph.stage = Stage::kTosa;
  std::vector<ValueId> constants;
  for (const std::int64_t count : {20'000, 3, 16'384, 16'383, 70'001}) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i)
      values.push_back(static_cast<double>((i * 31 + count) % 251 - 125));
    const std::string name = "c" + std::to_string(count);
    const ConstantRef own = make_constant(name, DType::kI8, {count}, values);
    const Storage storage = deferred ? deferred_copy(own->storage) : own->storage;
    constants.push_back(graph.add_constant(constant_over(name, own->kind, own->dtype, own->shape, storage)));
  }
  for (const ValueId constant : constants) {
    const TensorType type = graph.type(constant);
    const ValueId x = graph.add_input(InputKind::kUser, "x" + std::to_string(constant.index()), type, "", {});
    const NodeId node = graph.add_node(Op::kTosaMaximum, share(TosaNanAttrs{}), std::vector{x, constant},
                                       std::vector{type}, nullptr, "y" + std::to_string(constant.index()));
    Output output;
    output.value = graph.result(graph.node(node));
    graph.add_output(std::move(output));
  }
  return graph;
}

}  // namespace

TEST_CASE("every tosa operator has a case here") {
  std::set<Op> seen;
  for (const testing::TosaCase& c : testing::every_tosa_op())
    for (const Node& node : c.graph.nodes()) seen.insert(node.op);
  for (const OpInfo& row : all_ops())
    if (row.is_tosa) CHECK(seen.count(row.op) == 1);
}

TEST_CASE("every tosa operator survives a round trip, and writing it again produces the same bytes") {
  for (const testing::TosaCase& c : testing::every_tosa_op()) {
    INFO(c.name);
    const Storage file = tosa::serialize(c.graph);
    const Graph read = tosa::deserialize(file);
    CHECK(read.stage == Stage::kTosa);
    if (!c.graph.outputs().empty() && c.graph.producer(c.graph.outputs()[0].value) != nullptr)
      require_same_nodes(c.graph, read);
    CHECK(bytes_of(tosa::serialize(read)) == bytes_of(file));
  }
}

TEST_CASE("every tosa operator is valid, and its text form survives a round trip") {
  for (const testing::TosaCase& c : testing::every_tosa_op()) {
    INFO(c.name);
    CHECK_NOTHROW(verify(c.graph));
    CHECK(print(parse(print(c.graph))) == print(c.graph));
  }
}

TEST_CASE("a region that is used twice is written once") {
  for (const testing::TosaCase& c : testing::every_tosa_op()) {
    if (c.name != "tosa.cond_if") continue;
    Graph graph = c.graph;
    const Node& node = graph.nodes()[0];
    std::vector<TensorType> types;
    for (std::uint32_t r = 0; r < node.result_count; ++r) types.push_back(graph.type(graph.result(node, r)));
    const std::vector<ValueId> operands(graph.operands(node).begin(), graph.operands(node).end());
    const auto regions = node.regions;
    graph.add_node(Op::kTosaCondIf, share(NoAttrs{}), operands, types, nullptr, "second", regions);
    const Graph read = tosa::deserialize(tosa::serialize(graph));
    CHECK(read.nodes()[0].regions == read.nodes()[1].regions);
    CHECK(read.nodes()[0].regions[0] != read.nodes()[0].regions[1]);
  }
}

TEST_CASE("the same graph is written as the same bytes") {
  CHECK(bytes_of(tosa::serialize(testing::small_tosa_network())) ==
        bytes_of(tosa::serialize(testing::small_tosa_network())));
}

TEST_CASE("outputs that are inputs, constants or duplicates become results of their own") {
  const Graph read = tosa::deserialize(tosa::serialize(testing::small_tosa_network()));
  REQUIRE(read.outputs().size() == 4);
  std::set<std::string> names;
  for (const Output& output : read.outputs()) {
    CHECK(read.producer(output.value) != nullptr);
    names.insert(read.value(output.value).name);
  }
  CHECK(names == std::set<std::string>{"padded", "x_out", "padded_out", "conv.weight_out"});
}

TEST_CASE("constants that are stored behind the flatbuffer survive a round trip") {
  const Graph network = testing::small_tosa_network();
  tosa::SerializeOptions options;
  options.inline_limit = 1;
  const Storage file = tosa::serialize(network, options);
  const Graph read = tosa::deserialize(file);
  CHECK(bytes_of(tosa::serialize(read, options)) == bytes_of(file));
  CHECK(bytes_of(tosa::serialize(read)) == bytes_of(tosa::serialize(network)));

  CHECK_THROWS_WITH(tosa::deserialize(file.bytes().first(file.size() - 1)),
                    Catch::Contains("lies beyond the end of the file: it is truncated"));
}

TEST_CASE("large constants, which are copied once, and small ones between them survive a round trip") {
  const Graph graph = maxima_with_constants(false);
  for (const std::size_t limit : {std::size_t{1}, tosa::SerializeOptions{}.inline_limit}) {
    const Graph read = tosa::deserialize(tosa::serialize(graph, {.inline_limit = limit}));
    require_same_nodes(graph, read);
  }
}

// The minor version that a file says.
std::int32_t minor_version(const Graph& graph, std::span<const SinceRow> newer) {
  const Storage file = tosa::serialize(graph, {.newer = newer});
  CHECK(bytes_of(tosa::serialize(tosa::deserialize(file), {.newer = newer})) == bytes_of(file));
  std::vector<std::byte> bytes = bytes_of(file);
  std::int32_t found = 0;
  std::memcpy(&found, bytes.data() + testing::FlatbufferPlace(bytes).table(0).field(1).offset(), 4);
  return found;
}

TEST_CASE("a file has the least version that has everything in the graph") {
  const Graph network = testing::small_tosa_network();
  CHECK(least_version(network) == TosaVersion{1, 0});
  const SinceRow newer[] = {{.version = {1, 1}, .op = Op::kTosaConv2d}};
  CHECK(minor_version(network, newer) == 1);
  const SinceRow unused[] = {{.version = {1, 1}, .op = Op::kTosaErf},
                             {.version = {1, 1}, .dtype = DType::kF8E5M2}};
  CHECK(minor_version(network, unused) == 0);
  const SinceRow dtype[] = {{.version = {1, 1}, .dtype = network.type(network.inputs()[0].value).dtype}};
  CHECK(minor_version(network, dtype) == 1);
}

TEST_CASE("origins are written and read as location text") {
  const Graph network = testing::small_tosa_network();
  const Graph read = tosa::deserialize(tosa::serialize(network));
  const std::vector<OriginRef> from = leaves(read.nodes()[1].origin);
  REQUIRE(from.size() == 2);
  CHECK(from[0]->fx_name == "conv2d");
  CHECK(from[0]->target == "aten.conv2d.default");
  CHECK(from[1]->module_path == "body.relu");
  CHECK(from[1]->source() == "model.py:13");
  CHECK(from[0] == leaves(read.nodes()[0].origin)[0]);

  tosa::SerializeOptions options;
  options.locations = false;
  CHECK(tosa::deserialize(tosa::serialize(network, options)).nodes()[1].origin == nullptr);
}

TEST_CASE("constants are read without a copy if their stored form allows it") {
  const Storage file = tosa::serialize(testing::small_tosa_network());
  const Graph read = tosa::deserialize(file);
  for (const Value& value : read.values()) {
    if (value.name != "conv.bias") continue;
    const std::byte* at = value.constant->bytes().data();
    CHECK(at > file.bytes().data());
    CHECK(at < file.bytes().data() + file.size());
  }
}

TEST_CASE("a file in which deferred constants are computed has the same bytes as a copy", "[recipe]") {
  const std::size_t limit =
      GENERATE(std::size_t{2'000'000'000}, std::size_t{1000});  // in the flatbuffer, or after it
  const Graph own = maxima_with_constants(false), later = maxima_with_constants(true);
  const Storage expected = tosa::serialize(own, {.inline_limit = limit});
  const tosa::FileImage image = tosa::lay_out(later, {.inline_limit = limit});
  REQUIRE(image.size() == expected.size());
  const auto memory = std::make_shared<std::vector<std::byte>>(image.size());
  compute_constants(later, {}, nullptr, image.places(memory->data(), memory));
  image.copy(memory->data());
  CHECK(std::equal(memory->begin(), memory->end(), expected.bytes().begin()));
  for (const Value& value : later.values()) {
    if (!value.constant) continue;
    const std::byte* at = value.constant->bytes().data();
    const bool is_in_file = at >= memory->data() && at < memory->data() + memory->size();
    CHECK(is_in_file == (limit == 1000 || value.constant->storage.size() >= 16'384));
  }
}

TEST_CASE("the pieces of a file compute deferred constants", "[recipe]") {
  const Storage expected = tosa::serialize(maxima_with_constants(false));
  std::vector<std::byte> found;
  const tosa::FileImage image = tosa::lay_out(maxima_with_constants(true));
  for (const std::span<const std::byte> piece : image.pieces())
    found.insert(found.end(), piece.begin(), piece.end());
  CHECK(std::equal(found.begin(), found.end(), expected.bytes().begin(), expected.bytes().end()));
}

TEST_CASE("graphs that TOSA cannot express are refused when they are written") {
  CHECK_THROWS_WITH(
      tosa::serialize(one_node(Op::kTosaIdentity, NoAttrs{}, tensor(DType::kI64, {2}))),
      "[tosa] TOSA has no such dtype: expected bool, i4, i8, i16, i32, i48 or a float of at most 32 "
      "bits, got i64 (node 'x')");
  CHECK_THROWS_WITH(
      tosa::serialize(one_node(Op::kRelu, NoAttrs{}, tensor(DType::kF32, {2}))),
      "[tosa] not an operator of TOSA 1.0: expected operators of stage tosa only, got 'relu' (node "
      "'y'). Lower the graph to stage tosa first.");
  CHECK_THROWS_WITH(tosa::serialize(one_node(Op::kTosaIdentity, NoAttrs{}, tensor(DType::kF32, {2, 0}))),
                    "[tosa] TOSA has no empty tensors: got [2,0] (node 'x')");
  CHECK_THROWS_WITH(
      tosa::serialize(one_node(Op::kTosaNegate, TosaZeroPointAttrs{200, 0}, tensor(DType::kI8, {2}))),
      "[tosa] input1_zp does not fit its dtype: expected i8, got 200 (node 'y')");
  CHECK_THROWS_WITH(
      tosa::serialize(one_node(Op::kTosaReverse, AxisAttrs{std::int64_t{1} << 40}, tensor(DType::kI8, {2}))),
      "[tosa] axis does not fit 32 bits: got 1099511627776 (node 'y')");
}

}  // namespace tosaic
