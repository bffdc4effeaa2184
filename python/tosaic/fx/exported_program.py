"""Reads a torch ``ExportedProgram``: inputs and weights, then calls (`tosaic.fx.importer`), then outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from tosaic import _core
from tosaic.diagnostics import Diagnostic, Diagnostics
from tosaic.foreign import ForeignOp
from tosaic.fx.decomposed import Decompositions
from tosaic.fx.importer import Importer
from tosaic.fx.node_writer import Shared
from tosaic.fx.origins import module_types
from tosaic.fx.shapes import Sizes, dim_order_of, wanted_sizes
from tosaic.fx.targets import Row
from tosaic.fx.treespec import convert_treespec
from tosaic.fx.weights import CODE_OF, Weights, dtype_code
from tosaic.process import collection_paused
from tosaic.signature import InputLeaf, OutputLeaf, Signature, Tree
from tosaic.torch_operators.complex_values import HINT
from tosaic.torch_operators.value import Complex, NoValue, Ref

__all__ = [
    "ImportRecord",
    "ImportedProgram",
    "import_program",
    "input_paths",
    "module_argument_names",
    "read_program",
    "trees_of_call",
]


@dataclass(frozen=True)
class ImportedProgram:
    """An imported method.

    Attributes
    ----------
    graph : Graph
        At stage ``exported``.
    signature : Signature
        How nested arguments and results map to the graph's inputs and outputs.
    diagnostics : tuple of Diagnostic
        Remarks of the import: copied weights, opaque calls, ambiguous dim orders.
    verify : callable
        Raises InvalidGraph if something that the import read from torch's memory (scales, and weights that
        are not dense) has changed since.
    module_types : dict of str to str
        The types of the modules that contain calls, by path.
    """

    graph: _core.Graph
    signature: Signature
    diagnostics: tuple[Diagnostic, ...]
    verify: Callable[[], None]
    module_types: dict[str, str]


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


class _Program:
    """One exported program during the import: placeholders are read first, then calls, then outputs."""

    def __init__(self, ep: Any, method: str, operators: Mapping[str, ForeignOp]) -> None:
        self.ep = ep
        self.diagnostics = Diagnostics()
        self.shared = Shared(
            Weights(self.diagnostics), Sizes(), self.diagnostics, _ROWS, Decompositions(), operators
        )
        self.nodes: list[Any] = list(ep.graph_module.graph.nodes)
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.specs = list(ep.graph_signature.input_specs)
        self.importer = Importer(self.shared, _core.GraphBuilder(method), ep.graph_module)
        self.input_count = 0
        self.order_at: dict[str, tuple[int, ...] | None] = {}  # user input's placeholder -> dim order
        self.input_at: dict[str, tuple[int, str]] = {}  # placeholder -> position, path
        self.state_at: dict[str, tuple[int, str]] = {}  # target of a state -> position, path
        self.output_at: list[int | None] = []  # by position in the FX output: position in the graph's outputs
        self.leaves: list[InputLeaf] = []
        users = [
            n
            for n, spec in zip(self.placeholders, self.specs, strict=True)
            if spec.kind is InputKind.USER_INPUT
        ]
        self.call_spec = ep.call_spec
        self.in_tree = _in_tree(self.call_spec.in_spec, len(users))
        self.arg_names = module_argument_names(ep)
        self.paths = input_paths(self.in_tree, self.arg_names, [node.name for node in users])
        self.users = [(n.name, path, n.meta.get("val")) for n, path in zip(users, self.paths, strict=True)]

    def bind(self, bind: Any) -> None:
        wanted = wanted_sizes(bind, self.users, self.in_tree)
        self.shared.sizes.bind(self.users, wanted, self.ep.range_constraints)

    def read_inputs(self) -> None:
        outputs = self.ep.graph_signature.output_specs
        mutated = {
            spec.target for spec in outputs if spec.kind in (OutputKind.BUFFER_MUTATION, _PARAMETER_MUTATION)
        }
        paths = iter(self.paths)
        for node, spec in zip(self.placeholders, self.specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self._read_user_input(node, spec, next(paths))
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                is_state = spec.target in mutated or self.importer.is_mutated(node)
                if node.users or is_state:
                    self._read_weight(node, spec, is_state)
            else:
                self.importer.env[node] = NoValue(str(spec.kind))

    def _read_user_input(self, node: Any, spec: Any, path: str) -> None:
        recorded = node.meta.get("val")
        if not isinstance(recorded, torch.Tensor):
            value = (
                self.shared.sizes.value(recorded)
                if isinstance(recorded, torch.SymInt)
                else getattr(spec.arg, "value", recorded)
            )
            self.importer.env[node] = value
            self.leaves.append(InputLeaf(path, None, value))
            return
        shape = self.shared.sizes.shape(recorded.shape)
        code = dtype_code(recorded.dtype, f"input '{node.name}'")
        order, ambiguous = self._order(recorded)
        if ambiguous:
            self.diagnostics.note(
                "ambiguous-order",
                f"the memory of input '{node.name}' reads as several dim orders; it is taken as row-major",
                node.name,
            )
        self.order_at[node.name] = order
        value = self.importer.builder.add_input(node.name, code, shape, path, order)
        self.importer.env[node] = Ref(value, code, shape)
        self.leaves.append(InputLeaf(path, self.input_count))
        self._count_input(node, path)

    def _count_input(self, node: Any, path: str) -> tuple[int, str]:
        at = self.input_at[node.name] = (self.input_count, path)
        self.input_count += 1
        return at

    def _order(self, recorded: Any) -> tuple[tuple[int, ...] | None, bool]:
        if recorded.dim() < 2 or recorded.layout is not torch.strided:
            return None, False
        sizes = self.shared.sizes
        return dim_order_of(sizes.shape(recorded.shape), sizes.shape(recorded.stride()))

    def _read_weight(self, node: Any, spec: Any, is_state: bool) -> None:
        target = spec.target
        tensor = self.ep.state_dict[target] if target in self.ep.state_dict else self.ep.constants[target]
        if tensor.is_complex() and not is_state:
            self.importer.env[node] = self.importer.complex_constant(tensor, target, _KINDS[spec.kind])
            return
        weights = self.shared.weights
        read = weights.snapshot if is_state else weights.tensor
        constant = read(tensor, target, _KINDS[spec.kind])
        builder = self.importer.builder
        code = CODE_OF[tensor.dtype]
        if is_state:
            value = builder.add_input(node.name, code, tensor.shape, target, None, constant)
            self.state_at[target] = self._count_input(node, target)
        else:
            value = builder.add_constant(constant)
        ref = self.importer.env[node] = Ref(value, code, tensor.shape)
        if not is_state:
            self.importer.remember(ref, tensor)

    def read_outputs(self) -> Signature:
        results = self.nodes[-1].args[0]
        specs = list(self.ep.graph_signature.output_specs)
        count = self._add_written_inputs()
        users = sum(spec.kind in _USER_OUTPUTS for spec in specs)
        out_tree = _out_tree(self.call_spec.out_spec, users)
        paths = iter(out_tree.paths("out"))
        leaves = []
        for result, spec in zip(results, specs, strict=True):
            value = self.importer.resolved(result)
            before = count
            if spec.kind in _USER_OUTPUTS:
                path = next(paths)
                if type(value) is Ref:
                    order, _ = self._order(result.meta["val"]) if "val" in result.meta else (None, False)
                    self.importer.builder.add_output(value.id, path, None, order)
                    leaves.append(OutputLeaf(path, count))
                    count += 1
                else:
                    self._refuse_missing(value, path)
                    leaves.append(OutputLeaf(path, None, value))
            elif spec.kind in _MUTATIONS:
                is_user = spec.kind is OutputKind.USER_INPUT_MUTATION
                index, path = (self.input_at if is_user else self.state_at)[spec.target]
                order = self.order_at[spec.target] if is_user else None
                self.importer.builder.add_output(value.id, path, index, order)
                count += 1
            self.output_at.append(before if count > before else None)
        return Signature(self.in_tree, out_tree, tuple(self.leaves), tuple(leaves), self.arg_names)

    def _refuse_missing(self, value: Any, path: str) -> None:
        if type(value) is Complex:
            raise _core.make_error(
                _core.UnsupportedOp, where="import", what=f"the output '{path}' is complex", hint=HINT
            )
        if type(value) is NoValue:
            raise _core.make_error(
                _core.UnsupportedOp,
                where="import",
                what=f"the output '{path}' is a result of {value.target} that has no value here",
                hint="Numbers that depend on data and results that are not kept cannot be imported",
            )

    def _add_written_inputs(self) -> int:
        """Adds outputs for inputs that in-place calls change: the program's signature does not list these."""
        count = 0
        for node in self.placeholders:
            if node.name in self.input_at and self.importer.is_mutated(node):
                index, path = self.input_at[node.name]
                order = self.order_at.get(node.name)  # states have none
                self.importer.builder.add_output(self.importer.env[node].id, path, index, order)
                count += 1
        return count


