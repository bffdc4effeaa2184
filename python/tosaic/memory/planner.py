"""Plans the memory of a schedule: arenas, offsets and proven bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from tosaic import _core
from tosaic.base.options import invalid, refusal
from tosaic.memory.buffers import CALLER, CONSTANTS, MemoryArena, MemoryBuffer
from tosaic.memory.check import Place, fault_of
from tosaic.memory.plan import MemoryPlan
from tosaic.memory.plan_options import KINDS, PlanOptions
from tosaic.memory.schedule import HOST, Schedule, Step
from tosaic.memory.sharing import Shared, share
from tosaic.memory.spread import Movable, peak_of, spread

EFFORT = 400_000_000
"""The budget of the search for one arena, in units of about a nanosecond. A search ends at the bound."""

_SCRATCH_ALIGNMENT = 64
"""Groups place their tensors at multiples of this many bytes in their scratch."""

_DEFAULT = {"state": "states"}
_ACTIVATIONS = "activations"


@dataclass(frozen=True)
class _Placed:
    """The place of each value, and of the scratch of each step."""

    values: list[Place | None]
    scratch: list[Place | None]
    arenas: list[MemoryArena]
    live: list[int]


def plan_schedule(schedule: Schedule, options: PlanOptions) -> MemoryPlan:
    """Plans the memory of a schedule.

    Raises
    ------
    InvalidGraph
        An entry of ``arenas`` names nothing in the program.
    InternalError
        The independent check finds a fault in the plan.
    """
    if not options.scratch:
        schedule = _without_scratch(schedule)
    plan = _Planner(schedule, options).plan()
    if plan.fault:
        raise _core.make_error(
            _core.InternalError,
            where="memory",
            what=f"the plan of '{schedule.name}' is wrong: {plan.fault}",
            hint="Please report this with the program",
        )
    return plan


def _without_scratch(schedule: Schedule) -> Schedule:
    steps = [replace(each, scratch=0, internals=()) for each in schedule.steps]
    rest = (schedule.outputs, schedule.new_values, schedule.loops)
    return Schedule(schedule.name, schedule.values, steps, *rest)


class _Planner:
    def __init__(self, schedule: Schedule, options: PlanOptions) -> None:
        self._schedule, self._options = schedule, options
        self._outputs = {value for _, value in schedule.outputs}
        self._new = {(old, value) for old, value in schedule.new_values}
        self._arenas = self._arena_of_each()
        self._shared = share(
            schedule,
            in_place=options.in_place,
            may_overwrite=self._may_overwrite,
            may_be_part=self._may_be_part if options.in_place else None,
            alignment=max((options.alignment, *(each for _, each in options.memories.values()))),
            leaving=frozenset() if options.plan_outputs else self._outputs,
        )
        self._callers = self._in_memory_of_the_caller()
        if options.memories:
            self._spread()

    def plan(self) -> MemoryPlan:
        placed = self._placed()
        sizes = {arena.name: arena.nbytes for arena in placed.arenas}
        sizes |= {_callers_name(i): self._schedule.values[i].nbytes for i in self._callers}
        owned = [_callers_name(i) for i in self._callers if self._schedule.values[i].kind == "input"]
        alignment = self._options.alignment
        fault = fault_of(
            self._schedule, placed.values, placed.scratch, sizes, alignment=alignment, owned=owned
        )
        return plan_of(
            self._schedule, self._shared, placed.values, placed.scratch, placed.arenas, placed.live, fault
        )

    # ---- arenas ----

    def _arena_of_each(self) -> list[str]:
        """Returns the arena of each value, and then of the scratch of each step."""
        wanted = dict(self._options.arenas)
        kinds = _kinds_of(self._schedule)
        names = [
            (value.name, value.part, kind) for value, kind in zip(self._schedule.values, kinds, strict=True)
        ]
        names += [(_scratch_name(step), step.part, "scratch") for step in self._schedule.steps]
        known = {each for name in names for each in name} | set(KINDS) | {HOST}
        for key in wanted:
            if key not in known:
                raise refusal(
                    "plan_memory",
                    "arenas",
                    "names of buffers, of groups or 'host', or " + ", ".join(map(repr, KINDS)),
                    key,
                )

        def arena(name: str, part: str, kind: str) -> str:
            found = next((wanted[key] for key in (name, kind, part) if key in wanted), None)
            return found or ("" if self._options.memories else _DEFAULT.get(kind, _ACTIVATIONS))

        return [arena(*each) for each in names]

    def _spread(self) -> None:
        """Chooses a memory for all values that `arenas` does not name. Sharing values stay together."""
        count, options = len(self._schedule.values), self._options
        used = [0] * count  # how often the bytes of each root are read or written
        for step in self._schedule.steps:
            for value in (*step.reads, *step.writes):
                used[self._shared[value].root] += 1
        owners, movables, fixed = [], [], dict[str, list[Movable]]()
        for owner, each in self._movables(used):
            if self._arenas[owner]:
                fixed.setdefault(self._arenas[owner], []).append(each)
            else:
                owners.append(owner)
                movables.append(each)
        for owner, name in zip(owners, spread(movables, options.memories, fixed), strict=True):
            self._arenas[owner] = name
        for i, shared in enumerate(self._shared):
            self._arenas[i] = self._arenas[shared.root] or next(iter(options.memories))

    def _movables(self, used: Sequence[int]) -> list[tuple[int, Movable]]:
        """Returns the memory to be placed: roots by value, and the scratch of steps after all values."""
        spans: dict[int, list[int]] = {}
        for i, shared in enumerate(self._shared):
            if self._is_planned(i):
                spans.setdefault(shared.root, []).extend((shared.first, shared.last))
        values = self._schedule.values
        found = [
            (root, Movable(values[root].name, values[root].nbytes, min(span), max(span), used[root]))
            for root, span in spans.items()
        ]
        for number, step in enumerate(self._schedule.steps):
            if step.scratch:
                scratch = Movable(_scratch_name(step), step.scratch, number, number, 2, _SCRATCH_ALIGNMENT)
                found.append((len(values) + number, scratch))
        return found

    def _require_size(self, name: str, nbytes: int) -> None:
        """Refuses a memory that is too small for what has to be in it."""
        size, alignment = self._options.memories.get(name, (None, 1))
        if size is None or nbytes <= size:
            return
        inside = [each for i, each in self._movables([0] * len(self._shared)) if self._arenas[i] == name]
        at, _ = peak_of(inside, alignment)
        held = sorted((e for e in inside if e.first <= at <= e.last), key=lambda each: -each.nbytes)
        steps = self._schedule.steps
        step = steps[at].name if at < len(steps) else "the end"
        largest = ", ".join(f"'{each.name}' ({each.nbytes:,})" for each in held[:5])
        raise invalid(
            "plan_memory",
            f"memory '{name}' is too small at step {at}, '{step}'",
            expected=f"{nbytes:,} bytes, of which {largest} are the largest",
            got=f"{size:,} bytes",
            node=step,
        )

    # ---- sharing ----

    def _may_overwrite(self, root: int, result: int) -> bool:
        value = self._schedule.values[root]
        if (root, result) in self._new:
            return True
        if self._arenas[root] != self._arenas[result]:
            return False
        if value.kind == "input":
            leaves = result in self._outputs and not self._options.plan_outputs
            return self._options.plan_inputs and not leaves
        return value.kind == "result"

    def _may_be_part(self, root: int, whole: int) -> bool:
        return self._arenas[root] == self._arenas[whole]

    def _in_memory_of_the_caller(self) -> set[int]:
        """Returns the values in the caller's memory: inputs, and the values in whose memory outputs are."""
        found = set()
        if not self._options.plan_inputs:
            found |= {i for i, value in enumerate(self._schedule.values) if value.kind == "input"}
        if not self._options.plan_outputs:
            values = self._schedule.values
            for _, value in self._schedule.outputs:
                root = self._shared[value].root
                is_whole = values[root].nbytes == values[value].nbytes
                if values[root].kind == "result" and is_whole:
                    found.add(root)
        return found

    # ---- places ----

    def _placed(self) -> _Placed:
        schedule, count = self._schedule, len(self._schedule.values)
        values: list[Place | None] = [None] * count
        scratch: list[Place | None] = [None] * len(schedule.steps)
        arenas, live = [], [0] * (schedule.end + 1)
        members = [i for i in _by_root(self._shared) if self._is_planned(i)]
        steps = [i for i, step in enumerate(schedule.steps) if step.scratch]
        for name in dict.fromkeys(self._arenas):
            own = [i for i in members if self._arenas[self._shared[i].root] == name]
            runs = [i for i in steps if self._arenas[count + i] == name]
            if not own and not runs:
                continue
            size, alignment = self._options.memories.get(name, (None, self._options.alignment))
            buffers = self._buffers_of(own, runs, alignment)
            offsets, nbytes, bound, bytes_at = _core.place_shared(buffers, budget=EFFORT)
            if size is not None and nbytes > size:
                offsets, nbytes, bound, bytes_at = _core.place_shared(buffers, enough=size, budget=EFFORT)
            self._require_size(name, nbytes)
            for i, offset in zip(own, offsets, strict=False):
                values[i] = Place(name, offset)
            for i, offset in zip(runs, offsets[len(own) :], strict=True):
                scratch[i] = Place(name, offset)
            arenas.append(MemoryArena(name, nbytes, alignment, bound))
            live = [a + b for a, b in zip(live, [*bytes_at, *[0] * len(live)], strict=False)]
        for i, shared in enumerate(self._shared):
            if shared.root in self._callers:
                values[i] = Place(_callers_name(shared.root), shared.at)
        return _Placed(values, scratch, arenas, live)

    def _is_planned(self, value: int) -> bool:
        root = self._shared[value].root
        return root not in self._callers and self._schedule.values[root].kind != "constant"

    def _buffers_of(
        self, members: Sequence[int], steps: Iterable[int], alignment: int
    ) -> list[tuple[int, int, int, int, str, int, int]]:
        position = {value: at for at, value in enumerate(members)}
        found = []
        for i in members:
            shared, nbytes = self._shared[i], self._schedule.values[i].nbytes
            target = -1 if shared.target is None else position[shared.target]
            asked = 1 if shared.kind == "view" else alignment
            found.append((nbytes, asked, shared.first, shared.last, shared.kind, target, shared.offset))
        widest = max(alignment, _SCRATCH_ALIGNMENT)
        found += [(self._schedule.steps[i].scratch, widest, i, i, "none", -1, 0) for i in steps]
        return found


