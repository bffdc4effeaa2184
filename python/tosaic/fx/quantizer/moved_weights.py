"""Weights that a call permutes or reshapes before use, such as in ``tensordot``, which makes a matrix.

::

    w [3,4,5,6] -- reshape --> [12,30]      integers with a scale for each column

If the columns are one axis of the weight, the scales belong to this axis in torch. If they are several axes,
the graph of torch gets nodes that move the weight, and nodes after them that move it back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tosaic.base.quantization import QParams

_ATEN = torch.ops.aten


@dataclass(frozen=True)
class Move:
    """A permute, with `perm`, or else a reshape.

    Attributes
    ----------
    before, after : tuple of int
        The shapes.
    perm : tuple of int or None
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    perm: tuple[int, ...] | None = None

    @property
    def undone(self) -> Move:
        """The inverse move."""
        perm = None if self.perm is None else tuple(sorted(range(len(self.perm)), key=self.perm.__getitem__))
        return Move(self.after, self.before, perm)

    @property
    def call(self) -> tuple[Any, list[int]]:
        """The operator of torch, and its second argument."""
        if self.perm is not None:
            return _ATEN.permute.default, list(self.perm)
        return _ATEN.reshape.default, list(self.after)

    def axis_before(self, axis: int) -> int | None:
        """Returns the operand's axis that becomes `axis`; None if that is several axes, or a part of one."""
        if self.perm is not None:
            return self.perm[axis]
        outer, size = math.prod(self.after[:axis]), self.after[axis]
        for at, extent in enumerate(self.before):
            if extent == size and math.prod(self.before[:at]) == outer:
                return at
        return None


def moved_back(tensor: torch.Tensor, moves: Sequence[Move]) -> torch.Tensor:
    """Returns the weight from which these moves make a tensor."""
    for move in reversed(moves):
        target, argument = move.undone.call
        tensor = target(tensor, argument)
    return tensor


def qparams_before(qparams: QParams, moves: Sequence[Move]) -> QParams | None:
    """Returns the qparams of a weight before `moves`; None if no axis of it can have the scales."""
    if not moves or qparams.axis is None:
        return qparams
    axis: int | None = None if qparams.groups is not None else qparams.axis
    for move in reversed(moves):
        axis = None if axis is None else move.axis_before(axis)
    return None if axis is None else replace(qparams, axis=axis)


def with_moves(model: GraphModule, node: Node, user: Node, moves: Sequence[Move]) -> tuple[Node, Node]:
    """Makes a call read a weight that is moved and moved back; returns the moved weight and its next node."""
    made = [node]
    for move in (*moves, *(move.undone for move in reversed(moves))):
        target, argument = move.call
        with model.graph.inserting_after(made[-1]):
            call = model.graph.call_function(target, (made[-1], argument))
        call.meta = {key: each for key, each in node.meta.items() if key != "val"}
        value = made[-1].meta.get("val")
        if value is not None:
            call.meta["val"] = target(value, argument)
        made.append(call)
    user.replace_input_with(node, made[-1])
    return made[len(moves)], made[len(moves) + 1]
