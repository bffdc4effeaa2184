"""Checks of one random program that is split between claimants. They know nothing of how groups are made.

A run of the split program is recorded: what enters each group, and what leaves it. The same nodes are then
computed one by one, each as its owner computes it: a node of a group is cut out, lowered for the claimant's
target and run, and a node of the host runs on the executor. Integers have to be identical. So an error of a
group, of the host, or of what lies between them is seen where it is made.
"""

from __future__ import annotations

import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from json import loads
from math import prod
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import tosaic
from random_graphs.checking import expected_outputs
from random_graphs.generate import generate
from random_graphs.quantized import differing
from tosaic import _core
from tosaic.base.dtypes import BITS, is_float

from partitions.random_programs import RandomProgram, calls_of_nodes, decides, random_program

__all__ = ["check_program"]

Array = np.ndarray[Any, Any]
_SAVED = 8
"""One program of this many is saved."""


def check_program(seed: int, counts: Counter[str]) -> list[str]:
    """Splits the program of a seed and checks it. Returns what is wrong, also errors, and adds to counts."""
    try:
        case = random_program(seed)
        return [f"{case.kind}: {fault}" for fault in _faults(case, counts)]
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"]


def _faults(case: RandomProgram, counts: Counter[str]) -> list[str]:
    split = tosaic.lower(case.program, unsupported="split", claimants=case.claimants)
    loose = tosaic.partition(case.program, case.claimants, connected=False)
    check = _SplitCheck(case, split)
    faults = [
        *check_plan(case, split.partitions, connected=True),
        *(f"connected=False: {fault}" for fault in check_plan(case, loose, connected=False)),
        *check.ports(),
        *check.layout(),
        *check.run(counts),
    ]
    if case.seed % _SAVED == 0:
        faults += check.saved()
        counts["saved"] += 1
    counts[case.kind] += 1
    counts["nodes"] += len(split.partitions.group_of)
    for group in split.partitions.groups:
        counts["groups"] += 1
        counts[f"groups of {case.claimant(group.claimant).kind}"] += 1
    return faults


# ---- the plan ----


def check_plan(
    case: RandomProgram, plan: tosaic.partitions.PartitionPlan, *, connected: bool
) -> Iterable[str]:
    """Says what is wrong with the groups of a plan, by the names of their nodes."""
    owner = {name: group.index for group in plan.groups for name in group.nodes}
    if len(owner) != sum(len(group.nodes) for group in plan.groups):
        yield "a node is in two groups"
    graph = _graph_of(plan.graph)
    block = {name: ("group", owner[name]) if name in owner else ("node", name) for name in graph}
    quotient = nx.DiGraph((block[a], block[b]) for a, b in graph.edges if block[a] != block[b])
    if not nx.is_directed_acyclic_graph(quotient):
        yield f"groups wait for each other: {nx.find_cycle(quotient)}"
    nodes = {node.name: node for node in plan.graph.nodes}
    values = {value.name: value for value in plan.graph.values}
    for group in plan.groups:
        claimant = case.claimant(group.claimant)
        yield from _check_group(group, claimant, graph, nodes, connected)
        floats = [each for each in (*group.inputs, *group.outputs) if is_float(values[each].dtype)]
        floats = [each for each in floats if not _may_cross(values[each], set(group.nodes), claimant)]
        if floats and _has_integers_only(claimant):
            yield f"{group.name} of {claimant.name} has floats at its border: {floats}"
    for claimant, at_least in zip(case.claimants, plan.at_least, strict=True):
        if sum(group.claimant == claimant.name for group in plan.groups) < at_least:
            yield f"{claimant.name} has fewer than {at_least} groups, which is said to be the least"
    yield from _check_borders(plan, owner)
    yield from _check_reasons(case, plan, owner)


def _graph_of(graph: _core.Graph) -> nx.DiGraph:
    found = nx.DiGraph()
    for node in graph.nodes:
        found.add_node(node.name)
        for value in node.operands:
            if value is not None and value.producer is not None:
                found.add_edge(value.producer.name, node.name)
    return found


