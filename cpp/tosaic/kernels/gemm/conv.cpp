// Convolutions as matrix products, which the blocked GEMM computes.
//
//   channels last         result[pixels x channels] = patches[pixels x (taps, channels)] * weights
//   channels first        as channels last, with transpositions before and after
//
// The patches of a block are gathered just before they are multiplied. Patches of floats may be read in place
// instead; their padding is not multiplied (lines.h). A 1x1 convolution without stride needs no patches: its
// rows are the pixels of the input. A transposed convolution is one product for each phase. A phase has the
// results whose positions are equal modulo the stride; it reads a fixed subset of the taps, without stride.

#include "tosaic/kernels/gemm/contraction.h"
#include "tosaic/kernels/gemm/excess.h"
#include "tosaic/kernels/gemm/gemm.h"
#include "tosaic/kernels/gemm/lines.h"
#include "tosaic/kernels/gemm/word_scaling.h"

namespace tosaic::kernels {

bool is_pointwise(const Convolution& conv) {
  for (std::size_t axis = 0; axis < 3; ++axis)
    if (conv.taps[axis] != 1 || conv.step[axis] != 1 || conv.pad[axis] != 0 ||
        conv.in[axis] != conv.out[axis])
      return false;
  return true;
}

namespace {

// One axis of a phase. The phase has `count` results: first, first + step, ... Result number i reads tap
// taps[k] at the input coordinate i * in_step + offsets[k]. The offsets ascend.
struct PhaseAxis {
  Index first = 0, step = 1, count = 0;
  Index in_step = 1;
  std::vector<Index> taps, offsets;
};

PhaseAxis whole_axis(const Convolution& conv, std::size_t axis) {
  PhaseAxis result{.count = conv.out[axis], .in_step = conv.step[axis], .taps = {}, .offsets = {}};
  for (Index tap = 0; tap < conv.taps[axis]; ++tap) {
    result.taps.push_back(tap);
    result.offsets.push_back(tap * conv.dilation[axis] - conv.pad[axis]);
  }
  return result;
}

PhaseAxis phase_axis(const Convolution& conv, std::size_t axis, Index phase) {
  const Index step = conv.step[axis];
  PhaseAxis result{.first = phase, .step = step, .count = 0, .in_step = 1, .taps = {}, .offsets = {}};
  if (phase < conv.out[axis]) result.count = ceil_div(conv.out[axis] - phase, step);
  for (Index tap = conv.taps[axis] - 1; tap >= 0; --tap) {
    const Index scaled = phase + conv.pad[axis] - tap * conv.dilation[axis];
    if (scaled % step != 0) continue;
    result.taps.push_back(tap);
    result.offsets.push_back(scaled / step);
  }
  return result;
}

struct Phase {
  std::array<PhaseAxis, 3> axis;
  std::size_t packed = 0;  // offset of its packed weights, in elements; one matrix for each group
  Index band = 1;          // depth of the bands of its packed weights
  GemmGrid grid = {};
  bool reads_lines = false;  // multiply_lines() computes it
  [[nodiscard]] Index pixels() const { return axis[0].count * axis[1].count * axis[2].count; }
  [[nodiscard]] Index num_taps() const {
    return static_cast<Index>(axis[0].taps.size() * axis[1].taps.size() * axis[2].taps.size());
  }
};

std::vector<Phase> phases_of(const Convolution& conv) {
  if (!conv.transposed) return {{.axis = {whole_axis(conv, 0), whole_axis(conv, 1), whole_axis(conv, 2)}}};
  std::vector<Phase> phases;
  for (Index d = 0; d < conv.step[0]; ++d)
    for (Index h = 0; h < conv.step[1]; ++h)
      for (Index w = 0; w < conv.step[2]; ++w) {
        Phase phase{.axis = {phase_axis(conv, 0, d), phase_axis(conv, 1, h), phase_axis(conv, 2, w)}};
        if (phase.pixels() > 0) phases.push_back(std::move(phase));
      }
  return phases;
}

template <class T>
class ChannelsLast {
 public:
  ChannelsLast(const Convolution& conv, const FastInputs<T>& inputs)
      : conv_(conv), inputs_(inputs), kernels_(*inputs.loops.gemm), phases_(phases_of(conv)) {
    if (!conv_.transposed && inputs_.epilogue.word_tables)
      words_.emplace(*inputs_.epilogue.word_tables, conv_.groups, conv_.group_out(), kernels_.lanes);
    for (Phase& phase : phases_) {
      phase.packed = packed_size_;
      const Index depth = depth_of(phase);
      phase.band = band_of(phase);
      packed_size_ += static_cast<std::size_t>(conv_.groups * bands_of(phase).elements());
      unpacked_size_ = std::max(unpacked_size_, depth * conv_.group_out());
      const GemmBlocking blocking = blocking_of(phase);
      phase.reads_lines = reads_lines(phase, blocking);
      gather_size_ = std::max(gather_size_, gather_elements(phase, blocking));
      phase.grid =
          gemm_grid(kernels_, conv_.batch * phase.pixels(), conv_.group_out(), depth, inputs_.threads);
      if (phase.band < depth) words_.reset();  // sums of several bands are added up in memory
      if (puts_rows() || (rescales_to_bytes() && blocking.depth < depth))
        staged_size_ = std::max(staged_size_, blocking.rows * conv_.group_out());
    }
    if (inputs.right != nullptr) {
      packed_ = packed_weights(inputs, [&] {
        LargeArray<Factor<T>> unpacked(static_cast<std::size_t>(unpacked_size_)), packed(packed_size_);
        pack(inputs.right, unpacked.data(), packed.data());
        return with_excess(kernels_, only_bands(), conv_.groups, std::move(packed));
      });
      if constexpr (kHasQuads<T>) {
        terms_.resize(static_cast<std::size_t>(num_terms()));
        find_terms(packed_->data(), terms_.data());
      }
    } else {
      unpacked_at_ = plan_.take<Factor<T>>(unpacked_size_);
      packed_at_ = plan_.take<Factor<T>>(static_cast<Index>(packed_size_));
      if constexpr (kHasQuads<T>) terms_at_ = plan_.take<Sum<T>>(num_terms());
    }
    bias_at_ = plan_.take<Sum<T>>(conv_.out_channels + kernels_.panel);
    if (words_) added_at_ = plan_.take<Index>(words_->elements());
    ScratchPlan own;
    gathered_at_ = own.take<Factor<T>>(gather_size_);
    staged_at_ = own.take<Sum<T>>(staged_size_);
    epilogue_at_ = own.take<std::byte>(static_cast<Index>(inputs_.epilogue.scratch_bytes));
    workers_ = plan_.take_each(own, inputs.threads.count);
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return plan_.bytes(); }
  [[nodiscard]] bool owns_right() const { return packed_ != nullptr; }

