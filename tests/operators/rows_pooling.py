"""Pools, resampling, pixel shuffles and grid samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from operators.checking import Row
from operators.draw import FLOAT, maybe, shape, spread, tensor

Draw = Callable[[Any], Any]
ROWS: dict[str, Row] = {}
SUMMED = ("normal", "unit", "integers", "small", "nan", "inf")
CHOSEN = ("normal", "unit", "ties", "small", "huge", "inf", "nan")
PLACED = CHOSEN[:-1]
"""Without NaN, for indices of maxima: of several NaN, torch returns the last, argmax and TOSA the first."""


@st.composite
def image(draw: Draw, n: int, kinds: Any = SUMMED, *, batch: bool = False, most: int = 9) -> Any:
    """Draws a tensor of shape (N, C, spatial...) or, unless `batch`, sometimes (C, spatial...)."""
    front = [draw(st.integers(1, 3))] if batch or draw(st.integers(0, 4)) else []
    sides = [draw(st.integers(1, most)) for _ in range(n)]
    return draw(tensor((*front, draw(st.integers(1, 4)), *sides), FLOAT, kinds))


@st.composite
def pool(draw: Draw, n: int, form: str) -> Any:
    """Draws the arguments of a pool whose windows fit the padded image."""
    keep = draw(st.sampled_from([(0,), (0,), (0, 1)])) if form == "indices" else (0,)
    x = draw(image(n, SUMMED if form == "avg" else CHOSEN if keep == (0,) else PLACED))
    dilation = draw(spread(n, 1, 2)) if form != "avg" else [1] * n
    sides = x.shape[-n:]
    kernel = [
        draw(st.integers(1, max(1, min(4, (side - 1) // d + 1))))
        for side, d in zip(sides, dilation, strict=True)
    ]
    stride = draw(st.one_of(st.just([]), spread(n, 1, 3)))
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    ceil = draw(st.booleans())
    if form == "avg":
        args = (x, kernel, stride, padding, ceil, draw(st.booleans()))
        return (*args, draw(maybe(st.sampled_from([1, 3, 7, -2])))) if n > 1 else args, {}
    args = (x, kernel, stride, padding, dilation, ceil)
    if form == "indices":
        return args, {}, keep
    return args, {}


for _n in (1, 2):
    ROWS[f"avg_pool{_n}d"] = Row(pool(_n, "avg"), scale="terms")
    ROWS[f"max_pool{_n}d"] = Row(pool(_n, "max"))
    ROWS[f"max_pool{_n}d_with_indices"] = Row(pool(_n, "indices"))


@st.composite
def adaptive(draw: Draw, n: int, form: str) -> Any:
    keep = draw(st.sampled_from([(0,), (0,), (0, 1)])) if form == "max" else (0,)
    x = draw(image(n, SUMMED if form == "avg" else CHOSEN if keep == (0,) else PLACED))
    size = [draw(st.integers(1, side + 2)) for side in x.shape[-n:]]
    if form == "max":
        return (x, size), {}, keep
    return (x, size), {}


ROWS["adaptive_avg_pool1d"] = Row(adaptive(1, "avg"), scale="terms")
ROWS["adaptive_avg_pool2d"] = ROWS["_adaptive_avg_pool2d"] = Row(adaptive(2, "avg"), scale="terms")
ROWS["adaptive_max_pool2d"] = Row(adaptive(2, "max"))

SCALES = st.sampled_from([2.0, 1.0, 3.0, 0.5, 1.5, 0.75, 2.5, 1.3])


@st.composite
def resampled(draw: Draw, n: int, *, corners: bool, vec: bool) -> Any:
    """Draws the arguments of an upsampling.

    Bilinear ones (`corners`) have finite values only: torch multiplies infinities by weights of zero, which
    is NaN.
    """
    x = draw(image(n, ("normal", "unit", "integers", "small") if corners else CHOSEN, batch=True, most=7))
    size = [draw(st.integers(1, 3 * side)) for side in x.shape[-n:]]
    kind = draw(st.sampled_from(["double", "size", "factors"]))
    if kind == "double":
        size = [2 * side for side in x.shape[-n:]]
    aligned = (draw(st.booleans()),) if corners else ()
    if not vec:
        return (x, size, *aligned), {}
    if kind == "factors":
        factors = [max(draw(SCALES), 1.0 / side) for side in x.shape[-n:]]
        return (x, None, *aligned, factors), {}
    return (x, size, *aligned, None), {}


for _name, _n, _corners in (("nearest1d", 1, False), ("nearest2d", 2, False), ("bilinear2d", 2, True)):
    _scale = "terms" if _corners else "value"
    ROWS[f"upsample_{_name}"] = Row(resampled(_n, corners=_corners, vec=False), scale=_scale)
    ROWS[f"upsample_{_name}.vec"] = Row(resampled(_n, corners=_corners, vec=True), scale=_scale)


@st.composite
def smoothly_resampled(draw: Draw, *, vec: bool) -> Any:
    x = draw(
        tensor(
            (
                draw(st.integers(1, 2)),
                draw(st.integers(1, 3)),
                draw(st.integers(1, 9)),
                draw(st.integers(1, 9)),
            ),
            ("f32", "f64", "f32"),
            ("normal", "unit", "positive"),
        )
    )
    size = [draw(st.integers(1, 12)), draw(st.integers(1, 12))]
    corners = draw(st.booleans())
    return (x, size, corners, None) if vec else (x, size, corners), {}


for _name in ("bilinear2d", "bicubic2d"):
    ROWS[f"_upsample_{_name}_aa"] = Row(smoothly_resampled(vec=False), scale="conditioned")
    ROWS[f"_upsample_{_name}_aa.vec"] = Row(smoothly_resampled(vec=True), scale="conditioned")


@st.composite
def shuffled(draw: Draw, *, undo: bool) -> Any:
    r = draw(st.integers(1, 3))
    front = draw(shape(0, 3, empty=False))[:3]
    front = tuple(min(side, 3) for side in front)
    c, h, w = (draw(st.integers(1, 3)) for _ in range(3))
    sides = (c, h * r, w * r) if undo else (c * r * r, h, w)
    return (draw(tensor((*front, *sides), FLOAT, CHOSEN)), r), {}


ROWS["pixel_shuffle"] = Row(shuffled(undo=False))
ROWS["pixel_unshuffle"] = Row(shuffled(undo=True))


@st.composite
def grid(draw: Draw, *, volumes: bool = False) -> Any:
    """Draws positions inside and outside the image, a mode, padding and alignment (rank 5: no bicubic)."""
    n = 3 if volumes and draw(st.integers(0, 3)) == 3 else 2
    dtype = draw(st.sampled_from(("f32", "f32", "f16", "bf16", "f64")))
    batch = draw(st.integers(1, 2))
    sides = [draw(st.integers(1, 6)) for _ in range(n)]
    out = [draw(st.integers(1, 5)) for _ in range(n)]
    x = draw(tensor((batch, draw(st.integers(1, 4)), *sides), (dtype,), ("normal", "unit")))
    positions = draw(tensor((batch, *out, n), (dtype,), ("unit", "normal", "integers")))
    mode = draw(st.integers(0, 2 if n == 2 else 1))
    return (x, positions, mode, draw(st.integers(0, 2)), draw(st.booleans())), {}


# the rounding error of a position is relative to the size of the image, not to the position
ROWS["grid_sampler"] = Row(grid(volumes=True), scale="conditioned", unit=8)
ROWS["grid_sampler_2d"] = Row(grid(), scale="conditioned", unit=8)


@st.composite
def affine(draw: Draw) -> Any:
    n = draw(st.integers(1, 3))
    theta = draw(tensor((n, 2, 3), ("f32", "f64", "f16", "bf16"), ("normal", "unit"), const=None))
    size = [n, draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 6))]
    return (theta, size, draw(st.booleans())), {}


ROWS["affine_grid_generator"] = Row(affine(), scale="conditioned")
