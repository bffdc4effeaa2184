"""Reads a torch ``ExportedProgram``: inputs and weights, then calls (`importer`), then outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.base.options import invalid
from tosaic.base.process import collection_paused
from tosaic.fx.reading.executed_memory import region_of_weight
from tosaic.fx.reading.functional_trial import can_be_decomposed
from tosaic.fx.reading.importer import Importer
from tosaic.fx.reading.shapes import Sizes, wanted_sizes
from tosaic.fx.reading.torch_writer import Shared, TorchWriter
from tosaic.fx.reading.treespec import convert_treespec
from tosaic.fx.reading.weights import Weights, dtype_code
from tosaic.ports.foreign import ForeignOp
from tosaic.ports.signature import Tree
from tosaic.torch_operators.call_trees import arguments_tree, results_tree
from tosaic.torch_operators.memory_regions import Region
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.origins import module_types
from tosaic.torch_operators.program_reader import (
    WEIGHTS,
    ImportedProgram,
    InputSpec,
    OutputSpec,
    ProgramReader,
)

__all__ = [
    "ImportRecord",
    "ImportedProgram",
    "functional_hint",
    "module_argument_names",
    "read_program",
    "trees_of_call",
]


@dataclass(frozen=True)
class ImportRecord:
    """An imported method, and what each node of the FX graph became.

    Attributes
    ----------
    imported : ImportedProgram
    values : mapping
        By FX node: its `Ref`, a list of them, a number, or a `NoValue`.
    sizes : Sizes
        The values of symbolic sizes.
    inputs : dict of str to int
        By placeholder name, its position in ``graph.inputs``. Weights have no position.
    outputs : tuple of int or None
        By position in the FX output, the position in ``graph.outputs``; None if the output is not in the
        graph.
    """

    imported: ImportedProgram
    values: Mapping[Node, Any]
    sizes: Sizes
    inputs: dict[str, int]
    outputs: tuple[int | None, ...]


class _Program(ProgramReader):
    """One exported program of torch during the import."""

    reader: Importer

    def __init__(self, ep: Any, method: str, operators: Mapping[str, ForeignOp]) -> None:
        diagnostics = Diagnostics()
        self.ep = ep
        self._state, self._lifted = ep.state_dict, ep.constants
        self.shared = Shared(
            Weights(diagnostics),
            Sizes(),
            diagnostics,
            _ROWS,
            operators,
            can_be_decomposed=partial(can_be_decomposed, ep),
        )
        signature = ep.graph_signature
        importer = Importer(TorchWriter(self.shared, _core.GraphBuilder(method)), ep.graph_module)
        super().__init__(
            importer,
            list(ep.graph_module.graph.nodes),
            [_input_spec(each) for each in signature.input_specs],
            [OutputSpec(each.kind.name.lower(), each.target or "") for each in signature.output_specs],
            _trees(ep),
            module_argument_names(ep),
            diagnostics,
        )
        importer.weights = {
            node.name: self._tensor_of(spec.target)
            for node, spec in zip(self.placeholders, self.specs, strict=True)
            if spec.kind in WEIGHTS
        }

    def _tensor_of(self, target: str) -> Any:
        return self._state[target] if target in self._state else self._lifted.get(target)

    def region_of(self, target: str) -> Region | None:
        """See `ProgramReader`."""
        return region_of_weight(self._tensor_of(target))

    def bind(self, bind: Any) -> None:
        wanted = wanted_sizes(bind, self.users, self.in_tree)
        self.sizes.bind(self.users, wanted, self.ep.range_constraints)

    def code_of(self, recorded: Any, what: str) -> int:
        """See `ProgramReader`."""
        return dtype_code(recorded.dtype, what)

    def is_strided(self, recorded: Any) -> bool:
        """See `ProgramReader`."""
        return recorded.layout is torch.strided

    def read_weight(self, node: Any, spec: InputSpec, is_state: bool) -> None:
        """See `ProgramReader`."""
        target, reader = spec.target, self.reader
        tensor = reader.weights[node.name]
        if not is_state:
            reader.env[node] = reader.constant_of(tensor, target, spec.kind)
            return
        code = dtype_code(tensor.dtype, f"'{target}'")
        constant = self.shared.weights.snapshot(tensor, target, spec.kind)
        reader.env[node] = self.add_state(node, spec, code, constant)


def _input_spec(spec: Any) -> InputSpec:
    kind = _KINDS.get(spec.kind) or str(spec.kind)
    return InputSpec(kind, spec.target or "", getattr(spec.arg, "value", None))


# Rows by call target. Targets are torch operators, whose rows do not depend on the program.
_ROWS: dict[Any, OperatorRow | None] = {}
_KINDS = {
    InputKind.USER_INPUT: "user_input",
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "lifted",
}


def _tree(spec: Any) -> Tree | None:
    return None if spec is None else convert_treespec(spec)


def _call_of(ep: Any) -> Any:
    """Returns the signature of the call of the exported module; None if torch did not record it.

    ``ep.call_spec`` has parts of it, but makes a class whenever it is read.
    """
    return next((entry.signature for entry in ep.module_call_graph if entry.fqn == ""), None)


def _trees(ep: Any) -> tuple[Tree | None, Tree | None]:
    call = _call_of(ep)
    return (None, None) if call is None else (_tree(call.in_spec), _tree(call.out_spec))


def module_argument_names(ep: Any) -> tuple[str, ...]:
    """Returns the parameter names of the exported module; empty if torch did not record them."""
    call = _call_of(ep)
    return () if call is None else tuple(call.forward_arg_names or ())


def trees_of_call(ep: Any, inputs: int, outputs: int) -> tuple[Tree, Tree]:
    """Returns the trees of (args, kwargs), with `inputs` leaves, and of the result, with `outputs` leaves."""
    taken, returned = _trees(ep)
    return arguments_tree(taken, inputs), results_tree(returned, outputs)


def functional_hint(ep: Any) -> str:
    """Returns a hint for in-place writes: decompose the program if that keeps its numbers, or rewrite it."""
    program = _Program(ep, "forward", {})
    program.reader.prepare(program.nodes)
    return str(program.reader.functional_hint())


def read_program(
    ep: Any, *, bind: Any = None, method: str = "forward", operators: Mapping[str, ForeignOp] | None = None
) -> ImportRecord:
    """Imports a program and returns what each FX node became."""
    if not isinstance(ep, torch.export.ExportedProgram):
        raise invalid(
            "import",
            "not an exported program",
            expected="torch.export.ExportedProgram",
            got=type(ep).__name__,
            hint="Call torch.export.export(module, args) first",
        )
    with collection_paused():  # nothing that an import allocates is garbage
        program = _Program(ep, method, operators or {})
        program.bind(bind)
        signature = program.read()
    reader = program.reader
    return ImportRecord(
        ImportedProgram(
            program.builder.finish(),
            signature,
            tuple(program.diagnostics.items),
            program.shared.weights.verify,
            module_types(reader.nodes),
            tuple(program.shared.by_torch.values()),
        ),
        reader.env,
        program.shared.sizes,
        {name: at for name, (at, _) in program.input_at.items()}
        | {
            node.name: program.state_at[spec.target][0]
            for node, spec in zip(program.placeholders, program.specs, strict=True)
            if spec.target in program.state_at
        },
        tuple(program.output_at),
    )
