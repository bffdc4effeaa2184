// Checks runs of graphs: shared memory, inputs and outputs, state, overrides, traces, control flow, threads,
// errors.
#include <catch2/catch.hpp>
#include <thread>

#include "exec/chain.h"
#include "tosaic/base/error.h"
#include "tosaic/exec/steps.h"

namespace tosaic::exec {
namespace {

ConstantRef constant(const std::string& name, const Shape& shape, std::vector<double> values) {
  return make_constant(name, DType::kF32, shape, values);
}

std::vector<double> run_one(const Builder& b, std::vector<ArrayView> inputs,
                            const PrepareOptions& options = {}) {
  return doubles(run(b.graph, inputs, options).at(0));
}

BoundaryFormat order_boundary(const DimOrder& order, bool physical) {
  BoundaryFormat boundary;
  boundary.order = order;
  boundary.physical = physical;
  return boundary;
}

BoundaryFormat int64_boundary(std::int64_t min, std::int64_t max) {
  BoundaryFormat boundary;
  boundary.source_dtype = DType::kI64;
  boundary.range_min = min;
  boundary.range_max = max;
  return boundary;
}

}  // namespace

TEST_CASE("results are the same with and without shared memory", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({2, 3}));
  const ValueId c = b.graph->add_constant(constant("c", {3}, {10, 20, 30}));
  const ValueId s = b.add(Op::kAdd, {x, c}, "add");
  const ValueId n = b.add(Op::kNeg, {s}, "neg");
  const ValueId v = b.add(Op::kReshape, {n}, "view", ShapeAttrs{{6}});
  const ValueId r = b.add(Op::kReshape, {s}, "view_1", ShapeAttrs{{6}});
  const ValueId m = b.add(Op::kMul, {v, r}, "mul");
  b.output(b.add(Op::kRelu, {v}, "relu")).output(m).output(v);
  const std::vector<float> data{1, 2, 3, -40, -50, -60};
  const std::vector<ArrayView> inputs{view(data, {2, 3})};
  PrepareOptions apart;
  apart.memory.share = false;
  const auto shared = run(b.graph, inputs), unshared = run(b.graph, inputs, apart);
  for (std::size_t i = 0; i < 3; ++i) CHECK(doubles(shared[i]) == doubles(unshared[i]));
  CHECK(doubles(shared[1]) == std::vector<double>{-121, -484, -1089, -900, -900, -900});
  CHECK(doubles(shared[0]) == std::vector<double>{0, 0, 0, 30, 30, 30});
}

TEST_CASE("an output may be an input, a constant, or the same value as another output", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  const ValueId c = b.graph->add_constant(constant("c", {2}, {7, 8}));
  const ValueId n = b.add(Op::kNeg, {x}, "neg");
  b.output(x).output(c).output(n).output(n);
  const std::vector<float> data{1, 2};
  const auto out = run(b.graph, std::vector<ArrayView>{view(data, {2})});
  CHECK(doubles(out[0]) == std::vector<double>{1, 2});
  CHECK(doubles(out[1]) == std::vector<double>{7, 8});
  CHECK(doubles(out[2]) == std::vector<double>{-1, -2});
  CHECK(doubles(out[3]) == std::vector<double>{-1, -2});
}

TEST_CASE("inputs are read by their strides, and an undeclared dim order is refused", "[exec]") {
  Builder b;
  b.output(b.add(Op::kNeg, {b.input("x", f32({3, 2}))}, "neg"));
  const std::vector<float> data{1, 2, 3, 4, 5, 6};
  CHECK(run_one(b, {permuted(view(data, {2, 3}), {1, 0})}) == std::vector<double>{-1, -4, -2, -5, -3, -6});
  Builder image;
  image.output(image.add(Op::kNeg, {image.input("x", f32({1, 3, 1, 2}))}, "neg"));
  CHECK_THROWS_WITH(
      run_one(image, {permuted(view(data, {1, 1, 2, 3}), {0, 3, 1, 2})}),
      Catch::Contains(
          "input 'x' lies in another dim order than was declared: expected [0,1,2,3], got [0,2,3,1]"));
  ArrayView reversed = view(data, {3, 2});
  reversed.data += 4 * sizeof(float);
  reversed.strides[0] = -reversed.strides[0];
  CHECK(run_one(b, {reversed}) == std::vector<double>{-5, -6, -3, -4, -1, -2});
}

