#include "tosaic/tosa/writer/attributes.h"

#include <array>
#include <limits>

#include "tosaic/ir/attributes.h"
#include "tosaic/tosa/schema_map.h"
#include "tosaic/tosa/writer/vectors.h"

namespace tosaic::tosa {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using Ints = Offset<flatbuffers::Vector<std::int32_t>>;

std::int32_t narrow(const Graph& graph, const Node* node, const char* field, std::int64_t value) {
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
    throw InvalidGraph(located(
        {.where = "tosa", .what = std::string(field) + " does not fit 32 bits", .got = std::to_string(value)},
        node == nullptr ? nullptr : node->origin, node == nullptr ? "" : graph.node_name(*node)));
  return static_cast<std::int32_t>(value);
}

Offset<void> no_fields(FlatBufferBuilder& builder) { return schema::CreateConstAttribute(builder).Union(); }

// Writes the table of one operator. Operators whose tables have equal fields, and so equal bytes, share a
// function. Each list is created by a statement of its own, because the order of creation determines the
// bytes of the file.
class TableWriter {
 public:
  TableWriter(FlatBufferBuilder& builder, const Graph& graph, const OperatorPlan& op)
      : builder_(builder), graph_(graph), op_(op), node_(*op.node) {}

  // Writes no fields: the attributes are operands in the file or follow from the types. For control flow,
  // writes the region names.
  template <class A>
  Offset<void> write(const A& /*attrs*/) {
    if (op_.regions.size() != 2) return no_fields(builder_);
    const auto first = builder_.CreateString(op_.regions[0]);
    const auto second = builder_.CreateString(op_.regions[1]);
    return schema::CreateCondIfAttribute(builder_, first, second).Union();
  }
  Offset<void> write(const TosaFftAttrs& a) {
    return schema::CreateFFT2dAttribute(builder_, a.inverse, a.local_bound).Union();
  }
  Offset<void> write(const TosaRfftAttrs& a) {
    return schema::CreateRFFT2dAttribute(builder_, a.local_bound).Union();
  }
  Offset<void> write(const TosaRescaleAttrs& a) {
    return schema::CreateRescaleAttribute(builder_, a.scale32, rounding_mode(a.rounding_mode), a.per_channel,
                                          a.input_unsigned, a.output_unsigned)
        .Union();
  }
  Offset<void> write(const TosaCustomAttrs& a) {
    const auto name = builder_.CreateString(a.operator_name);
    const auto domain = builder_.CreateString(a.domain_name);
    const auto* text = reinterpret_cast<const std::uint8_t*>(a.implementation_attrs.data());
    const auto attrs = builder_.CreateVector(text, a.implementation_attrs.size());
    return schema::CreateCustomAttribute(builder_, name, domain, attrs).Union();
  }
  Offset<void> write(const AxisAttrs& a) {
    return schema::CreateReduceSumAttribute(builder_, narrow("axis", a.axis)).Union();
  }
  Offset<void> write(const PermuteAttrs& a) {
    return schema::CreateTransposeAttribute(builder_, ints("perms", a.perm)).Union();
  }
  Offset<void> write(const TosaConvAttrs& a) {
    const schema::DType acc = acc_type(a.acc_type);
    const Ints dilation = ints("dilation", a.dilation);
    const Ints stride = ints("stride", a.stride);
    const Ints pad = ints("pad", a.pad);
    return schema::CreateConv2dAttribute(builder_, pad, stride, dilation, a.local_bound, acc).Union();
  }
  Offset<void> write(const TosaTransposeConvAttrs& a) {
    const schema::DType acc = acc_type(a.acc_type);
    const Ints stride = ints("stride", a.stride);
    const Ints out_pad = ints("out_pad", a.out_pad);
    return schema::CreateTransposeConv2dAttribute(builder_, out_pad, stride, a.local_bound, acc).Union();
  }
  Offset<void> write(const TosaAvgPoolAttrs& a) {
    const schema::DType acc = acc_type(a.acc_type);
    const Ints pad = ints("pad", a.pad);
    const Ints stride = ints("stride", a.stride);
    const Ints kernel = ints("kernel", a.kernel);
    return schema::CreateAvgPool2dAttribute(builder_, kernel, stride, pad, acc).Union();
  }
  Offset<void> write(const TosaMaxPoolAttrs& a) {
    const Ints pad = ints("pad", a.pad);
    const Ints stride = ints("stride", a.stride);
    const Ints kernel = ints("kernel", a.kernel);
    return schema::CreateMaxPool2dAttribute(builder_, kernel, stride, pad, nan_mode(a.nan_mode)).Union();
  }
  Offset<void> write(const TosaClampAttrs& a) {
    const DType dtype = graph_.type(graph_.operands(node_)[0]).dtype;
    const ByteVector max_val = element(dtype, a.max_val);
    const ByteVector min_val = element(dtype, a.min_val);
    return schema::CreateClampAttribute(builder_, min_val, max_val, nan_mode(a.nan_mode)).Union();
  }
  Offset<void> write(const TosaAxisNanAttrs& a) {
    return schema::CreateArgMaxAttribute(builder_, narrow("axis", a.axis), nan_mode(a.nan_mode)).Union();
  }
  Offset<void> write(const TosaNanAttrs& a) {
    return schema::CreateMaximumAttribute(builder_, nan_mode(a.nan_mode)).Union();
  }
  Offset<void> write(const TosaShiftAttrs& a) {
    return schema::CreateArithmeticRightShiftAttribute(builder_, a.round).Union();
  }
  Offset<void> write(const TosaResizeAttrs& a) {
    const bool nearest = a.mode == ResizeMode::kNearest;
    return schema::CreateResizeAttribute(builder_,
                                         nearest ? schema::ResizeMode::NEAREST : schema::ResizeMode::BILINEAR)
        .Union();
  }

