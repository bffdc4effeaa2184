#include "tosaic/passes/lower_to_integer/scaled_integer.h"

#include <bit>

namespace tosaic::passes {
namespace {

constexpr int kUnitBits = 29;

std::int64_t magnitude_of(ValueRange range) { return std::max(std::abs(range.low), std::abs(range.high)); }

// The signed dtype in which integer arithmetic stores quantized values whose qparams have dtype `storage`:
// u8 and i4 become i8, u16 becomes i16. Returns nothing if there is none.
std::optional<DType> signed_storage(DType storage) {
  if (storage == DType::kI4 || storage == DType::kI8 || storage == DType::kU8) return DType::kI8;
  if (storage == DType::kI16 || storage == DType::kU16) return DType::kI16;
  return storage == DType::kI32 ? std::optional(DType::kI32) : std::nullopt;
}

bool has_zero_point(DType storage, std::int64_t zero_point) {
  if (storage == DType::kI8) return zero_point >= -128 && zero_point <= 127;
  return zero_point == 0;
}

}  // namespace

std::int64_t ScaledInteger::magnitude() const { return magnitude_of(centred()); }

std::int64_t signed_offset(DType storage) {
  return storage == DType::kU8 ? 128 : storage == DType::kU16 ? 32768 : 0;
}

std::optional<QParams> signed_form(const QParams& qparams) {
  const std::optional<DType> storage = signed_storage(qparams.storage);
  if (!storage) return std::nullopt;
  QParams out = qparams;
  out.storage = *storage;
  const std::int64_t offset = signed_offset(qparams.storage);
  out.qmin -= offset;
  out.qmax -= offset;
  for (std::int64_t& zero_point : out.zero_points) {
    zero_point -= offset;
    if (!has_zero_point(out.storage, zero_point)) return std::nullopt;
  }
  return out;
}

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

double largest_number(const QParams& qparams) {
  const std::int64_t zero = qparams.zero_points.front();
  return static_cast<double>(magnitude_of({qparams.qmin - zero, qparams.qmax - zero})) *
         qparams.scales.front();
}

int bits_to(std::int64_t count) {
  return count <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
}

double unit_for(double size) { return size == 0 ? 1.0 : std::ldexp(1.0, std::ilogb(size) + 1 - kUnitBits); }

bool is_vague_near_zero(const ScaledInteger& x) {
  const auto least = static_cast<double>(std::max<std::int64_t>(x.centred().low, 0)) * x.scale();
  return x.error > std::ldexp(least, -17);
}

double hidden_below(double size) { return std::max(64.0, std::ldexp(size, -20)); }

std::int64_t least_in_unit(const ScaledInteger& x, double unit) {
  return std::llround(static_cast<double>(*x.minus_infinity) * x.scale() / unit) + 1;
}

}  // namespace tosaic::passes
