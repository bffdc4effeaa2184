// Loads a .tosa file, runs it, and prints the results:
//
//   run_file model.tosa
//
// The elements of each input are -3, -2, .. 3, -3, -2, ...
#include <tosaic/base/error.h>
#include <tosaic/exec/session.h>
#include <tosaic/tosa/deserialize.h>

#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

tosaic::Storage read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return tosaic::Storage::of(std::vector<char>(std::istreambuf_iterator<char>(file), {}));
}

tosaic::exec::Array input_array(const tosaic::TensorType& type) {
  tosaic::exec::Array array = tosaic::exec::Array::allocate(type.dtype, type.shape);
  std::byte* at = array.storage.writable();
  for (std::int64_t i = 0; i < tosaic::num_elements(type.shape); ++i) {
    tosaic::store_element(type.dtype, at, static_cast<double>(i % 7 - 3));
    at += tosaic::byte_size(type.dtype);
  }
  return array;
}

void run(const std::string& path) {
  const auto graph = std::make_shared<const tosaic::Graph>(tosaic::tosa::deserialize(read_file(path)));

  std::vector<tosaic::exec::Array> arrays;
  std::vector<tosaic::exec::ArrayView> inputs;
  for (const tosaic::Input& input : graph->inputs()) {
    const tosaic::Value& value = graph->value(input.value);
    std::cout << "input " << value.name << ": " << to_string(value.type) << '\n';
    arrays.push_back(input_array(value.type));
    inputs.push_back(arrays.back().view());
  }

  // prepare() chooses a kernel for each operator and a place in memory for each value. It is done once; a
  // session then runs the graph as often as you like.
  tosaic::exec::Session session(tosaic::exec::prepare(graph));
  const tosaic::exec::RunResult result = session.run(inputs);

  for (std::size_t i = 0; i < result.outputs.size(); ++i) {
    const tosaic::exec::Array& array = result.outputs[i];
    const tosaic::Output& output = graph->outputs()[session.outputs()[i]];
    std::vector<double> numbers(static_cast<std::size_t>(tosaic::num_elements(array.shape)));
    tosaic::exec::read_doubles(array.view(), 0, numbers);
    std::cout << "output " << graph->value(output.value).name << ": " << to_string(graph->type(output.value))
              << " =";
    for (const double number : numbers) std::cout << ' ' << number;
    std::cout << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: run_file model.tosa\n";
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const std::exception& error) {  // tosaic::Error is one, and names the node and what is wrong
    std::cerr << error.what() << '\n';
    return 1;
  }
}
