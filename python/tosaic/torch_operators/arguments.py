"""Reading the arguments of a call: axes, numbers per spatial axis, operand ids, and names of overloads."""

from __future__ import annotations

from typing import Any

from tosaic import _core
from tosaic.torch_operators.dtypes import CATEGORY
from tosaic.torch_operators.value import Ref

OP: dict[str, int] = {row.name: row.id for row in _core.ops()}
"""The builder's number of each canonical operator, by name."""


def per_overload(names: str, overloads: str) -> list[str]:
    """Returns every name with every overload; the overload ``default`` is the name alone."""
    return [name if o == "default" else f"{name}.{o}" for name in names.split() for o in overloads.split()]


def axis_of(axis: int, rank: int) -> int:
    """Returns the axis in [0, rank). As in torch, a tensor of rank 0 is treated as rank 1."""
    return axis % max(rank, 1)


def axes_of(dim: Any, rank: int) -> list[int]:
    """Returns the sorted axes of a reduction; None or an empty list means all axes."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(rank))
    listed = [dim] if isinstance(dim, int) else dim
    return sorted(axis_of(axis, rank) for axis in listed) if rank else []


def spread(values: Any, count: int) -> list[int]:
    """Returns one number per spatial axis; a single number is repeated."""
    listed = [values] if isinstance(values, int) else list(values)
    return listed * count if len(listed) == 1 else listed


def ids(*operands: Ref | None) -> tuple[int, ...]:
    """Returns operand ids for the core; -1 for an absent operand."""
    return tuple([-1 if operand is None else operand.id for operand in operands])


def fit(value: Any, dtype: int) -> Any:
    """Returns a Python number as torch converts it to a dtype of a lower category."""
    category = CATEGORY[dtype]
    return bool(value) if category == 0 else int(value) if category == 1 else float(value)
