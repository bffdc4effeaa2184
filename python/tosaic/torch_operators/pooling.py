"""Rows for pooling and resampling."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from tosaic.torch_operators.arguments import OP, spread
from tosaic.torch_operators.call import Call, Emit, Rows, first_of, with_parameters
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on


def _windows(n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> dict[str, Any]:
    kernels = spread(kernel, n)
    return {
        "kernel": kernels,
        "stride": spread(stride, n) if stride else kernels,
        "padding": spread(padding, n),
        "dilation": spread(dilation, n),
        "ceil_mode": ceil,
    }


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
        attrs = _windows(n, kernel, stride, padding, 1, ceil)
        attrs |= {"count_include_pad": count_pad, "divisor_override": divisor}
        return c.emit(OP["avg_pool"], attrs, (x.id,))

    return emit


def max_pool(n: int) -> Emit:
    def emit(c: Call, x: Ref, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Ref:
        return c.emit(OP["max_pool"], _windows(n, kernel, stride, padding, dilation, ceil), (x.id,))

    return emit


def _adaptive_pool(op: str, n: int) -> Emit:
    def emit(c: Call, x: Ref, _size: Any) -> Ref:
        return c.emit(OP[op], {"shape": c.shape[-n:]}, (x.id,))

    return emit


for _n in (1, 2, 3):
    ROWS[f"avg_pool{_n}d"] = _avg_pool(_n)
    ROWS[f"max_pool{_n}d"] = max_pool(_n)
    ROWS[f"adaptive_avg_pool{_n}d"] = ROWS[f"_adaptive_avg_pool{_n}d"] = _adaptive_pool(
        "adaptive_avg_pool", _n
    )
    ROWS[f"adaptive_max_pool{_n}d"] = first_of(_adaptive_pool("adaptive_max_pool", _n))


def resize(c: Call, x: Ref, mode: str, corners: bool, scales: Sequence[Any]) -> Ref:
    """Resizes. `scales` are used only if every spatial axis has one."""
    given = [scale for scale in scales if scale is not None]
    attrs = {
        "mode": mode,
        "size": c.shape[2:],
        "align_corners": corners,
        "scales": given if len(given) == len(c.shape) - 2 else [],
    }
    return c.emit(OP["resize"], attrs, (x.id,))


def with_factors(emit: Emit) -> Emit:
    """Returns the row of an overload ``vec``, whose last argument is a list with the factors, or None."""

    def emit_with_factors(c: Call, *args: Any) -> Any:
        return emit(c, *args[:-1], *(args[-1] or [None] * (len(c.shape) - 2)))

    own = inspect.signature(emit).parameters
    types = {name: str(own[name].annotation) for name in ("x", "_size", "corners") if name in own}
    return with_parameters(emit_with_factors, {**types, "factors": "Any"})


def nearest(c: Call, x: Ref, _size: Any, *scales: Any) -> Ref:
    return resize(c, x, "nearest", False, scales)


def _smooth(mode: str) -> Emit:
    def emit(c: Call, x: Ref, _size: Any, corners: bool, *scales: Any) -> Ref:
        return resize(c, x, mode, corners, scales)

    return emit


for _name, _emit in {
    "upsample_nearest1d": nearest,
    "upsample_nearest2d": nearest,
    "upsample_nearest3d": nearest,
    "upsample_linear1d": _smooth("bilinear"),
    "upsample_bilinear2d": _smooth("bilinear"),
    "upsample_trilinear3d": _smooth("bilinear"),
    "upsample_bicubic2d": _smooth("bicubic"),
}.items():
    ROWS[_name] = _emit
    ROWS[f"{_name}.vec"] = with_factors(_emit)