  void run(const CoreOperands<T>& operands, std::byte* result, const Workspace& workspace) const {
    std::byte* const scratch = workspace.scratch;
    const Factor<T>* packed = packed_ != nullptr ? packed_->data() : nullptr;
    if (packed == nullptr) {
      pack(operands.right, piece<Factor<T>>(scratch, unpacked_at_), piece<Factor<T>>(scratch, packed_at_));
      packed = piece<Factor<T>>(scratch, packed_at_);
    }
    const Sum<T>* terms = terms_.data();
    if constexpr (kHasQuads<T>)
      if (packed_ == nullptr) {
        find_terms(packed, piece<Sum<T>>(scratch, terms_at_));
        terms = piece<Sum<T>>(scratch, terms_at_);
      }
    const Index* added = nullptr;
    if constexpr (std::is_same_v<T, WidePairs>)
      if (auto* to = piece<Index>(scratch, added_at_);
          words_ && words_->find(conv_.has_bias ? operands.third : nullptr, conv_.bias_stride, to))
        added = to;
    for (const Phase& phase : phases_) {
      const Sum<T>* bias = bias_of(operands, terms, piece<Sum<T>>(scratch, bias_at_));
      if constexpr (kHasQuads<T>) terms += conv_.out_channels;
      for (Index group = 0; group < conv_.groups; ++group) {
        const Factor<T>* weights = packed + phase.packed + group * bands_of(phase).elements();
        run_group(phase, group, operands.left, {weights, bias, added}, result, workspace);
      }
    }
  }

