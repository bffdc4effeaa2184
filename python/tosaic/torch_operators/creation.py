"""Rows for tensors that a call creates, and for copies into a tensor."""

from __future__ import annotations

from typing import Any

from tosaic.torch_operators.arguments import OP, fit
from tosaic.torch_operators.call import Call, Rows
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on


@on("arange.start_step")
def arange_step(c: Call, start: Any, end: Any, step: Any, *_: Any) -> Ref:
    return c.emit(OP["arange"], {"start": start, "end": end, "step": step, "dtype": c.dtype}, ())


@on("arange.start")
def arange_start(c: Call, start: Any, end: Any, *_: Any) -> Ref:
    return arange_step(c, start, end, 1)


@on("arange")
def arange(c: Call, end: Any, *_: Any) -> Ref:
    return arange_step(c, 0, end, 1)


@on("scalar_tensor")
def scalar_tensor(c: Call, value: Any, *_: Any) -> Ref:
    return c.emit(OP["full"], {"shape": c.shape, "value": fit(value, c.dtype), "dtype": c.dtype}, ())


@on("full", "full_like", "fill.Scalar")
def full(c: Call, _like: Any, value: Any, *_: Any) -> Ref:
    return scalar_tensor(c, value)


@on("new_full")
def new_full(c: Call, _like: Any, _size: Any, value: Any, *_: Any) -> Ref:
    return scalar_tensor(c, value)


@on(
    *[
        "zeros",
        "zeros_like",
        "new_zeros",
        "zero",
        "empty.memory_format",
        "empty_like",
        "new_empty",
        "empty_permuted",
        "empty_strided",
        "dim_order_ops::_empty_dim_order",
    ]
)
def zeros(c: Call, *_: Any) -> Ref:
    """The elements of torch.empty are undefined; zeros are a valid choice."""
    return scalar_tensor(c, 0)


@on("ones", "ones_like", "new_ones")
def ones(c: Call, *_: Any) -> Ref:
    return scalar_tensor(c, 1)


@on("copy", "fill.Tensor")
def copy(c: Call, x: Ref, source: Ref, *_: Any) -> Ref:
    """Converts the source to dtype and shape of `x`: by a cast, an expand or both, or by a clone."""
    same_shape = tuple(source.shape) == tuple(x.shape)
    if source.dtype == x.dtype:
        if same_shape:
            return c.emit(OP["clone"], None, (source.id,))
        return c.emit(OP["expand"], {"shape": x.shape}, (source.id,))
    if same_shape:
        return c.emit(OP["cast"], {"dtype": x.dtype}, (source.id,))
    converted = c.emit_inferred(OP["cast"], {"dtype": x.dtype}, (source.id,))
    return c.emit(OP["expand"], {"shape": x.shape}, (converted.id,))
