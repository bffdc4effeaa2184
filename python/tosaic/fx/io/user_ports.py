"""The user's inputs and outputs of an exported program, without parameters, buffers and mutations.

Only tensors are counted, and an output that is returned twice counts twice. Indices of ports, in every
option, are places in these lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from tosaic.fx.io.quantize_calls import is_tensor
from tosaic.fx.reading.exported_program import module_argument_names, trees_of_call
from tosaic.torch_operators.call_trees import input_paths


@dataclass(frozen=True)
class UserPort:
    """A user input or output: its place in the signature, its path and its node.

    Attributes
    ----------
    spec : int
        Place in ``input_specs`` or ``output_specs``.
    path : str
    node : torch.fx.Node
    leaf : int
        Place among all user inputs (outputs), also those that are not tensors.
    """

    spec: int
    path: str
    node: Node
    leaf: int

    @property
    def named(self) -> tuple[str, str]:
        """Path and name."""
        return self.path, self.node.name


@dataclass(frozen=True)
class UserPorts:
    """All user inputs and outputs that are tensors, in order."""

    inputs: tuple[UserPort, ...]
    outputs: tuple[UserPort, ...]


def user_ports(program: Any) -> UserPorts:
    """Returns the ports of a ``torch.export.ExportedProgram`` of any dialect."""
    signature = program.graph_signature
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    users = [
        (i, node)
        for i, (node, spec) in enumerate(zip(placeholders, signature.input_specs, strict=True))
        if spec.kind is InputKind.USER_INPUT
    ]
    results = next(iter(reversed(program.graph.nodes))).args[0]
    returned = [
        (i, result)
        for i, (result, spec) in enumerate(zip(results, signature.output_specs, strict=True))
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    ]
    in_tree, out_tree = trees_of_call(program, len(users), len(returned))
    paths = input_paths(in_tree, module_argument_names(program), [node.name for _, node in users])
    return UserPorts(_tensors(users, paths), _tensors(returned, out_tree.paths("out")))


def _tensors(found: list[tuple[int, Any]], paths: list[str]) -> tuple[UserPort, ...]:
    return tuple(
        UserPort(spec, path, node, leaf)
        for leaf, ((spec, node), path) in enumerate(zip(found, paths, strict=True))
        if is_tensor(node)
    )
