#include "tosaic/quant/calibrate/statistic.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "tosaic/base/error.h"

namespace tosaic::quant {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

class Writer {
 public:
  template <class T>
    requires std::is_arithmetic_v<T>
  void put(T value) {
    std::array<std::byte, sizeof(T)> raw;
    std::memcpy(raw.data(), &value, sizeof(T));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  void put(const Range& range) {
    put(range.least), put(range.greatest);
    put(range.finite), put(range.infinities), put(range.nans);
  }
  void put(std::span<const std::byte> bytes) {
    put(static_cast<std::uint64_t>(bytes.size()));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

// Reads what Writer wrote.
class StatisticReader {
 public:
  explicit StatisticReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    T value;
    const std::span<const std::byte> raw = take(sizeof(T));
    std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  Range range() {
    Range range;
    range.least = get<float>(), range.greatest = get<float>();
    range.finite = get<std::uint64_t>(), range.infinities = get<std::uint64_t>();
    range.nans = get<std::uint64_t>();
    return range;
  }
  MovingRange moving() {
    const auto weight = get<float>();
    if (!(weight > 0 && weight <= 1)) throw damaged();
    MovingRange moving(weight, get<std::uint8_t>() != 0);
    moving.average_ = range();
    const auto count = get<std::uint64_t>();
    if (count > bytes_.size()) throw damaged();
    for (std::uint64_t i = 0; i < count; ++i) moving.collected_.push_back(range());
    return moving;
  }
  std::span<const std::byte> block() { return take(get<std::uint64_t>()); }
  [[nodiscard]] bool at_end() const { return bytes_.empty(); }

  static void write(Writer& out, const MovingRange& moving) {
    out.put(moving.weight_);
    out.put(static_cast<std::uint8_t>(moving.collects_));
    out.put(moving.average_);
    out.put(static_cast<std::uint64_t>(moving.collected_.size()));
    for (const Range& each : moving.collected_) out.put(each);
  }

  static InvalidGraph damaged() {
    return InvalidGraph({.where = "calibrate", .what = "the state of a calibration is damaged"});
  }

 private:
  std::span<const std::byte> take(std::uint64_t size) {
    if (size > bytes_.size()) throw damaged();
    const std::span<const std::byte> taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  std::span<const std::byte> bytes_;
};

// ---- moving averages ----

MovingRange::MovingRange(float weight, bool collects) : weight_(weight), collects_(collects) {
  if (!(weight > 0 && weight <= 1))
    throw QuantMismatch({.where = "observe",
                         .what = "the weight of a moving average",
                         .expected = "more than 0, and at most 1",
                         .got = std::to_string(weight)});
}

void MovingRange::add(const Range& batch) {
  if (collects_)
    collected_.push_back(batch);
  else
    average_ = moving_average(average_, batch, weight_);
}

Range MovingRange::observe(std::span<const float> values) {
  Range batch;
  batch.observe(values);
  add(batch);
  return batch;
}

void MovingRange::merge(const MovingRange& later) {
  if (!later.collects_ && later.average_.finite > 0)
    throw InternalError({.where = "calibrate", .what = "moving averages cannot be merged"});
  for (const Range& each : later.collected_) add(each);
}

Range MovingRange::range() const {
  Range range = average_;
  for (const Range& each : collected_) range = moving_average(range, each, weight_);
  return range;
}

// ---- all kinds ----

ChannelShape channel_shape(const Shape& shape, std::int64_t axis) {
  if (axis < 0 || axis >= static_cast<std::int64_t>(shape.size()))
    throw LayoutMismatch({.where = "observe",
                          .what = "the axis of the channels",
                          .expected = "an axis of " + to_string(shape),
                          .got = std::to_string(axis)});
  const auto at = static_cast<std::size_t>(axis);
  ChannelShape found{.outer = 1, .channels = shape[at], .inner = 1};
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (i != at) (i < at ? found.outer : found.inner) *= shape[i];
  return found;
}

namespace {

NotFinite count_not_finite(std::span<const float> values) {
  NotFinite found;
  for (const float value : values) {
    found.nans += std::isnan(value) ? 1U : 0U;
    found.infinities += std::isinf(value) ? 1U : 0U;
  }
  return found;
}

}  // namespace

NotFinite Observing::observe(std::span<const float> values, const Shape& shape, std::uint64_t times) {
  if (auto* const histogram = std::get_if<Histogram>(&statistic_)) {
    const Range before = histogram->range();
    histogram->observe(values, table_, times);
    const Range& after = histogram->range();
    return {(after.infinities - before.infinities) / times, (after.nans - before.nans) / times};
  }
  if (auto* const range = std::get_if<Range>(&statistic_)) {
    Range batch;
    batch.observe(values);
    Range repeated = batch;
    repeated.finite *= times, repeated.infinities *= times, repeated.nans *= times;
    range->merge(repeated);
    return {batch.infinities, batch.nans};
  }
  if (auto* const mask = std::get_if<MaskRange>(&statistic_)) {
    MaskRange batch;
    const Range ignored = batch.observe(values);
    for (Range* each : {&batch.visible, &batch.hidden}) each->finite *= times, each->infinities *= times;
    mask->merge(batch);
    return {ignored.infinities, ignored.nans};
  }
  return std::visit(Overloaded{[&](MovingRange& moving) {
                                 const Range batch = moving.observe(values);
                                 return NotFinite{batch.infinities, batch.nans};
                               },
                               [&](Range&) { return NotFinite(); }, [&](Histogram&) { return NotFinite(); },
                               [&](MaskRange&) { return NotFinite(); },
                               [&](auto& of_tensor) {
                                 const NotFinite found = count_not_finite(values);
                                 if (!found.any()) of_tensor.observe(values, shape);
                                 return found;
                               }},
                    statistic_);
}

void Observing::observe(float value, std::uint64_t times) {
  if (auto* const histogram = std::get_if<Histogram>(&statistic_))
    histogram->observe(value, table_, times);
  else if (auto* const mask = std::get_if<MaskRange>(&statistic_))
    mask->observe(value, times);
  else
    std::get<Range>(statistic_).observe(value, times);
}

Statistic Observing::take() {
  if (auto* const histogram = std::get_if<Histogram>(&statistic_)) histogram->take(table_);
  return std::exchange(statistic_, empty_like(statistic_));
}

void merge(Statistic& into, const Statistic& later) {
  if (into.index() != later.index())
    throw InternalError({.where = "calibrate", .what = "statistics of different kinds are merged"});
  std::visit([&]<class T>(T& each) { each.merge(std::get<T>(later)); }, into);
}

Statistic empty_like(const Statistic& statistic) {
  return std::visit(
      Overloaded{[](const Range&) -> Statistic { return Range(); },
                 [](const MovingRange& m) -> Statistic { return MovingRange(m.weight(), true); },
                 [](const Histogram&) -> Statistic { return Histogram(); },
                 [](const MaskRange&) -> Statistic { return MaskRange(); },
                 [](const ContractionMoments& m) -> Statistic {
                   return ContractionMoments{m.contraction, SecondMoments(*m.contraction, m.moments.grid())};
                 },
                 [](const AxisAbsMax& m) -> Statistic {
                   return AxisAbsMax{m.axis,
                                     ChannelAbsMax(static_cast<std::int64_t>(m.channels.most().size()))};
                 },
                 [](const AxisSums& s) -> Statistic {
                   return AxisSums{s.axis, ChannelSums(static_cast<std::int64_t>(s.channels.sums().size()),
                                                       s.channels.exponent())};
                 }},
      statistic);
}

Range bounds_of(const Statistic& statistic) {
  return std::visit(
      Overloaded{[](const Range& range) { return range; },
                 [](const MovingRange& moving) { return moving.range(); },
                 [](const Histogram& histogram) { return histogram.range(); },
                 [](const MaskRange& mask) { return mask.all(); },
                 [](const auto&) -> Range {
                   throw InternalError({.where = "calibrate", .what = "a statistic has no range"});
                 }},
      statistic);
}

// ---- bytes ----

std::vector<std::byte> to_bytes(std::span<const Statistic> statistics) {
  Writer out;
  out.put(static_cast<std::uint64_t>(statistics.size()));
  for (const Statistic& each : statistics) {
    out.put(static_cast<std::uint8_t>(each.index()));
    std::visit(Overloaded{[&](const Range& range) { out.put(range); },
                          [&](const MovingRange& moving) { StatisticReader::write(out, moving); },
                          [&](const Histogram& histogram) { out.put(histogram.to_bytes()); },
                          [&](const ContractionMoments& m) { out.put(m.moments.to_bytes()); },
                          [&](const MaskRange& mask) { out.put(mask.visible), out.put(mask.hidden); },
                          [&](const auto& of_axis) {
                            out.put(of_axis.axis);
                            out.put(of_axis.channels.to_bytes());
                          }},
               each);
  }
  return out.take();
}

static Statistic read_statistic(StatisticReader& in, std::uint8_t kind) {
  switch (kind) {
    case 0:
      return in.range();
    case 1:
      return in.moving();
    case 2:
      return Histogram::from_bytes(in.block());
    case 3:
      return ContractionMoments{nullptr, SecondMoments::from_bytes(in.block())};
    case 4: {
      const auto axis = in.get<std::int64_t>();
      return AxisAbsMax{axis, ChannelAbsMax::from_bytes(in.block())};
    }
    case 5: {
      const auto axis = in.get<std::int64_t>();
      return AxisSums{axis, ChannelSums::from_bytes(in.block())};
    }
    case 6: {
      const Range visible = in.range();
      return MaskRange{visible, in.range()};
    }
    default:
      throw StatisticReader::damaged();
  }
}

std::vector<Statistic> statistics_from_bytes(std::span<const std::byte> bytes) {
  StatisticReader in(bytes);
  const auto count = in.get<std::uint64_t>();
  if (count > bytes.size()) throw StatisticReader::damaged();
  std::vector<Statistic> found;
  for (std::uint64_t i = 0; i < count; ++i) {
    found.push_back(read_statistic(in, in.get<std::uint8_t>()));
  }
  if (!in.at_end()) throw StatisticReader::damaged();
  return found;
}

}  // namespace tosaic::quant
