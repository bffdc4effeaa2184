#include <array>

#include "tosaic/claimant/devices/records.h"

namespace tosaic::claimant {

const std::vector<Op>& tosa_1_0_operators() {
  static const std::vector<Op> operators{Op::kTosaArgmax,
                                         Op::kTosaAvgPool2d,
                                         Op::kTosaConv2d,
                                         Op::kTosaConv3d,
                                         Op::kTosaDepthwiseConv2d,
                                         Op::kTosaFft2d,
                                         Op::kTosaMatmul,
                                         Op::kTosaMaxPool2d,
                                         Op::kTosaRfft2d,
                                         Op::kTosaTransposeConv2d,
                                         Op::kTosaClamp,
                                         Op::kTosaErf,
                                         Op::kTosaSigmoid,
                                         Op::kTosaTanh,
                                         Op::kTosaAdd,
                                         Op::kTosaArithmeticRightShift,
                                         Op::kTosaBitwiseAnd,
                                         Op::kTosaBitwiseOr,
                                         Op::kTosaBitwiseXor,
                                         Op::kTosaIntdiv,
                                         Op::kTosaLogicalAnd,
                                         Op::kTosaLogicalLeftShift,
                                         Op::kTosaLogicalRightShift,
                                         Op::kTosaLogicalOr,
                                         Op::kTosaLogicalXor,
                                         Op::kTosaMaximum,
                                         Op::kTosaMinimum,
                                         Op::kTosaMul,
                                         Op::kTosaPow,
                                         Op::kTosaSub,
                                         Op::kTosaTable,
                                         Op::kTosaAbs,
                                         Op::kTosaBitwiseNot,
                                         Op::kTosaCeil,
                                         Op::kTosaClz,
                                         Op::kTosaCos,
                                         Op::kTosaExp,
                                         Op::kTosaFloor,
                                         Op::kTosaLog,
                                         Op::kTosaLogicalNot,
                                         Op::kTosaNegate,
                                         Op::kTosaReciprocal,
                                         Op::kTosaRsqrt,
                                         Op::kTosaSin,
                                         Op::kTosaSelect,
                                         Op::kTosaEqual,
                                         Op::kTosaGreater,
                                         Op::kTosaGreaterEqual,
                                         Op::kTosaReduceAll,
                                         Op::kTosaReduceAny,
                                         Op::kTosaReduceMax,
                                         Op::kTosaReduceMin,
                                         Op::kTosaReduceProduct,
                                         Op::kTosaReduceSum,
                                         Op::kTosaConcat,
                                         Op::kTosaPad,
                                         Op::kTosaReshape,
                                         Op::kTosaReverse,
                                         Op::kTosaSlice,
                                         Op::kTosaTile,
                                         Op::kTosaTranspose,
                                         Op::kTosaGather,
                                         Op::kTosaScatter,
                                         Op::kTosaResize,
                                         Op::kTosaCast,
                                         Op::kTosaRescale,
                                         Op::kTosaIdentity};
  return operators;
}

Device host() { return {.name = "host", .members = {{"host"}}, .orders = Orders::kAny, .connected = false}; }

std::span<const std::shared_ptr<const Device>> built_in_devices() {
  static const std::array devices = [] {
    const auto shared = [](Device device) { return std::make_shared<const Device>(std::move(device)); };
    return std::array{shared(host()),     shared(vgf()),     shared(ethos_u55()),   shared(ethos_u85()),
                      shared(cortex_m()), shared(neutron()), shared(grid_sampler())};
  }();
  return devices;
}

}  // namespace tosaic::claimant