# Rows by call target. Targets are torch operators, whose rows do not depend on the program.
_ROWS: dict[Any, Row | None] = {}
_PARAMETER_MUTATION = getattr(OutputKind, "PARAMETER_MUTATION", None)
_USER_OUTPUTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, _PARAMETER_MUTATION)
_KINDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "lifted"}


def _in_tree(spec: Any, users: int) -> Tree:
    """Returns the structure of (args, kwargs), or a flat structure if the program does not record it."""
    if spec is not None:
        tree = convert_treespec(spec)
        if tree.leaf_count == users and len(tree.children) == 2:
            return tree
    return Tree("tuple", (Tree("tuple", (Tree("leaf"),) * users), Tree("dict")))


def _out_tree(spec: Any, users: int) -> Tree:
    if spec is not None:
        tree = convert_treespec(spec)
        if tree.leaf_count == users:
            return tree
    return Tree("tuple", (Tree("leaf"),) * users)


def module_argument_names(ep: Any) -> tuple[str, ...]:
    """Returns the parameter names of the exported module; empty if torch did not record them."""
    for entry in ep.module_call_graph:
        if entry.fqn == "" and entry.signature is not None:
            return tuple(entry.signature.forward_arg_names or ())
    return ()


def trees_of_call(ep: Any, inputs: int, outputs: int) -> tuple[Tree, Tree]:
    """Returns the structures of (args, kwargs) and of the result, which have so many leaves."""
    spec = ep.call_spec
    return _in_tree(spec.in_spec, inputs), _out_tree(spec.out_spec, outputs)


