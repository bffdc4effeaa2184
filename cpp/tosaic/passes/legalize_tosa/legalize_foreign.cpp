// Legalizes foreign operators that their user described: they become tosa.custom.
//
//   %y = opaque(%x) {target="lib.op.default", arguments="..", domain="lib", name="op", layout=channels_last}
//     ->
//   %y = tosa.custom(%x) {operator_name="op", domain_name="lib", implementation_attrs=".."}
//
// Operands and results have the dim orders that the layout of the operator requires, so their shapes are
// permuted. If an order is not row-major, the JSON of implementation_attrs has the key "dim_orders". From it
// a reader of the file knows the axes of each tensor. The orders of the operands come first.
//
//   {"args":[{"$":0},1.5],"kwargs":{},"dim_orders":[[0,2,3,1],[0,2,3,1]]}
//
// Integers retain their dtype, except that i64 becomes i32. A foreign operator without description is
// refused.

#include <algorithm>
#include <string>
#include <vector>

#include "tosaic/ir/json_object.h"
#include "tosaic/layout/order.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {
namespace {

[[noreturn]] void refuse_foreign(const Legalizer& l, const OpaqueAttrs& attrs) {
  const std::string name = "operator '" + attrs.target + "' ";
  // The importer marks a call in training mode, or a random call, by an entry of the arguments.
  const std::vector<std::string> keys = json_keys(attrs.arguments).value_or(std::vector<std::string>());
  if (std::ranges::find(keys, "training") != keys.end())
    l.refuse(name + "is in training mode, which TOSA does not have",
             "Call .eval() on the module before torch.export.export");
  if (std::ranges::find(keys, "random") != keys.end())
    l.refuse(name + "draws random numbers, which TOSA does not do",
             "Call .eval() on the module before torch.export.export, or make the numbers an input");
  if (attrs.target.starts_with("higher_order."))
    l.refuse(name + "is foreign to tosaic", "Replace it in the module by calls of operators");
  // Only a description sets layout or integers, so this operator is described, but without domain and name.
  if (attrs.layout != ForeignLayout::kRowMajor || attrs.integers)
    l.refuse(name + "is described without a domain and name, which its tosa.custom needs",
             "tosaic.ports.ForeignOp('" + attrs.target +
                 "', ..., domain='my_library', name='my_operator'), in C++ OpaqueAttrs::domain and name");
  l.refuse(
      name + "is foreign to tosaic",
      "Leave it on the host, tosaic.lower(..., unsupported='split'), replace it in the module, or describe "
      "it with a domain and a name: tosaic.from_exported(program, operators=[tosaic.ports.ForeignOp('" +
          attrs.target +
          "', kernel, domain='my_library', name='my_operator')]), in C++ OpaqueAttrs::domain and name");
}

DimOrder order_of(const Legalizer& l, const OpaqueAttrs& attrs, const TensorType& type) {
  switch (attrs.layout) {
    case ForeignLayout::kRowMajor:
      return {};
    case ForeignLayout::kChannelsLast:
      return type.rank() < 3 ? DimOrder() : DimOrder::channels_last(type.rank());
    case ForeignLayout::kAny:
      break;
  }
  if (l.node().result_count != 1) return {};
  const std::size_t rank = l.result_type().rank();
  return type.rank() > rank ? DimOrder() : layout::trailing(l.planned_order(), rank, type.rank());
}

// The arguments, a JSON object, with an entry "dim_orders" if one of the orders is not row-major.
std::string with_dim_orders(const std::string& arguments, const std::vector<DimOrder>& orders,
                            const std::vector<std::size_t>& ranks) {
  if (std::ranges::all_of(orders, &DimOrder::is_identity)) return arguments;
  std::string list = "[";
  for (std::size_t i = 0; i < orders.size(); ++i) {
    list += i == 0 ? "[" : ",[";
    const Dims axes = orders[i].axes(ranks[i]);
    for (std::size_t k = 0; k < axes.size(); ++k) list += (k == 0 ? "" : ",") + std::to_string(axes[k]);
    list += ']';
  }
  return with_entry(arguments, "dim_orders", list + "]");
}

}  // namespace

std::vector<Physical> legalize_foreign(Legalizer& l) {
  const auto& attrs = l.attrs<OpaqueAttrs>();
  if (attrs.name.empty()) refuse_foreign(l, attrs);
  std::vector<ValueId> operands;
  std::vector<DimOrder> orders;
  std::vector<std::size_t> ranks;
  const auto append_order = [&](const TensorType& type) {
    orders.push_back(order_of(l, attrs, type));
    ranks.push_back(type.rank());
    return orders.back();
  };
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    const TensorType& type = l.logical_type(i);
    const ValueId operand = l.operand(i, append_order(type));
    operands.push_back(is_integer(type.dtype) ? l.as_integer(operand, l.boundary_dtype(type.dtype))
                                              : operand);
  }
  std::vector<TensorType> types;
  for (std::uint32_t r = 0; r < l.node().result_count; ++r) {
    const TensorType& type = l.source().type(l.source().result(l.node(), r));
    types.push_back(
        {l.boundary_dtype(type.dtype), physical_dims(type.shape, append_order(type)), {}, nullptr});
  }
  const TosaCustomAttrs custom{attrs.name, attrs.domain, with_dim_orders(attrs.arguments, orders, ranks)};
  const std::vector<ValueId> results = l.emit_all(Op::kTosaCustom, custom, operands, types);
  std::vector<Physical> made;
  for (std::size_t r = 0; r < results.size(); ++r)
    made.push_back({results[r], orders[l.operand_count() + r]});
  return made;
}

}  // namespace tosaic::passes
