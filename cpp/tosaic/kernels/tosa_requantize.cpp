// tosa.table and tosa.rescale: integer functions of one element, computed exactly as the specification
// defines them.
//
// The fast path of rescale works in blocks: it converts elements to i32 (i48 to i64), scales them by the
// loops of the instruction set, and converts them to the result's dtype. The multipliers of the channels are
// repeated in a table about as long as a block, so that a block with few channels is as fast as with one
// channel. If a block has a value for which RESCALE has no result, the reference runs on the block and throws
// an error that names the value. Threads share the elements.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/apply_scale.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/families.h"
#include "tosaic/kernels/isa/rescale.h"
#include "tosaic/kernels/isa/table.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/requantize.h"
#include "tosaic/kernels/scratch.h"

namespace tosaic::kernels {
namespace {

using std::int64_t;

template <class T>
T element(const std::byte* array, int64_t i) {
  T value;
  std::memcpy(&value, array + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void put(std::byte* array, int64_t i, T value) {
  std::memcpy(array + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// ---- table ----

void look_up_one_by_one(const std::int8_t* table, const std::int8_t* values, std::int8_t* results,
                        int64_t count) {
  for (int64_t i = 0; i < count; ++i) results[i] = table[values[i] + 128];
}

Kernel table_i8(int64_t count, const Options& options) {
  auto look_up = options.reference ? nullptr : TOSAIC_SELECT_ISA(options.isa, kTable).look_up;
  if (look_up == nullptr) look_up = look_up_one_by_one;
  Kernel kernel;
  kernel.in_place = 1;
  kernel.run = [count, look_up](const Arrays& arrays) {
    const auto* values = reinterpret_cast<const std::int8_t*>(arrays.operands[0]);
    const auto* table = reinterpret_cast<const std::int8_t*>(arrays.operands[1]);
    auto* results = reinterpret_cast<std::int8_t*>(arrays.results[0]);
    const Loop elements{.count = count, .step = 64, .unit_cost = 2 * cost::kCopy};
    parallel_for(arrays.team, elements, [&](int64_t begin, int64_t end, Worker) {
      look_up(table, values + begin, results + begin, end - begin);
    });
  };
  return kernel;
}

// The upper nine bits of value + 2^15 select an entry. The lower seven interpolate between it and the next
// entry, so the result has 7 bits more than the entries.
std::int32_t interpolated(const std::byte* table, std::int16_t value) {
  const int offset = value + 32768;
  const int base = element<std::int16_t>(table, offset >> 7);
  const int next = element<std::int16_t>(table, (offset >> 7) + 1);
  const int slope = next - base;
  if (slope < std::numeric_limits<std::int16_t>::min() || slope > std::numeric_limits<std::int16_t>::max())
    throw InvalidGraph(
        {.where = "run",
         .what = "tosa.table: entries " + std::to_string(offset >> 7) + " and the next are too far apart",
         .expected = "a difference of 16 bits",
         .got = std::to_string(slope)});
  return base * 128 + slope * (offset & 127);
}

void interpolate_one_by_one(int64_t count, const Arrays& arrays) {
  for (int64_t i = 0; i < count; ++i)
    put(arrays.results[0], i, interpolated(arrays.operands[1], element<std::int16_t>(arrays.operands[0], i)));
}

// Interpolates in a table. If a slope does not fit 16 bits, the reference runs instead, and throws if a value
// uses this slope.
void interpolate(int64_t count, const TableKernels& kernels, const Arrays& arrays) {
  constexpr int64_t kEntries = 512;
  std::array<std::int32_t, kEntries> base, slope;
  for (int64_t i = 0; i < kEntries; ++i) {
    const auto at = static_cast<std::size_t>(i);
    base[at] = element<std::int16_t>(arrays.operands[1], i);
    slope[at] = element<std::int16_t>(arrays.operands[1], i + 1) - base[at];
    if (slope[at] != static_cast<std::int16_t>(slope[at])) return interpolate_one_by_one(count, arrays);
  }
  const Loop elements{.count = count, .step = 64, .unit_cost = 4 * cost::kCopy};
  parallel_for(arrays.team, elements, [&](int64_t begin, int64_t end, Worker) {
    kernels.interpolate({base.data(), slope.data()},
                        reinterpret_cast<const std::int16_t*>(arrays.operands[0]) + begin,
                        reinterpret_cast<std::int32_t*>(arrays.results[0]) + begin, end - begin);
  });
}

Kernel table_i16(int64_t count, const Options& options) {
  Kernel kernel;
  if (options.reference)
    kernel.run = [count](const Arrays& arrays) { interpolate_one_by_one(count, arrays); };
  else
    kernel.run = [count, &kernels = TOSAIC_SELECT_ISA(options.isa, kTable)](const Arrays& arrays) {
      interpolate(count, kernels, arrays);
    };
  return kernel;
}

Kernel table(const Request& request) {
  const int64_t count = num_elements(request.results[0].shape);
  const DType dtype = request.operands[0].dtype;
  Kernel kernel;
  if (dtype == DType::kI8)
    kernel = table_i8(count, request.options);
  else if (dtype == DType::kI16)
    kernel = table_i16(count, request.options);
  else
    fail_unsupported(request);
  kernel.name = kernel_name(request);
  return kernel;
}

// ---- rescale ----

int64_t load(DType dtype, bool is_unsigned, const std::byte* array, int64_t i) {
  if (dtype == DType::kI8)
    return is_unsigned ? element<std::uint8_t>(array, i) : element<std::int8_t>(array, i);
  if (dtype == DType::kI16)
    return is_unsigned ? element<std::uint16_t>(array, i) : element<std::int16_t>(array, i);
  if (dtype == DType::kI32) return element<std::int32_t>(array, i);
  return element<int64_t>(array, i);  // i48 is stored in eight bytes
}

// Stores the low bits, which are the same for signed and unsigned elements.
void store(DType dtype, std::byte* array, int64_t i, int64_t value) {
  if (dtype == DType::kI8) return put(array, i, static_cast<std::int8_t>(value));
  if (dtype == DType::kI16) return put(array, i, static_cast<std::int16_t>(value));
  put(array, i, static_cast<std::int32_t>(value));
}

struct Channel {
  Multiplier by;
  ValueRange values;  // the values minus the zero point for which the specification defines a result
};

struct Rescale {
  TosaRescaleAttrs attrs;
  MultiplierWidth width = MultiplierWidth::k32;
  std::vector<Channel> channels;
  DType from = DType::kI8;
  ValueRange results;

  [[nodiscard]] const Channel& channel(int64_t i) const {
    return channels[static_cast<std::size_t>(i) % channels.size()];
  }
};

[[noreturn]] void fail_range(const Channel& channel, int64_t value) {
  throw InvalidGraph(
      {.where = "run",
       .what = "tosa.rescale: a value less its zero point is out of range of multiplier " +
               std::to_string(channel.by.multiplier) + " and shift " + std::to_string(channel.by.shift),
       .expected = std::to_string(channel.values.low) + " to " + std::to_string(channel.values.high),
       .got = std::to_string(value)});
}

// Rescales elements [begin, end). Element 0 of the arrays has channel `first`.
void run_reference(const Rescale& plan, int64_t begin, int64_t end, int64_t first, const std::byte* input,
                   std::byte* output) {
  const TosaRescaleAttrs& a = plan.attrs;
  for (int64_t i = begin; i < end; ++i) {
    const Channel& channel = plan.channel(first + i);
    const int64_t value = load(plan.from, a.input_unsigned, input, i) - a.input_zp;
    if (!channel.values.contains(value)) fail_range(channel, value);
    const int64_t scaled = apply_scale(value, channel.by, plan.width, a.rounding_mode) + a.output_zp;
    store(a.dtype, output, i, std::clamp(scaled, plan.results.low, plan.results.high));
  }
}

Rescale plan_of(const TosaRescaleAttrs& attrs, DType from) {
  Rescale plan;
  plan.attrs = attrs;
  plan.from = from;
  plan.width = plan.attrs.scale32 ? MultiplierWidth::k32 : MultiplierWidth::k16;
  for (std::size_t c = 0; c < plan.attrs.multiplier.size(); ++c) {
    const Multiplier by{static_cast<std::int32_t>(plan.attrs.multiplier[c]),
                        static_cast<std::int32_t>(plan.attrs.shift[c])};
    plan.channels.push_back({by, scalable_values(by, plan.width, plan.attrs.output_zp)});
  }
  const auto bits = static_cast<int>(byte_size(plan.attrs.dtype)) * 8;
  const bool is_unsigned = plan.attrs.output_unsigned;
  plan.results = {is_unsigned ? 0 : -(int64_t{1} << (bits - 1)),
                  (int64_t{1} << (is_unsigned ? bits : bits - 1)) - 1};
  return plan;
}

// ---- fast path ----

DType with_sign(DType dtype, bool is_unsigned) {
  if (!is_unsigned) return dtype;
  return dtype == DType::kI8 ? DType::kU8 : DType::kU16;
}

// The values that an input element can have, minus the zero point.
ValueRange values_of(const Rescale& plan) {
  if (plan.from == DType::kI48) return {INT64_MIN, INT64_MAX};  // stored in eight bytes
  const auto bits = static_cast<int>(byte_size(plan.from)) * 8;
  const int64_t low = plan.attrs.input_unsigned ? 0 : -(int64_t{1} << (bits - 1));
  return {low - plan.attrs.input_zp, low + (int64_t{1} << bits) - 1 - plan.attrs.input_zp};
}

// The multiplier, shift and bounds of each element, so that vector code reads them without an index of the
// channel. The entries of the channels are repeated for `period` elements. After them are the next
// kRescalePadding entries, which a vector that begins within the period may read.
template <class T>
struct Tables {
  std::vector<std::int32_t> multiplier, shift;
  std::vector<T> low, high;
  int64_t period = 1;     // elements after which the tables repeat
  bool is_bound = false;  // some value of the input has no result
  bool high_halves = true;
  std::optional<std::int32_t> right;  // RescaleTables::right
  // The values that have a result in all channels.
  T lowest = std::numeric_limits<T>::min(), highest = std::numeric_limits<T>::max();

  explicit Tables(const Rescale& plan) {
    const auto channels = static_cast<int64_t>(plan.channels.size());
    if (channels == 0) return;  // no channels: there are no elements either
    period = channels == 1 ? 1 : channels * std::max<int64_t>(1, kBlockElements / channels);
    const ValueRange values = values_of(plan);
    for (int64_t i = 0; i < period + kRescalePadding; ++i) {
      const Channel& channel = plan.channel(i);
      multiplier.push_back(channel.by.multiplier);
      shift.push_back(channel.by.shift);
      low.push_back(static_cast<T>(std::max<int64_t>(channel.values.low, std::numeric_limits<T>::min())));
      high.push_back(static_cast<T>(std::min<int64_t>(channel.values.high, std::numeric_limits<T>::max())));
      lowest = std::max(lowest, low.back());
      highest = std::min(highest, high.back());
      high_halves = high_halves && channel.by.shift >= 33;
      is_bound = is_bound || channel.values.low > values.low || channel.values.high < values.high;
    }
    set_right(plan);
  }

  void set_right(const Rescale& plan) {
    const Multiplier& by = plan.channels.front().by;
    if (plan.channels.size() != 1 || plan.attrs.rounding_mode != RoundingMode::kSingleRound ||
        by.multiplier <= 0 || !std::has_single_bit(static_cast<std::uint32_t>(by.multiplier)))
      return;
    const std::int32_t bits = by.shift - std::countr_zero(static_cast<std::uint32_t>(by.multiplier));
    if (bits <= 31) right = bits;
  }

  [[nodiscard]] RescaleTables<T> at(const Rescale& plan, int64_t i) const {
    return {.multiplier = multiplier.data() + i,
            .shift = shift.data() + i,
            .low = low.data() + i,
            .high = high.data() + i,
            .uniform = plan.channels.size() == 1,
            .double_round = plan.attrs.rounding_mode == RoundingMode::kDoubleRound,
            .high_halves = high_halves && plan.attrs.rounding_mode == RoundingMode::kSingleRound,
            .shifts = right.has_value(),
            .right = right.value_or(0),
            .input_zp = static_cast<T>(plan.attrs.input_zp),
            .output_zp = static_cast<std::int32_t>(plan.attrs.output_zp),
            .min = static_cast<std::int32_t>(plan.results.low),
            .max = static_cast<std::int32_t>(plan.results.high)};
  }
};

template <class T>
struct Fast {
  Rescale plan;
  Tables<T> tables;
  RescaleTables<T> all;  // from the first element on
  RescaleKernels<T> kernels;
  ConvertBlock load = nullptr;   // null: the array holds T
  ConvertBlock store = nullptr;  // null: the result is i32
  bool to_words = false;         // results are i16, and the kernels write i16
  typename RescaleKernels<T>::Direct direct =
      nullptr;  // null: the kernels do not read and write these dtypes

  Fast(Rescale from, const RescaleKernels<T>& rescale_kernels, const ConvertKernels& convert)
      : plan(std::move(from)), tables(plan), all(tables.at(plan, 0)), kernels(rescale_kernels) {
    const Domain domain = sizeof(T) == 8 ? Domain::kI64 : Domain::kI32;
    if (!is_domain(plan.from, domain))
      load = convert.load(with_sign(plan.from, plan.attrs.input_unsigned), domain);
    if (plan.attrs.dtype != DType::kI32)
      store = convert.store(Domain::kI32, plan.attrs.dtype, Rounding::kTruncate);
    to_words =
        kernels.scale_to_words != nullptr && plan.attrs.dtype == DType::kI16 && !plan.attrs.output_unsigned;
    const bool compares = byte_size(plan.from) == sizeof(T) || !tables.is_bound;
    if (compares && !plan.attrs.input_unsigned && !plan.attrs.output_unsigned)
      direct = kernels.direct[log2_bytes(plan.from)][log2_bytes(plan.attrs.dtype)];
  }

  // 0, 1 or 2 for integers of 8, 16 or 32 bits. i48 is the one dtype of T i64, for which there is no direct
  // loop.
  static std::size_t log2_bytes(DType dtype) {
    return dtype == DType::kI8 ? 0 : dtype == DType::kI16 ? 1 : 2;
  }

  static constexpr std::size_t kScratchBytes = kBlockElements * (sizeof(T) + sizeof(std::int32_t));

  // Rescales arrays whose first element has channel `first`.
  void run(const std::byte* input, int64_t elements, int64_t first, std::byte* output,
           std::byte* scratch) const {
    const auto from_size = static_cast<int64_t>(byte_size(plan.from));
    const auto to_size = static_cast<int64_t>(byte_size(plan.attrs.dtype));
    auto* loaded = reinterpret_cast<T*>(scratch);
    auto* scaled = reinterpret_cast<std::int32_t*>(scratch + kBlockElements * sizeof(T));
    // The direct loop overwrites values of which it then says that they are out of range.
    const bool may_retry = !tables.is_bound || input != output;
    if (direct != nullptr && tables.period == 1 && elements > 0) {
      const bool is_inside = !may_retry && kernels.inside(all, reinterpret_cast<const T*>(input), elements);
      const T low = is_inside ? std::numeric_limits<T>::min() : tables.lowest;
      const T high = is_inside ? std::numeric_limits<T>::max() : tables.highest;
      if ((may_retry || is_inside) && direct(all, low, high, input, output, elements)) return;
    }
    for (int64_t begin = 0, count = 0; begin < elements; begin += count) {
      const int64_t place = (first + begin) % tables.period;
      count = std::min(kBlockElements, elements - begin);
      if (tables.period > 1) count = std::min(count, tables.period - place);
      const RescaleTables<T> block = tables.at(plan, place);
      std::byte* to = output + begin * to_size;
      if (direct != nullptr && may_retry &&
          direct(block, tables.lowest, tables.highest, input + begin * from_size, to, count))
        continue;
      std::int32_t* results = store == nullptr ? reinterpret_cast<std::int32_t*>(to) : scaled;
      const T* values = loaded;
      if (load == nullptr)
        values = reinterpret_cast<const T*>(input + begin * from_size);
      else
        load(input + begin * from_size, loaded, count);
      if (to_words && kernels.scale_to_words(block, tables.lowest, tables.highest, values,
                                             reinterpret_cast<std::int16_t*>(to), count))
        continue;
      if (tables.is_bound && !kernels.inside(block, values, count))
        return run_reference(plan, begin, begin + count, first, input, output);  // throws
      kernels.scale(block, values, results, count);
      if (store != nullptr) store(scaled, to, count);
    }
  }
};

const RescaleKernels<std::int32_t>& rescale_kernels(Isa isa, std::int32_t) {
  return TOSAIC_SELECT_ISA(isa, kRescaleI32);
}
const RescaleKernels<int64_t>& rescale_kernels(Isa isa, int64_t) {
  return TOSAIC_SELECT_ISA(isa, kRescaleI64);
}

template <class T>
Kernel fast(Rescale plan, int64_t elements, const RescaleKernels<T>& kernels, const Options& options) {
  const auto from_size = static_cast<int64_t>(byte_size(plan.from));
  const auto to_size = static_cast<int64_t>(byte_size(plan.attrs.dtype));
  ScratchPlan scratch, own;
  own.take<std::byte>(Fast<T>::kScratchBytes);
  const PerWorker workers = scratch.take_each(own, options.threads.count);
  Kernel kernel;
  kernel.scratch_bytes = scratch.bytes();
  const auto fast = std::make_shared<const Fast<T>>(std::move(plan), kernels, convert_kernels(options.isa));
  kernel.run = [=](const Arrays& arrays) {
    const Loop loop{.count = elements, .step = kBlockElements, .unit_cost = 4 * cost::kCopy};
    parallel_for(arrays.team, loop, [&](int64_t begin, int64_t end, Worker worker) {
      fast->run(arrays.operands[0] + begin * from_size, end - begin, begin,
                arrays.results[0] + begin * to_size, workers.of(arrays.scratch, worker));
    });
  };
  return kernel;
}

Kernel reference(Rescale plan, int64_t elements) {
  Kernel kernel;
  kernel.run = [elements, plan = std::make_shared<const Rescale>(std::move(plan))](const Arrays& arrays) {
    run_reference(*plan, 0, elements, 0, arrays.operands[0], arrays.results[0]);
  };
  return kernel;
}

Kernel rescale(const Request& request) {
  const Isa isa = request.options.isa;
  const int64_t elements = num_elements(request.results[0].shape);
  Rescale plan = plan_of(attrs_of<TosaRescaleAttrs>(request), request.operands[0].dtype);
  Kernel kernel;
  if (request.options.reference)
    kernel = reference(std::move(plan), elements);
  else if (plan.from == DType::kI48)
    kernel = fast(std::move(plan), elements, rescale_kernels(isa, int64_t{}), request.options);
  else
    kernel = fast(std::move(plan), elements, rescale_kernels(isa, std::int32_t{}), request.options);
  kernel.in_place = 1;
  kernel.name = kernel_name(request);
  return kernel;
}

// The attributes of a rescale or tosa.rescale (channels on the last axis) of an operand of this rank. Returns
// nothing for other operators.
std::optional<RescaleAttrs> rescale_of(const Follower& follower, std::size_t rank) {
  if (follower.op == Op::kRescale) return get<RescaleAttrs>(*follower.attrs);
  if (follower.op != Op::kTosaRescale) return std::nullopt;
  return RescaleAttrs{get<TosaRescaleAttrs>(*follower.attrs), static_cast<int64_t>(rank) - 1};
}

// Restricts the limits of the results to the limits of a tosa.clamp. Returns false if the follower is another
// operator, if the result is unsigned, or if the bounds have no value in common.
bool take_clamp(const Follower& follower, Rescale& plan) {
  if (follower.op != Op::kTosaClamp || plan.attrs.output_unsigned) return false;
  const auto& clamp = get<TosaClampAttrs>(*follower.attrs);
  plan.results.low = std::max(plan.results.low, as_int(clamp.min_val));
  plan.results.high = std::min(plan.results.high, as_int(clamp.max_val));
  return plan.results.low <= plan.results.high;
}

// The kernel of `rescale`: tosa.rescale with the channels on any axis, and with dtypes that include the sign.
// Elements that differ only in the axes after the channel axis have the same multiplier, so each such run of
// elements is a tosa.rescale of its own.
Kernel rescale_on_axis(const Request& request) {
  const auto& attrs = attrs_of<RescaleAttrs>(request);
  const Shape& shape = request.results[0].shape;
  const std::size_t axis = attrs.axis ? static_cast<std::size_t>(*attrs.axis) : shape.size();
  const auto as_tosa = [&](const TosaRescaleAttrs& rescale_attrs, const Shape& part, const Options& options) {
    const Attrs tosa = rescale_attrs;
    Operand from = request.operands[0], to = request.results[0];
    from.shape = to.shape = part;
    from.dtype = without_sign(from.dtype);
    to.dtype = without_sign(to.dtype);
    return rescale({Op::kTosaRescale, &tosa, {&from, 1}, {&to, 1}, options});
  };
  if (axis + 1 >= shape.size()) return as_tosa(attrs.rescale, shape, request.options);
  const Shape behind(shape.span().subspan(axis + 1));
  Options alone = request.options;  // each channel is run by one thread
  alone.threads = {};
  std::vector<Kernel> channels;
  for (std::size_t c = 0; c < attrs.rescale.multiplier.size(); ++c) {
    TosaRescaleAttrs one = attrs.rescale;
    one.per_channel = false;
    one.multiplier = {attrs.rescale.multiplier[c]};
    one.shift = {attrs.rescale.shift[c]};
    channels.push_back(as_tosa(one, behind, alone));
  }
  Kernel kernel;
  if (!channels.empty()) kernel = channels.front();  // name, in_place
  ScratchPlan scratch, own;
  own.take<std::byte>(static_cast<int64_t>(kernel.scratch_bytes));
  const PerWorker workers = scratch.take_each(own, request.options.threads.count);
  kernel.scratch_bytes = scratch.bytes();
  const int64_t count = num_elements(behind), parts = num_elements(shape) / std::max<int64_t>(count, 1);
  const auto from_bytes = count * static_cast<int64_t>(byte_size(request.operands[0].dtype));
  const auto to_bytes = count * static_cast<int64_t>(byte_size(request.results[0].dtype));
  kernel.run = [=, channels = std::move(channels)](const Arrays& arrays) {
    const Loop loop{.count = parts, .unit_cost = static_cast<double>(count) * 4 * cost::kCopy};
    parallel_for(arrays.team, loop, [&](int64_t begin, int64_t end, Worker worker) {
      for (int64_t part = begin; part < end; ++part) {
        const std::byte* from = arrays.operands[0] + part * from_bytes;
        std::byte* to = arrays.results[0] + part * to_bytes;
        channels[static_cast<std::size_t>(part) % channels.size()].run(
            {{&from, 1}, {&to, 1}, workers.of(arrays.scratch, worker)});
      }
    });
  };
  return kernel;
}

}  // namespace

template <class V>
Requantizer<V> prepare_requantizer(std::span<const Follower> followers, const Shape& shape, std::size_t axis,
                                   Isa isa) {
  constexpr bool kIs32 = sizeof(V) == 4;
  if (followers.empty()) return {};
  const std::optional<RescaleAttrs> found = rescale_of(followers[0], shape.size());
  if (!found || found->rescale.scale32 != kIs32) return {};
  if (found->rescale.per_channel && found->axis != static_cast<int64_t>(axis)) return {};
  const TosaRescaleAttrs& attrs = found->rescale;
  Rescale plan = plan_of(attrs, kIs32 ? DType::kI32 : DType::kI48);
  for (const Follower& follower : followers.subspan(1))
    if (!take_clamp(follower, plan)) return {};
  Requantizer<V> requantizer;
  requantizer.bytes = byte_size(attrs.dtype);
  requantizer.scratch_bytes = Fast<V>::kScratchBytes;
  const auto fast =
      std::make_shared<const Fast<V>>(std::move(plan), rescale_kernels(isa, V{}), convert_kernels(isa));
  requantizer.run = [fast](const V* values, int64_t count, int64_t channel, std::byte* to,
                           std::byte* scratch) {
    fast->run(reinterpret_cast<const std::byte*>(values), count, channel, to, scratch);
  };
  if constexpr (kIs32) {
    if (attrs.dtype == DType::kI32 && !attrs.output_unsigned && attrs.input_zp == 0 &&
        !fast->plan.channels.empty())
      requantizer.wide_tables = fast->tables.at(fast->plan, 0);
    if (attrs.dtype == DType::kI8 && !attrs.output_unsigned && attrs.input_zp == 0 &&
        !fast->tables.is_bound && !fast->plan.channels.empty())
      requantizer.tables = fast->tables.at(fast->plan, 0);
  }
  if constexpr (!kIs32)
    if (attrs.dtype == DType::kI16 && !attrs.output_unsigned && attrs.input_zp == 0 &&
        !fast->plan.channels.empty())
      requantizer.word_tables = fast->tables.at(fast->plan, 0);
  return requantizer;
}

template Requantizer<std::int32_t> prepare_requantizer(std::span<const Follower>, const Shape&, std::size_t,
                                                       Isa);
template Requantizer<int64_t> prepare_requantizer(std::span<const Follower>, const Shape&, std::size_t, Isa);

Kernel prepare_table(const Request& request) { return table(request); }
Kernel prepare_tosa_rescale(const Request& request) { return rescale(request); }
Kernel prepare_rescale(const Request& request) { return rescale_on_axis(request); }

}  // namespace tosaic::kernels
