// Depthwise convolutions with channels last. The kernel computes one line of the result at a time, with
// vectors along the channels. For a channel multiplier m > 1, each channel of the input is first repeated m
// times. Where the instruction set multiplies pairs or quads, they are two or four taps of a channel. Threads
// share the lines.
#include <algorithm>
#include <numeric>

#include "tosaic/kernels/gemm/contraction.h"
#include "tosaic/kernels/gemm/gemm.h"
#include "tosaic/kernels/gemm/word_scaling.h"

namespace tosaic::kernels {
namespace {

// Weights and biases, in the order in which the loops read them.
template <class T>
class Parameters {
 public:
  Parameters(const Convolution& conv, const FastInputs<T>& inputs, ScratchPlan& plan) : conv_(conv) {
    if (inputs.right != nullptr)
      weights_ = packed_weights(inputs, [&] {
        LargeArray<Factor<T>> weights(static_cast<std::size_t>(size()));
        arrange(inputs.right, weights.data());
        return weights;
      });
    else
      weights_at_ = plan.take<Factor<T>>(size());
    bias_at_ = plan.take<Sum<T>>(conv_.out_channels);
  }

  [[nodiscard]] bool owns_weights() const { return weights_ != nullptr; }

  // [taps][channel][kStep]
  const Factor<T>* weights(const CoreOperands<T>& operands, std::byte* scratch) const {
    if (weights_ != nullptr) return weights_->data();
    arrange(operands.right, piece<Factor<T>>(scratch, weights_at_));
    return piece<Factor<T>>(scratch, weights_at_);
  }

  const Sum<T>* bias(const CoreOperands<T>& operands, std::byte* scratch) const {
    auto* bias = piece<Sum<T>>(scratch, bias_at_);
    for (Index o = 0; o < conv_.out_channels; ++o)
      bias[o] = conv_.has_bias ? operands.third[o * conv_.bias_stride] : Sum<T>{};
    return bias;
  }

 private:
  static constexpr Index kStep = Arithmetic<T>::kStep;

  [[nodiscard]] Index size() const { return conv_.out_channels * conv_.num_taps() * kStep; }

  void arrange(const Factor<T>* weights, Factor<T>* to) const {
    const Index multiplier = conv_.group_out();
    std::fill_n(to, size(), Factor<T>{});
    for (Index o = 0; o < conv_.out_channels; ++o) {
      const Factor<T>* from =
          weights + o / multiplier * conv_.weight_group + o % multiplier * conv_.weight_out;
      Index tap = 0;
      for (Index d = 0; d < conv_.taps[0]; ++d)
        for (Index h = 0; h < conv_.taps[1]; ++h)
          for (Index w = 0; w < conv_.taps[2]; ++w, ++tap)
            to[(tap * conv_.out_channels + o) * kStep] =
                from[d * conv_.weight_tap[0] + h * conv_.weight_tap[1] + w * conv_.weight_tap[2]];
    }
  }

  Convolution conv_;
  std::shared_ptr<const LargeArray<Factor<T>>> weights_;
  std::size_t weights_at_ = 0, bias_at_ = 0;
};

// The core for any form.
template <class T>
class DepthwiseLines {
 public:
  DepthwiseLines(const Convolution& conv, const FastInputs<T>& inputs)
      : conv_(conv), inputs_(inputs), kernels_(*inputs.loops.depthwise), parameters_(conv, inputs, plan_) {
    if (multiplier() > 1)
      repeated_at_ = plan_.take<Source<T>>(conv_.batch * conv_.in_pixels() * conv_.out_channels);
    if (!inputs_.epilogue) return;
    if (inputs_.epilogue.word_tables) {
      words_.emplace(*inputs_.epilogue.word_tables, 1, conv_.out_channels, inputs_.loops.gemm->lanes);
      added_at_ = plan_.take<Index>(words_->elements());
    }
    ScratchPlan own;
    sums_at_ = own.take<Sum<T>>(line_size());
    epilogue_at_ = own.take<std::byte>(static_cast<Index>(inputs_.epilogue.scratch_bytes));
    workers_ = plan_.take_each(own, inputs.threads.count);
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return plan_.bytes(); }
  [[nodiscard]] bool owns_right() const { return parameters_.owns_weights(); }