def _by_root(shared: Sequence[Shared]) -> list[int]:
    """Returns all values in an order in which each comes after the value whose memory it shares."""
    found: dict[int, None] = {}
    for i in range(len(shared)):
        chain = []
        at: int | None = i
        while at is not None and at not in found:
            chain.append(at)
            at = shared[at].target
        found |= dict.fromkeys(reversed(chain))
    return list(found)


def _kinds_of(schedule: Schedule) -> list[str]:
    """Returns the kind of each value's buffer."""
    outputs = {value for _, value in schedule.outputs}
    results = ("output" if i in outputs else "activation" for i in range(len(schedule.values)))
    return [
        result if value.kind == "result" else value.kind
        for value, result in zip(schedule.values, results, strict=True)
    ]


def plan_of(
    schedule: Schedule,
    shared: Sequence[Shared],
    places: Sequence[Place | None],
    scratch: Sequence[Place | None],
    arenas: Sequence[MemoryArena],
    live: Sequence[int],
    fault: str,
) -> MemoryPlan:
    """Returns the plan as data."""
    known = {arena.name for arena in arenas}
    kinds = _kinds_of(schedule)
    paths: dict[int, list[str]] = {}
    for path, value in schedule.outputs:
        paths.setdefault(value, []).append(path)
    buffers = [
        _buffer(schedule, i, each, places[i], known, kinds[i], paths.get(i, ()))
        for i, each in enumerate(shared)
    ]
    for number, (step, place) in enumerate(zip(schedule.steps, scratch, strict=True)):
        if place is not None:
            buffers += _scratch_buffers(step, number, place)
    return MemoryPlan(
        schedule.name,
        tuple(each for each in buffers if each is not None),
        tuple(arenas),
        tuple(step.name for step in schedule.steps),
        tuple(live),
        fault,
    )