def _check_group(
    group: tosaic.partitions.Group,
    claimant: tosaic.Claimant,
    graph: nx.DiGraph,
    nodes: Mapping[str, _core.Node],
    connected: bool,
) -> Iterable[str]:
    members = set(group.nodes)
    before = set().union(*(nx.ancestors(graph, name) for name in members)) - members
    after = set().union(*(nx.descendants(graph, name) for name in members)) - members
    if before & after:
        yield f"{group.name} is not convex: {before & after}"
    if connected and claimant.connected and not nx.is_weakly_connected(graph.subgraph(members)):
        yield f"{group.name} is not connected"
    if len(members) < claimant.least_size:
        yield f"{group.name} has {len(members)} nodes, {claimant.name} wants {claimant.least_size}"
    calls = calls_of_nodes(nodes.values())
    denied = [name for name in group.nodes if decides(claimant, nodes[name], calls[name]) is False]
    if denied:
        yield f"{group.name} has {denied}, which {claimant.rules} deny"


def _check_borders(plan: tosaic.partitions.PartitionPlan, owner: Mapping[str, int]) -> Iterable[str]:
    expected: dict[str, tuple[Any, ...]] = {}
    inputs: dict[int, set[str]] = {group.index: set() for group in plan.groups}
    outputs: dict[int, set[str]] = {group.index: set() for group in plan.groups}
    for value in plan.graph.values:
        if value.kind == "constant":
            continue
        made_by = owner.get(value.producer.name) if value.producer is not None else None
        readers = {owner.get(user.name) for user in value.users} | ({None} if value.is_output else set())
        if others := readers - {made_by}:
            expected[value.name] = (value.dtype, tuple(value.shape), value.qparams, made_by, others)
            for reader in others - {None}:
                inputs[reader].add(value.name)
            if made_by is not None:
                outputs[made_by].add(value.name)
    found = {
        each.value: (each.dtype, each.shape, each.qparams, each.made_by, set(each.read_by))
        for each in plan.borders
    }
    if found != expected:
        differing_names = {k for k in {*found, *expected} if found.get(k) != expected.get(k)}
        yield f"the table of borders is wrong for {differing_names}"
    for group in plan.groups:
        if (set(group.inputs), set(group.outputs)) != (inputs[group.index], outputs[group.index]):
            yield f"{group.name} has inputs {group.inputs} and outputs {group.outputs}"


def _check_reasons(
    case: RandomProgram, plan: tosaic.partitions.PartitionPlan, owner: Mapping[str, int]
) -> Iterable[str]:
    names = [claimant.name for claimant in case.claimants]
    verdicts = [claimant.verdicts(plan.graph) for claimant in case.claimants]
    for i, node in enumerate(plan.graph.nodes):
        group = owner.get(node.name)
        asked = len(names) if group is None else names.index(plan.groups[group].claimant)
        if group is not None and not verdicts[asked][i].supported:
            yield f"{names[asked]} takes {node.name}, which it does not support"
        given = {each.claimant for each in plan.refusals[i]}
        if given != set(names[:asked]):
            yield f"{node.name} has reasons of {given}, and {names[:asked]} were asked"


def _may_cross(value: _core.Value, members: set[str], claimant: tosaic.Claimant) -> bool:
    """True if only conversions read or make a float, and the claimant has kernels for conversions."""
    inside = [node for node in (value.producer, *value.users) if node is not None and node.name in members]
    converting = all(node.op in ("quantize", "dequantize") for node in inside)
    return converting and claimant.kind in ("cortex-m55", "neutron")


def _has_integers_only(claimant: tosaic.Claimant) -> bool:
    return claimant.kind != "host" and "FP" not in claimant.target.split("+")


# ---- the parts, their layout and their runs ----


