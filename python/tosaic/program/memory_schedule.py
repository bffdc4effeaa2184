"""Schedules of programs: of a program on the host, of a lowered program, and of a split one.

A group takes and returns arrays of its own dtypes and dim orders. If the caller or a node of the host has
another dtype or order, a conversion is a separate step, whose result is a tensor like any other:

    image f32 -> to group0 -> i8, channels last -> group0 -> i8, channels last -> to relu -> i8, row-major

Between two groups with the same dtype and order, nothing is converted. Elementwise nodes of the host
compute in the order of their operands; all other nodes take and return row-major arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.dim_order import is_same_order
from tosaic.base.dtypes import BITS, bytes_of, is_float
from tosaic.base.operator_facts import elementwise_operators
from tosaic.memory.buffers import CALLER, CONSTANTS
from tosaic.memory.plan_options import PlanOptions
from tosaic.memory.planner import plan_schedule
from tosaic.memory.schedule import HOST, Internal, Schedule, Step, Value
from tosaic.ports.ports import caller_outputs, first_inputs

if TYPE_CHECKING:
    from tosaic.ports.ports import Port
    from tosaic.program.prepared import Preparable

_ALIGNMENT = 64
"""The alignment of tensors in a scratch buffer, in bytes."""


def schedule_of(program: Preparable, parts: Mapping[str, Any], *, alignment: int) -> Schedule:
    """Returns the schedule of a program that runs on the host, node by node.

    Parameters
    ----------
    program : Program or SplitLowered
    parts : mapping of str to Program or Lowered
        The parts of a split program, by the name of the group that calls them.
    alignment : int
        A slice is a view of its operand if its first byte is at a multiple of this many bytes.
    """
    graph = program.graph
    if graph.stage == "quantized":
        graph = _core.unfold_qdq(graph, keep_integers=True)
    host = _Host(graph, parts, alignment)
    return host.schedule(program.inputs, program.outputs)


def schedule_as_group(lowered: Preparable) -> Schedule:
    """Returns the schedule of a lowered program: conversions of the caller's arrays around one group."""
    name = lowered.graph.name
    steps = _Steps(name, {})
    inputs = [steps.input_of(port) for port in lowered.inputs]
    states = [
        steps.held(port.name, port.dtype, port.shape, _order(port), kind="state", path=port.path)
        for port in lowered.states
    ]
    results = steps.group(name, lowered, inputs, states)
    by_path = {port.path: held for port, held in zip(lowered.inputs, inputs, strict=True)}
    for port, made in zip(lowered.outputs, results, strict=True):
        out = steps.converted(made, port.dtype, "caller")
        if port.kind == "mutation" and port.path in by_path:
            steps.made.new_values.append((by_path[port.path].value, out.value))
        steps.made.outputs.append((port.path, out.value))
    return steps.made


@dataclass(frozen=True)
class _Held:
    """A tensor of the host: its value in the schedule, its dtype and its dim order."""

    value: int
    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]


class _Steps:
    """Collects the steps of a program."""

    def __init__(self, name: str, parts: Mapping[str, Any]) -> None:
        self.made = Schedule(name)
        self._parts = parts
        self._names: dict[str, int] = {}  # name -> the last number that was appended to it
        self._scratch: dict[str, tuple[int, tuple[Internal, ...]]] = {}

    def held(self, name: str, dtype: str, shape: Sequence[int], order: Sequence[int], **facts: Any) -> _Held:
        """Adds a value. If the name is taken, a number is appended."""
        unique = name
        while unique in self._names:
            self._names[name] += 1
            unique = f"{name}_{self._names[name]}"
        self._names[unique] = 0
        nbytes = (math.prod(shape) * BITS[dtype] + 7) // 8
        kind = facts.pop("kind", "result")
        value = Value(unique, kind, dtype, tuple(shape), nbytes, **facts)
        return _Held(self.made.add(value), dtype, tuple(shape), tuple(order))

    def input_of(self, port: Port) -> _Held:
        path = port.path or port.name
        return self.held(port.name, port.dtype, port.shape, _order(port), kind="input", path=path)

    def step(self, name: str, reads: Sequence[_Held], writes: Sequence[_Held], **facts: Any) -> None:
        self.made.steps.append(
            Step(name, reads=tuple(r.value for r in reads), writes=tuple(w.value for w in writes), **facts)
        )

    def name_of(self, held: _Held) -> str:
        return self.made.values[held.value].name

    # ---- conversions ----

    def in_order(self, held: _Held, order: Sequence[int], reader: str) -> _Held:
        """Returns a tensor in a dim order; a step copies it if its elements are in another one."""
        if len(order) != len(held.shape) or is_same_order(held.shape, held.order, tuple(order)):
            return held
        made = self.held(f"{self.name_of(held)}.{reader}", held.dtype, held.shape, order)
        self.step(f"order for {reader}", [held], [made])
        return made

    def converted(self, held: _Held, dtype: str, reader: str) -> _Held:
        """Returns a tensor in a dtype; integers of the same size have the same bytes."""
        is_same = held.dtype == dtype
        if is_same or (BITS[held.dtype] == BITS[dtype] and not is_float(dtype) and not is_float(held.dtype)):
            return held
        made = self.held(f"{self.name_of(held)}.{reader}", dtype, held.shape, held.order)
        over = (held.value,) if BITS[held.dtype] == BITS[dtype] else ()
        self.step(f"convert for {reader}", [held], [made], in_place=over)
        return made

    # ---- groups ----

    def group(
        self, name: str, part: Any, operands: Sequence[_Held], states: Sequence[_Held] = ()
    ) -> list[_Held]:
        """Adds the call of a group, with the conversions around it. Returns its results in its dtypes."""
        entered = [
            self.converted(self.in_order(held, _order(port), name), tensor.dtype, name)
            for port, held in zip(part.inputs, operands, strict=True)
            for tensor in port.tensors
        ]
        made = [
            self.held(f"{name}.{port.name}", _stored(port), port.shape, _order(port), part=name)
            for port in part.outputs
        ]
        scratch, internals = self.scratch_of(name, part)
        self.step(name, [*entered, *states], made, part=name, scratch=scratch, internals=internals)
        return made

    def scratch_of(self, name: str, part: Any) -> tuple[int, tuple[Internal, ...]]:
        """Returns the scratch size of a group that runs on tosaic, and the tensors in the scratch."""
        if name not in self._scratch:
            self._scratch[name] = _inside(part.graph, {})
        return self._scratch[name]


