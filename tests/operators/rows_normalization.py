"""Normalisations with and without weights, softmaxes, and the forms that also return statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from operators.checking import Row
from operators.draw import FLOAT, axis, maybe, shape, tensor
from operators.values import T

Draw = Callable[[Any], Any]
ROWS: dict[str, Row] = {}
KINDS = ("normal", "unit", "positive", "small", "medium", "nan", "inf", "integers")
# Without infinities: torch's running update of the mean is NaN for them; ours is infinite.
FINITE_STATISTICS = tuple(kind for kind in KINDS if kind != "inf")
EPS = st.sampled_from([1e-5, 1e-3, 1e-8])


@st.composite
def batch_norm(draw: Draw, form: str) -> Any:
    dtype = draw(st.sampled_from(FLOAT))
    sides = draw(shape(2, 5, empty=False))
    mixed = dtype in ("f16", "bf16") and draw(st.integers(0, 3)) == 3
    of_parameters = "f32" if mixed else dtype
    constant = draw(st.booleans())

    def parameter(kind: str) -> T:
        return draw(tensor((sides[1],), (of_parameters,), (kind,), const=constant))

    x = draw(tensor(sides, (dtype,), KINDS))
    weight, bias = (parameter("normal"), parameter("normal")) if draw(st.booleans()) else (None, None)
    mean, var = parameter("normal"), parameter("positive")
    eps = draw(EPS)
    if form == "batch_norm":
        return (x, weight, bias, mean, var, False, 0.1, eps, False), {}
    # for mixed dtypes, torch.export records another dtype for the statistics than eager returns
    keep = (0,) if mixed else draw(st.sampled_from([(0,), (0,), None]))
    if form == "no_training":
        return (x, weight, bias, mean, var, 0.1, eps), {}, keep
    if form == "no_stats":
        return (x, weight, bias, True, 0.1, eps), {}, keep
    return (x, weight, bias, mean, var, False, 0.1, eps), {}, keep


ROWS["batch_norm"] = Row(batch_norm("batch_norm"), scale="conditioned")
ROWS["native_batch_norm"] = Row(batch_norm("native"), scale="conditioned")
ROWS["_native_batch_norm_legit_no_training"] = Row(batch_norm("no_training"), scale="conditioned")
ROWS["_native_batch_norm_legit.no_stats"] = Row(batch_norm("no_stats"), scale="conditioned")


@st.composite
def weight_norm(draw: Draw) -> Any:
    dtype = draw(st.sampled_from(FLOAT))
    sides = draw(shape(1, 4, empty=False))
    dim = draw(st.integers(-1, len(sides) - 1))
    kept = () if dim == -1 else tuple(side if axis == dim else 1 for axis, side in enumerate(sides))
    constant = draw(st.booleans())
    v = draw(tensor(sides, (dtype,), ("normal", "unit", "small", "medium"), const=constant))
    return (v, draw(tensor(kept, (dtype,), ("normal",), const=constant)), dim), {}


ROWS["_weight_norm"] = Row(weight_norm())


@st.composite
def layer_norm(draw: Draw, form: str) -> Any:
    dtype = draw(st.sampled_from(FLOAT))
    sides = draw(shape(1, 6, empty=False))
    own = list(sides[draw(st.integers(0, len(sides) - 1)) :])
    constant = draw(st.booleans())
    keep = draw(st.sampled_from([(0,), (0,), None])) if form == "native" else None
    # the mean of infinities is infinite in torch's decomposition, but NaN in its kernel
    kinds = KINDS if keep or form != "native" else FINITE_STATISTICS
    x = draw(tensor(sides, (dtype,), kinds))
    weight, bias = (draw(maybe(tensor(tuple(own), (dtype,), const=constant))) for _ in range(2))
    if form == "rms":
        return (x, own, weight, draw(maybe(EPS))), {}
    if form == "native":
        return (x, own, weight, bias, draw(EPS)), {}, keep
    return (x, own, weight, bias, draw(EPS)), {}


ROWS["layer_norm"] = Row(layer_norm("layer"), scale="conditioned")
ROWS["native_layer_norm"] = Row(layer_norm("native"), scale="conditioned")
ROWS["rms_norm"] = Row(layer_norm("rms"), scale="conditioned")


@st.composite
def group_norm(draw: Draw, form: str) -> Any:
    dtype = draw(st.sampled_from(FLOAT))
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    channels = groups * per_group
    rest = tuple(draw(st.integers(1, 4)) for _ in range(draw(st.integers(0, 3))))
    n = draw(st.integers(1, 3))
    keep = draw(st.sampled_from([(0,), (0,), None])) if form == "native" else (0,)
    x = draw(tensor((n, channels, *rest), (dtype,), KINDS if keep else FINITE_STATISTICS))
    constant = draw(st.booleans())
    weight, bias = (draw(maybe(tensor((channels,), (dtype,), const=constant))) for _ in range(2))
    if form == "native":
        count = 1
        for side in rest:
            count *= side
        return (x, weight, bias, n, channels, count, groups, draw(EPS)), {}, keep
    return (x, groups, weight, bias, draw(EPS)), {}


ROWS["group_norm"] = Row(group_norm("group"), scale="conditioned")
ROWS["native_group_norm"] = Row(group_norm("native"), scale="conditioned")


@st.composite
def instance_norm(draw: Draw) -> Any:
    dtype = draw(st.sampled_from(FLOAT))
    sides = (draw(st.integers(1, 3)), draw(st.integers(1, 4)), *draw(shape(1, 3, empty=False))[:3])
    x = draw(tensor(tuple(min(side, 8) for side in sides), (dtype,), KINDS))

    def parameter(kind: str) -> T:
        return draw(tensor((x.shape[1],), (dtype,), (kind,), const=True))

    weight, bias = (parameter("normal"), parameter("normal")) if draw(st.booleans()) else (None, None)
    tracked = draw(st.booleans())
    mean, var = (parameter("normal"), parameter("positive")) if tracked else (None, None)
    return (x, weight, bias, mean, var, not tracked, 0.1, draw(EPS), False), {}


ROWS["instance_norm"] = Row(instance_norm(), scale="conditioned")

SOFTMAX = ("normal", "unit", "medium", "ties", "huge", "inf", "nan", "small")


@st.composite
def softmax(draw: Draw, form: str) -> Any:
    x = draw(tensor(shape(), FLOAT, SOFTMAX))
    dim = draw(axis(len(x.shape)))
    if form == "half_to_float":
        return (x, dim, False), {}
    wider = {"f16": torch.float32, "bf16": torch.float32}.get(x.dtype)
    return (x, dim), {"dtype": wider} if wider is not None and draw(st.booleans()) else {}


for _name in ("softmax.int", "_safe_softmax"):
    ROWS[_name] = Row(softmax("dtype"), scale="conditioned")
ROWS["log_softmax.int"] = Row(softmax("dtype"), scale="conditioned", unit=1)
ROWS["_softmax"] = Row(softmax("half_to_float"), scale="conditioned")
ROWS["_log_softmax"] = Row(softmax("half_to_float"), scale="conditioned", unit=1)
