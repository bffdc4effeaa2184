"""Refuses writes that are not seen where the model sees them, because quantize nodes make new tensors.

::

    y -> view -> mul_                       y -> q/dq -> view -> mul_
    y ---------> linear                     y -> q/dq -> linear

In the model, ``linear`` reads what ``mul_`` has written. In the converted graph it reads a tensor of its own.
The same holds for inputs and buffers that a call writes through a quantize node: nobody sees the write.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import GraphModule, Node

from tosaic import _core
from tosaic.fx.annotations.memory import Roots, is_in_place, written_arguments
from tosaic.fx.annotations.read import annotation_of
from tosaic.torch_operators.origins import error_at

__all__ = ["refuse_separated_writes"]


def refuse_separated_writes(model: GraphModule) -> None:
    """Raises an error if annotations separate a write from those who see it.

    Raises
    ------
    UnsupportedOp
        With the node of the call that writes.
    """
    nodes = list(model.graph.nodes)
    writes = [(node, written) for node in nodes if (written := list(written_arguments(node)))]
    if not writes:
        return
    position = {node: at for at, node in enumerate(nodes)}
    in_model, converted = Roots(), Roots(_is_rounded)
    for call, written in writes:
        memory = frozenset().union(*map(in_model.of, written))
        reached = frozenset().union(*(converted.read(each, call) for each in written))
        for node in nodes:
            shared = in_model.of(node) & memory
            if not shared or position[node] >= position[call]:
                continue
            if node.op in ("placeholder", "get_attr") and not shared <= reached:
                kind = "an input" if node.op == "placeholder" else "a buffer"
                raise _refusal(call, f"it writes to '{node.name}', {kind}")
            for user in _users_after(node, position, call):
                if not shared <= reached & converted.read(node, user):
                    raise _refusal(
                        call, f"it writes the memory of '{node.name}', which '{user.name}' reads later"
                    )


def _users_after(node: Node, position: dict[Node, int], call: Node) -> Iterator[Node]:
    return (user for user in node.users if position[user] > position[call])


def _is_rounded(producer: Node, user: Node) -> bool:
    """True if torchao puts a quantize node between a call and its user."""
    found = annotation_of(producer)
    if found is not None and found.output_qspec is not None:
        return True
    found = annotation_of(user)
    specs = (found.input_qspec_map or {}) if found is not None else {}
    return specs.get(producer) is not None and not _is_written_buffer(producer, user)


def _is_written_buffer(producer: Node, user: Node) -> bool:
    """True if a call writes what depends on buffers only: torchao puts no quantize node before that."""
    if not is_in_place(user) or user.args[0] is not producer:
        return False
    seen, todo = {producer}, [producer]
    while todo:
        node = todo.pop()
        if node.op == "placeholder":
            return False
        fresh = [each for each in node.all_input_nodes if each not in seen]
        seen.update(fresh)
        todo += fresh
    return any(node.op == "get_attr" for node in seen)


def _refusal(call: Node, what: str) -> Exception:
    return error_at(
        _core.UnsupportedOp,
        call,
        f"{what}, and torchao puts a quantize node between them: the write would be lost",
        where="Quantizer",
        hint="Compute out of place there, or use tosaic.quantize",
    )