TEST_CASE("outputs are written into the caller's arrays, which may be strided or overlap an input",
          "[exec]") {
  Builder b;
  const ValueId r = b.add(Op::kNeg, {b.input("x", f32({2, 2}))}, "neg");
  const ValueId s = b.add(Op::kAdd, {r, r}, "add");
  b.output(s);
  Session session(prepare(b.graph));
  std::vector<float> data{1, 2, 3, 4};
  MutableArrayView over =
      MutableArrayView::dense(reinterpret_cast<std::byte*>(data.data()), DType::kF32, {2, 2});
  session.run_into(std::vector{view(data, {2, 2})}, std::vector{over});
  CHECK(data == std::vector<float>{-2, -4, -6, -8});
  std::vector<float> wide(8, 0);
  MutableArrayView strided{reinterpret_cast<std::byte*>(wide.data()), DType::kF32, {2, 2}, {4, 16}};
  session.run_into(std::vector{view(data, {2, 2})}, std::vector{strided});
  CHECK(wide == std::vector<float>{4, 12, 0, 0, 8, 16, 0, 0});
}

TEST_CASE("an int64 graph input is narrowed and its range is checked", "[exec]") {
  Builder b;
  const ValueId x = b.input("tokens", tensor(DType::kI32, {2, 2}), int64_boundary(0, 99));
  const ValueId n = b.add(Op::kAdd, {x, x}, "add");
  b.graph->add_output({n, OutputKind::kUser, "out", 0, int64_boundary(0, 0)});
  const std::vector<std::int64_t> good{1, 2, 3, 99}, bad{1, 2, 100, 3};
  const auto out = run(b.graph, std::vector{view(good, DType::kI64, {2, 2})});
  CHECK(out[0].dtype == DType::kI64);
  CHECK(doubles(out[0]) == std::vector<double>{2, 4, 6, 198});
  CHECK_THROWS_WITH(
      run(b.graph, std::vector{view(bad, DType::kI64, {2, 2})}),
      "[run] input 'tokens' holds a value outside its range at [1,0]: expected 0 to 99, got 100");
}

TEST_CASE("integer inputs of another width are accepted if their values fit", "[exec]") {
  Builder b;
  b.output(b.add(Op::kNeg, {b.input("x", tensor(DType::kI32, {2}))}, "neg"));
  const std::vector<std::int64_t> good{-3, 2147483647}, bad{0, 2147483648};
  CHECK(doubles(run(b.graph, std::vector{view(good, DType::kI64, {2})})[0]) ==
        std::vector<double>{3, -2147483647});
  CHECK_THROWS_WITH(run(b.graph, std::vector{view(bad, DType::kI64, {2})}),
                    "[run] input 'x' holds a value outside its range at [1]: expected -2147483648 to "
                    "2147483647, got 2147483648");
}

TEST_CASE("wrong numbers, dtypes, shapes and strides of inputs are refused by name", "[exec]") {
  Builder b;
  const BoundaryFormat physical = order_boundary(DimOrder({0, 2, 3, 1}), true);
  const ValueId x = b.input("image", f32({1, 3, 4, 4}), physical);
  b.output(b.add(Op::kNeg, {x}, "neg"));
  Session session(prepare(b.graph));
  const std::vector<float> data(48, 1);
  const auto given = [&](const ArrayView& array) { return session.run(std::vector{array}); };
  CHECK_THROWS_WITH(session.run({}), "[run] wrong number of inputs: expected 1 (image), got 0");
  CHECK_THROWS_WITH(
      given(ArrayView::dense(reinterpret_cast<const std::byte*>(data.data()), DType::kI32, {1, 4, 4, 3})),
      "[run] input 'image' has the wrong dtype: expected f32, got i32");
  CHECK_THROWS_WITH(
      given(view(data, {1, 3, 4, 4})),
      "[run] input 'image' has the wrong shape: expected [1,4,4,3], got [1,3,4,4]. This boundary takes "
      "arrays in physical order [0,2,3,1]: pass the permuted array.");
  CHECK_THROWS_WITH(
      given(permuted(view(data, {1, 3, 4, 4}), {0, 2, 3, 1})),
      "[run] input 'image' is not row-major, though its boundary carries the physical shape: expected "
      "strides of [192,48,12,4] bytes, got [192,16,4,64]. A channels-last array of the logical shape "
      "must be permuted first.");
  CHECK_THROWS_AS(given(view(data, {48})), LayoutMismatch);
  CHECK_NOTHROW(given(view(data, {1, 4, 4, 3})));
}

