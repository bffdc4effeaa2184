// The cost model: machines as data, permutations by passes, blocks, cycles of a command, and estimates of
// graphs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/cost/block.h"
#include "tosaic/cost/command.h"
#include "tosaic/cost/cycles.h"
#include "tosaic/cost/estimate.h"
#include "tosaic/cost/permutation.h"
#include "tosaic/ir/parse.h"

namespace tosaic::cost {
namespace {

const Machine& u85() { return *machine_named("ethos-u85-256"); }

Cycles cycles_with(const Command& command, const Machine& machine, std::string_view mode = "Sram_Only") {
  const Named chip = named(machine.name, {}, mode);
  return cycles_of(command, block_of(command, machine), {chip.machine, chip.system, chip.mode});
}

Command convolution(const Extent& input, std::int64_t kernel, const Extent& result) {
  Command out;
  out.work = Work::kConvolution;
  out.op = Op::kTosaConv2d;
  out.input.extent = input;
  out.result.extent = result;
  out.input.in_bricks = out.result.in_bricks = true;
  out.kernel_height = out.kernel_width = kernel;
  out.weights = kernel * kernel * input.depth * result.depth;
  out.scales = result.depth;
  return out;
}

Estimate estimate_of(const std::string& body, std::string_view machine = "ethos-u85-256") {
  return estimate(parse("tosaic 1\ngraph @forward stage=tosa {\n" + body + "\n}\n"), *machine_named(machine));
}

std::string rescale(const std::string& name, const std::string& value, const std::string& type,
                    std::int64_t multiplier = 1 << 30, std::int64_t shift = 30) {
  return "%" + name + ": " + type + " = tosa.rescale(%" + value +
         ") {input_zp=0, output_zp=0, dtype=" + type.substr(0, type.find('[')) +
         ", scale32=true, rounding_mode=single_round, per_channel=false, input_unsigned=false, "
         "output_unsigned=false, multiplier=[" +
         std::to_string(multiplier) + "], shift=[" + std::to_string(shift) + "]}\n";
}

}  // namespace

TEST_CASE("every machine has a usual system and mode, and is found by its name") {
  for (const Machine& each : machines()) {
    CHECK(machine_named(each.name) == &each);
    const Named chip = named(each.name, {}, {});
    CHECK(chip.system.family == each.family);
    CHECK_FALSE(each.microblocks.empty());
    CHECK_FALSE(each.channel_microblocks.empty());
  }
  CHECK(machine_named("nothing") == nullptr);
  CHECK_THROWS_AS(named("nothing", {}, {}), InvalidGraph);
  CHECK_THROWS_AS(named("ethos-u85-256", {}, "nothing"), InvalidGraph);
}

TEST_CASE("three axes are permuted in one pass, and unit axes are not moved") {
  CHECK(passes_of({1, 3, 224, 224}, {0, 2, 3, 1}).size() == 1);
  CHECK(passes_of({1, 64, 1, 32}, {0, 2, 1, 3}).empty());
  CHECK(passes_of({4, 5, 6}, {0, 1, 2}).empty());
  const Pass turn = passes_of({1, 3, 224, 225}, {0, 2, 3, 1}).front();
  CHECK(turn.from == Extent{3, 224, 225});
  CHECK(turn.to == Extent{224, 225, 3});
  CHECK(turn.channels_from == Axis::kHeight);
  CHECK(turn.moves_all);
  CHECK_FALSE(passes_of({4, 5, 6}, {0, 2, 1}).front().moves_all);
}

TEST_CASE("more axes are sorted by swaps; one in the middle takes five passes") {
  const std::vector<Pass> passes = passes_of({14, 16, 15, 48}, {0, 2, 1, 3});
  REQUIRE(passes.size() == 5);
  CHECK(passes.front().from == Extent{14, 16, 720});
  CHECK(passes.back().to == Extent{14, 15, 768});
  for (const Pass& each : passes) CHECK(each.from.elements() == each.to.elements());
  CHECK(passes_of({4, 5, 6, 7}, {1, 0, 2, 3}).size() == 1);
  CHECK(passes_of({4, 5, 6, 7}, {2, 3, 0, 1}).size() == 1);  // pairs of axes stay together
}

TEST_CASE("a block fits the buffers, and whole microblocks") {
  for (const Machine& machine : machines())
    for (const Extent& result :
         {Extent{56, 56, 64}, Extent{7, 7, 512}, Extent{1, 198, 192}, Extent{1, 1, 1000}}) {
      const Command command = convolution({result.height, result.width, 64}, 1, result);
      const Block block = block_of(command, machine);
      CHECK(block.result.height % block.micro.height == 0);
      CHECK(block.result.width % block.micro.width == 0);
      const std::int64_t sums = block.result.elements() * 4;
      CHECK(sums <= std::max(machine.sum_bytes, machine.input_bytes));
      CHECK(block.input.area() * std::min<std::int64_t>(block.input.depth, 64) <= machine.input_bytes);
    }
}

TEST_CASE("a convolution with full blocks takes its multiplications by the multipliers") {
  const Command command = convolution({56, 56, 64}, 3, {56, 56, 64});
  const double least = 9.0 * 64 * 56 * 56 * 64 / static_cast<double>(u85().macs);
  const double found = cycles_with(command, u85()).computing;
  CHECK(found > least);
  CHECK(found < 1.4 * least);  // nine elements of the kernel are three steps of four
}

TEST_CASE("a single row of the result leaves half of the multipliers idle only if it is a column") {
  const double row = cycles_with(convolution({1, 198, 192}, 1, {1, 198, 192}), u85()).computing;
  const double column = cycles_with(convolution({198, 1, 192}, 1, {198, 1, 192}), u85()).computing;
  CHECK(column > 1.8 * row);
}

TEST_CASE("elements of 32 bits take twice as long, of one operand less") {
  CHECK(output_cycles(u85(), Work::kElementwise, Op::kTosaAdd, 8, 8, true) == 0.25);
  CHECK(output_cycles(u85(), Work::kElementwise, Op::kTosaAdd, 16, 16, true) == 0.25);
  CHECK(output_cycles(u85(), Work::kElementwise, Op::kTosaAdd, 32, 32, true) == 0.5);
  CHECK(output_cycles(u85(), Work::kElementwise, Op::kTosaClz, 32, 32, false) == 0.25);
  const Machine& u55 = *machine_named("ethos-u55-128");
  CHECK(output_cycles(u55, Work::kElementwise, Op::kTosaAdd, 8, 8, true) == 1.5);
  CHECK(output_cycles(u55, Work::kElementwise, Op::kTosaMul, 8, 8, true) == 0.75);
  CHECK(output_cycles(u55, Work::kElementwise, Op::kTosaMul, 32, 32, true) == 1.25);
}

TEST_CASE("weights that are read once wait for the far memory") {
  const Command command = convolution({1, 1, 512}, 1, {1, 1, 1000});
  const Cycles near = cycles_with(command, u85()), far = cycles_with(command, u85(), "Dedicated_Sram_384KB");
  CHECK(near.far == 0);
  CHECK(far.far > far.computing);
  CHECK(far.all() > 3 * near.all());
}

TEST_CASE("the sum of the rows is the total, and each node is in one row") {
  const Estimate found =
      estimate_of("input %x: i8[1,8,8,16] path=\"x\"\ninput %z: i8[1,8,8,16] path=\"z\"\n" +
                  rescale("a", "x", "i32[1,8,8,16]") + rescale("b", "z", "i32[1,8,8,16]") +
                  "%s: i32[1,8,8,16] = tosa.add(%a, %b)\n" + rescale("y", "s", "i8[1,8,8,16]") +
                  "%v: i8[1,64,16] = tosa.reshape(%y) {shape=[1,64,16]}\n"
                  "%t: i8[1,16,64] = tosa.transpose(%v) {perm=[0,2,1]}\nreturn %t path=\"out\"");
  std::int64_t cycles = 0;
  std::size_t nodes = 0;
  for (const Row& row : found.rows) {
    cycles += row.cycles;
    nodes += 1 + row.fused.size();
    CHECK(row.cycles >= row.computing);
  }
  CHECK(found.rows.size() == 2);
  CHECK(cycles == found.cycles);
  CHECK(nodes == 6);
}

TEST_CASE("a RESCALE is part of its reader if it can neither saturate nor is read twice") {
  const auto rows = [](std::int64_t multiplier, const std::string& reader) {
    return estimate_of("input %x: i8[1,8,8,16] path=\"x\"\n" +
                       rescale("a", "x", "i32[1,8,8,16]", multiplier) + reader + "return %y path=\"out\"")
        .rows.size();
  };
  const std::string sum = "%y: i32[1,8,8,1] = tosa.reduce_sum(%a) {axis=3}\n";
  CHECK(rows(1 << 30, sum) == 1);  // by one
  CHECK(rows((1 << 30) + 1, sum) == 2);
  CHECK(rows(1 << 30, "%b: i32[1,8,8,16] = tosa.add(%a, %a)\n%y: i32[1,8,8,16] = tosa.clz(%b)\n") == 2);
}

TEST_CASE("elementwise operators are chained into one command, where the machine has chains") {
  const std::string graph =
      "input %x: i32[1,8,8,16] path=\"x\"\ninput %z: i32[1,8,8,16] path=\"z\"\n"
      "%a: i32[1,8,8,16] = tosa.mul(%x, %z) {shift=0}\n%b: i32[1,8,8,16] = tosa.add(%a, %z)\n"
      "%y: i32[1,8,8,16] = tosa.sub(%b, %z)\nreturn %y path=\"out\"";
  const Estimate chained = estimate_of(graph), alone = estimate_of(graph, "ethos-u55-128");
  CHECK(chained.rows.size() == 2);  // three operands from memory at most
  CHECK(alone.rows.size() == 3);
}

}  // namespace tosaic::cost
