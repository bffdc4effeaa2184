// The kernels of fft2, rfft2, tosa.fft2d and tosa.rfft2d. The transforms are not normalised:
//
//   forward  X[oy, ox] = sum over iy, ix of x[iy, ix] * exp(-2 pi i (iy oy / H + ix ox / W))
//   inverse  the same with +2 pi i
//
// Rows are transformed first, then columns. A transform of even length is split into two transforms (radix
// 2). A transform of odd length is computed by its definition. Numbers are double, and rounded once at the
// end. Factors at quarters of the circle are exact, so results that are zero by the definition are zero.
//
// An image with an infinite or NaN element is computed by the double sum above: products of such an element
// with zero are NaN, so separate sums over rows and columns have other results.
#include <cmath>
#include <numbers>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;
using std::size_t;

struct Complex {
  double real = 0, imag = 0;
};

Complex operator+(const Complex& a, const Complex& b) { return {a.real + b.real, a.imag + b.imag}; }
Complex operator-(const Complex& a, const Complex& b) { return {a.real - b.real, a.imag - b.imag}; }
Complex operator*(const Complex& a, const Complex& b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}

// exp(-2 pi i k / n) for k < n, exact at the quarters.
std::vector<Complex> circle(int64_t n) {
  std::vector<Complex> factors;
  factors.reserve(static_cast<size_t>(n));
  for (int64_t k = 0; k < n; ++k) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
    Complex factor{std::cos(angle), -std::sin(angle)};
    if (4 * k == n || 4 * k == 3 * n) factor.real = 0;
    if (2 * k == n) factor.imag = 0;
    factors.push_back(factor);
  }
  return factors;
}

struct Fourier {
  int64_t batches = 0, height = 0, width = 0;
  int64_t columns = 0;  // columns of the result
  bool complex_input = false;
  bool inverse = false;
  std::vector<Complex> of_height, of_width;
};

// Transforms n elements, which are `stride` apart in `from`. Writes the results to `to`, without gaps.
void transform(const Complex* from, int64_t stride, Complex* to, int64_t n, const Complex* factors,
               int64_t factor_stride) {
  if (n % 2 != 0) {
    for (int64_t k = 0; k < n; ++k) {
      to[k] = *from;
      for (int64_t j = 1; j < n; ++j) to[k] = to[k] + from[j * stride] * factors[j * k % n * factor_stride];
    }
    return;
  }
  const int64_t half = n / 2;
  transform(from, 2 * stride, to, half, factors, 2 * factor_stride);
  transform(from + stride, 2 * stride, to + half, half, factors, 2 * factor_stride);
  for (int64_t k = 0; k < half; ++k) {
    const Complex even = to[k];
    const Complex odd = to[half + k] * factors[k * factor_stride];
    to[k] = even + odd;
    to[half + k] = even - odd;
  }
}

// Exchanges real and imaginary part. The inverse transform is the forward transform with exchanged inputs and
// exchanged results.
Complex exchanged(const Complex& value) { return {value.imag, value.real}; }

// The scratch of a run: an H x W image; its transformed rows, which then become the result; one column.
struct Images {
  std::span<Complex> image, result, column;
};

void transform_separately(const Fourier& plan, const Images& images) {
  for (int64_t y = 0; y < plan.height; ++y)
    transform(&images.image[static_cast<size_t>(y * plan.width)], 1,
              &images.result[static_cast<size_t>(y * plan.width)], plan.width, plan.of_width.data(), 1);
  for (int64_t x = 0; x < plan.width; ++x) {
    transform(&images.result[static_cast<size_t>(x)], plan.width, images.column.data(), plan.height,
              plan.of_height.data(), 1);
    for (int64_t y = 0; y < plan.height; ++y)
      images.result[static_cast<size_t>(y * plan.width + x)] = images.column[static_cast<size_t>(y)];
  }
}

