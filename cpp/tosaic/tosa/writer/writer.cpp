#include "tosaic/tosa/writer/writer.h"

#include <algorithm>
#include <memory>

#include "tosaic/tosa/schema_map.h"
#include "tosaic/tosa/writer/encode.h"
#include "tosaic/tosa/writer/file_plan.h"
#include "tosaic/tosa/writer/vectors.h"

namespace tosaic::tosa {
namespace {

constexpr std::size_t kConstantAlignment = 64;  // alignment, in bytes, of constants after the flatbuffer
// The builder begins with this number of bytes for each tensor, without its constant, and for each operator.
// Almost all of them take less: memory that is not written costs nothing, whereas a builder that grows copies
// everything.
constexpr std::size_t kBytesPerTensor = 1024, kBytesPerOperator = 4096;
// A flatbuffer has at most 2 GiB. The rest, 147 MB, is for everything but constants.
constexpr std::size_t kMaxInline = 2'000'000'000;

// All constants, in the order in which they are written.
std::vector<const TensorPlan*> constants_of(const FilePlan& file) {
  std::vector<const TensorPlan*> constants;
  for (const BlockPlan& block : file.blocks)
    for (const TensorPlan& tensor : block.tensors)
      if (tensor.constant) constants.push_back(&tensor);
  return constants;
}

std::size_t constant_bytes(const FilePlan& file) {
  std::size_t total = 0;
  for (const TensorPlan* tensor : constants_of(file))
    total += rounded_up(tensor->packed_bytes(), kDataAlignment) + kDataAlignment;
  return total;
}

std::size_t bytes_without_constants(const FilePlan& file) {
  std::size_t bytes = 1024;
  for (const BlockPlan& block : file.blocks)
    bytes += kBytesPerTensor * (1 + block.tensors.size()) +
             kBytesPerOperator * (block.constants.size() + block.operators.size());
  return bytes;
}

// The flatbuffer as a FileImage, with the constants in the place of the holes.
FileImage filled(EncodedFile file) {
  const auto buffer = std::make_shared<flatbuffers::DetachedBuffer>(file.builder.Release());
  const std::span<const std::byte> whole(reinterpret_cast<const std::byte*>(buffer->data()), buffer->size());
  FileImage image;
  std::size_t at = 0;
  for (auto hole = file.holes.rbegin(); hole != file.holes.rend(); ++hole) {
    const std::size_t start = whole.size() - hole->from_end;
    image.add(whole.subspan(at, start - at), buffer);
    image.add(hole->constant);
    at = start + hole->constant->storage.size();
  }
  image.add(whole.subspan(at), buffer);
  return image;
}

// The flatbuffer, then the constants. The offsets of the constants depend on the flatbuffer's size, which
// does not depend on the values of offsets that are not 0. So the flatbuffer is built twice: with
// placeholders, then with the offsets.
FileImage with_constants_behind(const FilePlan& file, const SerializeOptions& options) {
  const std::vector<const TensorPlan*> constants = constants_of(file);
  const std::size_t reserve = bytes_without_constants(file);
  const auto image_with = [&](const ConstantOffsets& given) {
    return filled(encode(file, options, reserve, given));
  };
  ConstantOffsets offsets(constants.size(), kConstantAlignment);
  std::uint64_t end = image_with(offsets).size();
  for (std::size_t i = 0; i < constants.size(); ++i) {
    offsets[i] = rounded_up(end, kConstantAlignment);
    end = offsets[i] + constants[i]->packed_bytes();
  }
  FileImage image = image_with(offsets);
  for (std::size_t i = 0; i < constants.size(); ++i) {
    const TensorPlan& tensor = *constants[i];
    if (const std::size_t gap = offsets[i] - image.size(); gap != 0) {
      const auto zeros = std::make_shared<const std::vector<std::byte>>(gap);
      image.add(*zeros, zeros);
    }
    if (same_layout(tensor.dtype)) {
      tensor.constant->require_elements();
      image.add(tensor.constant);
    } else {
      const auto packed = std::make_shared<std::vector<std::byte>>(tensor.packed_bytes());
      pack(tensor.dtype, tensor.constant->bytes(), *packed);
      image.add(*packed, packed);
    }
  }
  return image;
}

}  // namespace

FileImage write_program(const Graph& graph, const SerializeOptions& options) {
  FilePlan file = plan_file(graph);
  file.version = least_version(graph, options.newer);
  const std::size_t constants = constant_bytes(file);
  if (constants > std::min(options.inline_limit, kMaxInline)) return with_constants_behind(file, options);
  return filled(encode(file, options, constants + bytes_without_constants(file), ConstantOffsets()));
}

}  // namespace tosaic::tosa
