"""Rows for identities, casts and changes of the memory format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tosaic.torch_operators.arguments import OP, per_overload
from tosaic.torch_operators.call import Call, Rows, first_of
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on


def identity_or_cast(c: Call, x: Ref, order: Sequence[int] | None) -> Ref:
    """Adds a cast if torch recorded another dtype, and a clone if it did not or if an order is requested."""
    if c.dtype == x.dtype:
        return c.emit(OP["clone"], None if order is None else {"order": order}, (x.id,))
    cast = {"dtype": c.dtype}
    if order is None or order == tuple(range(len(x.shape))):
        return c.emit(OP["cast"], cast, (x.id,))
    return c.emit(OP["clone"], {"order": order}, (c.emit_inferred(OP["cast"], cast, (x.id,)).id,))


@on(
    *[
        "alias",
        "detach",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "positive",
        "resolve_conj",
        "resolve_neg",
        "conj",
        "real",
        "data",
        "pin_memory",
    ]
)
def identity(c: Call, x: Ref, *_: Any) -> Ref:
    result = c.emit(OP["clone"], None, (x.id,))
    result.held = x.held
    return result


@on("contiguous")
def contiguous(c: Call, x: Ref, memory_format: Any) -> Ref:
    order = c.order_of_format(memory_format, len(x.shape))
    return identity_or_cast(c, x, None if order == tuple(range(len(x.shape))) else order)


@on("clone")
def clone(c: Call, x: Ref, memory_format: Any) -> Ref:
    return identity_or_cast(c, x, c.order_of_format(memory_format, len(x.shape)))


@on(
    *per_overload("to", "dtype dtype_layout device other prim_Device prim_dtype prim_other"),
    "_to_copy",
    "_autocast_to_reduced_precision",
    "_autocast_to_full_precision",
)
def to(c: Call, x: Ref, *options: Any) -> Ref:
    orders = (c.order_of_format(option, len(x.shape)) for option in options)
    return identity_or_cast(c, x, next((order for order in orders if order is not None), None))


@on("type_as")
def type_as(c: Call, x: Ref, _other: Ref) -> Ref:
    return identity_or_cast(c, x, None)


@on("dim_order_ops::_to_dim_order_copy", "dim_order_ops::_clone_dim_order")
def to_dim_order(c: Call, x: Ref, *options: Any) -> Ref:
    """Reads a call of ExecuTorch's edge dialect, whose last argument is the dim order: a list or None."""
    order = options[-1]
    return identity_or_cast(c, x, None if order is None else tuple(order))


@on("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(c: Call, x: Ref, p: float, train: bool) -> Ref | None:
    return c.emit(OP["clone"], None, (x.id,)) if not train or p == 0 else None


@on("native_dropout")
@first_of
def native_dropout(c: Call, x: Ref, p: float, train: bool | None) -> Ref | None:
    return c.emit(OP["clone"], None, (x.id,)) if train is False or p == 0 else None


def is_identity_in_place(name: str, args: Sequence[Any]) -> bool:
    """True for in-place calls that write nothing.

    These are ``detach_``, ``requires_grad_``, and ``dropout_`` in eval mode or with probability 0.
    """
    if name in ("detach_", "requires_grad_"):
        return True
    return ROWS.get(name.removesuffix("_")) is dropout and len(args) > 2 and (not args[2] or args[1] == 0)
