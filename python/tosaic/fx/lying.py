"""How a tensor that torch recorded lies in memory, and the same tensor in another dim order.

Strides of an axis of extent 1, or that is broadcast (stride 0), tell nothing: they agree with every order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tosaic.dim_order import channels_last

__all__ = ["ORDER_OF", "format_of", "is_same_order", "laid", "lies", "order_name", "put"]

ORDER_OF: dict[torch.memory_format, dict[int, tuple[int, ...]]] = {
    torch.contiguous_format: {rank: tuple(range(rank)) for rank in range(64)},
    torch.channels_last: {4: channels_last(4)},
    torch.channels_last_3d: {5: channels_last(5)},
}
"""By memory format and rank, the dim order."""


def is_same_order(shape: Sequence[Any], a: Sequence[int], b: Sequence[int]) -> bool:
    """True if tensors of this shape lie alike under both orders."""
    return _telling(shape, a) == _telling(shape, b)


def _telling(shape: Sequence[Any], order: Sequence[int]) -> list[int]:
    return [axis for axis in order if type(shape[axis]) is not int or shape[axis] != 1]


def lies(shape: Sequence[Any], strides: Sequence[int], order: Sequence[int]) -> bool:
    """True if the strides, which may leave gaps, agree with the order; sizes may be symbolic."""
    known = [strides[axis] for axis in _telling(shape, order) if strides[axis] != 0]
    return known == sorted(known, reverse=True) or any(type(size) is int and size == 0 for size in shape)


def format_of(shape: Sequence[Any], order: Sequence[int]) -> torch.memory_format | None:
    """The memory format that means this order, row-major where several do; None where none does."""
    for form, orders in ORDER_OF.items():
        if len(shape) in orders and is_same_order(shape, orders[len(shape)], order):
            return form
    return None


def order_name(shape: Sequence[Any], order: Sequence[int]) -> str:
    """``channels_last``; of an order without a name ``dim_order_0_2_1``."""
    form = format_of(shape, order)
    if form is None:
        return "_".join(("dim_order", *map(str, order)))
    return str(form).removeprefix("torch.").removesuffix("_format")


def laid(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A tensor of the same type, dense in this order, with other contents (of a fake tensor, a fake one)."""
    strides: list[Any] = [1] * tensor.dim()
    step: Any = 1
    for axis in reversed(order):
        strides[axis] = step
        size = tensor.shape[axis]
        step = step * (max(size, 1) if type(size) is int else size)
    with torch.no_grad():
        out = tensor.new_empty_strided(tuple(tensor.shape), tuple(strides))
    return out.requires_grad_() if tensor.requires_grad else out


def put(meta: dict[str, Any], val: Any) -> None:
    """Sets what a node records of its result."""
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
    for form, orders in ORDER_OF.items():
        if tensor.dim() in orders and tensor.is_contiguous(memory_format=form):
            return form
    return None