TEST_CASE("inputs and outputs in physical and in logical shape carry the same values", "[exec]") {
  const DimOrder last({0, 2, 1});
  const std::vector<float> physical{1, 4, 2, 5, 3, 6};  // physical shape (1,3,2), logical shape (1,2,3)
  for (const Stage stage : {Stage::kExported, Stage::kTosa})
    for (const bool carries_physical : {false, true}) {
      Builder b;
      b.graph->stage = stage;
      const Shape value_shape = stage == Stage::kTosa ? Shape{1, 3, 2} : Shape{1, 2, 3};
      const BoundaryFormat boundary = order_boundary(last, carries_physical);
      const ValueId x = b.input("x", f32(value_shape), boundary);
      b.graph->add_output({b.add(Op::kNeg, {x}, "neg"), OutputKind::kUser, "", 0, boundary});
      const ArrayView array = view(physical, {1, 3, 2});
      const ArrayView given = carries_physical ? array : permuted(array, {0, 2, 1});
      const Array out = run(b.graph, std::vector{given}).at(0);
      INFO("stage " << to_string(stage) << " physical " << carries_physical);
      CHECK(out.shape == given.shape);
      std::vector<double> expected = doubles(given);
      for (double& value : expected) value = -value;
      CHECK(doubles(out) == expected);
      const Dims logical_strides = carries_physical ? permuted(out.strides, {0, 2, 1}) : out.strides;
      CHECK(logical_strides == Dims{24, 4, 8});  // channels last in memory
    }
}

TEST_CASE("arrays that are stored like the graph's value are read and written without a copy", "[exec]") {
  const DimOrder last({0, 2, 1});
  const std::vector<float> physical{1, 4, 2, 5, 3, 6};
  for (const bool carries_physical : {false, true}) {
    Builder b;
    b.graph->stage = Stage::kTosa;
    const BoundaryFormat boundary = order_boundary(last, carries_physical);
    const ValueId x = b.input("x", f32({1, 3, 2}), boundary);
    const ValueId n = b.add(Op::kNeg, {x}, "neg");
    b.graph->add_output({b.add(Op::kAdd, {n, x}, "add"), OutputKind::kUser, "", 0, boundary});
    const ArrayView array = view(physical, {1, 3, 2});
    const ArrayView given = carries_physical ? array : permuted(array, {0, 2, 1});
    std::vector<const std::byte*> read, written;
    RunOptions options;
    options.observer = [&](const NodeCall& call) {
      for (const ArrayView& operand : call.operands) read.push_back(operand.data);
      for (const MutableArrayView& result : call.results) written.push_back(result.data);
    };
    Session session(prepare(b.graph));
    const Array out = session.run(std::vector{given}, options).outputs.at(0);
    INFO("physical " << carries_physical);
    REQUIRE(read.size() == 3);
    CHECK(read[0] == given.data);
    CHECK(read[2] == given.data);
    CHECK(written[1] == out.storage.bytes().data());
    ArrayView apart = given;  // every other element of a larger array
    const std::vector<float> wide(12, 1);
    apart.data = reinterpret_cast<const std::byte*>(wide.data());
    for (std::int64_t& stride : apart.strides) stride *= 2;
    if (carries_physical) continue;  // an array of physical shape is refused unless it is row-major
    read.clear();
    static_cast<void>(session.run(std::vector{apart}, options));
    CHECK(read[0] != apart.data);
  }
}

