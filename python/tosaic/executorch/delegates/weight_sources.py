"""The weights of a program whose state is fake.

ExecuTorch passes a partitioner a program whose parameters and buffers are fake tensors, to avoid copies. But
whether a call lowers depends on some of their numbers, such as the scales of weights. A fake tensor does not
refer to the real tensor. But the mode that made it returns the same fake tensor again for the same real
tensor, so a candidate can be checked. Candidates are the weights of the programs that ExecuTorch showed
before, and the tensors that the mode knows.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses import FakeTensor

from tosaic.base.options import invalid


class WeightSources:
    """The weights of programs shown before, by weak references."""

    def __init__(self) -> None:
        self._seen: dict[str, list[weakref.ref[Any]]] = {}

    def remember(self, program: Any) -> None:
        """Records the parameters and buffers of an exported program."""
        for name, tensor in program.state_dict.items():
            if not isinstance(tensor, FakeTensor):
                known = [ref for ref in self._seen.get(name, ()) if ref() is not None]
                if all(ref() is not tensor for ref in known):
                    known.append(weakref.ref(tensor))
                self._seen[name] = known

    def real(self, where: str, program: Any) -> Any:
        """Returns a program with the same graph, and with real weights.

        Raises
        ------
        InvalidGraph
            A weight was never seen.
        """
        if not any(isinstance(tensor, FakeTensor) for tensor in program.state_dict.values()):
            return program
        found = copy.copy(program)
        found._state_dict = {
            name: self._real(where, name, tensor) for name, tensor in program.state_dict.items()
        }
        return found

    def _real(self, where: str, name: str, tensor: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return tensor
        seen = (ref() for ref in self._seen.get(name, ()))
        for candidates in ((each for each in seen if each is not None), _known_to(tensor.fake_mode)):
            for each in _like(tensor, candidates):
                if tensor.fake_mode.from_tensor(each, static_shapes=True) is tensor:
                    return each
        raise invalid(
            where,
            f"the numbers of the weight '{name}' are not known: ExecuTorch shows fake weights here",
            expected="a program that was lowered with to_edge_transform_and_lower",
            got="a program that the partitioner has not seen before",
            hint="Call partitioner.remember(edge.exported_program()) before to_backend",
        )


def _like(tensor: Any, candidates: Iterable[Any]) -> Iterator[Any]:
    for each in candidates:
        if each.shape == tensor.shape and each.dtype is tensor.dtype:
            yield each


def _known_to(mode: Any) -> list[Any]:
    """Returns the real tensors for which a mode made fake tensors; empty if torch does not list them."""
    converter = getattr(mode.fake_tensor_converter, "meta_converter", None)
    table = getattr(getattr(converter, "describer", None), "lookup_tensor", None)
    keys = getattr(table, "keys", None)
    tensors = [] if keys is None else list(keys())
    return [each for each in tensors if isinstance(each, torch.Tensor) and not isinstance(each, FakeTensor)]
