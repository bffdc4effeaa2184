"""Reads an exported program: inputs and weights, then calls, then outputs.

`tosaic.fx.reading.exported_program` reads torch's own programs, and `tosaic.pt2` the programs of files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tosaic import _core
from tosaic.base.diagnostics import Diagnostic, Diagnostics
from tosaic.base.dim_order import dim_order_of
from tosaic.base.options import unsupported
from tosaic.ports.foreign import ForeignOp
from tosaic.ports.signature import InputLeaf, OutputLeaf, Signature, Tree
from tosaic.torch_operators.call_trees import arguments_tree, input_paths, results_tree
from tosaic.torch_operators.complex_values import HINT
from tosaic.torch_operators.memory_regions import Region
from tosaic.torch_operators.node_reader import NodeReader
from tosaic.torch_operators.origins import Where
from tosaic.torch_operators.value import Complex, NoValue, Ref

WEIGHTS = ("parameter", "buffer", "lifted")
_STATES = ("buffer_mutation", "parameter_mutation")
_USER_OUTPUTS = ("user_output", "loss_output")


@dataclass(frozen=True)
class ImportedProgram:
    """An imported method.

    Attributes
    ----------
    graph : Graph
        At stage ``exported``.
    signature : Signature
        The map between nested arguments and results and the graph's inputs and outputs.
    diagnostics : tuple of Diagnostic
        Remarks of the import: copied weights, opaque calls, ambiguous dim orders.
    verify : callable
        Raises InvalidGraph if something that the import read from torch's memory (scales, and weights that
        are not dense) has changed since.
    module_types : callable
        Returns the types of the modules that contain calls, by path.
    by_torch : tuple of ForeignOp
        Operators that tosaic does not have, and that torch runs.
    """

    graph: _core.Graph
    signature: Signature
    diagnostics: tuple[Diagnostic, ...]
    verify: Callable[[], None]
    module_types: Callable[[], dict[str, str]]
    by_torch: tuple[ForeignOp, ...] = ()


class InputSpec(NamedTuple):
    """The kind of a graph input.

    Attributes
    ----------
    kind : str
        ``user_input``, ``parameter``, ``buffer``, ``lifted`` for a constant, or another kind, which has no
        value.
    target : str
        The name of a weight.
    value : object
        The value of a user input that is a constant.
    """

    kind: str
    target: str = ""
    value: Any = None


class OutputSpec(NamedTuple):
    """An output of the graph: its kind, as torch names it, and the name of the written state or input."""

    kind: str
    target: str = ""


class ProgramReader(ABC):
    """Reads one exported program: placeholders first, then calls, then outputs.

    Parameters
    ----------
    reader : NodeReader
        Reads the nodes of the graph.
    nodes : sequence
        All nodes of the graph.
    inputs, outputs : sequence of InputSpec, sequence of OutputSpec
        In the order of the placeholders and of the results.
    trees : tuple of Tree or None
        The recorded structures of (args, kwargs) and of the result.
    arg_names : tuple of str
        The parameter names of the exported module.
    diagnostics : Diagnostics
    """

    def __init__(
        self,
        reader: NodeReader,
        nodes: Sequence[Any],
        inputs: Sequence[InputSpec],
        outputs: Sequence[OutputSpec],
        trees: tuple[Tree | None, Tree | None],
        arg_names: tuple[str, ...],
        diagnostics: Diagnostics,
    ) -> None:
        self.reader = reader
        self.builder = reader.writer.builder
        self.sizes = reader.writer.shared.sizes
        self.nodes = nodes
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        self.specs, self.output_specs = inputs, outputs
        self.diagnostics = diagnostics
        self.input_refs: list[Ref] = []  # by position
        self.order_at: dict[str, tuple[int, ...] | None] = {}  # user input's placeholder -> dim order
        self.input_at: dict[str, tuple[int, str]] = {}  # placeholder -> position, path
        self.state_at: dict[str, tuple[int, str]] = {}  # target of a state -> position, path
        self.output_at: list[int | None] = []  # position in the FX output -> position in the graph's outputs
        self.leaves: list[InputLeaf] = []
        users = [n for n, spec in zip(self.placeholders, inputs, strict=True) if spec.kind == "user_input"]
        self.in_tree = arguments_tree(trees[0], len(users))
        self.out_tree = trees[1]
        self.arg_names = arg_names
        self.paths = input_paths(self.in_tree, arg_names, [node.name for node in users])
        self.users = [(n.name, path, n.meta.get("val")) for n, path in zip(users, self.paths, strict=True)]

    @abstractmethod
    def read_weight(self, node: Any, spec: InputSpec, is_state: bool) -> None:
        """Reads a parameter, a buffer or a lifted constant."""

    @abstractmethod
    def code_of(self, recorded: Any, what: str) -> int:
        """Returns the position of a recorded dtype in DTYPES; for others raises UnsupportedOp."""

    @abstractmethod
    def region_of(self, target: str) -> Region | None:
        """Returns the memory of a weight; None if it is not known."""

    @abstractmethod
    def is_strided(self, recorded: Any) -> bool:
        """True for a tensor that is not sparse."""

    def read(self) -> Signature:
        """Reads the whole program."""
        self.reader.prepare(self.nodes)
        self._refuse_shared_states()
        self._read_inputs()
        self.reader.read()
        return self._read_outputs()

    def _read_inputs(self) -> None:
        states = {spec.target for spec in self.output_specs if spec.kind in _STATES}
        mutated = self.reader.mutated
        paths = iter(self.paths)
        nodes: list[Any] = []  # nodes of constants that are not read yet
        specs: list[InputSpec] = []
        for node, spec in zip(self.placeholders, self.specs, strict=True):
            kind = spec.kind
            if kind in WEIGHTS and spec.target not in states and node not in mutated:
                if node.users:
                    nodes.append(node)
                    specs.append(spec)
                continue
            if nodes:
                self.read_constants(nodes, specs)
                nodes, specs = [], []
            if kind == "user_input":
                self._read_user_input(node, spec, next(paths))
            elif kind in WEIGHTS:
                self.read_weight(node, spec, True)
            else:
                self.reader.env[node] = NoValue(kind)
        self.read_constants(nodes, specs)

    def _refuse_shared_states(self) -> None:
        """Refuses a state that shares memory with another weight, unless in-place calls write it.

        `Aliases` handles the memory that in-place calls write. The states of a functional program become
        outputs, whose values torch copies into the states' memory after the run.
        """
        targets = {spec.target for spec in self.output_specs if spec.kind in _STATES}
        weights = [
            (node, spec)
            for node, spec in zip(self.placeholders, self.specs, strict=True)
            if spec.kind in WEIGHTS and (node.users or spec.target in targets)
        ]
        if len(weights) < 2 or not targets:
            return
        regions = [self.region_of(spec.target) for _, spec in weights]
        for (node, spec), region in zip(weights, regions, strict=True):
            if spec.target not in targets or region is None:
                continue
            for (_, other), its in zip(weights, regions, strict=True):
                if other.target != spec.target and its is not None and its.overlaps(region):
                    raise self.reader.writer.error(
                        _core.UnsupportedOp,
                        f"the program writes '{spec.target}', which shares memory with '{other.target}'",
                        expected="memory of its own for each state",
                        hint="Register a clone() of one of them",
                        at=Where.of(node, "import"),
                    )

    def read_constants(self, nodes: list[Any], specs: list[InputSpec]) -> None:
        """Reads weights that the program does not write."""
        for node, spec in zip(nodes, specs, strict=True):
            self.read_weight(node, spec, False)

    def _read_user_input(self, node: Any, spec: InputSpec, path: str) -> None:
        recorded = node.meta.get("val")
        if not isinstance(recorded, self.reader.tensor_type):
            value = self.sizes.value(recorded) if spec.value is None else spec.value
            self.reader.env[node] = value
            self.leaves.append(InputLeaf(path, None, value))
            return
        shape = self.sizes.shape(recorded.shape)
        code = self.code_of(recorded, f"input '{node.name}'")
        order, ambiguous = self._order(recorded)
        if ambiguous:
            self.diagnostics.note(
                "ambiguous-order",
                f"the memory of input '{node.name}' reads as several dim orders; it is taken as row-major",
                node.name,
            )
        self.order_at[node.name] = order
        value = self.builder.add_input(node.name, code, shape, path, order)
        self.reader.env[node] = ref = Ref(value, code, shape)
        self.leaves.append(InputLeaf(path, len(self.input_refs)))
        self._count_input(node, path, ref)

    def _count_input(self, node: Any, path: str, ref: Ref) -> tuple[int, str]:
        at = self.input_at[node.name] = (len(self.input_refs), path)
        self.input_refs.append(ref)
        return at

    def _order(self, recorded: Any) -> tuple[tuple[int, ...] | None, bool]:
        if recorded.dim() < 2 or not self.is_strided(recorded):
            return None, False
        return dim_order_of(self.sizes.shape(recorded.shape), self.sizes.shape(recorded.stride()))

    def add_state(self, node: Any, spec: InputSpec, code: int, constant: _core.Constant) -> Ref:
        """Adds an input for a weight that the program writes; the constant is its initial value."""
        value = self.builder.add_input(node.name, code, constant.shape, spec.target, None, constant)
        ref = Ref(value, code, tuple(constant.shape))
        self.state_at[spec.target] = self._count_input(node, spec.target, ref)
        return ref

    def _read_outputs(self) -> Signature:
        results = self.nodes[-1].args[0]
        count = self._add_written_inputs()
        users = sum(spec.kind in _USER_OUTPUTS for spec in self.output_specs)
        out_tree = results_tree(self.out_tree, users)
        paths = iter(out_tree.paths("out"))
        leaves = []
        for result, spec in zip(results, self.output_specs, strict=True):
            value = self.reader.resolved(result)
            before = count
            if spec.kind in _USER_OUTPUTS:
                path = next(paths)
                if type(value) is Ref:
                    order, _ = self._order(result.meta["val"]) if "val" in result.meta else (None, False)
                    self.builder.add_output(value.id, path, None, order)
                    leaves.append(OutputLeaf(path, count))
                    count += 1
                else:
                    _refuse_missing(value, path)
                    leaves.append(OutputLeaf(path, None, value))
            elif spec.kind == "user_input_mutation" or spec.kind in _STATES:
                is_user = spec.kind == "user_input_mutation"
                index, path = (self.input_at if is_user else self.state_at)[spec.target]
                order = self.order_at[spec.target] if is_user else None
                value = self.reader.copied(result, value, self.input_refs[index])
                self.builder.add_output(value.id, path, index, order)
                count += 1
            self.output_at.append(before if count > before else None)
        return Signature(self.in_tree, out_tree, tuple(self.leaves), tuple(leaves), self.arg_names)

    def _add_written_inputs(self) -> int:
        """Adds outputs for inputs that in-place calls change: the program's signature does not list these."""
        count = 0
        mutated = self.reader.mutated
        for node in self.placeholders:
            if node in mutated and node.name in self.input_at:
                index, path = self.input_at[node.name]
                order = self.order_at.get(node.name)  # states have no dim order
                self.builder.add_output(self.reader.current(node).id, path, index, order)
                count += 1
        return count


def _refuse_missing(value: Any, path: str) -> None:
    if type(value) is Complex:
        raise unsupported("import", f"the output '{path}' is complex", hint=HINT)
    if type(value) is NoValue:
        raise unsupported(
            "import",
            f"the output '{path}' is a result of {value.target} that has no value here",
            hint="Numbers that depend on data and results that are not kept cannot be imported",
        )