 private:
  // True if sums are rescaled in registers: not in transposed convolutions, whose rows are apart.
  [[nodiscard]] bool rescales() const { return !conv_.transposed && inputs_.epilogue.tables.has_value(); }
  [[nodiscard]] bool rescales_to_bytes() const { return rescales() && inputs_.epilogue.rescales_to_bytes(); }
  // True if finished rows go through put_rows(), because the convolution is transposed, or because an
  // epilogue converts rows.
  [[nodiscard]] bool puts_rows() const { return conv_.transposed || (inputs_.epilogue && !rescales()); }

  // How the weights of a group are packed if there is one phase. CappedQuads always have one phase, because
  // they do not compute transposed convolutions.
  [[nodiscard]] Bands<T> only_bands() const {
    return phases_.size() == 1 ? bands_of(phases_[0]) : Bands<T>{};
  }
  // The excess of the weights of a group.
  [[nodiscard]] Excess excess_of_group(Index group) const {
    return packed_ == nullptr ? Excess{} : excess_of(*packed_, only_bands(), conv_.groups, group);
  }

  [[nodiscard]] Index num_terms() const { return static_cast<Index>(phases_.size()) * conv_.out_channels; }

  // Writes column_terms() of each phase: one per output channel.
  void find_terms(const Factor<T>* packed, Sum<T>* terms) const {
    for (const Phase& phase : phases_) {
      const Bands<T> bands = bands_of(phase);
      const Factor<T>* weights = packed + phase.packed;
      for (Index group = 0; group < conv_.groups; ++group, terms += conv_.group_out()) {
        column_terms(kernels_, bands, weights, excess_of_group(group), inputs_.left_zero_point, terms);
        weights += bands.elements();
      }
    }
  }

  // What is added to the sums of each output channel: the bias, and with quads the terms of a phase. Returns
  // null if there is nothing to add. Vectors may read past the end of integer biases, in allocated memory.
  const Sum<T>* bias_of(const CoreOperands<T>& operands, [[maybe_unused]] const Sum<T>* terms,
                        Sum<T>* to) const {
    const Sum<T>* bias = conv_.has_bias ? operands.third : nullptr;
    if (!kHasQuads<T> && bias == nullptr) return nullptr;
    if (!kRescales<T> && conv_.bias_stride != 0) return bias;
    for (Index o = 0; o < conv_.out_channels; ++o)
      to[o] = bias == nullptr ? Sum<T>{} : bias[o * conv_.bias_stride];
    if constexpr (kHasQuads<T>)
      for (Index o = 0; o < conv_.out_channels; ++o) to[o] += terms[o];
    return to;
  }

  [[nodiscard]] Index depth_of(const Phase& phase) const { return phase.num_taps() * conv_.group_in(); }
  // How the weights of a group are packed.
  [[nodiscard]] Bands<T> bands_of(const Phase& phase) const {
    return {kernels_, depth_of(phase), conv_.group_out(), phase.band};
  }
  [[nodiscard]] Index band_of(const Phase& phase) const {
    if constexpr (std::is_same_v<T, WidePairs>)
      if (inputs_.right != nullptr)
        return exact_band(depth_of(phase), conv_.out_channels, [&](Index o, Factor<T>* to) {
          unpack_filter(phase, filter(inputs_.right, o), to);
        });
    return band_depth<T>(depth_of(phase));
  }
  [[nodiscard]] GemmBlocking blocking_of(const Phase& phase) const {
    const SumsTo to = rescales_to_bytes() ? SumsTo::kRescale : puts_rows() ? SumsTo::kTake : SumsTo::kResult;
    return gemm_blocking(kernels_, conv_.batch * phase.pixels(), bands_of(phase), to);
  }

