"""Whether ``ep.run_decompositions()`` keeps the numbers of a program that writes in place.

Decomposition makes a program functional by the views that schemas declare. Eager also shares memory that
schemas do not declare: ``unsafe_chunk`` returns views, ``dropout`` in eval mode returns its operand. A write
to such memory is then lost in the decomposed program. So each call with results in written memory is tried
alone: it is followed by a write to its results, in eager and decomposed. Strides are compared too, because
they decide whether a later ``reshape`` is a view. The whole program is also decomposed, since torch may fail.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map_only

from tosaic.fx.reading.shapes import Sizes
from tosaic.torch_operators.aliasing import Aliases

_MOST_TRIALS = 12
_MOST_RESULTS = 16  # results of a call that a trial writes: decomposing hundreds of writes takes minutes
# Calls that address the storage, whose layout differs in a decomposed program.
_OF_STORAGE = ("aten::as_strided", "aten::as_strided_", "aten::_reshape_alias", "aten::resize_")


def keeps_numbers(written: Iterable[Aliases], sizes: Sizes) -> bool:
    """True if decomposition is known to keep the numbers of a program with these shared memories."""
    tried: dict[Any, bool] = {}
    for aliases in written:
        if aliases.has_shared_sources or aliases.has_overlap:
            return False
        for node in aliases.calls_in_written_memory():
            target = node.target
            if not isinstance(target, torch._ops.OpOverload):
                continue  # getitem, or a call of a nested graph
            if target._schema.name in _OF_STORAGE:
                return False
            if _is_declared(target):
                continue
            try:
                key, operands = _operands(node, sizes)
            except Exception:  # a size depends on data
                return False
            if key not in tried:
                if len(tried) == _MOST_TRIALS:
                    return False
                tried[key] = _agrees(node, operands, sizes)
            if not tried[key]:
                return False
    return True


def can_be_decomposed(ep: Any) -> bool:
    """True if ``ep.run_decompositions()`` returns a program."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ep.run_decompositions()
    except MemoryError:
        raise
    except Exception:  # of any type
        return False
    return True


@cache
def _has_decomposition(target: Any) -> bool:
    """True if ``run_decompositions`` replaces the operator; its result may then have other strides."""
    return target in torch.export.default_decompositions()


def _is_declared(target: Any) -> bool:
    """True if the operator's schema declares all shared memory, and torch's functionalization follows it."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(target.name(), "CompositeImplicitAutograd"):
        return False
    if torch.Tag.pointwise not in target.tags and _has_decomposition(target):
        return False
    declares = any(result.alias_info is not None for result in target._schema.returns)
    return declares or target._schema.is_mutable or not has(target.name(), "CompositeExplicitAutograd")


def _operands(node: Node, sizes: Sizes) -> tuple[Any, list[torch.Tensor]]:
    nodes = [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
    tensors = []
    for each in nodes:
        recorded = each.meta["val"]
        shape, strides = sizes.shape(recorded.shape), sizes.shape(recorded.stride())
        tensor = torch.empty_strided(tuple(shape), tuple(strides), dtype=recorded.dtype).zero_()
        tensors.append(tensor)
    kinds = tuple((tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())) for tensor in tensors)
    at = {each: index for index, each in enumerate(nodes)}
    arguments = tree_map_only(Node, lambda each: ("operand", at.get(each)), (node.args, dict(node.kwargs)))
    return (node.target, kinds, repr(arguments)), tensors


class _Trial(torch.nn.Module):
    """Makes one call, and writes to its results; if there are many, to the first and the last of them."""

    def __init__(self, node: Node, sizes: Sizes) -> None:
        super().__init__()
        self._call = (node.target, node.args, node.kwargs)
        self._nodes = [
            each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)
        ]
        self._sizes = sizes

    def forward(self, *operands: torch.Tensor) -> Any:
        """Returns the operands after the write, and the results."""
        copies = [each.clone() for each in operands]
        given = dict(zip(self._nodes, copies, strict=True))

        def argument(leaf: Any) -> Any:
            if isinstance(leaf, Node):
                return given[leaf] if leaf in given else self._sizes.value(leaf.meta["val"])
            return self._sizes.value(leaf)

        target: Any
        target, args, kwargs = self._call
        args, kwargs = torch.utils._pytree.tree_map(argument, (tuple(args), dict(kwargs)))
        results = [each for each in tree_leaves(target(*args, **kwargs)) if isinstance(each, torch.Tensor)]
        if len(results) > _MOST_RESULTS:
            results = [*results[: _MOST_RESULTS // 2], *results[-_MOST_RESULTS // 2 :]]
        for result in results:
            result.copy_(torch.ones_like(result))
        return [*copies, *results]


def _agrees(node: Node, operands: list[torch.Tensor], sizes: Sizes) -> bool:
    trial = _Trial(node, sizes)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = trial(*operands)
            decomposed = torch.export.export(trial, tuple(operands), strict=False).run_decompositions()
            found = decomposed.module()(*operands)
    except Exception:  # of any type
        return False
    return all(torch.equal(a, b) and _has_strides_of(a, b) for a, b in zip(expected, found, strict=True))


def _has_strides_of(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors of one shape have the same strides, except on axes where strides do not matter."""
    if a.numel() == 0:
        return True
    return all(size == 1 or x == y for size, x, y in zip(a.shape, a.stride(), b.stride(), strict=True))
