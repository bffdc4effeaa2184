#include "tosaic/target/layout_needs.h"

namespace tosaic::target {
namespace {

struct Row {
  Op op;
  OpLayout layout;
};

// The operators whose need does not follow from their traits. Of all others, elementwise operators and
// reductions take any order, and the rest are row-major.
constexpr Row kRows[] = {
    // CONV2D and its relatives, the pools and RESIZE are channels last. Pools, and sums over windows, may
    // become reductions.
    {Op::kConv, {LayoutNeed::kChannelsLast}},
    {Op::kIntegerConv, {LayoutNeed::kChannelsLast, true}},
    {Op::kAvgPool, {LayoutNeed::kChannelsLast, true}},
    {Op::kMaxPool, {LayoutNeed::kChannelsLast, true}},
    {Op::kResize, {LayoutNeed::kChannelsLast}},
    {Op::kGridSample, {LayoutNeed::kChannelsLast}},
    // The axes of this operator, which a graph may have at stage integer, are in TOSA's order already.
    {Op::kTosaAvgPool2d, {LayoutNeed::kRowMajor, true}},
    // MATMUL and CONV2D contract the innermost axes.
    {Op::kLinear, {LayoutNeed::kChannelsInnermost}},
    {Op::kMatmul, {LayoutNeed::kMatricesInnermost}},
    // These operators move elements and treat each axis on its own.
    {Op::kCat, {LayoutNeed::kAny}},
    {Op::kSlice, {LayoutNeed::kAny}},
    {Op::kPad, {LayoutNeed::kAny}},
    {Op::kFlip, {LayoutNeed::kAny}},
    {Op::kRepeat, {LayoutNeed::kAny}},
    {Op::kExpand, {LayoutNeed::kAny}},
    {Op::kClone, {LayoutNeed::kAny}},
    {Op::kIndexSelect, {LayoutNeed::kAny}},
    {Op::kPermute, {LayoutNeed::kAny}},
    {Op::kReshape, {LayoutNeed::kAny}},
    {Op::kGather, {LayoutNeed::kAxisInnermost}},
    // RESCALE with one multiplier per channel reads the channels from the innermost axis.
    {Op::kRescale, {LayoutNeed::kAxisInnermost}},
    // TOSA's reductions, which a graph may have at stage integer. The reduced axis remains, with extent 1.
    {Op::kTosaReduceAll, {LayoutNeed::kAny}},
    {Op::kTosaReduceAny, {LayoutNeed::kAny}},
    {Op::kTosaReduceMax, {LayoutNeed::kAny}},
    {Op::kTosaReduceMin, {LayoutNeed::kAny}},
    {Op::kTosaReduceProduct, {LayoutNeed::kAny}},
    {Op::kTosaReduceSum, {LayoutNeed::kAny}},
};

LayoutNeeds make_tosa_layout_needs() {
  LayoutNeeds out;
  for (const OpInfo& row : all_ops()) {
    const bool any = row.has(kElementwise) || row.attrs_index == kAttrsIndex<ReduceAttrs>;
    out.ops.push_back({any ? LayoutNeed::kAny : LayoutNeed::kRowMajor});
  }
  for (const Row& row : kRows) out.ops[static_cast<std::size_t>(row.op)] = row.layout;
  // DEPTHWISE_CONV2D reads (H, W, C, M), which is (H, W, C*M, 1). TRANSPOSE_CONV2D reads (O, H, W, I).
  out.depthwise_weight = DimOrder({2, 3, 0, 1});
  out.transposed_weight = DimOrder({1, 2, 3, 0});
  out.most_elementwise_axes = 6;
  // TRANSPOSE takes neither unsigned integers nor i48. An i64 is represented as i32.
  for (std::size_t i = 0; i < LayoutNeeds::kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    out.can_transpose_dtype[i] = without_sign(dtype) == dtype && dtype != DType::kI48;
    out.element_bytes[i] = static_cast<std::uint8_t>(dtype == DType::kI64 ? 4 : byte_size(dtype));
  }
  return out;
}

}  // namespace

const LayoutNeeds& tosa_layout_needs() {
  static const LayoutNeeds needs = make_tosa_layout_needs();
  return needs;
}

}  // namespace tosaic::target
