#include "tosaic/passes/lower_to_integer/integer_lowering.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/exec/fold.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::passes {
namespace {

std::int64_t magnitude_of(ValueRange range) { return std::max(std::abs(range.low), std::abs(range.high)); }

MultiplierWidth width_of(const TosaRescaleAttrs& attrs) {
  return attrs.scale32 ? MultiplierWidth::k32 : MultiplierWidth::k16;
}

Multiplier multiplier_at(const TosaRescaleAttrs& attrs, std::size_t channel) {
  return {static_cast<std::int32_t>(attrs.multiplier[channel]),
          static_cast<std::int32_t>(attrs.shift[channel])};
}

// The results of a rescale for inputs in `range`, before the result dtype clips them.
ValueRange image_of(const TosaRescaleAttrs& attrs, std::size_t channel, ValueRange range) {
  const auto at = [&](std::int64_t value) {
    return apply_scale(value - attrs.input_zp, multiplier_at(attrs, channel), width_of(attrs),
                       attrs.rounding_mode) +
           attrs.output_zp;
  };
  return {at(range.low), at(range.high)};
}

ValueRange clipped(ValueRange range, ValueRange to) {
  return {std::clamp(range.low, to.low, to.high), std::clamp(range.high, to.low, to.high)};
}

ValueRange united(ValueRange a, ValueRange b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

// The integers of `from` plus `offset`, in another dtype.
ConstantRef recoded(const Constant& from, DType dtype, std::int64_t offset) {
  auto out = std::make_shared<Constant>(from);
  out->dtype = dtype;
  if (offset == 0 && byte_size(dtype) == byte_size(from.dtype)) return out;
  const Elements elements(from);
  out->kind = ConstantKind::kFolded;
  out->storage = Storage::allocate(elements.size() * byte_size(dtype));
  std::byte* to = out->storage.writable();
  for (std::size_t i = 0; i < elements.size(); ++i)
    store_element(dtype, to + i * byte_size(dtype), static_cast<double>(elements.as_int(i) + offset));
  return out;
}

}  // namespace

ConstantRef converted(const ConstantRef& constant, DType dtype) {
  if (constant->dtype == dtype) return constant;
  const Elements elements(*constant);
  std::vector<double> values(elements.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = elements.as_double(i);
  return make_constant(constant->name, dtype, constant->shape, values);
}

namespace {

bool may_stand_behind(DType storage, std::int64_t zero_point) {
  if (storage == DType::kI8) return zero_point >= -128 && zero_point <= 127;
  return zero_point == 0;
}

}  // namespace

std::int64_t Real::magnitude() const { return magnitude_of(centred()); }

std::int64_t carried_offset(DType storage) {
  return storage == DType::kU8 ? 128 : storage == DType::kU16 ? 32768 : 0;
}

std::optional<QParams> carried(const QParams& qparams) {
  QParams out = qparams;
  switch (qparams.storage) {  // NOLINT: the dtypes of integer arithmetic; the rest has none
    case DType::kI4:
    case DType::kI8:
    case DType::kU8:
      out.storage = DType::kI8;
      break;
    case DType::kI16:
    case DType::kU16:
      out.storage = DType::kI16;
      break;
    case DType::kI32:
      break;
    default:
      return std::nullopt;
  }
  const std::int64_t offset = carried_offset(qparams.storage);
  out.qmin -= offset;
  out.qmax -= offset;
  for (std::int64_t& zero_point : out.zero_points) {
    zero_point -= offset;
    if (!may_stand_behind(out.storage, zero_point)) return std::nullopt;
  }
  return out;
}

double largest_number(const QParams& qparams) {
  const std::int64_t zero = qparams.zero_points.front();
  return static_cast<double>(magnitude_of({qparams.qmin - zero, qparams.qmax - zero})) *
         qparams.scales.front();
}

int bits_to(std::int64_t count) {
  return count <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
}

IntegerLowering::IntegerLowering(const Graph& source, const IntegerRules& rules)
    : source_(&source), rules_(rules), forms_(source.values().size()), floats_(source.values().size()) {
  out_.name = source.name;
  out_.stage = Stage::kInteger;
}

Graph IntegerLowering::run() {
  find_ends();
  for (const Input& input : source_->inputs()) {
    const Value& value = source_->value(input.value);
    TensorType type = value.type;
    name_ = value.name;
    ValueId id = out_.add_input(input.kind, value.name, type, input.path, input.border, input.initial);
    const std::optional<QParams> label = type.qparams ? carried(*type.qparams) : std::nullopt;
    if (label && label->storage != type.dtype) {
      id = with_other_sign(id, type.dtype, label->storage);
      out_.set_qparams(id, std::make_shared<const QParams>(*label));
    }
    forms_[input.value.index()].id = id;
  }
  for (const Node& node : source_->nodes()) lower(node);
  for (Output output : source_->outputs()) {
    const TensorType& type = source_->type(output.value);
    output.value = mapped(output.value);
    if (type.dtype != out_.type(output.value).dtype && type.qparams) {
      name_ = output.path;
      output.value = with_other_sign(output.value, out_.type(output.value).dtype, type.dtype);
    }
    out_.add_output(std::move(output));
  }
  return std::move(out_);
}

ValueId IntegerLowering::with_other_sign(ValueId id, DType from, DType to) {
  RescaleAttrs attrs;
  const double one[] = {1.0};
  attrs.rescale = quant::plan_rescale({from, carried_offset(from)}, {to, carried_offset(to)}, one);
  return emit(Op::kRescale, attrs, {id});
}

// ---- operands ----

bool IntegerLowering::is_known(std::size_t i) const {
  if (is_constant(i)) return true;
  const Form& form = forms_[operand(i).index()];
  return form.real && out_.value(form.real->id).kind == ValueKind::kConstant;
}

bool IntegerLowering::is_real(std::size_t i) const {
  return operand_type(i).qparams != nullptr || forms_[operand(i).index()].real.has_value();
}

Real IntegerLowering::real(std::size_t i) { return real_of(operand(i)); }

Real IntegerLowering::real_of(ValueId id) {
  if (const Form& form = forms_[id.index()]; form.real) return *form.real;
  const QParamsRef& label = source_->type(id).qparams;
  if (!label && is_float(source_->type(id).dtype))
    throw NoIntegerForm("operand '" + source_->value(id).name + "' is a float");
  if (!label) return counted(id);
  const std::optional<QParams> signed_label = carried(*label);
  if (!signed_label)
    throw NoIntegerForm("operand '" + source_->value(id).name +
                        "' is quantized in a way that no integer arithmetic has");
  if (const std::optional<Real> real = stored_as(mapped(id), *signed_label)) return *real;
  throw NoIntegerForm("operand '" + source_->value(id).name + "' has zero points that differ by channel");
}

// Integers with the qparams `label`. If zero points differ by channel, they are subtracted here from an i8
// constant; nothing for other values.
std::optional<Real> IntegerLowering::stored_as(ValueId id, const QParams& label) {
  Real real{id, label.scales, label.zero_points.front(), {label.qmin, label.qmax}, label.axis};
  const auto differs = [&](std::int64_t zero_point) { return zero_point != real.zero_point; };
  if (std::none_of(label.zero_points.begin(), label.zero_points.end(), differs)) return real;
  const ConstantRef& known = out_.value(id).constant;
  if (!known || !known->storage.bound() || known->dtype != DType::kI8) return std::nullopt;
  return less_zero_points(*known, label);
}

// Subtracts the zero point of each channel from a constant of i8; the differences have 9 bits.
Real IntegerLowering::less_zero_points(const Constant& known, const QParams& label) {
  const Elements elements(known);
  const auto axis = static_cast<std::size_t>(*label.axis);
  std::size_t behind = 1;
  for (std::size_t k = axis + 1; k < known.shape.size(); ++k)
    behind *= static_cast<std::size_t>(known.shape[k]);
  std::vector<std::int64_t> values;
  for (std::size_t k = 0; k < elements.size(); ++k)
    values.push_back(elements.as_int(k) - label.zero_points[k / behind % label.zero_points.size()]);
  return {constant(DType::kI16, known.shape, values), label.scales, 0, {-255, 255}, label.axis};
}

// Bools and integers as numbers of scale 1. Integers of 32 and 64 bits are clamped to just beyond the largest
// number of goal(); without a cast and a goal() they throw.
Real IntegerLowering::counted(ValueId id) {
  const DType from = source_->type(id).dtype;
  const ValueId x = mapped(id);
  if (from == DType::kI8) return {x, {1.0}, 0, {-128, 127}};
  if (from == DType::kBool) return {emit(Op::kCast, CastAttrs{DType::kI8}, {x}), {1.0}, 0, {0, 1}};
  if (from == DType::kU8) return {emit(Op::kCast, CastAttrs{DType::kI32}, {x}), {1.0}, 0, {0, 255}};
  if (from == DType::kI16) return {emit(Op::kCast, CastAttrs{DType::kI32}, {x}), {1.0}, 0, {-32768, 32767}};
  const std::optional<QParams> to = goal();
  if (node_->op != Op::kCast || !to)
    throw NoIntegerForm("operand '" + source_->value(id).name +
                        "' counts to more than its reader is known to take");
  const double beyond = std::ceil(largest_number(*to)) + 1;  // saturates, whatever the zero point
  const ValueId wide = emit(Op::kCast, CastAttrs{DType::kI32}, {x});
  if (beyond >= 0x1p29) return {wide, {1.0}, 0, kInt32Values};
  const ValueRange range{-static_cast<std::int64_t>(beyond), static_cast<std::int64_t>(beyond)};
  return {bounded(wide, kInt32Values, range), {1.0}, 0, range};
}

Real IntegerLowering::real_with_one_scale(std::size_t i) { return rescaled_to_one(real(i)); }

// i48 rescales have multipliers of 15 bits only. Dividing by a power of two loses nothing but the bits beyond
// 30.
Real IntegerLowering::within_32_bits(const Real& x) {
  const int fewer = std::max(0, bits_to(x.magnitude()) - 30);
  const Real made = rescaled({x.id, {1.0}, 0, x.range}, DType::kI32, std::ldexp(1.0, fewer));
  Real out = x;
  out.id = made.id;
  out.range = made.range;
  out.shape.reset();
  for (double& scale : out.scales) scale = std::ldexp(scale, fewer);
  if (x.shape && x.axis)
    out.shape = x.shape;
  else if (x.shape)
    out.id = reshape(out.id, *x.shape);
  return out;
}

Real IntegerLowering::rescaled_to_one(const Real& x) {
  if (!x.axis && type(x.id).dtype != DType::kI48) return x;
  Real y = type(x.id).dtype == DType::kI48 ? within_32_bits(x) : x;
  if (!y.axis) return y;
  const double largest = *std::max_element(y.scales.begin(), y.scales.end());
  return rescaled(y, DType::kI32, std::ldexp(largest, bits_to(y.magnitude()) - 29));
}

std::vector<double> IntegerLowering::numbers(std::size_t i) const {
  const ValueId id = operand(i);
  const Form& form = forms_[id.index()];
  const QParamsRef& label = source_->type(id).qparams;
  const Value& value = source_->value(id);
  const ConstantRef constant = value.constant ? value.constant : out_.value(form.real->id).constant;
  if (!constant->storage.bound()) throw NoIntegerForm("constant '" + value.name + "' has no data");
  const Elements elements(*constant);
  std::vector<double> out(elements.size());
  for (std::size_t k = 0; k < out.size(); ++k) out[k] = elements.as_double(k);
  std::vector<double> scales{1.0};
  std::vector<std::int64_t> zero_points{0};
  std::optional<std::int64_t> axis;
  if (form.real) {
    scales = form.real->scales;
    zero_points.assign(scales.size(), form.real->zero_point);
    axis = form.real->axis;
  } else if (label) {
    scales = label->scales;
    zero_points = label->zero_points;
    axis = label->axis;
  } else {
    return out;
  }
  std::int64_t behind = num_elements(constant->shape);
  if (axis)
    for (std::size_t k = 0; k <= static_cast<std::size_t>(*axis); ++k) behind /= constant->shape[k];
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::size_t c = k / static_cast<std::size_t>(std::max<std::int64_t>(behind, 1)) % scales.size();
    out[k] =
        (out[k] - static_cast<double>(zero_points[c])) * static_cast<double>(static_cast<float>(scales[c]));
  }
  return out;
}

// Adds the dequantize node of a number that is read as a float; NaN where x is undefined.
ValueId IntegerLowering::dequantized(const Real& x, ValueId id) {
  const bool is_weight = out_.value(x.id).kind == ValueKind::kConstant;
  const Real y = is_weight ? x : rescaled_to_one(x);
  const TensorType& float_type = source_->type(id);
  const DType dtype = stands_for_number(float_type.dtype) ? float_type.dtype : DType::kF32;
  const auto attrs = attrs_of_qparams<DequantizeAttrs>(dtype, parameters(y));
  const ValueId operands[] = {y.id};
  const Node* producer = source_->producer(id);
  ValueId made = out_.add(Op::kDequantize, attrs, operands, producer != nullptr ? producer->origin : origin_,
                          source_->value(id).name);
  if (y.undefined) {
    const double values[] = {std::numeric_limits<double>::quiet_NaN()};
    const ConstantRef nan = make_constant("", dtype, Dims::filled(type(made).rank(), 1), values);
    made = elementwise(Op::kWhere, NoAttrs{}, {*y.undefined, out_.add_constant(nan), made});
  }
  return made;
}

ValueId IntegerLowering::mapped(ValueId id) {
  if (!id.valid()) return id;
  Form& form = forms_[id.index()];
  if (!form.id.valid() && form.real) form.id = dequantized(*form.real, id);
  if (!form.id.valid() && form.table) leave_deferred(form);
  if (form.id.valid()) return form.id;
  const Value& value = source_->value(id);
  ConstantRef constant = value.constant;
  QParamsRef label = value.type.qparams;
  if (label) {
    const std::optional<QParams> signed_label = carried(*label);
    if (signed_label && constant->storage.bound()) {
      if (signed_label->storage != constant->dtype)
        constant = recoded(*constant, signed_label->storage, -carried_offset(label->storage));
      label = std::make_shared<const QParams>(*signed_label);
    }
  }
  form.id = out_.add_constant(constant);
  out_.set_qparams(form.id, label);
  return form.id;
}

ValueId IntegerLowering::as_float(ValueId id) {
  if (!id.valid() || !source_->type(id).qparams) return mapped(id);
  ValueId& made = floats_[id.index()];
  if (made.valid()) return made;
  const ValueId integers = mapped(id);
  const QParams& label = *out_.type(integers).qparams;
  const ValueId operands[] = {integers};
  made = out_.add(Op::kDequantize, attrs_of_qparams<DequantizeAttrs>(DType::kF32, label), operands, origin_,
                  source_->value(id).name + "_number");
  return made;
}

QParams IntegerLowering::parameters(const Real& x) const {
  const DType dtype = type(x.id).dtype;
  const ValueRange all = *integer_limits(dtype);
  return {dtype,  all.low,  all.high,
          x.axis, x.scales, std::vector<std::int64_t>(x.scales.size(), x.zero_point)};
}

std::optional<QParams> IntegerLowering::goal() const {
  if (target_) return target_;
  const ValueId result = source_->result(*node_);
  const std::span<const NodeId> users = source_->users(result);
  if (users.size() != 1 || source_->is_output(result)) return std::nullopt;
  const Node& user = source_->node(users.front());
  const QParamsRef& label = source_->type(source_->result(user)).qparams;
  return user.op == Op::kQuantize && label && !label->axis ? carried(*label) : std::nullopt;
}

// ---- emitting ----

ValueId IntegerLowering::emit(Op op, Attrs attributes, const std::vector<ValueId>& operands) {
  std::string suffix(info(op).name);
  if (info(op).is_tosa) suffix = suffix.substr(5);
  const ValueId made = out_.add(op, std::move(attributes), operands, origin_, name_ + "." + suffix);
  const bool moves = info(op).has(kMovement) || info(op).has(kView);
  const auto is_known = [&](ValueId id) {
    const ConstantRef& constant = out_.value(id).constant;
    return constant && constant->storage.bound();
  };
  if (!moves || !std::all_of(operands.begin(), operands.end(), is_known)) return made;
  std::vector<ConstantRef> constants;
  for (const ValueId id : operands) constants.push_back(out_.value(id).constant);
  const auto moved = exec::evaluate(out_, *out_.producer(made), constants);
  return moved ? out_.add_constant(moved->front()) : made;
}

ValueId IntegerLowering::elementwise(Op op, Attrs attributes, std::vector<ValueId> operands) {
  std::size_t rank = 0;
  for (const ValueId id : operands) rank = std::max(rank, type(id).rank());
  for (ValueId& id : operands) {
    Shape shape = type(id).shape;
    while (shape.size() < rank) shape.insert(0, 1);
    id = reshape(id, shape);
  }
  return emit(op, std::move(attributes), operands);
}

ValueId IntegerLowering::binary(Op op, ValueId a, ValueId b) {
  return elementwise(op, default_attrs(op), {a, b});
}

ValueId IntegerLowering::reshape(ValueId x, const Shape& shape) {
  return type(x).shape == shape ? x : emit(Op::kReshape, ShapeAttrs{shape}, {x});
}

ValueId IntegerLowering::expand(ValueId x, const Shape& shape) {
  return type(x).shape == shape ? x : emit(Op::kExpand, ShapeAttrs{shape}, {x});
}

ValueId IntegerLowering::cast(ValueId x, DType dtype) {
  return type(x).dtype == dtype ? x : emit(Op::kTosaCast, CastAttrs{dtype}, {x});
}

ValueId IntegerLowering::constant(DType dtype, const Shape& shape, const std::vector<std::int64_t>& values) {
  auto out = std::make_shared<Constant>();
  out->name = name_ + ".const";
  out->kind = ConstantKind::kFolded;
  out->dtype = dtype;
  out->shape = shape;
  const std::size_t width = byte_size(dtype);
  out->storage = Storage::allocate(values.size() * width);
  std::byte* to = out->storage.writable();
  for (std::size_t i = 0; i < values.size(); ++i)  // little endian: the low bytes
    std::memcpy(to + i * width, &values[i], width);
  return out_.add_constant(std::move(out));
}

ValueId IntegerLowering::number(std::int64_t value, std::size_t rank, DType dtype) {
  return constant(dtype, Dims::filled(rank, 1), {value});
}

ValueId IntegerLowering::bounded(ValueId x, ValueRange range, ValueRange to) {
  const DType dtype = type(x).dtype;
  if (range.low >= to.low && range.high <= to.high) return x;
  if (dtype == DType::kI16 && !rules_.wide_integers)  // CLAMP has i16 only with int16
    return cast(bounded(cast(x, DType::kI32), range, to), dtype);
  if (dtype != DType::kI32)
    return emit(Op::kTosaClamp, TosaClampAttrs{to.low, to.high, NanMode::kPropagate}, {x});
  if (range.low < to.low) x = binary(Op::kTosaMaximum, x, number(to.low, type(x).rank()));
  if (range.high > to.high) x = binary(Op::kTosaMinimum, x, number(to.high, type(x).rank()));
  return x;
}

ValueId IntegerLowering::bounded_by_channel(const Real& x, const std::vector<ValueRange>& to) {
  if (!x.axis) return bounded(x.id, x.range, to.front());
  const auto cuts = [&](const ValueRange& range) { return range != x.range; };
  if (std::none_of(to.begin(), to.end(), cuts)) return x.id;
  Shape shape = Dims::filled(type(x.id).rank(), 1);
  shape[static_cast<std::size_t>(*x.axis)] = static_cast<std::int64_t>(to.size());
  std::vector<std::int64_t> low, high;
  for (const ValueRange& range : to) {
    low.push_back(range.low);
    high.push_back(range.high);
  }
  const DType dtype = type(x.id).dtype;
  if (dtype != DType::kI32) throw NoIntegerForm("its sums of 48 bits cannot be bounded by channel");
  const ValueId above = binary(Op::kTosaMaximum, x.id, constant(dtype, shape, low));
  return binary(Op::kTosaMinimum, above, constant(dtype, shape, high));
}

Real IntegerLowering::rescaled(const Real& x, DType dtype, double scale, std::int64_t zero_point) {
  const DType from = type(x.id).dtype;
  std::vector<double> ratios = quant::rescale_scales(x.scales, scale);
  // Ratios above 2^28 saturate 16 bits for every number but 0; they are capped, to fit a multiplier.
  const double most = x.magnitude() == 0 ? 1.0 : dtype == DType::kI32 ? HUGE_VAL : 0x1p28;
  for (double& ratio : ratios) ratio = std::min(ratio, most);
  if (from == dtype && !x.shape && x.zero_point == zero_point && !x.axis && ratios.front() == 1.0) return x;
  RescaleAttrs attrs;
  // RESCALE has no double rounding for i48.
  const RoundingMode rounding = from == DType::kI48 ? RoundingMode::kSingleRound : rules_.rounding_mode;
  attrs.rescale =
      quant::plan_rescale({from, x.zero_point}, {dtype, zero_point}, ratios, {.rounding_mode = rounding});
  attrs.axis = x.axis;
  attrs.rescale.per_channel = x.axis.has_value();
  const ValueRange limits = *integer_limits(dtype);
  std::vector<ValueRange> defined(ratios.size(), x.range);
  for (std::size_t c = 0; c < ratios.size(); ++c) {
    const ValueRange allowed = quant::defined_inputs(attrs.rescale, c);
    defined[c] = {std::max(x.range.low, allowed.low), std::min(x.range.high, allowed.high)};
    if (defined[c] == x.range) continue;
    // Inputs that are cut off must saturate.
    const ValueRange image = image_of(attrs.rescale, c, defined[c]);
    if ((defined[c].low > x.range.low && image.low > limits.low) ||
        (defined[c].high < x.range.high && image.high < limits.high))
      throw NoIntegerForm("its values, " + std::to_string(x.range.low) + " to " +
                          std::to_string(x.range.high) + ", cannot be rescaled by " +
                          std::to_string(ratios[c]) + " without overflow");
  }
  const ValueId id = bounded_by_channel(x, defined);
  ValueRange range{limits.high, limits.low};
  for (std::size_t c = 0; c < ratios.size(); ++c)
    range = united(range, clipped(image_of(attrs.rescale, c, defined[c]), limits));
  const ValueId made = emit(Op::kRescale, attrs, {id});
  Real out{x.shape ? reshape(made, *x.shape) : made, {scale}, zero_point, range};
  out.undefined = x.undefined;
  const auto is_whole = [](double ratio) { return ratio == std::floor(ratio); };
  out.error = x.error + (std::all_of(ratios.begin(), ratios.end(), is_whole) ? 0 : scale / 2);
  return out;
}

Real IntegerLowering::widened(const Real& x) {
  const DType dtype = type(x.id).dtype;
  if (dtype == DType::kI32 && x.zero_point == 0) return x;
  if (dtype == DType::kI48) throw NoIntegerForm("its sums have more than 32 bits");
  Real out = x;
  if (x.zero_point == 0) {
    out.id = cast(x.id, DType::kI32);
    return out;
  }
  Real unscaled = x;  // the scales do not change, so all channels are multiplied by 1
  unscaled.scales = {1.0};
  unscaled.axis.reset();
  out.id = rescaled(unscaled, DType::kI32, 1.0).id;
  out.zero_point = 0;
  out.range = x.centred();
  return out;
}

Real IntegerLowering::within_bits(const Real& x, int bits) {
  if (x.zero_point == 0 && x.magnitude() <= (std::int64_t{1} << bits)) return x;
  const double ratio = std::ldexp(static_cast<double>(x.magnitude()), -bits);
  return rescaled(x, DType::kI32, x.scale() * std::max(1.0, ratio));
}

ValueId IntegerLowering::store(const Real& x, const QParams& to) {
  if (type(x.id).dtype == DType::kI8 && to.storage == DType::kI8 && !x.axis)
    if (const std::optional<ValueId> exact = requantized_bytes(x, to)) return *exact;
  const Real y = rescaled(x, to.storage, to.scales.front(), to.zero_points.front());
  return bounded(y.id, y.range, {to.qmin, to.qmax});
}

// A TABLE of what dequantize and quantize compute for each byte, if multiplier and shift round otherwise.
std::optional<ValueId> IntegerLowering::requantized_bytes(const Real& x, const QParams& to) {
  const float inverse = inverse_scale(to.scales.front());
  const auto exact = [&](std::int64_t q) {
    const float real = dequantize_value(q, x.scale(), x.zero_point);
    return bound_quantized(quantize_unbounded(real, inverse, to.zero_points.front()), to.qmin, to.qmax);
  };
  const auto by_multiplier = [&] {
    const double ratio[] = {x.scale() / to.scales.front()};
    if (ratio[0] >= 0x1p28) return false;  // rescaled() caps such ratios; a table has any value
    const TosaRescaleAttrs attrs =
        quant::plan_rescale({DType::kI8, x.zero_point}, {DType::kI8, to.zero_points.front()}, ratio,
                            {.rounding_mode = rules_.rounding_mode});
    for (std::int64_t q = x.range.low; q <= x.range.high; ++q) {
      const ValueRange image = clipped(image_of(attrs, 0, {q, q}), {to.qmin, to.qmax});
      if (!quant::defined_inputs(attrs, 0).contains(q) || image.low != exact(q)) return false;
    }
    return true;
  };
  if (by_multiplier()) return std::nullopt;
  std::vector<std::int64_t> entries;
  for (std::int64_t q = -128; q < 128; ++q) entries.push_back(exact(q));
  return emit(Op::kTosaTable, NoAttrs{}, {x.id, constant(DType::kI8, {256}, entries)});
}

ValueId IntegerLowering::requantize(const Real& x, const QParams& to) {
  const bool same = x.scale() == to.scales.front() && x.zero_point == to.zero_points.front() && !x.axis;
  if (same && type(x.id).dtype == to.storage) return bounded(x.id, x.range, {to.qmin, to.qmax});
  return store(x, to);
}

ValueId IntegerLowering::quantized_constant(std::size_t i, const QParams& to) {
  const std::vector<double> real = numbers(i);
  std::vector<float> values(real.begin(), real.end());
  const Shape& shape = operand_type(i).shape;
  auto out = std::make_shared<Constant>();
  out->name = name_ + ".quantized";
  out->kind = ConstantKind::kFolded;
  out->dtype = to.storage;
  out->shape = shape;
  out->storage = quant::quantize(values, shape, to).storage;
  const ValueId id = out_.add_constant(std::move(out));
  out_.set_qparams(id, std::make_shared<const QParams>(to));
  return id;
}

ConstantRef IntegerLowering::evaluate(const std::vector<ConstantRef>& operands,
                                      const std::vector<const QParams*>& labels) const {
  return evaluated(operands, labels, nullptr);
}

ConstantRef IntegerLowering::evaluate_stored(const std::vector<ConstantRef>& operands,
                                             const std::vector<const QParams*>& labels) const {
  if (!target_) return evaluate(operands, labels);
  const QParams& label = *result_type().qparams;
  const std::int64_t offset = carried_offset(label.storage);
  const QParams* const stored = node_->op == Op::kQuantize ? nullptr : offset != 0 ? &label : &*target_;
  const ConstantRef made = evaluated(operands, labels, stored);
  return target_->storage == made->dtype ? made : recoded(*made, target_->storage, -offset);
}

namespace {

// Runs a graph that has only constants and returns the value `result`.
ConstantRef folded_result(Graph& graph, ValueId result) {
  graph.add_output(
      {.value = result, .kind = OutputKind::kUser, .path = "out", .mutated_input = 0, .border = {}});
  std::optional<Graph> simple = expand_composites(
      graph, [](const Graph&, const Node& node) { return info(node.op).runs_as_expansion(); });
  std::optional<Graph> folded = fold_constants(simple ? *simple : graph);
  if (!folded) throw NoIntegerForm("it could not be tabulated");
  const ConstantRef& constant = folded->value(folded->outputs().front().value).constant;
  if (!constant) throw NoIntegerForm("it could not be tabulated");
  return constant;
}

}  // namespace

ConstantRef IntegerLowering::evaluated(const std::vector<ConstantRef>& operands,
                                       const std::vector<const QParams*>& labels,
                                       const QParams* stored) const {
  Graph graph;
  std::vector<ValueId> ids;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    ValueId id;
    if (operands[i]) {
      id = graph.add_constant(operands[i]);
      if (labels[i] != nullptr)
        id = graph.add(Op::kDequantize, attrs_of_qparams<DequantizeAttrs>(number_dtype(i), *labels[i]),
                       std::span(&id, 1), nullptr);
    }
    ids.push_back(id);
  }
  ValueId result = graph.add(node_->op, *node_->attrs, ids, nullptr);
  if (stored != nullptr)
    result = graph.add(Op::kQuantize, attrs_of_qparams<QuantizeAttrs>(stored->storage, *stored),
                       std::span(&result, 1), nullptr);
  return folded_result(graph, result);
}

