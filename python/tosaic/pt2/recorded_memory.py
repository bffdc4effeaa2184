"""Which memory the results of a file's calls share, by rules over recorded shapes and strides.

The import of torch's programs runs each call and compares storages. Here, without torch, a rule decides
whether a call returns its operand, a view of it, or a copy. If no rule decides, the result may be anywhere in
the memory of its operands, and a write for which this matters needs torch.

Recorded strides come from fake tensors. They are right for inputs, for results of pointwise operators and
for views. Strides of other results may differ from the strides that are computed
(`tosaic.fx.layouts.eager_strides`), and rules that depend on strides do not use them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tosaic import _core
from tosaic.base.dim_order import contiguous_strides
from tosaic.pt2.schemas import row_of
from tosaic.pt2.sizes import Sizes
from tosaic.pt2.values import TensorMeta
from tosaic.torch_operators.aliasing import Tensor
from tosaic.torch_operators.memory_regions import Region, anywhere_in, in_memory
from tosaic.torch_operators.operator_row import OperatorRow

_MAY_SHARE = frozenset(
    {
        "_autocast_to_full_precision",
        "_autocast_to_reduced_precision",
        "_reshape_alias",
        "chain_matmul",
        "conj_physical",
        "data",
        "einsum",
        "lift",
        "native_channel_shuffle",
        "pin_memory",
        "resize",
    }
)
"""Operators whose results may share memory in a way that no rule describes."""

_VIEWS = frozenset({"_unsafe_view", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"})
_RESHAPES = frozenset({"flatten", "ravel", "reshape", "reshape_as"})
_DROPOUTS = frozenset({"alpha_dropout", "dropout", "feature_alpha_dropout", "feature_dropout"})
# Operators that return a real operand itself, and a view of a complex one.
_OPERAND_IF_REAL = frozenset({"conj", "lift_fresh", "positive", "real", "resolve_conj", "resolve_neg"})


class RecordedMemory:
    """The memory of the nodes of one graph of a file.

    Parameters
    ----------
    sizes : Sizes
    held : callable
        Returns the stored tensor of a placeholder, with ``entry`` and ``meta``; None for inputs.
    """

    def __init__(self, sizes: Sizes, held: Callable[[Any], Any]) -> None:
        self._sizes = sizes
        self._held = held

    def of_source(self, node: Any) -> Region | None:
        """Returns the memory of a placeholder or an attribute; weights may share a storage."""
        held = self._held(node)
        recorded = node.meta.get("val")
        if held is not None and type(recorded) is TensorMeta:
            memory: Hashable = ("storage", held.entry)
            is_as_saved = (held.meta.offset, tuple(held.meta.stride())) == (
                recorded.offset,
                tuple(recorded.stride()),
            )
            return self._region(recorded, memory, True) if is_as_saved else anywhere_in(frozenset((memory,)))
        return self._region(recorded, node, True) if type(recorded) is TensorMeta else None

    def of_results(self, node: Any, row: OperatorRow, tensors: Callable[[Any], Any]) -> Any:
        """Returns the memory of the results of a call: see `tosaic.torch_operators.aliasing.Memory`."""
        args = row.complete(node.args, node.kwargs)
        if row.returns_operand:
            return tensors(args[0])
        recorded = node.meta.get("val")
        operands = [tensor for each in node.all_input_nodes for tensor in _tensors_in(tensors(each))]
        base = row.name.partition(".")[0]
        operand = tensors(args[0]) if args and hasattr(args[0], "meta") else None
        if not isinstance(operand, Tensor):
            shares = row.shares or base in _MAY_SHARE
            return (
                self._unknown(recorded, node, operands) if shares else self._fresh(recorded, node, operands)
            )
        if row.changes_shape:
            return self._reshaped(node, recorded, operand)
        if row.mutates or base in _MAY_SHARE:
            return self._unknown(recorded, node, operands)
        found = self._by_rule(node, base, row, args, operand)
        if found is not None:
            return found
        return self._fresh(recorded, node, operands)

    def _by_rule(self, node: Any, base: str, row: OperatorRow, args: Sequence[Any], operand: Tensor) -> Any:
        recorded, region = node.meta.get("val"), operand.region
        unknown = self._unknown(recorded, node, [operand])
        if type(recorded) is TensorMeta and region.layout is None and (row.shares or base in _VIEWS):
            return unknown
        if base in ("to", "type_as"):
            return self._converted(node, row, args, operand)
        if base in _DROPOUTS:
            return operand if args[1] == 0 or args[2] is not True or region.is_empty else None
        if base == "contiguous":
            return self._contiguous(node, args, operand)
        if base in _RESHAPES:
            return self._reshape(node, base, args, operand)
        if base in _OPERAND_IF_REAL:
            return unknown if recorded.is_complex() or base == "lift_fresh" else operand
        if base == "as_strided" and not region.is_certain:
            return unknown
        if row.shares or base in _VIEWS:
            if isinstance(recorded, list | tuple):
                return [self._view(item, region) for item in recorded]
            return self._view(recorded, region)
        return None

    def _converted(self, node: Any, row: OperatorRow, args: Sequence[Any], operand: Tensor) -> Any:
        """Returns the operand itself if a conversion changes nothing and no copy is requested."""
        recorded, before = node.meta.get("val"), self._dtype_of(operand)
        if before is not None and recorded.dtype != before:
            return None
        by_name = dict(zip(row.names, args, strict=False))
        if by_name.get("copy") is True:
            return None
        if (
            by_name.get("memory_format") is not None
            and str(by_name["memory_format"]) != "torch.preserve_format"
        ):
            return self._unknown(recorded, node, [operand])
        if by_name.get("device") is not None and recorded.device != "cpu":
            return self._unknown(recorded, node, [operand])
        return self._unknown(recorded, node, [operand]) if before is None else operand

    def _contiguous(self, node: Any, args: Sequence[Any], operand: Tensor) -> Any:
        recorded, region = node.meta.get("val"), operand.region
        if region.layout is None or not region.is_certain:
            return self._unknown(recorded, node, [operand])
        memory_format = args[1] if len(args) > 1 else None
        rank = len(region.shape)
        order = tuple(range(rank)) if memory_format is None else memory_format.order(rank)
        if order is None or len(order) != rank:
            return self._unknown(recorded, node, [operand])
        return operand if _is_dense(region, order) else None

    def _reshape(self, node: Any, base: str, args: Sequence[Any], operand: Tensor) -> Any:
        """Returns a view if the new shape has strides over the same memory; else a copy."""
        recorded, region = node.meta.get("val"), operand.region
        if region.layout is None or not region.is_certain:
            return self._unknown(recorded, node, [operand])
        rank = len(region.shape)
        if base == "flatten" and rank and args[1] % rank == args[2] % rank:
            return operand
        if base == "ravel":
            return self._view(recorded, region) if _is_dense(region, range(rank)) else None
        shape = self._numbers(recorded.shape)
        if shape is None:
            return self._unknown(recorded, node, [operand])
        strides = _strides_of_view(region.shape, region.strides, shape)
        if strides is None:
            return None
        assert region.layout is not None
        return in_memory(region.memory, region.layout[0], region.unit, shape, strides, region.offset)

    def _reshaped(self, node: Any, recorded: Any, operand: Tensor) -> Any:
        region = operand.region
        if region.layout is None or (
            node.target.partition(".")[2].startswith(("as_strided_", "resize")) and not region.is_certain
        ):
            return operand, anywhere_in(region.memories)
        made = self._region(recorded, region.memory, region.is_certain)
        return operand, made

    def _view(self, recorded: Any, region: Region) -> Any:
        if type(recorded) is not TensorMeta:
            return None
        if region.layout is None:
            return anywhere_in(region.memories)
        made = self._region(recorded, region.memory, region.is_certain)
        if made.layout is not None and recorded.is_complex():
            return anywhere_in(region.memories)  # the operand may be lazily conjugated
        return made

    def _fresh(self, recorded: Any, node: Any, operands: Sequence[Tensor]) -> Any:
        """Returns new memory. The recorded strides are certain only for pointwise operators."""
        is_certain = self._is_pointwise(node) and all(
            tensor.region.layout is not None and tensor.region.is_certain for tensor in operands
        )
        if isinstance(recorded, list | tuple):
            return [
                self._region(item, (node, index), is_certain) if type(item) is TensorMeta else None
                for index, item in enumerate(recorded)
            ]
        return self._region(recorded, node, is_certain) if type(recorded) is TensorMeta else None

    @staticmethod
    def _is_pointwise(node: Any) -> bool:
        return row_of(node.target).is_pointwise

    @staticmethod
    def _unknown(recorded: Any, node: Any, operands: Sequence[Tensor]) -> Any:
        memories: frozenset[Hashable] = frozenset((node,))
        for tensor in operands:
            memories |= tensor.region.memories
        if isinstance(recorded, list | tuple):
            return [anywhere_in(memories) if type(item) is TensorMeta else None for item in recorded]
        return anywhere_in(memories) if type(recorded) is TensorMeta else None

    @staticmethod
    def _dtype_of(tensor: Tensor) -> Any:
        layout = tensor.region.layout
        return None if layout is None else layout[0]

    def _numbers(self, sizes: Sequence[Any]) -> tuple[int, ...] | None:
        try:
            return tuple(self._sizes.shape(sizes))
        except _core.UnsupportedOp:
            return None

    def _region(self, recorded: TensorMeta, memory: Hashable, is_certain: bool) -> Region:
        numbers = self._numbers((*recorded.shape, *recorded.stride(), recorded.offset))
        if numbers is None or not recorded.is_strided:
            return anywhere_in(frozenset((memory,)))
        rank = len(recorded.shape)
        shape, strides, offset = numbers[:rank], numbers[rank:-1], numbers[-1]
        return in_memory(memory, recorded.dtype, recorded.dtype.size, shape, strides, offset, is_certain)


def _tensors_in(held: Any) -> list[Tensor]:
    if isinstance(held, list):
        return [tensor for item in held for tensor in _tensors_in(item)]
    return [] if held is None else [held]


def _is_dense(region: Region, order: Sequence[int]) -> bool:
    """True if the elements lie densely in this order of the axes."""
    shape, strides = region.shape, region.strides
    plain = contiguous_strides([shape[axis] for axis in order])
    return region.is_empty or all(
        shape[axis] == 1 or strides[axis] == step for axis, step in zip(order, plain, strict=True)
    )


def _strides_of_view(
    shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]
) -> tuple[int, ...] | None:
    """Returns the strides of a view with another shape; None if torch has to copy.

    Axes of the old shape that are dense in memory form a run; each new axis has to be in one run.
    """
    if 0 in shape:
        return tuple(strides) if tuple(shape) == tuple(wanted) else tuple(contiguous_strides(wanted))
    runs: list[tuple[int, int]] = []  # (number of elements, innermost stride), outermost first
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    made: list[int] = []
    left, step = runs.pop() if runs else (1, 1)
    for size in reversed(wanted):
        if size != 1 and left == 1:
            if not runs:
                return None
            left, step = runs.pop()
        if left % size:
            return None
        made.append(step)
        left //= size
        step *= size
    return tuple(reversed(made)) if left == 1 and not runs else None