  static constexpr bool kMayReadLines = std::is_same_v<T, float> || std::is_same_v<T, Quads>;
  [[nodiscard]] bool reads_lines([[maybe_unused]] const Phase& phase, const GemmBlocking& blocking) const {
    if constexpr (kMayReadLines)
      return inputs_.reads_lines && !is_pointwise(conv_) && !puts_rows() && inputs_.right_zero_point == 0 &&
             prefers_lines(kernels_, blocking, patches_of(phase, nullptr), conv_.group_out(),
                           depth_of(phase));
    return false;
  }
  [[nodiscard]] Index gather_elements(const Phase& phase, const GemmBlocking& blocking) const {
    if constexpr (kMayReadLines)
      if (phase.reads_lines) {
        const Patches<T> patches = patches_of(phase, nullptr);
        return Lines<T>(patches).elements(lines_of_block(blocking.rows, patches.out));
      }
    return blocking.gather_elements();
  }

  // Packs each phase and group: first as rows [group_out][taps][group_in], then as panels.
  void pack(const Factor<T>* weights, Factor<T>* unpacked, Factor<T>* packed) const {
    for (const Phase& phase : phases_) {
      Factor<T>* to = packed + phase.packed;
      const Index depth = depth_of(phase);
      for (Index group = 0; group < conv_.groups; ++group) {
        Factor<T>* row = unpacked;
        for (Index o = 0; o < conv_.group_out(); ++o, row += depth)
          unpack_filter(phase, filter(weights, group * conv_.group_out() + o), row);
        pack_bands(kernels_, bands_of(phase), unpacked, 1, depth, to);
        to += bands_of(phase).elements();
      }
    }
  }

  // The weights of an output channel.
  [[nodiscard]] const Factor<T>* filter(const Factor<T>* weights, Index channel) const {
    return weights + channel / conv_.group_out() * conv_.weight_group +
           channel % conv_.group_out() * conv_.weight_out;
  }

  void unpack_filter(const Phase& phase, const Factor<T>* from, Factor<T>* to) const {
    for (const Index d : phase.axis[0].taps)
      for (const Index h : phase.axis[1].taps)
        for (const Index w : phase.axis[2].taps) {
          const Factor<T>* tap =
              from + d * conv_.weight_tap[0] + h * conv_.weight_tap[1] + w * conv_.weight_tap[2];
          for (Index c = 0; c < conv_.group_in(); ++c) *to++ = tap[c * conv_.weight_in];
        }
  }

  [[nodiscard]] Patches<T> patches_of(const Phase& phase, const Source<T>* input) const {
    Patches<T> patches;
    patches.input = input;
    patches.zero_point = inputs_.left_zero_point;
    patches.batch_stride = conv_.in_pixels() * conv_.in_channels;
    Index stride = conv_.in_channels;
    for (std::size_t axis = 3; axis-- > 0;) {
      patches.stride[axis] = stride;
      stride *= conv_.in[axis];
      patches.in[axis] = conv_.in[axis];
      patches.out[axis] = phase.axis[axis].count;
      patches.step[axis] = phase.axis[axis].in_step;
      patches.taps[axis] = static_cast<Index>(phase.axis[axis].taps.size());
      patches.offset[axis] = phase.axis[axis].offsets.data();
    }
    patches.channels = conv_.group_in();
    patches.row_is_contiguous = conv_.groups == 1;
    const std::vector<Index>& offsets = phase.axis[2].offsets;
    for (std::size_t i = 1; i < offsets.size(); ++i)
      if (offsets[i] != offsets[i - 1] + 1) patches.row_is_contiguous = false;
    return patches;
  }

  // The right side of a group's product: the packed weights of the group, the biases of all channels, and
  // what WordScaling adds. The latter is null if the sums are not rescaled in the tiles.
  struct Right {
    const Factor<T>* packed;
    const Sum<T>* bias;
    const Index* added;
  };

