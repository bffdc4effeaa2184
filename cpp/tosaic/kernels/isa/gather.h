// How rows of A are gathered: rows of a matrix, or patches of an image. Only files of kernels/isa/ include
// this header.
#pragma once

#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/widen.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;

// as_factors() converts `count` elements of A to the factors that the product multiplies. The argument types
// select the overload of each form: a plain copy here, Pairs and Quads below.
template <class T>
[[gnu::always_inline]] inline void as_factors(T* to, const T* from, T, Index count) {
  copy(to, from, count);
}

// Widens kCount elements at a time. `count` is at least kCount. If it is not a multiple of kCount, the last
// vector overlaps the one before.
template <Index kCount>
[[gnu::always_inline]] inline void widen_by(std::int16_t* to, const std::int8_t* from,
                                            std::int16_t zero_point, Index count) {
  const auto widen_at = [&](Index at) {
    const auto wide = Widened<std::int8_t, std::int16_t, kCount>::load(from + at) - zero_point;
    __builtin_memcpy(to + at, &wide, sizeof wide);
  };
  Index i = 0;
  for (; i + 4 * kCount <= count; i += 4 * kCount)
#pragma GCC unroll 4
    for (Index j = 0; j < 4; ++j) widen_at(i + j * kCount);
  for (; i + kCount <= count; i += kCount) widen_at(i);
  if (i < count) widen_at(count - kCount);
}

[[gnu::always_inline]] inline void as_factors(std::int16_t* to, const std::int8_t* from,
                                              std::int16_t zero_point, Index count) {
  constexpr Index lanes = kLanes<std::int16_t>;
  if (count >= lanes) return widen_by<lanes>(to, from, zero_point, count);
  if (count >= 8) return widen_by<8>(to, from, zero_point, count);
  for (Index i = 0; i < count; ++i) to[i] = static_cast<std::int16_t>(from[i] - zero_point);
}

// XOR with this byte adds kQuadOffset to a byte: it flips the sign bit if kQuadOffset is 128.
constexpr auto kFlipped = static_cast<std::int8_t>(kQuadOffset);

// Flips `count` bytes by two words, which may overlap. Word has at least half of the bytes, at most all.
template <class Word>
[[gnu::always_inline]] inline void flip_ends(std::int8_t* to, const std::int8_t* from, Index count) {
  const Index last = count - static_cast<Index>(sizeof(Word));
  Word flipped, first_word, last_word;
  __builtin_memset(&flipped, kFlipped, sizeof(Word));
  __builtin_memcpy(&first_word, from, sizeof(Word));
  __builtin_memcpy(&last_word, from + last, sizeof(Word));
  first_word ^= flipped;
  last_word ^= flipped;
  __builtin_memcpy(to, &first_word, sizeof(Word));
  __builtin_memcpy(to + last, &last_word, sizeof(Word));
}

// Does the same as as_factors() for at most kShortRun bytes: a narrow store takes less time.
constexpr Index kShortRun = 16;
[[gnu::always_inline]] inline void short_factors(std::int8_t* to, const std::int8_t* from, Index count) {
#if TOSAIC_VECTOR_BYTES == 64
  const auto mask = static_cast<__mmask16>((1U << count) - 1);
  const __m128i bytes = _mm_xor_si128(_mm_maskz_loadu_epi8(mask, from), _mm_set1_epi8(kFlipped));
  __builtin_memcpy(to, &bytes, sizeof bytes);
#else
  if (count >= 8) return flip_ends<std::uint64_t>(to, from, count);
  if (count >= 4) return flip_ends<std::uint32_t>(to, from, count);
  for (Index i = 0; i < count; ++i) to[i] = static_cast<std::int8_t>(from[i] ^ kFlipped);
#endif
}

