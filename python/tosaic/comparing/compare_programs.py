"""Runs two programs on the same inputs and matches their values by origin.

The reference a may be an exported program, which runs in torch eager. Total errors are then measured against
torch's result for each FX node. Local and inherited errors are measured with the imported graph, whose
nodes run on the values of b. Every run starts from the initial values of states, and the comparison does not
use the sessions of the caller's programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.defaults import THRESHOLD_DB
from tosaic.base.dtypes import is_float, is_float_array, type_text
from tosaic.base.exported import is_exported_program
from tosaic.base.file_kinds import PT2
from tosaic.base.options import invalid
from tosaic.calibration.collapsed_operands import CollapsedOperand, collapsed_operands, tosa_graphs
from tosaic.calibration.saturated_biases import SaturatedBias, saturated_biases
from tosaic.calibration.streams import single_samples
from tosaic.comparing.divided import is_same_program
from tosaic.lowering.lowered import Lowered
from tosaic.lowering.quantized_sides import canonical_graph, is_quantized, quantizers_of_one
from tosaic.opening.sources import foreign_targets, load_exported, program_of
from tosaic.partitions.split_lowered import SplitLowered
from tosaic.program.comparison import CompareRow, Comparison, Metrics, ModelRow, OutputRow, Unmatched
from tosaic.program.models import Deviations, Models
from tosaic.program.overrides import of_foreign_nodes, split_functions
from tosaic.program.program import Program
from tosaic.program.sample_forms import (
    FileBoundary,
    Logical,
    arrays_for,
    fit_to_ports,
    logical_arrays,
    require_same_inputs,
)
from tosaic.program.samples import Sample, read_samples
from tosaic.pte.file import PteFile, PteMethod
from tosaic.pte.program import PteMethodProgram

if TYPE_CHECKING:
    from tosaic.fx.running.eager import EagerRun
    from tosaic.ports.foreign import ForeignOp

__all__ = ["compare_programs", "fit_to_ports"]

_Array = np.ndarray[Any, Any]
_MOST_FORMS = 24  # the most layouts of a file's inputs that are tried
_ROUNDING = frozenset({"quantize", "rescale", "tosa.rescale"})
_VIEWS = frozenset({"reshape", "permute", "expand", "slice", "select", "clone"})
# For floats that no quantize node rounds, but that are computed with integers: products and tables have 16
# bits, which is 80 dB at half of their range.
_DB_OF_16_BITS = 80.0
_UNKNOWN_NUMBERS = "the file does not say which numbers its values represent"
_INTEGER = frozenset({"integer_conv", "rescale", "tosa.rescale", "tosa.table"})


class _Side:
    """One of the two programs. `exported` is torch's own program, or None if there is none.

    `operators` are the descriptions that the caller passed, `others` the descriptions of the other program.
    """

    def __init__(
        self,
        source: Any,
        bind: Any,
        operators: Sequence[ForeignOp],
        others: Sequence[ForeignOp],
        trust: bool,
    ) -> None:
        self.name = _name_of(source)
        if isinstance(source, str | Path) and PT2.holds(source):
            source = load_exported(source, trust=trust)
        self.exported = source if is_exported_program(source) else None
        self.runnable: Program | Lowered = (
            source
            if isinstance(source, Lowered)
            else program_of(source, bind=bind, operators=operators, trust=trust)
        )
        if self.exported is not None and not operators:
            foreign = foreign_targets(self.runnable.graph)
            missing = [operator for operator in others if operator.target in foreign]
            if missing:
                self.runnable = program_of(source, bind=bind, operators=missing)
        if isinstance(self.runnable, Program):
            self.runnable.snapshot()
        self.source = self.runnable if isinstance(self.runnable, Program) else self.runnable.source
        # A TOSA graph that no lowering of tosaic returned, and that has no sidecar, is bare: its inputs and
        # outputs have the shapes and dtypes of the graph. Other programs also record the shapes and dtypes of
        # the caller's arrays.
        known = isinstance(self.runnable, Lowered) or self.runnable.qparams_of_sidecar is not None
        self.bare = self.runnable.stage == "tosa" and not known
        self.quantized = is_quantized(self.runnable, self.source)
        # Lowered values have the qparams of the graph that they were legalized from.
        self.canonical = canonical_graph(self.runnable)

    def join_divided(self, first: _Side, samples: Sequence[Sample]) -> bool:
        """Takes the program before values were divided, if both compute the same from all samples.

        The divided program has parts of values instead of those that the other program has. Returns True if
        the program is another one now.
        """
        lowered = self.runnable
        whole = lowered.whole() if isinstance(lowered, Lowered) else lowered
        if whole is lowered or not is_same_program(lowered, whole, first.runnable, first.source, samples):
            return False
        self.runnable = whole
        return True

    def losses(self) -> list[SaturatedBias | CollapsedOperand]:
        """Returns the losses of the program before the comparison."""
        graph, lowered = self.source.graph, tosa_graphs(self.runnable)
        return [*saturated_biases(graph), *collapsed_operands(graph, *lowered)]

    @property
    def has_qparams(self) -> bool:
        """True if the qparams of the program's integers are known."""
        return self.canonical is not None or self.runnable.stage in ("quantized", "integer")


