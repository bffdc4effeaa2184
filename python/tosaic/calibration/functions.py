"""The elementwise function that is the only reader of a tensor: the tensor's range is chosen by its error.

conv2d -> silu    SiLU is flat far below zero: there, the range may end above the least numbers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.program.node_graph import graph_of_node
from tosaic.torch_operators.arguments import OP

_Array = np.ndarray[Any, Any]


def function_of_reader(graph: _core.Graph, value: int) -> Callable[[Sequence[float]], _Array | None] | None:
    """Returns the only reader of a value as a function of numbers.

    The function computes with the kernels of the core in float32, and returns float64 results, or None if
    they are not all finite. None instead of a function: there are several readers, or the reader has other
    tensors or several results.
    """
    found = graph.values[value]
    readers = found.users
    if len(readers) != 1 or len(readers[0].results) != 1 or found.is_output:
        return None
    reader = readers[0]
    others = [each for each in reader.operands if each is not None and each.name != found.name]
    if any(each.kind != "constant" or tuple(each.shape) for each in others):
        return None
    if (
        reader.op not in OP
        or sum(each is not None and each.name == found.name for each in reader.operands) != 1
    ):
        return None

    def function(numbers: Sequence[float]) -> _Array | None:
        values = np.asarray(numbers, np.float32)
        session = _core.Session(graph_of_node(reader, {found.id: ("f32", (len(values),))}))
        with np.errstate(all="ignore"):
            results = np.asarray(session.run([values])[0], np.float64)
        return results if bool(np.isfinite(results).all()) else None

    return function