def _order(port: Port) -> tuple[int, ...]:
    order = tuple(port.dim_order)
    return order if len(order) == len(port.shape) else tuple(range(len(port.shape)))


def _stored(port: Port) -> str:
    """Returns the dtype of a group's result: the caller's, if both are integers of the same size."""
    (tensor,) = port.tensors
    if is_float(port.dtype) != is_float(tensor.dtype) or BITS[port.dtype] != BITS[tensor.dtype]:
        return tensor.dtype
    return port.dtype


def _inside(graph: _core.Graph, parts: Mapping[str, Any]) -> tuple[int, tuple[Internal, ...]]:
    """Returns the scratch size of a graph that runs, and the tensors in the scratch, without its boundary."""
    schedule = _Host(graph, parts, _ALIGNMENT).schedule()
    plan = plan_schedule(schedule, PlanOptions(alignment=_ALIGNMENT, plan_inputs=False, plan_outputs=False))
    size = sum(_rounded(arena.nbytes) for arena in plan.arenas)
    return size, tuple(
        Internal(each.name, each.dtype, each.shape, each.nbytes, each.offset, each.alias, each.alias_of)
        for each in plan.buffers
        if each.arena not in (CALLER, CONSTANTS)
    )


class _Host(_Steps):
    """The nodes of the host in their order, with calls of groups between them."""

    def __init__(self, graph: _core.Graph, parts: Mapping[str, Any], alignment: int) -> None:
        super().__init__(graph.name, parts)
        self._graph, self._alignment = graph, alignment
        self._values: dict[int, _Held] = {}
        self._is_outermost = False

    def schedule(
        self, ports: Sequence[Port] | None = None, outputs: Sequence[Port] | None = None
    ) -> Schedule:
        """Returns the schedule.

        `ports` and `outputs` are the caller's. Without them, the graph is a group or a region.
        """
        graph = self._graph
        inputs = graph.inputs
        self._is_outermost = ports is not None
        described = dict(zip(first_inputs(graph), ports or (), strict=ports is not None))
        for i, port in enumerate(inputs):
            self._values[port.value.id] = self._given(port, described.get(i))
        for node in graph.nodes:
            self._node(node)
        old = [self._values[port.value.id].value for port in inputs]
        leaving: dict[int, Port | None] = dict.fromkeys(range(len(graph.outputs)))
        if outputs is not None:
            leaving = dict(zip(caller_outputs(graph), outputs, strict=True))
        for i, output in enumerate(graph.outputs):
            held = self._value(output.value)
            leaves_as = leaving.get(i)
            if leaves_as is not None:
                held = self.in_order(held, _order(leaves_as), CALLER)
            if output.mutated_input is not None:
                self.made.new_values.append((old[output.mutated_input], held.value))
            if i in leaving:
                self.made.outputs.append((output.path, held.value))
        return self.made

    def _given(self, port: _core.Input, described: Port | None) -> _Held:
        value = port.value
        order = range(len(value.shape)) if described is None else _order(described)
        if len(order) != len(value.shape):
            order = range(len(value.shape))
        kind = "state" if port.kind == "state" and self._is_outermost else "input"
        return self.held(value.name, value.dtype, value.shape, tuple(order), kind=kind, path=port.path)

    def _value(self, value: _core.Value) -> _Held:
        if value.id not in self._values:  # a constant
            self._values[value.id] = self.held(
                value.name, value.dtype, value.shape, range(len(value.shape)), kind="constant"
            )
        return self._values[value.id]

    def _node(self, node: _core.Node) -> None:
        operands = [None if each is None else self._value(each) for each in node.operands]
        target = str((node.attrs or {}).get("target", ""))
        if target in self._parts:
            given = [each for each in operands if each is not None]
            made = self.group(target, self._parts[target], given)
            for value, held in zip(node.results, made, strict=True):
                self._values[value.id] = self.converted(held, value.dtype, HOST)
            return
        order = self._order_of(node, operands)
        ready = [None if each is None else self._ready(each, order, node) for each in operands]
        if not self._views(node, ready):
            self._computed(node, ready, order)

    def _order_of(self, node: _core.Node, operands: Sequence[_Held | None]) -> tuple[int, ...] | None:
        """Returns the dim order in which the host computes a node; None for row-major.

        An elementwise node computes in the order of its operands, if they have the shape of the result. If
        they have several orders, it is the order for which the fewest bytes are copied.
        """
        if node.op not in elementwise_operators() or len(node.results) != 1:
            return None
        spans = [each for each in operands if each is not None and math.prod(each.shape) > 1]
        spans = [each for each in spans if self.made.values[each.value].kind != "constant"]
        if any(each.shape != tuple(node.results[0].shape) for each in spans):
            return None

        def copied(order: tuple[int, ...]) -> tuple[int, bool]:
            moved = [each for each in spans if not is_same_order(each.shape, each.order, order)]
            return sum(self.made.values[each.value].nbytes for each in moved), order != tuple(sorted(order))

        return min((each.order for each in spans), key=copied, default=None)

    def _ready(self, held: _Held, order: tuple[int, ...] | None, node: _core.Node) -> _Held:
        """Returns an operand in the order that a node reads. Constants are stored in their readers' order."""
        if self.made.values[held.value].kind == "constant" or (order and len(held.shape) != len(order)):
            return held
        return self.in_order(held, order or range(len(held.shape)), node.name)

    def _views(self, node: _core.Node, operands: Sequence[_Held | None]) -> bool:
        """Adds the results of a node as views of its first operand, if they are views."""
        base = operands[0] if operands else None
        offsets = None if base is None else _core.view_offsets(node, alignment=self._alignment)
        if base is None or offsets is None:
            return False
        for value, offset in zip(node.results, offsets, strict=True):
            view = (base.value, offset)
            self._values[value.id] = self.held(
                value.name, value.dtype, value.shape, range(len(value.shape)), view_of=view
            )
        self.step(node.name, [], [])
        return True

    def _computed(
        self, node: _core.Node, operands: Sequence[_Held | None], order: tuple[int, ...] | None
    ) -> None:
        made = [
            self.held(value.name, value.dtype, value.shape, order or range(len(value.shape)))
            for value in node.results
        ]
        for value, held in zip(node.results, made, strict=True):
            self._values[value.id] = held
        mask = _core.in_place_operands(node)
        over = [each.value for i, each in enumerate(operands) if each is not None and mask >> i & 1]
        scratch, internals = self._regions(node)
        reads = [each for each in operands if each is not None]
        parts = self._parts_in(node, operands)
        self.step(
            node.name, reads, made, in_place=tuple(over), scratch=scratch, internals=internals, parts=parts
        )

    def _parts_in(self, node: _core.Node, operands: Sequence[_Held | None]) -> tuple[tuple[int, int], ...]:
        """Returns the operands of a concatenation that are whole blocks of the result."""
        offsets = _core.part_offsets(node, alignment=self._alignment) or []
        found: dict[int, int] = {}
        for held, offset in zip(operands, offsets, strict=False):
            if held is not None and offset is not None:
                found.setdefault(held.value, offset)
        return tuple(found.items())

    def _regions(self, node: _core.Node) -> tuple[int, tuple[Internal, ...]]:
        """Returns the scratch of a node with regions, one of which runs at a time.

        A loop has two copies of the values that it carries: for this iteration and for the next.
        """
        carried = 0
        if node.op.endswith("while_loop"):
            carried = 2 * sum(_rounded(bytes_of(value)) for value in node.results) + _ALIGNMENT
        largest, internals = 0, []
        for number, region in enumerate(node.regions):
            size, inner = _inside(region, self._parts)
            largest = max(largest, size)
            internals += [
                replace(
                    each,
                    name=f"{number}/{each.name}",
                    offset=carried + each.offset,
                    alias_of=f"{number}/{each.alias_of}" if each.alias_of else "",
                )
                for each in inner
            ]
        return carried + largest, tuple(internals)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
