"""Splits in-place updates of a state into a functional call, whose result can be rounded, and a store.

::

    index_put_ = index_put_(k, ..)          index_put_ = index_put(k, ..)
                                            copy_ = copy_(k, index_put_)
    matmul(.., index_put_)                  matmul(.., index_put_)

torchao rounds results of calls. The result of ``index_put_`` is the state itself: a converted graph would
store unrounded floats in it, and no integers. Arm's passes compute such a call but do not store the result,
also if the state is an integer counter. Writes to parts of a state (``k[:, 3:4] = x``) are not changed.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from tosaic import _core
from tosaic.fx.quantizer.memory import Roots, attribute_of, is_in_place, memory_of, written_arguments
from tosaic.torch_operators.origins import Where

_COPY = torch.ops.aten.copy_.default


def state_writes(model: GraphModule) -> Iterator[tuple[Node, Node, Node]]:
    """Yields each call that stores a whole float state, with the state and the stored node."""
    for node in model.graph.nodes:
        if node.op == "call_function" and node.target == _COPY:
            state, source = node.args[:2]
            if isinstance(state, Node) and isinstance(source, Node) and _is_state(state):
                yield node, state, source


def states_of(model: GraphModule) -> set[Node]:
    """Returns the float buffers that the graph writes as a whole."""
    return {state for _, state, _ in state_writes(model)}


def with_rounded_writes(model: GraphModule) -> None:
    """Splits the writes of the model's graph.

    A state is changed only if all its writes can be split. It is not changed if it shares memory with
    another buffer, if a call writes a part of it, or if a view of it is read after a later write.
    """
    writes = _Writes(model)
    current: dict[Node, Node] = {}  # state -> the node with its present value
    for node in list(model.graph.nodes):
        if node.op != "call_function":
            _read_current(node, current, states=False)
            continue
        state = writes.followed(node)
        if state is None:
            _read_current(node, current, states=True)
        elif node.target == _COPY:
            _store(node, state, current, writes)
        else:
            _make_functional(node, state, current)
    _drop_overwritten(model)
    model.recompile()


def states_to_round(model: GraphModule) -> set[Node]:
    """Returns the buffers all of whose writes `with_rounded_writes` splits."""
    return _Writes(model).all_followed


def with_one_node_per_state(model: GraphModule) -> dict[str, str | None]:
    """Merges buffers that are the same elements of written memory into the first of them.

    A cache that is registered both by the model and by its layers is such a buffer: torch lists it twice.
    Returns for each name of a merged buffer the name of the first; None if no call reads this name.
    """
    roots = Roots()
    written = {
        memory for node in model.graph.nodes for each in written_arguments(node) for memory in roots.of(each)
    }
    same: dict[object, list[Node]] = {}
    for node in model.graph.nodes:
        tensor = attribute_of(node) if node.op == "get_attr" and memory_of(node) in written else None
        if isinstance(tensor, torch.Tensor) and memory_of(node) is not node:
            layout = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
            same.setdefault((memory_of(node), layout), []).append(node)
    names: dict[str, str | None] = {}
    for first, *others in same.values():
        for node in (first, *others) if others else ():
            names[str(node.target)] = str(first.target) if node.users else names.get(str(node.target))
        for node in others:
            node.replace_all_uses_with(first)
            model.graph.erase_node(node)
    model.recompile()
    return names


def refuse_writes_to_states(model: GraphModule, where: str) -> None:
    """Raises an error if a call writes a float input or buffer other than by ``copy_`` to all of it.

    Raises
    ------
    UnsupportedOp
        With the node of the call that writes.
    """
    roots = Roots()
    sources: dict[object, Node] = {}
    for node in model.graph.nodes:
        value = value_of(node) if node.op in ("placeholder", "get_attr") else None
        if value is not None and value.is_floating_point():
            sources.setdefault(memory_of(node), node)
    for node in model.graph.nodes:
        for written in written_arguments(node):
            source = next((sources[each] for each in roots.of(written) if each in sources), None)
            is_whole = node.target == _COPY and written.op in ("placeholder", "get_attr")
            if source is not None and not is_whole:
                raise Where.of(node, where).error(
                    _core.UnsupportedOp,
                    f"it writes '{source.name}' by a call without a functional form, so that the new numbers "
                    "cannot be rounded",
                    hint="Compute out of place, and store the result with copy_()",
                )


def write_to_states(model: GraphModule) -> None:
    """Redirects a write to a conversion of a buffer to the buffer.

    Arm's passes read 64-bit counters through a conversion to 32 bits, and make calls write to the conversion.
    """
    for node in model.graph.nodes:
        if node.op != "call_function" or node.target != _COPY:
            continue
        written = node.args[0]
        source = written.args[0] if isinstance(written, Node) and written.args else None
        is_conversion = isinstance(written, Node) and "_to_dim_order_copy" in str(written.target)
        if is_conversion and isinstance(source, Node) and source.op == "get_attr":
            node.update_arg(0, source)
    model.recompile()


def _is_state(node: Node) -> bool:
    value = value_of(node)
    return node.op == "get_attr" and (value is None or value.is_floating_point())


def value_of(node: Node) -> torch.Tensor | None:
    """Returns the tensor that a node was traced with, or the buffer that it names."""
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = attribute_of(node)
    return value if isinstance(value, torch.Tensor) else None


class _Writes:
    """The calls of a graph that write in place, and the memory that they may write."""

    def __init__(self, model: GraphModule) -> None:
        nodes = list(model.graph.nodes)
        self._position = {node: at for at, node in enumerate(nodes)}
        self._roots = Roots()
        self._state: dict[Node, Node] = {}  # buffer, or in-place result that is the buffer -> the buffer
        self._writes: dict[object, list[Node]] = {}  # by memory: the calls that may write it
        for node in nodes:
            first = node.args[0] if node.op == "call_function" and node.args else None
            if node.op == "get_attr":
                self._state[node] = node
            elif isinstance(first, Node) and first in self._state and is_in_place(node):
                self._state[node] = self._state[first]
            for each in frozenset().union(*map(self._roots.of, written_arguments(node))):
                self._writes.setdefault(each, []).append(node)
        self._shared = Counter(memory_of(node) for node in nodes if node.op == "get_attr" and self._writes)
        self._calls: dict[object, list[Node]] = {}  # by written memory: the calls whose results may use it
        for node in nodes if self._writes else ():
            if node.op == "call_function":
                for each in self._roots.of(node) & self._writes.keys():
                    self._calls.setdefault(each, []).append(node)
        self._followed = {node for node in nodes if node.op == "get_attr" and self._can_follow(node)}

    @property
    def all_followed(self) -> set[Node]:
        """The states whose reads can become reads of the values that calls store."""
        return self._followed

    def followed(self, node: Node) -> Node | None:
        """Returns the state that a call writes, if its reads can become reads of the stored value."""
        state = self._state.get(node)
        return state if node is not state and state in self._followed else None

    def is_written_after(self, value: Node, call: Node) -> bool:
        """True if a call after this one may write the memory of a value."""
        last = (self._writes[each][-1] for each in self._roots.of(value) if each in self._writes)
        return any(self._position[node] > self._position[call] for node in last)

    def _can_follow(self, state: Node) -> bool:
        memory = memory_of(state)
        writes = self._writes.get(memory, [])
        if not writes or self._shared[memory] != 1:
            return False
        if not all(self._state.get(node) is state and _can_round(node, state) for node in writes):
            return False
        positions = [self._position[write] for write in writes]
        written = set(writes)
        for node in self._calls.get(memory, ()):
            if node in written:
                continue
            last = max((self._position[user] for user in node.users), default=0)
            if bisect(positions, self._position[node]) < bisect_left(positions, last):
                return False  # a write is between a view and the view's last reader
        return True


def _can_round(node: Node, state: Node) -> bool:
    """True for a copy to the state, and for a call that can become a functional one."""
    if node.target == _COPY:
        return True
    target = functional_overload(node)
    if target is None or not _same_kind(node, state):
        return False
    given = [value for each in node.all_input_nodes if (value := value_of(each)) is not None]
    # The functional call promotes dtypes; the in-place call keeps the dtype of the state.
    return all(each.dtype == given[0].dtype or not each.dtype.is_floating_point for each in given)


def functional_overload(node: Node) -> torch._ops.OpOverload | None:
    """Returns the overload that computes the same without writing, or None.

    It has the arguments of the call, apart from ``out``.
    """
    name = str(node.target.name()).removeprefix("aten::").split(".")[0]  # type: ignore[union-attr]
    schema = node.target._schema  # type: ignore[union-attr]
    wanted = [each.name for each in schema.arguments if not each.is_out]
    has_out = len(wanted) < len(schema.arguments)
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") != has_out else None
    if packet is None:
        return None
    overloads = packet.overloads() if has_out else [node.target._overloadname]  # type: ignore[union-attr]
    types = [str(each.type) for each in schema.arguments if not each.is_out]
    for overload in overloads:
        found = getattr(packet, overload, None)
        if found is None or found._schema.is_mutable:
            continue
        arguments = found._schema.arguments
        if [each.name for each in arguments] == wanted and (
            not has_out or [str(each.type) for each in arguments] == types
        ):
            return found  # type: ignore[no-any-return]
    return None


def _same_kind(node: Node, state: Node) -> bool:
    one, two = value_of(node), value_of(state)
    return one is not None and two is not None and one.shape == two.shape and one.dtype == two.dtype


def _read_current(node: Node, current: dict[Node, Node], *, states: bool) -> None:
    """Replaces operands that are results of writes by a state's present value; with `states`, states too."""

    def value(each: Node) -> Node:
        state = each if each in current else each.meta.get("tosaic_state")
        return current[state] if state in current and (states or each is not state) else each

    node.args = torch.fx.node.map_arg(node.args, value)
    node.kwargs = torch.fx.node.map_arg(node.kwargs, value)


