"""The dim order in which a recorded tensor is stored, and the same tensor in another dim order.

The stride of an axis of extent 1, or of a broadcast axis (stride 0), is ignored: it agrees with every order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tosaic.base.dim_order import channels_last, is_same_order, orders_of_formats

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def order_of_format(memory_format: Any, rank: int) -> tuple[int, ...] | None:
    """Returns the dim order of a memory format; None for formats such as ``preserve_format``."""
    if memory_format is torch.contiguous_format:
        return tuple(range(rank))
    return channels_last(rank) if memory_format in _CHANNELS_LAST.values() else None


def _formats(rank: int) -> Iterator[tuple[torch.memory_format, tuple[int, ...]]]:
    """Yields the memory formats that tensors of this rank can have, with their orders, row-major first."""
    yield from zip((torch.contiguous_format, _CHANNELS_LAST.get(rank)), orders_of_formats(rank), strict=False)


def format_of(shape: Sequence[Any], order: Sequence[int]) -> torch.memory_format | None:
    """Returns the memory format of this order: row-major if several have it, None if none has it."""
    for form, own in _formats(len(shape)):
        if is_same_order(shape, own, order):
            return form
    return None


def order_name(shape: Sequence[Any], order: Sequence[int]) -> str:
    """Returns the name of an order: ``channels_last``, or ``dim_order_0_2_1`` if no memory format has it."""
    form = format_of(shape, order)
    if form is None:
        return "_".join(("dim_order", *map(str, order)))
    return str(form).removeprefix("torch.").removesuffix("_format")


def dense_in_order(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Returns an uninitialized tensor of the same type, dense in this order; a fake one for a fake tensor."""
    strides: list[Any] = [1] * tensor.dim()
    step: Any = 1
    for axis in reversed(order):
        strides[axis] = step
        size = tensor.shape[axis]
        step = step * (max(size, 1) if type(size) is int else size)
    with torch.no_grad():
        out = tensor.new_empty_strided(tuple(tensor.shape), tuple(strides))
    return out.requires_grad_() if tensor.requires_grad else out


def set_value(meta: dict[str, Any], val: Any) -> None:
    """Sets ``meta["val"]``, and the strides and memory format in ``meta["tensor_meta"]``."""
    meta["val"] = val
    recorded = meta.get("tensor_meta")
    if isinstance(val, torch.Tensor) and hasattr(recorded, "memory_format"):
        meta["tensor_meta"] = _recorded(recorded, val)
    elif isinstance(val, tuple | list) and isinstance(recorded, tuple | list):
        meta["tensor_meta"] = type(recorded)(map(_recorded, recorded, val))


def _recorded(old: Any, tensor: Any) -> Any:
    if not hasattr(old, "memory_format") or not isinstance(tensor, torch.Tensor):
        return old
    return old._replace(stride=tuple(tensor.stride()), memory_format=_recorded_format(tensor))


def _recorded_format(tensor: torch.Tensor) -> torch.memory_format | None:
    for form, _ in _formats(tensor.dim()):
        if tensor.is_contiguous(memory_format=form):
            return form
    return None
