"""Sums of products: convolutions, matrix products of all ranks, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from operators.checking import Row
from operators.draw import FLOAT, maybe, narrowed, number, shape, spread, tensor
from operators.values import T

Draw = Callable[[Any], Any]
KINDS = ("normal", "unit", "integers", "small", "nan", "inf")
WIDER = {"f16": torch.float32, "bf16": torch.float32, "f32": torch.float32, "f64": torch.float64}
ROWS: dict[str, Row] = {}


@st.composite
def convolution(draw: Draw, n: int, *, form: str, transposed: bool | None = False) -> Any:
    """Draws a matching input, weight and bias, and the attributes in the order of `form`.

    `transposed=None`: transposed or not, at random.
    """
    dtype = draw(st.sampled_from(FLOAT))
    flipped = draw(st.booleans()) if transposed is None else transposed
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    depthwise = draw(st.integers(0, 3)) == 3
    per_group = 1 if depthwise else draw(st.integers(1, 3))
    out_per_group = draw(st.integers(1, 3))
    c_in, c_out = groups * per_group, groups * out_per_group
    kernel = draw(spread(n, 1, 3 if n == 3 else 4))
    stride, dilation = draw(spread(n, 1, 3)), draw(spread(n, 1, 2))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    same = form == "padding" and draw(st.booleans())
    if same:
        stride = [1] * n
    padding = draw(spread(n, 0, 2))
    room = 4 if n == 3 else 7
    sides = [r + draw(st.integers(0, room)) for r in reach]
    if flipped:
        sides = [draw(st.integers(1, 5)) for _ in reach]
        padding = [min(p, (r - 1) // 2) for p, r in zip(padding, reach, strict=True)]
    extra = [
        draw(st.integers(0, max(s, d) - 1)) if flipped else 0 for s, d in zip(stride, dilation, strict=True)
    ]
    batch = () if form == "plain" and draw(st.integers(0, 5)) == 5 else (draw(st.integers(1, 3)),)
    x = draw(tensor((*batch, c_in, *sides), (dtype,), KINDS))
    shape_of_weight = (c_in, out_per_group, *kernel) if flipped else (c_out, per_group, *kernel)
    w = draw(tensor(shape_of_weight, (dtype,), ("normal", "unit", "integers"), const=None))
    b = draw(maybe(tensor((c_out,), (dtype,), const=None)))
    if form == "padding":
        return (x, w, b, stride, "same" if same else "valid", dilation, groups), {}
    if form == "plain":
        return (x, w, b, stride, padding, dilation, groups), {}
    if form == "transposed":
        return (x, w, b, stride, padding, extra, groups, dilation), {}
    whole = (x, w, b, stride, padding, dilation, flipped, extra, groups)
    return (*whole, False, False, True, *([True] if form == "_convolution" else [])), {}


@st.composite
def canonical(draw: Draw, form: str) -> Any:
    """Draws arguments of aten.convolution and its older forms, with one to three spatial axes."""
    args, _ = draw(convolution(draw(st.sampled_from([2, 1, 3])), form=form, transposed=None))
    return (args if form != "convolution" else args[:9]), {}


for _n in (1, 2, 3):
    ROWS[f"conv{_n}d"] = Row(convolution(_n, form="plain"), scale="terms")
    ROWS[f"conv{_n}d.padding"] = Row(convolution(_n, form="padding"), scale="terms")
    _name = f"conv_transpose{_n}d" + ("" if _n == 1 else ".input")
    ROWS[_name] = Row(convolution(_n, form="transposed", transposed=True), scale="terms")
ROWS["convolution"] = Row(canonical("convolution"), scale="terms")
ROWS["_convolution"] = Row(canonical("_convolution"), scale="terms")
ROWS["_convolution.deprecated"] = Row(canonical("deprecated"), scale="terms")


@st.composite
def matrices(draw: Draw, *, batch: bool = False, dtypes: Any = (*FLOAT, "i32", "i64")) -> Any:
    """Draws two matrices, or two batches of matrices, that can be multiplied."""
    m, k, n = (draw(st.sampled_from([1, 2, 3, 5, 8, 17, 0])) for _ in range(3))
    front = (draw(st.integers(1, 3)),) if batch else ()
    dtype = draw(st.sampled_from(dtypes))
    kinds = KINDS if dtype in FLOAT else ("normal",)
    a = draw(tensor((*front, m, k), (dtype,), kinds))
    return a, draw(tensor((*front, k, n), (dtype,), ("normal", "unit"), const=None))


@st.composite
def product(draw: Draw, batch: bool, wider: bool) -> Any:
    a, b = draw(matrices(batch=batch, dtypes=("f16", "bf16", "f32") if wider else (*FLOAT, "i32", "i64")))
    return (a, b, WIDER[a.dtype]) if wider else (a, b), {}


@st.composite
def sum_with_product(draw: Draw, batch: bool, wider: bool) -> Any:
    (a, b, *rest), _ = draw(product(batch, wider))
    whole = (*a.shape[:-1], b.shape[-1])
    bias = draw(tensor(whole if batch and wider else narrowed(whole), ("f32" if wider else a.dtype,)))
    whole_numbers = a.dtype in ("i32", "i64")
    factor = st.sampled_from([1, 2, -1]) if whole_numbers else number(0, 1)
    attributes = {k: draw(factor) for k in ("beta", "alpha") if draw(st.booleans())}
    return (bias, a, b, *rest), attributes


for _name, _batch in (("mm", False), ("bmm", True)):
    ROWS[_name] = Row(product(_batch, False), scale="terms")
    ROWS[f"{_name}.dtype"] = Row(product(_batch, True), scale="terms")
for _name, _batch in (("addmm", False), ("baddbmm", True)):
    ROWS[_name] = Row(sum_with_product(_batch, False), scale="terms")
    ROWS[f"{_name}.dtype"] = Row(sum_with_product(_batch, True), scale="terms")


@st.composite
def linear(draw: Draw) -> Any:
    dtype = draw(st.sampled_from(FLOAT))
    front = draw(shape(0, 5))
    k, n = draw(st.integers(1, 17)), draw(st.integers(1, 8))
    x = draw(tensor((*front[:4], k), (dtype,), KINDS))
    w = draw(tensor((n, k), (dtype,), ("normal", "unit"), const=None))
    return (x, w, draw(maybe(tensor((n,), (dtype,), const=None)))), {}


ROWS["linear"] = Row(linear(), scale="terms")


@st.composite
def matmul(draw: Draw) -> Any:
    dtype = draw(st.sampled_from((*FLOAT, "i32")))
    k = draw(st.sampled_from([1, 2, 3, 8, 17]))
    front = draw(shape(0, 4))
    sides = [
        (*draw(narrowed(front)), draw(st.integers(1, 5)), k) if draw(st.integers(0, 3)) else (k,),
        (*draw(narrowed(front)), k, draw(st.integers(1, 5))) if draw(st.integers(0, 3)) else (k,),
    ]
    kinds = KINDS if dtype in FLOAT else ("normal",)
    return (
        draw(tensor(sides[0], (dtype,), kinds)),
        draw(tensor(sides[1], (dtype,), ("normal",), const=None)),
    ), {}


ROWS["matmul"] = Row(matmul(), scale="terms")

EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "i,j->ij", "ij->ji", "ii->i", "ii->", "ij,ij->ij", "ij->", "ij,j->i",
    "bhqd,bhkd->bhqk", "...ij,...jk->...ik", "ij,jk,kl->il", "i,i->", "bij,kj->bik", "ij,jk", "abc,cb->a",
    "...i->...", "ijk,ilm,njm->nlk",
)  # fmt: skip


@st.composite
def einsum(draw: Draw) -> Any:
    """Draws operands for a random equation.

    Every letter has a random size, and the ellipsis a random shape.
    """
    equation = draw(st.sampled_from(EQUATIONS))
    sizes = {letter: draw(st.integers(1, 4)) for letter in sorted(set(equation)) if letter.isalpha()}
    batch = draw(shape(0, 2, empty=False))
    dtype = draw(st.sampled_from(FLOAT))
    operands = []
    for term in equation.partition("->")[0].split(","):
        sides = tuple(sizes[letter] for letter in term.replace("...", ""))
        front = batch if "..." in term else ()
        operands.append(draw(tensor((*front, *sides), (dtype,), ("normal", "unit"))))
    return (equation, operands), {}


ROWS["einsum"] = Row(einsum(), scale="terms")


@st.composite
def attention(draw: Draw) -> Any:
    dtype = draw(st.sampled_from(FLOAT))
    batch = draw(shape(1, 3, empty=False))[:2]
    batch = tuple(min(side, 4) for side in batch)
    queries, keys, depth, value = (draw(st.integers(1, 8)) for _ in range(4))
    q = draw(tensor((*batch, queries, depth), (dtype,), ("normal", "unit")))
    k, v = (draw(tensor((*batch, keys, d), (dtype,), ("normal", "unit"))) for d in (depth, value))
    options: dict[str, Any] = {}
    masked = draw(st.sampled_from(["", "", "bool", dtype, "causal"]))
    if masked == "causal":
        options["is_causal"] = True
    elif masked:
        of_mask = (*(draw(narrowed(batch)) if draw(st.booleans()) else batch), queries, keys)
        options["attn_mask"] = T(of_mask, masked, seed=draw(st.integers(0, 3)))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.5, 1.0, 0.1]))
    return (q, k, v), options


ROWS["scaled_dot_product_attention"] = Row(attention(), scale="conditioned")
