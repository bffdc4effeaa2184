"""Pickles and copies graphs by value: the text form, and the weights that the text refers to.

An unpickled graph owns its weights: it does not need torch, in this process or another. A constant that
several graphs share, such as the stages of one lowering, is pickled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic import _core


def reduce_graph(graph: _core.Graph) -> tuple[Any, ...]:
    """Returns the value of ``__reduce__`` for a graph: its text and those constants that have bytes.

    Raises
    ------
    InvalidGraph
        A weight was changed in place since import.
    """
    from tosaic.program.constants_in_text import constants_in_text_order

    weights = [(key, constant) for key, constant in constants_in_text_order(graph) if constant.bound]
    return _graph, (graph.text(), weights)


def reduce_constant(constant: _core.Constant) -> tuple[Any, ...]:
    """Returns the value of ``__reduce__`` for a constant: its type and its elements."""
    from tosaic.program.constants_in_text import plain_array

    parts = (constant.name, constant.kind, constant.dtype, tuple(constant.shape))
    return _constant, (*parts, plain_array(constant.array))


def _graph(text: str, weights: Sequence[tuple[Any, _core.Constant]]) -> _core.Graph:
    from tosaic.program.constants_in_text import InTextOrder

    known = dict(weights)
    return _core.Graph.parse(text, constants=InTextOrder(lambda key, _: known.get(key)))


def _constant(
    name: str, kind: str, dtype: str, shape: tuple[int, ...], array: np.ndarray[Any, Any]
) -> _core.Constant:
    owner: np.ndarray[Any, Any] = np.ascontiguousarray(array)
    return _core.Constant(name, kind, dtype, shape, owner.ctypes.data, owner.nbytes, owner)
