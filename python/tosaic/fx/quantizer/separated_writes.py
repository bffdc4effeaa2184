"""Refuses in-place writes that later readers would not see, because quantize nodes make new tensors.

::

    y -> view -> mul_                       y -> q/dq -> view -> mul_
    y ---------> linear                     y -> q/dq -> linear

In the model, ``linear`` reads what ``mul_`` has written. In the converted graph it reads a separate tensor.
The same holds for inputs and buffers that a call writes through a quantize node: the write is lost.
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from tosaic import _core
from tosaic.fx.quantizer.held_annotations import annotation_of
from tosaic.fx.quantizer.memory import Roots, is_in_place, written_arguments
from tosaic.torch_operators.origins import Where


def refuse_separated_writes(
    model: GraphModule, where: str = "Quantizer", *, are_constant: bool = True
) -> None:
    """Raises an error if annotations separate a write from its readers.

    Parameters
    ----------
    model : GraphModule
    where : str
        The function that the error names.
    are_constant : bool
        True if torchao takes buffers that calls write for constants; False if they are its inputs.

    Raises
    ------
    UnsupportedOp
        With the node of the call that writes.
    """
    try:
        _Order(list(model.graph.nodes), are_constant=are_constant).check()
    except _SeparatedError as found:
        call, what = found.args
        raise Where.of(call, where).error(
            _core.UnsupportedOp,
            f"{what}, and torchao puts a quantize node between them: the write would be lost",
            hint=f"Compute out of place there{', or use tosaic.quantize' if where == 'Quantizer' else ''}",
        ) from None


class _SeparatedError(Exception):
    """A separated write: the call that writes, and a description of what it writes."""


class _Order:
    """The nodes in their order, and which later readers each write is separated from.

    The cost grows with the number of nodes: each node is looked at when it reads, and when a write to its
    memory is separated from it. A node that nobody reads any more is dropped.
    """

    def __init__(self, nodes: list[Node], *, are_constant: bool) -> None:
        self._nodes = nodes
        self._position = {node: at for at, node in enumerate(nodes)}
        self._in_model = Roots()
        self._converted = Roots(_Cuts(nodes, are_constant=are_constant).is_rounded, self._in_model)
        self._with_memory: dict[object, list[Node]] = {}
        self._last_write: dict[object, Node] = {}

    def check(self) -> None:
        """Raises an error for the first write that is separated."""
        if not any(any(written_arguments(node)) for node in self._nodes):
            return
        for node in self._nodes:
            self._check_reads(node)
            written = list(written_arguments(node))
            if written:
                self._check_write(node, written)
            for root in self._in_model.of(node):
                self._with_memory.setdefault(root, []).append(node)

    def _check_write(self, call: Node, written: list[Node]) -> None:
        """Refuses a write whose memory, after conversion, is not that of an input or a later read node."""
        memory = frozenset().union(*map(self._in_model.of, written))
        lost = memory - frozenset().union(*(self._converted.read(each, call) for each in written))
        for root in lost:
            for node in self._with_memory.get(root, ()):
                if node.op in ("placeholder", "get_attr"):
                    kind = "an input" if node.op == "placeholder" else "a buffer"
                    raise _refusal(call, f"it writes to '{node.name}', {kind}")
                later = [user for user in node.users if self._position[user] > self._position[call]]
                if later:
                    raise _refusal_of_reader(call, node, later[0])
            self._with_memory[root] = []  # nobody reads these any more
        self._last_write.update(dict.fromkeys(memory, call))

    def _check_reads(self, user: Node) -> None:
        """Refuses a read after a write whose memory, after conversion, is not the memory that is read."""
        for node in user.all_input_nodes:
            at = self._position[node]
            for root in self._in_model.of(node):
                call = self._last_write.get(root)
                if call is None or self._position[call] <= at:
                    continue
                if root not in self._converted.read(node, user):
                    raise _refusal_of_reader(call, node, user)


class _Cuts:
    """Where torchao puts quantize nodes."""

    def __init__(self, nodes: list[Node], *, are_constant: bool) -> None:
        self._are_constant = are_constant
        self._of_buffers: set[Node] = set()  # nodes that depend on buffers only
        given: set[Node] = set()  # nodes that depend on inputs
        for node in nodes:
            operands = node.all_input_nodes
            if node.op == "placeholder" or any(each in given for each in operands):
                given.add(node)
            elif node.op == "get_attr" or any(each in self._of_buffers for each in operands):
                self._of_buffers.add(node)

    def is_rounded(self, producer: Node, user: Node) -> bool:
        """True if torchao puts a quantize node between a call and its user."""
        found = annotation_of(producer)
        if found is not None and found.output_qspec is not None:
            return True
        found = annotation_of(user)
        specs = (found.input_qspec_map or {}) if found is not None else {}
        # torchao puts no quantize node between a value that depends on buffers only and a write to it
        is_written = is_in_place(user) and user.args[0] is producer and producer in self._of_buffers
        is_written = is_written and self._are_constant
        return specs.get(producer) is not None and not is_written


def _refusal_of_reader(call: Node, node: Node, user: Node) -> Exception:
    return _refusal(call, f"it writes the memory of '{node.name}', which '{user.name}' reads later")


def _refusal(call: Node, what: str) -> Exception:
    return _SeparatedError(call, what)
