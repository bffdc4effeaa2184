"""Lowers the program of a delegate, and compares the payload's inputs and outputs with the program's.

A runtime copies bytes: it passes the memory of the tensors around the delegate, in their order and dtype. So
each input and output of the payload must be the tensor of the program in its physical shape: the extents in
dim order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from tosaic import _core
from tosaic.api.calls import lower
from tosaic.base.problems import Problem
from tosaic.fx.reading.weights import CODE_OF
from tosaic.lowering.lowered import Lowered
from tosaic.partitions.claimant import Claimant
from tosaic.partitions.emitted import exceeded_limits, unfit_nodes
from tosaic.torch_operators.origins import place_of

_WHERE = "preprocess"
_SAME_BITS = {"u8": "i8", "u16": "i16"}


def lower_delegate(program: Any, target: str) -> Lowered:
    """Lowers the program of a delegate.

    Parameters
    ----------
    program : torch.export.ExportedProgram
    target : str

    Raises
    ------
    UnsupportedOp, SpecViolation, InvalidGraph, LayoutMismatch, QuantMismatch
        As `tosaic.lower`.
    LayoutMismatch
        An input or output of the payload would have another dtype or shape than that of the program, or the
        delegate holds a buffer that it writes.
    """
    lowered = _lowered(program, target)
    for problem in _border_problems(program, lowered):
        raise _core.make_error(
            _core.LayoutMismatch,
            **{name: getattr(problem, name) for name in Problem.__dataclass_fields__},
        )
    return lowered


def problems_of_delegate(program: Any, claimant: Claimant) -> Sequence[Problem]:
    """Returns why a program cannot be a delegate of a claimant; empty if it can.

    It has to lower, and the operators that it becomes have to be within the limits of the claimant, unless a
    rule of `Claimant.allow` decides about the node.
    """
    try:
        lowered = _lowered(program, claimant.target)
    except (_core.UnsupportedOp, _core.SpecViolation) as error:
        return getattr(error, "problems", None) or (Problem.from_parts(error.parts),)
    except (_core.InvalidGraph, _core.LayoutMismatch, _core.QuantMismatch) as error:
        return (Problem.from_parts(error.parts),)
    return (*_border_problems(program, lowered), *_limit_problems(lowered, claimant))


def _limit_problems(lowered: Lowered, claimant: Claimant) -> list[Problem]:
    graph = lowered.source.graph
    beyond = exceeded_limits(lowered.graph, claimant)
    unfit = unfit_nodes(beyond, [*graph.nodes], claimant.allows(graph)) if beyond else {}
    return list(dict.fromkeys(problem for problems in unfit.values() for problem in problems))


def _lowered(program: Any, target: str) -> Lowered:
    inputs, outputs = _borders(program)
    return lower(
        program,
        target=target,
        orders={
            "inputs": dict(enumerate(map(_order, inputs))),
            "outputs": dict(enumerate(map(_order, outputs))),
        },
    )


def _order(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].dim_order())


def _borders(program: Any) -> tuple[list[Node], list[Node]]:
    """Returns the nodes of the user's inputs and outputs."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    return [nodes[name] for name in signature.user_inputs], [nodes[name] for name in signature.user_outputs]


def _border_problems(program: Any, lowered: Lowered) -> list[Problem]:
    graph = _core.file_graph(lowered.graph, target=lowered.target)
    inputs, outputs = _borders(program)
    sides: tuple[tuple[str, list[Node], Sequence[Any]], ...] = (
        ("input", inputs, graph.inputs),
        ("output", outputs, graph.outputs),
    )
    found = []
    for side, nodes, ports in sides:
        if len(nodes) != len(ports):
            found.append(
                Problem(
                    what=f"the payload has another number of {side}s than the delegate",
                    where=_WHERE,
                    expected=str(len(nodes)),
                    got=str(len(ports)),
                    hint="Buffers that the program writes belong outside of delegates",
                )
            )
            continue
        for node, port in zip(nodes, ports, strict=True):
            found += _port_problems(side, node, port.value)
    return found


def _port_problems(side: str, node: Node, value: _core.Value) -> list[Problem]:
    """Returns the problems of a port: one for each call of the delegate that reads or computes it."""
    tensor = node.meta["val"]
    code = CODE_OF.get(tensor.dtype)
    dtype = str(tensor.dtype) if code is None else _core.DTYPES[code]
    shape = tuple(tensor.shape[axis] for axis in _order(node))
    same = value.dtype == dtype or (value.dtype == _SAME_BITS.get(dtype))
    if same and tuple(value.shape) == shape:
        return []
    calls = [user for user in node.users if user.op != "output"] if side == "input" else [node]
    return [
        Problem(
            what=f"an {side} of a delegate has no such tensor in TOSA: {place_of(node)}",
            where=_WHERE,
            expected=f"{dtype}{list(shape)}, as the program passes it",
            got=f"{value.dtype}{list(value.shape)}",
            node=each.name,
        )
        for each in calls
    ]
