// .pte files: written and read back; damaged ones are refused with the place.
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <optional>

#include "mutator.h"
#include "pte/small_file.h"
#include "tosaic/base/error.h"
#include "tosaic/pte/read.h"
#include "tosaic/pte/write.h"

namespace tosaic {
namespace {

using testing::small_file;

std::vector<std::byte> copied(const Storage& storage) {
  return {storage.bytes().begin(), storage.bytes().end()};
}

// Adds up all bytes of constants, initial states and payloads, so that a sanitizer sees each of them read.
std::size_t sum_of_data(const pte::File& file) {
  std::size_t sum = 0;
  const auto add = [&](const Storage& storage) {
    for (const std::byte each : storage.bytes()) sum += std::to_integer<std::size_t>(each);
  };
  for (const pte::Method& method : file.methods) {
    for (const pte::Delegate& delegate : method.delegates) add(pte::payload_of(file, delegate));
    for (const pte::Value& value : method.values) {
      const pte::Tensor* tensor = std::get_if<pte::Tensor>(&value);
      const std::optional<Storage> elements =
          tensor == nullptr ? std::nullopt : pte::elements_of(file, *tensor);
      if (elements) add(*elements);
    }
  }
  return sum;
}

std::string refusal_of(const pte::File& file) {
  try {
    static_cast<void>(pte::read(pte::write(file)));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string refusal_after(const std::function<void(pte::File&)>& change) {
  pte::File file = small_file();
  change(file);
  return refusal_of(file);
}

}  // namespace

TEST_CASE("a written file is read back, and written as the same bytes", "[pte]") {
  const pte::File file = small_file();
  const Storage bytes = pte::write(file);
  const pte::File read = pte::read(bytes);
  const pte::Method& method = read.methods.at(0);
  const pte::Method expected = testing::small_method();
  CHECK(method.values == expected.values);
  CHECK(method.chains == expected.chains);
  CHECK(method.operators == expected.operators);
  CHECK(method.memories == expected.memories);
  CHECK(method.memory_devices == expected.memory_devices);
  CHECK(method.inputs == expected.inputs);
  CHECK(method.outputs == expected.outputs);
  CHECK(copied(pte::payload_of(read, method.delegates[0])) == copied(testing::bytes_of("payload A")));
  CHECK(copied(pte::payload_of(read, method.delegates[1])) == copied(testing::bytes_of("payload B")));
  CHECK(copied(method.delegates[0].specs.at(0).value) == copied(testing::bytes_of("value")));
  CHECK(copied(pte::write(read)) == copied(bytes));
}

TEST_CASE("the elements of constants and states share the memory of the file", "[pte]") {
  const Storage bytes = pte::write(small_file());
  const pte::File file = pte::read(bytes);
  const auto elements = [&](std::size_t value) {
    return pte::elements_of(file, std::get<pte::Tensor>(file.methods[0].values[value])).value();
  };
  CHECK(copied(elements(6)) == copied(testing::bytes_of("0123456789abcdef")));
  CHECK(copied(elements(7)) == copied(testing::bytes_of("initial!")));
  const std::byte* first = bytes.bytes().data();
  CHECK(elements(6).bytes().data() > first);
  CHECK(elements(6).bytes().data() < first + bytes.size());
  CHECK(!pte::elements_of(file, std::get<pte::Tensor>(file.methods[0].values[5])));
}

TEST_CASE("a file that is cut anywhere is refused", "[pte]") {
  const std::vector<std::byte> whole = copied(pte::write(small_file()));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_THROWS_AS(pte::read(Storage::of(cut)), InvalidGraph);
  }
}

TEST_CASE("an error names the method and the thing in it", "[pte]") {
  CHECK(
      refusal_after([](pte::File& f) { f.methods[0].delegates[1].index = 3; }) ==
      "[pte] method 'forward', delegate 1 ('BackendB'): the segment of the payload does not exist: expected "
      "an index below 3, got 3");
  CHECK(
      refusal_after([](pte::File& f) { f.methods[0].delegates[0].index = 9; }) ==
      "[pte] method 'forward', delegate 0 ('BackendA'): the payload does not exist: expected an index below "
      "1, got 9");
  CHECK(refusal_after(
            [](pte::File& f) { f.methods[0].chains[0].instructions[0] = pte::KernelCall{0, {5, 13}}; }) ==
        "[pte] method 'forward', instruction 0 ('aten::add'): an argument does not exist: expected an index "
        "below 13, got 13");
  CHECK(
      refusal_after(
          [](pte::File& f) { f.methods[0].chains[0].instructions[1] = pte::DelegateCall{2, {}}; }) ==
      "[pte] method 'forward', instruction 1: the delegate does not exist: expected an index below 2, got 2");
  CHECK(
      refusal_after(
          [](pte::File& f) { std::get<pte::Tensor>(f.methods[0].values[5]).allocation->offset = 41; }) ==
      "[pte] method 'forward', value 5: the tensor is not inside its memory: expected 64 bytes, got 24 bytes "
      "from byte 41");
  CHECK(refusal_after([](pte::File& f) { std::get<pte::Tensor>(f.methods[0].values[6]).sizes = {5}; }) ==
        "[pte] method 'forward', value 6: the elements are not inside their data: expected 20 bytes, got 16");
  CHECK(
      refusal_after([](pte::File& f) { std::get<pte::Tensor>(f.methods[0].values[5]).dim_order = {1, 1}; }) ==
      "[pte] method 'forward', value 5: the dim order is no permutation of the axes: expected 2 axes, got "
      "(1,1)");
  CHECK(refusal_after([](pte::File& f) { f.methods[0].values[11] = pte::TensorList{{2}}; }) ==
        "[pte] method 'forward', value 11: an element of the list is of another kind: expected a tensor, got "
        "value 2");
  CHECK(refusal_after([](pte::File& f) { f.methods.push_back(testing::small_method()); }) ==
        "[pte] two methods are named 'forward'");
  CHECK(refusal_after([](pte::File& f) { f.version = 1; }) ==
        "[pte] unknown version of the program: expected 0, got 1");
}

TEST_CASE("files of other formats and versions are refused", "[pte]") {
  const auto refusal = [](std::string_view text) -> std::string {
    try {
      static_cast<void>(pte::read(testing::bytes_of(text)));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal("....TOSA....") ==
        "[pte] not a .pte file: expected the identifier 'ET12' at byte 4, got 'TOSA'");
  CHECK(refusal("....ET13....") == "[pte] unknown version of the format: expected 'ET12', got 'ET13'");
  CHECK(refusal("") == "[pte] the file is truncated: expected at least 8 bytes, got 0");
}

TEST_CASE("mutated .pte files are refused or survive a round trip", "[pte][fuzz]") {
  const std::vector<std::byte> original = copied(pte::write(small_file()));
  testing::Mutator mutator(20240117);
  std::size_t read = 0;
  const std::size_t iterations = testing::fuzz_iterations();
  for (std::size_t i = 0; i < iterations; ++i) {
    std::vector<std::byte> damaged = original;
    mutator.mutate(damaged);
    try {
      const pte::File file = pte::read(Storage::of(damaged));
      const Storage once = pte::write(file);
      const pte::File again = pte::read(once);
      REQUIRE(copied(pte::write(again)) == copied(once));
      REQUIRE(sum_of_data(again) == sum_of_data(file));
      ++read;
    } catch (const InvalidGraph&) {
    } catch (const UnsupportedOp&) {
    }
  }
  CHECK(read > 0);
  CHECK(read < iterations);
}

}  // namespace tosaic