  void run(const CoreOperands<T>& operands, std::byte* result, const Workspace& workspace) const {
    std::byte* const scratch = workspace.scratch;
    DepthwiseLine<T> prototype = this->line();
    prototype.weight = parameters_.weights(operands, scratch);
    prototype.bias = parameters_.bias(operands, scratch);
    WordTables words;
    if constexpr (std::is_same_v<T, WidePairs>)
      if (auto* added = piece<Index>(scratch, added_at_); words_ && words_->find(prototype.bias, 1, added)) {
        words = words_->at(0, 0, added);
        prototype.rescale_words = &words;
      }
    const Source<T>* images =
        multiplier() == 1
            ? operands.left
            : repeat_channels(operands.left, piece<Source<T>>(scratch, repeated_at_), workspace.team);
    const Loop lines{.count = conv_.batch * conv_.out[0] * conv_.out[1],
                     .unit_cost = static_cast<double>(line_size() * conv_.num_taps()) * cost::kMultiplyAdd};
    parallel_for(workspace.team, lines, [&](Index begin, Index end, Worker worker) {
      DepthwiseLine<T> line = prototype;
      for (Index i = begin; i < end; ++i) {
        const Index h = i % conv_.out[1], d = i / conv_.out[1] % conv_.out[0];
        line.input = images + i / (conv_.out[1] * conv_.out[0]) * conv_.in_pixels() * conv_.out_channels;
        line.first[0] = d * conv_.step[0] - conv_.pad[0];
        line.first[1] = h * conv_.step[1] - conv_.pad[1];
        run_line(line, i * line_size(), result, workers_.of(scratch, worker));
      }
    });
  }

 private:
  [[nodiscard]] Index multiplier() const { return conv_.group_out(); }
  [[nodiscard]] Index line_size() const { return conv_.out[2] * conv_.out_channels; }

  [[nodiscard]] DepthwiseLine<T> line() const {
    DepthwiseLine<T> line;
    line.zero_point = inputs_.left_zero_point;
    line.channels = conv_.out_channels;
    Index stride = conv_.out_channels;
    for (std::size_t axis = 3; axis-- > 0;) {
      line.in[axis] = conv_.in[axis];
      line.stride[axis] = stride;
      stride *= conv_.in[axis];
      line.taps[axis] = conv_.taps[axis];
      line.dilation[axis] = conv_.dilation[axis];
    }
    line.first[2] = -conv_.pad[2];
    line.step_w = conv_.step[2];
    line.out_w = conv_.out[2];
    line.clamp = inputs_.clamp;
    line.low = inputs_.low;
    line.high = inputs_.high;
    return line;
  }

  void run_line(DepthwiseLine<T>& line, Index at, std::byte* result, std::byte* scratch) const {
    const Epilogue<T>& epilogue = inputs_.epilogue;
    if (line.rescale_words != nullptr) {
      line.words = reinterpret_cast<std::int16_t*>(result) + at;
      return kernels_.line(line);
    }
    line.output = epilogue ? piece<Sum<T>>(scratch, sums_at_) : reinterpret_cast<Sum<T>*>(result) + at;
    kernels_.line(line);
    if (epilogue)
      epilogue.run(line.output, line_size(), 0, result + at * static_cast<Index>(epilogue.bytes),
                   piece<std::byte>(scratch, epilogue_at_));
  }

  const Source<T>* repeat_channels(const Source<T>* images, Source<T>* to, Team* team) const {
    const Loop elements{.count = conv_.batch * conv_.in_pixels() * conv_.in_channels,
                        .step = 64,
                        .unit_cost = static_cast<double>(multiplier()) * cost::kCopy};
    parallel_for(team, elements, [&](Index begin, Index end, Worker) {
      for (Index i = begin; i < end; ++i) std::fill_n(to + i * multiplier(), multiplier(), images[i]);
    });
    return to;
  }

  Convolution conv_;
  FastInputs<T> inputs_;
  const DepthwiseKernels<T>& kernels_;
  ScratchPlan plan_;
  Parameters<T> parameters_;
  std::optional<WordScaling> words_;
  std::size_t repeated_at_ = 0, added_at_ = 0;
  PerWorker workers_;
  std::size_t sums_at_ = 0, epilogue_at_ = 0;  // in a worker's scratch
};

// The core for bytes with channels last, for instruction sets that multiply several taps at once. Lines of
// the image are copied as factors, with their padding: each byte is converted once, and taps outside of the
// image need no test.
template <class T>
class DepthwiseStepLines {
 public:
  using Word = std::uint32_t;

