#include <algorithm>

#include "run_kernel.h"
#include "tosaic/base/error.h"
#include "tosaic/ir/apply_scale.h"

namespace tosaic::kernels::testing {
namespace {

struct Signs {
  bool input = false, output = false;
};

// The number of channels, and the range from which their shifts are drawn.
struct Scales {
  std::int64_t channels = 1;
  std::int64_t lowest_shift = kMinShift, highest_shift = kMaxShift;
};

TosaRescaleAttrs attributes(std::mt19937& random, DType from, DType to, RoundingMode mode, Scales scales,
                            Signs signs = {}) {
  TosaRescaleAttrs attrs;
  attrs.dtype = to;
  attrs.scale32 = from != DType::kI48;
  attrs.rounding_mode = mode;
  attrs.per_channel = scales.channels > 1;
  attrs.input_unsigned = signs.input;
  attrs.output_unsigned = signs.output;
  const auto zero_point = [&](DType dtype, bool is_unsigned) -> std::int64_t {
    if (dtype == DType::kI16) return is_unsigned ? 32768 : 0;
    if (dtype != DType::kI8) return 0;
    return static_cast<std::int64_t>(random() % 256) - (is_unsigned ? 0 : 128);
  };
  attrs.input_zp = zero_point(from, signs.input);
  attrs.output_zp = zero_point(to, signs.output);
  const std::int64_t largest = attrs.scale32 ? 0x7fffffff : 0x7fff;
  std::uniform_int_distribution<std::int64_t> shifts(scales.lowest_shift, scales.highest_shift);
  for (std::int64_t c = 0; c < scales.channels; ++c) {
    const std::int64_t kind = static_cast<std::int64_t>(random() % 8);
    attrs.multiplier.push_back(kind == 0 ? 0 : kind == 1 ? largest : random() & largest);
    attrs.shift.push_back(shifts(random));
  }
  return attrs;
}

ValueRange stored_values(DType dtype, bool is_unsigned) {
  if (dtype == DType::kI48) return kInt48Values;
  const int bits = static_cast<int>(byte_size(dtype)) * 8;
  const std::int64_t low = is_unsigned ? 0 : -(std::int64_t{1} << (bits - 1));
  return {low, low + (std::int64_t{1} << bits) - 1};
}

// A random value for which the rescale of this channel is defined: an end of the range, a value near the zero
// point, a value whose scaled result is near a tie, or any other.
std::int64_t value_for(std::mt19937& random, const TosaRescaleAttrs& attrs, DType from, std::size_t channel) {
  const Multiplier by{static_cast<std::int32_t>(attrs.multiplier[channel]),
                      static_cast<std::int32_t>(attrs.shift[channel])};
  const ValueRange scalable =
      scalable_values(by, attrs.scale32 ? MultiplierWidth::k32 : MultiplierWidth::k16, attrs.output_zp);
  const ValueRange stored = stored_values(from, attrs.input_unsigned);
  const std::int64_t low = std::max(stored.low, scalable.low + attrs.input_zp);
  const std::int64_t high = std::min(stored.high, scalable.high + attrs.input_zp);
  const std::int64_t half = by.multiplier == 0 ? 0 : (std::int64_t{1} << (by.shift - 1)) / by.multiplier;
  std::int64_t value = 0;
  switch (random() % 6) {
    case 0:
      value = low;
      break;
    case 1:
      value = high;
      break;
    case 2:
      value = attrs.input_zp + static_cast<std::int64_t>(random() % 9) - 4;
      break;
    case 3:
      value = attrs.input_zp +
              (2 * static_cast<std::int64_t>(random() % 64) - 63) * std::min(half, high / 64 + 1);
      break;
    default:
      value = std::uniform_int_distribution<std::int64_t>(low, high)(random);
  }
  return std::clamp(value, low, high);
}

Call rescale(std::mt19937& random, DType from, const TosaRescaleAttrs& attrs, std::int64_t rows) {
  const auto channels = static_cast<std::int64_t>(attrs.multiplier.size());
  Array input{from, {rows, channels}, {}};
  for (std::int64_t i = 0; i < rows * channels; ++i) {
    std::int64_t value = value_for(random, attrs, from, static_cast<std::size_t>(i % channels));
    if (attrs.input_unsigned && value > stored_values(from, false).high)  // signed element of the same bits
      value -= stored_values(from, true).high + 1;
    input.values.push_back(static_cast<double>(value));
  }
  return {.op = Op::kTosaRescale,
          .attrs = attrs,
          .operands = {input},
          .dtype = attrs.dtype,
          .shape = input.shape};
}

constexpr DType kFrom[] = {DType::kI8, DType::kI16, DType::kI32, DType::kI48};
constexpr DType kTo[] = {DType::kI8, DType::kI16, DType::kI32};

std::vector<RoundingMode> modes_of(DType from) {
  if (from == DType::kI48) return {RoundingMode::kSingleRound, RoundingMode::kInexactRound};
  return {RoundingMode::kSingleRound, RoundingMode::kDoubleRound, RoundingMode::kInexactRound};
}

TEST_CASE("per-tensor rescale equals the reference, extremes and ties included", "[rescale]") {
  std::mt19937 random(31);
  for (const DType from : kFrom)
    for (const DType to : kTo)
      for (const RoundingMode mode : modes_of(from))
        for (int i = 0; i < 40; ++i) {
          const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 1200);
          check_fast_paths(rescale(random, from, attributes(random, from, to, mode, {}), rows), {});
        }
}

TEST_CASE("per-channel rescale equals the reference for any number of channels", "[rescale]") {
  std::mt19937 random(32);
  for (const DType from : kFrom)
    for (const DType to : kTo)
      for (const RoundingMode mode : modes_of(from))
        for (const std::int64_t channels : {2, 3, 7, 16, 63, 300, 512, 513, 1100}) {
          const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % (4000 / channels + 2));
          const TosaRescaleAttrs attrs = attributes(random, from, to, mode, {.channels = channels});
          check_fast_paths(rescale(random, from, attrs, rows), {});
        }
}

