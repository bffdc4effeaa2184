#include <catch2/catch.hpp>
#include <chrono>

#include "example_graphs.h"
#include "tosaic/ir/dot.h"
#include "tosaic/ir/parse.h"
#include "tosaic/ir/print.h"

namespace tosaic {
namespace {

using testing::add;
using testing::constant;
using testing::error_of;
using testing::f32;
using testing::tensor;

std::string wrapped(const std::string& body) {
  return "tosaic 1\ngraph @f stage=exported {\n" + body + "}\n";
}

// The text after one round trip, in which constants are bound to the weights of `graph`.
std::string round_trip(const Graph& graph) {
  const ConstantSource source = [&graph](const Constant& wanted) -> ConstantRef {
    for (const Value& value : graph.values())
      if (value.constant && value.constant->name == wanted.name) return value.constant;
    return nullptr;
  };
  return print(parse(print(graph), source));
}

TEST_CASE("a small graph has the documented text form", "[ir][text]") {
  CHECK(print(testing::small_graph()) ==
        "tosaic 1\n"
        "graph @forward stage=exported {\n"
        "  input %x: f32[2,3] path=\"args[0]\"\n"
        "  const %two: f32[] = folded [2.0]\n"
        "  %relu: f32[2,3] = relu(%x)\n"
        "  %mul: f32[2,3] = mul(%relu, %two)\n"
        "  %add: f32[2,3] = add(%relu, %mul) {alpha=1}\n"
        "  return %add path=\"out[0]\"\n"
        "}\n");
}

TEST_CASE("printing, parsing and printing again a graph with every feature is the identity", "[ir][text]") {
  const Graph graph = testing::full_graph();
  const std::string text = print(graph);
  CAPTURE(text);
  CHECK(round_trip(graph) == text);
  CHECK(print(parse(text)) == text);  // with unbound weights
}

TEST_CASE("a parsed graph has the same fields as the printed one", "[ir][text]") {
  const Graph graph = testing::full_graph();
  const Graph read = parse(print(graph));
  CHECK(read.name == graph.name);
  CHECK(read.stage == graph.stage);
  REQUIRE(read.values().size() == graph.values().size());
  for (std::size_t i = 0; i < graph.values().size(); ++i) {
    const Value& a = graph.values()[i];
    const Value& b = read.values()[i];
    CAPTURE(a.name);
    CHECK(a.name == b.name);
    CHECK(a.type == b.type);
    CHECK(a.kind == b.kind);
    CHECK(a.result_index == b.result_index);
    CHECK(a.producer == b.producer);
  }
  REQUIRE(read.nodes().size() == graph.nodes().size());
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& a = graph.nodes()[i];
    const Node& b = read.nodes()[i];
    CHECK(a.op == b.op);
    CHECK(*a.attrs == *b.attrs);
    CHECK(std::ranges::equal(graph.operands(a), read.operands(b)));
    const auto from_a = leaves(a.origin);
    const auto from_b = leaves(b.origin);
    REQUIRE(from_a.size() == from_b.size());
    for (std::size_t k = 0; k < from_a.size(); ++k) {
      CHECK(from_a[k]->fx_name == from_b[k]->fx_name);
      CHECK(from_a[k]->target == from_b[k]->target);
      CHECK(from_a[k]->module_path == from_b[k]->module_path);
      CHECK(from_a[k]->file == from_b[k]->file);
      CHECK(from_a[k]->line == from_b[k]->line);
    }
  }
  for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
    CHECK(read.inputs()[i].boundary == graph.inputs()[i].boundary);
    CHECK(read.inputs()[i].path == graph.inputs()[i].path);
    CHECK(read.inputs()[i].kind == graph.inputs()[i].kind);
  }
  for (std::size_t i = 0; i < graph.outputs().size(); ++i) {
    CHECK(read.outputs()[i].value == graph.outputs()[i].value);
    CHECK(read.outputs()[i].mutated_input == graph.outputs()[i].mutated_input);
    CHECK(read.outputs()[i].boundary == graph.outputs()[i].boundary);
  }
  const auto initial = read.inputs()[2].initial->bytes();
  CHECK(std::ranges::equal(initial, graph.inputs()[2].initial->bytes()));
}

