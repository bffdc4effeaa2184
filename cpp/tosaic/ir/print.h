// print: the text form of a graph. It is complete: parse(print(g)) is equal to g, if a ConstantSource
// supplies the data to which the text only refers.
//
//   tosaic 1
//   graph @forward stage=exported {
//     input %x: f32[1,3,8,8] path="args[0]"
//     state %cache: f32[1,4] path="cache" initial=(buffer name="cache" f32[1,4] [0.0,0.0,0.0,0.0])
//     const %conv.weight: f32[8,3,3,3] = parameter ref(864)
//     %conv2d: f32[1,8,6,6] = conv(%x, %conv.weight, none) {stride=[1,1], ...} loc(#0)
//     %split: f32[1,4,6,6], %split.1: f32[1,4,6,6] = split(%conv2d) {axis=1, sizes=[4,4]} loc(#2)
//     () = opaque(%x) {target="mylib.log", arguments="{\"args\":[{\"$\":0}],\"kwargs\":{}}"}
//     return %split path="out[0]"
//     return %split.1 path="cache" mutates=%cache
//   }
//   origins {
//     #0 = "conv2d" target="aten.conv2d.default" module="layer1.conv" file="/home/me/model.py" line=41
//     #1 = "split" target="aten.split.Tensor"
//     #2 = union(#0, #1)
//   }
//
// Grammar ([] optional, {} repeated, '' literal; blanks and line ends separate tokens, `// ...` is a
// comment):
//
//   text     = 'tosaic 1' graph ['origins' '{' {origin} '}']
//   graph    = 'graph' '@'name 'stage='stage '{' {value} {return} '}'
//   value    = ('input' | 'state') '%'name ':' type ['path='string] ['initial=(' constant ')'] [boundary]
//            | 'const' '%'name ':' type '=' kind ['name='string] data
//            | results '=' op '(' [operand {',' operand}] ')' [fields] ['loc(#'n')'] [regions]
//   results  = '()' | '%'name ':' type {',' '%'name ':' type}
//   operand  = '%'name | 'none'
//   fields   = '{' [field '=' value {',' field '=' value}] '}'  (as in to_string(Attrs); absent: the default)
//   regions  = 'regions' '{' {graph} '}'
//   return   = 'return' '%'name ['path='string] ['mutates=%'name] [boundary]
//   type     = dtype '[' extents ']' [order] [qparams]
//   order    = 'order(' axes ')'
//   qparams  = 'q(' dtype qmin'..'qmax ['axis' n ['group' n 'on' n]] 'scale' reals 'zp' integers ')'
//   boundary   = 'boundary(' ['source='dtype] ['range='min'..'max] [order] ['physical'] [qparams] ')'
//   kind     = 'parameter' | 'buffer' | 'lifted' | 'folded'
//   constant = kind ['name='string] dtype '[' extents ']' data
//   data     = '[' [element {',' element}] ']' | 'ref(' bytes ')'
//   element  = number | 'true' | 'false' | '0x'bits  (hexadecimal: NaN, and bool bytes other than 0 and 1)
//   origin   = '#'n '=' string ['target='string] ['module='string] ['file='string] ['line='n]
//            | '#'n '=' 'union(' '#'n {',' '#'n} ')'
//   name     = [A-Za-z0-9_.]+ | string
//
// Values are printed in the order of their ids. The `name=` of a constant is omitted if it is the value's
// name. Data is printed as `ref(bytes)` if it has more than `max_inline_elements` elements or is unbound;
// parse() then gets it from a ConstantSource.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "tosaic/ir/graph.h"

namespace tosaic {

inline constexpr int kTextVersion = 1;

struct PrintOptions {
  bool origins = true;  // print `loc(...)` and the table of origins
  std::size_t max_inline_elements = 16;
};

[[nodiscard]] std::string print(const Graph& graph, const PrintOptions& options = {});

// One node, without origin and regions: "%conv2d: f32[1,8,6,6] = conv(%x, %conv.weight, none) {...}".
[[nodiscard]] std::string print_node(const Graph& graph, const Node& node);

[[nodiscard]] std::string_view to_string(ConstantKind kind);
[[nodiscard]] std::optional<ConstantKind> parse_constant_kind(std::string_view text);

}  // namespace tosaic
