// Foreign operators that their user described become tosa.custom.
//
//   %y = opaque(%x) {target="lib.op.default", arguments="..", domain="lib", name="op", layout=channels_last}
//     ->
//   %y = tosa.custom(%x) {operator_name="op", domain_name="lib", implementation_attrs=".."}
//
// Operands and results have the dim orders that the layout of the operator asks for, so their shapes are
// permuted. Integers retain their dtype, except that i64 becomes i32. A foreign operator without description
// is refused.

#include "tosaic/layout/order.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {
namespace {

[[noreturn]] void refuse_foreign(const Legalizer& l, const OpaqueAttrs& attrs) {
  const std::string name = "operator '" + attrs.target + "' ";
  // The importer marks such calls in the last entry of the arguments.
  if (attrs.arguments.ends_with("\"training\":true}"))
    l.refuse(name + "is in training mode, which TOSA does not have",
             "Call .eval() on the module before torch.export.export");
  if (attrs.arguments.ends_with("\"random\":true}"))
    l.refuse(name + "draws random numbers, which TOSA does not do",
             "Call .eval() on the module before torch.export.export, or make the numbers an input");
  if (attrs.target.starts_with("higher_order."))
    l.refuse(name + "is foreign to tosaic", "Replace it in the module by calls of operators");
  l.refuse(name + "is foreign to tosaic",
           "Replace it, decompose the program with run_decompositions(), or describe it: "
           "tosaic.from_exported(program, operators=[tosaic.ForeignOp('" +
               attrs.target + "', kernel, domain='my_library', name='my_operator')])");
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

}  // namespace

std::vector<Physical> legalize_foreign(Legalizer& l) {
  const auto& attrs = l.attrs<OpaqueAttrs>();
  if (attrs.name.empty()) refuse_foreign(l, attrs);
  std::vector<ValueId> operands;
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    const TensorType& type = l.logical_type(i);
    const ValueId operand = l.operand(i, order_of(l, attrs, type));
    operands.push_back(is_integer(type.dtype) ? l.as_integer(operand, l.boundary_dtype(type.dtype))
                                              : operand);
  }
  std::vector<TensorType> types;
  std::vector<DimOrder> orders;
  for (std::uint32_t r = 0; r < l.node().result_count; ++r) {
    const TensorType& type = l.source().type(l.source().result(l.node(), r));
    orders.push_back(order_of(l, attrs, type));
    types.push_back({l.boundary_dtype(type.dtype), physical_dims(type.shape, orders.back()), {}, nullptr});
  }
  const std::vector<ValueId> results = l.emit_all(
      Op::kTosaCustom, TosaCustomAttrs{attrs.name, attrs.domain, attrs.arguments}, operands, types);
  std::vector<Physical> made;
  for (std::size_t r = 0; r < results.size(); ++r) made.push_back({results[r], orders[r]});
  return made;
}

}  // namespace tosaic::passes