// One result by the definition. For a real input, a term has no sine if its angles on both axes are multiples
// of half the circle: that sine is exactly zero, also times infinity.
Complex defined_sum(const Fourier& plan, std::span<const Complex> image, int64_t oy, int64_t ox) {
  Complex sum;
  for (int64_t iy = 0; iy < plan.height; ++iy)
    for (int64_t ix = 0; ix < plan.width; ++ix) {
      const Complex& value = image[static_cast<size_t>(iy * plan.width + ix)];
      const int64_t ay = iy * oy % plan.height, ax = ix * ox % plan.width;
      const double turns = static_cast<double>(ay) / static_cast<double>(plan.height) +
                           static_cast<double>(ax) / static_cast<double>(plan.width);
      const double angle = (plan.inverse ? -2 : 2) * std::numbers::pi * turns;
      sum.real += value.real * std::cos(angle);
      if (plan.complex_input) {
        sum.real += value.imag * std::sin(angle);
        sum.imag += value.imag * std::cos(angle);
      }
      const bool has_sine = plan.complex_input || 2 * ay % plan.height != 0 || 2 * ax % plan.width != 0;
      if (has_sine) sum.imag -= value.real * std::sin(angle);
    }
  return sum;
}

bool all_finite(std::span<const Complex> image) {
  for (const Complex& value : image)
    if (!std::isfinite(value.real) || !std::isfinite(value.imag)) return false;
  return true;
}

void run_image(const Fourier& plan, const Images& images) {
  if (!all_finite(images.image)) {
    for (int64_t y = 0; y < plan.height; ++y)
      for (int64_t x = 0; x < plan.columns; ++x)
        images.result[static_cast<size_t>(y * plan.width + x)] = defined_sum(plan, images.image, y, x);
    return;
  }
  if (plan.inverse)
    for (Complex& value : images.image) value = exchanged(value);
  transform_separately(plan, images);
  if (plan.inverse)
    for (Complex& value : images.result) value = exchanged(value);
}

size_t elements_of(const Fourier& plan) { return static_cast<size_t>(plan.height * plan.width); }

size_t scratch_elements(const Fourier& plan) {
  return 2 * elements_of(plan) + static_cast<size_t>(plan.height);
}

void run_fourier(const Fourier& plan, DType dtype, const Arrays& arrays) {
  const auto bytes = static_cast<int64_t>(byte_size(dtype));
  const size_t elements = elements_of(plan);
  const std::span scratch(reinterpret_cast<Complex*>(arrays.scratch), scratch_elements(plan));
  const Images images{scratch.first(elements), scratch.subspan(elements, elements),
                      scratch.subspan(2 * elements)};
  for (int64_t n = 0; n < plan.batches; ++n) {
    for (size_t i = 0; i < elements; ++i) {
      const int64_t at = (n * static_cast<int64_t>(elements) + static_cast<int64_t>(i)) * bytes;
      images.image[i] = {load_element(dtype, arrays.operands[0] + at),
                         plan.complex_input ? load_element(dtype, arrays.operands[1] + at) : 0};
    }
    run_image(plan, images);
    for (int64_t y = 0; y < plan.height; ++y)
      for (int64_t x = 0; x < plan.columns; ++x) {
        const Complex& value = images.result[static_cast<size_t>(y * plan.width + x)];
        const int64_t at = ((n * plan.height + y) * plan.columns + x) * bytes;
        store_element(dtype, arrays.results[0] + at, value.real);
        store_element(dtype, arrays.results[1] + at, value.imag);
      }
  }
}

}  // namespace

Kernel prepare_fourier(const Request& request) {
  const Shape& shape = request.operands[0].shape;
  Fourier plan;
  plan.height = shape[shape.size() - 2];
  plan.width = shape.back();
  plan.batches = num_elements(shape) / (plan.height * plan.width);
  plan.columns = request.results[0].shape.back();
  plan.complex_input = request.op == Op::kTosaFft2d || request.op == Op::kFft2;
  if (request.op == Op::kTosaFft2d) plan.inverse = attrs_of<TosaFftAttrs>(request).inverse;
  if (request.op == Op::kFft2) plan.inverse = attrs_of<FftAttrs>(request).inverse;
  plan.of_height = circle(plan.height);
  plan.of_width = circle(plan.width);
  Kernel kernel;
  kernel.scratch_bytes = scratch_elements(plan) * sizeof(Complex);
  kernel.name = std::string(info(request.op).name) + ".reference";
  kernel.run = [plan = std::make_shared<const Fourier>(std::move(plan)), dtype = request.operands[0].dtype](
                   const Arrays& arrays) { run_fourier(*plan, dtype, arrays); };
  return kernel;
}

}  // namespace tosaic::kernels