def input_paths(tree: Tree, arg_names: Sequence[str], placeholders: Sequence[str]) -> list[str]:
    """Returns paths as callers write them: the parameter's name, then the place in a nested argument."""
    paths: list[str] = []
    args, kwargs = tree.children
    for i, child in enumerate(args.children):
        if child.kind == "leaf":
            paths.append(arg_names[i] if i < len(arg_names) else placeholders[len(paths)])
        else:
            paths += child.paths(arg_names[i] if i < len(arg_names) else f"args[{i}]")
    for key, child in zip(kwargs.keys, kwargs.children, strict=True):
        paths += child.paths(str(key))
    return paths


def import_program(
    ep: Any, *, bind: Any = None, method: str = "forward", operators: Mapping[str, ForeignOp] | None = None
) -> ImportedProgram:
    """See `tosaic.fx.from_exported`."""
    return read_program(ep, bind=bind, method=method, operators=operators).imported


def read_program(
    ep: Any, *, bind: Any = None, method: str = "forward", operators: Mapping[str, ForeignOp] | None = None
) -> ImportRecord:
    """Imports a program and returns what each FX node became."""
    if not isinstance(ep, torch.export.ExportedProgram):
        raise _core.make_error(
            _core.InvalidGraph,
            where="import",
            what="not an exported program",
            expected="torch.export.ExportedProgram",
            got=type(ep).__name__,
            hint="Call torch.export.export(module, args) first",
        )
    with collection_paused():  # nothing that an import allocates is garbage
        program = _Program(ep, method, operators or {})
        program.bind(bind)
        program.importer.prepare(program.nodes)
        program.read_inputs()
        program.importer.read(program.nodes)
        signature = program.read_outputs()
    importer = program.importer
    return ImportRecord(
        ImportedProgram(
            importer.builder.finish(),
            signature,
            tuple(program.diagnostics.items),
            program.shared.weights.verify,
            module_types(program.nodes),
        ),
        importer.env,
        program.shared.sizes,
        {name: at for name, (at, _) in program.input_at.items()}
        | {
            node.name: program.state_at[spec.target][0]
            for node, spec in zip(program.placeholders, program.specs, strict=True)
            if spec.target in program.state_at
        },
        tuple(program.output_at),
    )