namespace {

// True for elementwise operators; of casts, only for those to f32 and bool, since the function is evaluated
// in f32.
bool is_function(const Node& node) {
  const OpInfo& row = info(node.op);
  if (is_foreign(node.op) || !row.has(kElementwise) || row.is_tosa || node.result_count != 1) return false;
  if (node.op == Op::kQuantize || node.op == Op::kDequantize) return false;
  if (node.op != Op::kCast) return true;
  const DType to = Graph::attrs<CastAttrs>(node).dtype;
  return to == DType::kF32 || to == DType::kBool;
}

}  // namespace

std::vector<ValueId> IntegerLowering::deciding_values() const {
  constexpr int kFarthest = 32;  // nodes; longer chains are seldom smooth functions
  std::vector<ValueId> out;
  std::map<std::size_t, ValueId> open;  // values that the result depends on, in the order of the graph
  const auto explain = [&](const Node& node) {
    for (const ValueId id : source_->operands(node)) {
      if (!id.valid()) continue;
      const Value& value = source_->value(id);
      if (value.kind != ValueKind::kConstant) {
        open.emplace(id.index(), id);
      } else if (num_elements(value.type.shape) != 1 || !value.constant->storage.bound() ||
                 (value.type.qparams && value.type.qparams->axis)) {
        return false;
      }
    }
    return !open.empty();
  };
  if (!is_function(*node_) || !explain(*node_)) return out;
  for (int far = 0; far < kFarthest; ++far) {
    const ValueId last = open.rbegin()->second;
    const TensorType& type = source_->type(last);
    const bool has_integers = type.qparams || forms_[last.index()].real;
    if (far != 0 && open.size() == 1 && has_integers && type.shape == result_type().shape)
      out.push_back(last);
    const Node* const producer = source_->producer(last);
    if (type.qparams || producer == nullptr || !is_function(*producer)) break;
    open.erase(last.index());
    if (!explain(*producer)) break;
  }
  return out;
}