// Converts bytes to factors of quads. Whole vectors are written, also over bytes after the last element.
[[gnu::always_inline]] inline void as_factors(std::int8_t* to, const std::int8_t* from, std::int8_t,
                                              Index count) {
  constexpr Index lanes = kLanes<std::int8_t>;
  if (count <= kShortRun) return short_factors(to, from, count);
  const Vector<std::int8_t> sign = broadcast(kFlipped);  // a ^ 0x80 is a + 128
  Index i = 0;
  for (; i + lanes <= count; i += lanes) store(to + i, load(from + i) ^ sign);
  if (i == count) return;
#if TOSAIC_VECTOR_BYTES == 32
  // Without masks, the last vectors overlap the ones before.
  if (count >= lanes) return store(to + count - lanes, load(from + count - lanes) ^ sign);
  flip_ends<Vector<std::int8_t, 16>>(to, from, count);
#else
  store(to + i, load_bytes(from + i, count - i) ^ sign);
#endif
}

// Writes `count` factors of the padding.
template <class T>
[[gnu::always_inline]] inline void pad(T* to, T, Index count) {
  zero(to, count);
}
[[gnu::always_inline]] inline void pad(std::int8_t* to, std::int8_t zero_point, Index count) {
  const Vector<std::int8_t> value = broadcast(zero_point) ^ broadcast(kFlipped);
  for (Index i = 0; i < count; i += kLanes<std::int8_t>) store(to + i, value);
}

// Fills up the last step of a row. The bytes after a row of quads may have any value: they are multiplied by
// zeros.
template <class T>
[[gnu::always_inline]] inline void finish_step(Factor<T>* row, Index depth) {
  if constexpr (!kHasQuads<T>) zero(row + depth, whole_steps<T>(depth) - depth);
}

template <class T>
void gather_rows(const Source<T>* from, Index stride, Factor<T> zero_point, Index rows, Index depth,
                 Factor<T>* dst, Index dst_stride) {
  if (stride == depth && dst_stride == depth) return as_factors(dst, from, zero_point, rows * depth);
  for (Index i = 0; i < rows; ++i) {
    as_factors(dst + i * dst_stride, from + i * stride, zero_point, depth);
    finish_step<T>(dst + i * dst_stride, depth);
  }
}

// Gathers elements [from, to) of one row of taps along w, which has taps * channels elements.
template <class T>
[[gnu::always_inline]] inline void gather_run(const Patches<T>& patches, const Source<T>* line,
                                              Index position, Index from, Index to, Factor<T>* dst) {
  const Index channels = patches.channels;
  if (patches.row_is_contiguous) {
    const Index first = position + patches.offset[2][0];
    const Index below = first < 0 ? -first * channels : 0;
    const Index space = (patches.in[2] - first) * channels;
    const Index begin = below > from ? (below < to ? below : to) : from;
    const Index last = space < to ? space : to;
    const Index end = last > begin ? last : begin;
    pad(dst, patches.zero_point, begin - from);
    as_factors(dst + (begin - from), line + first * channels + begin, patches.zero_point, end - begin);
    pad(dst + (end - from), patches.zero_point, to - end);
    return;
  }
  while (from < to) {
    const Index tap = from / channels;
    const Index channel = from - tap * channels;
    const Index count = channels - channel < to - from ? channels - channel : to - from;
    const Index at = position + patches.offset[2][tap];
    if (at < 0 || at >= patches.in[2])
      pad(dst, patches.zero_point, count);
    else
      as_factors(dst, line + at * patches.stride[2] + channel, patches.zero_point, count);
    dst += count;
    from += count;
  }
}

template <class T>
void gather_row(const Patches<T>& patches, const Source<T>* image, const Index* position, Index from,
                Index to, Factor<T>* dst) {
  const Index run = patches.taps[2] * patches.channels;
  for (Index segment = from / run; segment * run < to; ++segment) {
    const Index begin = from > segment * run ? from - segment * run : 0;
    const Index end = to - segment * run < run ? to - segment * run : run;
    const Index d = position[0] + patches.offset[0][segment / patches.taps[1]];
    const Index h = position[1] + patches.offset[1][segment % patches.taps[1]];
    if (d < 0 || d >= patches.in[0] || h < 0 || h >= patches.in[1])
      pad(dst, patches.zero_point, end - begin);
    else
      gather_run(patches, image + d * patches.stride[0] + h * patches.stride[1], position[2], begin, end,
                 dst);
    dst += end - begin;
  }
}

