// The reference of contractions: plain loops that follow the definitions of the operators.
#include "tosaic/kernels/gemm/contraction.h"

namespace tosaic::kernels {
namespace {

// Floats are summed in double. Integers are summed in 64 bits and wrap.
double multiply_add(double sum, double a, double b) { return sum + a * b; }
std::int64_t multiply_add(std::int64_t sum, std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) +
                                   static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

// The strides of a tensor of (batch, channel, d, h, w), with channels first or last.
struct Layout {
  Index batch, channel;
  Spatial axis;
};
Layout layout_of(const Spatial& extent, Index channels, bool channels_last) {
  const Index pixels = extent[0] * extent[1] * extent[2];
  if (channels_last)
    return {pixels * channels, 1, {extent[1] * extent[2] * channels, extent[2] * channels, channels}};
  return {pixels * channels, pixels, {extent[1] * extent[2], extent[2], 1}};
}

// The sum of one result element over taps and channels.
template <class T>
T element(const Convolution& conv, const Layout& layout, const T* image, const T* weight, const Spatial& at,
          T sum) {
  for (Index d = 0; d < conv.taps[0]; ++d) {
    const Index z = conv.input_at(0, at[0], d);
    if (z < 0 || z >= conv.in[0]) continue;
    for (Index h = 0; h < conv.taps[1]; ++h) {
      const Index y = conv.input_at(1, at[1], h);
      if (y < 0 || y >= conv.in[1]) continue;
      for (Index w = 0; w < conv.taps[2]; ++w) {
        const Index x = conv.input_at(2, at[2], w);
        if (x < 0 || x >= conv.in[2]) continue;
        const T* from = image + z * layout.axis[0] + y * layout.axis[1] + x * layout.axis[2];
        const T* tap = weight + d * conv.weight_tap[0] + h * conv.weight_tap[1] + w * conv.weight_tap[2];
        for (Index c = 0; c < conv.group_in(); ++c)
          sum = multiply_add(sum, from[c * layout.channel], tap[c * conv.weight_in]);
      }
    }
  }
  return sum;
}

template <class T>
void convolve(const Convolution& conv, const CoreOperands<T>& operands, T* result) {
  const Layout in = layout_of(conv.in, conv.in_channels, conv.channels_last);
  const Layout out = layout_of(conv.out, conv.out_channels, conv.channels_last);
  for (Index n = 0; n < conv.batch; ++n)
    for (Index d = 0; d < conv.out[0]; ++d)
      for (Index h = 0; h < conv.out[1]; ++h)
        for (Index w = 0; w < conv.out[2]; ++w)
          for (Index o = 0; o < conv.out_channels; ++o) {
            const Index group = o / conv.group_out();
            const T* image = operands.left + n * in.batch + group * conv.group_in() * in.channel;
            const T* weight =
                operands.right + group * conv.weight_group + o % conv.group_out() * conv.weight_out;
            const T bias = conv.has_bias ? operands.third[o * conv.bias_stride] : T{};
            result[n * out.batch + o * out.channel + d * out.axis[0] + h * out.axis[1] + w * out.axis[2]] =
                element(conv, in, image, weight, {d, h, w}, bias);
          }
}

double scalar(const Scalar& value, double) { return as_double(value); }
std::int64_t scalar(const Scalar& value, std::int64_t) { return as_int(value); }

template <class T>
void multiply(const Product& p, const CoreOperands<T>& operands, T* result) {
  const T alpha = scalar(p.alpha, T{});
  const T beta = scalar(p.beta, T{});
  for (const Product::Batch& batch : p.batches) {
    for (Index i = 0; i < p.rows; ++i) {
      const T* a = operands.left + batch.a + i * p.a_row;
      for (Index j = 0; j < p.cols; ++j) {
        const T* b = operands.right + batch.b + j * p.b_col;
        T sum = p.has_bias ? operands.third[j] : T{};
        for (Index k = 0; k < p.depth; ++k) sum = multiply_add(sum, a[k], b[k * p.b_depth]);
        if (p.has_input) {
          const T addend =
              beta == T{}
                  ? T{}
                  : operands.third[batch.input + i * p.input_row + j * p.input_col];  // beta 0 ignores NaN
          sum = multiply_add(multiply_add(T{}, alpha, sum), beta, addend);
        }
        *result++ = sum;
      }
    }
  }
}

template <class T, class Problem>
Core<T> reference(const char* name, const Problem& problem,
                  void (*compute)(const Problem&, const CoreOperands<T>&, T*)) {
  Core<T> core;
  core.run = [problem, compute](const CoreOperands<T>& operands, std::byte* result, const Workspace&) {
    compute(problem, operands, reinterpret_cast<T*>(result));
  };
  core.name = name;
  return core;
}

}  // namespace

Index Convolution::input_at(std::size_t axis, Index at, Index tap) const {
  if (!transposed) return at * step[axis] + tap * dilation[axis] - pad[axis];
  const Index scaled = at + pad[axis] - tap * dilation[axis];
  return scaled < 0 || scaled % step[axis] != 0 ? -1 : scaled / step[axis];
}

template <class T>
Core<T> reference_convolution(const Convolution& conv) {
  return reference<T>("conv.reference", conv, convolve<T>);
}

template <class T>
Core<T> reference_product(const Product& product) {
  return reference<T>("matmul.reference", product, multiply<T>);
}

template Core<double> reference_convolution(const Convolution&);
template Core<std::int64_t> reference_convolution(const Convolution&);
template Core<double> reference_product(const Product&);
template Core<std::int64_t> reference_product(const Product&);

}  // namespace tosaic::kernels
