"""Which memory the results of torch's calls share: each call is run, and storages are compared.

Whether ``reshape``, ``contiguous``, ``to``, ``flatten`` or ``einsum`` return their operand, a view or a copy
depends on shapes, strides and options, and some schemas do not declare views (``unsafe_split``). So the
overload is called on tensors with the traced shapes and dtypes, and with the strides and offsets that eager
computes. The tensors are zeros on the CPU. They have no data (device ``meta``) if they are very large, if the
operator is a recurrent layer, or if one operand has no elements: kernels of torch may divide by its sizes,
which ends the process.

Some calls are not run: in-place calls that return their operand; pointwise operators that torch implements in
one kernel, contractions, and batch norms and 2-d pools of a dense operand (their results are new memory with
the recorded strides); and operators of other libraries, whose schemas declare what results share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from tosaic import _core
from tosaic.base.dim_order import contiguous_strides
from tosaic.fx.reading.shapes import Sizes
from tosaic.torch_operators import contraction, normalization, pooling, recurrent
from tosaic.torch_operators.aliasing import Tensor
from tosaic.torch_operators.memory_regions import Region, anywhere_in, in_memory
from tosaic.torch_operators.operator_row import OperatorRow

_MOST_BYTES = 1 << 26  # a call with larger operands runs without data
_OF_TORCH = frozenset({"aten", "prims", "quantized_decomposed", "torchao", "pt2e_quant", "dim_order_ops"})
# These take long to compute. Their results are new and have the recorded strides in every layout of operands.
_CONTRACTIONS = frozenset(contraction.ROWS.values())
# So do the results of these, if the operand is dense.
_OF_DENSE = frozenset(
    {normalization.ROWS["batch_norm"], pooling.ROWS["max_pool2d"], pooling.ROWS["avg_pool2d"]}
)
_WITHOUT_DATA = frozenset(recurrent.ROWS.values())


class ExecutedMemory:
    """The memory of the nodes of one graph of torch.

    Parameters
    ----------
    sizes : Sizes
    held : callable
        Returns the tensor that a placeholder or a ``get_attr`` node reads; None for inputs.
    """

    def __init__(self, sizes: Sizes, held: Callable[[Node], Any]) -> None:
        self._sizes = sizes
        self._held = held

    def of_source(self, node: Node) -> Region | None:
        """Returns the memory of a placeholder or an attribute; weights may share a storage."""
        region = region_of_weight(self._held(node))
        if region is not None:
            return region
        recorded = node.meta.get("val")
        return self._recorded(recorded, node) if isinstance(recorded, torch.Tensor) else None

    def of_results(self, node: Node, row: OperatorRow, tensors: Callable[[Any], Any]) -> Any:
        """Returns the memory of the results of a call: see `tosaic.torch_operators.aliasing.Memory`."""
        args = row.complete(node.args, node.kwargs)
        if row.returns_operand:
            return tensors(args[0])
        recorded = node.meta.get("val")
        target = node.target
        operands = {leaf: tensors(leaf) for leaf in node.all_input_nodes}
        if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _OF_TORCH:
            return self._declared(node, row, operands)
        if self._is_new(node, row, operands):
            return self._fresh(recorded, node)
        calls = _Calls(node, row, operands, self._sizes)
        results = calls.run()
        if results is None:
            return self._unknown(recorded, node, operands)
        made = results if isinstance(results, list | tuple) else [results]
        shown = recorded if isinstance(recorded, list | tuple) else [recorded]
        fresh: dict[int, Hashable] = {}
        found: list[Any] = []
        for index, result in enumerate(made):
            as_recorded = shown[index] if index < len(shown) else None
            if not isinstance(result, torch.Tensor) or not isinstance(as_recorded, torch.Tensor):
                found.append(None)
                continue
            found.append(self._found(result, as_recorded, calls, fresh, (node, index)))
        return found if isinstance(results, list | tuple) else found[0]

    def _is_new(self, node: Node, row: OperatorRow, operands: Mapping[Node, Any]) -> bool:
        """True if the result is known to be new memory with the recorded strides, so the call is not run."""
        needs_dense = row.emit in _OF_DENSE
        if not (needs_dense or row.emit in _CONTRACTIONS or _is_one_kernel(node.target)):
            return False
        if not all(self._is_as_recorded(leaf, operands[leaf]) for leaf in operands):
            return False
        return not needs_dense or _is_dense(operands[node.all_input_nodes[0]].region)

    def _found(
        self, result: torch.Tensor, recorded: Any, calls: _Calls, fresh: dict[int, Hashable], name: Hashable
    ) -> Any:
        """Returns what a result of the run is: an operand, a view, or new memory."""
        same = calls.operand_that_is(result)
        storage = result.untyped_storage()._cdata
        memory = calls.memory_of.get(storage)
        if same is not None:
            if memory is None or memory != same.region.memory:  # the call replaced the operand's storage
                return same, anywhere_in(same.region.memories | {name if memory is None else memory})
            region = _region(result, memory)
            return same if region == same.region else (same, region)
        if memory is not None:
            return _region(result, memory)
        memory = fresh.setdefault(storage, name)
        try:
            sizes = tuple(self._sizes.shape(recorded.shape))
        except _core.UnsupportedOp:  # a size depends on data
            return anywhere_in(frozenset((memory,)))
        if tuple(result.shape) == sizes:
            return _region(result, memory)
        return self._recorded(recorded, memory)  # the size depends on data

    def _declared(self, node: Node, row: OperatorRow, operands: Mapping[Node, Any]) -> Any:
        """Returns the memory of results of a custom operator: new, or unknown if its schema has aliases."""
        recorded = node.meta.get("val")
        return self._unknown(recorded, node, operands) if row.shares else self._fresh(recorded, node)

    def _fresh(self, recorded: Any, node: Node) -> Any:
        if isinstance(recorded, list | tuple):
            return [
                self._recorded(item, (node, index)) if isinstance(item, torch.Tensor) else None
                for index, item in enumerate(recorded)
            ]
        return self._recorded(recorded, node) if isinstance(recorded, torch.Tensor) else None

    @staticmethod
    def _unknown(recorded: Any, node: Node, operands: Mapping[Node, Any]) -> Any:
        memories: frozenset[Hashable] = frozenset((node,))
        for tensor in _tensors_in(list(operands.values())):
            memories |= tensor.region.memories
        if isinstance(recorded, list | tuple):
            return [anywhere_in(memories) if isinstance(item, torch.Tensor) else None for item in recorded]
        return anywhere_in(memories) if isinstance(recorded, torch.Tensor) else None

    def _recorded(self, recorded: torch.Tensor, memory: Hashable) -> Region:
        try:
            shape, strides = self._sizes.shape(recorded.shape), self._sizes.shape(recorded.stride())
            offset = int(self._sizes.value(recorded.storage_offset()))
        except (_core.UnsupportedOp, NotImplementedError, RuntimeError):  # a size depends on data, or sparse
            return anywhere_in(frozenset((memory,)))
        return in_memory(memory, _dtype(recorded), recorded.element_size(), shape, strides, offset)

    def _is_as_recorded(self, node: Node, tensor: Any) -> bool:
        recorded = node.meta.get("val")
        if tensor is None:
            return True
        if not isinstance(tensor, Tensor) or not isinstance(recorded, torch.Tensor):
            return False
        try:
            return tensor.region.layout is not None and tensor.region.strides == tuple(
                self._sizes.shape(recorded.stride())
            )
        except _core.UnsupportedOp:
            return False


def region_of_weight(held: Any) -> Region | None:
    """Returns the memory of a weight; None for other values and for tensors without a storage."""
    if isinstance(held, torch.Tensor) and held.layout is torch.strided:
        with suppress(NotImplementedError, RuntimeError):  # a tensor subclass may have no storage
            return _region(held, ("storage", held.untyped_storage()._cdata))
    return None


class _Calls:
    """Runs a call on operands with the same memory layout as in the program.

    Attributes
    ----------
    memory_of : dict of int to Hashable
        By storage of an operand in the run: its memory in the program.
    """

    def __init__(self, node: Node, row: OperatorRow, operands: Mapping[Node, Any], sizes: Sizes) -> None:
        self._node, self._row, self._operands, self._sizes = node, row, operands, sizes
        self.memory_of: dict[int, Hashable] = {}
        self._storages: dict[Hashable, torch.UntypedStorage] = {}
        self._made: dict[int, Tensor] = {}  # by id of the torch tensor: the operand
        self._alive: list[torch.Tensor] = []

    def run(self) -> Any:
        """Returns the results; None if the call cannot be run."""
        leaves = [each for held in self._operands.values() for each in _tensors_in(held)]
        if any(each.region.layout is None for each in leaves):
            return None
        needed: dict[Hashable, int] = {}
        for each in leaves:
            region = each.region
            needed[region.memory] = max(needed.get(region.memory, 0), _end(region))
        is_large = sum(needed.values()) > _MOST_BYTES
        is_empty = any(each.region.is_empty for each in leaves)
        has_data = not is_large and not is_empty and self._row.emit not in _WITHOUT_DATA
        devices = ["cpu", "meta"] if has_data else ["meta"]
        for device in devices:
            try:
                with unset_fake_temporarily(), torch.no_grad(), torch.random.fork_rng(devices=[]):
                    return self._run_on(device, needed)
            except Exception:  # of any type, since zeros may be invalid operands
                continue
        return None

    def _run_on(self, device: str, needed: Mapping[Hashable, int]) -> Any:
        self.memory_of, self._made, self._alive = {}, {}, []
        self._storages = {
            memory: torch.zeros(size, dtype=torch.uint8, device=device).untyped_storage()
            for memory, size in needed.items()
        }
        self.memory_of = {storage._cdata: memory for memory, storage in self._storages.items()}
        held = {node: _mapped(tensors, self._tensor) for node, tensors in self._operands.items()}

        def argument(leaf: Any) -> Any:
            if isinstance(leaf, Node):
                found = held.get(leaf)
                return self._number(leaf) if found is None else found
            return self._sizes.value(leaf)

        target: Any = self._node.target
        return target(
            *_mapped(tuple(self._node.args), argument), **_mapped(dict(self._node.kwargs), argument)
        )

    def _number(self, node: Node) -> Any:
        """Returns the number that a node computes from sizes."""
        recorded = node.meta.get("val")
        if isinstance(recorded, torch.Tensor):
            raise LookupError(node.name)
        return _mapped(recorded, self._sizes.value)

    def _tensor(self, tensor: Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        known = next((each for each in self._alive if self._made[id(each)] is tensor), None)
        if known is not None:
            return known
        region = tensor.region
        assert region.layout is not None
        (dtype, *flags), offset, _ = region.layout
        storage = self._storages[region.memory]
        made = torch.empty(0, dtype=dtype, device=storage.device).set_(
            storage, offset, region.shape, region.strides
        )
        made = made.conj() if "conj" in flags else made
        made = torch._neg_view(made) if "neg" in flags else made
        self._made[id(made)] = tensor
        self._alive.append(made)
        return made

    def operand_that_is(self, result: torch.Tensor) -> Tensor | None:
        """Returns the operand whose tensor object is the result; None if the result is another object."""
        return self._made.get(id(result)) if any(result is each for each in self._alive) else None


def _region(tensor: torch.Tensor, memory: Any) -> Region:
    """Returns the memory of a tensor."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return in_memory(
        memory, _dtype(tensor), tensor.element_size(), shape, strides, int(tensor.storage_offset())
    )


