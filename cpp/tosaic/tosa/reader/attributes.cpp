#include "tosaic/tosa/reader/attributes.h"

#include <algorithm>

#include "tosaic/ir/storage.h"
#include "tosaic/tosa/reader/lists.h"
#include "tosaic/tosa/schema_map.h"

namespace tosaic::tosa {
namespace {

// Reads the table of one operator. Operators whose attributes are one struct share a function.
class TableReader {
 public:
  TableReader(const Place& place, std::span<const DType> operands, const TensorType& result)
      : place_(place), operands_(operands), result_(result) {}

  // Reads nothing: the operator has no attributes, or all of them are operands in the file.
  template <class A>
  void read(A& /*attrs*/) const {}
  void read(CastAttrs& a) const { a.dtype = result_.dtype; }
  void read(TosaMatmulAttrs& a) const {
    if (operands_[0] == DType::kF16 && result_.dtype == DType::kF32) a.dtype = result_.dtype;
  }
  void read(AxisAttrs& a) const { a.axis = attribute_table<schema::ReduceSumAttribute>(place_).axis(); }
  void read(PermuteAttrs& a) const {
    const Ints* perms = attribute_table<schema::TransposeAttribute>(place_).perms();
    a.perm = ints("perms", perms, std::min<std::size_t>(length(perms), kMaxRank));
  }
  void read(TosaConvAttrs& a) const {
    const auto& t = attribute_table<schema::Conv2dAttribute>(place_);
    const std::size_t spatial = place_.op->op() == schema::Op::CONV3D ? 3 : 2;
    a.pad = ints("pad", t.pad(), 2 * spatial);
    a.stride = ints("stride", t.stride(), spatial);
    a.dilation = ints("dilation", t.dilation(), spatial);
    a.local_bound = t.local_bound();
    a.acc_type = acc_type(t.acc_type());
  }
  void read(TosaTransposeConvAttrs& a) const {
    const auto& t = attribute_table<schema::TransposeConv2dAttribute>(place_);
    a.out_pad = ints("out_pad", t.out_pad(), 4);
    a.stride = ints("stride", t.stride(), 2);
    a.local_bound = t.local_bound();
    a.acc_type = acc_type(t.acc_type());
  }
  void read(TosaAvgPoolAttrs& a) const {
    const auto& t = attribute_table<schema::AvgPool2dAttribute>(place_);
    a.kernel = ints("kernel", t.kernel(), 2);
    a.stride = ints("stride", t.stride(), 2);
    a.pad = ints("pad", t.pad(), 4);
    a.acc_type = acc_type(t.acc_type());
  }
  void read(TosaMaxPoolAttrs& a) const {
    const auto& t = attribute_table<schema::MaxPool2dAttribute>(place_);
    a.kernel = ints("kernel", t.kernel(), 2);
    a.stride = ints("stride", t.stride(), 2);
    a.pad = ints("pad", t.pad(), 4);
    a.nan_mode = nan_mode(t.nan_mode());
  }
  void read(TosaClampAttrs& a) const {
    const auto& t = attribute_table<schema::ClampAttribute>(place_);
    a.min_val = bound("min_val", t.min_val(), operands_[0]);
    a.max_val = bound("max_val", t.max_val(), operands_[0]);
    a.nan_mode = nan_mode(t.nan_mode());
  }
  void read(TosaAxisNanAttrs& a) const {
    const auto& t = attribute_table<schema::ArgMaxAttribute>(place_);
    a.axis = t.axis();
    a.nan_mode = nan_mode(t.nan_mode());
  }
  void read(TosaNanAttrs& a) const {
    a.nan_mode = nan_mode(attribute_table<schema::MaximumAttribute>(place_).nan_mode());
  }
  void read(TosaShiftAttrs& a) const {
    a.round = attribute_table<schema::ArithmeticRightShiftAttribute>(place_).round();
  }
  void read(TosaFftAttrs& a) const {
    const auto& t = attribute_table<schema::FFT2dAttribute>(place_);
    a.inverse = t.inverse();
    a.local_bound = t.local_bound();
  }
  void read(TosaRfftAttrs& a) const {
    a.local_bound = attribute_table<schema::RFFT2dAttribute>(place_).local_bound();
  }
  void read(TosaRescaleAttrs& a) const {
    const auto& t = attribute_table<schema::RescaleAttribute>(place_);
    a.dtype = result_.dtype;
    a.scale32 = t.scale32();
    a.rounding_mode = rounding_mode(t.rounding_mode());
    a.per_channel = t.per_channel();
    a.input_unsigned = t.input_unsigned();
    a.output_unsigned = t.output_unsigned();
  }
  void read(TosaCustomAttrs& a) const {
    const auto& t = attribute_table<schema::CustomAttribute>(place_);
    a.operator_name = utf8_text(place_, "operator_name", view(t.operator_name()));
    a.domain_name = utf8_text(place_, "domain_name", view(t.domain_name()));
    const auto* text = t.implementation_attrs();
    if (length(text) != 0) a.implementation_attrs.assign(text->begin(), text->end());
  }
  void read(TosaResizeAttrs& a) const {
    const schema::ResizeMode mode = attribute_table<schema::ResizeAttribute>(place_).mode();
    if (mode != schema::ResizeMode::NEAREST && mode != schema::ResizeMode::BILINEAR)
      fail<InvalidGraph>(place_, "unknown mode", "NEAREST or BILINEAR",
                         std::to_string(static_cast<std::uint32_t>(mode)));
    a.mode = mode == schema::ResizeMode::NEAREST ? ResizeMode::kNearest : ResizeMode::kBilinear;
  }

