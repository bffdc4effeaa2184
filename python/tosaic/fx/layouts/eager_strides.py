"""The strides that torch operators really compute; fake tensors may record others.

A fake tensor follows from an operator's Python or meta implementation. Its shape is that of the computed
result, but its strides may differ: ``max_pool1d`` of a channels-last operand is recorded as channels last,
and computed as row-major. The recorded strides of pointwise operators, views and contractions are right. For
other operators, this module computes the result on zeros and reads its strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode

from tosaic.base.dim_order import dim_order_of, has_order
from tosaic.fx.reading.memory_order import dense_in_order

Numbers = Callable[[Any], Sequence[int]]


def is_recorded_right(target: Any) -> bool:
    """True if a fake result of this operator has the strides of the computed one: pointwise or view."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return True  # a Python function, such as getitem or sym_size
    is_view = any(result.alias_info is not None for result in schema.returns)
    return is_view or torch.Tag.pointwise in getattr(target, "tags", ())


def as_computed(target: Any, args: Any, kwargs: Any, recorded: Any, numbers: Numbers) -> Any:
    """Returns the recorded result; tensors whose computed dim order differs get the computed one.

    Parameters
    ----------
    target
        An operator of torch.
    args, kwargs
        Arguments of the call, with fake tensors.
    recorded
        The result of the call on fake tensors.
    numbers
        Maps symbolic sizes to their numbers.

    Returns
    -------
    object
        `recorded` itself if no stride needs correction, or if the call cannot be computed on zeros.
    """
    fakes = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    if any(fake.device.type != "cpu" for fake in fakes) or _multiplies(target, args, kwargs):
        return recorded
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            real = target(*_real(args, numbers), **_real(kwargs, numbers))
    except Exception:
        return recorded
    now, tree = tree_flatten(recorded)
    then = tree_flatten(real)[0]
    if len(now) != len(then):
        return recorded
    out = [_corrected(fake, value, numbers) for fake, value in zip(now, then, strict=True)]
    if all(a is b for a, b in zip(out, now, strict=True)):
        return recorded
    return tree_unflatten(out, tree)


def _corrected(fake: Any, real: Any, numbers: Numbers) -> Any:
    if not isinstance(fake, torch.Tensor) or not isinstance(real, torch.Tensor):
        return fake
    strides = tuple(real.stride())
    order = dim_order_of(tuple(real.shape), strides)[0]
    if has_order(fake.shape, numbers(fake.stride()), order):
        return fake
    if any(isinstance(size, torch.SymInt) for size in fake.shape):
        return dense_in_order(fake, order)
    with torch.no_grad():
        out = fake.new_empty_strided(tuple(fake.shape), strides)
    return out.requires_grad_() if fake.requires_grad else out


def _multiplies(target: Any, args: Any, kwargs: Any) -> bool:
    """True for contractions: their recorded strides are right, and they would take long to compute."""
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), counter:
            target(*args, **kwargs)
    except Exception:
        return True
    return counter.get_total_flops() > 0


def _real(tree: Any, numbers: Numbers) -> Any:
    def real(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            sizes, strides = tuple(numbers(leaf.shape)), tuple(numbers(leaf.stride()))
            return torch.empty_strided(sizes, strides, dtype=leaf.dtype).zero_()
        if isinstance(leaf, torch.SymInt):
            return numbers((leaf,))[0]
        return leaf

    return tree_map(real, tree)