TEST_CASE("state persists between runs and can be reset", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  const ValueId h = b.state("hidden", constant("hidden", {2}, {1, 1}));
  const ValueId next = b.add(Op::kAdd, {x, h}, "add");
  b.output(b.add(Op::kNeg, {next}, "neg")).mutation(next, "hidden", 1);
  Session session(prepare(b.graph));
  const std::vector<float> data{1, 2};
  const std::vector<ArrayView> inputs{view(data, {2})};
  CHECK(doubles(session.run(inputs).outputs.at(0)) == std::vector<double>{-2, -3});
  CHECK(doubles(session.run(inputs).outputs.at(0)) == std::vector<double>{-3, -5});
  CHECK(doubles(session.state("hidden")) == std::vector<double>{3, 5});
  session.reset_state();
  CHECK(doubles(session.run(inputs).outputs.at(0)) == std::vector<double>{-2, -3});
  session.set_state("hidden", view(data, {2}));
  CHECK(doubles(session.state("hidden")) == std::vector<double>{1, 2});
  CHECK_THROWS_WITH(session.state("cell"), "[run] the graph has no state of that name: got 'cell'");
}

TEST_CASE("a run that fails does not change the state", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({1}));
  const ValueId h = b.state("hidden", constant("hidden", {1}, {5}));
  const ValueId next = b.add(Op::kAdd, {x, h}, "add");
  b.mutation(next, "hidden", 1).output(b.opaque({next}, f32({1}), "lib.fails.default", "fails"));
  PrepareOptions options;
  options.overrides.ops["lib.fails.default"] = [](const NodeCall&) {
    throw InvalidGraph({.where = "kernels", .what = "index out of range"});
  };
  Session session(prepare(b.graph, options));
  const std::vector<float> data{1};
  CHECK_THROWS_WITH(session.run(std::vector{view(data, {1})}),
                    "[kernels] index out of range (node 'fails', module 'net', model.py:9)");
  CHECK(doubles(session.state("hidden")) == std::vector<double>{5});
}

TEST_CASE("mutations of a user input are returned", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({1}));
  b.mutation(b.add(Op::kNeg, {x}, "neg"), "x", 0);
  const std::vector<float> data{3};
  CHECK(run_one(b, {view(data, {1})}) == std::vector<double>{-3});
}

TEST_CASE("nodes, operators and foreign targets can be overridden", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  const ValueId first = b.add(Op::kRelu, {x}, "first");
  const ValueId second = b.add(Op::kRelu, {first}, "second");
  const ValueId flat = b.add(Op::kReshape, {second}, "flat", ShapeAttrs{{2, 1}});
  b.output(b.opaque({flat}, f32({2, 1}), "lib.op.default", "foreign"));
  PrepareOptions options;
  options.overrides.ops["relu"] = affine(1, 10);
  options.overrides.ops["reshape"] = affine(1, 0.5f);
  options.overrides.ops["lib.op.default"] = affine(-1, 0);
  options.overrides.nodes["second"] = affine(100, 0);
  const std::vector<float> data{1, 2};
  CHECK(run_one(b, {view(data, {2})}, options) == std::vector<double>{-1100.5, -1200.5});
  options.overrides.nodes["third"] = affine(1, 0);
  CHECK_THROWS_WITH(prepare(b.graph, options),
                    "[prepare] an override names no node of the graph: got 'third'");
}

TEST_CASE("a foreign operator without an override is refused, with its source location", "[exec]") {
  Builder b;
  b.output(b.opaque({b.input("x", f32({2}))}, f32({2}), "lib.op.default", "foreign"));
  CHECK_THROWS_AS(prepare(b.graph), UnsupportedOp);
  CHECK_THROWS_WITH(
      prepare(b.graph),
      "[prepare] no kernel for the foreign operator 'lib.op.default' (node 'foreign', "
      "module 'net', model.py:9). Describe it, "
      "program.with_operators([tosaic.ports.ForeignOp('lib.op.default', kernel)]), where the target is "
      "that of the torch operator, or override it with a function of the operands: "
      "program.with_overrides({'lib.op.default': function}), in C++ "
      "PrepareOptions::overrides.ops[\"lib.op.default\"].");
}

std::shared_ptr<const Graph> with_described(const std::string& target) {
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  const TensorType type = f32({2});
  const NodeId node = b.graph->add_node(Op::kOpaque, share(OpaqueAttrs{target, "", "user2", "center"}),
                                        std::span(&x, 1), std::span(&type, 1), leaf("foreign", 9), "foreign");
  b.output(b.graph->result(b.graph->node(node)));
  return b.graph;
}

