#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/quant/observe/bins.h"
#include "tosaic/quant/observe/channels.h"
#include "tosaic/quant/observe/finite.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {
namespace {

using namespace kernels;

// An entry of a table counts the samples of a bin in its upper 24 bits and adds up their offsets in the lower
// 40. A table is emptied after 2^23 samples, whose offsets are below 2^40.
constexpr int kSumBits = 40;
constexpr std::uint64_t kOneSample = std::uint64_t{1} << kSumBits;
constexpr std::uint64_t kMostPending = std::uint64_t{1} << 23;
constexpr std::uint64_t kOffsets = (1U << kOffsetBits) - 1;
constexpr std::size_t kFew = 256;
constexpr std::size_t kUsualBins = 2048;
constexpr std::int64_t kFewZeros = 8;  // few: at most one in 8 values

// The place of a bin that is not the zero bin.
std::int32_t signed_place(std::int32_t bin) { return bin < kBinsPerSign ? bin + 1 : kBinsPerSign - bin - 1; }

// Appends a bin to sorted bins.
void append(std::vector<Histogram::Bin>& bins, const Histogram::Bin& bin) {
  if (!bins.empty() && bins.back().place == bin.place) {
    bins.back().count += bin.count;
    bins.back().offsets += bin.offsets;
  } else {
    bins.push_back(bin);
  }
}

// The bin in a histogram whose range is twice as large.
Histogram::Bin doubled(Histogram::Bin bin) {
  if (bin.place == 0) return bin;
  const std::int32_t sign = bin.place < 0 ? -1 : 1;
  std::int32_t place = sign * bin.place - 1;
  if (const std::int32_t magnitude = place - kFirstLinearBin + kBinsPerOctave;
      magnitude >= 2 * kBinsPerOctave) {
    // Two linear bins become one of twice the width. All offsets are even, since an f32 has few digits.
    bin.offsets = (bin.offsets + static_cast<std::uint64_t>(magnitude & 1) * (kOffsets + 1) * bin.count) / 2;
    place = magnitude / 2 + kFirstLinearBin - kBinsPerOctave;
  } else {
    place -= kBinsPerOctave;  // the same bin, an octave lower
    if (place < 0) return {.place = 0, .count = bin.count, .offsets = 0};
  }
  bin.place = sign * (place + 1);
  return bin;
}

template <class T>
void put(std::vector<std::byte>& bytes, const T& value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof value);
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  void take(T& value) {
    require(rest_.size() >= sizeof value);
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_ = rest_.subspan(sizeof value);
  }
  static void require(bool holds) {
    if (holds) return;
    throw InvalidGraph({.where = "observe",
                        .what = "the state of a histogram is damaged",
                        .expected = "bytes that a histogram returned"});
  }
  [[nodiscard]] bool done() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

constexpr std::uint32_t kFormat = 0x31485354;  // "TSH1" in memory

}  // namespace

// ---- tables ----

void Histogram::Table::count(std::span<const float> block, float unit) {
  static const HistogramKernels& kernels = histogram_kernels(best_isa());
  std::array<std::int32_t, kBlock + kSlack> places;
  const auto size = static_cast<std::int64_t>(block.size());
  std::int64_t found = size;
  if (has_zeros_ && kernels.nonzero_places != nullptr) {
    found = kernels.nonzero_places(block.data(), size, unit, places.data());
    entries_[kFirstZeroBin] += static_cast<std::uint64_t>(size - found) << kSumBits;
    has_zeros_ = found < size - size / kFewZeros;
  } else {
    kernels.places(block.data(), size, unit, places.data());
    std::int64_t zeros = 0;
    for (std::int64_t i = 0; i < size; i += kFewZeros) zeros += block[static_cast<std::size_t>(i)] == 0;
    has_zeros_ = zeros > size / (kFewZeros * kFewZeros);
  }
  std::uint64_t* const entries = entries_.data();
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < found; ++i) {
    const auto place = static_cast<std::uint32_t>(places[static_cast<std::size_t>(i)]);
    entries[place >> kOffsetBits] += kOneSample + (place & kOffsets);
  }
  pending_ += block.size();
}