def compare_programs(
    a: Any,
    b: Any,
    samples: Any,
    *,
    threshold_db: float,
    local: bool,
    bind: Any,
    operators: Sequence[ForeignOp] = (),
    models: Any = None,
    trust: bool = False,
) -> Comparison:
    """See `tosaic.compare`."""
    if isinstance(b, SplitLowered):
        b, models = b.reached_by(models)
    sides = (
        _Side(a, bind, operators, _described(b), trust),
        _Side(b, bind, operators, _described(a), trust),
    )
    # A group of a split program, or a delegate of a .pte file, is one node, whose local error has no bound.
    local = local and not any(isinstance(each, SplitLowered) for each in (a, b))
    local = local and not any(isinstance(side.runnable, PteMethodProgram) for side in sides)
    pair = _Pair(*sides, threshold_db, local, Models(models))
    listed = list(single_samples(read_samples(samples, pair.a.source), pair.a.source))
    joined = [side.join_divided(sides[0], listed) for side in sides] if models is None else []
    if any(joined):
        pair = _Pair(*sides, threshold_db, local, Models(models))
    results = pair.compare(listed)
    outputs = [result.outputs for result in results]
    return Comparison(
        name_a=f"{pair.a.name} (torch)" if pair.a.exported is not None else pair.a.name,
        name_b=pair.b.name,
        outputs=tuple(OutputRow.worst_of(rows) for rows in zip(*outputs, strict=True)),
        rows=_merge_rows([result.rows for result in results]),
        unmatched=results[0].unmatched,
        threshold_db=threshold_db,
        samples=len(results),
        models=pair.model_rows,
        against_floats=pair.against_floats,
        other_qparams=any(result.other_qparams for result in results),
        notes=tuple(dict.fromkeys(str(lost) for side in sides for lost in side.losses())),
    )


@dataclass(frozen=True)
class _Result:
    outputs: tuple[OutputRow, ...]
    rows: tuple[CompareRow, ...]
    unmatched: tuple[Unmatched, ...]
    other_qparams: bool

    @property
    def nearness(self) -> tuple[bool, float]:
        """A sort key for results with different layouts of a file's inputs; the best has the greatest key."""
        ok = all(row.ok for row in self.outputs) and all(row.ok for row in self.rows)
        return ok, min((row.metrics.sqnr_db for row in self.outputs), default=0.0)


@dataclass(frozen=True)
class _OutputPair:
    """Two outputs to compare: indices into the outputs of a's and b's graph, or a variable instead of `b`.

    `qparams` are the qparams of b's integers, if b does not know them. `orders` are the dim orders that b's
    output may have; empty if b knows the order.
    """

    a: int
    b: int
    qparams: Any = None
    orders: Sequence[tuple[int, ...]] = ()
    variable: str = ""


