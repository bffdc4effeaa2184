"""Gives calls that update a state in place a result that can be rounded before it is stored.

::

    index_put_ = index_put_(k, ..)          index_put_ = index_put(k, ..)
                                            copy_ = copy_(k, index_put_)
    matmul(.., index_put_)                  matmul(.., index_put_)

torchao rounds results of calls. The result of ``index_put_`` is the state itself, which has the unrounded
numbers then, and integers cannot store it. Arm's passes compute such a call and store nothing, also for a
counter of integers. Writes to parts of a state (``k[:, 3:4] = x``) stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

__all__ = ["state_writes", "states_of", "value_of", "with_rounded_writes", "write_to_states"]

_COPY = torch.ops.aten.copy_.default


def state_writes(model: GraphModule) -> Iterator[tuple[Node, Node, Node]]:
    """Yields each call that stores a whole float state: the call, the state, and what is stored."""
    for node in model.graph.nodes:
        if node.op == "call_function" and node.target == _COPY:
            state, source = node.args[:2]
            if isinstance(state, Node) and isinstance(source, Node) and _is_state(state):
                yield node, state, source


def states_of(model: GraphModule) -> set[Node]:
    """Returns the float buffers that the graph writes as a whole."""
    return {state for _, state, _ in state_writes(model)}


def with_rounded_writes(model: GraphModule) -> None:
    """Makes the changes in the graph of the model."""
    position = {node: at for at, node in enumerate(model.graph.nodes)}
    for node in list(model.graph.nodes):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
            continue
        state = _written(node)
        if state is None:
            continue
        if node.target == _COPY:
            node.meta.setdefault("val", value_of(state))
            _read_source(node, position)
        else:
            _make_functional(node, state, position)
    _drop_overwritten(model)
    model.recompile()


def write_to_states(model: GraphModule) -> None:
    """Writes to a conversion of a buffer become writes to the buffer.

    Arm's passes read counters of 64 bits through a conversion to 32 bits, and let calls write to that.
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
        found = node.graph.owning_module
        for name in str(node.target).split("."):
            found = getattr(found, name, None)
        value = found
    return value if isinstance(value, torch.Tensor) else None


def _written(node: Node) -> Node | None:
    """Returns the state that a call writes as a whole: its first argument, or that of a call before it."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable or not schema.arguments:
        return None
    alias = schema.arguments[0].alias_info
    others = any(each.alias_info is not None and each.alias_info.is_write for each in schema.arguments[1:])
    if alias is None or not alias.is_write or others:
        return None
    first = node.args[0]
    state = first.meta.get("tosaic_state", first) if isinstance(first, Node) else None
    return state if isinstance(state, Node) and state.op == "get_attr" else None


def _functional(node: Node) -> torch._ops.OpOverload | None:
    """Returns the overload that computes the same and writes nothing, or None."""
    name = str(node.target.name()).removeprefix("aten::").split(".")[0]  # type: ignore[union-attr]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    found = getattr(packet, node.target._overloadname, None)  # type: ignore[union-attr]
    if found is None or found._schema.is_mutable:
        return None
    names = [each.name for each in found._schema.arguments]
    return found if names == [each.name for each in node.target._schema.arguments] else None  # type: ignore[union-attr]


def _same_kind(node: Node, state: Node) -> bool:
    one, two = value_of(node), value_of(state)
    return one is not None and two is not None and one.shape == two.shape and one.dtype == two.dtype


def _make_functional(node: Node, state: Node, position: dict[Node, int]) -> None:
    target = _functional(node)
    if target is None or not _same_kind(node, state):
        return
    graph = node.graph
    node.target = target  # the call keeps its name, by which plans know it
    node.meta["tosaic_state"] = state
    with graph.inserting_after(node):
        stored = graph.call_function(_COPY, (state, node))
    stored.meta = {key: found for key, found in node.meta.items() if key != "tosaic_state"}
    position[stored] = position[node]
    _read_instead(state, node, position[node], position, {stored, node})


def _read_source(node: Node, position: dict[Node, int]) -> None:
    """What is read from the state after the write is what was stored, with its scale."""
    state, source = node.args[:2]
    if isinstance(state, Node) and "tosaic_state" in state.meta:
        node.update_arg(0, state.meta["tosaic_state"])
        state = node.args[0]
    if isinstance(state, Node) and isinstance(source, Node) and _same_kind(source, state):
        node.replace_all_uses_with(source)
        _read_instead(state, source, position[node], position, {node})


def _read_instead(
    state: Node, source: Node, after: int, position: dict[Node, int], besides: set[Node]
) -> None:
    for user in list(state.users):
        is_write = user.target == _COPY and user.args[0] is state
        if user not in besides and user.op == "call_function" and position[user] > after:
            if is_write and user.args[1] is not state:
                continue
            if _written(user) is not None and user.args[0] is state:
                source.meta.setdefault("tosaic_state", state)
            user.replace_input_with(state, source)


def _drop_overwritten(model: GraphModule) -> None:
    """Removes writes that a later one replaces before anybody can read the state."""
    position = {node: at for at, node in enumerate(model.graph.nodes)}
    last: dict[Node, Node] = {}
    for node, state, _ in list(state_writes(model)):
        earlier = last.get(state)
        last[state] = node
        if earlier is None:
            continue
        others = [user for user in state.users if user not in (node, earlier) and user.target != _COPY]
        is_read = any(position[user] > position[earlier] for user in others) or any(map(_is_view, others))
        if not is_read and not earlier.users:
            model.graph.erase_node(earlier)
    for node in model.graph.nodes:
        node.meta.pop("tosaic_state", None)


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)