TEST_CASE("rescale of at most 32 bits by 16-bit multipliers equals the reference", "[rescale]") {
  std::mt19937 random(36);
  for (const DType from : {DType::kI8, DType::kI16, DType::kI32})
    for (const DType to : kTo)
      for (const std::int64_t channels : {1, 5}) {
        TosaRescaleAttrs attrs =
            attributes(random, from, to, RoundingMode::kSingleRound, {.channels = channels});
        attrs.scale32 = false;
        for (std::int64_t& multiplier : attrs.multiplier) multiplier &= 0x7fff;
        check_fast_paths(rescale(random, from, attrs, 700), {});
      }
}

TEST_CASE("tables equal the reference on every value") {
  std::mt19937 random(3);
  std::vector<double> bytes, words;
  for (int value = -128; value < 128; ++value) bytes.push_back(value);
  for (int value = -32768; value < 32768; ++value) words.push_back(value);
  Array table = random_array(random, DType::kI8, {256});
  check_fast_paths({Op::kTosaTable, NoAttrs{}, {array(DType::kI8, {256}, bytes), table}, DType::kI8, {256}},
                   {});
  Array entries{.dtype = DType::kI16, .shape = {513}, .values = {}};
  const double steps[] = {-32768, -1, -32768, -2, 32765, 0};  // with the largest allowed differences
  for (std::size_t i = 0; i < 513; ++i) entries.values.push_back(steps[i % 6]);
  const Call call{
      Op::kTosaTable, NoAttrs{}, {array(DType::kI16, {65536}, words), entries}, DType::kI32, {65536}};
  check_fast_paths(call, {});
}

TEST_CASE("tables of bytes equal the reference for any number of values", "[rescale]") {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> bytes(-128, 127);
  const auto random_bytes = [&](std::int64_t count) {
    Array made{DType::kI8, {count}, {}};
    for (std::int64_t i = 0; i < count; ++i) made.values.push_back(bytes(random));
    return made;
  };
  for (std::int64_t count = 0; count < 140; ++count)
    check_fast_paths(
        {Op::kTosaTable, NoAttrs{}, {random_bytes(count), random_bytes(256)}, DType::kI8, {count}}, {});
}

// The rescale of one tensor by 2^(30 - shift).
TosaRescaleAttrs power_of_two(DType from, DType to, std::int64_t shift, RoundingMode mode) {
  TosaRescaleAttrs attrs;
  attrs.dtype = to;
  attrs.scale32 = true;
  attrs.rounding_mode = mode;
  attrs.multiplier = {1 << 30};
  attrs.shift = {shift};
  if (from == DType::kI8) attrs.input_zp = -128;
  if (to == DType::kI8) attrs.output_zp = 127;
  return attrs;
}

TEST_CASE("rescales by powers of two equal the reference, extremes and ties included", "[rescale]") {
  std::mt19937 random(41);
  for (const DType from : {DType::kI8, DType::kI16, DType::kI32})
    for (const DType to : kTo)
      for (const RoundingMode mode : {RoundingMode::kSingleRound, RoundingMode::kDoubleRound})
        for (std::int64_t shift = kMinShift; shift <= kMaxShift; ++shift)
          for (const std::int64_t rows : {1, 15, 64, 131})
            check_fast_paths(rescale(random, from, power_of_two(from, to, shift, mode), rows), {});
}

TEST_CASE("a value without a result is refused by each pair of dtypes, in any place", "[rescale]") {
  for (const DType to : kTo)
    for (const std::size_t place : {0, 63, 64, 66}) {
      const TosaRescaleAttrs attrs = power_of_two(DType::kI32, to, 22, RoundingMode::kSingleRound);
      Array input{DType::kI32, {67, 1}, std::vector<double>(67, 1)};
      input.values[place] = 1 << 24;
      const Call call{
          .op = Op::kTosaRescale, .attrs = attrs, .operands = {input}, .dtype = to, .shape = input.shape};
      for (const Isa isa : usable_isas()) CHECK_THROWS_AS(run(call, {.isa = isa}), InvalidGraph);
    }
}

