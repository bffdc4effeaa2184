// limits: what an operator of a device can do, as rows of tables.
//
//   OperatorRow{{Op::kTosaTable}, kI8, kAny, kI8}                       TABLE takes i8 only
//   LimitRow{{Op::kTosaConv2d}, Quantity::kStride, 1, 3}                its strides are 1 to 3
//   LimitRow{{Op::kTosaAvgPool2d}, Quantity::kKernelHeight, 1, 8, When::kPadded}    ... if the pool is padded
//
// One function judges a node by all rows. Rows are about canonical operators at stage quantized, or about
// TOSA's operators. The dtype of a value at stage quantized is the dtype of its integers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "tosaic/claimant/verdict.h"
#include "tosaic/ir/graph.h"

namespace tosaic::claimant {

// A set of dtypes.
class DTypes {
 public:
  constexpr DTypes() = default;  // all of them
  constexpr DTypes(std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) add(dtype);
  }
  [[nodiscard]] constexpr bool any() const { return bits_ == 0; }
  constexpr void add(DType dtype) { bits_ |= 1u << static_cast<unsigned>(dtype); }
  [[nodiscard]] constexpr bool has(DType dtype) const {
    return any() || (bits_ >> static_cast<unsigned>(dtype) & 1u) != 0;
  }

 private:
  std::uint32_t bits_ = 0;
};

// The operators that a claimant has, and their dtypes. A node fits a row if operand 0, the second operand and
// the results have dtypes of its sets. Several rows of an operator are alternatives.
struct OperatorRow {
  std::vector<Op> ops;
  DTypes input = {}, second = {}, result = {};
};

// A number of a node. A quantity may have several values, such as one stride for each axis: the limit is for
// each of them. A quantity that a node does not have has no value. Yes is 1, and no is 0.
enum class Quantity : std::uint8_t {
  kKernelDepth,    // of a convolution or pool
  kKernelHeight,   // ...
  kKernelWidth,    // ...
  kKernelProduct,  // height times width
  kKernelVolume,  // height times width times input channels, these rounded up to a multiple of LimitRow::unit
  kStride,        // height and width
  kStrideDepth,   // ...
  kSquareStride,  // yes if both strides are equal
  kStrideInKernel,     // yes if no stride exceeds the kernel
  kPaddingInKernel,    // yes if no padding reaches the kernel
  kDilation,           // height and width
  kGroups,             // of a convolution that is not depthwise; 1 for a depthwise one
  kOutputPadding,      // of a transposed convolution
  kTransposed,         // yes if a convolution is transposed
  kWeightSum,          // the sum of the absolute weights of an output channel
  kBias,               // the elements of a constant bias
  kConstantWeight,     // yes if operand 1 is a constant
  kConstantBias,       // yes if the operand `bias` is a constant
  kWeightAxis,         // the axis of scales of the weight, or none
  kBatch,              // the extent of the first axis, if an operand or result has 4 axes or more
  kHeight,             // extents of operand 0 and of the result, of 3 axes or more
  kWidth,              // ...
  kChannels,           // ...
  kInputChannels,      // of operand 0
  kSpatial,            // height times width of operand 0
  kRank,               // of operands that are not constant, and of results
  kSpatialRank,        // of a convolution, pool or resize
  kAxisIsLast,         // yes if the operator works along the last axis
  kAxisIsChannel,      // yes if it works along the channels, the last axis if there are fewer than 3 axes
  kAxisIsSpatial,      // yes if it works along the height or width
  kAxisExtent,         // the extent of the axis along which it works
  kAxisOuter,          // the product of the extents before this axis
  kAxisInner,          // ... and after it
  kRowCount,           // the number of elements without this axis
  kElements,           // of operand 0
  kPermutedProduct,    // the largest product of all but two axes of a permuted tensor
  kSimplePermutation,  // yes if a permutation of 4 axes swaps neighbours, with one batch if channels move
  kUpscale,            // the factor of a resize by axis, 0 if it is not a power of two
  kBilinear,           // yes if a resize is bilinear
  kReplicates,         // yes if a nearest resize of TOSA repeats elements, in one of the two forms of Vela
  kAlignsCorners,      // yes if a resize aligns corners
  kRoundingShift,      // yes if a shift to the right rounds
  kSameShapes,         // yes if all operands have the same shape
  kChannelBroadcast,   // yes if kSameShapes, or if an operand has one element, or one per channel
  kFullOperand,        // yes if an operand has as many elements as the result
  kSharedQParams,      // yes if all quantized operands and results have the same qparams
  kPerTensor,          // yes if operands without the name `weight` and results have one scale
  kOutputScale256,     // yes if results have scale 1/256 and the least integer as zero point
  kSnorm,              // yes if operand 0 and the result have scale 1/127, and the result the range -127..127
  kUnitGrid,           // yes if operand 1 has the scale 1/127 (i8) or 1/32767 (i16), and zero point 0
  kInputZeroPoint,     // of quantized operands
  kOutputZeroPoint,    // of quantized results
  kCeilMode,           // of a pool
  kCountsPadding,      // yes if a padded average pool counts the padding
  kDivisorOverride,    // yes if a pool has one
  kDividesInput,       // yes if an adaptive pool has windows of one size
  kAlpha,              // of add and sub
  kNumber,     // yes if the operand of floats is a constant with one number, which is finite and not 0
  kScaleOnly,  // yes if a product or quotient by a number only changes the scale
  kCount
};

// A condition on a node: a limit applies only to nodes that satisfy it.
enum class When : std::uint8_t {
  kAlways,
  kPadded,      // the pool or convolution is padded
  kUnpadded,    // ... is not
  kInt32,       // operand 0 has 32 bits
  kNarrow,      // ... has 8 or 16 bits
  kWide,        // ... has 16 bits
  kWideResult,  // the result has 16 bits
  kNotLast,     // the operator does not work along the last axis
  kBilinear,    // the resize is bilinear
  kHalfPixel,   // ... and does not align corners
  kForward,     // the convolution is not transposed
  kTransposed,  // ... is transposed
  kByNumber,    // a product or quotient by one number (ir/constant_factor.h)
  kByTensor,    // ... by other operands
};

inline constexpr std::int64_t kNoLimit = INT64_MAX;

struct LimitRow {
  std::vector<Op> ops;
  Quantity quantity = Quantity::kCount;
  std::int64_t least = 0, most = kNoLimit;
  When when = When::kAlways;
  std::int64_t unit = 1;  // kKernelVolume
};

// The name of a quantity, which is also that of its rule ("kernel-height"), and of a condition ("padded").
[[nodiscard]] std::string_view name_of(Quantity quantity);
[[nodiscard]] std::string_view name_of(When when);
// All names, in the order of the enumerators.
[[nodiscard]] std::vector<std::string_view> quantity_names();
[[nodiscard]] std::vector<std::string_view> when_names();

struct Limits {
  std::vector<OperatorRow> operators;
  std::vector<LimitRow> limits;
};

// True if a row lists floats for an operator. A row that takes any dtype does not.
[[nodiscard]] bool lists_floats(const Limits& limits, Op op);

// Appends a reason for each row that the node breaks. `who` is the name of the claimant. The reasons do not
// name the node yet.
void judge(const Graph& graph, const Node& node, const Limits& limits, std::string_view who,
           std::vector<Reason>& reasons);

}  // namespace tosaic::claimant