class _SplitCheck:
    def __init__(self, case: RandomProgram, split: tosaic.partitions.SplitLowered) -> None:
        self.case, self.split, self.plan = case, split, split.partitions
        self.graph = self.plan.graph
        self.nodes = {node.name: node for node in self.graph.nodes}
        self.values = {value.name: value for value in self.graph.values}
        self.owner = {name: group.index for group in self.plan.groups for name in group.nodes}

    # ---- ports ----

    def ports(self) -> Iterable[str]:
        """Says which inputs and outputs of parts differ from the values that cross there."""
        for group, part in zip(self.plan.groups, self.split.parts, strict=True):
            claimant = self.case.claimant(group.claimant)
            target = part.target if isinstance(part, tosaic.Lowered) else ""
            if target != claimant.arithmetic:
                yield f"{group.name} is lowered to {target}, not to {claimant.arithmetic}"
            for names, ports in ((group.inputs, part.inputs), (group.outputs, part.outputs)):
                for name, port in zip(names, ports, strict=True):
                    yield from self._check_port(f"{group.name} of {claimant.name}", name, port, claimant)

    def _check_port(
        self, where: str, name: str, port: tosaic.ports.Port, claimant: tosaic.Claimant
    ) -> Iterable[str]:
        value = self.values[name]
        if (port.dtype, port.shape) != (value.dtype, tuple(value.shape)):
            yield f"{where}: {name} is {value.dtype}{value.shape}, its port is {port.type_text}"
        if value.qparams is not None and port.quantized != (value.qparams,):
            yield f"{where}: {name} has {value.qparams}, its port has {port.quantized}"
        floats = any(is_float(each.dtype) for each in port.tensors)
        if floats and claimant.target and _has_integers_only(claimant):
            yield f"{where}: tensor {port.tensors} has floats"

    # ---- layout ----

    def layout(self) -> Iterable[str]:
        """Says whether groups for TOSA transpose what their plans do not, or more than the whole program.

        A value that several groups read in an order in which it is not made is transposed by each of them.
        The plan of the whole program transposes it once, so it is not a bound if there is such a value.
        Without profile INT, integers beyond 24 bits are moved as two halves in f32, which a plan counts once.
        """
        total = 0
        for group, part in zip(self.plan.groups, self.split.parts, strict=True):
            if not isinstance(part, tosaic.Lowered) or not self.case.claimant(group.claimant).target:
                continue
            moved = [node.results[0] for node in part.graph.nodes if node.op == "tosa.transpose"]
            size = sum(prod(value.shape) * BITS[value.dtype] // 8 for value in moved)
            planned = part.layout.bytes
            halves = self._bytes_of_integers(part) if "INT" not in part.target.split("+") else 0
            if not planned <= size <= planned + halves:
                yield f"{group.name} transposes {size} bytes, its plan has {planned}"
            total += planned + self._converted(group, part)
        if total > self.split.transposed_bytes and not self._is_shared():
            yield f"the parts transpose {total} bytes, the plan has {self.split.transposed_bytes}"

    @staticmethod
    def _bytes_of_integers(part: tosaic.Lowered) -> int:
        """The bytes of integers that the plan of a group transposes."""
        dtypes = {value.name: value.dtype for value in part.stages["canonical"].values}
        return sum(each.bytes for each in part.layout.transposes if not is_float(dtypes[each.value]))

    def _is_shared(self) -> bool:
        """Whether several parts of the program read the same value."""
        readers: dict[str, set[int | None]] = {}
        for node in self.graph.nodes:
            for value in node.operands:
                if value is not None and value.kind != "constant":
                    readers.setdefault(value.name, set()).add(self.owner.get(node.name))
        return any(len(each) > 1 for each in readers.values())

    def _converted(self, group: tosaic.partitions.Group, part: tosaic.Lowered) -> int:
        """The bytes at the inputs of a group that another group or the caller has in another order."""
        size = 0
        for name, port in zip(group.inputs, part.inputs, strict=True):
            given = self._given_order(name)
            if given is not None and _real(given, port.shape) != _real(port.dim_order, port.shape):
                size += prod(port.shape) * min(BITS[port.dtype], 32) // 8
        return size

    def _given_order(self, name: str) -> tuple[int, ...] | None:
        """The order in which a value is made, if the host does not make it."""
        producer = self.values[name].producer
        if producer is None:
            return next(tuple(each.dim_order) for each in self.graph.inputs if each.value.name == name)
        if producer.name not in self.owner:
            return None
        made_by = self.owner[producer.name]
        if not isinstance(self.split.parts[made_by], tosaic.Lowered):
            return None
        outputs = self.plan.groups[made_by].outputs
        return self.split.parts[made_by].outputs[outputs.index(name)].dim_order

    # ---- runs ----

    def run(self, counts: Counter[str]) -> Iterable[str]:
        """Says where a run differs from the nodes computed one by one, and from the unsplit program."""
        crossed: dict[str, tuple[list[Array], list[Array]]] = {}
        prepared = self.split.prepare(
            models={group.name: _recording(group.name, crossed) for group in self.plan.groups}
        )
        arrays = self.split.arrays(*self.case.args)
        results = prepared.run_arrays(arrays)
        if missing := {group.name for group in self.plan.groups} - set(crossed):
            yield f"{missing} did not run"
            return
        yield from self._compare("a second run", self.split.run_arrays(arrays), results, exact=True)
        yield from self._check_crossed(crossed, arrays, results)
        on_reference = self.split.prepare(on="reference").run_arrays(arrays)
        yield from self._compare("the reference model", on_reference, results, exact=False)
        yield from self._check_whole(arrays, results, counts)

    def _compare(
        self, where: str, found: Sequence[Array], wanted: Sequence[Array], *, exact: bool
    ) -> Iterable[str]:
        for port, a, b in zip(self.split.outputs, found, wanted, strict=True):
            if text := _difference(np.asarray(a), np.asarray(b), exact):
                yield f"{where}: output {port.path}: {text}"

    def _check_crossed(
        self, crossed: Mapping[str, Any], arrays: Sequence[Array], results: Sequence[Array]
    ) -> Iterable[str]:
        known = dict(zip((each.value.name for each in self.graph.inputs), arrays, strict=True))
        for group in self.plan.groups:
            known.update(zip(group.outputs, crossed[group.name][1], strict=True))
        for name in nx.topological_sort(_graph_of(self.graph)):
            if name not in self.owner:
                known.update(_run_alone(self.graph, [self.nodes[name].id], known, None))
        for group in self.plan.groups:
            for name, array in zip(group.inputs, crossed[group.name][0], strict=True):
                if text := _difference(array, known[name], exact=True):
                    yield f"{group.name}: its input {name}: {text}"
            yield from self._check_results(group, known, crossed[group.name][1])
        known.update({name: each.array for name, each in self.graph.constants.items()})
        wanted = [known[each.value.name] for each in self.graph.outputs]
        yield from self._compare("the host", results, wanted, exact=True)

    def _check_results(
        self, group: tosaic.partitions.Group, known: Mapping[str, Array], found: Sequence[Array]
    ) -> Iterable[str]:
        claimant = self.case.claimant(group.claimant)
        units = self._units(group) if claimant.arithmetic else [[self.nodes[n].id] for n in group.nodes]
        inside = {name: known[name] for name in group.inputs}
        exact = not self._has_floats(group)
        while units:
            ready = [unit for unit in units if _needs(self.graph, unit) <= set(inside)]
            for unit in ready:
                inside.update(_run_alone(self.graph, unit, inside, claimant))
            units = [unit for unit in units if unit not in ready]
        for name, array in zip(group.outputs, found, strict=True):
            if text := _difference(array, inside[name], exact):
                yield f"{group.name} of {claimant.name}: its output {name}: {text}"

    def _units(self, group: tosaic.partitions.Group) -> list[list[int]]:
        """The nodes of a group, and the regions of floats that only mean integers as a whole."""
        members = {self.nodes[name].id for name in group.nodes}
        regions = [unit for unit in self._regions if members.issuperset(unit)]
        together = {node for unit in regions for node in unit}
        return [*regions, *([node] for node in sorted(members - together))]

    @cached_property
    def _regions(self) -> list[list[int]]:
        return _core.float_regions(self.graph)

    def _has_floats(self, group: tosaic.partitions.Group) -> bool:
        values = [
            value for name in group.nodes for value in (*self.nodes[name].operands, *self.nodes[name].results)
        ]
        return any(value is not None and is_float(value.dtype) for value in values)

    def _check_whole(
        self, arrays: Sequence[Array], results: Sequence[Array], counts: Counter[str]
    ) -> Iterable[str]:
        if not self.case.is_quantized:
            counts["compared with the program"] += 1
            wanted = self.case.program.run_arrays(arrays)
            yield from self._compare("the unsplit program", results, wanted, exact=False)
            yield from self._check_torch(results)
            return
        whole = self._whole()
        if whole is not None:
            counts["compared with the lowered program"] += 1
            yield from self._compare("the unsplit program", results, whole.run_arrays(arrays), exact=False)

    def _check_torch(self, results: Sequence[Array]) -> Iterable[str]:
        if self.case.kind != "torch":
            return
        for wanted, found in zip(expected_outputs(generate(self.case.seed)), results, strict=True):
            if text := wanted.disagreement(found, in_sequence=True):
                yield f"torch: {text}"

    def _whole(self) -> tosaic.Lowered | None:
        """The unsplit program for the target of all groups. None: nodes of the host have other arithmetic."""
        hosted = {node.op for name, node in self.nodes.items() if name not in self.owner}
        targets = {self.case.claimant(group.claimant).target for group in self.plan.groups}
        if len(targets) != 1 or targets == {""} or not hosted <= {"quantize", "dequantize"}:
            return None
        try:
            return tosaic.lower(self.case.program, target=targets.pop())
        except (tosaic.UnsupportedOp, tosaic.SpecViolation):
            return None

    # ---- files ----

    def saved(self) -> Iterable[str]:
        """Says which files of the saved folder cannot be read, or are other parts."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = self.split.save(folder)
            present = {each for each in folder.iterdir() if each.suffix in (".tosa", ".tosaic")}
            if {*files} != present | {folder / "partitions.json"}:
                yield f"the folder has {present}, not {files}"
            listing = loads(files[-1].read_text())
            for entry, group, part in zip(listing["groups"], self.plan.groups, self.split.parts, strict=True):
                if (entry["claimant"], tuple(entry["nodes"])) != (group.claimant, group.nodes):
                    yield f"{group.name} is listed as {entry}"
                for file in {entry["file"], entry["arithmetic"]} - {None}:
                    yield from _check_file(folder / file, entry, part)
            host = tosaic.load(folder / listing["host"])
            if host.graph.text() != self.split.host.graph.text():
                yield "the host is another one when it is read"


def _check_file(path: Path, entry: Mapping[str, Any], part: tosaic.Lowered | tosaic.Program) -> Iterable[str]:
    is_tosa = path.suffix == ".tosa"
    read = tosaic.load_tosa(path) if is_tosa else tosaic.load(path)
    for side in ("inputs", "outputs"):
        wanted = [(port.type_text, port.dim_order) for port in getattr(part, side)]
        listed = [(each["type"], tuple(each["dim_order"])) for each in entry[side]]
        loaded = [(port.type_text, port.dim_order) for port in getattr(read, side)]
        if not is_tosa:  # the listing has the dim orders
            loaded = [(text, order) for (text, _), (_, order) in zip(loaded, listed, strict=True)]
        if not wanted == listed == loaded:
            yield f"{path.name} has {side} {loaded}, the listing {listed}, the part {wanted}"


def _real(order: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The order without the axes of extent 1, whose place in memory means nothing."""
    return [axis for axis in order if shape[axis] != 1]


def _recording(name: str, crossed: dict[str, Any]) -> Any:
    def model(call: Any) -> Any:
        result = call.default()
        results = result if isinstance(result, tuple | list) else [result]
        crossed[name] = (list(call.operands), [np.array(each) for each in results])
        return result

    return model


def _needs(graph: _core.Graph, unit: Sequence[int]) -> set[str]:
    nodes = [graph.nodes[i] for i in unit]
    made = {value.name for node in nodes for value in node.results}
    read = {v.name for node in nodes for v in node.operands if v is not None and v.kind != "constant"}
    return read - made


def _run_alone(
    graph: _core.Graph, unit: Sequence[int], known: Mapping[str, Array], owner: tosaic.Claimant | None
) -> dict[str, Array]:
    """Computes nodes that are cut out of the graph, in the arithmetic of their owner. None: the host."""
    flags = np.full(len(graph.nodes), -1)
    flags[list(unit)] = 0
    part, inputs, outputs = _core.split(graph, flags)[1][0]
    program = tosaic.program.from_graph(part)
    if owner is not None and owner.arithmetic:
        program = _lowered(part, owner)
    found = program.run_arrays(
        [_in_order(known[name], port) for name, port in zip(inputs, program.inputs, strict=True)]
    )
    return dict(zip(outputs, found, strict=True))


def _lowered(part: _core.Graph, owner: tosaic.Claimant) -> tosaic.Lowered:
    if "INT" not in owner.arithmetic.split("+"):
        part = _core.unfold_qdq(part)
    lowered = _core.lower(part, pipeline=owner.arithmetic, semantics=owner.semantics)
    return tosaic.Lowered(lowered, tosaic.Program(part), target=owner.arithmetic, seconds=0.0)


def _in_order(array: Array, port: tosaic.ports.Port) -> Array:
    order = port.dim_order
    return np.asarray(np.transpose(array, order), order="C").transpose(np.argsort(order))


def _difference(found: Array, wanted: Array, exact: bool) -> str:
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return f"{found.dtype}{found.shape}, expected {wanted.dtype}{wanted.shape}"
    if exact:
        wrong = 0 if found.tobytes() == wanted.tobytes() else int((found != wanted).sum())
        wrong = wrong if wrong or not np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f") else 0
    else:
        wrong = differing(found, wanted)
    return f"{wrong} of {found.size} elements differ" if wrong else ""