TEST_CASE("table entries that are too far apart are refused only if a value needs them") {
  std::vector<double> entries(513, 32767);
  for (std::size_t i = 300; i < 513; ++i) entries[i] = -32768;
  const auto call = [&](double value) {
    return Call{Op::kTosaTable,
                NoAttrs{},
                {array(DType::kI16, {1}, {value}), array(DType::kI16, {513}, entries)},
                DType::kI32,
                {1}};
  };
  check_fast_paths(call(5000), {});
  for (const Isa isa : usable_isas())
    CHECK_THROWS_WITH(
        run(call(299 * 128 - 32768 + 5), {.isa = isa}),
        "[run] tosa.table: entries 299 and the next are too far apart: expected a difference of 16 "
        "bits, got -65535");
}

TEST_CASE("rescale of no elements does nothing", "[rescale]") {
  TosaRescaleAttrs attrs;
  attrs.per_channel = true;
  check_fast_paths({.op = Op::kTosaRescale,
                    .attrs = attrs,
                    .operands = {Array{DType::kI32, {3, 0}, {}}},
                    .dtype = DType::kI8,
                    .shape = {3, 0}},
                   {});
}

TEST_CASE("rescale of unsigned elements equals the reference", "[rescale]") {
  std::mt19937 random(33);
  for (const DType from : {DType::kI8, DType::kI16})
    for (const DType to : {DType::kI8, DType::kI16})
      for (const Signs signs : {Signs{true, false}, Signs{false, true}})
        for (const std::int64_t channels : {1, 5}) {
          const TosaRescaleAttrs attrs = attributes(random, from, to, RoundingMode::kDoubleRound,
                                                    {.channels = channels, .lowest_shift = 20}, signs);
          check_fast_paths(rescale(random, from, attrs, 700), {});
        }
}

TEST_CASE("every 16-bit value by every shift equals the reference", "[rescale]") {
  std::mt19937 random(34);
  Array every{DType::kI16, {65536}, {}};
  for (int value = -32768; value < 32768; ++value) every.values.push_back(value);
  for (std::int64_t shift = 17; shift <= kMaxShift; ++shift)
    for (const RoundingMode mode : {RoundingMode::kSingleRound, RoundingMode::kDoubleRound}) {
      const TosaRescaleAttrs attrs =
          attributes(random, DType::kI16, DType::kI16, mode, {.lowest_shift = shift, .highest_shift = shift});
      check_fast_paths({.op = Op::kTosaRescale,
                        .attrs = attrs,
                        .operands = {every},
                        .dtype = DType::kI16,
                        .shape = every.shape},
                       {});
    }
}

TEST_CASE("the result may overwrite the input", "[rescale]") {
  std::mt19937 random(35);
  for (const DType dtype : kTo)
    for (const std::int64_t channels : {1, 3}) {
      const TosaRescaleAttrs attrs = attributes(random, dtype, dtype, RoundingMode::kSingleRound,
                                                {.channels = channels, .lowest_shift = 20});
      const Call call = rescale(random, dtype, attrs, 777);
      const std::vector<double> expected = reference(call);
      for (const Isa isa : usable_isas()) {
        Bytes bytes = stored(call.operands[0]);
        const Operand operand{dtype, call.shape, nullptr, true};
        const Kernel kernel = prepare({call.op, &call.attrs, {&operand, 1}, {&operand, 1}, {.isa = isa}});
        REQUIRE(kernel.in_place == 1);
        Bytes scratch(kernel.scratch_bytes);
        const std::byte* from[] = {bytes.data()};
        std::byte* to[] = {bytes.data()};
        kernel.run({from, to, scratch.data()});
        for (std::size_t i = 0; i < expected.size(); ++i)
          REQUIRE(load_element(dtype, bytes.data() + i * byte_size(dtype)) == expected[i]);
      }
    }
}

TEST_CASE("a value for which the result is undefined is named by every kernel", "[rescale]") {
  TosaRescaleAttrs attrs;
  attrs.dtype = DType::kI32;
  attrs.multiplier = {1 << 30};
  attrs.shift = {30};
  const auto failure = [&](double value, std::size_t place, const Options& options) -> std::string {
    Array input{DType::kI32, {600}, std::vector<double>(600, 1)};
    input.values[place] = value;
    try {
      run({.op = Op::kTosaRescale, .attrs = attrs, .operands = {input}, .dtype = DType::kI32, .shape = {600}},
          options);
    } catch (const InvalidGraph& error) {
      return error.what();
    }
    return "";
  };
  std::vector<Options> paths{{.reference = true}};
  for (const Isa isa : usable_isas()) paths.push_back({.isa = isa});
  for (const Options& options : paths)
    for (const std::size_t place : {std::size_t{0}, std::size_t{17}, std::size_t{511}, std::size_t{599}}) {
      CHECK(failure(536870912, place, options) ==
            "[run] tosa.rescale: a value less its zero point is out of range of multiplier 1073741824 and "
            "shift "
            "30: expected -536870912 to 536870911, got 536870912");
      CHECK(failure(-536870913, place, options) != "");
      CHECK(failure(536870911, place, options).empty());
      CHECK(failure(-536870912, place, options).empty());
    }
}

}  // namespace
}  // namespace tosaic::kernels::testing