// Empties the table and returns its bins in ascending places. They are valid until the next call.
std::span<const Histogram::Bin> Histogram::Table::drain() {
  constexpr std::int32_t kGroup = 8;
  static_assert(kBinsPerSign % kGroup == 0 && kFirstZeroBin % kGroup == 0 && kZeroBins % kGroup == 0);
  if (found_.empty()) found_.resize(kUsualBins);
  std::size_t count = 0;
  // Appends the nonempty bins of a group. Writes each bin; the next one overwrites an empty bin.
  const auto take = [&](std::int32_t first, std::int32_t step) {
    if (found_.size() < count + kGroup) found_.resize(2 * found_.size());
    Bin* end = found_.data() + count;
    for (std::int32_t i = 0, bin = step > 0 ? first : first + kGroup - 1; i < kGroup; ++i, bin += step) {
      const std::uint64_t entry = std::exchange(entries_[static_cast<std::size_t>(bin)], 0);
      *end = {.place = signed_place(bin),
              .count = (entry >> kSumBits) * times_,
              .offsets = (entry & (kOneSample - 1)) * times_};
      end += entry != 0;
    }
    count = static_cast<std::size_t>(end - found_.data());
  };
  const auto is_empty = [&](std::int32_t first) {
    std::uint64_t any = 0;
    const std::uint64_t* entry = entries_.data() + first;
    for (std::int32_t i = 0; i < kGroup; ++i) any |= entry[i];
    return any == 0;
  };
  for (std::int32_t first = 2 * kBinsPerSign - kGroup; first >= kBinsPerSign; first -= kGroup)
    if (!is_empty(first)) take(first, -1);
  std::uint64_t zeros = 0;
  for (std::int32_t bin = kFirstZeroBin; bin < kTableBins; ++bin)
    zeros += std::exchange(entries_[static_cast<std::size_t>(bin)], 0) >> kSumBits;
  if (zeros != 0) {
    if (count == found_.size()) found_.resize(count + kGroup);
    found_[count++] = {.place = 0, .count = zeros * times_, .offsets = 0};
  }
  for (std::int32_t first = 0; first < kBinsPerSign; first += kGroup)
    if (!is_empty(first)) take(first, 1);
  pending_ = 0;
  return std::span(found_).first(count);
}

void Histogram::observe(std::span<const float> values, Table& table, std::uint64_t times) {
  if (table.times_ != times) take(table);
  table.times_ = times;
  table.entries_.resize(kTableBins);
  Range batch;
  float unit = unit_of(exponent_), bound = std::ldexp(1.0F, exponent_);
  for_each_finite(values, batch, [&](std::span<const float> block) {
    if (batch.greatest >= bound || -batch.least >= bound) {
      // Extends the range once for all samples, since each extension empties the table.
      Range whole;
      whole.observe(values);
      take(table);
      extend_to(exponent_of(whole));
      unit = unit_of(exponent_), bound = std::ldexp(1.0F, exponent_);
    }
    table.count(block, unit);
    if (table.pending_ + kBlock > kMostPending) take(table);
  });
  batch.finite *= times, batch.infinities *= times, batch.nans *= times;
  range_.merge(batch);
}

void Histogram::take(Table& table) {
  if (!table.empty()) add(table.drain());
}

// ---- observing ----

void Histogram::observe(std::span<const float> values) {
  if (values.size() <= kFew)
    return for_each_finite(values, range_, [&](std::span<const float> block) { count_few(block); });
  // Each thread reuses one table, which is empty between calls. A call that throws drops the table.
  thread_local Table idle;
  Table table = std::exchange(idle, {});
  observe(values, table, 1);
  take(table);
  idle = std::move(table);
}

void Histogram::observe(float value, Table& table, std::uint64_t times) {
  if (times == 0) return;
  Histogram one;
  one.observe(std::span(&value, 1));
  for (Bin& bin : one.bins_) bin.count *= times, bin.offsets *= times;
  one.range_.finite = times;
  if (one.exponent_ > exponent_) take(table);
  merge(one);
}

// The exponent of the least range that contains the samples.
int Histogram::exponent_of(const Range& range) {
  const float most = range.finite == 0 ? 0.0F : std::max(std::abs(range.least), std::abs(range.greatest));
  if (most == 0) return kLeastExponent;
  int exponent = 0;
  static_cast<void>(std::frexp(most, &exponent));
  return std::max(exponent, kLeastExponent);
}

void Histogram::extend_to(int exponent) {
  if (bins_.empty()) exponent_ = std::max(exponent_, exponent);
  for (; exponent_ < exponent; ++exponent_) {
    std::vector<Bin> wider;
    wider.reserve(bins_.size());
    for (const Bin& bin : bins_) append(wider, doubled(bin));
    bins_ = std::move(wider);
  }
}