ConstantRef IntegerLowering::evaluate_from(ValueId variable, const ConstantRef& at) const {
  Graph graph;
  std::map<std::size_t, ValueId> made{{variable.index(), graph.add_constant(at)}};
  const std::function<ValueId(ValueId)> take = [&](ValueId id) -> ValueId {
    if (!id.valid()) return id;
    if (const auto known = made.find(id.index()); known != made.end()) return known->second;
    const Value& value = source_->value(id);
    ValueId out;
    if (value.kind == ValueKind::kConstant) {
      auto one = std::make_shared<Constant>(*value.constant);
      one->shape = {1};
      out = graph.add_constant(is_float(one->dtype) ? converted(one, DType::kF32) : one);
      if (const QParams* const label = value.type.qparams.get())
        out = graph.add(Op::kDequantize, attrs_of_qparams<DequantizeAttrs>(DType::kF32, *label),
                        std::span(&out, 1), nullptr);
    } else {
      const Node& node = *source_->producer(id);
      std::vector<ValueId> operands;
      for (const ValueId operand : source_->operands(node)) operands.push_back(take(operand));
      out = graph.add(node.op, *node.attrs, operands, nullptr);
    }
    made.emplace(id.index(), out);
    return out;
  };
  return folded_result(graph, take(source_->result(*node_)));
}

