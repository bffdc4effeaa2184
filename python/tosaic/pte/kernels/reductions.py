"""Kernels of reductions, of scans, and of normalizations."""

from __future__ import annotations

import math
from typing import Any

from tosaic import _core
from tosaic.base.dtypes import BITS
from tosaic.pte.host import Host
from tosaic.pte.kernels.table import Operands, Results, add_kernel, result, row
from tosaic.pte.method_writer import code_of

add_kernel("argmax", "aten::argmax.out", "axis", "keepdim")
add_kernel("argmin", "aten::argmin.out", "axis", "keepdim")


def _dtype(attrs: Any) -> int | None:
    return None if attrs["dtype"] is None else code_of(attrs["dtype"])


@row("sum", "mean")
def _sum(host: Host, node: _core.Node, operands: Operands) -> Results:
    a = node.attrs
    kernel = "aten::sum.IntList_out" if node.op == "sum" else "aten::mean.out"
    return result(host, node, kernel, [*operands, list(a["axes"]), a["keepdim"], _dtype(a)])


@row("prod")
def _prod(host: Host, node: _core.Node, operands: Operands) -> Results:
    """Reduces the axes one by one, since the kernel reduces only one."""
    (x,), value = operands, node.results[0]
    x = host.cast(x, value.dtype)
    for axis in node.attrs["axes"]:
        shape = [1 if i == axis else extent for i, extent in enumerate(x.shape)]
        x = host.call("aten::prod.int_out", [x, axis, True, code_of(value.dtype)], value.dtype, shape)
    return host.reshape(x, value.shape)


@row("amax", "amin")
def _extremum(host: Host, node: _core.Node, operands: Operands) -> Results:
    a = node.attrs
    if a["dtype"] is not None:
        return None
    return result(host, node, f"aten::{node.op}.out", [*operands, list(a["axes"]), a["keepdim"]])


@row("any", "all")
def _any(host: Host, node: _core.Node, operands: Operands) -> Results:
    """Writes all(x) as not any(not x). The kernel reads bools. For u8, torch's result is u8."""
    a, (x,) = node.attrs, operands
    if a["dtype"] is not None:
        return None
    shape = node.results[0].shape
    if x.dtype == "u8":
        x = host.cast(x, "bool")
    if node.op == "all":
        x = host.call("aten::logical_not.out", [x], "bool", x.shape)
    found = host.call("aten::any.dims_out", [x, list(a["axes"]), a["keepdim"]], "bool", shape)
    if node.op == "all":
        found = host.call("aten::logical_not.out", [found], "bool", shape)
    return host.cast(found, node.results[0].dtype)


@row("var", "std")
def _var(host: Host, node: _core.Node, operands: Operands) -> Results:
    """Computes narrow floats in f32: the kernel sums in the dtype of its operand, which could overflow."""
    a, value = node.attrs, node.results[0]
    x = host.cast(operands[0], "f64" if value.dtype == "f64" else "f32")
    arguments = [x, list(a["axes"]), a["correction"], a["keepdim"]]
    found = host.call("aten::var.correction_out", arguments, x.dtype, value.shape)
    if node.op == "std":
        found = host.call("aten::sqrt.out", [found], x.dtype, value.shape)
    return host.cast(found, value.dtype)


@row("argsort")
def _argsort(host: Host, node: _core.Node, operands: Operands) -> Results:
    """Uses topk, the only sorting kernel of ExecuTorch. The order of equal elements is unspecified."""
    (x,), value = operands, node.results[0]
    count = value.shape[node.attrs["axis"]] if value.shape else 1
    arguments = [x, count, node.attrs["axis"], node.attrs["descending"], True]
    return host.calls("aten::topk.values", arguments, [(x.dtype, value.shape), ("i64", value.shape)])[1]


@row("cumsum")
def _cumsum(host: Host, node: _core.Node, operands: Operands) -> Results:
    return result(host, node, "aten::cumsum.out", [*operands, node.attrs["axis"], _dtype(node.attrs)])


@row("softmax", "log_softmax")
def _softmax(host: Host, node: _core.Node, operands: Operands) -> Results:
    x = host.cast(operands[0], node.results[0].dtype)
    return result(host, node, f"aten::_{node.op}.out", [x, node.attrs["axis"], False])


def _in_one_dtype(host: Host, operands: Operands) -> Operands:
    """Returns the operands of a norm in their widest dtype, in which torch computes, too."""
    widest = max((each.dtype for each in operands if each is not None), key=BITS.__getitem__)
    return [None if each is None else host.cast(each, widest) for each in operands]


@row("layer_norm")
def _layer_norm(host: Host, node: _core.Node, operands: Operands) -> Results:
    x, *parameters = _in_one_dtype(host, operands)
    rank = node.attrs["normalized_rank"]
    eps = 1e-5 if node.attrs["eps"] is None else node.attrs["eps"]
    statistics = (*x.shape[: x.rank - rank], *(1,) * rank)
    types = [(x.dtype, x.shape), (x.dtype, statistics), (x.dtype, statistics)]
    arguments = [x, list(x.shape[x.rank - rank :]), *parameters, eps]
    made = host.calls("aten::native_layer_norm.out", arguments, types)[0]
    return host.cast(made, node.results[0].dtype)


@row("group_norm")
def _group_norm(host: Host, node: _core.Node, operands: Operands) -> Results:
    x, *parameters = _in_one_dtype(host, operands)
    groups = node.attrs["groups"]
    batch, channels, rest = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    types = [(x.dtype, x.shape), (x.dtype, (batch, groups)), (x.dtype, (batch, groups))]
    arguments = [x, *parameters, batch, channels, rest, groups, node.attrs["eps"]]
    made = host.calls("aten::native_group_norm.out", arguments, types)[0]
    return host.cast(made, node.results[0].dtype)


@row("batch_norm")
def _batch_norm(host: Host, node: _core.Node, operands: Operands) -> Results:
    x, *parameters = _in_one_dtype(host, operands)
    types = [(x.dtype, x.shape), (x.dtype, (0,)), (x.dtype, (0,))]
    arguments = [x, *parameters, 0.1, node.attrs["eps"]]
    made = host.calls("aten::_native_batch_norm_legit_no_training.out", arguments, types)[0]
    return host.cast(made, node.results[0].dtype)
