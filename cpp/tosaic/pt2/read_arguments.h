// read_arguments: the arguments of a call of a .pt2 file.
#pragma once

#include <functional>
#include <string_view>
#include <unordered_map>

#include "tosaic/pt2/nodes.h"

namespace tosaic::pt2 {

// What arguments refer to: the graph that they are read from.
struct ArgumentScope {
  Json graph;
  const std::unordered_map<std::string_view, std::uint32_t>& nodes;  // by name
  Texts& texts;
  std::function<Argument(Json)> read_graph;  // reads a nested graph; returns its node
};

// Reads an argument, an object with one entry: {"as_tensor": {"name": "x"}}. Throws WrongJson.
[[nodiscard]] Argument read_argument(Json tagged, const ArgumentScope& scope);

// Reads an argument that does not refer to the graph: a number, a text, a dtype, or a list of these. Throws
// WrongJson.
[[nodiscard]] Argument read_constant(Json tagged, Texts& texts);

// Reads the number to which a name refers: a number, or an expression of symbols. `tag` is as_sym_int,
// as_sym_bool or as_sym_float; returns nothing for other tags.
[[nodiscard]] std::optional<Argument> read_symbol(Json tag, Json name, Json graph, Texts& texts);

}  // namespace tosaic::pt2