// Sets the fields of any attribute struct to values that are not the defaults.
struct FillFields {
  void operator()(const char*, bool& value) const { value = !value; }
  void operator()(const char*, std::int64_t& value) const { value = -9223372036854775807LL - 1; }
  void operator()(const char*, double& value) const { value = 0.1; }
  void operator()(const char*, DType& value) const { value = DType::kF8E5M2; }
  void operator()(const char*, Dims& value) const { value = {-1, 9223372036854775807LL, 0}; }
  void operator()(const char*, std::vector<std::int64_t>& value) const { value = {1, -2, 3}; }
  void operator()(const char*, std::vector<double>& value) const { value = {1.0 / 3, 1e300, -0.0}; }
  void operator()(const char*, std::string& value) const { value = "a \"b\" \\ \n\t\r\x01\x7f \xc3\xa9"; }
  void operator()(const char*, Scalar& value) const { value = 1.0; }
  void operator()(const char*, Groups& value) const { value = {.axis = 1, .size = 4}; }
  template <class E>
    requires std::is_enum_v<E>
  void operator()(const char*, E& value) const {
    value = static_cast<E>(std::size(kEnumNames<E>) - 1);
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& value) const {
    T item{};
    (*this)(name, item);
    value = std::move(item);
  }
};

TEST_CASE("every field of every attribute struct survives the text form", "[ir][text]") {
  for (const OpInfo& row : all_ops()) {
    CAPTURE(row.name);
    for (const bool filled : {false, true}) {
      Attrs attrs = default_attrs(row.op);
      if (filled) visit([](auto& fields) { fields.fields(fields, FillFields{}); }, attrs);
      Graph graph;
      graph.add_node(row.op, share(attrs), {}, {}, nullptr, "n");
      // The node has no operands and no results: only the attributes are tested. Errors of verify(), which
      // runs after parsing, do not contain "[parse]".
      std::string text = print(graph);
      const std::string body = to_string(attrs);
      if (row.attrs_index != 0) CHECK(text.find(body) != std::string::npos);
      const std::string error = error_of([&] { static_cast<void>(parse(text)); });
      CHECK(error.find("[parse]") == std::string::npos);
    }
  }
}

TEST_CASE("scalar attributes survive the text form with kind and value", "[ir][text]") {
  CHECK(to_string(Attrs(ClampAttrs{Scalar(std::int64_t{1}), Scalar(1.0)})) == "{min=1, max=1.0}");
  CHECK(to_string(Attrs(ClampAttrs{Scalar(true), std::nullopt})) == "{min=true, max=none}");
  CHECK(to_string(Attrs(ClampAttrs{Scalar(-1.0 / 0.0), Scalar(1e20)})) == "{min=-inf, max=1e+20}");
  CHECK(to_string(Attrs(NoAttrs{})) == "{}");
  for (const Scalar& scalar : {Scalar(true), Scalar(std::int64_t{-7}), Scalar(7.0), Scalar(-0.0),
                               Scalar(1e-320), Scalar(1.0 / 0.0), Scalar(0.1)}) {
    Graph graph;
    const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2}), "x");
    add(graph, Op::kClamp, ClampAttrs{scalar, std::nullopt}, {x});
    const Graph read = parse(print(graph));
    CHECK(*read.nodes()[0].attrs == *graph.nodes()[0].attrs);
    CHECK(print(read) == print(graph));
  }
}

TEST_CASE("inline constants of every dtype survive the text form bit for bit", "[ir][text]") {
  for (const DType dtype :
       {DType::kBool, DType::kI4, DType::kI8, DType::kU8, DType::kI16, DType::kU16, DType::kI32, DType::kI48,
        DType::kI64, DType::kF8E4M3, DType::kF8E5M2, DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const std::size_t size = byte_size(dtype);
    std::uint64_t state = 0x9e3779b97f4a7c15ull;
    for (int turn = 0; turn < 200; ++turn) {
      std::vector<std::byte> bytes(16 * size);
      for (std::byte& byte : bytes) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        byte = turn == 0   ? std::byte{0xff}
               : turn == 1 ? std::byte{0x80}
                           : static_cast<std::byte>(state >> 56);
      }
      auto one = std::make_shared<Constant>();
      one->name = "c";
      one->dtype = dtype;
      one->shape = {16};
      one->storage = Storage::of(bytes);
      Graph graph;
      graph.add_constant(one);
      const Graph read = parse(print(graph));
      REQUIRE(std::ranges::equal(read.values()[0].constant->bytes(), bytes));
    }
  }
}

