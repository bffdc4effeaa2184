"""Adds nodes for the real and imaginary parts of complex values to a graph, so that they can be rounded.

::

    z = fft_rfft(x)               z = fft_rfft(x)
    y = mul(z, w)                 re, im = real(z), imag(z)
                                  y = mul(complex(re, im), w)

Integers represent a part, never a complex value: torchao rounds ``re`` and ``im``, and the calls of complex
values stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from tosaic.fx.quantizer.state_writes import value_of

_ATEN = torch.ops.aten


class _Split(NamedTuple):
    """The nodes that take a complex value apart, and the one that joins the parts again."""

    parts: tuple[Node, Node]
    joined: Node


class ComplexParts:
    """The complex values of a graph that were taken apart."""

    def __init__(self, model: GraphModule) -> None:
        self._graph = model.graph
        self._everywhere: dict[Node, _Split] = {}
        self._for_user: dict[tuple[Node, Node], _Split] = {}

    def of_result(self, node: Node, part: int) -> Node:
        """Returns the node of a part (0: real, 1: imaginary) that all readers of a complex node read."""
        split = self._everywhere.get(node)
        if split is None:
            readers = list(node.users)
            split = self._everywhere[node] = self._split(node, node)
            for reader in readers:
                reader.replace_input_with(node, split.joined)
        return split.parts[part]

    def of_read(self, node: Node, user: Node, part: int) -> Node:
        """Returns the node of a part that one reader of a complex node reads."""
        split = self._for_user.get((node, user))
        if split is None:
            everywhere = self._everywhere.get(node)
            source = node if everywhere is None else everywhere.joined
            split = self._for_user[node, user] = self._split(source, node)
            user.replace_input_with(source, split.joined)
        return split.parts[part]

    def _split(self, source: Node, like: Node) -> _Split:
        made: list[Node] = []
        for target in (_ATEN.real.default, _ATEN.imag.default):
            made.append(self._call(target, (source,), made[-1] if made else source, like, target))
        whole = self._call(_ATEN.complex.default, tuple(made), made[-1], like, lambda value: value)
        return _Split((made[0], made[1]), whole)

    def _call(
        self, target: Any, args: tuple[Any, ...], after: Node, like: Node, result: Callable[[Any], Any]
    ) -> Node:
        with self._graph.inserting_after(after):
            made = self._graph.call_function(target, args)
        made.meta = {key: each for key, each in like.meta.items() if key != "val"}
        value = value_of(like)
        if value is not None:
            with torch.no_grad():
                made.meta["val"] = result(value)
        return made
