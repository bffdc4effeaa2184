// file: what a .pte file says, as plain data.
//
//   File
//     methods    "forward": values, and instructions that compute values from values
//     segments   pieces of bytes after the program: constants, payloads of delegates, initial states
//
// The structs mirror the tables of the file, so that read() and write() are inverse. All fields that are
// indices are valid in a File that read() returned, and the elements of every tensor with data are there
// (elements_of).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tosaic/ir/storage.h"

namespace tosaic::pte {

// ---- values ----

// Where the memory of a tensor is planned: in the memory `memory` of its method, from byte `offset` on.
struct Allocation {
  std::uint32_t memory = 0;
  std::uint64_t offset = 0;
  bool operator==(const Allocation&) const = default;
};

enum class DataLocation : std::int8_t { kSegment = 0, kExternal = 1 };

// Facts that few tensors have.
struct Extra {
  std::uint64_t mutable_data = 0;  // index into File::mutable_data
  std::string name;                // of a parameter or buffer: "linear.weight"
  DataLocation location = DataLocation::kSegment;
  std::int8_t device = 0;  // 0 is the CPU
  std::int8_t device_index = 0;
  bool operator==(const Extra&) const = default;
};

enum class Dynamism : std::int8_t { kStatic = 0, kBounded = 1, kUnbounded = 2 };

// A tensor is a constant if it has data and no allocation. A tensor with both is a state with these initial
// elements. With neither, its memory is passed by the caller or made during the run.
struct Tensor {
  std::int8_t scalar_type = 0;  // a code of scalar_type.h
  std::int32_t storage_offset = 0;
  std::vector<std::int32_t> sizes;  // the extents; the greatest ones if dynamic
  std::vector<std::uint8_t> dim_order;
  bool requires_grad = false;
  std::uint32_t data = 0;  // index of the elements; 0 is "no data"
  std::optional<Allocation> allocation;
  std::int8_t layout = 0;
  Dynamism dynamism = Dynamism::kStatic;
  std::optional<Extra> extra;
  bool operator==(const Tensor&) const = default;
};

// Lists of integers and of tensors hold indices of values, since a list may have elements that a run
// computes. An index of -1 in a list of optional tensors is an absent tensor.
struct IntList {
  std::vector<std::int64_t> items;
  bool operator==(const IntList&) const = default;
};
struct DoubleList {
  std::vector<double> items;
  bool operator==(const DoubleList&) const = default;
};
struct BoolList {
  std::vector<bool> items;
  bool operator==(const BoolList&) const = default;
};
struct TensorList {
  std::vector<std::int32_t> items;
  bool operator==(const TensorList&) const = default;
};
struct OptionalTensorList {
  std::vector<std::int32_t> items;
  bool operator==(const OptionalTensorList&) const = default;
};

using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, Tensor, IntList,
                           DoubleList, BoolList, TensorList, OptionalTensorList>;

// ---- methods ----

struct Operator {
  std::string name, overload;  // "aten::add", "out"
  bool operator==(const Operator&) const = default;
};

// The arguments are indices of values: operands, then results, as the schema of the operator has them. The
// returned values are repeated at the end, as one list if there are several.
struct KernelCall {
  std::int32_t op = 0;  // index into Method::operators
  std::vector<std::int32_t> args;
  bool operator==(const KernelCall&) const = default;
};
// The arguments are inputs, then outputs. The file does not say how many are inputs.
struct DelegateCall {
  std::int32_t delegate = 0;  // index into Method::delegates
  std::vector<std::int32_t> args;
  bool operator==(const DelegateCall&) const = default;
};
struct Move {
  std::int32_t from = 0, to = 0;
  bool operator==(const Move&) const = default;
};
struct JumpFalse {
  std::int32_t condition = 0;    // index of a bool value
  std::int32_t destination = 0;  // index of an instruction, or the number of them: the end
  bool operator==(const JumpFalse&) const = default;
};
struct Free {
  std::int32_t value = 0;
  bool operator==(const Free&) const = default;
};

using Instruction = std::variant<KernelCall, DelegateCall, Move, JumpFalse, Free>;

// A frame of the Python stack at export.
struct Frame {
  std::string file;
  std::int32_t line = 0;
  std::string function, source;
  bool operator==(const Frame&) const = default;
};

struct Chain {
  std::vector<std::int32_t> inputs, outputs;
  std::vector<Instruction> instructions;
  std::optional<std::vector<std::vector<Frame>>> traces;  // by instruction
  bool operator==(const Chain&) const = default;
};

enum class PayloadLocation : std::int8_t { kInline = 0, kSegment = 1 };

struct CompileSpec {
  std::string key;
  Storage value;
};

struct Delegate {
  std::string backend;  // "XnnpackBackend"
  PayloadLocation location = PayloadLocation::kInline;
  std::uint32_t index = 0;  // into File::payloads or File::segments
  std::vector<CompileSpec> specs;
};

struct MemoryDevice {
  std::int32_t memory = 0;
  std::int8_t device = 0, device_index = 0;
  bool operator==(const MemoryDevice&) const = default;
};

struct Method {
  std::string name;
  std::string input_containers,
      output_containers;  // how nested arguments become the inputs, as torch writes it
  std::vector<Value> values;
  std::vector<std::int32_t> inputs, outputs;
  std::vector<Chain> chains;
  std::vector<Operator> operators;
  std::vector<Delegate> delegates;
  std::vector<std::int64_t> memories;  // bytes; memory 0 is reserved
  std::optional<std::vector<MemoryDevice>> memory_devices;
};

// ---- the file ----

// Where the elements of tensors begin in a segment. Index 0 is reserved for "no data".
struct Pieces {
  std::uint32_t segment = 0;
  std::vector<std::uint64_t> offsets;
};

struct NamedData {
  std::string key;
  std::uint32_t segment = 0;
};

struct Segment {
  std::uint64_t offset = 0;  // from the beginning of the first segment; write() ignores it
  Storage bytes;
};

struct File {
  std::uint32_t version = 0;
  std::vector<Method> methods;
  std::vector<Storage> elements;  // of constants, in files without segments for them
  std::vector<Storage> payloads;  // of delegates, inside the program
  std::vector<Segment> segments;
  std::optional<Pieces> constants;
  std::optional<std::vector<Pieces>> mutable_data;
  std::optional<std::vector<NamedData>> named_data;
};

// The number of bytes of the elements of a tensor.
[[nodiscard]] std::uint64_t byte_size(const Tensor& tensor);

// The elements of a constant, or the initial elements of a state. They are stored in dim order and share the
// memory of the file. Nothing if the tensor has no data, or if its data is in another file.
[[nodiscard]] std::optional<Storage> elements_of(const File& file, const Tensor& tensor);

// The payload of a delegate, which shares the memory of the file.
[[nodiscard]] Storage payload_of(const File& file, const Delegate& delegate);

// A part of a storage, which shares its memory. InternalError if the part is not inside.
[[nodiscard]] Storage part_of(const Storage& whole, std::uint64_t offset, std::uint64_t size);

}  // namespace tosaic::pte