TEST_CASE("a described operator is overridden by its target, or by its domain and name", "[exec]") {
  const std::vector<float> data{1, 2};
  for (const std::string target : {"user2::center", "center", "user2.center.default"})
    for (const std::string& key : {target, std::string("user2.center")}) {
      PrepareOptions options;
      options.overrides.ops[key] = affine(1, 1);
      const std::vector<Array> outputs = run(with_described(target), std::vector{view(data, {2})}, options);
      CHECK(doubles(outputs.at(0)) == std::vector<double>{2, 3});
    }
}

TEST_CASE("the target takes precedence over domain and name", "[exec]") {
  PrepareOptions options;
  options.overrides.ops["user2.center"] = affine(1, 1);
  options.overrides.ops["user2::center"] = affine(1, 5);
  const std::vector<float> data{1, 2};
  const std::vector<Array> outputs =
      run(with_described("user2::center"), std::vector{view(data, {2})}, options);
  CHECK(doubles(outputs.at(0)) == std::vector<double>{6, 7});
}

TEST_CASE("an override for an operator that does not exist is refused with near names", "[exec]") {
  const auto error_of_key = [](const std::string& key) {
    PrepareOptions options;
    options.overrides.ops["user2::center"] = affine(1, 0);
    options.overrides.ops[key] = affine(1, 0);
    try {
      static_cast<void>(prepare(with_described("user2::center"), options));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(error_of_key("add").empty());  // an operator that the graph does not have
  CHECK(error_of_key("user2.centre") ==
        "[prepare] an override names no operator: expected the name of an operator, or a foreign operator of "
        "the graph, got 'user2.centre'. Did you mean 'user2.center'.");
  CHECK_THAT(error_of_key("relux"), Catch::Contains("got 'relux'. Did you mean 'relu'"));
  CHECK_THAT(error_of_key("no.such.operator.at.all"),
             Catch::Contains("Foreign operators of the graph are 'user2.center', 'user2::center'."));
}

TEST_CASE("a graph with tosa.custom nodes takes overrides for targets that it does not know", "[exec]") {
  Builder b;
  b.graph->stage = Stage::kTosa;
  const ValueId x = b.input("x", f32({2}));
  const TensorType type = f32({2});
  const NodeId node = b.graph->add_node(Op::kTosaCustom, share(TosaCustomAttrs{"center", "user2", ""}),
                                        std::span(&x, 1), std::span(&type, 1), leaf("foreign", 9), "foreign");
  b.output(b.graph->result(b.graph->node(node)));
  PrepareOptions options;
  options.overrides.ops["user2.center"] = affine(1, 1);
  options.overrides.ops["user2::center"] = affine(1, 5);
  const std::vector<float> data{1, 2};
  CHECK(run_one(b, {view(data, {2})}, options) == std::vector<double>{2, 3});
}

TEST_CASE("an empty override is refused by name", "[exec]") {
  PrepareOptions options;
  options.overrides.ops["user2.center"] = nullptr;
  CHECK_THROWS_WITH(
      prepare(with_described("center"), options),
      "[prepare] the override of 'user2.center' is empty: expected a function that computes the "
      "node, got an empty std::function");
}

TEST_CASE("an exception of an override names the node", "[exec]") {
  PrepareOptions options;
  options.overrides.ops["user2.center"] = [](const NodeCall&) { throw std::runtime_error("no device"); };
  const std::vector<float> data{1, 2};
  CHECK_THROWS_WITH(run(with_described("center"), std::vector{view(data, {2})}, options),
                    "[run] the function that computes this node threw an exception: got 'no device' (node "
                    "'foreign', module 'net', model.py:9)");
  struct Stop {};  // no std::exception
  options.overrides.ops["user2.center"] = [](const NodeCall&) { throw Stop(); };
  CHECK_THROWS_AS(run(with_described("center"), std::vector{view(data, {2})}, options), Stop);
}

TEST_CASE("an operator that runs as its expansion is refused with the function that expands it", "[exec]") {
  Builder b;
  b.output(b.add(Op::kLogit, {b.input("x", f32({2}))}, "logit"));
  CHECK_THROWS_WITH(prepare(b.graph), Catch::Contains("in C++, pipeline::make_session expands it"));
}

TEST_CASE("an operator over quantized values is refused before lower-to-integer", "[exec]") {
  auto qparams = std::make_shared<QParams>();
  qparams->scales = {0.5};
  qparams->zero_points = {0};
  TensorType type = tensor(DType::kI8, {2});
  type.qparams = qparams;
  Builder b;
  b.graph->stage = Stage::kQuantized;
  const ValueId x = b.input("x", type);
  const NodeId node = b.graph->add_node(Op::kNeg, share(NoAttrs{}), std::vector{x}, std::span(&type, 1),
                                        leaf("neg", 4), "neg");
  b.output(b.graph->result(b.graph->node(node)));
  CHECK_THROWS_WITH(prepare(b.graph),
                    "[prepare] an operator over quantized values of this stage cannot be run: got neg "
                    "(node 'neg', module 'net', model.py:4). Run the pass unfold-qdq, or lower the graph to "
                    "integer operators first.");
  b.graph->stage = Stage::kInteger;
  CHECK_NOTHROW(prepare(b.graph));
}

TEST_CASE("an observer sees every node, and a trace has the requested nodes", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  const ValueId n = b.add(Op::kNeg, {x}, "neg");
  const ValueId v = b.add(Op::kReshape, {n}, "view", ShapeAttrs{{1, 2}});
  b.output(b.add(Op::kRelu, {v}, "relu"));
  Session session(prepare(b.graph));
  std::vector<std::string> seen;
  RunOptions options;
  options.observer = [&](const NodeCall& call) { seen.push_back(call.name); };
  options.trace.nodes = {"neg"};
  const std::vector<float> data{1, -2};
  const RunResult result = session.run(std::vector{view(data, {2})}, options);
  CHECK(seen == std::vector<std::string>{"neg", "view", "relu"});
  REQUIRE(result.trace.size() == 1);
  CHECK(result.trace[0].value == n);
  CHECK(doubles(result.trace[0].array) == std::vector<double>{-1, 2});
  options.trace.nodes = {"sigmoid"};
  CHECK_THROWS_WITH(session.run(std::vector{view(data, {2})}, options),
                    "[run] the trace names no node of the graph: got 'sigmoid'");
}

TEST_CASE("a run can be stopped between steps", "[exec]") {
  Builder b;
  b.output(b.add(Op::kNeg, {b.add(Op::kRelu, {b.input("x", f32({1}))}, "relu")}, "neg"));
  Session session(prepare(b.graph));
  RunOptions options;
  int steps = 0;
  options.between_steps = [&] {
    if (++steps == 2) throw std::runtime_error("stopped");
  };
  const std::vector<float> data{1};
  CHECK_THROWS_WITH(session.run(std::vector{view(data, {1})}, options), "stopped");
  CHECK(doubles(session.run(std::vector{view(data, {1})}).outputs[0]) == std::vector<double>{-1});
}

TEST_CASE("constants that were changed or never bound are refused", "[exec]") {
  const std::vector<float> weights{1, 2};
  auto message = std::make_shared<std::string>();
  auto changing = std::make_shared<Constant>();
  changing->name = "weight";
  changing->shape = {2};
  changing->storage =
      Storage(nullptr, reinterpret_cast<const std::byte*>(weights.data()), 8, [message] { return *message; });
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  b.output(b.add(Op::kAdd, {x, b.graph->add_constant(changing)}, "add"));
  Session session(prepare(b.graph));
  const std::vector<ArrayView> inputs{view(weights, {2})};
  CHECK(doubles(session.run(inputs).outputs[0]) == std::vector<double>{2, 4});
  *message = "version 0 became 1";
  CHECK_THROWS_WITH(session.run(inputs),
                    "[run] constant 'weight' was changed after import: version 0 became 1. "
                    "Import the program again.");
  Builder unbound;
  auto missing = std::make_shared<Constant>();
  missing->name = "weight";
  missing->shape = {2};
  unbound.output(
      unbound.add(Op::kAdd, {unbound.input("x", f32({2})), unbound.graph->add_constant(missing)}, "add"));
  CHECK_THROWS_AS(prepare(unbound.graph), InvalidGraph);
}

TEST_CASE("two threads run one prepared graph", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({64}));
  const ValueId n = b.add(Op::kNeg, {x}, "neg");
  const ValueId m = b.add(Op::kMul, {n, x}, "mul");
  b.output(b.add(Op::kAdd, {m, n}, "add"));
  Session session(prepare(b.graph));
  std::vector<int> wrong(2, 0);
  const auto work = [&](std::size_t thread) {
    for (int round = 0; round < 300; ++round) {
      const auto value = static_cast<float>(round + 1000 * static_cast<int>(thread));
      const std::vector<float> data(64, value);
      for (const double out : doubles(session.run(std::vector{view(data, {64})}).outputs[0]))
        wrong[thread] += out != static_cast<double>(-value * value + -value);
    }
  };
  std::thread other(work, std::size_t{1});
  work(0);
  other.join();
  CHECK(wrong == std::vector<int>{0, 0});
}

TEST_CASE("cond runs the region that its predicate selects", "[exec]") {
  const auto region = [](Op op) {
    Builder r;
    const ValueId x = r.input("x", f32({2}));
    r.output(r.add(op, {r.add(Op::kAdd, {x, x}, "twice")}, "last"));
    return std::shared_ptr<const Graph>(r.graph);
  };
  Builder b;
  const ValueId p = b.input("p", tensor(DType::kBool, {}));
  const ValueId x = b.input("x", f32({2}));
  const ValueId in = b.add(Op::kNeg, {x}, "neg");
  const TensorType type = f32({2});
  const NodeId cond = b.graph->add_node(Op::kCond, share(NoAttrs{}), std::vector{p, in}, std::span(&type, 1),
                                        leaf("cond"), "cond", {region(Op::kNeg), region(Op::kRelu)});
  b.output(b.add(Op::kAdd, {b.graph->result(b.graph->node(cond)), in}, "add"));
  const std::vector<float> data{1, -3};
  const std::vector<std::uint8_t> yes{1}, no{0};
  CHECK(run_one(b, {view(yes, DType::kBool, {}), view(data, {2})}) == std::vector<double>{1, -3});
  CHECK(run_one(b, {view(no, DType::kBool, {}), view(data, {2})}) == std::vector<double>{-1, 9});
}

TEST_CASE("while_loop runs its body until its condition is false", "[exec]") {
  Builder condition;
  const ValueId i0 = condition.input("i", f32({}));
  condition.input("x", f32({2}));
  condition.input("limit", f32({}));
  condition.output(condition.add(Op::kLt, {i0, condition.graph->inputs()[2].value}, "lt"));
  Builder body;
  const ValueId i = body.input("i", f32({})), x = body.input("x", f32({2}));
  body.input("limit", f32({}));
  const ValueId one = body.graph->add_constant(constant("one", {}, {1}));
  body.output(body.add(Op::kAdd, {i, one}, "next")).output(body.add(Op::kAdd, {x, x}, "double"));
  Builder b;
  const ValueId start = b.input("start", f32({})), value = b.input("value", f32({2})),
                limit = b.input("limit", f32({}));
  const std::vector<TensorType> types{f32({}), f32({2})};
  const NodeId loop = b.graph->add_node(Op::kWhileLoop, share(NoAttrs{}), std::vector{start, value, limit},
                                        types, leaf("loop"), "loop", {condition.graph, body.graph});
  b.output(b.graph->result(b.graph->node(loop), 1)).output(b.graph->result(b.graph->node(loop), 0));
  const std::vector<float> zero{0}, five{5}, none{-1}, data{1, 3};
  CHECK(run_one(b, {view(zero, {}), view(data, {2}), view(five, {})}) == std::vector<double>{32, 96});
  CHECK(run_one(b, {view(zero, {}), view(data, {2}), view(none, {})}) == std::vector<double>{1, 3});
}

TEST_CASE("the plan of a prepared graph can be read", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({16}));
  b.output(b.add(Op::kReshape, {b.add(Op::kNeg, {x}, "neg")}, "view", ShapeAttrs{{4, 4}}));
  const Prepared prepared = prepare(b.graph);
  REQUIRE(prepared.steps().size() == 2);
  CHECK(prepared.steps()[0].name == "neg");
  CHECK_FALSE(prepared.steps()[0].kernel.empty());
  CHECK(prepared.steps()[1].kernel == "view");
  CHECK(prepared.memory().arena_bytes == 0);
}

}  // namespace tosaic::exec