// ---- the walk ----

void IntegerLowering::lower(const Node& node) {
  node_ = &node;
  origin_ = node.origin;
  name_ = source_->node_name(node);
  if (node.op == Op::kQuantize || node.op == Op::kDequantize) return keep_border(node);
  if (computes_with_integers(node)) return lower_foreign(node);
  if (runs_on_integers(*source_, node)) return keep(node);
  if (computes_dequantized(*source_, node) || continues(node) || counts(node)) return lower_numbers(node);
  keep(node);
}

// True for a cast of bools or integers whose result may be scaled integers. For 32 and 64 bits, goal() has to
// bound the integers.
bool IntegerLowering::counts(const Node& node) {
  if (node.op != Op::kCast) return false;
  const Value& from = source_->value(source_->operands(node)[0]);
  if (is_float(from.type.dtype) || from.kind == ValueKind::kConstant || !may_be_real(source_->result(node)))
    return false;
  target_.reset();
  return byte_size(from.type.dtype) < 4 || goal();
}

// True if scaled integers may replace a float: all readers quantize it in the end, or the target has no
// floats.
bool IntegerLowering::may_be_real(ValueId id) const {
  return stands_for_number(source_->type(id).dtype) &&
         (!rules_.float_arithmetic || ends_quantized_[id.index()]);
}