  DepthwiseStepLines(const Convolution& conv, const FastInputs<T>& inputs)
      : conv_(conv), inputs_(inputs), kernels_(*inputs.loops.steps), block_(kernels_.block) {
    const Index channels = conv_.out_channels;
    const Index period = std::lcm(channels, block_);
    merges_pixels_ = conv_.step[2] == 1 && (channels < block_ || period <= kLongestPeriod);
    const Index line_elements = conv_.out[2] * channels;
    blocks_ = ceil_div(merges_pixels_ ? std::min(period, line_elements) : channels, block_);
    slots_ = (conv_.taps[1] - 1) * conv_.dilation[1] + 1;
    const Index pixels = (conv_.out[2] - 1) * conv_.step[2] + (conv_.taps[2] - 1) * conv_.dilation[2] + 1;
    line_size_ = ceil_div(pixels * channels, block_) * block_ + 2 * block_;
    if (inputs.right != nullptr)
      weights_ = packed_weights(inputs, [&] {
        LargeArray<Factor<T>> weights(static_cast<std::size_t>(weight_size()), Factor<T>{});
        arrange_weights(inputs.right, weights.data());
        return weights;
      });
    else
      weights_at_ = plan_.take<Factor<T>>(weight_size());
    if (rescales()) arrange_tables();
    channels_.assign(static_cast<std::size_t>(blocks_ * block_), -1);
    for_each_place([&](Index place, Index channel) { channels_[place] = channel; });
    if (weights_ != nullptr) {
      terms_.resize(channels_.size());
      find_terms(weights_->data(), terms_.data());
    }
    if (knows_first_sums())
      add_bias(inputs.third, terms_.data());
    else
      terms_at_ = plan_.take<Word>(blocks_ * block_);
    ScratchPlan own;
    lines_at_ = own.take<Factor<T>>((slots_ + 1) * line_size_);
    taps_at_ = own.take<const Factor<T>*>(kStep * steps());
    if (inputs_.epilogue && !rescales()) {
      sums_at_ = own.take<Word>(line_elements);
      epilogue_at_ = own.take<std::byte>(static_cast<Index>(inputs_.epilogue.scratch_bytes));
    }
    workers_ = plan_.take_each(own, inputs.threads.count);
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return plan_.bytes(); }
  [[nodiscard]] bool owns_right() const { return weights_ != nullptr; }

  void run(const CoreOperands<T>& operands, std::byte* result, const Workspace& workspace) const {
    const DepthwiseSteps<T> prototype = this->line(operands, workspace.scratch);
    const Index line_elements = conv_.out[2] * conv_.out_channels;
    // A part first copies all input lines that its first output line reads, so each thread has only one part.
    const Loop lines{.count = conv_.batch * conv_.out[1],
                     .unit_cost = static_cast<double>(line_elements * steps()) * 2 * cost::kMultiplyAdd,
                     .parts_per_thread = 1};
    parallel_for(workspace.team, lines, [&](Index begin, Index end, Worker worker) {
      run_lines(begin, end, operands.left, prototype, result, workers_.of(workspace.scratch, worker));
    });
  }

 private:
  static constexpr Index kLongestPeriod = 1024, kStep = Arithmetic<T>::kStep;

  // Computes lines [begin, end) of the results of all images. `scratch` belongs to the worker.
  void run_lines(Index begin, Index end, const std::int8_t* images, DepthwiseSteps<T> line, std::byte* result,
                 std::byte* scratch) const {
    line.taps = piece<const Factor<T>*>(scratch, taps_at_);
    kernels_.pad(inputs_.left_zero_point, line_size_ - block_, pad_line(scratch));
    Index copied = 0;  // image lines before this one are in their slots or no longer needed
    for (Index i = begin; i < end; ++i) {
      const Index h = i % conv_.out[1];
      if (h == 0) copied = 0;
      copied =
          copy_lines(images + i / conv_.out[1] * conv_.in_pixels() * conv_.in_channels, h, copied, scratch);
      find_taps(h, scratch);
      run_line(line, i * conv_.out[2] * conv_.out_channels, result, scratch);
    }
  }

  [[nodiscard]] bool rescales() const { return inputs_.epilogue.tables.has_value(); }
  [[nodiscard]] Index steps() const { return ceil_div(conv_.num_taps(), kStep); }
  [[nodiscard]] Index weight_size() const { return blocks_ * steps() * kStep * block_; }
  [[nodiscard]] Factor<T>* slot(Index image_line, std::byte* scratch) const {
    return piece<Factor<T>>(scratch, lines_at_) + image_line % slots_ * line_size_;
  }
  [[nodiscard]] Factor<T>* pad_line(std::byte* scratch) const {
    return piece<Factor<T>>(scratch, lines_at_) + slots_ * line_size_;
  }

