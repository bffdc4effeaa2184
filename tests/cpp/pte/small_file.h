// A File with each kind of value and of instruction, with constants and a state in segments, and with a
// payload inside the program and one in a segment.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "tosaic/pte/file.h"

namespace tosaic::testing {

inline Storage bytes_of(std::string_view text) {
  return Storage::of(std::vector<char>(text.begin(), text.end()));
}

inline pte::Tensor small_tensor(std::vector<std::int32_t> sizes) {
  pte::Tensor tensor;
  tensor.scalar_type = 6;  // float32
  for (std::size_t axis = 0; axis < sizes.size(); ++axis)
    tensor.dim_order.push_back(static_cast<std::uint8_t>(axis));
  tensor.sizes = std::move(sizes);
  return tensor;
}

inline pte::Method small_method() {
  pte::Tensor planned = small_tensor({2, 3});
  planned.allocation = pte::Allocation{1, 16};
  pte::Tensor constant = small_tensor({4});
  constant.data = 1;
  pte::Tensor state = small_tensor({2});
  state.data = 1;
  state.allocation = pte::Allocation{2, 0};
  state.extra = pte::Extra{.mutable_data = 0, .name = "cache"};
  pte::Method method;
  method.name = "forward";
  method.input_containers = "in";
  method.output_containers = "out";
  method.values = {std::monostate(),
                   true,
                   std::int64_t{-7},
                   0.5,
                   std::string("mode"),
                   planned,
                   constant,
                   state,
                   pte::IntList{{2, 2}},
                   pte::DoubleList{{0.25, -1.0}},
                   pte::BoolList{{true, false}},
                   pte::TensorList{{5, 6}},
                   pte::OptionalTensorList{{-1, 5}}};
  method.inputs = {5};
  method.outputs = {5, 7};
  method.operators = {{"aten::add", "out"}, {"aten::copy_", ""}};
  method.delegates = {{"BackendA", pte::PayloadLocation::kInline, 0, {{"key", bytes_of("value")}}},
                      {"BackendB", pte::PayloadLocation::kSegment, 2, {}}};
  method.memories = {0, 64, 1024};
  method.memory_devices = std::vector<pte::MemoryDevice>{{1, 1, 0}};
  pte::Chain chain;
  chain.instructions = {pte::KernelCall{0, {5, 6, 2, 5, 5}},
                        pte::DelegateCall{0, {5, 7}},
                        pte::Move{5, 5},
                        pte::JumpFalse{1, 5},
                        pte::Free{5},
                        pte::DelegateCall{1, {5}}};
  chain.traces = std::vector<std::vector<pte::Frame>>(6, {{"model.py", 3, "forward", "x + y"}});
  method.chains = {chain};
  return method;
}

inline pte::File small_file() {
  pte::File file;
  file.segments = {{0, bytes_of("0123456789abcdef")}, {0, bytes_of("initial!")}, {0, bytes_of("payload B")}};
  file.constants = pte::Pieces{0, {0, 0}};
  file.mutable_data = std::vector<pte::Pieces>{{1, {0, 0}}};
  file.payloads = {bytes_of("payload A")};
  file.named_data = std::vector<pte::NamedData>{{"weights", 2}};
  file.methods = {small_method()};
  return file;
}

}  // namespace tosaic::testing
