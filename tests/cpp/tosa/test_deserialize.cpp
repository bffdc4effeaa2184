#include <catch2/catch.hpp>

#include "tosa/every_op.h"
#include "tosa/flatbuffer_walk.h"
#include "tosaic/base/error.h"
#include "tosaic/tosa/deserialize.h"
#include "tosaic/tosa/serialize.h"

namespace tosaic {
namespace {

using testing::FlatbufferPlace;

constexpr std::size_t kOp = 0, kInputs = 3, kOutputs = 4;           // fields of an operator
constexpr std::size_t kName = 0, kShape = 1, kType = 2, kData = 3;  // fields of a tensor

std::vector<std::byte> network_file() {
  const Storage file = tosa::serialize(testing::small_tosa_network());
  return {file.bytes().begin(), file.bytes().end()};
}

std::vector<std::byte> file_of(const std::string& name) {
  for (const testing::TosaCase& c : testing::every_tosa_op()) {
    if (c.name != name) continue;
    const Storage file = tosa::serialize(c.graph);
    return {file.bytes().begin(), file.bytes().end()};
  }
  FAIL("no case " << name);
  return {};
}

// The index of the last element of a vector. In a file of a single operator, the last tensor is the result.
std::size_t last(const FlatbufferPlace& vector) { return vector.length() - 1; }

// Makes the offset that is stored at byte `at` refer to `target`. Flatbuffer offsets are relative to the
// place where they are stored.
void refer(std::vector<std::byte>& file, std::size_t at, const FlatbufferPlace& target) {
  const auto offset = static_cast<std::uint32_t>(target.offset() - at);
  std::memcpy(file.data() + at, &offset, sizeof offset);
}

void check_error(const std::vector<std::byte>& file, const std::string& text) {
  CHECK_THROWS_WITH(tosa::deserialize(std::span(file)), text);
}

}  // namespace

TEST_CASE("a file too short for its header is truncated") {
  check_error({}, "[tosa] the file is truncated: expected at least 8 bytes, got 0");
  std::vector<std::byte> file = network_file();
  file.resize(7);
  check_error(file, "[tosa] the file is truncated: expected at least 8 bytes, got 7");
}

TEST_CASE("a file with another identifier is refused") {
  std::vector<std::byte> file = network_file();
  file[4] = std::byte{'T'}, file[5] = std::byte{'F'}, file[6] = std::byte{'L'}, file[7] = std::byte{3};
  check_error(file, "[tosa] not a TOSA file: expected the identifier 'TOSA' at byte 4, got 'TFL?'");
}

TEST_CASE("an unknown version is refused by number") {
  std::vector<std::byte> file = network_file();
  const FlatbufferPlace version = FlatbufferPlace(file).table(0);
  version.field(1).set<std::int32_t>(80);
  version.field(0).set<std::int32_t>(0);
  check_error(file, "[tosa] unknown version of the format: expected TOSA 1.0 or 1.1, got 0.80.0");
  version.field(0).set<std::int32_t>(1);
  version.field(1).set<std::int32_t>(1);
  CHECK_NOTHROW(tosa::deserialize(std::span(file)));
}

TEST_CASE("every truncation beyond the padding at the end is an error") {
  const std::vector<std::byte> file = network_file();
  for (std::size_t size = 0; size + 8 < file.size(); ++size)
    CHECK_THROWS_AS(tosa::deserialize(std::span(file).first(size)), InvalidGraph);
  std::vector<std::byte> half(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(file.size() / 2));
  check_error(half, "[tosa] the file is truncated or damaged: expected a well-formed flatbuffer, got " +
                        std::to_string(half.size()) + " bytes that are not");
}

TEST_CASE("an unknown operator is refused by number") {
  std::vector<std::byte> file = file_of("tosa.identity_i8");
  testing::operators_of(file).element(0).field(kOp).set<std::uint32_t>(1234);
  check_error(
      file,
      "[tosa] operator 0 (number 1234): this operator is not supported: expected an operator of 'tosaic "
      "ops', got number 1234 (node 'result')");
}

TEST_CASE("regions that are missing or used by no operator are refused") {
  const auto renamed = [](const char* name) {
    std::vector<std::byte> file = file_of("tosa.cond_if");
    const FlatbufferPlace then_graph = testing::operators_of(file).element(0).table(2).table(0);
    REQUIRE(then_graph.length() == 3);
    std::memcpy(file.data() + then_graph.offset() + 4, name, 3);
    return file;
  };
  check_error(renamed("none"),
              "[tosa] operator 0 (COND_IF): then_graph: no region is named 'non' (node 'result')");
  std::vector<std::byte> twice = file_of("tosa.cond_if");
  const FlatbufferPlace attributes = testing::operators_of(twice).element(0).table(2);
  refer(twice, attributes.field(0).offset(), attributes.table(1));
  check_error(twice, "[tosa] block 'sum' is used by no operator");
}

TEST_CASE("a region of another signature than its operator is refused before it is read") {
  std::vector<std::byte> file = file_of("tosa.while_loop");
  const FlatbufferPlace regions = FlatbufferPlace(file).table(1);
  const FlatbufferPlace body = regions.element(2).table(1).element(0);
  const FlatbufferPlace tensor = body.table(2).element(0);
  tensor.field(kType).set<std::uint32_t>(7);
  check_error(file,
              "[tosa] operator 1 (WHILE_LOOP): body_graph takes another type at 0: expected i32[2], got "
              "f32[2] (node 'result')");
}

TEST_CASE("attributes of another operator are refused") {
  std::vector<std::byte> file = file_of("tosa.identity_i8");
  testing::operators_of(file).element(0).field(kOp).set<std::uint32_t>(61);
  check_error(file,
              "[tosa] operator 0 (TRANSPOSE): the attributes are of another operator: expected TRANSPOSE, "
              "got IDENTITY "
              "(node 'result')");
}

TEST_CASE("a result type other than the inferred one is refused") {
  std::vector<std::byte> file = file_of("tosa.matmul_i8");
  const FlatbufferPlace tensors = testing::tensors_of(file);
  for (std::size_t i = 0; i < tensors.length(); ++i)
    if (tensors.element(i).table(kShape).length() == 3 && i == last(tensors))
      tensors.element(i).field(kType).set<std::uint32_t>(4);
  check_error(
      file,
      "[tosa] operator 3 (MATMUL): the result has the wrong type: expected i32[2,3,5], got i16[2,3,5] (node "
      "'result')");
}

TEST_CASE("errors of inference name the operator of the file") {
  std::vector<std::byte> file = file_of("tosa.reverse_i8");
  const FlatbufferPlace reverse = testing::operators_of(file).element(0);
  reverse.table(2).field(0).set<std::int32_t>(9);
  CHECK_THROWS_AS(tosa::deserialize(std::span(file)), InvalidGraph);
  CHECK_THROWS_WITH(tosa::deserialize(std::span(file)), Catch::StartsWith("[tosa] operator 0 (REVERSE): "));
}

TEST_CASE("constants of the wrong size or without data are refused") {
  std::vector<std::byte> file = file_of("tosa.matmul_f32");
  const FlatbufferPlace data = testing::tensors_of(file).element(1).table(kData);
  data.set<std::uint32_t>(152);
  check_error(
      file,
      "[tosa] operator 2 (MATMUL): constant 'c1' has the wrong size: expected 160 bytes, got 152 bytes (node "
      "'result')");
  data.set<std::uint32_t>(0);
  check_error(file, "[tosa] operator 2 (MATMUL): constant 'c1' has no data (node 'result')");
}

TEST_CASE("extents that are not positive are refused") {
  std::vector<std::byte> file = file_of("tosa.abs_f32");
  FlatbufferPlace shape = testing::tensors_of(file).element(0).table(kShape);
  std::memset(file.data() + shape.offset() + 4, 0xff, 4);
  check_error(file, "[tosa] tensor 'in0' has an extent that is not positive: expected at least 1, got -1");
}

TEST_CASE("a result with extents that are not positive is compared with the inferred type") {
  std::vector<std::byte> file = file_of("tosa.abs_f32");
  FlatbufferPlace shape = testing::tensors_of(file).element(1).table(kShape);
  std::memset(file.data() + shape.offset() + 4, 0xff, 4);
  CHECK_THROWS_WITH(tosa::deserialize(std::span(file)),
                    Catch::Contains("operator 0 (ABS): the result has the wrong type: expected f32[") &&
                        Catch::Contains("got f32[-1"));
}

TEST_CASE("an operand that nothing defines is refused by name") {
  std::vector<std::byte> file = file_of("tosa.add_f32");
  testing::main_block(file).table(3).set<std::uint32_t>(1);  // the second input is no longer listed
  check_error(file, "[tosa] operator 0 (ADD): nothing defines the operand 'in1' (node 'result')");
}

TEST_CASE("a wrong number of operands is refused") {
  std::vector<std::byte> file = file_of("tosa.add_f32");
  testing::operators_of(file).element(0).table(kInputs).set<std::uint32_t>(1);
  check_error(file, "[tosa] operator 0 (ADD): wrong number of operands: expected 2, got 1 (node 'result')");
}

TEST_CASE("constant operands must be constant") {
  std::vector<std::byte> file = file_of("tosa.mul_i8");
  const FlatbufferPlace inputs = testing::operators_of(file).element(1).table(kInputs);
  refer(file, inputs.offset() + 12, inputs.element(0));
  check_error(
      file,
      "[tosa] operator 1 (MUL): the operand shift is computed when the program runs: expected a constant, "
      "got 'in0' (node 'result')");
}

TEST_CASE("an operator that depends on itself is refused") {
  std::vector<std::byte> file = file_of("tosa.identity_i8");
  const FlatbufferPlace op = testing::operators_of(file).element(0);
  const FlatbufferPlace input = op.table(kInputs), output = op.table(kOutputs);
  input.set<std::uint32_t>(1);
  refer(file, input.offset() + 4, output.element(0));
  check_error(file, "[tosa] operator 0 (IDENTITY): the operator depends on its own result (node 'result')");
}

TEST_CASE("operators may be in any order in the file") {
  std::vector<std::byte> file = network_file();
  const FlatbufferPlace operators = testing::operators_of(file);
  const std::size_t count = operators.length();
  std::vector<FlatbufferPlace> targets;
  for (std::size_t i = 0; i < count; ++i) targets.push_back(operators.element(i));
  for (std::size_t i = 0; i < count; ++i) refer(file, operators.offset() + 4 + 4 * i, targets[count - 1 - i]);
  const Graph read = tosa::deserialize(std::span(file));
  const std::vector<std::byte> straight = network_file();
  CHECK(read.nodes().size() == tosa::deserialize(std::span(straight)).nodes().size());
  CHECK(read.nodes().front().op == Op::kTosaIdentity);
}

TEST_CASE("two tensors with the same name are refused") {
  std::vector<std::byte> file = file_of("tosa.add_f32");
  const FlatbufferPlace name = testing::tensors_of(file).element(1).table(kName);
  file[name.offset() + 6] = std::byte{'0'};
  check_error(file, "[tosa] two tensors are named 'in0'");
}

}  // namespace tosaic
