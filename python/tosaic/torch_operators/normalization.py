"""Rows for norms over batches, layers and groups, and for softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tosaic.torch_operators.arguments import OP, axis_of, ids
from tosaic.torch_operators.call import Call, Emit, Rows, first_of
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on


def _over_axis(c: Call, op: str, x: Ref, dim: int, dtype: int | None) -> Ref:
    """Adds `op` over an axis. A tensor of rank 0 is treated as rank 1."""
    attrs = {"axis": axis_of(dim, len(x.shape)), "dtype": dtype}
    if x.shape:
        return c.emit(OP[op], attrs, (x.id,))
    vector = c.emit_inferred(OP["reshape"], {"shape": [1]}, (x.id,))
    result = c.emit_inferred(OP[op], attrs, (vector.id,))
    return c.emit(OP["reshape"], {"shape": []}, (result.id,))


def _along_axis(op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: int, dtype: Any) -> Ref:
        return _over_axis(c, op, x, dim, None if dtype is None else c.dtype)

    return emit


def _half_to_float(op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: int, half_to_float: bool) -> Ref:
        return _over_axis(c, op, x, dim, c.dtype if half_to_float else None)

    return emit


ROWS["cumsum"] = _along_axis("cumsum")
ROWS["softmax.int"] = ROWS["special_softmax"] = _along_axis("softmax")
ROWS["log_softmax.int"] = ROWS["special_log_softmax"] = _along_axis("log_softmax")
ROWS["_safe_softmax"] = _along_axis("safe_softmax")
ROWS["_softmax"] = _half_to_float("softmax")
ROWS["_log_softmax"] = _half_to_float("log_softmax")


@on("batch_norm")
def batch_norm(
    c: Call,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref | None,
    variance: Ref | None,
    training: bool,
    _momentum: float,
    eps: float,
    *_: Any,
) -> Ref | None:
    if training or mean is None or variance is None:
        if training and mean is not None:
            c.note(
                "unseen-update",
                "batch_norm in training mode updates its running statistics, which is not represented",
            )
        return None
    return c.emit(OP["batch_norm"], {"eps": eps}, ids(x, weight, bias, mean, variance))


@on("native_batch_norm")
@first_of
def native_batch_norm(
    c: Call,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref | None,
    variance: Ref | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Ref | None:
    return batch_norm(c, x, weight, bias, mean, variance, training, momentum, eps)


@on("_native_batch_norm_legit_no_training", "_batch_norm_no_update")
@first_of
def batch_norm_no_training(
    c: Call, x: Ref, w: Ref | None, b: Ref | None, mean: Ref, variance: Ref, momentum: float, eps: float
) -> Ref | None:
    return batch_norm(c, x, w, b, mean, variance, False, momentum, eps)


def _norm(c: Call, op: str, x: Ref, shape: Sequence[int], eps: float | None, *params: Ref | None) -> Ref:
    return c.emit(OP[op], {"normalized_rank": len(shape), "eps": eps}, ids(x, *params))


@on("layer_norm")
def layer_norm(
    c: Call, x: Ref, shape: Sequence[int], w: Ref | None, b: Ref | None, eps: float, _: bool
) -> Ref:
    return _norm(c, "layer_norm", x, shape, eps, w, b)


@on("rms_norm")
def rms_norm(c: Call, x: Ref, shape: Sequence[int], w: Ref | None, eps: float | None) -> Ref:
    return _norm(c, "rms_norm", x, shape, eps, w)


@on("native_layer_norm")
@first_of
def native_layer_norm(c: Call, x: Ref, shape: Sequence[int], w: Ref | None, b: Ref | None, eps: float) -> Ref:
    return _norm(c, "layer_norm", x, shape, eps, w, b)


ROWS["_fused_rms_norm"] = first_of(rms_norm)


@on("group_norm")
def group_norm(c: Call, x: Ref, groups: int, w: Ref | None, b: Ref | None, eps: float, *_: Any) -> Ref:
    return c.emit(OP["group_norm"], {"groups": groups, "eps": eps}, ids(x, w, b))


@on("native_group_norm")
@first_of
def native_group_norm(
    c: Call, x: Ref, w: Ref | None, b: Ref | None, _n: int, _c: int, _hw: int, groups: int, eps: float
) -> Ref:
    return group_norm(c, x, groups, w, b, eps)


@on("_weight_norm")
def weight_norm(c: Call, v: Ref, g: Ref, dim: int) -> Ref:
    """Scales slices of v to the norms g: over all axes but `dim`, or over all axes if `dim` is -1."""
    rank = len(v.shape)
    kept = None if dim == -1 else axis_of(dim, rank)
    axes = [axis for axis in range(rank) if axis != kept]
    if axes:
        attrs = {"ord": 2.0, "axes": axes, "keepdim": kept is not None}
        norm = c.emit_inferred(OP["vector_norm"], attrs, (v.id,))
    else:
        norm = c.emit_inferred(OP["abs"], None, (v.id,))
    scale = c.emit_inferred(OP["div"], None, (g.id, norm.id))
    return c.emit(OP["mul"], None, (v.id, scale.id))