// True for an operator whose float operands are Reals, FunctionTables or constants (not all), and whose float
// results may be scaled integers.
bool IntegerLowering::continues(const Node& node) const {
  if (is_foreign(node.op) || !node.regions.empty() || info(node.op).has(kEffect)) return false;
  bool any = false;
  for (const ValueId id : source_->operands(node)) {
    if (!id.valid() || !is_float(source_->type(id).dtype)) continue;
    const bool real = forms_[id.index()].real || forms_[id.index()].table;
    if (!real && source_->value(id).kind != ValueKind::kConstant) return false;
    any = any || real;
  }
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = source_->result(node, r);
    if (is_float(source_->type(result).dtype) && !may_be_real(result)) return false;
  }
  return any;
}

bool IntegerLowering::ends_in_integers(const Node& node) const {
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = source_->result(node, r);
    if (!source_->type(result).qparams && !may_be_real(result)) return false;
  }
  return true;
}

// Sets ends_quantized_, by value: every reader quantizes the value, at once or after other operators.
void IntegerLowering::find_ends() {
  ends_quantized_.assign(source_->values().size(), true);
  for (const Output& output : source_->outputs()) ends_quantized_[output.value.index()] = false;
  const std::span<const Node> nodes = source_->nodes();
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const Node& node = nodes[n];
    if (node.op == Op::kQuantize && !Graph::attrs<QuantizeAttrs>(node).axis) continue;
    bool ends = !is_foreign(node.op) && node.regions.empty() && node.op != Op::kQuantize;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = source_->result(node, r);
      const TensorType& type = source_->type(result);
      ends = ends && (type.qparams || (is_float(type.dtype) ? ends_quantized_[result.index()] : true));
    }
    if (ends) continue;
    for (const ValueId id : source_->operands(node))
      if (id.valid()) ends_quantized_[id.index()] = false;
  }
}