  void run_group(const Phase& phase, Index group, const Source<T>* input, const Right& right,
                 std::byte* result, const Workspace& workspace) const {
    const Patches<T> patches = patches_of(phase, input + group * conv_.group_in());
    const Index channel = group * conv_.group_out();
    for_each_part(workspace.team, kernels_, phase.grid, conv_.batch * phase.pixels(), conv_.group_out(),
                  [&](const GemmPart& part, Worker worker) {
                    run_part(phase,
                             {part.first_row, part.end_row, channel + part.first_col, channel + part.end_col},
                             patches, group, right, result, workers_.of(workspace.scratch, worker));
                  });
  }

  // Computes the part, whose columns are output channels.
  void run_part(const Phase& phase, const GemmPart& part, const Patches<T>& patches, Index group,
                const Right& right, std::byte* result, std::byte* scratch) const {
    const Index cols = part.end_col - part.first_col;
    GemmProblem<T> problem;
    problem.first_row = part.first_row;
    problem.rows = part.end_row;
    problem.cols = cols;
    problem.b = right.packed;
    problem.excess = excess_of_group(group);
    problem.bands = bands_of(phase);
    problem.first_col = part.first_col - group * conv_.group_out();
    problem.clamp = inputs_.clamp;
    problem.low = inputs_.low;
    problem.high = inputs_.high;
    problem.column_bias = right.bias == nullptr ? nullptr : right.bias + part.first_col;
    problem.gathered = piece<Factor<T>>(scratch, gathered_at_);
    problem.zero_point = inputs_.left_zero_point;
    problem.right_zero_point = inputs_.right_zero_point;
    if (is_pointwise(conv_)) {
      problem.a = patches.input;
      problem.a_stride = conv_.in_channels;
      problem.copies_rows = problem.copies_rows || rows_collide<T>(conv_.in_channels);
    } else {
      problem.patches = &patches;
    }
    const TakeRows<T> take = [&](Index row, Index count, const Sum<T>* sums) {
      put_rows(phase, {row, count, part.first_col, cols, sums}, result, scratch);
    };
    RescaleTables<std::int32_t> tables;
    WordTables words;
    if (right.added != nullptr) {
      words = words_->at(group, problem.first_col, right.added);
      problem.rescale_words = &words;
      problem.words = reinterpret_cast<std::int16_t*>(result) + part.first_col;
      problem.words_stride = conv_.out_channels;
    } else if (rescales_to_bytes()) {
      problem.bytes = reinterpret_cast<std::int8_t*>(result) + part.first_col;
      problem.bytes_stride = conv_.out_channels;
      if (staged_size_ > 0) problem.c = piece<Sum<T>>(scratch, staged_at_);
      problem.c_stride = cols;
    } else if (puts_rows()) {
      problem.c = piece<Sum<T>>(scratch, staged_at_);
      problem.c_stride = cols;
      problem.take = &take;
    } else {
      problem.c = reinterpret_cast<Sum<T>*>(result) + part.first_col;
      problem.c_stride = conv_.out_channels;
    }
    if (rescales()) {
      tables = inputs_.epilogue.tables->at(part.first_col);
      problem.rescale = &tables;
    }
    if constexpr (kMayReadLines)
      if (phase.reads_lines) return multiply_lines(kernels_, blocking_of(phase), problem);
    multiply(kernels_, blocking_of(phase), problem);
  }

  struct Rows {
    Index first, count, channel, channels;
    const Sum<T>* sums;
  };

  // Writes rows of a product to their pixels of the result.
  void put_rows(const Phase& phase, const Rows& rows, std::byte* result, std::byte* scratch) const {
    if (!conv_.transposed && rows.channels == conv_.out_channels)
      return put(rows.sums, rows.count * conv_.out_channels, rows.first * conv_.out_channels, result,
                 scratch);
    const auto& [d, h, w] = phase.axis;
    const Sum<T>* from = rows.sums;
    for (Index row = rows.first; row < rows.first + rows.count; ++row, from += rows.channels) {
      const Index line = row / w.count, plane = line / h.count;
      const Index n = plane / d.count;
      const Index pixel = ((n * conv_.out[0] + d.first + plane % d.count * d.step) * conv_.out[1] + h.first +
                           line % h.count * h.step) *
                              conv_.out[2] +
                          w.first + row % w.count * w.step;
      put(from, rows.channels, pixel * conv_.out_channels + rows.channel, result, scratch);
    }
  }