void Histogram::count_few(std::span<const float> values) {
  static const HistogramKernels& kernels = histogram_kernels(best_isa());
  if (values.empty()) return;
  extend_to(exponent_of(range_));
  std::array<std::int32_t, kFew> places;
  kernels.places(values.data(), static_cast<std::int64_t>(values.size()), unit_of(exponent_), places.data());
  std::array<Bin, kFew> bins;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int32_t bin = places[i] >> kOffsetBits;
    bins[i] = bin >= kFirstZeroBin ? Bin{.place = 0, .count = 1}
                                   : Bin{.place = signed_place(bin),
                                         .count = 1,
                                         .offsets = static_cast<std::uint32_t>(places[i]) & kOffsets};
  }
  const std::span<Bin> used(bins.data(), values.size());
  std::sort(used.begin(), used.end(), [](const Bin& a, const Bin& b) { return a.place < b.place; });
  std::vector<Bin> sorted;
  sorted.reserve(used.size());
  for (const Bin& bin : used) append(sorted, bin);
  add(sorted);
}

// Adds bins of the same range. In both lists, places ascend.
void Histogram::add(std::span<const Bin> bins) {
  // The vector keeps its size between calls: clearing it would take longer than the sums.
  thread_local std::vector<Bin> sum;
  if (sum.size() < bins_.size() + bins.size()) sum.resize(bins_.size() + bins.size());
  const Bin* mine = bins_.data();
  const Bin* const my_end = mine + bins_.size();
  const Bin* other = bins.data();
  const Bin* const other_end = other + bins.size();
  Bin* end = sum.data();
  // Has no branches, since processors cannot predict which of two bins comes next.
  while (mine != my_end && other != other_end) {
    const bool is_mine = mine->place <= other->place, is_other = other->place <= mine->place;
    const std::uint64_t my_mask = -std::uint64_t{is_mine}, other_mask = -std::uint64_t{is_other};
    *end++ = {.place = std::min(mine->place, other->place),
              .count = (mine->count & my_mask) + (other->count & other_mask),
              .offsets = (mine->offsets & my_mask) + (other->offsets & other_mask)};
    mine += is_mine;
    other += is_other;
  }
  end = std::copy(mine, my_end, end);
  end = std::copy(other, other_end, end);
  bins_.assign(sum.data(), end);
}

void Histogram::merge(const Histogram& other) {
  range_.merge(other.range_);
  extend_to(other.exponent_);
  if (other.exponent_ == exponent_) return add(other.bins_);
  Histogram wider = other;
  wider.extend_to(exponent_);
  add(wider.bins_);
}

std::vector<std::byte> Histogram::to_bytes() const {
  constexpr std::size_t kHeader = 64, kBin = sizeof Bin::place + sizeof Bin::count + sizeof Bin::offsets;
  std::vector<std::byte> bytes;
  bytes.reserve(kHeader + kBin * bins_.size());
  put(bytes, kFormat);
  put(bytes, range_.least);
  put(bytes, range_.greatest);
  put(bytes, range_.finite);
  put(bytes, range_.infinities);
  put(bytes, range_.nans);
  put(bytes, static_cast<std::int32_t>(exponent_));
  for (const Bin& bin : bins_) {
    put(bytes, bin.place);
    put(bytes, bin.count);
    put(bytes, bin.offsets);
  }
  return bytes;
}

Histogram Histogram::from_bytes(std::span<const std::byte> bytes) {
  Histogram out;
  Reader reader(bytes);
  std::uint32_t format = 0;
  std::int32_t exponent = 0;
  reader.take(format);
  Reader::require(format == kFormat);
  reader.take(out.range_.least);
  reader.take(out.range_.greatest);
  reader.take(out.range_.finite);
  reader.take(out.range_.infinities);
  reader.take(out.range_.nans);
  reader.take(exponent);
  out.exponent_ = exponent;
  std::uint64_t count = 0;
  out.bins_.reserve(bytes.size() / sizeof(Bin) + 1);
  while (!reader.done()) {
    Bin bin;
    reader.take(bin.place);
    reader.take(bin.count);
    reader.take(bin.offsets);
    Reader::require(std::abs(static_cast<std::int64_t>(bin.place)) <= kBinsPerSign && bin.count != 0 &&
                    bin.offsets / bin.count <= (bin.place == 0 ? 0 : kOffsets) &&
                    (out.bins_.empty() || out.bins_.back().place < bin.place));
    count += bin.count;
    out.bins_.push_back(bin);
  }
  const bool is_empty = out.range_.finite == 0;
  Reader::require(
      count == out.range_.finite &&
      (is_empty ? out.range_.least > out.range_.greatest : out.range_.least <= out.range_.greatest) &&
      (is_empty || (std::isfinite(out.range_.least) && std::isfinite(out.range_.greatest))) &&
      exponent == exponent_of(out.range_));
  return out;
}

void observe_channels(std::span<const float> values, ChannelShape shape, std::span<Histogram> histograms) {
  for_each_channel(values, shape, histograms);
}

}  // namespace tosaic::quant
