"""The constants of a graph in the order in which its text refers to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from tosaic import _core

Key: TypeAlias = tuple[str, str, tuple[int, ...], int]
"""Name, dtype and shape of a constant, and its number among the constants that share all three."""


class InTextOrder:
    """A callback for `Graph.parse` that finds the constants that a text refers to.

    `find` is called with the key of a constant, as in `constants_in_text_order`, and the constant without its
    bytes. It returns the constant with its bytes, or None. The parser must ask for constants in the order of
    the text, since this class counts constants of equal name, dtype and shape.
    """

    def __init__(self, find: Callable[[Key, _core.Constant], _core.Constant | None]) -> None:
        self._find = find
        self._seen: dict[tuple[Any, ...], int] = {}

    def __call__(self, wanted: _core.Constant) -> _core.Constant | None:
        """Returns the constant for the next reference in the text."""
        base = (wanted.name, wanted.dtype, tuple(wanted.shape))
        occurrence = self._seen.get(base, 0)
        self._seen[base] = occurrence + 1
        return self._find((*base, occurrence), wanted)


def constants_in_text_order(graph: _core.Graph) -> Iterator[tuple[Key, _core.Constant]]:
    """Yields each constant with its key, in the order of the graph's text form."""
    seen: dict[tuple[Any, ...], int] = {}
    for constant in _in_text_order(graph):
        base = (constant.name, constant.dtype, tuple(constant.shape))
        occurrence = seen.get(base, 0)
        seen[base] = occurrence + 1
        yield (*base, occurrence), constant


def _in_text_order(graph: _core.Graph) -> Iterator[_core.Constant]:
    initials = {port.value.id: port.initial for port in graph.inputs if port.initial is not None}
    for value in graph.values:
        if value.id in initials:
            yield initials[value.id]
        elif value.constant is not None:
            yield value.constant
        elif value.producer is not None and value.producer.results[0] == value:
            for region in value.producer.regions:
                yield from _in_text_order(region)


def plain_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array in a dtype that numpy has: bfloat16 and float8 become integers of their bits."""
    if array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1:
        return array
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))