class _Pair:
    def __init__(self, a: _Side, b: _Side, threshold_db: float, local: bool, models: Models) -> None:
        self.a = a
        self.b = b
        self._deviations = Deviations()
        self._modelled = models.of(b.runnable.graph, b.runnable.overrides, self._deviations)
        self.model_rows: tuple[ModelRow, ...] = ()  # of the layout that `compare` has chosen
        self._graph_b = self._modelled.graph
        self._threshold_db = threshold_db
        self._local = local
        self._file: FileBoundary | None = None
        if b.bare and not a.bare:
            self._file = FileBoundary(b.runnable.graph, a.runnable.graph, a.source.graph)
        if self._file is None:
            require_same_inputs(a.runnable, b.runnable)
        self._run: tuple[Sample, EagerRun | None, EagerRun | None] | None = None
        self._outputs = self._paired_outputs()
        # If program a rounds, a small difference may become a whole step of the integers. Outputs are then
        # judged by their local errors, not by their distance to the reference.
        self._rounds = any(node.op in _ROUNDING for node in a.runnable.graph.nodes)
        self._graph_a, self._traced = a.runnable.graph, True
        # A reference of floats has no bounds for b if b is quantized: outputs are judged by the threshold.
        self.against_floats = b.quantized and not a.quantized
        # Values that are not numbers, such as indices: quantization may change the decision.
        values: Iterable[_core.Value] = a.runnable.graph.values if self.against_floats else ()
        self._decisions = {value.name for value in values if not is_float(value.dtype)}
        is_whole = self._graph_b is not b.runnable.graph  # one model computes the whole graph
        if not is_whole and (self.against_floats or (b.quantized and a.runnable.stage != "exported")):
            self._graph_b = _core.before_integers(b.runnable.graph)  # values have qparams, not nodes
        whole = a.runnable.stage == self._graph_b.stage == "quantized"
        has_integers = any(node.op in _INTEGER for node in b.runnable.graph.nodes)
        if self._rounds and not has_integers and not whole and a.runnable.stage != "exported":
            self._local = False  # no qparams say which numbers the integers of a represent
        if self._rounds and (has_integers or b.runnable.stage == "quantized"):
            self._graph_a, self._traced = _core.before_integers(a.runnable.graph), False

    def _left_out_nodes(self) -> set[str]:
        """Returns the FX nodes that quantize or dequantize and that only one of the programs has."""
        if not self.against_floats and self._graph_a.stage != "quantized":
            return set()
        a, b = self.a.source.graph, self.b.source.graph
        return quantizers_of_one(a, self._graph_b) | quantizers_of_one(b, self._graph_a)

    def _paired_outputs(self) -> list[_OutputPair]:
        graph_a, graph_b = self.a.runnable.graph, self.b.runnable.graph
        if self._file is not None:
            orders = self._file.output_orders
            return [
                *(
                    _OutputPair(i, k, self._file.output_qparams(k), orders(i))
                    for k, i in enumerate(self._file.outputs)
                ),
                *(_OutputPair(i, 0, None, orders(i), name) for i, name in self._file.variables),
            ]
        known = {(port.kind, port.path): i for i, port in reversed(list(enumerate(graph_b.outputs)))}
        users_a, users_b = (
            [i for i, port in enumerate(graph.outputs) if port.kind == "user"] for graph in (graph_a, graph_b)
        )
        paired = [known.get((port.kind, port.path)) for port in graph_a.outputs]
        if any(paired[i] is None for i in users_a) or len(users_a) != len(users_b):
            if len(users_a) != len(users_b):
                raise invalid(
                    "compare",
                    "the programs have different outputs",
                    expected=f"{len(users_a)}",
                    got=f"{len(users_b)}",
                )
            paired = [None] * len(paired)
            for i, k in zip(users_a, users_b, strict=True):
                paired[i] = k
        recorded = self._recorded_qparams
        return [_OutputPair(i, k, recorded(i, k)) for i, k in enumerate(paired) if k is not None]

    def _recorded_qparams(self, i: int, k: int) -> Any:
        """Returns the sidecar's qparams of an output of b, if b has integers and a floats; else None."""
        a, b = self._outputs_a[i], self._outputs_b[k]
        if not isinstance(self.b.runnable, PteMethodProgram) or not is_float(a.dtype) or is_float(b.dtype):
            return None
        found = (self.b.runnable.qparams_of_sidecar or {}).get(b.path, ())
        return found[0] if len(found) == 1 else None

    def compare(self, samples: Sequence[Sample]) -> list[_Result]:
        """Returns the result of each sample. All samples use the same layout of a file's inputs."""
        if self._file is None:
            results = [self._compare(sample, None) for sample in samples]
            self.model_rows = self._deviations.rows
            return results
        first = self._logical(samples[0])
        best: list[_Result] = []
        for form in itertools.islice(self._file.forms(first), _MOST_FORMS):
            self._deviations.clear()
            found: list[_Result] = []
            for sample in samples:
                found.append(self._compare(sample, form))
                if best and not found[-1].nearness[0]:
                    break
            right = len(found) == len(samples) and all(result.nearness[0] for result in found)
            if right or not best or found[0].nearness > best[0].nearness:
                found += [self._compare(sample, form) for sample in samples[len(found) :]]
                best = found
                self.model_rows = self._deviations.rows
            if right:
                break
        return best

    def _compare(self, sample: Sample, form: Any) -> _Result:
        logical = self._logical(sample)
        arrays_a = arrays_for(self.a.runnable, logical)
        if self._file is None:
            arrays_b = arrays_for(self.b.runnable, logical)
        else:
            arrays_b = self._file.arrays(logical, form)
        if self._run is None or self._run[0] is not sample:
            self._run = sample, *self._eager(arrays_a)
        return self._compare_arrays(arrays_a, arrays_b, *self._run[1:])

    def _logical(self, sample: Sample) -> Logical:
        return logical_arrays(sample, self.a.runnable, self.a.source)

    def _functions(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the override functions of a and of b.

        A function for a foreign operator serves both sides.
        """
        a, b = (side.runnable.overrides for side in (self.a, self.b))
        graph_a, graph_b = self._graph_a, self._graph_b
        for_b = {**of_foreign_nodes(graph_b, a.functions), **b.functions_for(graph_b)}
        return (
            {**of_foreign_nodes(graph_a, b.functions), **a.functions_for(graph_a)},
            {} if self._modelled.graph is not self.b.runnable.graph else for_b,
        )

    def _eager(self, arrays: Sequence[_Array]) -> tuple[EagerRun | None, EagerRun | None]:
        """Runs a in torch and, if a rounds, also without rounding; None represents a run that is omitted."""
        if self.a.exported is None:
            return None, None
        from tosaic.fx.running.eager import run_eager

        leaves = _leaves(self.a.runnable, arrays)
        run = run_eager(self.a.exported, leaves)
        plain = run_eager(self.a.exported, leaves, trace=False, rounding=False) if self._rounds else None
        return run, plain

    def _compare_arrays(
        self,
        arrays_a: Sequence[_Array],
        arrays_b: Sequence[_Array],
        eager: EagerRun | None,
        unrounded: EagerRun | None,
    ) -> _Result:
        functions_a, functions_b = self._functions()
        nodes_a, ops_a = split_functions(functions_a, self._graph_a)
        nodes_b, ops_b = split_functions(functions_b, self._graph_b)
        expected = [None if eager is None else self._torchs(pair.a, eager, None) for pair in self._outputs]
        found = _core.compare(
            self._graph_a,
            self._graph_b,
            arrays_a,
            inputs_b=arrays_b,
            threshold_db=self._threshold_db,
            local=self._local,
            traces=eager.trace if eager is not None and self._traced else None,
            outputs=[
                {**vars(pair), "expected": array} for pair, array in zip(self._outputs, expected, strict=True)
            ],
            override_nodes=nodes_b,
            override_ops=ops_b,
            override_nodes_a=nodes_a,
            override_ops_a=ops_a,
            models=self._modelled.functions,
            bounds=not self.against_floats,
            canonical_a=self.a.canonical if self.b.has_qparams else None,
            canonical_b=self.b.canonical,
            left_out=self._left_out_nodes(),
            quantized_b=_core.before_integers(self.b.source.graph) if self.against_floats else None,
        )
        rows = tuple(CompareRow.of(row) for row in found["rows"])
        unmatched = [Unmatched(**item) for item in found["unmatched"]]
        if self.against_floats and self.b.bare:  # a float dtype may hold numbers or integers
            unmatched = [Unmatched(row.fx_name, _UNKNOWN_NUMBERS) for row in rows] + unmatched
            rows = ()
        if eager is not None:
            unmatched += [Unmatched(name, reason) for name, reason in eager.skipped.items()]
        diverges = any(
            not row.total.sqnr_db >= self._threshold_db for row in rows if row.value_a not in self._decisions
        )
        outputs = tuple(
            self._output_row(pair, arrays, eager, unrounded, diverges)
            for pair, arrays in zip(self._outputs, found["outputs"], strict=True)
        )
        return _Result(outputs, rows, tuple(unmatched), found["other_qparams"])

    def _output_row(
        self,
        pair: _OutputPair,
        arrays: Any,
        eager: EagerRun | None,
        unrounded: EagerRun | None,
        diverges: bool,
    ) -> OutputRow:
        port = self._outputs_a[pair.a]
        path = port.path or port.value.name
        if arrays["b"] is None:
            other = self._outputs_b[pair.b]
            raise invalid(
                "compare",
                f"output '{path}' has another shape",
                expected=type_text(port.dtype, port.shape),
                got=type_text(other.dtype, other.shape),
            )
        expected = arrays["a"] if eager is None else self._torchs(pair.a, eager, arrays["a"])
        metrics = Metrics.of(_core.metrics(expected, arrays["b"]))
        rounding_db = None
        if unrounded is not None:
            plain = self._torchs(pair.a, unrounded, None)
            if plain is not None and is_float_array(expected):
                rounding_db = Metrics.of(_core.metrics(plain, expected)).sqnr_db
        share = arrays["local_share"]
        carried = arrays["carried_share"]
        is_rounding = carried is not None and carried <= 1 and self._threshold_db <= THRESHOLD_DB
        near = metrics.sqnr_db >= self._threshold_db or is_rounding
        ok = self._is_right(near, share, is_float_array(expected), diverges) or (
            self._rounds
            and not self.against_floats
            and pair.a in self._never_rounded
            and (
                metrics.sqnr_db >= _DB_OF_16_BITS
                or (near and metrics.max_abs <= self._unit_of_counts(pair.b))
            )
        )
        return OutputRow(path, metrics, share, rounding_db, ok)

    def _is_right(self, near: bool, share: float | None, is_float: bool, diverges: bool) -> bool:
        if share is None:
            return near
        if self.against_floats:  # b may decide differently between numbers
            return near or (share <= 1 and not diverges)
        if self._rounds:
            return share <= 1
        if is_float:
            return share <= 1 and near
        # Integers may depend on a decision between floats that are nearly equal, such as argmax. A different
        # decision is right as long as no value is below the threshold.
        return share <= 1 and (near or not diverges)

    def _torchs(self, index: int, eager: EagerRun, otherwise: Any) -> Any:
        """Returns torch's result for an output of a's graph; `otherwise` if torch has no such result."""
        port = self._outputs_a[index]
        if port.kind != "user":
            written = self._leaf_of_input.get(port.mutated_input)
            return eager.mutations.get(port.path, otherwise) if written is None else eager.written[written]
        at = self._place_among_users[index]
        return eager.outputs[at] if at < len(eager.outputs) else otherwise

    @cached_property
    def _outputs_a(self) -> list[_core.Output]:
        return self.a.runnable.graph.outputs

    def _unit_of_counts(self, index: int) -> float:
        """Returns the scale of b's output if it has integers of 32 bits, else 0: such integers are exact."""
        port = self._outputs_b[index]
        if port.qparams is None or port.value.dtype != "i32":
            return 0.0
        return float(max(port.qparams.scales))

    @cached_property
    def _never_rounded(self) -> set[int]:
        """Returns the indices of a's float outputs that are not dequantized integers, nor views of these."""
        producers = {value.name: node for node in self.a.runnable.graph.nodes for value in node.results}

        def is_rounded(value: _core.Value) -> bool:
            node = producers.get(value.name)
            while node is not None and node.op in _VIEWS and node.operands[0] is not None:
                node = producers.get(node.operands[0].name)
            return node is not None and node.op in ("dequantize", *_ROUNDING)

        floats = ((i, port.value) for i, port in enumerate(self._outputs_a) if is_float(port.value.dtype))
        return {i for i, value in floats if not is_rounded(value)}

    @cached_property
    def _outputs_b(self) -> list[_core.Output]:
        return self.b.runnable.graph.outputs

    @cached_property
    def _place_among_users(self) -> dict[int, int]:
        """Returns, by index of a's output, its position among the user's outputs."""
        users = (i for i, port in enumerate(self._outputs_a) if port.kind == "user")
        return {index: position for position, index in enumerate(users)}

    @cached_property
    def _leaf_of_input(self) -> dict[int | None, int]:
        """Returns, by index of a's input, the position of its first leaf in a call of a."""
        leaves = self.a.runnable.signature.input_leaves
        return {leaf.index: at for at, leaf in reversed([*enumerate(leaves)]) if leaf.index is not None}


def _described(source: Any) -> tuple[ForeignOp, ...]:
    """Returns the operator descriptions with which a program was imported, or that it got later."""
    return source.overrides.foreign if isinstance(source, Program | Lowered) else ()


def _leaves(program: Program | Lowered, arrays: Sequence[_Array]) -> list[Any]:
    """Returns the leaves of a call in order, including the constants that export specialised on."""
    users = [i for i, port in enumerate(program.graph.inputs) if port.kind == "user"]
    by_index = dict(zip(users, arrays, strict=True))
    return [
        leaf.value if leaf.index is None else by_index[leaf.index] for leaf in program.signature.input_leaves
    ]


def _merge_rows(samples: Sequence[Sequence[CompareRow]]) -> tuple[CompareRow, ...]:
    by_name: dict[str, list[CompareRow]] = {}
    for rows in samples:
        for row in rows:
            by_name.setdefault(row.fx_name, []).append(row)
    return tuple(CompareRow.worst_of(rows) for rows in by_name.values())


def _name_of(source: Any) -> str:
    if isinstance(source, str | Path):
        return Path(source).name
    if isinstance(source, Lowered):
        return source.target
    if isinstance(source, PteFile | PteMethod):
        return source.name
    if isinstance(source, Program):
        return f"{source.graph.name} @{source.stage}"
    if isinstance(source, _core.Graph):
        return f"{source.name} @{source.stage}"
    return type(source).__name__