// The lines of the image that one line of outputs reads: one for each tap along d and h, null if it is
// padding.
template <class T>
struct Lines {
  static constexpr Index kMost = 64;
  const Source<T>* from[kMost];
  Index count = 0;

  // `position` is the coordinate of the outputs before the taps are added; position[2] is not read.
  [[gnu::always_inline]] void find(const Patches<T>& patches, const Source<T>* image, const Index* position) {
    count = patches.taps[0] * patches.taps[1];
    for (Index i = 0; i < count; ++i) {
      const Index d = position[0] + patches.offset[0][i / patches.taps[1]];
      const Index h = position[1] + patches.offset[1][i % patches.taps[1]];
      const bool inside = d >= 0 && d < patches.in[0] && h >= 0 && h < patches.in[1];
      from[i] = inside ? image + d * patches.stride[0] + h * patches.stride[1] : nullptr;
    }
  }
};

// Gathers a row whose taps along w are adjacent and all inside of the image.
template <class T>
[[gnu::always_inline]] inline void gather_inside(const Patches<T>& patches, const Lines<T>& lines,
                                                 Index position, Factor<T>* dst) {
  const Index run = patches.taps[2] * patches.channels;
  const Index at = (position + patches.offset[2][0]) * patches.channels;
  // One run of each line. convert(to, from) writes its factors.
  const auto gather_runs = [&](const auto& convert) {
    for (Index i = 0; i < lines.count; ++i, dst += run) {
      if (lines.from[i] == nullptr)
        pad(dst, patches.zero_point, run);
      else
        convert(dst, lines.from[i] + at);
    }
  };
#if TOSAIC_VECTOR_BYTES == 32
  // A whole vector is read for a short run if the vector ends inside of the line. Elements that are written
  // after the run are overwritten by the next run, or lie after the row.
  if (!kReadsInPlace<T> && run < kShortRun && at + kShortRun <= patches.in[2] * patches.channels)
    return gather_runs(
        [&](Factor<T>* to, const Source<T>* from) { as_factors(to, from, patches.zero_point, kShortRun); });
#endif
  if constexpr (kHasQuads<T>)
    if (run <= kShortRun)
      return gather_runs([&](Factor<T>* to, const Source<T>* from) { short_factors(to, from, run); });
  gather_runs([&](Factor<T>* to, const Source<T>* from) { as_factors(to, from, patches.zero_point, run); });
}

template <class T>
void gather(const Patches<T>& patches, Index row, Index rows, Index from, Index to, Factor<T>* dst,
            Index dst_stride) {
  const Index* out = patches.out;
  const Index num_lines = patches.taps[0] * patches.taps[1];
  const bool has_lines = patches.row_is_contiguous && num_lines <= Lines<T>::kMost && from == 0 &&
                         to == num_lines * patches.taps[2] * patches.channels && to > 0;
  Lines<T> lines;
  Index line = row / out[2], first = row % out[2];  // line of outputs, and the first output of it
  for (const Index end = row + rows; row < end; ++line, first = 0) {
    const Index count = out[2] - first < end - row ? out[2] - first : end - row;
    const Index plane = line / out[1];
    Index position[3] = {plane % out[0] * patches.step[0], line % out[1] * patches.step[1], 0};
    const Source<T>* image = patches.input + plane / out[0] * patches.batch_stride;
    if (has_lines) lines.find(patches, image, position);
    for (Index i = first; i < first + count; ++i, dst += dst_stride) {
      position[2] = i * patches.step[2];
      const Index west = position[2] + patches.offset[2][0];
      if (has_lines && west >= 0 && west + patches.taps[2] <= patches.in[2])
        gather_inside(patches, lines, position[2], dst);
      else
        gather_row(patches, image, position, from, to, dst);
      finish_step<T>(dst, to - from);
    }
    row += count;
  }
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
