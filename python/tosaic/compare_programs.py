"""Runs two programs on the same inputs and matches their values by origin.

The reference may be torch eager: then the totals are measured against what torch computed for each FX node,
and the local and inherited errors with the imported graph, whose nodes are run on the other side's operands.

A `.tosa` file names no layouts. Its values of rank 3 to 5 are tried as they are and as channels-last, and the
nearer one is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.api import is_exported_program, load_exported, program_of
from tosaic.comparison import CompareRow, Comparison, Metrics, OutputRow, Unmatched, worst
from tosaic.program import Lowered, Port, Program, caller_inputs
from tosaic.samples import Sample, read_samples

if TYPE_CHECKING:
    from tosaic.fx.eager import EagerRun

__all__ = ["compare_programs", "fit_to_ports"]

_CHANNELS_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
_SIMPLIFY = ("fold-constants", "dead-code", "common-subexpressions", "simplify", "fold-batch-norm")
_Array = np.ndarray[Any, Any]


class _Side:
    """One of the two programs: its graph, and torch's own program where there is one."""

    def __init__(self, source: Any, bind: Any) -> None:
        self.name = _name_of(source)
        if isinstance(source, str | Path) and Path(source).suffix == ".pt2":
            source = load_exported(source)
        self.exported = source if is_exported_program(source) else None
        self.orders: dict[str, tuple[int, ...]] = source.orders if isinstance(source, Lowered) else {}
        self.runnable: Program | Lowered = (
            source if isinstance(source, Lowered) else program_of(source, bind=bind)
        )
        if isinstance(self.runnable, Program):
            self.runnable.snapshot()
        # A file carries the arrays in the forms of the file; everything else knows the caller's.
        self._simplified: _core.Graph | None = None
        self.bare = self.runnable.stage == "tosa" and not isinstance(source, Lowered)

    def graphs_for_local_errors(self, *, imported: bool) -> list[_core.Graph]:
        """Graphs whose nodes are run alone: the program's own, and simplified, with fused nodes as one."""
        graph = self.runnable.graph
        graphs = [graph] if imported else []
        if graph.stage == "exported":
            if self._simplified is None:
                self._simplified = graph
                for name in _SIMPLIFY:
                    self._simplified = _core.run_pass(name, self._simplified)
            graphs.append(self._simplified)
        return graphs

    def permutations(self) -> list[dict[str, tuple[int, ...]]]:
        """The layouts to try."""
        if not self.bare:
            return [self.orders]
        values = self.runnable.graph.values
        last = {
            value.name: _CHANNELS_LAST[len(value.shape)]
            for value in values
            if len(value.shape) in _CHANNELS_LAST
        }
        return [{}, last]


def compare_programs(
    a: Any, b: Any, samples: Any, *, threshold_db: float, local: bool, bind: Any
) -> Comparison:
    """See `tosaic.compare`."""
    reference, other = _Side(a, bind), _Side(b, bind)
    source = reference.runnable if isinstance(reference.runnable, Program) else reference.runnable.source
    results = [
        _compare_sample(reference, other, sample, threshold_db, local)
        for sample in read_samples(samples, source)
    ]
    return Comparison(
        name_a=f"{reference.name} (torch)" if reference.exported is not None else reference.name,
        name_b=other.name,
        outputs=_merge_outputs([result[0] for result in results]),
        rows=_merge_rows([result[1] for result in results]),
        unmatched=results[0][2],
        threshold_db=threshold_db,
        samples=len(results),
    )


_Result = tuple[list[OutputRow], list[CompareRow], tuple[Unmatched, ...]]


