#include "tosaic/target/type_support.h"

#include <algorithm>

namespace tosaic::target {
namespace {

using enum DType;

constexpr Need kInt{bit(Profile::kInt), 0};
constexpr Need kFp{bit(Profile::kFp), 0};
constexpr Need kBoth{bit(Profile::kInt) | bit(Profile::kFp), 0};
constexpr Need kInt16{bit(Extension::kInt16), 0};
constexpr Need kInt4{bit(Extension::kInt4), 0};
constexpr Need kBf{bit(Extension::kBf16), 0};
constexpr Need kE4M3{bit(Extension::kFp8E4M3), 0};
constexpr Need kE5M2{bit(Extension::kFp8E5M2), 0};
constexpr Need kBfE4M3{0, bit(Extension::kBf16) | bit(Extension::kFp8E4M3)};
constexpr Need kBfE5M2{0, bit(Extension::kBf16) | bit(Extension::kFp8E5M2)};
constexpr Need kFft{bit(Extension::kFft), 0};
constexpr Need kIntVariable{0, bit(Profile::kInt) | bit(Extension::kVariable)};
constexpr Need kFpVariable{0, bit(Profile::kFp) | bit(Extension::kVariable)};
constexpr Need kControl{bit(Extension::kControlFlow), 0};

// How the dtypes a, b, c, d of a row are assigned to the operands, the result and the accumulator.
enum class Pattern : std::uint8_t {
  kSame,         // a, ... -> a
  kInOut,        // a, ... -> b
  kConvolution,  // a, b, c -> c, accumulator d
  kAveragePool,  // a -> a, accumulator b
  kSelect,       // bool, a, a -> a
  kGather,       // a, i32 -> a
  kScatter,      // a, i32, a -> a
  kTransform,    // a, ... -> a, a
  kTable,        // a, b -> c
  kVariable,     // a is the dtype of the variable, for VARIABLE, VARIABLE_WRITE and VARIABLE_READ
};

struct Row {
  DType a, b, c, d;
  Need need;
};
constexpr Row same(DType a, Need need) { return {a, a, a, a, need}; }
constexpr Row to(DType a, DType b, Need need) { return {a, b, b, b, need}; }
constexpr Row conv(DType a, DType b, DType c, DType d, Need need) { return {a, b, c, d, need}; }

constexpr Row kFloats[] = {same(kF16, kFp), same(kBF16, kBf), same(kF32, kFp)};
constexpr Row kAddSub[] = {same(kI32, kBoth), same(kF16, kFp), same(kBF16, kBf), same(kF32, kFp)};
constexpr Row kI32Floats[] = {same(kI32, kInt), same(kF16, kFp), same(kBF16, kBf), same(kF32, kFp)};
constexpr Row kIntegers[] = {same(kI8, kInt), same(kI16, kInt), same(kI32, kInt)};
constexpr Row kLogicalShift[] = {same(kI8, kBoth), same(kI16, kBoth), same(kI32, kBoth)};
constexpr Row kBools[] = {same(kBool, kBoth)};
constexpr Row kDivide[] = {same(kI32, kBoth)};
constexpr Row kCountZeros[] = {same(kI32, kInt)};
constexpr Row kClamp[] = {same(kI8, kInt), same(kI16, kInt16), same(kF16, kFp), same(kBF16, kBf),
                          same(kF32, kFp)};
constexpr Row kIntegersFloats[] = {same(kI8, kInt), same(kI16, kInt), same(kI32, kInt),
                                   same(kF16, kFp), same(kBF16, kBf), same(kF32, kFp)};
constexpr Row kSelection[] = {same(kBool, kBoth), same(kI8, kInt),  same(kI16, kInt), same(kI32, kInt),
                              same(kF16, kFp),    same(kBF16, kBf), same(kF32, kFp)};
constexpr Row kMovement[] = {same(kBool, kBoth), same(kI8, kInt),      same(kI16, kInt),
                             same(kI32, kInt),   same(kF8E4M3, kE4M3), same(kF8E5M2, kE5M2),
                             same(kF16, kFp),    same(kBF16, kBf),     same(kF32, kFp)};
constexpr Row kConcatenation[] = {same(kBool, kBoth), same(kI8, kInt),      same(kI16, kInt16),
                                  same(kI32, kInt),   same(kF8E4M3, kE4M3), same(kF8E5M2, kE5M2),
                                  same(kF16, kFp),    same(kBF16, kBf),     same(kF32, kFp)};
constexpr Row kIndexed[] = {same(kI8, kInt),      same(kI16, kInt), same(kI32, kInt), same(kF8E4M3, kE4M3),
                            same(kF8E5M2, kE5M2), same(kF16, kFp),  same(kBF16, kBf), same(kF32, kFp)};
constexpr Row kConstants[] = {same(kBool, kBoth),   same(kI4, kInt4),     same(kI8, kBoth),
                              same(kI16, kBoth),    same(kI32, kBoth),    same(kI48, kInt16),
                              same(kF8E4M3, kE4M3), same(kF8E5M2, kE5M2), same(kF16, kFp),
                              same(kBF16, kBf),     same(kF32, kFp)};
constexpr Row kMaxPool[] = {same(kI8, kInt), same(kI16, kInt16), same(kF8E4M3, kE4M3), same(kF8E5M2, kE5M2),
                            same(kF16, kFp), same(kBF16, kBf),   same(kF32, kFp)};
constexpr Row kAvgPool[] = {to(kI8, kI32, kInt),      to(kI16, kI32, kInt16), to(kF8E4M3, kF16, kE4M3),
                            to(kF8E5M2, kF16, kE5M2), to(kF16, kF16, kFp),    to(kF16, kF32, kFp),
                            to(kBF16, kF32, kBf),     to(kF32, kF32, kFp)};
constexpr Row kCompare[] = {to(kI32, kBool, kInt), to(kF16, kBool, kFp), to(kBF16, kBool, kBf),
                            to(kF32, kBool, kFp)};
constexpr Row kArgmax[] = {to(kI8, kI32, kInt),      to(kI16, kI32, kInt16), to(kF8E4M3, kI32, kE4M3),
                           to(kF8E5M2, kI32, kE5M2), to(kF16, kI32, kFp),    to(kBF16, kI32, kBf),
                           to(kF32, kI32, kFp)};
constexpr Row kMultiply[] = {to(kI8, kI32, kInt), to(kI16, kI32, kInt),  to(kI32, kI32, kBoth),
                             to(kF16, kF16, kFp), to(kBF16, kBF16, kBf), to(kF32, kF32, kFp)};
constexpr Row kMatmul[] = {to(kI8, kI32, kInt),      to(kI16, kI48, kInt16), to(kF8E4M3, kF16, kE4M3),
                           to(kF8E5M2, kF16, kE5M2), to(kF16, kF16, kFp),    to(kF16, kF32, kFp),
                           to(kBF16, kF32, kBf),     to(kF32, kF32, kFp)};
constexpr Row kResize[] = {to(kI8, kI32, kInt),    to(kI8, kI8, kInt),  to(kI16, kI48, kInt16),
                           to(kI16, kI16, kInt16), to(kF16, kF16, kFp), to(kBF16, kBF16, kBf),
                           to(kF32, kF32, kFp)};
constexpr Row kConv[] = {conv(kI8, kI8, kI32, kI32, kInt),          conv(kI8, kI4, kI32, kI32, kInt4),
                         conv(kI16, kI8, kI48, kI48, kInt16),       conv(kF8E4M3, kF8E4M3, kF16, kF16, kE4M3),
                         conv(kF8E5M2, kF8E5M2, kF16, kF16, kE5M2), conv(kF16, kF16, kF16, kF16, kFp),
                         conv(kF16, kF16, kF16, kF32, kFp),         conv(kBF16, kBF16, kBF16, kF32, kBf),
                         conv(kF32, kF32, kF32, kF32, kFp)};
constexpr Row kCast[] = {to(kBool, kI8, kInt),        to(kBool, kI16, kInt),       to(kBool, kI32, kInt),
                         to(kI8, kBool, kInt),        to(kI8, kI16, kInt),         to(kI8, kI32, kInt),
                         to(kI8, kF16, kFp),          to(kI8, kBF16, kBf),         to(kI8, kF32, kFp),
                         to(kI16, kBool, kInt),       to(kI16, kI8, kInt),         to(kI16, kI32, kInt),
                         to(kI16, kF16, kFp),         to(kI16, kBF16, kBf),        to(kI16, kF32, kFp),
                         to(kI32, kBool, kInt),       to(kI32, kI8, kInt),         to(kI32, kI16, kInt),
                         to(kI32, kF16, kFp),         to(kI32, kBF16, kBf),        to(kI32, kF32, kFp),
                         to(kBF16, kI8, kBf),         to(kBF16, kI16, kBf),        to(kBF16, kI32, kBf),
                         to(kBF16, kF8E4M3, kBfE4M3), to(kBF16, kF8E5M2, kBfE5M2), to(kBF16, kF32, kBf),
                         to(kF8E4M3, kF16, kE4M3),    to(kF8E4M3, kBF16, kBfE4M3), to(kF8E4M3, kF32, kE4M3),
                         to(kF8E5M2, kF16, kE5M2),    to(kF8E5M2, kBF16, kBfE5M2), to(kF8E5M2, kF32, kE5M2),
                         to(kF16, kI8, kFp),          to(kF16, kI16, kFp),         to(kF16, kI32, kFp),
                         to(kF16, kF8E4M3, kE4M3),    to(kF16, kF8E5M2, kE5M2),    to(kF16, kF32, kFp),
                         to(kF32, kI8, kFp),          to(kF32, kI16, kFp),         to(kF32, kI32, kFp),
                         to(kF32, kF8E4M3, kE4M3),    to(kF32, kF8E5M2, kE5M2),    to(kF32, kBF16, kBf),
                         to(kF32, kF16, kFp)};

constexpr Row kTransforms[] = {same(kF32, kFft)};
constexpr Row kTables[] = {conv(kI8, kI8, kI8, kI8, kInt), conv(kI16, kI16, kI32, kI32, kInt16)};
constexpr Row kRescale[] = {to(kI8, kI8, kInt),    to(kI8, kI16, kInt),    to(kI8, kI32, kInt),
                            to(kI16, kI8, kInt),   to(kI16, kI16, kInt),   to(kI16, kI32, kInt),
                            to(kI32, kI8, kInt),   to(kI32, kI16, kInt),   to(kI32, kI32, kInt),
                            to(kI48, kI8, kInt16), to(kI48, kI16, kInt16), to(kI48, kI32, kInt16)};
constexpr Row kVariables[] = {same(kI8, kIntVariable), same(kF16, kFpVariable), same(kF32, kFpVariable)};

struct OpRow {
  Op op;
  Pattern pattern;
  std::span<const Row> rows;
};
constexpr OpRow kOps[] = {
    {Op::kTosaArgmax, Pattern::kInOut, kArgmax},
    {Op::kTosaAvgPool2d, Pattern::kAveragePool, kAvgPool},
    {Op::kTosaConv2d, Pattern::kConvolution, kConv},
    {Op::kTosaConv3d, Pattern::kConvolution, kConv},
    {Op::kTosaDepthwiseConv2d, Pattern::kConvolution, kConv},
    {Op::kTosaFft2d, Pattern::kTransform, kTransforms},
    {Op::kTosaMatmul, Pattern::kInOut, kMatmul},
    {Op::kTosaMaxPool2d, Pattern::kSame, kMaxPool},
    {Op::kTosaRfft2d, Pattern::kTransform, kTransforms},
    {Op::kTosaTransposeConv2d, Pattern::kConvolution, kConv},
    {Op::kTosaClamp, Pattern::kSame, kClamp},
    {Op::kTosaErf, Pattern::kSame, kFloats},
    {Op::kTosaSigmoid, Pattern::kSame, kFloats},
    {Op::kTosaTanh, Pattern::kSame, kFloats},
    {Op::kTosaAdd, Pattern::kSame, kAddSub},
    {Op::kTosaArithmeticRightShift, Pattern::kSame, kIntegers},
    {Op::kTosaBitwiseAnd, Pattern::kSame, kIntegers},
    {Op::kTosaBitwiseOr, Pattern::kSame, kIntegers},
    {Op::kTosaBitwiseXor, Pattern::kSame, kIntegers},
    {Op::kTosaIntdiv, Pattern::kSame, kDivide},
    {Op::kTosaLogicalAnd, Pattern::kSame, kBools},
    {Op::kTosaLogicalLeftShift, Pattern::kSame, kLogicalShift},
    {Op::kTosaLogicalRightShift, Pattern::kSame, kLogicalShift},
    {Op::kTosaLogicalOr, Pattern::kSame, kBools},
    {Op::kTosaLogicalXor, Pattern::kSame, kBools},
    {Op::kTosaMaximum, Pattern::kSame, kI32Floats},
    {Op::kTosaMinimum, Pattern::kSame, kI32Floats},
    {Op::kTosaMul, Pattern::kInOut, kMultiply},
    {Op::kTosaPow, Pattern::kSame, kFloats},
    {Op::kTosaSub, Pattern::kSame, kAddSub},
    {Op::kTosaTable, Pattern::kTable, kTables},
    {Op::kTosaAbs, Pattern::kSame, kI32Floats},
    {Op::kTosaBitwiseNot, Pattern::kSame, kIntegers},
    {Op::kTosaCeil, Pattern::kSame, kFloats},
    {Op::kTosaClz, Pattern::kSame, kCountZeros},
    {Op::kTosaCos, Pattern::kSame, kFloats},
    {Op::kTosaExp, Pattern::kSame, kFloats},
    {Op::kTosaFloor, Pattern::kSame, kFloats},
    {Op::kTosaLog, Pattern::kSame, kFloats},
    {Op::kTosaLogicalNot, Pattern::kSame, kBools},
    {Op::kTosaNegate, Pattern::kSame, kIntegersFloats},
    {Op::kTosaReciprocal, Pattern::kSame, kFloats},
    {Op::kTosaRsqrt, Pattern::kSame, kFloats},
    {Op::kTosaSin, Pattern::kSame, kFloats},
    {Op::kTosaSelect, Pattern::kSelect, kSelection},
    {Op::kTosaEqual, Pattern::kInOut, kCompare},
    {Op::kTosaGreater, Pattern::kInOut, kCompare},
    {Op::kTosaGreaterEqual, Pattern::kInOut, kCompare},
    {Op::kTosaReduceAll, Pattern::kSame, kBools},
    {Op::kTosaReduceAny, Pattern::kSame, kBools},
    {Op::kTosaReduceMax, Pattern::kSame, kIntegersFloats},
    {Op::kTosaReduceMin, Pattern::kSame, kIntegersFloats},
    {Op::kTosaReduceProduct, Pattern::kSame, kFloats},
    {Op::kTosaReduceSum, Pattern::kSame, kI32Floats},
    {Op::kTosaConcat, Pattern::kSame, kConcatenation},
    {Op::kTosaPad, Pattern::kSame, kMovement},
    {Op::kTosaReshape, Pattern::kSame, kMovement},
    {Op::kTosaReverse, Pattern::kSame, kMovement},
    {Op::kTosaSlice, Pattern::kSame, kMovement},
    {Op::kTosaTile, Pattern::kSame, kMovement},
    {Op::kTosaTranspose, Pattern::kSame, kMovement},
    {Op::kTosaGather, Pattern::kGather, kIndexed},
    {Op::kTosaScatter, Pattern::kScatter, kIndexed},
    {Op::kTosaResize, Pattern::kInOut, kResize},
    {Op::kTosaCast, Pattern::kInOut, kCast},
    {Op::kTosaRescale, Pattern::kInOut, kRescale},
    {Op::kTosaIdentity, Pattern::kSame, kConstants},
    {Op::kTosaVariable, Pattern::kVariable, kVariables},
    {Op::kTosaVariableWrite, Pattern::kVariable, kVariables},
    {Op::kTosaVariableRead, Pattern::kVariable, kVariables},
};

std::vector<DType> spread(Pattern pattern, const Row& row, std::size_t operand_count) {
  switch (pattern) {
    case Pattern::kSame:
      return std::vector<DType>(operand_count + 1, row.a);
    case Pattern::kInOut: {
      std::vector<DType> dtypes(operand_count, row.a);
      dtypes.push_back(row.b);
      return dtypes;
    }
    case Pattern::kConvolution:
      return {row.a, row.b, row.c, row.c, row.d};
    case Pattern::kAveragePool:
      return {row.a, row.a, row.b};
    case Pattern::kSelect:
      return {kBool, row.a, row.a, row.a};
    case Pattern::kGather:
      return {row.a, kI32, row.a};
    case Pattern::kScatter:
      return {row.a, kI32, row.a, row.a};
    case Pattern::kTransform:
      return std::vector<DType>(operand_count + 2, row.a);
    case Pattern::kTable:
      return {row.a, row.b, row.c};
    case Pattern::kVariable:
      return {row.a};
  }
  return {};
}

std::string joined(Features features, const char* word) {
  std::string text = feature_names(features);
  for (std::size_t at = text.find(", "); at != std::string::npos; at = text.find(", ", at + 1))
    text.replace(at, 2, word);
  return text;
}

}  // namespace

Features missing(const Need& need, Features features) {
  const bool has_any = need.any == 0 || (features & need.any) != 0;
  return (need.all & ~features) | (has_any ? 0 : need.any & ~(need.any - 1));
}

std::string to_string(const Need& need) {
  return need.all != 0 ? joined(need.all, " and ") : joined(need.any, " or ");
}

std::vector<TypeMode> type_modes(Op op, std::size_t operand_count) {
  std::vector<TypeMode> modes;
  const auto* row =
      std::find_if(std::begin(kOps), std::end(kOps), [op](const OpRow& r) { return r.op == op; });
  if (row == std::end(kOps)) return modes;
  for (const Row& mode : row->rows) modes.push_back({spread(row->pattern, mode, operand_count), mode.need});
  return modes;
}

std::vector<DType> dtypes_of(const TargetSpec& target, Op op, std::size_t operand_count) {
  std::vector<DType> out;
  for (const TypeMode& mode : type_modes(op, operand_count))
    if (mode.need.met_by(target.features)) out.push_back(mode.dtypes.front());
  return out;
}

const Need* untyped_need(Op op) {
  if (op == Op::kTosaCondIf || op == Op::kTosaWhileLoop) return &kControl;
  return op == Op::kTosaCustom ? &kBoth : nullptr;
}

std::vector<DType> node_dtypes(const Graph& graph, const Node& node) {
  if (const auto* a = get_if<TosaVariableAttrs>(&*node.attrs)) return {a->dtype};
  if (const auto* a = get_if<TosaVariableAccessAttrs>(&*node.attrs)) return {a->dtype};
  std::vector<DType> dtypes;
  for (const ValueId operand : graph.operands(node))
    if (operand.valid()) dtypes.push_back(graph.type(operand).dtype);
  for (std::size_t i = 0; i < node.result_count; ++i)
    dtypes.push_back(graph.type(graph.result(node, i)).dtype);
  if (const auto* a = get_if<TosaConvAttrs>(&*node.attrs)) dtypes.push_back(a->acc_type);
  if (const auto* a = get_if<TosaTransposeConvAttrs>(&*node.attrs)) dtypes.push_back(a->acc_type);
  if (const auto* a = get_if<TosaAvgPoolAttrs>(&*node.attrs)) dtypes.push_back(a->acc_type);
  return dtypes;
}

const Need* constant_need(DType dtype) {
  for (const Row& row : kConstants)
    if (row.a == dtype) return &row.need;
  return nullptr;
}

std::string to_string(std::span<const DType> dtypes, std::size_t operand_count) {
  std::string text;
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    if (i == operand_count) text += " -> ";
    if (i > operand_count) text += " (accumulator ";
    if (i > 0 && i < operand_count) text += ", ";
    text += tosaic::to_string(dtypes[i]);
    if (i > operand_count) text += ")";
  }
  return text;
}

}  // namespace tosaic::target
