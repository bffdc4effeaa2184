"""Lowered programs made wrong on purpose: one weight, one zero point, or the order of one transpose.

The seed determines which one is changed. A wrong program is still a valid graph with the same inputs and
outputs.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import tosaic
from tosaic import _core
from tosaic.program.constants_in_text import InTextOrder, constants_in_text_order

__all__ = ["KINDS", "tampered"]

KINDS = ("weight", "zero point", "order")
_WEIGHTED = re.compile(r"= tosa\.(?:conv2d|conv3d|depthwise_conv2d|transpose_conv2d|matmul)\(%\S+, %([^,)]+)")
_ZERO_POINT = re.compile(r"\b(?:input|output)_zp=(-?[1-9]\d*)")
_TRANSPOSE = re.compile(r": \w+\[([\d,]+)\]\S* = tosa\.transpose\([^)]*\) \{perm=\[([\d,]+)\]\}")


def tampered(lowered: tosaic.Lowered, kind: str, seed: int) -> tosaic.Lowered | None:
    """Returns the program with one mistake of this kind (`KINDS`); None if the kind does not apply."""
    spoil = {"weight": _with_weight, "zero point": _with_zero_point, "order": _with_order}[kind]
    graph = spoil(lowered.graph, random.Random(f"{kind} {seed}"))
    if graph is None:
        return None
    wrong = copy.copy(lowered)
    for name in (
        "session",
        "inputs",
        "outputs",
        "states",
        "io",
        "layout",
        "_output_indices",
        "_place_of_input",
    ):
        wrong.__dict__.pop(name, None)
    wrong._graph = graph
    wrong._stages = {**lowered._stages, "tosa": graph}
    return wrong


def _parse(text: str, graph: _core.Graph, wrong: dict[int, _core.Constant] | None = None) -> _core.Graph:
    """Parses a text with the constants of `graph`; `wrong` replaces some, by address of their data."""
    constants = dict(constants_in_text_order(graph))

    def find(key: Any, _: _core.Constant) -> _core.Constant:
        constant = constants[key]
        return (wrong or {}).get(constant.array.ctypes.data, constant)

    return _core.Graph.parse(text, InTextOrder(find))


def _with_weight(graph: _core.Graph, draw: random.Random) -> _core.Graph | None:
    """Negates the weight of largest magnitude of a random operator."""
    text = graph.text()
    names = sorted({name for name in _WEIGHTED.findall(text) if name in graph.constants})
    if not names:
        return None
    name = draw.choice(names)
    constant = graph.constants[name]
    array = np.array(constant.array)
    at = np.unravel_index(np.argmax(np.abs(array.astype(np.float64))), array.shape)
    array[at] = -array[at]
    line = next(line for line in text.splitlines() if line.lstrip().startswith(f"const %{name}:"))
    if "ref(" not in line:
        values = json.dumps([value.item() for value in array.ravel()])
        return _parse(text.replace(line, line[: line.rindex("[")] + values), graph)
    wrong = _core.Constant(
        constant.name, constant.kind, constant.dtype, array.shape, array.ctypes.data, array.nbytes, array
    )
    return _parse(text, graph, {constant.array.ctypes.data: wrong})


def _with_zero_point(graph: _core.Graph, draw: random.Random) -> _core.Graph | None:
    """Changes a random zero point other than 0 by one."""
    text = graph.text()
    found = list(_ZERO_POINT.finditer(text))
    if not found:
        return None
    match = draw.choice(found)
    zero = int(match[1])
    return _replaced(graph, text, match.start(1), match[1], str(zero - 1 if zero == 127 else zero + 1))


def _with_order(graph: _core.Graph, draw: random.Random) -> _core.Graph | None:
    """Changes the permutation of a random transpose: two axes of the same extent are swapped."""
    text = graph.text()
    found = [
        (match, wrong) for match in _TRANSPOSE.finditer(text) for wrong in _wrong_orders(match[1], match[2])
    ]
    if not found:
        return None
    match, wrong = draw.choice(found)
    return _replaced(graph, text, match.start(2), match[2], wrong)


def _wrong_orders(shape: str, perm: str) -> Iterator[str]:
    sizes, axes = [int(size) for size in shape.split(",")], perm.split(",")
    for i, size in enumerate(sizes):
        for k in range(i + 1, len(sizes)):
            if size == sizes[k] > 1:
                swapped: list[Any] = list(axes)
                swapped[i], swapped[k] = swapped[k], swapped[i]
                yield ",".join(swapped)


def _replaced(graph: _core.Graph, text: str, at: int, old: str, new: str) -> _core.Graph:
    return _parse(text[:at] + new + text[at + len(old) :], graph)