  // Writes adjacent elements of the result, from element `at` on.
  void put(const Sum<T>* sums, Index count, Index at, std::byte* result, std::byte* scratch) const {
    const Epilogue<T>& epilogue = inputs_.epilogue;
    if (!epilogue)
      std::copy_n(sums, count, reinterpret_cast<Sum<T>*>(result) + at);
    else
      epilogue.run(sums, count, at % conv_.out_channels, result + at * static_cast<Index>(epilogue.bytes),
                   piece<std::byte>(scratch, epilogue_at_));
  }

  Convolution conv_;
  FastInputs<T> inputs_;
  const GemmKernels<T>& kernels_;
  std::vector<Phase> phases_;
  std::size_t packed_size_ = 0;
  Index unpacked_size_ = 0, gather_size_ = 0, staged_size_ = 0;
  std::shared_ptr<const LargeArray<Factor<T>>> packed_;
  std::vector<Sum<T>> terms_;
  std::optional<WordScaling> words_;
  ScratchPlan plan_;
  std::size_t unpacked_at_ = 0, packed_at_ = 0, terms_at_ = 0, bias_at_ = 0, added_at_ = 0;
  PerWorker workers_;
  std::size_t gathered_at_ = 0, staged_at_ = 0, epilogue_at_ = 0;  // in a worker's scratch
};

// A convolution with channels first. `inner` computes it with channels last; transpositions before and after
// convert the arrays.
template <class T>
Core<T> transposed_around(const Convolution& conv, Core<T> inner, const FastInputs<T>& inputs) {
  ScratchPlan plan;
  const std::size_t in_at = plan.take<Source<T>>(conv.batch * conv.in_pixels() * conv.in_channels);
  const auto out_bytes = static_cast<Index>(inputs.epilogue ? inputs.epilogue.bytes : sizeof(Sum<T>));
  const Index out_size = conv.out_pixels() * conv.out_channels;
  const std::size_t out_at = plan.take<std::byte>(conv.batch * out_size * out_bytes);
  const std::size_t inner_at = plan.take<std::byte>(static_cast<Index>(inner.scratch_bytes));
  Core<T> core;
  core.scratch_bytes = plan.bytes();
  core.owns_right = inner.owns_right;
  core.name = inner.name + ".transposed";
  core.run = [=, transpose_in = inputs.transpose->find(sizeof(Source<T>)),
              transpose_out = inputs.transpose->find(static_cast<std::size_t>(out_bytes)),
              run = std::move(inner.run)](const CoreOperands<T>& operands, std::byte* result,
                                          const Workspace& workspace) {
    const auto [scratch, team] = workspace;
    auto* in = piece<Source<T>>(scratch, in_at);
    std::byte* out = scratch + out_at;
    transpose_all({transpose_in, sizeof(Source<T>), conv.batch, conv.in_channels, conv.in_pixels()},
                  reinterpret_cast<const std::byte*>(operands.left), reinterpret_cast<std::byte*>(in), team);
    run({in, operands.right, operands.third}, out, {scratch + inner_at, team});
    transpose_all({transpose_out, static_cast<std::size_t>(out_bytes), conv.batch, conv.out_pixels(),
                   conv.out_channels},
                  out, result, team);
  };
  return core;
}

}  // namespace

template <class T>
Core<T> fast_convolution(const Convolution& conv, const FastInputs<T>& inputs) {
  if constexpr (!kIsCapped<T>)
    if (is_depthwise(conv) && conv.channels_last) return depthwise_convolution(conv, inputs);
  if (conv.channels_last) return as_core<T, ChannelsLast<T>>("conv.gemm", conv, inputs);
  Convolution last = conv;
  last.channels_last = true;
  return transposed_around(conv, fast_convolution(last, inputs), inputs);
}

#define TOSAIC_INSTANTIATE(T) template Core<T> fast_convolution(const Convolution&, const FastInputs<T>&);
TOSAIC_EACH_ARITHMETIC(TOSAIC_INSTANTIATE)

}  // namespace tosaic::kernels
