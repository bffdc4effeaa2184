"""Rows for reductions and scans."""

from __future__ import annotations

from typing import Any

from tosaic.torch_operators.arguments import OP, axes_of, axis_of, fit, ids
from tosaic.torch_operators.call import Call, Emit, Rows
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on


def _reduction(op: str, c: Call, x: Ref, dim: Any, keepdim: bool, dtype: Any = None) -> Ref:
    attrs = {"axes": axes_of(dim, len(x.shape)), "keepdim": keepdim}
    if dtype is not None:
        attrs["dtype"] = c.dtype
    return c.emit(OP[op], attrs, (x.id,))


def _typed_reduction(op: str) -> tuple[Emit, Emit]:
    def over_all(c: Call, x: Ref, dtype: Any) -> Ref:
        return _reduction(op, c, x, None, False, dtype)

    def over_axes(c: Call, x: Ref, dim: Any, keepdim: bool, dtype: Any) -> Ref:
        return _reduction(op, c, x, dim, keepdim, dtype)

    return over_all, over_axes


def _plain_reduction(op: str) -> tuple[Emit, Emit]:
    def over_all(c: Call, x: Ref) -> Ref:
        return _reduction(op, c, x, None, False)

    def over_axes(c: Call, x: Ref, dim: Any, keepdim: bool) -> Ref:
        return _reduction(op, c, x, dim, keepdim)

    return over_all, over_axes


ROWS["sum"], ROWS["sum.dim_IntList"] = _typed_reduction("sum")
ROWS["mean"], ROWS["mean.dim"] = _typed_reduction("mean")
ROWS["prod"], ROWS["prod.dim_int"] = _typed_reduction("prod")
ROWS["any"], ROWS["any.dim"] = _plain_reduction("any")
ROWS["all"], ROWS["all.dim"] = _plain_reduction("all")
ROWS["max"], ROWS["amax"] = _plain_reduction("amax")
ROWS["min"], ROWS["amin"] = _plain_reduction("amin")


def _logical_over_axes(op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: Any, keepdim: bool) -> Ref:
        """An empty `dim` means no axis here, not all axes: the result is the truth of each element."""
        if dim is None or dim:
            return _reduction(op, c, x, dim, keepdim)
        zero = c.constant(fit(0, x.dtype), x.dtype)
        truth = c.emit_inferred(OP["ne"], None, (x.id, zero.id))
        return c.emit(OP["cast"], {"dtype": c.dtype}, (truth.id,))

    return emit


ROWS["any.dims"], ROWS["all.dims"] = _logical_over_axes("any"), _logical_over_axes("all")


def _two_results(c: Call, x: Ref, *nodes: tuple[str, dict[str, Any]]) -> list[Ref | None]:
    """Adds one node for each result of the call that is used, with this operator and these attributes."""
    used = c.used_results()
    return [
        c.emit_result(i, OP[op], attrs, (x.id,)) if i in used or (not used and i == 0) else None
        for i, (op, attrs) in enumerate(nodes)
    ]


def _extremum(value_op: str, index_op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: int, keepdim: bool) -> list[Ref | None]:
        axes, axis = axes_of(dim, len(x.shape)), axis_of(dim, len(x.shape))
        value = (value_op, {"axes": axes, "keepdim": keepdim})
        return _two_results(c, x, value, (index_op, {"axis": axis, "keepdim": keepdim}))

    return emit


ROWS["max.dim"] = _extremum("amax", "argmax")
ROWS["min.dim"] = _extremum("amin", "argmin")


def _spread_attrs(x: Ref, dim: Any, correction: Any, keepdim: bool) -> dict[str, Any]:
    number = 1 if correction is None else correction
    return {"axes": axes_of(dim, len(x.shape)), "keepdim": keepdim, "correction": number}


def _spread_rows(op: str) -> None:
    """Registers the overloads of ``var`` or ``std``, without and with the mean."""

    def spread(c: Call, x: Ref, dim: Any, correction: Any, keepdim: bool) -> Ref:
        return c.emit(OP[op], _spread_attrs(x, dim, correction, keepdim), (x.id,))

    def with_mean(c: Call, x: Ref, dim: Any, correction: Any, keepdim: bool) -> list[Ref | None]:
        mean = {"axes": axes_of(dim, len(x.shape)), "keepdim": keepdim}
        return _two_results(c, x, (op, _spread_attrs(x, dim, correction, keepdim)), ("mean", mean))

    _spread_overloads(op, spread)
    _spread_overloads(f"{op}_mean", with_mean)


def _spread_overloads(name: str, emit: Emit) -> None:
    ROWS[f"{name}.correction"] = emit

    @on(name)
    def of_all(c: Call, x: Ref, unbiased: bool) -> Any:
        return emit(c, x, None, int(unbiased), False)

    @on(f"{name}.dim")
    def of_axes(c: Call, x: Ref, dim: Any, unbiased: bool, keepdim: bool) -> Any:
        return emit(c, x, dim, int(unbiased), keepdim)


_spread_rows("var")
_spread_rows("std")


def _arg_extremum(op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: int | None, keepdim: bool) -> Ref:
        axis = None if dim is None else axis_of(dim, len(x.shape))
        return c.emit(OP[op], {"axis": axis, "keepdim": keepdim}, (x.id,))

    return emit


ROWS["argmax"] = _arg_extremum("argmax")
ROWS["argmin"] = _arg_extremum("argmin")


@on("diff")
def diff(c: Call, x: Ref, n: int, dim: int, prepend: Ref | None, append: Ref | None) -> Ref:
    attrs = {"n": n, "axis": axis_of(dim, len(x.shape))}
    return c.emit(OP["diff"], attrs, ids(x, prepend, append))


# ---- norms ----


@on("logsumexp", "special_logsumexp")
def logsumexp(c: Call, x: Ref, dim: Any, keepdim: bool) -> Ref:
    return c.emit(OP["logsumexp"], {"axes": axes_of(dim, len(x.shape)), "keepdim": keepdim}, (x.id,))


@on("linalg_vector_norm")
def vector_norm(c: Call, x: Ref, order: Any, dim: Any, keepdim: bool, dtype: Any) -> Ref:
    attrs = {"ord": float(order), "axes": axes_of(dim, len(x.shape)), "keepdim": keepdim}
    return c.emit(OP["vector_norm"], attrs | ({} if dtype is None else {"dtype": c.dtype}), (x.id,))


@on("norm.Scalar")
def norm(c: Call, x: Ref, p: Any) -> Ref:
    return vector_norm(c, x, p, None, False, None)


@on("norm.ScalarOpt_dtype")
def norm_as(c: Call, x: Ref, p: Any, dtype: Any) -> Ref:
    return vector_norm(c, x, 2 if p is None else p, None, False, dtype)


@on("norm.ScalarOpt_dim")
def norm_along(c: Call, x: Ref, p: Any, dim: Any, keepdim: bool) -> Ref:
    return vector_norm(c, x, 2 if p is None else p, dim, keepdim, None)


@on("norm.ScalarOpt_dim_dtype")
def norm_along_as(c: Call, x: Ref, p: Any, dim: Any, keepdim: bool, dtype: Any) -> Ref:
    return vector_norm(c, x, 2 if p is None else p, dim, keepdim, dtype)
