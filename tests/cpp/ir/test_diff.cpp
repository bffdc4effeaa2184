#include <catch2/catch.hpp>

#include "example_graphs.h"
#include "tosaic/ir/diff.h"
#include "tosaic/ir/parse.h"
#include "tosaic/ir/print.h"

namespace tosaic {
namespace {

using testing::f32;

Graph graph_of(const std::string& lines) {
  return parse("tosaic 1\ngraph @f stage=exported {\n  input %x: f32[2,3]\n" + lines + "}\n");
}

std::string difference(const std::string& a, const std::string& b) {
  return to_string(diff(graph_of(a), graph_of(b)));
}

TEST_CASE("equal graphs have no differences", "[ir][diff]") {
  for (const Graph& graph : {testing::small_graph(), testing::full_graph(), testing::conv_network(10)}) {
    CHECK(diff(graph, graph).empty());
    CHECK(diff(graph, parse(print(graph))).empty());
    CHECK(to_string(diff(graph, graph)).empty());
    CHECK(diff(graph, graph).unchanged == graph.nodes().size());
  }
}

TEST_CASE("renamed values are not differences", "[ir][diff]") {
  const Diff result = diff(testing::small_graph(), testing::small_graph("new_"));
  CHECK(result.empty());
  CHECK(result.renamed == std::vector<std::pair<std::string, std::string>>{
                              {"relu", "new_relu"}, {"mul", "new_mul"}, {"add", "new_add"}});
}

TEST_CASE("an inserted node is reported as added, its user as changed", "[ir][diff]") {
  CHECK(
      difference(
          "  %a: f32[2,3] = relu(%x)\n  %b: f32[2,3] = tanh(%a)\n  return %b\n",
          "  %a: f32[2,3] = relu(%x)\n  %n: f32[2,3] = neg(%a)\n  %b: f32[2,3] = tanh(%n)\n  return %b\n") ==
      "+ %n: f32[2,3] = neg(%a)\n"
      "~ %b: operand 0 (input) %a -> %n\n");
}

TEST_CASE("a removed node is found although later nodes were renamed", "[ir][diff]") {
  CHECK(difference("  %v0: f32[2,3] = relu(%x)\n  %v1: f32[2,3] = neg(%v0)\n  %v2: f32[2,3] = tanh(%v1)\n  "
                   "return %v2\n",
                   "  %v0: f32[2,3] = relu(%x)\n  %v1: f32[2,3] = tanh(%v0)\n  return %v1\n") ==
        "- %v1: f32[2,3] = neg(%v0)\n"
        "~ %v2 (now %v1): operand 0 (input) %v1 -> %v0\n");
}

TEST_CASE("attributes, types and operators are compared one by one", "[ir][diff]") {
  CHECK(difference("  %a: f32[2,3] = softmax(%x) {axis=0}\n  return %a\n",
                   "  %a: f32[2,3] = softmax(%x) {axis=1}\n  return %a\n") ==
        "~ %a: attribute axis 0 -> 1\n");
  CHECK(difference("  %a: f32[2,3] = relu(%x)\n  return %a\n",
                   "  %a: f32[2,3] order(1,0) = relu(%x)\n  return %a\n") ==
        "~ %a: type f32[2,3] -> f32[2,3] order(1,0)\n");
  CHECK(difference("  %a: f32[2,3] = relu(%x)\n  return %a\n", "  %a: f32[2,3] = tanh(%x)\n  return %a\n") ==
        "~ %a: operator relu -> tanh\n");
}

TEST_CASE("constants are compared by their data", "[ir][diff]") {
  const auto with = [](const std::string& name, const std::string& data) {
    return "  const %" + name + ": f32[3] = lifted " + data + "\n  %a: f32[2,3] = mul(%x, %" + name +
           ")\n  return %a\n";
  };
  CHECK(difference(with("c", "[1.0,2.0,3.0]"), with("d", "[1.0,2.0,3.0]")).empty());
  CHECK(difference(with("c", "[1.0,2.0,3.0]"), with("c", "[1.0,2.0,4.0]")) ==
        "~ %a: operand 1 (other) %c: f32[3] -> %c: f32[3] (other data)\n");
}

TEST_CASE("changes of inputs and outputs are reported for the graph", "[ir][diff]") {
  CHECK(difference("  return %x path=\"a\"\n",
                   "  input %y: f32[4]\n  return %y path=\"b\" boundary(physical)\n") ==
        "~ graph: number of inputs 1 -> 2\n"
        "~ graph: output 0 path a -> b\n"
        "~ graph: output 0 %x -> %y\n"
        "~ graph: output 0 boundary as it is 0..0 order [0,1] -> as it is 0..0 order [0,1] physical\n");
}

TEST_CASE("equal branches of a network are not confused", "[ir][diff]") {
  const std::string before =
      "  const %q: f32[3,3] = parameter [1.0,0.0,0.0,0.0,1.0,0.0,0.0,0.0,1.0]\n"
      "  const %k: f32[3,3] = parameter [2.0,0.0,0.0,0.0,1.0,0.0,0.0,0.0,1.0]\n"
      "  %a: f32[2,3] = linear(%x, %q)\n  %b: f32[2,3] = linear(%x, %k)\n  return %a\n  return %b\n";
  const std::string after =
      "  const %k: f32[3,3] = parameter [2.0,0.0,0.0,0.0,1.0,0.0,0.0,0.0,1.0]\n"
      "  const %q: f32[3,3] = parameter [1.0,0.0,0.0,0.0,1.0,0.0,0.0,0.0,1.0]\n"
      "  %b2: f32[2,3] = linear(%x, %k)\n  %a2: f32[2,3] = linear(%x, %q)\n  return %a2\n  return %b2\n";
  CHECK(difference(before, after).empty());
}

TEST_CASE("changes inside a region are reported for the node that has it", "[ir][diff]") {
  const auto with = [](const std::string& op) {
    const std::string same = "graph @s stage=exported { input %a: f32[2,3] return %a }\n";
    const std::string other =
        "graph @o stage=exported { input %a: f32[2,3] %b: f32[2,3] = " + op + "(%a) return %b }\n";
    return "  input %p: bool[]\n  %y: f32[2,3] = cond(%p, %x) regions {" + same + other + "}\n  return %y\n";
  };
  CHECK(difference(with("relu"), with("relu")).empty());
  CHECK(difference(with("relu"), with("tanh")) == "~ %y: region 1 %b operator relu -> tanh\n");
}

TEST_CASE("one changed layer of a network is all that is reported", "[ir][diff]") {
  const Graph graph = testing::conv_network(20);
  std::string text = print(graph);
  const std::string wanted = "%layer7.relu: f32[1,4,8,8] = relu(";
  text.replace(text.find(wanted), wanted.size(), "%layer7.relu: f32[1,4,8,8] = tanh(");
  CHECK(to_string(diff(graph, parse(text))) == "~ %layer7.relu: operator relu -> tanh\n");
}

}  // namespace
}  // namespace tosaic
