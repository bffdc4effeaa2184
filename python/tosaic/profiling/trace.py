"""Profiles in the trace-event format, which browsers show along a time axis.

If the time span of an event is inside that of another event of the same thread, it is shown below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tosaic.profiling.lowering import LoweringProfile
    from tosaic.profiling.profile import Profile, ProfileRun
    from tosaic.profiling.steps import ProfiledStep

_MICRO = 1e6


def events_of_profile(profile: Profile) -> dict[str, Any]:
    """Returns the events of the runs, one after the other, with their inner events."""
    details = [_details(step, profile) for step in profile.steps]
    events = []
    for number, run in enumerate(profile.runs):
        events.append(_event(f"run {number}", "run", run.begin, run.seconds, {}))
        events += _outside(run)
        for position, begin, end in sorted(run.events.tolist(), key=lambda event: (event[1], -event[2])):
            step = profile.steps[position]
            seconds = (end - begin) / 1e9
            events.append(_event(step.name, step.op, run.begin + begin / 1e9, seconds, details[position]))
    return _file(f"tosaic run {profile.name}", events)


def _outside(run: ProfileRun) -> list[dict[str, Any]]:
    """Returns the events of inputs and outputs, before the first step and after the last one."""
    first, last = 0.0, 0.0
    if len(run.events):
        first, last = run.events[:, 1].min() / 1e9, run.events[:, 2].max() / 1e9
    return [
        _event("inputs", "outside", run.begin + max(first - run.inputs, 0), run.inputs, {}),
        _event("outputs", "outside", run.begin + last, min(run.outputs, run.seconds - last), {}),
    ]


def _details(step: ProfiledStep, profile: Profile) -> dict[str, Any]:
    share = profile.peak_share(step)
    return {
        "kernel": ".".join(filter(None, (step.kernel, step.isa))),
        "nodes": [node.name for node in step.nodes],
        "operators": [node.op for node in step.nodes],
        "modules": [origin.module_path for origin in step.origins],
        "sources": [origin.source for origin in step.origins],
        "GFLOP/s or Gop/s": step.operations_per_second / 1e9,
        "GB/s": step.bytes_per_second / 1e9,
        "of peak": share,
    }


def events_of_lowering(profile: LoweringProfile) -> dict[str, Any]:
    """Returns the steps of a lowering, one after the other."""
    begin = 0.0
    events = []
    for step in profile.steps:
        details = {
            "changed": step.changed,
            "nodes before": step.nodes_before,
            "nodes after": step.nodes_after,
        }
        events.append(_event(step.name, step.section or step.part or "lower", begin, step.seconds, details))
        begin += step.seconds
    return _file(f"tosaic lower {profile.name}", [_event("lower", "lowering", 0.0, begin, {}), *events])


def _event(name: str, category: str, begin: float, seconds: float, details: dict[str, Any]) -> dict[str, Any]:
    """Returns a complete event; times are in microseconds."""
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": begin * _MICRO,
        "dur": seconds * _MICRO,
        "pid": 1,
        "tid": 1,
        "args": details,
    }


def _file(process: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    name = {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": process}}
    return {"traceEvents": [name, *events], "displayTimeUnit": "ms"}
