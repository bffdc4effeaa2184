#include "tosaic/tosa/writer/tensor_list.h"

#include <tosa_generated.h>

#include <limits>

#include "tosaic/tosa/schema_map.h"

namespace tosaic::tosa {
namespace {

OperatorPlan constant_operator(schema::Op code, std::uint32_t tensor) {
  return {static_cast<std::uint32_t>(code), nullptr, {}, {tensor}, {}};
}

}  // namespace

void check_value(const Value& value) {
  const auto fail = [&value](std::string what, std::string expected, std::string got) {
    return ErrorParts{.where = "tosa",
                      .what = std::move(what),
                      .expected = std::move(expected),
                      .got = std::move(got),
                      .node = value.name};
  };
  if (!dtype_code(value.type.dtype))
    throw UnsupportedOp(fail("TOSA has no such dtype",
                             "bool, i4, i8, i16, i32, i48 or a float of at most 32 bits",
                             std::string(to_string(value.type.dtype))));
  if (!value.type.order.is_identity())
    throw InvalidGraph(fail("a tosa value must have the identity dim order", "", to_string(value.type)));
  for (const std::int64_t extent : value.type.shape) {
    if (extent < 1) throw UnsupportedOp(fail("TOSA has no empty tensors", "", to_string(value.type.shape)));
    if (extent > std::numeric_limits<std::int32_t>::max())
      throw UnsupportedOp(fail("an extent does not fit 32 bits", "", to_string(value.type.shape)));
  }
  if (value.kind != ValueKind::kConstant) return;
  value.constant->require_elements();
  const std::size_t bytes = value.constant->storage.size();
  if (bytes != value.type.bytes())
    throw InvalidGraph(fail("the constant has the wrong size", std::to_string(value.type.bytes()) + " bytes",
                            std::to_string(bytes) + " bytes"));
}

TensorList::TensorList(const Graph& graph, BlockPlan& block)
    : graph_(graph), block_(block), of_value_(graph.values().size(), kNone) {
  for (const Value& value : graph.values()) taken_.insert(value.name);
}

std::uint32_t TensorList::add(TensorPlan tensor) {
  block_.tensors.push_back(std::move(tensor));
  return static_cast<std::uint32_t>(block_.tensors.size() - 1);
}

std::uint32_t TensorList::of_value(ValueId id) {
  std::uint32_t& index = of_value_[id.index()];
  if (index != kNone) return index;
  const Value& value = graph_.value(id);
  check_value(value);
  TensorPlan tensor;
  tensor.name = value.name;
  tensor.dtype = value.type.dtype;
  tensor.shape = value.type.shape;
  tensor.constant = value.constant;
  index = add(std::move(tensor));
  if (value.kind == ValueKind::kConstant)
    block_.constants.push_back(constant_operator(schema::Op::CONST, index));
  return index;
}

std::uint32_t TensorList::of_elements(DType dtype, std::span<const double> values, const std::string& name) {
  const std::size_t step = byte_size(dtype);
  std::vector<std::byte> bytes(values.size() * step);
  for (std::size_t i = 0; i < values.size(); ++i) store_element(dtype, &bytes[i * step], values[i]);
  const auto [it, fresh] = of_elements_.try_emplace({dtype, bytes}, kNone);
  if (!fresh) return it->second;
  auto constant = std::make_shared<Constant>();
  constant->name = fresh_name(name);
  constant->dtype = dtype;
  constant->shape = Shape{static_cast<std::int64_t>(values.size())};
  constant->storage = Storage::of(bytes);
  TensorPlan tensor;
  tensor.name = constant->name;
  tensor.dtype = dtype;
  tensor.shape = constant->shape;
  tensor.constant = std::move(constant);
  it->second = add(std::move(tensor));
  block_.constants.push_back(constant_operator(schema::Op::CONST, it->second));
  return it->second;
}

std::uint32_t TensorList::of_extents(const std::vector<std::int64_t>& extents) {
  const auto [it, fresh] = of_extents_.try_emplace(extents, kNone);
  if (!fresh) return it->second;
  std::string wanted = "shape";
  for (const std::int64_t extent : extents) wanted += "_" + std::to_string(extent);
  TensorPlan tensor;
  tensor.name = fresh_name(wanted);
  tensor.is_shape = true;
  tensor.extents = extents;
  it->second = add(std::move(tensor));
  block_.constants.push_back(constant_operator(schema::Op::CONST_SHAPE, it->second));
  return it->second;
}

std::string TensorList::fresh_name(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 1; !taken_.insert(name).second; ++i) name = wanted + "_" + std::to_string(i);
  return name;
}

}  // namespace tosaic::tosa