// The result types without qparams; quantized results are f32.
std::vector<TensorType> IntegerLowering::float_types(const Node& node) const {
  std::vector<TensorType> types;
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    TensorType type = source_->type(source_->result(node, r));
    if (type.qparams) type.dtype = DType::kF32;
    type.qparams = nullptr;
    types.push_back(std::move(type));
  }
  return types;
}

void IntegerLowering::keep(const Node& node) {
  std::vector<ValueId> operands;
  for (const ValueId id : source_->operands(node)) operands.push_back(mapped(id));
  std::vector<TensorType> types;
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    TensorType result = source_->type(source_->result(node, r));
    if (const std::optional<QParams> label = result.qparams ? carried(*result.qparams) : std::nullopt) {
      result.dtype = label->storage;
      result.qparams = std::make_shared<const QParams>(*label);
    }
    types.push_back(std::move(result));
  }
  const NodeId made = out_.add_node(node.op, node.attrs, operands, types, node.origin, name_,
                                    Graph::regions_at(node, Stage::kInteger));
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    forms_[node.first_result + r].id = out_.result(out_.node(made), r);
    out_.try_rename(forms_[node.first_result + r].id, source_->values()[node.first_result + r].name);
  }
}

// Lowers a quantize or dequantize node, with qparams in signed form. dequantize uses the node's own scale and
// zero point, even if the value's qparams differ.
//
//   dequantize   becomes a Real; stays if there is no signed form, or per-channel scales of a non-constant
//   quantize     rounds a Real or tabulates a FunctionTable; stays over other floats
void IntegerLowering::keep_border(const Node& node) {
  const ValueId integers = node.op == Op::kQuantize ? source_->result(node) : source_->operands(node)[0];
  const QParamsRef& label = source_->type(integers).qparams;
  const bool is_carried = label && carried(*label);
  const DType storage = source_->type(integers).dtype;
  const ValueId from = source_->operands(node)[0];
  const auto signed_attrs = [&](auto attrs) {
    if (!is_carried) return attrs;
    const std::int64_t offset = carried_offset(storage);
    attrs.qmin -= offset;
    attrs.qmax -= offset;
    for (std::int64_t& zero_point : attrs.zero_points) zero_point -= offset;
    return attrs;
  };
  ValueId& made = forms_[node.first_result].id;
  if (node.op == Op::kDequantize) {
    const auto& attrs = Graph::attrs<DequantizeAttrs>(node);
    std::optional<QParams> read;
    if (is_carried)
      read = carried({storage, label->qmin, label->qmax, attrs.axis, attrs.scales, attrs.zero_points});
    const bool is_weight = attrs.axis && source_->value(from).kind == ValueKind::kConstant;
    if (read && stands_for_number(attrs.dtype) && (!attrs.axis || is_weight)) {
      // the node is added by mapped() if a reader needs the float
      if (const std::optional<Real> real = stored_as(mapped(from), *read)) {
        forms_[node.first_result].real = real;
        return;
      }
    }
    if (label && !read) note_left(node, "its operand is quantized in a way that no integer arithmetic has");
    const ValueId operands[] = {mapped(from)};
    made = out_.add(Op::kDequantize, signed_attrs(attrs), operands, node.origin, name_);
    return;
  }
  if (const std::optional<Real> real = forms_[from.index()].real; real && is_carried && !label->axis) {
    target_ = carried(*label);
    give(node, 0, *real);
    return;
  }
  if (is_carried && !label->axis && reads_table(node) && lower_tables(node)) return;
  QuantizeAttrs attrs = signed_attrs(Graph::attrs<QuantizeAttrs>(node));
  if (is_carried) attrs.dtype = carried(*label)->storage;
  const ValueId operands[] = {mapped(from)};
  made = out_.add(Op::kQuantize, attrs, operands, node.origin, name_);
  if (label) out_.set_qparams(made, is_carried ? std::make_shared<const QParams>(*carried(*label)) : label);
}

