"""The values in the planned memory of a method, by place.

A memory plan puts several values at the same place, one after another. It also puts a view at the place of
its base, and no instruction writes the view: reading it means reading the bytes of the base. So a read is
resolved by place: it returns the value that was last written there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tosaic import _core
from tosaic.torch_operators.value import Ref


@dataclass(frozen=True)
class Written:
    """A value that was written to planned memory.

    Attributes
    ----------
    index : int
        The index of the value in the method.
    ref : Ref
        The value in the graph.
    tensor : PteTensor
        The type and dim order of the tensor.
    """

    index: int
    ref: Ref
    tensor: _core.PteTensor


class Memory:
    """The values that the planned memory holds, by memory and by first and last byte."""

    def __init__(self) -> None:
        self._held: dict[int, dict[tuple[int, int], Written]] = {}

    def write(self, index: int, ref: Ref, tensor: _core.PteTensor) -> None:
        """Records a written value. Earlier values whose bytes it overwrites, even in part, are dropped."""
        place = _place(tensor)
        if place is None:
            return
        memory, first, end = place
        held = self._held.setdefault(memory, {})
        for other in [each for each in held if each[0] < end and first < each[1]]:
            del held[other]
        held[first, end] = Written(index, ref, tensor)

    def at(self, tensor: _core.PteTensor) -> Written | None:
        """Returns the value that has exactly the bytes of a tensor; None if there is none."""
        place = _place(tensor)
        if place is None:
            return None
        memory, first, end = place
        return self._held.get(memory, {}).get((first, end))

    def is_free(self, tensor: _core.PteTensor) -> bool:
        """True if no value lies in the bytes of a tensor."""
        place = _place(tensor)
        if place is None:
            return True
        memory, first, end = place
        return not any(each[0] < end and first < each[1] for each in self._held.get(memory, {}))

    def mapped(self, refs: dict[int, Ref]) -> Memory:
        """Returns the same memory in another graph, with the values whose ids are keys of `refs`."""
        made = Memory()
        made._held = {
            memory: {
                place: replace(written, ref=refs[written.ref.id])
                for place, written in held.items()
                if written.ref.id in refs
            }
            for memory, held in self._held.items()
        }
        return made


def _place(tensor: _core.PteTensor) -> tuple[int, int, int] | None:
    at, size = tensor.allocation, tensor.byte_size
    return None if at is None or size == 0 else (at.memory, at.offset, at.offset + size)
