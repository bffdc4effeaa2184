// Graphs of .pt2 files as nodes: arguments, results, nested graphs, faults, and mutated text.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "mutator.h"
#include "tosaic/base/error.h"
#include "tosaic/pt2/nodes.h"
#include "tosaic/pt2/weights.h"

namespace tosaic::pt2 {
namespace {

const std::string kMeta =
    R"({"dtype":7,"sizes":[{"as_int":2},{"as_expr":{"expr_str":"s0 + 1"}}],"strides":[{"as_int":1},{"as_int":1}],)"
    R"("storage_offset":{"as_int":0},"device":{"type":"cpu","index":null},"layout":7})";

std::string tensor(const std::string& name) { return R"({"as_tensor":{"name":")" + name + R"("}})"; }

std::string graph_of(const std::string& nodes, const std::string& outputs, const std::string& names) {
  std::string tensors;
  for (const char name : names)
    tensors += (tensors.empty() ? "\"" : ",\"") + std::string(1, name) + "\":" + kMeta;
  return R"({"inputs":[)" + tensor("x") + R"(],"outputs":[)" + outputs + R"(],"nodes":[)" + nodes +
         R"(],"tensor_values":{)" + tensors +
         R"(},"sym_int_values":{"n":{"as_int":3}},"is_single_tensor_return":false})";
}

std::string call(const std::string& target, const std::string& inputs, const std::string& outputs) {
  return R"({"target":")" + target + R"(","inputs":[)" + inputs + R"(],"outputs":[)" + outputs +
         R"(],"metadata":{"stack_trace":"File \"a.py\", line 3","nn_module_stack":"k,,Net;k2,conv,Conv[a,b]"},"name":"call"})";
}

std::string given(const std::string& name, const std::string& value, int kind) {
  return R"({"name":")" + name + R"(","arg":)" + value + R"(,"kind":)" + std::to_string(kind) + "}";
}

const std::string kSplit =
    call("torch.ops.aten.split.Tensor",
         given("self", tensor("x"), 1) + "," + given("sizes", R"({"as_ints":[1,2]})", 1) + "," +
             given("dtype", R"({"as_scalar_type":7})", 2),
         tensor("a") + "," + tensor("b"));

const std::string kInner =
    R"({"graph":)" +
    graph_of(call("torch.ops.aten.neg.default", given("self", tensor("x"), 1), tensor("y")), tensor("y"),
             "xy") +
    R"(,"name":"true_graph"})";

const std::string kGraph = graph_of(
    kSplit + "," +
        call("torch.ops.higher_order.cond",
             given("pred", tensor("a"), 1) + "," + given("graph", R"({"as_graph":)" + kInner + "}", 1) + "," +
                 given("operands", R"({"as_tensors":[{"name":"b"},{"name":"a"}]})", 1),
             tensor("c")),
    tensor("c") + R"(,{"as_none":true})", "xabc");

std::vector<std::string> no_names(std::string_view) { return {}; }

ProgramNodes read(const JsonDocument& document, const ParameterNames& names = no_names) {
  return read_nodes(document.root(), {}, names);
}