def _compare_sample(a: _Side, b: _Side, sample: Sample, threshold_db: float, local: bool) -> _Result:
    arrays_a = a.runnable.arrays(*sample.args, **sample.kwargs)
    arrays_b = _arrays_of_other(a, b, arrays_a)
    eager = None
    if a.exported is not None:
        from tosaic.fx.eager import run_eager

        eager = run_eager(a.exported, _leaves(a.runnable, arrays_a))
    outputs_a = a.runnable.run_arrays(arrays_a) if eager is None else _outputs_of(a.runnable, eager)
    outputs = _compare_outputs(
        a.runnable.outputs, outputs_a, b.runnable.outputs, b.runnable.run_arrays(arrays_b)
    )

    found = [
        _match(a, b, arrays_a, arrays_b, eager, permutations, threshold_db, local)
        for permutations in b.permutations()
    ]
    rows, unmatched = _nearer(found)
    return outputs, rows, tuple(unmatched)


_Matched = tuple[list[CompareRow], list[Unmatched]]


def _match(
    a: _Side,
    b: _Side,
    arrays_a: Sequence[_Array],
    arrays_b: Sequence[_Array],
    eager: EagerRun | None,
    permutations: dict[str, tuple[int, ...]],
    threshold_db: float,
    local: bool,
) -> _Matched:
    """Rows of one layout of b: totals against what a computed, errors of single nodes from a's graphs."""

    def against(graph: _core.Graph) -> _Matched:
        return _read(
            _core.compare(
                graph,
                b.runnable.graph,
                arrays_a,
                inputs_b=arrays_b,
                permutations=permutations,
                threshold_db=threshold_db,
                local=local,
            )
        )

    if eager is None:
        rows, unmatched = against(a.runnable.graph)
    else:
        rows, unmatched = _read(
            _core.compare_traces(
                eager.trace, b.runnable.graph, arrays_b, permutations=permutations, threshold_db=threshold_db
            )
        )
    if local:
        for graph in a.graphs_for_local_errors(imported=eager is not None):
            if any(row.local is None for row in rows):
                rows = _with_local_errors(rows, against(graph)[0])
    return rows, unmatched


def _read(source: Mapping[str, Any]) -> _Matched:
    rows = [CompareRow.of(row) for row in source["rows"]]
    return rows, [Unmatched(**item) for item in source["unmatched"]]


def _with_local_errors(rows: list[CompareRow], graphs: list[CompareRow]) -> list[CompareRow]:
    """The rows, with what the graphs know of single nodes: of those behind the same value of b."""
    known = {row.value_b: row for row in graphs}
    out = []
    for row in rows:
        own = known.get(row.value_b)
        if row.local is None and own is not None:
            row = replace(
                row,
                op_a=row.op_a or own.op_a,
                value_a=row.value_a or own.value_a,
                local=own.local,
                inherited=own.inherited,
            )
        out.append(row)
    return out


def _nearer(found: list[_Matched]) -> _Matched:
    """Of several layouts the one in which a node agrees best."""
    if len(found) == 1:
        return found[0]
    best: dict[str, CompareRow] = {}
    for rows, _ in found:
        for row in rows:
            known = best.get(row.fx_name)
            if known is None or row.total.sqnr_db > known.total.sqnr_db:
                best[row.fx_name] = row
    order = _merged_order([[row.fx_name for row in rows] for rows, _ in found])
    unmatched = [item for item in found[0][1] if item.fx_name not in best]
    return [best[name] for name in order], unmatched


def _merged_order(orders: list[list[str]]) -> list[str]:
    """One order that keeps each of the given ones, which do not contradict each other."""
    merged = list(orders[0])
    known = set(merged)
    for order in orders[1:]:
        at = 0
        for name in order:
            if name in known:
                at = merged.index(name) + 1
            else:
                merged.insert(at, name)
                known.add(name)
                at += 1
    return merged


def _outputs_of(program: Program | Lowered, eager: EagerRun) -> list[_Array]:
    """What torch computed, in the order of the program's `outputs`: new values of inputs stand among them."""
    leaf_at = {leaf.index: at for at, leaf in enumerate(program.signature.input_leaves)}
    results = iter(eager.outputs)
    return [
        next(results) if port.mutated_input is None else eager.written[leaf_at[port.mutated_input]]
        for port in program.graph.outputs
        if port.mutated_input is None or port.mutated_input in leaf_at
    ]


