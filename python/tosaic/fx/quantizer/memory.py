"""The memory of a graph's nodes: which calls write in place, and which memory they may write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node
from torch.fx.node import map_arg


def _schema(node: Node) -> torch.FunctionSchema | None:
    return getattr(node.target, "_schema", None) if node.op == "call_function" else None


def written_arguments(node: Node) -> Iterator[Node]:
    """Yields the arguments that a call writes."""
    schema = _schema(node)
    if schema is None or not schema.is_mutable:
        return
    for position, each in enumerate(schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            given = node.args[position] if position < len(node.args) else node.kwargs.get(each.name)
            yield from (item for item in _listed(given) if isinstance(item, Node))


def _listed(value: object) -> Iterable[object]:
    return value if isinstance(value, list | tuple) else (value,)


def is_in_place(node: Node) -> bool:
    """True if the call writes its first argument alone, and returns it."""
    schema = _schema(node)
    if schema is None or not schema.is_mutable or len(schema.returns) != 1 or not node.args:
        return False
    returned = schema.returns[0].alias_info
    return returned is not None and returned.is_write and list(written_arguments(node)) == list(node.args[:1])


def _sharing(node: Node) -> list[Node]:
    """Returns the operands whose memory the results of a call may share."""
    if node.op != "call_function" or not node.all_input_nodes:
        return []
    if is_in_place(node):
        return [each for each in node.args[:1] if isinstance(each, Node)]
    schema = _schema(node)
    if schema is None:
        return node.all_input_nodes
    name = str(node.target.name())  # type: ignore[union-attr]
    if not (
        any(each.alias_info is not None for each in schema.returns)
        or "unsafe_" in name
        or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    ):
        return []
    # Calls such as reshape and contiguous may return views of an operand, which their schemas do not say.
    made: dict[Node, torch.Tensor] = {}
    try:
        with unset_fake_temporarily(), torch.no_grad():
            args, kwargs = map_arg((node.args, node.kwargs), lambda each: _without_data(each, made))
            results = node.target(*args, **kwargs)  # type: ignore[operator]
        storages = {each.untyped_storage()._cdata for each in _tensors_in(results)}
    except Exception:  # of any type: torch may have no kernel for tensors without data
        return node.all_input_nodes
    return [each for each, tensor in made.items() if tensor.untyped_storage()._cdata in storages]


def _without_data(node: Node, made: dict[Node, torch.Tensor]) -> Any:
    """Returns a meta tensor of a node's shape and strides, or the number that a node computes from sizes."""
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = attribute_of(node)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _number(value)
    if not isinstance(value, torch.Tensor):
        raise LookupError(node.name)
    if node not in made:
        sizes, strides = ([_number(each) for each in axes] for axes in (value.shape, value.stride()))
        made[node] = torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
    return made[node]


def _number(size: Any) -> Any:
    """Returns the number with which torch traced a size. ``int`` would bind a symbolic size to it."""
    return size if isinstance(size, int | float | bool) else size.node.hint


def _tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    for each in _listed(tree):
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors_in(each)


def attribute_of(node: Node) -> Any:
    """Returns the attribute that a ``get_attr`` node reads, or None."""
    found: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    return found


def memory_of(node: Node) -> object:
    """Returns a key that is equal for buffers that share memory."""
    if node.op == "get_attr":
        found = attribute_of(node)
        if isinstance(found, torch.Tensor) and found.layout == torch.strided and found.numel():
            with suppress(RuntimeError):  # a tensor subclass may have no storage
                return found.untyped_storage().data_ptr()
    return node


class Roots:
    """The memory that each node's result may use: of a buffer or an input, or of a node that allocates it.

    Parameters
    ----------
    is_cut : callable, optional
        Called with a producer and its user: true if the user reads a new tensor instead of the producer's.
    same : Roots, optional
        The roots of the same graph, from which the operands that share memory with results are reused.
    """

    def __init__(
        self, is_cut: Callable[[Node, Node], bool] = lambda *_: False, same: Roots | None = None
    ) -> None:
        self._is_cut = is_cut
        self._sources: dict[Node, list[Node]] = {} if same is None else same._sources
        self._found: dict[Node, frozenset[object]] = {}

    def of(self, node: Node) -> frozenset[object]:
        """Returns the memory that the result of a node may have."""
        todo = [node]
        while todo:
            at = todo[-1]
            missing = [] if at in self._found else self._missing(at)
            if missing:
                todo += missing
                continue
            todo.pop()
            if at not in self._found:
                self._found[at] = self._find(at)
        return self._found[node]

    def read(self, producer: Node, user: Node) -> frozenset[object]:
        """Returns the memory that a user of a node may see."""
        return frozenset([(producer, user)]) if self._is_cut(producer, user) else self.of(producer)

    def _missing(self, node: Node) -> list[Node]:
        """Returns operands to resolve before a node, without recursion: chains of views may be very long."""
        if node not in self._sources:
            self._sources[node] = _sharing(node)
        found = self._found
        return [each for each in self._sources[node] if each not in found and not self._is_cut(each, node)]

    def _find(self, node: Node) -> frozenset[object]:
        sources = self._sources[node]
        if not sources:
            return frozenset([memory_of(node)])
        return frozenset().union(*(self.read(source, node) for source in sources))