 private:
  std::int32_t narrow(const char* field, std::int64_t value) const {
    return tosa::narrow(graph_, &node_, field, value);
  }
  Ints ints(const char* field, const Dims& dims) { return write_dims(builder_, graph_, &node_, field, dims); }
  ByteVector element(DType dtype, const Scalar& value) {
    return padded_bytes(builder_, byte_size(dtype),
                        [&](std::span<std::byte> to) { store_element(dtype, to.data(), as_double(value)); });
  }
  schema::DType acc_type(DType dtype) const {
    const std::optional<std::uint32_t> code = dtype_code(dtype);
    if (!code)
      throw UnsupportedOp(located({.where = "tosa",
                                   .what = "TOSA has no such accumulator",
                                   .expected = "i32, i48, f16 or f32",
                                   .got = std::string(to_string(dtype))},
                                  node_.origin, graph_.node_name(node_)));
    return static_cast<schema::DType>(*code);
  }
  static schema::RoundingMode rounding_mode(RoundingMode mode) {
    switch (mode) {
      case RoundingMode::kSingleRound:
        return schema::RoundingMode::SINGLE_ROUND;
      case RoundingMode::kInexactRound:
        return schema::RoundingMode::INEXACT_ROUND;
      case RoundingMode::kDoubleRound:
        return schema::RoundingMode::DOUBLE_ROUND;
    }
    return schema::RoundingMode::UNKNOWN;
  }
  static schema::NanPropagationMode nan_mode(NanMode mode) {
    return mode == NanMode::kPropagate ? schema::NanPropagationMode::PROPAGATE
                                       : schema::NanPropagationMode::IGNORE;
  }

  FlatBufferBuilder& builder_;
  const Graph& graph_;
  const OperatorPlan& op_;
  const Node& node_;
};

}  // namespace

Offset<void> write_attributes(FlatBufferBuilder& builder, const Graph& graph, const OperatorPlan& op) {
  if (op.node == nullptr) return no_fields(builder);
  TableWriter writer(builder, graph, op);
  return visit([&writer](const auto& attrs) { return writer.write(attrs); }, *op.node->attrs);
}

Ints write_dims(FlatBufferBuilder& builder, const Graph& graph, const Node* node, const char* field,
                const Dims& dims) {
  std::array<std::int32_t, kMaxRank> list{};
  for (std::size_t i = 0; i < dims.size(); ++i) list.at(i) = narrow(graph, node, field, dims[i]);
  return builder.CreateVector(list.data(), dims.size());
}

}  // namespace tosaic::tosa