 private:
  using Ints = flatbuffers::Vector<std::int32_t>;
  Dims ints(const char* field, const Ints* list, std::size_t expected) const {
    if (length(list) != expected)
      fail<InvalidGraph>(place_, std::string(field) + " has the wrong length", std::to_string(expected),
                         std::to_string(length(list)));
    Dims dims;
    for (std::size_t i = 0; i < expected; ++i) dims.push_back(at(list, i));
    return dims;
  }

  DType acc_type(schema::DType type) const {
    const auto code = static_cast<std::uint32_t>(type);
    const std::optional<DType> dtype = dtype_from_code(code);
    if (!dtype)
      fail<InvalidGraph>(place_, "acc_type is not a dtype", "INT32, INT48, FP16 or FP32",
                         dtype_code_name(code));
    return *dtype;
  }

  // The NaN mode of a table. A file without the field has UNKNOWN, which means PROPAGATE.
  NanMode nan_mode(schema::NanPropagationMode mode) const {
    if (mode > schema::NanPropagationMode::MAX)
      fail<InvalidGraph>(place_, "unknown nan_mode", "PROPAGATE or IGNORE",
                         std::to_string(static_cast<std::uint32_t>(mode)));
    return mode == schema::NanPropagationMode::IGNORE ? NanMode::kIgnore : NanMode::kPropagate;
  }

  Scalar bound(const char* field, const flatbuffers::Vector<std::uint8_t>* data, DType dtype) const {
    const std::size_t needed = byte_size(dtype);
    if (length(data) < needed || length(data) - needed >= kDataAlignment)
      fail<InvalidGraph>(place_, std::string(field) + " has the wrong size",
                         std::to_string(needed) + " bytes", std::to_string(length(data)) + " bytes");
    return scalar_at(dtype, reinterpret_cast<const std::byte*>(data->data()));
  }

  RoundingMode rounding_mode(schema::RoundingMode mode) const {
    switch (mode) {
      case schema::RoundingMode::SINGLE_ROUND:
        return RoundingMode::kSingleRound;
      case schema::RoundingMode::INEXACT_ROUND:
        return RoundingMode::kInexactRound;
      case schema::RoundingMode::DOUBLE_ROUND:
        return RoundingMode::kDoubleRound;
      case schema::RoundingMode::UNKNOWN:
        break;
    }
    fail<InvalidGraph>(place_, "unknown rounding_mode", "SINGLE_ROUND, INEXACT_ROUND or DOUBLE_ROUND",
                       std::to_string(static_cast<std::uint32_t>(mode)));
  }

  const Place& place_;
  std::span<const DType> operands_;
  const TensorType& result_;
};

}  // namespace

Scalar scalar_at(DType dtype, const std::byte* bytes) {
  const double value = load_element(dtype, bytes);
  if (dtype == DType::kBool) return value != 0;
  if (is_float(dtype)) return value;
  return static_cast<std::int64_t>(value);
}

Attrs read_attributes(const Place& place, Attrs defaults, std::span<const DType> operands,
                      const TensorType& result) {
  const TableReader reader(place, operands, result);
  visit([&reader](auto& attrs) { reader.read(attrs); }, defaults);
  return defaults;
}

}  // namespace tosaic::tosa