def _leaves(program: Program | Lowered, arrays: Sequence[_Array]) -> list[Any]:
    """The leaves of the call, the constants among them included."""
    users = [i for i, port in enumerate(program.graph.inputs) if port.kind == "user"]
    by_index = dict(zip(users, arrays, strict=True))
    return [
        leaf.value if leaf.index is None else by_index[leaf.index] for leaf in program.signature.input_leaves
    ]


def _arrays_of_other(a: _Side, b: _Side, arrays: Sequence[_Array]) -> list[_Array]:
    ports_a, ports_b = a.runnable.inputs, b.runnable.inputs
    places_a, places_b = caller_inputs(ports_a), caller_inputs(ports_b)
    if set(places_a) != set(places_b):
        raise _core.make_error(
            _core.InvalidGraph,
            where="compare",
            what="the programs have different inputs",
            expected=", ".join(f"{port.path or port.name}: {port.type_text}" for port in ports_a),
            got=", ".join(f"{port.path or port.name}: {port.type_text}" for port in ports_b),
        )
    arrays = [arrays[places_a.index(place)] for place in places_b]
    return fit_to_ports(arrays, ports_b) if b.bare else list(arrays)


def fit_to_ports(arrays: Sequence[_Array], ports: Iterable[Port]) -> list[_Array]:
    """Arrays in the forms of a ``.tosa`` file: channels-last where the shape says so, int32 for int64.

    Raises
    ------
    LayoutMismatch
        A number does not fit the narrower dtype.
    """
    return [_fit(array, port) for array, port in zip(arrays, ports, strict=True)]


def _fit(array: _Array, port: Port) -> _Array:
    last = _CHANNELS_LAST.get(array.ndim)
    if array.shape != port.shape and last is not None and tuple(array.shape[i] for i in last) == port.shape:
        array = np.ascontiguousarray(array.transpose(last))
    if array.dtype == np.int64 and port.dtype == "i32":
        narrow = array.astype(np.int32)
        if not np.array_equal(narrow, array):
            raise _core.make_error(
                _core.LayoutMismatch,
                where="inputs",
                what=f"input '{port.path or port.name}' does not fit the dtype of the file",
                expected="numbers of 32 bits",
                got=f"{array.min()} to {array.max()}",
            )
        array = narrow
    return array


def _compare_outputs(
    ports_a: Sequence[Port], arrays_a: Sequence[_Array], ports_b: Sequence[Port], arrays_b: Sequence[_Array]
) -> list[OutputRow]:
    if len(arrays_a) != len(arrays_b):
        raise _core.make_error(
            _core.InvalidGraph,
            where="compare",
            what="the programs have different outputs",
            expected=f"{len(arrays_a)}",
            got=f"{len(arrays_b)}",
        )
    rows = []
    for port_a, array_a, port_b, array_b in zip(ports_a, arrays_a, ports_b, arrays_b, strict=True):
        last = _CHANNELS_LAST.get(array_a.ndim)
        if array_a.shape != array_b.shape and last is not None:
            array_b = array_b.transpose(np.argsort(last))
        path = port_a.path or port_b.path or port_b.name
        rows.append(OutputRow(path, Metrics.of(_core.metrics(array_a, array_b))))
    return rows


def _merge_outputs(samples: Sequence[Sequence[OutputRow]]) -> tuple[OutputRow, ...]:
    return tuple(
        OutputRow(rows[0].path, worst([row.metrics for row in rows])) for rows in zip(*samples, strict=True)
    )


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
    if isinstance(source, Program):
        return f"{source.graph.name} @{source.stage}"
    if isinstance(source, _core.Graph):
        return f"{source.name} @{source.stage}"
    return type(source).__name__
