"""Which arguments of a delegate call are inputs: `input_count`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tosaic import _core

if TYPE_CHECKING:
    from tosaic.pte.facts import MethodFacts

__all__ = ["input_count"]


def input_count(
    method: MethodFacts,
    args: Sequence[int],
    *,
    is_written: Callable[[int], bool],
    is_view: Callable[[Any], bool],
) -> int:
    """Returns how many arguments of a delegate are inputs, which the file does not say.

    Outputs are the last arguments. Nothing has written an output yet, and ExecuTorch numbers values in the
    order in which it meets them, so the outputs are behind all inputs of the method and have consecutive
    indices. A value that has the elements of another in another shape is a view, and so an input.

    Parameters
    ----------
    method : MethodFacts
    args : sequence of int
        Indices of values.
    is_written : callable
        True for the index of a value that an instruction before the call has written.
    is_view : callable
        True for a tensor that lies where one of the same dtype and another shape was written.
    """
    least = max(method.inputs, default=-1)
    count = len(args)
    while count > 0:
        index = args[count - 1]
        tensor = method.values[index]
        follows = count == len(args) or index + 1 == args[count]
        if not isinstance(tensor, _core.PteTensor) or index <= least or not follows:
            break
        if is_written(index) or (tensor.allocation is None and tensor.data) or is_view(tensor):
            break
        count -= 1
    return count
