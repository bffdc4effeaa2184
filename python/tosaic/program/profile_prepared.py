"""Makes a `Profile` from runs of a prepared program, and of the groups that it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median_low
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.profiling.peak import machine_peak
from tosaic.profiling.profile import Profile, ProfileRun
from tosaic.profiling.steps import NodeOrigin, ProfiledNode, ProfiledStep
from tosaic.program.part_call import PartCall

if TYPE_CHECKING:
    from tosaic.program.prepared import Prepared
    from tosaic.program.recording import Call

_Compute = Callable[[list[Any]], list[Any]]


def profile_prepared(
    prepared: Prepared, run: Callable[[_Compute, bool], Any], *, runs: int, warmup: int
) -> Profile:
    """Makes the profile of a program; see `Prepared.profile`.

    `run` runs the program once with a function of the flat arrays. Its second argument is True only for the
    last run.
    """
    session = prepared.session
    states = {name: session.state(name) for name in (port.path or port.name for port in prepared.states)}
    recorded: list[tuple[int, int, Call]] = []
    result = None
    for number in range(warmup + runs):
        # Not before the first run, which reports a variable without a value.
        for name, value in states.items() if number else ():
            session.set_state(name, value)
        is_last = number == warmup + runs - 1
        begin = perf_counter_ns()
        result, call = _recorded(prepared, run, is_last=is_last)
        end = perf_counter_ns()
        if number >= warmup:
            recorded.append((begin, end, call))
    tree = _Tree([call for _, _, call in recorded])
    first = recorded[0][0]
    times = tuple(_run_of(tree, first, *each) for each in recorded)
    source = prepared.source
    return Profile(
        name=source.graph.name,
        stage=source.graph.stage,
        on=prepared.on,
        threads=prepared.threads,
        warmup=warmup,
        steps=_steps_of(tree, times),
        runs=times,
        peak=machine_peak(prepared.threads),
        result=result,
    )


def _recorded(prepared: Prepared, run: Callable[[_Compute, bool], Any], *, is_last: bool) -> tuple[Any, Call]:
    """Runs the program once; returns its result, and the record of the run."""
    recorded: list[Call] = []

    def compute(arrays: list[Any]) -> list[Any]:
        results, call = prepared.recorded(arrays)
        recorded.append(call)
        return results

    return run(compute, is_last), recorded[0]


class _Tree:
    """The steps of a session and of the sessions that it calls, in one list."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._position: dict[tuple[int | None, int], int] = {}  # (outer step, key) -> position in the list
        self._add(calls, None)

    def _add(self, calls: Sequence[Call], above: int | None) -> None:
        """Adds the steps of a session, given its runs. `above` is the outer step that runs them."""
        steps, functions = calls[0].steps, _functions_of(calls[0].prepared)
        inner: dict[int, list[Call]] = {}
        for call in calls:
            for event, group in _groups(call, steps):
                inner.setdefault(int(call.events[event, 0]), []).append(group)
        for step in steps:
            position = len(self.rows)
            self._position[above, step["key"]] = position
            parent = above if step["parent"] is None else self._position[above, steps[step["parent"]]["key"]]
            kernel = step["kernel"]
            if kernel == "override":
                node = step["nodes"][0]
                kernel = functions.get(node.name) or functions.get(_operator_of(node), "function")
            self.rows.append({**step, "kernel": kernel, "parent": parent})
            if step["key"] in inner:
                self._add(inner[step["key"]], position)

    def events(self, call: Call, above: int | None = None, begin: int = 0) -> np.ndarray[Any, Any]:
        """Returns the events of a call and of inner calls, in nanoseconds since the outer begin."""
        steps = call.steps
        inside = dict(_groups(call, steps))
        parts = []
        for i, (key, first, last) in enumerate(call.events.tolist()):
            position = self._position[above, key]
            if i in inside:
                group = inside[i]
                # The two sessions' clocks have different zeros: the group's run is centred in its step.
                start = first + max(last - first - group.nanoseconds, 0) // 2
                parts.append(self.events(group, position, begin + start))
            parts.append(np.array([[position, begin + first, begin + last]], np.int64))
        return np.concatenate(parts) if parts else np.zeros((0, 3), np.int64)