TEST_CASE("large constants are printed as references and bound from the source", "[ir][text]") {
  Graph graph;
  const ConstantRef weight = constant("weight", DType::kF32, {20}, std::vector<double>(20, 1.5));
  graph.add_constant(weight);
  const std::string text = print(graph);
  CHECK(text.find("const %weight: f32[20] = folded ref(80)\n") != std::string::npos);
  CHECK(print(graph, {.max_inline_elements = 20}).find("[1.5,1.5,") != std::string::npos);
  const Graph unbound = parse(text);
  CHECK_FALSE(unbound.values()[0].constant->storage.bound());
  CHECK(error_of([&] { static_cast<void>(unbound.values()[0].constant->bytes()); }) ==
        "[storage] constant 'weight' has no data. It was read from a text form without its weights; bind "
        "them first.");
  const Graph bound = parse(text, [&](const Constant&) { return weight; });
  CHECK(bound.values()[0].constant == weight);
  const ConstantRef other = constant("weight", DType::kF32, {4, 5}, std::vector<double>(20, 1.5));
  CHECK(error_of([&] { static_cast<void>(parse(text, [&](const Constant&) { return other; })); }) ==
        "[parse] constant 'weight' has another type where it is stored: expected f32[20], got f32[4,5] "
        "(line 3, column 35)");
}

TEST_CASE("two lines stay two values if the source returns one constant for both", "[ir][text]") {
  const ConstantRef shared = constant("w", DType::kF32, {20}, std::vector<double>(20, 1));
  const std::string text = wrapped(
      "  const %a: f32[20] = folded name=\"w\" ref(80)\n  const %b: f32[20] = folded name=\"w\" ref(80)\n");
  const Graph graph = parse(text, [&](const Constant&) { return shared; });
  CHECK(graph.values().size() == 2);
  CHECK(print(graph) == text);
}

TEST_CASE("names are restored exactly, even if they look generated", "[ir][text]") {
  const std::string text = wrapped(
      "  input %a.1: f32[4] path=\"x\"\n"
      "  %a: f32[2], %\"b c\": f32[2] = split(%a.1) {axis=0, sizes=[2,2]}\n"
      "  %a_1: f32[2] = relu(%a)\n"
      "  %relu: f32[2] = relu(%\"b c\")\n"
      "  %12: f32[2] = relu(%relu)\n");
  CHECK(print(parse(text)) == text);
}

TEST_CASE("omitted attributes have their defaults, and comments are skipped", "[ir][text]") {
  const Graph graph =
      parse(wrapped("  input %x: f32[2] // an input\n  %y: f32[2] = add(%x, %x)\n  return %y\n"));
  CHECK(Graph::attrs<AlphaAttrs>(graph.nodes()[0]) == AlphaAttrs{});
}

TEST_CASE("origins can be omitted", "[ir][text]") {
  const std::string text = print(testing::full_graph(), {.origins = false});
  CHECK(text.find("loc(") == std::string::npos);
  CHECK(text.find("origins {") == std::string::npos);
  CHECK(print(parse(text)) == text);
}

TEST_CASE("errors in a text have a line and a column", "[ir][text][errors]") {
  struct Case {
    std::string text, error;
  };
  const std::vector<Case> cases{
      {"",
       "[parse] not the text form of a graph: expected a first line 'tosaic 1', got the end of the text "
       "(line 1, column 1)"},
      {"tosaic 2\n",
       "[parse] unknown version of the text form: expected tosaic 1, got tosaic 2 (line 1, column 1). "
       "It was written by another version of tosaic."},
      {"tosaic 1\ngraph @f stage=done {}",
       "[parse] unknown stage: expected exported, quantized, integer or tosa, got done (line 2, column 16)"},
      {wrapped("  input %x: f32[2\n"), "[parse] malformed text: expected ']', got \"}\" (line 4, column 1)"},
      {wrapped("  input %x: f99[2]\n"),
       "[parse] unknown dtype: expected bool, i8, i32, f16, f32 ..., got f99 (line 3, column 13)"},
      {wrapped("  input %x: f32[-1]\n"),
       "[parse] an extent is out of range: expected 0 to 2^48, got [-1] (line 3, "
       "column 16)"},
      {wrapped("  input %x: f32[1,1,1,1,1,1,1,1,1]\n"),
       "[parse] a list of extents or axes is too long: expected at most 8, got 9 (line 3, column 16)"},
      {wrapped("  input %x: f32[99999999999999999999]\n"),
       "[parse] a number is out of range: expected an integer of 64 bits, got 99999999999999999999 "
       "(line 3, column 17)"},
      {wrapped("  input %x: f32[2,2] order(0,0)\n"),
       "[parse] not a permutation of the axes: got [0,0] (line 3, column 22)"},
      {wrapped("  input %x: f32[2]\n  input %x: f32[2]\n"),
       "[parse] a name is defined twice: expected a name of its own, got x (line 4, column 10)"},
      {wrapped("  %y: f32[2] = relu(%x)\n"),
       "[parse] unknown value: expected a name defined above, got \"x\" (line 3, column 22)"},
      {wrapped("  %y: f32[2] = rely()\n"),
       "[parse] unknown operator: expected a name of the operator table, got rely (line 3, column 16)"},
      {wrapped("  input %x: f32[2]\n  %y: f32[2] = softmax(%x) {axes=0}\n"),
       "[parse] softmax has no such attribute: expected axis, dtype, got axes (line 4, column 29)"},
      {wrapped("  input %x: f32[2]\n  %y: f32[2] = softmax(%x) {axis=0, axis=0}\n"),
       "[parse] an attribute is given twice: got axis (line 4, column 37)"},
      {wrapped("  input %x: f32[2]\n  %y: f32[2] = div(%x, %x) {rounding=up}\n"),
       "[parse] unknown mode: expected none or floor or trunc, got up (line 4, column 38)"},
      {wrapped("  const %c: f32[3] = lifted [1.0,2.0]\n"),
       "[parse] a constant has the wrong number of elements: expected 3, got 2 (line 3, column 29)"},
      {wrapped("  const %c: f32[3] = lifted ref(13)\n"),
       "[parse] a constant has the wrong size: expected 12 bytes, got 13 (line 3, column 29)"},
      {wrapped("  const %c: i8[1] = lifted [200]\n"),
       "[parse] a number is out of range: expected i8, got 200 (line 3, column 29)"},
      {wrapped("  input %x: f32[2] path=\"a\n"),
       "[parse] a string does not end: expected '\"', got the end of the text (line 3, column 25)"},
      {wrapped("  input %x: f32[2]\n  %y: f32[2] = relu(%x) loc(#3)\n"),
       "[parse] origin #3 is not in the table of origins: expected a line '#3 = ...' (line 4, column 29)"},
      {wrapped("") + "more",
       "[parse] malformed text: expected the end of the text, got \"more\" (line 4, column 1)"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.text);
    CHECK(error_of([&] { static_cast<void>(parse(one.text)); }) == one.error);
  }
}

