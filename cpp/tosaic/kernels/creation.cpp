#include "tosaic/kernels/creation.h"

#include <algorithm>
#include <cstring>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

bool is_real(const Scalar& value) { return std::holds_alternative<double>(value); }

// Element i is start + i * step. As in torch, it is computed in double for float dtypes and in 64-bit
// integers for the others.
Kernel arange(const Request& request) {
  const auto& attrs = attrs_of<ArangeAttrs>(request);
  const Operand& result = request.results[0];
  const int64_t count = num_elements(result.shape);
  const bool real = is_float(result.dtype);
  const ConvertBlock store =
      convert_kernels(Isa::kBaseline)
          .store(real ? Domain::kF64 : Domain::kI64, result.dtype, Rounding::kTruncate);
  const auto bytes = static_cast<int64_t>(byte_size(result.dtype));
  const double start = as_double(attrs.start);
  const double step = as_double(attrs.step);
  const int64_t first = as_int(attrs.start);
  const int64_t stride = as_int(attrs.step);
  Kernel kernel;
  kernel.run = [=](const Arrays& arrays) {
    for (int64_t i = 0; i < count; ++i) {
      const double value = start + static_cast<double>(i) * step;
      const int64_t whole = first + i * stride;
      store(real ? static_cast<const void*>(&value) : &whole, arrays.results[0] + i * bytes, 1);
    }
  };
  return kernel;
}

Kernel full(const Request& request) {
  const Operand& result = request.results[0];
  const std::vector<std::byte> element = scalar_bytes(attrs_of<FullAttrs>(request).value, result.dtype);
  const int64_t count = num_elements(result.shape);
  Kernel kernel;
  kernel.run = [element, count](const Arrays& arrays) { fill_elements(arrays.results[0], element, count); };
  return kernel;
}

template <class T>
void fill_as(std::byte* to, std::span<const std::byte> element, int64_t count) {
  T value;
  std::memcpy(&value, element.data(), sizeof value);
  std::fill_n(reinterpret_cast<T*>(to), count, value);
}

}  // namespace

std::vector<std::byte> scalar_bytes(const Scalar& value, DType dtype) {
  std::vector<std::byte> element(byte_size(dtype));
  const bool real = is_real(value) || is_float(dtype);
  const double number = as_double(value);
  const int64_t whole = as_int(value);
  const Domain domain = real ? Domain::kF64 : Domain::kI64;
  convert_kernels(Isa::kBaseline)
      .store(domain, dtype, Rounding::kTruncate)(real ? static_cast<const void*>(&number) : &whole,
                                                 element.data(), 1);
  return element;
}

void fill_elements(std::byte* to, std::span<const std::byte> element, int64_t count) {
  switch (element.size()) {
    case 1:
      return fill_as<std::uint8_t>(to, element, count);
    case 2:
      return fill_as<std::uint16_t>(to, element, count);
    case 4:
      return fill_as<std::uint32_t>(to, element, count);
    default:
      return fill_as<std::uint64_t>(to, element, count);
  }
}

Kernel prepare_arange(const Request& request) { return arange(request); }
Kernel prepare_full(const Request& request) { return full(request); }

}  // namespace tosaic::kernels
