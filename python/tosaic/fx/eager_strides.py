"""How results of torch's operators lie when they are computed, where fake tensors may tell otherwise.

A fake tensor follows from an operator's Python or meta description. Its shape is that of the real result, its
strides are not always: ``max_pool1d`` of a channels-last operand is recorded channels last, and is row-major.
The strides of pointwise operators, of views and of contractions are right; others are computed, on zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode

from tosaic.fx.lying import laid, lies
from tosaic.fx.shapes import dim_order_of

__all__ = ["as_computed", "is_recorded_right"]

Numbers = Callable[[Any], Sequence[int]]


def is_recorded_right(target: Any) -> bool:
    """True if a fake result of this operator has the strides of the real one: it is pointwise, or a view."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return True  # of Python, which picks or counts
    is_view = any(result.alias_info is not None for result in schema.returns)
    return is_view or torch.Tag.pointwise in getattr(target, "tags", ())


def as_computed(target: Any, args: Any, kwargs: Any, recorded: Any, numbers: Numbers) -> Any:
    """The recorded result, with tensors of which the computed ones have another dim order laid so.

    Parameters
    ----------
    target
        An operator of torch.
    args, kwargs
        Of the call, with fake tensors.
    recorded
        What the fake tensors led to.
    numbers
        Gives the numbers that symbolic sizes stand for.

    Returns
    -------
    object
        `recorded` itself where nothing is to be corrected, or where the call cannot be computed on zeros.
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
    if lies(fake.shape, numbers(fake.stride()), order):
        return fake
    if any(isinstance(size, torch.SymInt) for size in fake.shape):
        return laid(fake, order)
    with torch.no_grad():
        out = fake.new_empty_strided(tuple(fake.shape), strides)
    return out.requires_grad_() if fake.requires_grad else out


def _multiplies(target: Any, args: Any, kwargs: Any) -> bool:
    """True for contractions, whose strides are recorded right, and which would take long to compute."""
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