  // Calls set(place, channel) for each place of the arranged tables that has a channel.
  template <class F>
  void for_each_place(F set) const {
    for (Index place = 0; place < blocks_ * block_; ++place) {
      const Index element = place / block_ * block_ + step_channel<T>(block_, place % block_);
      if (merges_pixels_ || element < conv_.out_channels) set(place, element % conv_.out_channels);
    }
  }

  void arrange_weights(const Factor<T>* weights, Factor<T>* to) const {
    std::fill_n(to, weight_size(), Factor<T>{});
    for_each_place([&](Index place, Index channel) {
      Factor<T>* block = to + place_in_weights(place);
      const Factor<T>* from = weights + channel * conv_.weight_group;
      for (Index tap = 0; tap < conv_.num_taps(); ++tap)
        block[tap / kStep * kStep * block_ + tap % kStep] =
            from[tap / conv_.taps[2] * conv_.weight_tap[1] + tap % conv_.taps[2] * conv_.weight_tap[2]];
    });
  }

  void arrange_tables() {
    const RescaleTables<std::int32_t>& t = *inputs_.epilogue.tables;
    multiplier_.assign(static_cast<std::size_t>(blocks_ * block_), 0);
    shift_.assign(multiplier_.size(), 33);  // places without a channel: any valid shift
    for_each_place([&](Index place, Index channel) {
      multiplier_[place] = t.multiplier[t.uniform ? 0 : channel];
      shift_[place] = t.shift[t.uniform ? 0 : channel];
    });
  }

  // The offset of the weights of the first step of a place.
  [[nodiscard]] Index place_in_weights(Index place) const {
    return place / block_ * steps() * kStep * block_ + place % block_ * kStep;
  }

  // The term of a place is -(kQuadOffset + zero point) * (sum of its weights) with quads, otherwise 0.
  void find_terms(const Factor<T>* weights, Word* terms) const {
    std::fill_n(terms, blocks_ * block_, Word{0});
    if constexpr (kHasQuads<T>) {
      const auto by = static_cast<Word>(-(kQuadOffset + std::int32_t{inputs_.left_zero_point}));
      for_each_place([&](Index place, Index /*channel*/) {
        Word sum = 0;
        const Factor<T>* block = weights + place_in_weights(place);
        for (Index tap = 0; tap < conv_.num_taps(); ++tap)
          sum += static_cast<Word>(std::int32_t{block[tap / kStep * kStep * block_ + tap % kStep]});
        terms[place] = sum * by;
      });
    }
  }

  void add_bias(const Word* bias, Word* sums) const {
    if (!conv_.has_bias) return;
    for (std::size_t place = 0; place < channels_.size(); ++place)
      if (channels_[place] >= 0) sums[place] += bias[channels_[place] * conv_.bias_stride];
  }

  [[nodiscard]] bool knows_first_sums() const {
    return weights_ != nullptr && (!conv_.has_bias || inputs_.third != nullptr);
  }

  // The numbers to which the products of each place are added: its term, plus the bias of its channel.
  [[nodiscard]] const Word* first_sums(const CoreOperands<T>& operands, const Factor<T>* weights,
                                       std::byte* scratch) const {
    if (knows_first_sums()) return terms_.data();
    auto* const sums = piece<Word>(scratch, terms_at_);
    if (weights_ == nullptr)
      find_terms(weights, sums);
    else
      std::copy_n(terms_.data(), terms_.size(), sums);
    add_bias(operands.third, sums);
    return sums;
  }

  [[nodiscard]] DepthwiseSteps<T> line(const CoreOperands<T>& operands, std::byte* scratch) const {
    DepthwiseSteps<T> line;
    line.num_taps = conv_.num_taps();
    line.steps = steps();
    line.blocks = blocks_;
    line.weights = weights_ != nullptr ? weights_->data() : piece<Factor<T>>(scratch, weights_at_);
    if (weights_ == nullptr) arrange_weights(operands.right, piece<Factor<T>>(scratch, weights_at_));
    line.terms = first_sums(operands, line.weights, scratch);
    const Index channels = conv_.out_channels;
    line.pixels = merges_pixels_ ? 1 : conv_.out[2];
    line.elements = merges_pixels_ ? conv_.out[2] * channels : channels;
    line.source_step = conv_.step[2] * channels;
    line.result_step = channels;
    if (rescales()) {
      line.rescale = *inputs_.epilogue.tables;
      line.rescale.multiplier = multiplier_.data();
      line.rescale.shift = shift_.data();
    }
    return line;
  }