def _dtype(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns the dtype with the flags of lazy conjugation and negation, which change what the bits mean."""
    conj, neg = tensor.is_conj(), tensor.is_neg()
    if not conj and not neg:
        return (tensor.dtype,)
    return (tensor.dtype, *(["conj"] if conj else []), *(["neg"] if neg else []))


def _end(region: Region) -> int:
    if region.is_empty:
        return region.unit * region.offset
    last = region.offset + sum(
        (size - 1) * stride for size, stride in zip(region.shape, region.strides, strict=True)
    )
    return (last + 1) * region.unit


def _is_one_kernel(target: Any) -> bool:
    """True for a pointwise operator whose result is new memory with the recorded strides."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return (
        torch.Tag.pointwise in target.tags
        and not target._schema.is_mutable
        and not any(result.alias_info is not None for result in target._schema.returns)
        and not has(target.name(), "CompositeImplicitAutograd")
    )


def _is_dense(region: Region) -> bool:
    """True for a tensor whose elements lie densely, row-major or channels last."""
    rank = len(region.shape)
    orders = [range(rank), (0, *range(2, rank), 1)] if rank in (4, 5) else [range(rank)]
    for order in orders:
        steps = contiguous_strides([region.shape[axis] for axis in order])
        if all(region.strides[axis] == step for axis, step in zip(order, steps, strict=True)):
            return True
    return False


def _mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Returns arguments with each leaf replaced. Torch's own function would leave reference cycles."""
    if isinstance(tree, list | tuple):
        return (
            type(tree)(_mapped(item, function) for item in tree)
            if type(tree) in (list, tuple)
            else [_mapped(item, function) for item in tree]
        )
    if isinstance(tree, dict):
        return {key: _mapped(item, function) for key, item in tree.items()}
    return function(tree)


def _tensors_in(tree: Any) -> list[Tensor]:
    if isinstance(tree, list):
        return [tensor for item in tree for tensor in _tensors_in(item)]
    return [] if tree is None else [tree]
