"""Which arguments of a delegate call are inputs: `input_count`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tosaic import _core

if TYPE_CHECKING:
    from tosaic.devices.device import Sizes
    from tosaic.pte.facts import MethodFacts


def is_reshaped(base: _core.PteTensor, tensor: _core.PteTensor) -> bool:
    """True if a tensor at the place of another is a view of it: it has the same dtype and another shape."""
    return bool(base.scalar_type == tensor.scalar_type) and list(base.sizes) != list(tensor.sizes)


def input_count(
    method: MethodFacts,
    args: Sequence[int],
    sides: tuple[Sizes, Sizes] | None,
    *,
    is_written: Callable[[int], bool],
    is_view: Callable[[Any], bool],
) -> int:
    """Returns how many arguments of a delegate are inputs, which the file does not record.

    If tosaic can read the payload, that has the count. Otherwise, the count follows from three facts. Outputs
    are the last arguments, and no instruction before the call writes them. ExecuTorch numbers values in the
    order in which it meets them, so outputs are numbered after the inputs of the method, without gaps. States
    are inputs, and so are views of written values, which have the same bytes in another shape.

    Parameters
    ----------
    method : MethodFacts
    args : sequence of int
        Indices of values.
    sides : (sequence, sequence) or None
        The inputs and outputs of the payload, if `sides_of_payload` knows them.
    is_written : callable
        True for the index of a value that an instruction before the call has written.
    is_view : callable
        True for a tensor at whose place a value of the same dtype and another shape was written.
    """
    if sides is not None:
        return len(sides[0])
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
        if tensor.allocation is not None and method.is_state(index):
            break
        count -= 1
    return count
