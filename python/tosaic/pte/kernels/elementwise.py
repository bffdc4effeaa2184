"""Kernels of elementwise operators."""

from __future__ import annotations

from tosaic import _core
from tosaic.base.dtypes import is_float
from tosaic.pte.host import Host
from tosaic.pte.kernels.table import Operands, Results, add_kernel, result, row

# fmt: off
_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil",
    "cos", "cosh", "erf", "exp", "expm1", "floor", "isinf", "log", "log10",
    "log1p", "log2", "logical_not", "neg", "reciprocal", "relu", "round", "rsqrt", "sigmoid",
    "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)
# fmt: on
_BINARY = {
    "atan2": "aten::atan2.out",
    "bitwise_and": "aten::bitwise_and.Tensor_out",
    "bitwise_or": "aten::bitwise_or.Tensor_out",
    "bitwise_xor": "aten::bitwise_xor.Tensor_out",
    "eq": "aten::eq.Tensor_out",
    "fmod": "aten::fmod.Tensor_out",
    "ge": "aten::ge.Tensor_out",
    "gt": "aten::gt.Tensor_out",
    "le": "aten::le.Tensor_out",
    "left_shift": "aten::bitwise_left_shift.Tensor_out",
    "logical_and": "aten::logical_and.out",
    "logical_or": "aten::logical_or.out",
    "logical_xor": "aten::logical_xor.out",
    "lt": "aten::lt.Tensor_out",
    "maximum": "aten::maximum.out",
    "minimum": "aten::minimum.out",
    "mul": "aten::mul.out",
    "ne": "aten::ne.Tensor_out",
    "pow": "aten::pow.Tensor_Tensor_out",
    "right_shift": "aten::bitwise_right_shift.Tensor_out",
}

for _name in _UNARY:
    add_kernel(_name, f"aten::{_name}.out")
for _name, _kernel in _BINARY.items():
    add_kernel(_name, _kernel)
add_kernel("add", "aten::add.out", "alpha")
add_kernel("sub", "aten::sub.out", "alpha")
add_kernel("where", "aten::where.self_out")
add_kernel("clamp", "aten::clamp.out", "min", "max")
add_kernel("leaky_relu", "aten::leaky_relu.out", "alpha")
add_kernel("elu", "aten::elu.out", "alpha", "scale", "input_scale")
add_kernel("glu", "aten::glu.out", "axis")


@row("div")
def _div(host: Host, node: _core.Node, operands: Operands) -> Results:
    rounding = node.attrs["rounding"]
    if rounding == "none":
        return result(host, node, "aten::div.out", [*operands])
    return result(host, node, "aten::div.out_mode", [*operands, rounding])


@row("remainder")
def _remainder(host: Host, node: _core.Node, operands: Operands) -> Results:
    """Writes a - floor(a / b) * b for integers: ExecuTorch's own kernel has the sign of the dividend.

    Floats use the operator's expansion instead, since the product would be rounded here.
    """
    value = node.results[0]
    if is_float(value.dtype):
        return None
    x, y = operands
    quotient = host.call("aten::div.out_mode", [x, y, "floor"], value.dtype, value.shape)
    product = host.call("aten::mul.out", [quotient, y], value.dtype, value.shape)
    return result(host, node, "aten::sub.out", [x, product, 1])


@row("gelu")
def _gelu(host: Host, node: _core.Node, operands: Operands) -> Results:
    approximation = "tanh" if node.attrs["tanh"] else "none"
    return result(host, node, "aten::gelu.out", [*operands, approximation])


@row("cast")
def _cast(host: Host, node: _core.Node, operands: Operands) -> Results:
    return host.cast(operands[0], node.results[0].dtype)
