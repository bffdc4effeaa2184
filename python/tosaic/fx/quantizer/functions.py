"""The elementwise function that is the only reader of a tensor: the tensor's range is chosen by its error.

conv2d -> silu    SiLU is flat far below zero: there, the range may end above the least numbers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node


@dataclass(frozen=True)
class Function:
    """A call of an elementwise operator as a function of one tensor.

    Attributes
    ----------
    target : str
        Name of the operator, such as ``aten.silu.default``.
    args : tuple
        Positional arguments; the element at `place` stands for the tensor.
    kwargs : tuple of (str, object)
        Keyword arguments.
    place : int
        Index in `args` of the tensor.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    place: int = 0

    def __call__(self, values: Sequence[float]) -> npt.NDArray[np.float64] | None:
        """Returns the float64 results for some numbers; None if they are not all finite."""
        operator = attrgetter(self.target)(torch.ops)
        args = list(self.args)
        args[self.place] = torch.tensor(values, dtype=torch.float64)
        with torch.no_grad():
            found: torch.Tensor = operator(*args, **dict(self.kwargs))
        return found.to(torch.float64).numpy() if bool(found.isfinite().all()) else None


def function_of_reader(node: Node) -> Function | None:
    """Returns the call that reads the result of a node as a function of it.

    None if there are several readers, or if the call has other tensors or random numbers.
    """
    if len(node.users) != 1:
        return None
    (user,) = node.users
    target = user.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    places = [i for i, each in enumerate(user.args) if each is node]
    if len(places) != 1 or user.all_input_nodes != [node] or not _are_plain(user.args, user.kwargs):
        return None
    args = tuple(None if each is node else each for each in user.args)
    return Function(str(target), args, tuple(user.kwargs.items()), places[0])


def _are_plain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    simple = (bool, int, float, str, torch.dtype, torch.device, torch.layout, type(None), Node)
    return all(isinstance(each, simple) for each in (*args, *kwargs.values()))
