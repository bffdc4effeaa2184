#include "tosaic/tosa/writer/encode.h"

#include <memory>
#include <string>

#include "tosaic/base/large_pages.h"
#include "tosaic/tosa/location.h"
#include "tosaic/tosa/schema_map.h"
#include "tosaic/tosa/writer/attributes.h"
#include "tosaic/tosa/writer/vectors.h"

namespace tosaic::tosa {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr std::size_t kHoleBytes = std::size_t{16} << 10;  // constants of at least this size are holes

// The memory of the flatbuffer: the system provides only the pages that are written.
class MappedMemory final : public flatbuffers::Allocator {
 public:
  std::uint8_t* allocate(std::size_t size) override {
    return static_cast<std::uint8_t*>(map_small_pages(size));
  }
  void deallocate(std::uint8_t* memory, std::size_t size) override { unmap_small_pages(memory, size); }
};

class Encoder {
 public:
  Encoder(const FilePlan& file, const SerializeOptions& options, std::size_t reserve,
          const ConstantOffsets& offsets)
      : file_(file),
        options_(options),
        is_inline_(offsets.empty()),
        next_offset_(offsets.begin()),
        builder_(reserve, std::make_unique<MappedMemory>().release(), true) {}  // owns its allocator

  EncodedFile encode() && {
    std::vector<Offset<schema::TosaRegion>> regions;
    for (const BlockPlan& block : file_.blocks) regions.push_back(region(block));
    const auto version = schema::CreateVersion(builder_, file_.version.major, file_.version.minor, 0, false);
    const auto root = schema::CreateTosaGraph(builder_, version, builder_.CreateVector(regions));
    schema::FinishTosaGraphBuffer(builder_, root);
    return {std::move(builder_), std::move(holes_)};
  }

 private:
  using Texts = std::vector<Offset<flatbuffers::String>>;

  Offset<schema::TosaRegion> region(const BlockPlan& block) {
    Texts names;
    for (const TensorPlan& each : block.tensors) names.push_back(builder_.CreateString(each.name));
    std::vector<Offset<schema::TosaTensor>> tensors;
    std::vector<Offset<schema::TosaShape>> shapes;
    for (std::size_t i = 0; i < block.tensors.size(); ++i) {
      const TensorPlan& each = block.tensors[i];
      if (each.is_shape)
        shapes.push_back(shape(each, names[i]));
      else
        tensors.push_back(tensor(*block.graph, each, names[i]));
    }
    std::vector<Offset<schema::TosaOperator>> operators;
    for (const OperatorPlan& op : block.constants) operators.push_back(operation(*block.graph, op, names));
    for (const OperatorPlan& op : block.operators) operators.push_back(operation(*block.graph, op, names));
    const auto name = builder_.CreateString(block.name);
    // A statement for each vector, because the order in which they are created determines the bytes of the
    // file.
    const auto shape_list = builder_.CreateVector(shapes);
    const auto outputs = list(names, block.outputs);
    const auto inputs = list(names, block.inputs);
    const auto tensor_list = builder_.CreateVector(tensors);
    const auto operator_list = builder_.CreateVector(operators);
    const auto built =
        schema::CreateTosaBasicBlock(builder_, name, operator_list, tensor_list, inputs, outputs, shape_list);
    return schema::CreateTosaRegion(builder_, name, builder_.CreateVector(&built, 1));
  }

  Offset<schema::TosaTensor> tensor(const Graph& graph, const TensorPlan& tensor,
                                    Offset<flatbuffers::String> name) {
    ByteVector data = 0;
    std::uint64_t offset = 0;
    if (tensor.constant && is_inline_) data = inline_elements(tensor);
    if (tensor.constant && !is_inline_) offset = *next_offset_++;
    const std::optional<std::uint32_t> code = dtype_code(tensor.dtype);
    if (!code)
      throw UnsupportedOp({.where = "tosa",
                           .what = "TOSA has no such dtype",
                           .got = std::string(to_string(tensor.dtype)),
                           .node = tensor.name});
    const bool is_variable = !tensor.variable_name.empty();
    const auto variable = is_variable ? builder_.CreateString(tensor.variable_name) : 0;
    const auto shape = write_dims(builder_, graph, nullptr, "shape", tensor.shape);
    return schema::CreateTosaTensor(builder_, name, shape, static_cast<schema::DType>(*code), data,
                                    is_variable, false, variable, offset,
                                    offset == 0 ? 0 : tensor.packed_bytes());
  }

  ByteVector inline_elements(const TensorPlan& tensor) {
    tensor.constant->require_elements();
    const bool is_hole = same_layout(tensor.dtype) && tensor.packed_bytes() >= kHoleBytes;
    const ByteVector data = padded_bytes(builder_, tensor.packed_bytes(), [&](std::span<std::byte> to) {
      if (!is_hole) pack(tensor.dtype, tensor.constant->bytes(), to);
    });
    if (is_hole) holes_.push_back({data.o - sizeof(flatbuffers::uoffset_t), tensor.constant});
    return data;
  }

  Offset<schema::TosaShape> shape(const TensorPlan& value, Offset<flatbuffers::String> name) {
    const std::size_t size = value.extents.size() * sizeof(std::int64_t);
    const ByteVector data = padded_bytes(builder_, size, [&](std::span<std::byte> to) {
      if (size != 0) std::memcpy(to.data(), value.extents.data(), size);
    });
    return schema::CreateTosaShape(builder_, name, static_cast<std::uint32_t>(value.extents.size()), data);
  }

  // The names of the tensors with these indices.
  Offset<flatbuffers::Vector<Offset<flatbuffers::String>>> list(const Texts& names,
                                                                const std::vector<std::uint32_t>& tensors) {
    Texts texts;
    for (const std::uint32_t tensor : tensors) texts.push_back(names[tensor]);
    return builder_.CreateVector(texts);
  }

  Offset<schema::TosaOperator> operation(const Graph& graph, const OperatorPlan& op, const Texts& names) {
    const Offset<void> attributes = write_attributes(builder_, graph, op);
    const auto inputs = list(names, op.inputs);
    const auto outputs = list(names, op.outputs);
    Offset<schema::OpLocation> location = 0;
    const std::string text = options_.locations && op.node != nullptr ? location_text(op.node->origin) : "";
    if (!text.empty()) location = schema::CreateOpLocation(builder_, builder_.CreateString(text));
    return schema::CreateTosaOperator(builder_, static_cast<schema::Op>(op.code),
                                      static_cast<schema::Attribute>(op.code), attributes, inputs, outputs,
                                      location);
  }

  const FilePlan& file_;
  const SerializeOptions& options_;
  bool is_inline_;                               // constants are in the flatbuffer, not after it
  ConstantOffsets::const_iterator next_offset_;  // the offset of the next constant
  FlatBufferBuilder builder_;
  std::vector<Hole> holes_;
};

}  // namespace

EncodedFile encode(const FilePlan& file, const SerializeOptions& options, std::size_t reserve,
                   const ConstantOffsets& offsets) {
  return Encoder(file, options, reserve, offsets).encode();
}

}  // namespace tosaic::tosa
