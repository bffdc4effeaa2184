"""Rows for pooling and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tosaic.torch_operators.arguments import OP, spread
from tosaic.torch_operators.call import Call, Emit, Rows
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on


def _avg_pool(n: int) -> Emit:
    def emit(
        c: Call,
        x: Ref,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil: bool,
        count_pad: bool,
        divisor: Any = None,
    ) -> Ref:
        kernels = spread(kernel, n)
        attrs = {
            "kernel": kernels,
            "stride": spread(stride, n) if stride else kernels,
            "padding": spread(padding, n),
            "dilation": [1] * n,
            "ceil_mode": ceil,
            "count_include_pad": count_pad,
            "divisor_override": divisor,
        }
        return c.emit(OP["avg_pool"], attrs, (x.id,))

    return emit


def max_pool(n: int, with_indices: bool) -> Emit:
    def emit(c: Call, x: Ref, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
        if with_indices and not c.only_first():
            return None
        kernels = spread(kernel, n)
        attrs = {
            "kernel": kernels,
            "stride": spread(stride, n) if stride else kernels,
            "padding": spread(padding, n),
            "dilation": spread(dilation, n),
            "ceil_mode": ceil,
        }
        result = c.emit(OP["max_pool"], attrs, (x.id,))
        return c.first(result) if with_indices else result

    return emit


for _n in (1, 2, 3):
    ROWS[f"avg_pool{_n}d"] = _avg_pool(_n)
    ROWS[f"max_pool{_n}d"] = max_pool(_n, False)


def _adaptive_avg_pool(n: int) -> Emit:
    def emit(c: Call, x: Ref, _size: Any) -> Ref:
        return c.emit(OP["adaptive_avg_pool"], {"shape": c.shape[-n:]}, (x.id,))

    return emit


for _n in (1, 2, 3):
    ROWS[f"adaptive_avg_pool{_n}d"] = ROWS[f"_adaptive_avg_pool{_n}d"] = _adaptive_avg_pool(_n)


def resize(c: Call, x: Ref, mode: str, corners: bool, scales: Sequence[Any]) -> Ref:
    """`scales` are used only if every spatial axis has one."""
    given = [scale for scale in scales if scale is not None]
    attrs = {
        "mode": mode,
        "size": c.shape[2:],
        "align_corners": corners,
        "scales": given if len(given) == len(c.shape) - 2 else [],
    }
    return c.emit(OP["resize"], attrs, (x.id,))


def nearest(c: Call, x: Ref, _size: Any, *scales: Any) -> Ref:
    return resize(c, x, "nearest", False, scales)


def nearest_vec(c: Call, x: Ref, _size: Any, factors: Any) -> Ref:
    return resize(c, x, "nearest", False, factors or ())


def linear_resize(c: Call, x: Ref, _size: Any, corners: bool, *scales: Any) -> Ref:
    return resize(c, x, "bilinear", corners, scales)


def linear_resize_vec(c: Call, x: Ref, _size: Any, corners: bool, factors: Any) -> Ref:
    return resize(c, x, "bilinear", corners, factors or ())


for _n in (1, 2, 3):
    ROWS[f"upsample_nearest{_n}d"] = nearest
    ROWS[f"upsample_nearest{_n}d.vec"] = nearest_vec
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    ROWS[_name] = linear_resize
    ROWS[f"{_name}.vec"] = linear_resize_vec
