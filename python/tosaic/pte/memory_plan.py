"""Memory plans of a method of a ``.pte`` file: the one in the file, and tosaic's for the same instructions.

A step is an instruction. No instruction writes a view: the file's plan puts it at the place of its base, so
the base is the tensor that was last written there.
"""

from __future__ import annotations

from typing import Any

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.memory.buffers import MemoryArena, alignment_of
from tosaic.memory.check import Place, fault_of
from tosaic.memory.plan import MemoryPlan
from tosaic.memory.planner import plan_of
from tosaic.memory.schedule import HOST, Schedule, Step, Value
from tosaic.memory.sharing import Shared, share
from tosaic.pte.facts import MethodFacts, name_of, place_of
from tosaic.pte.input_count import input_count, is_reshaped
from tosaic.pte.payloads import Place as PayloadPlace
from tosaic.pte.payloads import program_of_payload, sides_of_payload
from tosaic.pte.scalar_type import scalar_type

_MOST_ALIGNMENT = 16
"""ExecuTorch's alignment of planned tensors. The file does not have the alignment of its plan."""


def schedule_of_method(file: _core.PteFile, method: _core.PteMethod) -> Schedule:
    """Returns the instructions of a method as a schedule; the name of a value is its index: ``%3``.

    Raises
    ------
    InvalidGraph
        The payload of a delegate is damaged.
    """
    return _Reader(file, method).schedule


def plan_in_file(file: _core.PteFile, method: _core.PteMethod) -> MemoryPlan:
    """Returns the memory plan that a method has in its file.

    The independent check follows the order of instructions, and is skipped for a method with jumps.
    """
    reader = _Reader(file, method)
    schedule = reader.schedule
    shared = share(schedule, in_place=False, may_overwrite=lambda _root, _result: False)
    places = [reader.place(i) for i in range(len(schedule.values))]
    alignment = alignment_of((place.offset for place in places if place is not None), _MOST_ALIGNMENT)
    arenas, live = [], [0] * (schedule.end + 1)
    for number, nbytes in enumerate(method.memories):
        name = _memory(number)
        members = [i for i, place in enumerate(places) if place is not None and place.memory == name]
        if not members and not nbytes:
            continue
        bytes_at = _live(schedule, shared, members, alignment)
        arenas.append(MemoryArena(name, nbytes, alignment, max(bytes_at, default=0)))
        live = [a + b for a, b in zip(live, [*bytes_at, *[0] * len(live)], strict=False)]
    scratch = [None] * len(schedule.steps)
    fault = ""
    if not reader.has_jumps:
        sizes = {arena.name: arena.nbytes for arena in arenas}
        fault = fault_of(schedule, places, scratch, sizes, alignment=1)
    return plan_of(schedule, shared, places, scratch, arenas, live, fault)


def _live(schedule: Schedule, shared: list[Shared], members: list[int], alignment: int) -> list[int]:
    """Returns the bytes that are needed at each step. Views add nothing to the bytes of their bases."""
    roots = [i for i in members if shared[i].kind == "none"]
    buffers = [
        (schedule.values[i].nbytes, alignment, shared[i].first, shared[i].last, "none", -1, 0) for i in roots
    ]
    return _core.place_shared(buffers, budget=0)[3]


def _memory(number: int) -> str:
    return f"memory{number}"


