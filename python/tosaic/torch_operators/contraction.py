"""Rows for convolutions, matrix products and attention."""

from __future__ import annotations

from typing import Any

from tosaic.torch_operators.arguments import OP, ids, spread
from tosaic.torch_operators.call import Call, Emit, Rows, first_of
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on


def _conv(
    c: Call,
    x: Ref,
    w: Ref,
    bias: Ref | None,
    before: list[int],
    after: list[int],
    stride: Any,
    dilation: Any,
    groups: int,
    **attrs: Any,
) -> Ref:
    if x.shape[-len(before) - 1] == 0:  # then torch's result has no channels, whatever the weight's shape
        return c.emit(OP["full"], {"shape": c.shape, "value": 0.0, "dtype": c.dtype}, ())
    n = len(before)
    attrs |= {"pad_before": before, "pad_after": after, "stride": spread(stride, n)}
    attrs |= {"dilation": spread(dilation, n), "groups": groups}
    return c.emit(OP["conv"], attrs, ids(x, w, bias))


@on("conv1d", "conv2d", "conv3d")
def conv(
    c: Call, x: Ref, w: Ref, bias: Ref | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Ref:
    return convolution(c, x, w, bias, stride, padding, dilation, False, 0, groups)


@on("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_named_padding(
    c: Call, x: Ref, w: Ref, bias: Ref | None, stride: Any, padding: str, dilation: Any, groups: int
) -> Ref:
    n = len(w.shape) - 2
    dilations = spread(dilation, n)
    same = padding == "same"
    total = [d * (k - 1) if same else 0 for d, k in zip(dilations, w.shape[2:], strict=True)]
    before = [t // 2 for t in total]
    after = [t - b for t, b in zip(total, before, strict=True)]
    return _conv(c, x, w, bias, before, after, stride, dilations, groups, output_padding=[0] * n)


@on("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    c: Call,
    x: Ref,
    w: Ref,
    bias: Ref | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Ref:
    return convolution(c, x, w, bias, stride, padding, dilation, True, output_padding, groups)


@on("convolution", "_convolution")
def convolution(
    c: Call,
    x: Ref,
    w: Ref,
    bias: Ref | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Ref:
    n = len(w.shape) - 2
    pad, out = spread(padding, n), spread(output_padding, n) if transposed else [0] * n
    return _conv(c, x, w, bias, pad, pad, stride, dilation, groups, output_padding=out, transposed=transposed)


@on("linear")
def linear(c: Call, x: Ref, w: Ref, bias: Ref | None) -> Ref | None:
    """A weight of rank 1 makes the call a product with a vector."""
    if len(w.shape) == 1:
        return matmul(c, x, w) if bias is None else None
    return c.emit(OP["linear"], None, ids(x, w, bias))


@on("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul")
def matmul(c: Call, a: Ref, b: Ref) -> Ref:
    return c.emit(OP["matmul"], None, (a.id, b.id))


@on("_int_mm")
def int_mm(c: Call, a: Ref, b: Ref) -> Ref:
    """Reads a product of bytes whose sums are i32."""
    wide = (c.emit_inferred(OP["cast"], {"dtype": c.dtype}, (each.id,)).id for each in (a, b))
    return c.emit(OP["matmul"], None, tuple(wide))


def _addmm(op: str) -> Emit:
    def emit(c: Call, x: Ref, a: Ref, b: Ref, beta: Any, alpha: Any) -> Ref:
        if op == "addmm" and alpha == 0:  # then torch does not read the matrices
            scaled = x if beta == 1 else c.emit_inferred(OP["mul"], None, (x.id, c.number(beta, x).id))
            return c.emit(OP["expand"], {"shape": [a.shape[0], b.shape[1]]}, (scaled.id,))
        return c.emit(OP[op], {"beta": beta, "alpha": alpha}, (x.id, a.id, b.id))

    return emit


ROWS["addmm"] = _addmm("addmm")
ROWS["baddbmm"] = _addmm("baddbmm")


@on("scaled_dot_product_attention")
def sdpa(
    c: Call,
    q: Ref,
    k: Ref,
    v: Ref,
    mask: Ref | None,
    p: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> Ref | None:
    if p:  # dropout with probability p is not read
        return None
    attrs = {"scale": scale, "is_causal": causal, "enable_gqa": gqa}
    return c.emit(OP["sdpa"], attrs, ids(q, k, v, mask))


@on("_scaled_dot_product_flash_attention_for_cpu")
@first_of
def sdpa_cpu(
    c: Call, q: Ref, k: Ref, v: Ref, p: float, causal: bool, mask: Ref | None, scale: float | None
) -> Ref | None:
    return sdpa(c, q, k, v, mask, p, causal, scale, False)


@on("_scaled_dot_product_flash_attention")
@first_of
def sdpa_flash(
    c: Call, q: Ref, k: Ref, v: Ref, p: float, causal: bool, _debug: bool, scale: float | None
) -> Ref | None:
    return sdpa(c, q, k, v, None, p, causal, scale, False)


@on("_scaled_dot_product_efficient_attention")
@first_of
def sdpa_efficient(
    c: Call, q: Ref, k: Ref, v: Ref, mask: Ref | None, _lse: bool, p: float, causal: bool, scale: float | None
) -> Ref | None:
    return sdpa(c, q, k, v, mask, p, causal, scale, False)


@on("_scaled_dot_product_attention_math")
@first_of
def sdpa_math(
    c: Call,
    q: Ref,
    k: Ref,
    v: Ref,
    mask: Ref | None,
    p: float,
    causal: bool,
    dropout_mask: Ref | None,
    scale: float | None,
    gqa: bool,
) -> Ref | None:
    return None if dropout_mask is not None else sdpa(c, q, k, v, mask, p, causal, scale, gqa)