  // Copies the lines of the image that line h of the result reads and that are not in their slots yet.
  // Returns the number of the next line.
  Index copy_lines(const std::int8_t* image, Index h, Index copied, std::byte* scratch) const {
    const Index channels = conv_.in_channels, row = conv_.in[2] * channels;
    const Index size = line_size_ - block_;  // padding and copies may write more
    const Index before = std::min(conv_.pad[2] * channels, size), inside = std::min(row, size - before);
    const Index first = h * conv_.step[1] - conv_.pad[1];
    Index next = std::max(copied, std::max<Index>(first, 0));
    for (; next < std::min(first + slots_, conv_.in[1]); ++next) {
      Factor<T>* to = slot(next, scratch);
      kernels_.pad(inputs_.left_zero_point, before, to);
      kernels_.copy(image + next * row, inputs_.left_zero_point, inside, to + before);
      kernels_.pad(inputs_.left_zero_point, size - before - inside, to + before + inside);
    }
    return next;
  }

  // For each tap, stores a pointer to the element that output 0 of line h reads.
  void find_taps(Index h, std::byte* scratch) const {
    const auto** taps = piece<const Factor<T>*>(scratch, taps_at_);
    for (Index tap = 0; tap < conv_.num_taps(); ++tap) {
      const Index y = h * conv_.step[1] - conv_.pad[1] + tap / conv_.taps[2] * conv_.dilation[1];
      const Factor<T>* from = y < 0 || y >= conv_.in[1] ? pad_line(scratch) : slot(y, scratch);
      taps[tap] = from + tap % conv_.taps[2] * conv_.dilation[2] * conv_.in_channels;
    }
    for (Index tap = conv_.num_taps(); tap < kStep * steps(); ++tap) taps[tap] = pad_line(scratch);
  }

  void run_line(DepthwiseSteps<T>& line, Index at, std::byte* result, std::byte* scratch) const {
    const Epilogue<T>& epilogue = inputs_.epilogue;
    if (rescales()) {
      line.bytes = reinterpret_cast<std::int8_t*>(result) + at;
      return kernels_.line(line);
    }
    line.sums = epilogue ? piece<Word>(scratch, sums_at_) : reinterpret_cast<Word*>(result) + at;
    kernels_.line(line);
    if (epilogue)
      epilogue.run(line.sums, conv_.out[2] * conv_.out_channels, 0,
                   result + at * static_cast<Index>(epilogue.bytes), piece<std::byte>(scratch, epilogue_at_));
  }

  Convolution conv_;
  FastInputs<T> inputs_;
  const DepthwiseStepKernels<T>& kernels_;
  const Index block_;
  bool merges_pixels_ = false;
  Index blocks_ = 0, slots_ = 0, line_size_ = 0;
  std::shared_ptr<const LargeArray<Factor<T>>> weights_;
  std::vector<std::int32_t> multiplier_, shift_;  // by place
  std::vector<Index> channels_;                   // by place: its channel, or -1
  std::vector<Word> terms_;  // if weights are constant; plus the biases if these are constant, too
  ScratchPlan plan_;
  std::size_t weights_at_ = 0, terms_at_ = 0;
  PerWorker workers_;
  std::size_t lines_at_ = 0, taps_at_ = 0, sums_at_ = 0, epilogue_at_ = 0;  // in a worker's scratch
};

}  // namespace

bool is_depthwise(const Convolution& conv) {
  if (conv.transposed || conv.groups != conv.in_channels || conv.in_channels == 0) return false;
  return conv.pad[0] >= 0 && conv.pad[1] >= 0 && conv.pad[2] >= 0 &&
         (conv.groups > 1 || conv.group_out() == 1);
}

bool steps_fit(const Convolution& conv) {
  return conv.group_out() == 1 && conv.in[0] * conv.taps[0] * conv.out[0] == 1 && conv.pad[0] == 0;
}

template <class T>
Core<T> depthwise_convolution(const Convolution& conv, const FastInputs<T>& inputs) {
  constexpr const char* kName = "conv.depthwise";
  if constexpr (std::is_same_v<T, Pairs> || kHasQuads<T>)
    if (inputs.loops.steps != nullptr) return as_core<T, DepthwiseStepLines<T>>(kName, conv, inputs);
  return as_core<T, DepthwiseLines<T>>(kName, conv, inputs);
}

template Core<Pairs> depthwise_convolution(const Convolution&, const FastInputs<Pairs>&);
template Core<WidePairs> depthwise_convolution(const Convolution&, const FastInputs<WidePairs>&);
template Core<Quads> depthwise_convolution(const Convolution&, const FastInputs<Quads>&);
template Core<float> depthwise_convolution(const Convolution&, const FastInputs<float>&);
template Core<double> depthwise_convolution(const Convolution&, const FastInputs<double>&);

}  // namespace tosaic::kernels
