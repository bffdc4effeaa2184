#include "tosaic/pte/write.h"

#include <pte_generated.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "tosaic/base/error.h"
#include "tosaic/pte/header.h"

namespace tosaic::pte {
namespace {

using flatbuffers::Offset;
using Builder = flatbuffers::FlatBufferBuilder;

constexpr std::size_t kDataAlignment = 16;  // of elements and payloads inside the program

constexpr std::size_t round_up(std::size_t size, std::size_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

// A vector of what write(each) returns, one table for each item.
template <class Table, class Item, class Write>
Offset<flatbuffers::Vector<Offset<Table>>> tables(Builder& builder, const std::vector<Item>& items,
                                                  Write write) {
  std::vector<Offset<Table>> offsets;
  offsets.reserve(items.size());
  for (const Item& item : items) offsets.push_back(write(item));
  return builder.CreateVector(offsets);
}

Offset<flatbuffers::Vector<std::uint8_t>> bytes(Builder& builder, const Storage& storage,
                                                std::size_t alignment) {
  builder.ForceVectorAlignment(storage.size(), 1, alignment);
  return builder.CreateVector(reinterpret_cast<const std::uint8_t*>(storage.bytes().data()), storage.size());
}

// Text that the format may lack; an empty one is absent.
Offset<flatbuffers::String> optional_text(Builder& builder, const std::string& text) {
  return text.empty() ? Offset<flatbuffers::String>() : builder.CreateString(text);
}

// ---- values ----

Offset<schema::Tensor> write_tensor(Builder& builder, const Tensor& tensor) {
  const auto sizes = builder.CreateVector(tensor.sizes);
  const auto order = builder.CreateVector(tensor.dim_order);
  Offset<schema::Allocation> allocation;
  if (tensor.allocation)
    allocation = schema::CreateAllocation(builder, tensor.allocation->memory,
                                          static_cast<std::uint32_t>(tensor.allocation->offset),
                                          static_cast<std::uint32_t>(tensor.allocation->offset >> 32));
  Offset<schema::Extra> extra;
  if (tensor.extra) {
    const auto name = optional_text(builder, tensor.extra->name);
    extra = schema::CreateExtra(builder, tensor.extra->mutable_data, name,
                                static_cast<std::int8_t>(tensor.extra->location), tensor.extra->device,
                                tensor.extra->device_index);
  }
  return schema::CreateTensor(builder, tensor.scalar_type, tensor.storage_offset, sizes, order,
                              tensor.requires_grad, tensor.data, allocation, tensor.layout,
                              static_cast<std::int8_t>(tensor.dynamism), extra);
}

struct Kind {
  schema::Kind type = schema::Kind::NONE;
  Offset<void> table;
};

// Writes the table of each kind of value.
struct KindWriter {
  Builder& builder;

  Kind operator()(std::monostate) const { return {schema::Kind::Null, schema::CreateNull(builder).Union()}; }
  Kind operator()(bool value) const {
    return {schema::Kind::Bool, schema::CreateBool(builder, value).Union()};
  }
  Kind operator()(std::int64_t value) const {
    return {schema::Kind::Int, schema::CreateInt(builder, value).Union()};
  }
  Kind operator()(double value) const {
    return {schema::Kind::Double, schema::CreateDouble(builder, value).Union()};
  }
  Kind operator()(const std::string& value) const {
    const auto text = builder.CreateString(value);
    return {schema::Kind::Text, schema::CreateText(builder, text).Union()};
  }
  Kind operator()(const Tensor& tensor) const {
    return {schema::Kind::Tensor, write_tensor(builder, tensor).Union()};
  }
  Kind operator()(const IntList& list) const {
    const auto items = builder.CreateVector(list.items);
    return {schema::Kind::Ints, schema::CreateInts(builder, items).Union()};
  }
  Kind operator()(const DoubleList& list) const {
    const auto items = builder.CreateVector(list.items);
    return {schema::Kind::Doubles, schema::CreateDoubles(builder, items).Union()};
  }
  Kind operator()(const BoolList& list) const {
    const auto items = builder.CreateVector(list.items);
    return {schema::Kind::Bools, schema::CreateBools(builder, items).Union()};
  }
  Kind operator()(const TensorList& list) const {
    const auto items = builder.CreateVector(list.items);
    return {schema::Kind::Tensors, schema::CreateTensors(builder, items).Union()};
  }
  Kind operator()(const OptionalTensorList& list) const {
    const auto items = builder.CreateVector(list.items);
    return {schema::Kind::OptionalTensors, schema::CreateOptionalTensors(builder, items).Union()};
  }
};

Offset<schema::Value> write_value(Builder& builder, const Value& value) {
  const Kind kind = std::visit(KindWriter{builder}, value);
  return schema::CreateValue(builder, kind.type, kind.table);
}

// ---- methods ----

struct Action {
  schema::Action type = schema::Action::NONE;
  Offset<void> table;
};

struct ActionWriter {
  Builder& builder;

  Action operator()(const KernelCall& call) const {
    const auto args = builder.CreateVector(call.args);
    return {schema::Action::KernelCall, schema::CreateKernelCall(builder, call.op, args).Union()};
  }
  Action operator()(const DelegateCall& call) const {
    const auto args = builder.CreateVector(call.args);
    return {schema::Action::DelegateCall, schema::CreateDelegateCall(builder, call.delegate, args).Union()};
  }
  Action operator()(const Move& move) const {
    return {schema::Action::Move, schema::CreateMove(builder, move.from, move.to).Union()};
  }
  Action operator()(const JumpFalse& jump) const {
    return {schema::Action::JumpFalse,
            schema::CreateJumpFalse(builder, jump.condition, jump.destination).Union()};
  }
  Action operator()(const Free& free) const {
    return {schema::Action::Free, schema::CreateFree(builder, free.value).Union()};
  }
};

Offset<schema::Instruction> write_instruction(Builder& builder, const Instruction& instruction) {
  const Action action = std::visit(ActionWriter{builder}, instruction);
  return schema::CreateInstruction(builder, action.type, action.table);
}

Offset<schema::Frames> write_frames(Builder& builder, const std::vector<Frame>& frames) {
  const auto items = tables<schema::Frame>(builder, frames, [&](const Frame& frame) {
    const auto file = builder.CreateString(frame.file);
    const auto function = builder.CreateString(frame.function);
    const auto source = builder.CreateString(frame.source);
    return schema::CreateFrame(builder, file, frame.line, function, source);
  });
  return schema::CreateFrames(builder, items);
}

Offset<schema::Chain> write_chain(Builder& builder, const Chain& chain) {
  const auto inputs = builder.CreateVector(chain.inputs);
  const auto outputs = builder.CreateVector(chain.outputs);
  const auto instructions = tables<schema::Instruction>(
      builder, chain.instructions, [&](const Instruction& each) { return write_instruction(builder, each); });
  Offset<flatbuffers::Vector<Offset<schema::Frames>>> traces;
  if (chain.traces)
    traces = tables<schema::Frames>(builder, *chain.traces, [&](const std::vector<Frame>& frames) {
      return write_frames(builder, frames);
    });
  return schema::CreateChain(builder, inputs, outputs, instructions, traces);
}

Offset<schema::Delegate> write_delegate(Builder& builder, const Delegate& delegate) {
  const auto backend = builder.CreateString(delegate.backend);
  const auto payload =
      schema::CreatePayloadPlace(builder, static_cast<std::int8_t>(delegate.location), delegate.index);
  const auto specs = tables<schema::CompileSpec>(builder, delegate.specs, [&](const CompileSpec& spec) {
    const auto key = builder.CreateString(spec.key);
    const auto value = bytes(builder, spec.value, 1);
    return schema::CreateCompileSpec(builder, key, value);
  });
  return schema::CreateDelegate(builder, backend, payload, specs);
}

Offset<schema::Operator> write_operator(Builder& builder, const Operator& op) {
  const auto name = builder.CreateString(op.name);
  const auto overload = builder.CreateString(op.overload);
  return schema::CreateOperator(builder, name, overload);
}

Offset<schema::Method> write_method(Builder& builder, const Method& method) {
  const auto name = builder.CreateString(method.name);
  const auto input_text = builder.CreateString(method.input_containers);
  const auto output_text = builder.CreateString(method.output_containers);
  const auto containers = schema::CreateContainers(builder, input_text, output_text);
  const auto values = tables<schema::Value>(builder, method.values,
                                            [&](const Value& value) { return write_value(builder, value); });
  const auto inputs = builder.CreateVector(method.inputs);
  const auto outputs = builder.CreateVector(method.outputs);
  const auto chains = tables<schema::Chain>(builder, method.chains,
                                            [&](const Chain& chain) { return write_chain(builder, chain); });
  const auto operators = tables<schema::Operator>(
      builder, method.operators, [&](const Operator& op) { return write_operator(builder, op); });
  const auto delegates = tables<schema::Delegate>(
      builder, method.delegates, [&](const Delegate& each) { return write_delegate(builder, each); });
  const auto memories = builder.CreateVector(method.memories);
  Offset<flatbuffers::Vector<Offset<schema::MemoryDevice>>> devices;
  if (method.memory_devices)
    devices = tables<schema::MemoryDevice>(builder, *method.memory_devices, [&](const MemoryDevice& device) {
      return schema::CreateMemoryDevice(builder, device.memory, device.device, device.device_index);
    });
  return schema::CreateMethod(builder, name, containers, values, inputs, outputs, chains, operators,
                              delegates, memories, devices);
}

// ---- the file ----

Offset<schema::Pieces> write_pieces(Builder& builder, const Pieces& pieces) {
  const auto offsets = builder.CreateVector(pieces.offsets);
  return schema::CreatePieces(builder, pieces.segment, offsets);
}

// The places of segments, from the first one on, and the place of the end.
std::vector<std::size_t> places_of(std::span<const std::size_t> sizes) {
  std::vector<std::size_t> places;
  std::size_t end = 0;
  for (const std::size_t size : sizes) {
    places.push_back(round_up(end, kSegmentAlignment));
    end = places.back() + size;
  }
  places.push_back(end);
  return places;
}

void build_program(Builder& builder, const File& file, std::span<const std::size_t> sizes,
                   const std::vector<std::size_t>& places) {
  const auto methods = tables<schema::Method>(
      builder, file.methods, [&](const Method& method) { return write_method(builder, method); });
  const auto elements = tables<schema::Elements>(builder, file.elements, [&](const Storage& each) {
    return schema::CreateElements(builder, bytes(builder, each, kDataAlignment));
  });
  const auto payloads = tables<schema::Payload>(builder, file.payloads, [&](const Storage& each) {
    return schema::CreatePayload(builder, bytes(builder, each, kDataAlignment));
  });
  std::vector<Offset<schema::Segment>> described;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    described.push_back(schema::CreateSegment(builder, places[i], sizes[i]));
  const auto segments = builder.CreateVector(described);
  Offset<schema::Pieces> constants;
  if (file.constants) constants = write_pieces(builder, *file.constants);
  Offset<flatbuffers::Vector<Offset<schema::Pieces>>> mutable_data;
  if (file.mutable_data)
    mutable_data = tables<schema::Pieces>(
        builder, *file.mutable_data, [&](const Pieces& pieces) { return write_pieces(builder, pieces); });
  Offset<flatbuffers::Vector<Offset<schema::NamedData>>> named;
  if (file.named_data)
    named = tables<schema::NamedData>(builder, *file.named_data, [&](const NamedData& each) {
      return schema::CreateNamedData(builder, builder.CreateString(each.key), each.segment);
    });
  schema::FinishProgramBuffer(
      builder, schema::CreateProgram(builder, file.version, methods, elements, payloads, segments, constants,
                                     mutable_data, named));
}

template <class T>
void put(std::byte* to, std::size_t at, T value) {
  std::memcpy(to + at, &value, sizeof value);
}

// The program with the extended header after its first 8 bytes. Of all offsets, only that of the root table
// spans the header.
Storage with_header(std::span<const std::byte> program, std::size_t header_size, std::size_t segments_at,
                    std::size_t segments_size) {
  Storage made = Storage::allocate(program.size() + header_size);
  std::byte* to = made.writable();
  std::ranges::copy(program.first(kHeaderPlace), to);
  std::ranges::copy(program.subspan(kHeaderPlace), to + kHeaderPlace + header_size);
  std::uint32_t root = 0;
  std::memcpy(&root, program.data(), sizeof root);
  put(to, 0, static_cast<std::uint32_t>(root + header_size));
  std::memcpy(to + kHeaderPlace, kHeaderMagic, 4);
  put(to, kHeaderPlace + 4, kHeaderLength);
  put(to, kHeaderPlace + 8, std::uint64_t{made.size()});
  put(to, kHeaderPlace + 16, std::uint64_t{segments_at});
  put(to, kHeaderPlace + 24, std::uint64_t{segments_size});
  return made;
}

std::size_t size_inside(const File& file) {
  std::size_t size = 0;
  for (const Storage& each : file.elements) size += each.size();
  for (const Storage& each : file.payloads) size += each.size();
  return size;
}

}  // namespace

Head head_of(const File& file, std::span<const std::size_t> sizes) {
  if (size_inside(file) > std::numeric_limits<std::int32_t>::max() / 2)
    throw UnsupportedOp({.where = "pte",
                         .what = "the data inside the program is too large",
                         .expected = "at most 1 GiB; segments may be larger",
                         .got = std::to_string(size_inside(file)) + " bytes"});
  std::vector<std::size_t> places = places_of(sizes);
  const std::size_t end = places.back();
  places.pop_back();
  Builder builder;
  build_program(builder, file, sizes, places);
  const std::span<const std::byte> program(reinterpret_cast<const std::byte*>(builder.GetBufferPointer()),
                                           builder.GetSize());
  Head head;
  if (end == 0) {
    head.program = Storage::allocate(program.size());
    std::ranges::copy(program, head.program.writable());
    head.places.assign(sizes.size(), program.size());
    return head;
  }
  const std::size_t header = round_up(kHeaderLength, builder.GetBufferMinAlignment());
  const std::size_t segments_at = round_up(program.size() + header, kSegmentAlignment);
  head.program = with_header(program, header, segments_at, end);
  for (const std::size_t place : places) head.places.push_back(segments_at + place);
  return head;
}

Image lay_out(const File& file) {
  std::vector<std::size_t> sizes;
  for (const Segment& segment : file.segments) sizes.push_back(segment.bytes.size());
  Head head = head_of(file, sizes);
  Image image;
  image.size_ = head.program.size();
  image.parts_.push_back({0, std::move(head.program)});
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    image.parts_.push_back({head.places[i], file.segments[i].bytes});
    image.size_ = head.places[i] + sizes[i];
  }
  return image;
}

void Image::copy(std::byte* to) const {
  std::size_t end = 0;
  for (const Part& part : parts_) {
    std::fill(to + end, to + part.at, std::byte{0});
    std::ranges::copy(part.bytes.bytes(), to + part.at);
    end = part.at + part.bytes.size();
  }
  std::fill(to + end, to + size_, std::byte{0});
}

Storage write(const File& file) {
  const Image image = lay_out(file);
  Storage made = Storage::allocate(image.size());
  image.copy(made.writable());
  return made;
}

}  // namespace tosaic::pte