std::string refusal_of(const std::string& graph) {
  try {
    static_cast<void>(read(JsonDocument(graph, "a test")));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

template <class T>
T held(const Argument& argument) {
  REQUIRE(std::holds_alternative<T>(argument.value));
  return std::get<T>(argument.value);
}

}  // namespace

TEST_CASE("a call with several results becomes a node for the call and one for each result", "[pt2]") {
  const JsonDocument document(kGraph, "a test");
  const ProgramNodes program = read(document);
  const std::vector<Node>& nodes = program.graphs[0].nodes;
  REQUIRE(nodes.size() == 7);
  CHECK(nodes[0].kind == NodeKind::kPlaceholder);
  CHECK(nodes[1].name == "call");
  CHECK(nodes[1].target == "aten.split.Tensor");
  CHECK(held<NodeRef>(nodes[1].args[0]).index == 0);
  CHECK(held<std::int64_t>(held<Items>(nodes[1].args[1])[1]) == 2);
  CHECK(nodes[1].kwargs[0].key == "dtype");
  CHECK(held<DtypeNumber>(nodes[1].kwargs[0].argument).number == 7);
  CHECK(held<Items>(*nodes[1].recorded).size() == 2);
  CHECK(*nodes[1].stack_trace == "File \"a.py\", line 3");
  CHECK(program.stacks[*nodes[1].modules][1].path == "conv");
  CHECK(program.stacks[*nodes[1].modules][1].type == "Conv[a,b]");
  CHECK(program.stacks[*nodes[1].modules][1].index == 1);
  CHECK(program.modules == 2);
  CHECK(nodes[2].kind == NodeKind::kGetItem);
  CHECK(nodes[2].name == "a");
  CHECK(nodes[3].name == "b");
  CHECK(nodes[3].inputs == std::vector<std::uint32_t>{1});
}

TEST_CASE("a nested graph is the value of an attribute", "[pt2]") {
  const JsonDocument document(kGraph, "a test");
  const ProgramNodes program = read(document);
  const Node& attribute = program.graphs[0].nodes[4];
  CHECK(attribute.kind == NodeKind::kAttribute);
  CHECK(attribute.name == "true_graph");
  const GraphNodes& inner = program.graphs[held<GraphRef>(*attribute.recorded).index];
  CHECK(inner.nodes[1].target == "aten.neg.default");
  const Node& call = program.graphs[0].nodes[5];
  CHECK(call.inputs == std::vector<std::uint32_t>{2, 4, 3});
  CHECK(held<Items>(program.graphs[0].nodes[6].args[0]).size() == 2);
}

TEST_CASE("types of tensors may have symbolic sizes", "[pt2]") {
  const JsonDocument document(kGraph, "a test");
  const ProgramNodes program = read(document);
  const TensorMeta& meta = program.tensors[held<TensorRef>(*program.graphs[0].nodes[0].recorded).index];
  CHECK(meta.dtype == 7);
  CHECK(std::get<std::int64_t>(meta.sizes[0]) == 2);
  CHECK(std::get<Symbolic>(meta.sizes[1]).expression == "s0 + 1");
}

TEST_CASE("a type that several tensors have is stored once, and types that differ are apart", "[pt2]") {
  const auto hashes_of = [](const std::string& graph) {
    const JsonDocument document(graph, "a test");
    const ProgramNodes program = read(document);
    std::vector<std::size_t> hashes;
    for (const TensorMeta& type : program.tensors) hashes.push_back(hash_of(type));
    return hashes;
  };
  const auto [from, to] = GENERATE(table<std::string, std::string>({
      {R"("dtype":7)", R"("dtype":6)"},
      {R"("as_int":2)", R"("as_int":3)"},
      {"s0 + 1", "s1 + 1"},
      {R"({"as_expr":{"expr_str":"s0 + 1"}})", R"({"as_int":1})"},
      {R"("strides":[{"as_int":1})", R"("strides":[{"as_int":2})"},
      {R"("storage_offset":{"as_int":0})", R"("storage_offset":{"as_int":8})"},
      {R"("type":"cpu")", R"("type":"cuda")"},
      {R"("layout":7)", R"("layout":1)"},
  }));
  const std::string graph = graph_of(kSplit, tensor("a"), "xab");
  CHECK(hashes_of(graph).size() == 1);
  const std::vector<std::size_t> hashes = hashes_of(replaced(graph, from, to));
  REQUIRE(hashes.size() == 2);
  CHECK(hashes[0] != hashes[1]);  // else many such types would take quadratic time
}

TEST_CASE("arguments of older files are told apart by the parameters of the operator", "[pt2]") {
  const auto old = [](const std::string& name) { return R"({"name":")" + name + R"(","arg":{"as_int":1}})"; };
  const std::string graph =
      graph_of(call("torch.ops.aten.f.default", old("a") + "," + old("c") + "," + old("b"), tensor("y")),
               tensor("y"), "xy");
  const JsonDocument document(graph, "a test");
  const ProgramNodes program =
      read(document, [](std::string_view) { return std::vector<std::string>{"a", "b", "c"}; });
  CHECK(program.graphs[0].nodes[1].args.size() == 1);
  CHECK(program.graphs[0].nodes[1].kwargs.size() == 2);
}

TEST_CASE("a damaged graph is refused with its entry", "[pt2]") {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {R"("as_ints":[1,2])", R"("as_ints":[1,"2"])",
       "node 0 of the graph is damaged: expected an integer of at most 64 bits, got '2'"},
      {R"("as_ints":[1,2])", R"("as_what":[1,2])", "expected an argument, got 'as_what'"},
      {R"({"as_scalar_type":7})", R"({"as_scalar_type":99})", "expected a dtype, got 99"},
      {R"({"as_scalar_type":7})", R"({"as_tensor":{"name":"q"}})",
       "expected the name of an earlier value, got 'q'"},
      {R"("kind":2)", R"("kind":3)", "expected a kind of argument, got 3"},
      {R"("target":"torch.ops.aten.split.Tensor")", R"("target":"torch.ops.aten.split")",
       "expected namespace, name and overload of an operator"},
      {R"("target":"torch.ops.aten.split.Tensor")", R"("target":"#x")",
       "the operator '#x' is of an extension of torch's format"},
      {"k,,Net;", "k,Net;", "expected key, path and type of a module"},
      {R"("inputs":[{"as_tensor":{"name":"x"}}])", R"("inputs":[{"as_tensor":{"name":"z"}}])",
       "input 0 of the graph is damaged: expected the type of a tensor, got 'z'"},
      {R"({"as_none":true}])", R"({"as_none":1}])",
       "the output of the graph is damaged: expected true or false"},
      {R"("sizes":[{"as_int":2})", R"("sizes":[{"as_int":-2})",
       "input 0 of the graph is damaged: expected sizes and strides of 0 to 63 bits"},
      {R"("tensor_values")", R"("tensors")",
       "the graph is damaged: expected an object with the entry 'tensor_values'"},
  };
  for (const auto& [from, to, expected] : cases) {
    const std::string found = refusal_of(replaced(kGraph, from, to));
    CAPTURE(to, found);
    CHECK(found.find(expected) != std::string::npos);
  }
}