def _buffer(
    schedule: Schedule,
    i: int,
    shared: Shared,
    place: Place | None,
    arenas: Set[str],
    kind: str,
    paths: Sequence[str],
) -> MemoryBuffer | None:
    value = schedule.values[i]
    if value.kind == "constant" and value.view_of is None:
        return None
    root = schedule.values[shared.root]
    offset = schedule.contents(i)[1] if place is None else place.offset
    arena = CONSTANTS if root.kind == "constant" else CALLER
    if place is not None and place.memory in arenas:
        arena = place.memory
    return MemoryBuffer(
        name=value.name,
        part=value.part,
        kind=kind,
        path=", ".join([*([value.path] if value.path else []), *paths]),
        dtype=value.dtype,
        shape=value.shape,
        nbytes=value.nbytes,
        first=shared.first,
        last=shared.last,
        arena=arena,
        offset=offset,
        alias=shared.kind,
        alias_of="" if shared.target is None else schedule.values[shared.target].name,
    )


def _scratch_buffers(step: Step, number: int, place: Place) -> list[MemoryBuffer]:
    name, span = _scratch_name(step), (number, number, place.memory)
    own = MemoryBuffer(name, step.part, "scratch", "", "", (), step.scratch, *span, place.offset)
    inner = [
        MemoryBuffer(
            f"{step.name}/{each.name}",
            step.part,
            "internal",
            "",
            each.dtype,
            each.shape,
            each.nbytes,
            *span,
            place.offset + each.offset,
            each.alias,
            f"{step.name}/{each.alias_of}" if each.alias_of else name,
        )
        for each in step.internals
    ]
    return [own, *inner]


def _scratch_name(step: Step) -> str:
    return f"{step.name}.scratch"


def _callers_name(value: int) -> str:
    """Returns the name of an array of the caller, which no arena has."""
    return f"{CALLER}:{value}"