class _Reader:
    def __init__(self, file: _core.PteFile, method: _core.PteMethod) -> None:
        self._facts = MethodFacts(file, method.name, method, Diagnostics())
        self.schedule = Schedule(method.name)
        self.has_jumps = False
        self._known: dict[int, int] = {}  # index in the file -> index in the schedule
        self._tensors: list[Any] = []
        self._held: dict[int, list[tuple[int, int, int]]] = {}
        for number, index in enumerate(self._facts.inputs):
            if isinstance(self._facts.values[index], _core.PteTensor):
                self._add(index, "input", path=f"x{number}")
                self._hold(index)
        for number, instruction in enumerate(self._facts.instructions):
            self._read(number, instruction)
        for number, index in enumerate(self._facts.method.outputs):
            if isinstance(self._facts.values[index], _core.PteTensor):
                path = "out" if len(self._facts.method.outputs) == 1 else f"out[{number}]"
                self.schedule.outputs.append((path, self._value(index)))

    def place(self, value: int) -> Place | None:
        """Returns where the file places a value of the schedule."""
        at = place_of(self._tensors[value])
        if at is not None:
            return Place(_memory(at[0]), at[1])
        view = self.schedule.values[value].view_of
        base = None if view is None else self.place(view[0])
        return None if base is None or view is None else Place(base.memory, base.offset + view[1])

    # ---- values ----

    def _add(
        self,
        index: int,
        kind: str,
        *,
        part: str = HOST,
        path: str = "",
        view_of: tuple[int, int] | None = None,
    ) -> int:
        tensor = self._facts.values[index]
        torch_name, dtype = scalar_type(tensor)
        shape, path = tuple(tensor.sizes), path or name_of(tensor)
        value = Value(f"%{index}", kind, dtype or torch_name, shape, tensor.byte_size, part, path, view_of)
        self._known[index] = self.schedule.add(value)
        self._tensors.append(tensor)
        return self._known[index]

    def _hold(self, index: int) -> None:
        """Records that a tensor was written to its place."""
        at = place_of(self._facts.values[index])
        if at is None or not at[2]:
            return
        memory, first, nbytes = at
        held = [each for each in self._held.get(memory, []) if each[1] <= first or first + nbytes <= each[0]]
        self._held[memory] = [*held, (first, first + nbytes, index)]

    def _base(self, index: int) -> tuple[int, int] | None:
        """Returns the value that contains the bytes of a tensor, and the tensor's first byte in it."""
        at = place_of(self._facts.values[index])
        for first, end, other in self._held.get(at[0], []) if at is not None and at[2] else ():
            if at is not None and first <= at[1] and at[1] + at[2] <= end:
                return self._known[other], at[1] - first
        return None

    def _value(self, index: int) -> int:
        """Returns the schedule's value of a tensor that is read."""
        if index in self._known:
            return self._known[index]
        tensor = self._facts.values[index]
        if tensor.allocation is None:
            return self._add(index, "constant")
        base = None if tensor.data else self._base(index)
        state = self._facts.state_of(index)
        if base is None and state != index and state not in self._known:
            base = self._value(state), 0
            self._hold(state)
        return self._add(index, "state" if base is None else "result", view_of=base)

    def _tensors_of(self, indices: list[int]) -> list[int]:
        """Returns the indices that are tensors, and the tensors of lists among them."""
        every = [each for index in indices for each in (index, *self._facts.items(index))]
        return [each for each in every if isinstance(self._facts.values[each], _core.PteTensor)]

    # ---- instructions ----

    def _read(self, number: int, instruction: Any) -> None:
        facts, part = self._facts, HOST
        reads, writes = self._tensors_of(facts.operands(instruction)), []
        if isinstance(instruction, _core.PteKernelCall):
            name = ".".join(each for each in facts.operators[instruction.op] if each)
            writes = self._tensors_of(facts.results(instruction))
            if name == "executorch_prim::et_view":
                self._view(reads, writes)
                reads, writes = [], []
        elif isinstance(instruction, _core.PteDelegateCall):
            name = part = f"delegate{instruction.delegate}"
            count = self._input_count(instruction)
            args = list(instruction.args)
            reads, writes = self._tensors_of(args[:count]), self._tensors_of(args[count:])
        else:
            name = type(instruction).__name__.removeprefix("Pte").lower()
            writes = self._tensors_of(facts.results(instruction))
        if isinstance(instruction, _core.PteJumpFalse):
            self.has_jumps = True
            if instruction.destination <= number:
                self.schedule.loops.append((int(instruction.destination), number))
        read = tuple(self._value(index) for index in reads)
        for index in writes:
            if index not in self._known:
                self._add(index, self._written_kind(index), part=part)
        written = tuple(self._known[index] for index in writes)
        self.schedule.steps.append(Step(name, part, read, written))
        for index in writes:
            self._hold(index)

    def _written_kind(self, index: int) -> str:
        """Returns ``state`` for a tensor with initial elements: it persists, even if it is written first."""
        return "state" if self._facts.values[index].data else "result"

    def _view(self, reads: list[int], writes: list[int]) -> None:
        base = self._value(reads[0])
        for index in writes:
            self._add(index, "result", view_of=(base, 0))

    def _input_count(self, call: Any) -> int:
        facts, delegate = self._facts, self._facts.delegates[call.delegate]
        place = PayloadPlace(facts.name, int(call.delegate), delegate.backend)
        payload = facts.file.payload_of(delegate).tobytes()
        sides = sides_of_payload(place, payload, program_of_payload(place, payload))
        written = self._known.__contains__
        return input_count(facts, list(call.args), sides, is_written=written, is_view=self._is_view)

    def _is_view(self, tensor: Any) -> bool:
        at = place_of(tensor)
        for first, end, other in self._held.get(at[0], []) if at is not None else ():
            if at is not None and (first, end) == (at[1], at[1] + at[2]):
                return is_reshaped(self._facts.values[other], tensor)
        return False
