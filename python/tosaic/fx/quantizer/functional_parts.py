"""Replaces in-place writes by functional calls if a quantize node would separate them from later readers.

::

    y = linear(x)                     y = linear(x)
    part = y[:, :2]                   part = y[:, :2]
    relu_ = relu_(part)               relu_ = relu(part)
    z = linear(y)                     after_relu_ = slice_scatter(y, relu_, 1, 0, 2)
                                      z = linear(after_relu_)

torchao puts a quantize node after ``y``, and the second ``linear`` reads the result of that node: a separate
tensor, which ``relu_`` does not write. Without writes, each reader has an edge to the value that it reads.
Inputs and buffers get their new values by ``copy_`` at the end of the graph.

Writes to memory that is not an input stay if all of them use one tensor. So do writes to a buffer if
`tosaic.fx.quantizer.state_writes` can round each of them.

Bounds such as ``0, 2`` are numbers. If the axis has a symbolic size, they are right only for `sizes`.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tosaic.fx.quantizer.memory import is_in_place, written_arguments
from tosaic.fx.quantizer.module_graph import module_reader
from tosaic.fx.quantizer.state_writes import functional_overload, states_to_round, value_of
from tosaic.torch_operators.aliasing import Aliases, Conflict
from tosaic.torch_operators.written_memory import BEHIND_ALL, Write, WrittenMemory

PART_OF = "tosaic_part_of"
"""Key of a node's metadata: the name of the in-place call that also computed this node's value."""

_ATEN = torch.ops.aten


def with_functional_parts(model: GraphModule, sizes: Mapping[tuple[int, int], int] | None = None) -> bool:
    """Replaces the writes of the model's graph. A graph with a write of no functional form is not changed.

    Parameters
    ----------
    model : GraphModule
    sizes : mapping, optional
        By input and axis, numbers that symbolic sizes have. None: refuse to write bounds in a symbolic axis.

    Returns
    -------
    bool
        True if the graph is right for these sizes only.
    """
    nodes = [node for node in model.graph.nodes if node.op != "call_module"]
    if not any(any(written_arguments(node)) for node in nodes):
        return False
    importer, _ = module_reader(model, [node for node in nodes if node.op == "placeholder"], sizes)
    importer.prepare(nodes, {node for node in nodes if node.op == "get_attr"})
    aliases = importer.aliases
    if aliases is None:
        return False
    inputs = (memory for memory in aliases.written if aliases.first_in(memory).node.op == "placeholder")
    needed = aliases.written_through_views().union(inputs)
    wanted = needed | aliases.written_through_views(overlapping=False) | _not_rounded(model, aliases)
    for memories in dict.fromkeys(map(frozenset, (wanted, needed))):
        if not memories:
            continue
        change = _Functional(model, nodes, aliases, memories, is_fixed=sizes is not None)
        try:
            return change.make()
        except _RefusedError:
            change.undo()
        finally:
            model.recompile()
    return False


def _not_rounded(model: GraphModule, aliases: Aliases) -> set[Hashable]:
    """Returns the memories of written buffers whose writes cannot be rounded one by one."""
    buffers = {
        memory: node for memory in aliases.written if (node := aliases.first_in(memory).node).op == "get_attr"
    }
    rounded = states_to_round(model) if buffers else set()
    return {memory for memory, node in buffers.items() if node not in rounded}


class _RefusedError(Exception):
    """A write has no functional form here."""


class _Functional:
    """The nodes of a graph, rewritten so that each reads the values of its operands at its place."""

    def __init__(
        self,
        model: GraphModule,
        nodes: Sequence[Node],
        aliases: Aliases,
        chosen: Set[Hashable],
        *,
        is_fixed: bool,
    ) -> None:
        self._nodes, self._aliases, self._chosen = nodes, aliases, chosen
        self._env: dict[Any, Any] = {node: node for node in nodes} | _results(nodes)
        self._memory = WrittenMemory(aliases, self._env)
        self._before: list[tuple[Node, Any, Any, Any, Any]] = []
        self._moves = _NodeMoves(model, is_fixed=is_fixed)

    def make(self) -> bool:
        """Makes the changes; returns True if they are right for some sizes only."""
        for node in self._nodes:
            self._moves.before = node
            self._memory.refresh(node.all_input_nodes, self._aliases.position(node), self)
            written = [each for each in written_arguments(node) if self._is_chosen(each)]
            self._before.append((node, node.target, node.args, node.kwargs, node.meta.get("val")))
            node.args = map_arg(node.args, self._value)
            node.kwargs = map_arg(node.kwargs, self._value)
            if node.op == "output":
                self._write_back()
            elif written:
                self._make_functional(node, written[0])
            elif (result := _result_of(node)) is not None:
                self._env[node] = self._env[result[0]][result[1]]
        for node in reversed(self._nodes):
            if node.op == "call_function" and not node.users and self._is_chosen(node):
                node.graph.erase_node(node)
        return self._moves.has_fixed

    def _value(self, node: Node) -> Any:
        value = self._env.get(node, node)
        return node if isinstance(value, list) else value

    def undo(self) -> None:
        """Restores the graph."""
        for node, target, args, kwargs, value in self._before:
            node.target, node.args, node.kwargs = target, args, kwargs
            if value is not None:
                node.meta["val"] = value
        self._moves.undo()

    def moves_of(self, names: Iterator[str], write: Any) -> _NodeMoves:
        """Returns the builder of nodes with these names, which replace a call that wrote."""
        self._moves.names, self._moves.write = names, write
        return self._moves

    def refuse_read(self, write: Write, conflict: Conflict) -> Exception:
        """Returns the error for a read after a write whose elements are not known."""
        return _RefusedError(f"{write.node.name}: {conflict.what}")

    def _is_chosen(self, node: Any) -> bool:
        members = self._aliases.members_of(node)
        return any(member.tensor.region.memories & self._chosen for member in members)

    def _make_functional(self, node: Node, operand: Node) -> None:
        before, has_out = value_of(node), node.kwargs.get("out") is operand
        if before is None or not (is_in_place(node) or has_out):
            raise _RefusedError(node.name)
        if node.target == _ATEN.copy_.default:
            self._copy(node, before)
            self._memory.note(node, operand, node)
            return
        target = functional_overload(node)
        if target is None:
            raise _RefusedError(node.name)
        node.target = target
        node.kwargs = {name: each for name, each in node.kwargs.items() if name != "out"}
        made = self._moves.value_of_call(target, node.args, node.kwargs)
        if has_out and made.shape != before.shape:
            raise _RefusedError(node.name)
        node.meta["val"] = made
        value = node
        if made.dtype != before.dtype:  # in place, the result has the dtype of the operand
            moves = self.moves_of(iter([f"{node.name}_converted"]), node)
            value = moves.call(_ATEN._to_copy.default, (node,), {"dtype": before.dtype}, after=node)
            value.meta[PART_OF] = node.name
        self._env[node] = value
        self._memory.note(node, operand, value)

    def _copy(self, node: Node, before: torch.Tensor) -> None:
        """Replaces ``copy_`` by a call that copies the source, with the shape and dtype of the target."""
        source: Any = node.args[1]
        value = value_of(source) if isinstance(source, Node) else None
        if value is None:
            raise _RefusedError(node.name)
        if value.shape != before.shape:
            moves = self.moves_of(iter([f"{node.name}_expanded"]), node)
            source = moves.call(_ATEN.expand_as.default, (source, node.args[0]))
        node.target = _ATEN.clone.default if value.dtype == before.dtype else _ATEN._to_copy.default
        node.args, node.kwargs = (source,), {} if value.dtype == before.dtype else {"dtype": before.dtype}
        node.meta["val"] = self._moves.value_of_call(node.target, node.args, node.kwargs)

    def _write_back(self) -> None:
        sources = [node for node in self._nodes if self._aliases.is_source(node) and self._is_chosen(node)]
        self._memory.refresh(sources, BEHIND_ALL, self)
        for node in sources:  # sources of an exported program share no memory
            if self._env[node] is not node:
                moves = self.moves_of(iter([f"{node.name}_stored"]), self._env[node])
                moves.call(_ATEN.copy_.default, (node, self._env[node]))


class _NodeMoves:
    """Adds nodes of torch that move elements.

    Attributes
    ----------
    before : Node
        The node in front of which they are added.
    names : iterator of str
    write : Node
        The call that they belong to.
    has_fixed : bool
        True if a number was written in place of a symbolic size.
    """

    def __init__(self, model: GraphModule, *, is_fixed: bool) -> None:
        self._model = model
        self._is_fixed = is_fixed
        self.has_fixed = False
        self._made: list[Node] = []
        self._places: list[str] = []
        self.before: Node = next(iter(model.graph.nodes))
        self.names: Iterator[str] = iter(())
        self.write: Node = self.before

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        """Reshapes `x`."""
        self._require_numbers(x)
        return self.call(_ATEN.reshape.default, (x, list(shape)))

    def permute(self, x: Node, perm: Sequence[int]) -> Node:
        """Axis i of the result is axis ``perm[i]``."""
        return self.call(_ATEN.permute.default, (x, list(perm)))

    def expand(self, x: Node, shape: Sequence[int]) -> Node:
        """Repeats axes of extent 1."""
        self._require_numbers(x, self.write)
        return self.call(_ATEN.expand.default, (x, list(shape)))

    def slice(self, x: Node, axis: int, start: int, end: int, step: int = 1) -> Node:
        """Takes every `step`-th element of [start, end) on an axis."""
        self._require_numbers(x, axis=axis)
        return self.call(_ATEN.slice.Tensor, (x, axis, start, end, step))

    def slice_scatter(self, x: Node, source: Node, axis: int, start: int, end: int, step: int) -> Node:
        """Replaces the elements that `slice` takes."""
        self._require_numbers(x, source, axis=axis)
        return self.call(_ATEN.slice_scatter.default, (x, source, axis, start, end, step))

    def take(self, x: Node, axis: int, indices: Any) -> Node:
        """Selects the positions of an axis that `indices` lists."""
        self._require_numbers(x, axis=axis)
        return self.call(_ATEN.index_select.default, (x, axis, self._constant(indices)))

    def put(self, x: Node, indices: Any, source: Node) -> Node:
        """Replaces elements of an `x` with one axis."""
        self._require_numbers(x, source)
        return self.call(_ATEN.index_put.default, (x, [self._constant(indices)], source))

    def _require_numbers(self, *nodes: Node, axis: int | None = None) -> None:
        """Records that a number replaces a symbolic size of these nodes (or of one axis), or refuses it."""
        shapes = [value.shape for value in map(value_of, nodes) if value is not None]
        sizes = [size for shape in shapes for size in (shape if axis is None else shape[axis : axis + 1])]
        if any(isinstance(size, torch.SymInt) for size in sizes):
            if not self._is_fixed:
                raise _RefusedError(self.write.name)
            self.has_fixed = True

    def call(self, target: Any, args: tuple[Any, ...], kwargs: Any = None, after: Node | None = None) -> Node:
        """Adds a call."""
        graph = self._model.graph
        with graph.inserting_after(after) if after is not None else graph.inserting_before(self.before):
            made = graph.create_node("call_function", target, args, kwargs or {}, name=next(self.names))
        made.meta = {key: each for key, each in self.write.meta.items() if key != "val"}
        self._made.append(made)
        made.meta["val"] = self.value_of_call(target, args, kwargs or {})
        return made

    def value_of_call(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Returns the fake tensor that a call returns."""
        values = [value_of(each) for each in _nodes_in(args)]
        mode = detect_fake_mode([each for each in values if isinstance(each, FakeTensor)])
        if mode is None:
            raise _RefusedError(str(target))

        def operand(node: Node) -> Any:
            value = value_of(node)
            if value is None:
                raise _RefusedError(node.name)
            return value if isinstance(value, FakeTensor) else mode.from_tensor(value)

        try:
            with mode, torch.no_grad():
                return target(*map_arg(args, operand), **map_arg(kwargs, operand))
        except RuntimeError as error:  # torch cannot infer the result
            raise _RefusedError(str(target)) from error

    def undo(self) -> None:
        """Removes all nodes."""
        for node in reversed(self._made):
            self._model.graph.erase_node(node)
        for name in self._places:
            delattr(self._model, name)

    def _constant(self, indices: Any) -> Node:
        name = f"_tosaic_places_{len(self._places)}"
        while hasattr(self._model, name):
            name += "_"
        places = torch.as_tensor(np.asarray(indices, np.int64))
        self._model.register_buffer(name, places, persistent=False)
        self._places.append(name)
        with self._model.graph.inserting_before(self.before):
            made = self._model.graph.get_attr(name)
        self._made.append(made)
        mode = detect_fake_mode([value_of(self.write)])
        made.meta["val"] = places if mode is None else mode.from_tensor(places)
        return made


def _result_of(node: Node) -> tuple[Node, int] | None:
    """Returns, for a getitem node, the call with several results and the index; None for other nodes."""
    if node.target is not operator.getitem:
        return None
    call, index = node.args
    return (call, index) if isinstance(call, Node) and isinstance(index, int) else None


def _results(nodes: Sequence[Node]) -> dict[Node, list[Node | None]]:
    """Returns, for each call with several results, the first getitem node of each result, or None."""
    found: dict[Node, list[Node | None]] = {}
    for node in nodes:
        if (result := _result_of(node)) is not None:
            call, index = result
            held = found.setdefault(call, [])
            held += [None] * (index + 1 - len(held))
            held[index] = held[index] or node
    return found


def _nodes_in(tree: Any) -> list[Node]:
    found: list[Node] = []
    map_arg(tree, found.append)
    return found
