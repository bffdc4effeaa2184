"""The rows of all families, and the strategy that draws calls of an overload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from operators import (
    rows_contraction,
    rows_creation,
    rows_elementwise,
    rows_movement,
    rows_normalization,
    rows_order,
    rows_pooling,
    rows_quantization,
    rows_recurrent,
    rows_reduction,
)
from operators.checking import Row
from operators.values import Case

__all__ = ["ROWS", "cases"]

_FAMILIES = {
    "contraction": rows_contraction.ROWS,
    "elementwise": rows_elementwise.ROWS,
    "reduction": rows_reduction.ROWS,
    "order": rows_order.ROWS,
    "normalization": rows_normalization.ROWS,
    "pooling": rows_pooling.ROWS,
    "movement": rows_movement.ROWS,
    "creation": rows_creation.ROWS,
    "recurrent": rows_recurrent.ROWS,
    "quantization": rows_quantization.ROWS,
}
ROWS: dict[str, Row] = {name: row for rows in _FAMILIES.values() for name, row in rows.items()}

_WRONG = (-100, 100, -7, 7, -1, 0)


def cases(name: str, *, most: int = 6, hostile: bool = True) -> Any:
    """Returns a strategy for lists of calls of an overload.

    With `hostile`, one call of twelve is made wrong.
    """
    return st.lists(_case(name, hostile), min_size=1, max_size=most)


@st.composite
def _case(draw: Callable[[Any], Any], name: str, hostile: bool) -> Case:
    drawn = draw(ROWS[name].arguments)
    case = Case(name, *drawn)
    if hostile and draw(st.integers(0, 11)) == 11:
        return _spoiled(draw, case)
    return case


def _spoiled(draw: Callable[[Any], Any], case: Case) -> Case:
    """Returns the case with one integer of its attributes replaced, if it has any."""
    places = list(_integers(case.args, ("args",))) + list(_integers(case.kwargs, ("kwargs",)))
    if not places:
        return case
    path = draw(st.sampled_from(places))
    value = draw(st.sampled_from(_WRONG))
    tree = {"args": case.args, "kwargs": case.kwargs}
    tree = _changed(tree, path, value)
    return replace(case, args=tree["args"], kwargs=tree["kwargs"], hostile=True)


def _integers(tree: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(tree, int) and not isinstance(tree, bool):
        yield path
    elif isinstance(tree, list | tuple):
        for i, item in enumerate(tree):
            yield from _integers(item, (*path, i))
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _integers(item, (*path, key))


def _changed(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    if isinstance(tree, dict):
        return {k: _changed(v, path[1:], value) if k == path[0] else v for k, v in tree.items()}
    return type(tree)(_changed(v, path[1:], value) if i == path[0] else v for i, v in enumerate(tree))