TEST_CASE("graphs that are nested too deeply are refused", "[pt2]") {
  std::string inner = kInner;
  for (int i = 0; i < 55; ++i) {
    const std::string nested = given("graph", R"({"as_graph":)" + inner + "}", 1);
    inner = R"({"graph":)" +
            graph_of(call("torch.ops.higher_order.wrap", nested, tensor("y")), tensor("y"), "xy") +
            R"(,"name":"g"})";
  }
  const std::string graph = inner.substr(9, inner.size() - 9 - 12);
  CHECK(refusal_of(graph).find("expected at most 50 nested graphs") != std::string::npos);
}

TEST_CASE("weights are found by name, and a damaged one is refused when it is asked for", "[pt2]") {
  const std::string text = R"({"config":{"w":{"path_name":"weight_0","use_pickle":false,"tensor_meta":)" +
                           kMeta + R"(},"p":{"path_name":"p","use_pickle":true},"bad":{"path_name":3}}})";
  const JsonDocument document(text, "a test");
  WeightList weights(document.root(), "list.json");
  CHECK(weights.find("w")->path == "weight_0");
  CHECK(weights.find("w")->meta.layout == 7);
  CHECK(weights.find("p")->is_pickled);
  CHECK_FALSE(weights.find("absent"));
  CHECK_THROWS_WITH(weights.find("bad"), "[pt2] the entry of 'bad' is damaged: expected a string, got 3");
}

TEST_CASE("mutated graphs are read or refused", "[pt2]") {
  testing::Mutator mutator(1);
  std::size_t count = 0;
  for (std::size_t i = 0; i < testing::fuzz_iterations(); ++i) {
    testing::Mutator::Bytes bytes(kGraph.size());
    std::memcpy(bytes.data(), kGraph.data(), kGraph.size());
    mutator.mutate(bytes);
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    try {
      const JsonDocument document(text, "a test");
      count += read(document).graphs.size();
    } catch (const InvalidGraph&) {
    } catch (const UnsupportedOp&) {
    }
  }
  CHECK(count > 0);
}

}  // namespace tosaic::pt2
