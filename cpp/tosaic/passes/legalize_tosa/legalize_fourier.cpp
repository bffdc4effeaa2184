// Legalizes Fourier transforms over the last two axes.
//
//   fft2, rfft2  ->  tosa.fft2d, tosa.rfft2d   if the target has FFT and both extents are powers of two
//                ->  tosa.matmul per axis      otherwise, by the matrix of the definition:
//                                              exp(-2 pi i j k / n) = cos - i sin, at row j, column k
//
// The elements of the matrix are computed in double from the angle as a fraction of a full turn, and are
// exact at quarter turns.

#include <cmath>
#include <numbers>

#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {
namespace {

struct Complex {
  ValueId real, imag;  // imag is invalid if it is zero everywhere
};

bool is_power_of_two(std::int64_t extent) { return extent > 0 && (extent & (extent - 1)) == 0; }

// The matrix (1, n, columns) of cos or sin of 2 pi j k / n, at row j and column k.
ValueId factors(Legalizer& l, DType dtype, std::int64_t n, std::int64_t columns, bool sine) {
  std::vector<double> values;
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t k = 0; k < columns; ++k) {
      const std::int64_t turn = j * k % n;
      const std::int64_t quarters = 4 * turn;
      const double angle = 2 * std::numbers::pi * static_cast<double>(turn) / static_cast<double>(n);
      const bool zero = sine ? quarters % (2 * n) == 0 : quarters % (2 * n) == n;
      values.push_back(zero ? 0.0 : sine ? std::sin(angle) : std::cos(angle));
    }
  return l.constant(dtype, {1, n, columns}, values);
}

// The transform along the last axis of (batch, rows, n): the first `columns` of its n elements.
Complex transform_last(Legalizer& l, const Complex& x, std::int64_t columns, bool inverse) {
  const Shape shape = l.type(x.real).shape;
  const std::int64_t n = shape[2];
  if (n == 1) return x;
  const DType dtype = l.type(x.real).dtype;
  const ValueId cosines = factors(l, dtype, n, columns, false), sines = factors(l, dtype, n, columns, true);
  const Shape rows{1, shape[0] * shape[1], n}, result{shape[0], shape[1], columns};
  const auto times = [&](ValueId part, ValueId matrix) {
    return l.reshape(l.binary(Op::kTosaMatmul, l.reshape(part, rows), matrix), result);
  };
  // (re + i im) * (cos - i sin), with + for the inverse
  const ValueId real_sine = times(x.real, sines);
  const auto negated = [&l](ValueId value) { return l.unary(Op::kTosaNegate, value); };
  if (!x.imag.valid()) return {times(x.real, cosines), inverse ? real_sine : negated(real_sine)};
  const ValueId real_cosine = times(x.real, cosines), imag_cosine = times(x.imag, cosines);
  const ValueId imag_sine = times(x.imag, sines);
  const Op plus = inverse ? Op::kTosaSub : Op::kTosaAdd, minus = inverse ? Op::kTosaAdd : Op::kTosaSub;
  return {l.binary(plus, real_cosine, imag_sine), l.binary(minus, imag_cosine, real_sine)};
}

Complex transposed(Legalizer& l, const Complex& x) {
  return {l.transpose(x.real, {0, 2, 1}), x.imag.valid() ? l.transpose(x.imag, {0, 2, 1}) : ValueId()};
}

Complex by_matrices(Legalizer& l, const Complex& x, std::int64_t columns, bool inverse) {
  const std::int64_t height = l.type(x.real).shape[1];
  Complex y = transform_last(l, x, columns, inverse);
  if (height != 1) y = transposed(l, transform_last(l, transposed(l, y), height, inverse));
  if (!y.imag.valid())  // a real image of one element is its own transform; the imaginary part is 0
    y.imag = l.binary(Op::kTosaSub, y.real, y.real);
  return y;
}

}  // namespace

std::vector<Physical> legalize_fourier(Legalizer& l) {
  const bool complex_input = l.node().op == Op::kFft2;
  const bool inverse = complex_input && l.attrs<FftAttrs>().inverse;
  const Shape& shape = l.logical_type(0).shape;
  const Shape& result = l.result_type().shape;
  const std::int64_t height = shape[shape.size() - 2], width = shape.back();
  const Shape images{num_elements(shape) / (height * width), height, width};
  const Complex x{l.reshape(l.operand(0), images),
                  complex_input ? l.reshape(l.operand(1), images) : ValueId()};
  Complex y;
  if (l.target().has(target::Extension::kFft) && is_power_of_two(height) && is_power_of_two(width)) {
    TensorType type = l.type(x.real);
    type.shape[2] = result.back();
    const std::vector<ValueId> parts =
        complex_input
            ? l.emit_all(Op::kTosaFft2d, TosaFftAttrs{inverse, false}, {x.real, x.imag}, {type, type})
            : l.emit_all(Op::kTosaRfft2d, TosaRfftAttrs{}, {x.real}, {type, type});
    y = {parts[0], parts[1]};
  } else {
    y = by_matrices(l, x, result.back(), inverse);
  }
  return {{l.reshape(y.real, result), DimOrder()}, {l.reshape(y.imag, result), DimOrder()}};
}

}  // namespace tosaic::passes