def _functions_of(prepared: Prepared) -> dict[str, str]:
    """Returns the names of functions in a profile, by the node or the operator that they compute."""
    own = prepared.source.overrides.own
    groups = {name: "group" for name, function in own.items() if isinstance(function, PartCall)}
    is_elsewhere = prepared.on != "tosaic" and prepared.has_whole_model
    return {**groups, **dict.fromkeys(prepared.models, prepared.on if is_elsewhere else "model")}


def _groups(call: Call, steps: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Call]]:
    """Yields the position of each event that is the call of a group, with the record of that call."""
    if not call.inner:
        return
    names = {step["key"]: _operator_of(step["nodes"][0]) for step in steps}
    waiting = iter(call.inner)
    group = next(waiting, None)
    for i, key in enumerate(call.events[:, 0].tolist()):
        if group is not None and names[key] == group.name:
            yield i, group
            group = next(waiting, None)


def _run_of(tree: _Tree, first: int, begin: int, end: int, call: Call) -> ProfileRun:
    total = end - begin - sum(call.recording)  # the duration without the recording
    own = call.events[_top(call)] if len(call.events) else call.events
    inputs = int(own[:, 1].min()) if len(own) else call.nanoseconds
    last = int(own[:, 2].max()) if len(own) else call.nanoseconds
    outputs = call.nanoseconds - last
    # The time outside of the session is Python's: arguments before it, the result after it.
    python = max(total - call.nanoseconds, 0)
    before = min(max(call.begin - begin - call.recording[0], 0), python)
    return ProfileRun(
        seconds=(call.nanoseconds + python) / 1e9,
        steps=(last - inputs) / 1e9,
        arguments=python / 1e9,
        inputs=inputs / 1e9,
        outputs=outputs / 1e9,
        begin=(begin - first) / 1e9,
        events=tree.events(call, begin=before),
    )


def _top(call: Call) -> np.ndarray[Any, Any]:
    """Selects the events of steps outside of regions."""
    keys = [step["key"] for step in call.steps if step["parent"] is None]
    selected: np.ndarray[Any, Any] = np.isin(call.events[:, 0], keys)
    return selected


def _steps_of(tree: _Tree, runs: Sequence[ProfileRun]) -> tuple[ProfiledStep, ...]:
    count = len(tree.rows)
    parents = [row["parent"] for row in tree.rows]
    totals, calls = np.zeros((2, len(runs), count), np.int64)
    for total, call, run in zip(totals, calls, runs, strict=True):
        np.add.at(total, run.events[:, 0], run.events[:, 2] - run.events[:, 1])
        np.add.at(call, run.events[:, 0], 1)
    own = totals.copy()
    for i, parent in enumerate(parents):
        if parent is not None:
            own[:, parent] -= totals[:, i]
    typical = np.median(np.maximum(own, 0), axis=0)
    whole = typical.copy()
    for i in reversed(range(count)):  # inner steps come after their outer step
        if parents[i] is not None:
            whole[parents[i]] += whole[i]
    return tuple(
        _step(
            row,
            calls=median_low(calls[:, i].tolist()),
            own_seconds=float(typical[i]) / 1e9,
            seconds=float(whole[i]) / 1e9,
            least_seconds=int(totals[:, i].min()) / 1e9,
        )
        for i, row in enumerate(tree.rows)
    )


def _step(row: dict[str, Any], *, calls: int, **seconds: float) -> ProfiledStep:
    form, _, isa = row["kernel"].rpartition(".")
    if not form or isa not in (*_core.usable_isas(), "reference"):
        form, isa = row["kernel"], ""
    return ProfiledStep(
        nodes=tuple(map(_node_of, row["nodes"])),
        kernel=form,
        isa=isa,
        factors=row["factors"] if row["multiply_adds"] else None,
        parent=row["parent"],
        calls=calls,
        **seconds,
        multiply_adds=calls * row["multiply_adds"],
        bytes_read=calls * row["bytes_read"],
        bytes_written=calls * row["bytes_written"],
    )


def _node_of(node: _core.Node) -> ProfiledNode:
    origins = tuple(NodeOrigin(each.module_path, each.source, each.target) for each in node.origins)
    return ProfiledNode(node.name, _operator_of(node), origins)


def _operator_of(node: _core.Node) -> str:
    """Returns the operator; for a foreign node, the name by which override functions refer to it."""
    if node.op == "opaque":
        return str(node.attrs["target"])
    if node.op == "tosa.custom":
        return f"{node.attrs['domain_name']}.{node.attrs['operator_name']}"
    return node.op