void IntegerLowering::lower_numbers(const Node& node) {
  if (reads_table(node) && lower_tables(node)) return;
  try {
    for (const ValueId id : source_->operands(node))
      if (id.valid() && is_float(source_->type(id).dtype) && !source_->type(id).qparams &&
          !forms_[id.index()].real && source_->value(id).kind != ValueKind::kConstant)
        throw NoIntegerForm("operand '" + source_->value(id).name + "' is a float");
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const TensorType& type = source_->type(source_->result(node, r));
      const std::string& result = source_->value(source_->result(node, r)).name;
      if (!type.qparams && is_float(type.dtype) && !may_be_real(source_->result(node, r)))
        throw NoIntegerForm("result '" + result + "' is read as a float");
      if (!type.qparams) continue;
      const std::optional<QParams> label = carried(*type.qparams);
      if (!label)
        throw NoIntegerForm("result '" + result + "' is quantized in a way that no integer arithmetic has");
      if (label->axis) throw NoIntegerForm("result '" + result + "' is quantized by channel");
    }
    lower_somehow(node);
  } catch (const NoIntegerForm& why) {
    if (!defer(node, why.what()) && !(ends_in_integers(node) && lower_composed(node)))
      leave(node, why.what());
  } catch (const QuantMismatch& why) {
    if (!defer(node, why.parts().what)) leave(node, why.parts().what);
  }
}