def _make_functional(node: Node, state: Node, current: dict[Node, Node]) -> None:
    _read_current(node, current, states=True)
    node.target = functional_overload(node)  # type: ignore[assignment]  # the call keeps its name, by which plans know it
    graph = node.graph
    with graph.inserting_after(node):
        stored = graph.call_function(_COPY, (state, node))
    stored.meta = dict(node.meta)
    node.meta["tosaic_state"] = state
    current[state] = node


def _store(node: Node, state: Node, current: dict[Node, Node], writes: _Writes) -> None:
    """Makes reads of the state after a ``copy_`` read the stored value, which has its own scale."""
    _read_current(node, current, states=True)
    node.update_arg(0, state)
    node.meta.setdefault("val", value_of(state))
    node.meta["tosaic_state"] = state
    source = node.args[1]
    current[state] = node
    if isinstance(source, Node) and source is not state and _same_kind(source, state):
        if writes.is_written_after(source, node):
            with node.graph.inserting_before(node):
                copy = node.graph.call_function(torch.ops.aten.clone.default, (source,))
            copy.meta = {key: each for key, each in source.meta.items() if key != "tosaic_state"}
            node.update_arg(1, copy)
            source = copy
        current[state] = source


def _drop_overwritten(model: GraphModule) -> None:
    """Removes writes that a later write overwrites before any call reads the state."""
    position = {node: at for at, node in enumerate(model.graph.nodes)}
    last: dict[Node, Node] = {}
    read: dict[Node, tuple[int, bool]] = {}  # by state: the last reader's position; True if one is a view
    for node, state, _ in list(state_writes(model)):
        earlier = last.get(state)
        last[state] = node
        if earlier is None:
            continue
        if state not in read:
            others = [user for user in state.users if user.target != _COPY]
            read[state] = max(map(position.__getitem__, others), default=-1), any(map(_is_view, others))
        last_reader, is_viewed = read[state]
        if not is_viewed and last_reader < position[earlier] and not earlier.users:
            model.graph.erase_node(earlier)
    for node in model.graph.nodes:
        node.meta.pop("tosaic_state", None)


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)
