"""Makes an exported program from the nodes of a delegate, as ExecuTorch does, and changes no other one."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, Node
from torch.utils._pytree import tree_flatten

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def constant_placeholders(program: Any) -> dict[str, InputSpec]:
    """Returns the parameters, buffers and constants that the program does not write, by placeholder."""
    signature = program.graph_signature
    written = {spec.target for spec in signature.output_specs if spec.target is not None}
    return {
        spec.arg.name: spec
        for spec in signature.input_specs
        if spec.kind in _HELD and spec.target not in written
    }


def delegate_program(program: Any, nodes: Collection[Node]) -> Any:
    """Returns an exported program of some nodes of another program.

    Values from outside become its user inputs, and values that outside nodes read become its user outputs,
    in the order of the graph. Constants become its own. Nodes keep their names.

    Parameters
    ----------
    program : torch.export.ExportedProgram
    nodes : collection of torch.fx.Node
        Calls of the program's graph.
    """
    inside = set(nodes)
    constants = constant_placeholders(program)
    entering = [n for n in program.graph.nodes if n not in inside and any(u in inside for u in n.users)]
    held = [n for n in entering if n.name in constants]
    given = [n for n in entering if n.name not in constants]
    graph = Graph()
    made: dict[Node, Node] = {}
    for node in (*held, *given):
        made[node] = graph.placeholder(node.name)
        made[node].meta = copy.copy(node.meta)
    for node in program.graph.nodes:
        if node in inside:
            made[node] = graph.node_copy(node, made.__getitem__)
    for old, new in made.items():
        new.name = old.name
    results = [n for n in program.graph.nodes if n in inside and any(u not in inside for u in n.users)]
    graph.output(tuple(made[node] for node in results))
    signature = ExportGraphSignature(
        [constants[node.name] for node in held]
        + [InputSpec(InputKind.USER_INPUT, TensorArgument(name=node.name), None) for node in given],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node.name), None) for node in results],
    )
    targets = {constants[node.name].target for node in held}
    return torch.export.ExportedProgram(
        root=torch.nn.Module(),
        graph=graph,
        graph_signature=signature,
        state_dict={name: each for name, each in program.state_dict.items() if name in targets},
        range_constraints=dict(program.range_constraints),
        module_call_graph=[ModuleCallEntry("", _call(len(given), len(results)))],
        constants={name: each for name, each in program.constants.items() if name in targets},
        verifiers=program.verifiers,
    )


def _call(inputs: int, outputs: int) -> ModuleCallSignature:
    _, taken = tree_flatten((tuple(range(inputs)), {}))
    _, returned = tree_flatten(list(range(outputs)))
    return ModuleCallSignature([], [], taken, returned)