TEST_CASE("a union of origins refers to leaves above it", "[ir][text][errors]") {
  const std::string text = wrapped("") + "origins {\n  #0 = union(#0)\n}\n";
  CHECK(error_of([&] { static_cast<void>(parse(text)); }) ==
        "[parse] the parent of an origin must be a leaf that stands before it: expected a leaf (line 5, "
        "column 14)");
}

TEST_CASE("deeply nested regions are refused", "[ir][text][errors]") {
  std::string body;
  for (int i = 0; i < 100000; ++i) body += "graph @g stage=exported { () = opaque() regions { ";
  CHECK(error_of([&] {
          static_cast<void>(parse("tosaic 1\n" + body));
        }).starts_with("[parse] regions are nested too deeply: expected at most 32"));
}

TEST_CASE("a parsed graph is verified", "[ir][text][errors]") {
  CHECK(
      error_of([&] { static_cast<void>(parse(wrapped("  input %x: f32[2]\n  %y: f32[3] = relu(%x)\n"))); }) ==
      "[verify] the stored type of result 'y' of relu is not the inferred one: expected f32[2], got f32[3] "
      "(node 'y')");
}

TEST_CASE("a huge shape allocates nothing", "[ir][text]") {
  const Graph graph = parse(wrapped("  input %x: f32[1000000000000]\n  %y: f32[1000000000000] = relu(%x)\n"));
  CHECK(graph.values().size() == 2);
  CHECK(error_of([&] {
          static_cast<void>(parse(wrapped("  input %x: f32[281474976710656,281474976710656]\n")));
        }) ==
        "[verify] the array does not fit the address space: got f32[281474976710656,281474976710656] (node "
        "'x')");
}

TEST_CASE("a network survives a round trip", "[ir][text]") {
  const Graph graph = testing::conv_network(60);
  CHECK(print(parse(print(graph))) == print(graph));
}

TEST_CASE("dot shows nodes, edges and regions", "[ir][dot]") {
  const std::string text = dot(testing::full_graph());
  CHECK(text.starts_with("digraph \"a graph\" {"));
  CHECK(text.find("label=\"conv2d\\nconv\\nweight: f32[4,4,3,3]\"") != std::string::npos);
  CHECK(text.find("i0 -> n0 [label=\"f32[1,4,8,8] order(0,2,3,1)\"]") != std::string::npos);
  CHECK(text.find("subgraph cluster_") != std::string::npos);
}

TEST_CASE("print and parse of 500 nodes", "[ir][text][!benchmark][.]") {
  const Graph graph = testing::conv_network(167);
  const std::string text = print(graph);
  const auto time = [](const char* what, const auto& call) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) call();
    const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
    WARN(what << ": " << spent.count() / 20 << " ms");
  };
  time("print", [&] { static_cast<void>(print(graph)); });
  time("parse", [&] { static_cast<void>(parse(text)); });
}

}  // namespace
}  // namespace tosaic