bool IntegerLowering::reads_table(const Node& node) const {
  const std::span<const ValueId> operands = source_->operands(node);
  return std::any_of(operands.begin(), operands.end(),
                     [&](ValueId id) { return id.valid() && forms_[id.index()].table != nullptr; });
}

const FunctionTable* IntegerLowering::table(std::size_t i) {
  const ValueId id = operand(i);
  Form& form = forms_[id.index()];
  if (form.table) return form.table.get();
  const Node* const producer = source_->producer(id);
  if (std::exchange(form.asked, true) || producer == nullptr || producer->result_count != 1 ||
      source_->type(id).qparams)
    return form.composed.get();
  const Node* const node = std::exchange(node_, producer);
  const std::optional<QParams> target = std::exchange(target_, std::nullopt);
  try {
    if (std::optional<FunctionTable> made = function_table(*this))
      form.composed = std::make_shared<const FunctionTable>(std::move(*made));
  } catch (const NoIntegerForm&) {
    form.composed = nullptr;
  }
  node_ = node;
  target_ = target;
  return form.composed.get();
}

// Lowers a node that reads FunctionTables: to another FunctionTable, or to a table if the result is quantized
// or a bool. False if it cannot.
bool IntegerLowering::lower_tables(const Node& node) {
  if (node.result_count != 1) return false;
  const QParamsRef& label = result_type().qparams;
  if (!label && is_float(result_type().dtype)) return defer(node, "");
  target_ = label ? carried(*label) : std::nullopt;
  if (label && (!target_ || label->axis)) return false;
  try {
    const std::optional<Lowered> made = tabulated_composition(*this);
    if (made) give(node, 0, *made);
    return made.has_value();
  } catch (const NoIntegerForm&) {
    return false;
  }
}

// Stores a float result as a FunctionTable for its readers, instead of adding a node. False if it is no such
// function. `reason`: why no rule could lower it.
bool IntegerLowering::defer(const Node& node, const std::string& reason) {
  if (node.result_count != 1) return false;
  const ValueId result = source_->result(node);
  if (source_->type(result).qparams || !may_be_real(result)) return false;
  target_.reset();
  try {
    std::optional<FunctionTable> table = function_table(*this);
    if (!table) return false;
    Form& form = forms_[result.index()];
    form.table = std::make_shared<const FunctionTable>(std::move(*table));
    form.left = &node;
    form.reason = reason;
    return true;
  } catch (const NoIntegerForm&) {
    return false;
  }
}

// Adds the deferred node over floats, because a reader needs its float.
void IntegerLowering::leave_deferred(const Form& form) {
  const Node* const node = std::exchange(node_, nullptr);
  const OriginRef origin = origin_;
  const std::string name = name_;
  const std::optional<QParams> target = target_;
  leave(*form.left, form.reason);
  node_ = node;
  origin_ = origin;
  name_ = name;
  target_ = target;
}

// Lowers a node by its rule or else by the rules of its parts; throws NoIntegerForm if neither works.
void IntegerLowering::lower_somehow(const Node& node) {
  std::optional<NoIntegerForm> first;
  try {
    if (lower_by_rule(node)) return;
  } catch (const NoIntegerForm& why) {
    first = why;
  }
  try {
    if (lower_expanded(node)) return;
  } catch (const NoIntegerForm& why) {
    if (!first) throw;
    throw NoIntegerForm(std::string(first->what()) + "; expanded, " + why.what());
  }
  if (first) throw NoIntegerForm(*first);
  throw NoIntegerForm("there is no integer arithmetic for '" + std::string(info(node.op).name) + "'");
}

// Lowers an operator, if its rule cannot, as a smooth function of an upstream value.
bool IntegerLowering::lower_composed(const Node& node) {
  if (node.result_count != 1) return false;
  const TensorType& type = result_type();
  target_ = type.qparams ? carried(*type.qparams) : std::nullopt;
  if (type.qparams ? !target_ || target_->axis : !stands_for_number(type.dtype)) return false;
  const std::optional<Lowered> made = smooth_composition(*this);
  if (made) give(node, 0, *made);
  return made.has_value();
}

void IntegerLowering::note_left(const Node& node, const std::string& reason) {
  left_.push_back(located({.where = "lower-to-integer",
                           .what = "'" + std::string(info(node.op).name) + "' is left to floats: " + reason},
                          node.origin, source_->node_name(node)));
}

void IntegerLowering::leave(const Node& node, const std::string& reason) {
  node_ = &node;
  origin_ = node.origin;
  name_ = source_->node_name(node);
  std::vector<ValueId> operands;
  for (const ValueId id : source_->operands(node)) operands.push_back(as_float(id));
  if (!reason.empty()) note_left(node, reason);
  const NodeId made = out_.add_node(node.op, node.attrs, operands, float_types(node), node.origin, name_,
                                    Graph::regions_at(node, Stage::kInteger));
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = source_->result(node, r);
    const QParamsRef& label = source_->type(result).qparams;
    ValueId id = out_.result(out_.node(made), r);
    if (label) {
      const QParams stored = carried(*label).value_or(*label);
      out_.try_rename(id, source_->value(result).name + "_unrounded");
      id = out_.add(Op::kQuantize, attrs_of_qparams<QuantizeAttrs>(stored.storage, stored), std::span(&id, 1),
                    node.origin, source_->value(result).name);
      out_.set_qparams(id, std::make_shared<const QParams>(stored));
    }
    forms_[result.index()].id = id;
  }
}

}  // namespace tosaic::passes
