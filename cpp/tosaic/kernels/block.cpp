#include "tosaic/kernels/block.h"

#include "tosaic/base/error.h"

namespace tosaic::kernels {

const ConvertKernels& convert_kernels(Isa isa) { return TOSAIC_SELECT_ISA(isa, kConvert); }

std::string kernel_name(const Request& request, std::string_view variant) {
  std::string name(info(request.op).name);
  if (!variant.empty()) name.append(".").append(variant);
  return name + "." +
         (request.options.reference ? std::string("reference") : std::string(to_string(request.options.isa)));
}

void fail_unsupported(const Request& request) {
  std::string dtypes;
  for (const Operand& operand : request.operands) {
    if (!dtypes.empty()) dtypes += ", ";
    dtypes += operand.present ? to_string(operand.dtype) : std::string_view("none");
  }
  if (!request.results.empty()) dtypes.append(" -> ").append(to_string(request.results[0].dtype));
  throw UnsupportedOp({.where = "kernels",
                       .what = "no kernel for " + std::string(info(request.op).name),
                       .got = dtypes,
                       .hint = "Cast the operands to a dtype that the operator is defined for"});
}

void fail_index(Op op, std::int64_t index, std::int64_t low, std::int64_t limit) {
  throw InvalidGraph({.where = std::string(info(op).name),
                      .what = "index out of range",
                      .expected = "an index in [" + std::to_string(low) + ", " + std::to_string(limit) + ")",
                      .got = std::to_string(index)});
}

void fail_attrs(const Request& request) {
  throw InternalError({.where = "kernels",
                       .what = "attributes of another operator for " + std::string(info(request.op).name)});
}

}  // namespace tosaic::kernels
