"""The reports of profiles: where the time of runs and lowerings goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tosaic.report.bars import Bar, bars_svg
from tosaic.report.document import Report
from tosaic.report.numbers import count, memory, time
from tosaic.report.parts import Picture, Section, Table, table
from tosaic.report.text import GAP, WIDTH

if TYPE_CHECKING:
    from tosaic.profiling.lowering import LoweringProfile, LoweringStep
    from tosaic.profiling.profile import Profile, ProfileShare
    from tosaic.profiling.steps import NodeOrigin, ProfiledStep

_SHOWN, _FEW = 12, 8
_NARROW, _WIDE = 18, 34
"""The longest words in tables for a terminal: with two columns of words, and with one."""

_FIGURES = ("ms", "share", "Gop/s", "of peak", "GB/s")
_NAMES = {"torch_operator": "torch operator"}


def describe_profile(profile: Profile) -> Report:
    """Makes a report of the profile of runs."""
    median, least = _milliseconds(profile.median_seconds), _milliseconds(profile.least_seconds)
    within = _milliseconds(sum(step.own_seconds for step in profile.steps))
    runs = count(len(profile.runs), "run")
    facts = [
        ("time", f"{_milliseconds(profile.seconds)} ms, the sum of the medians of {runs}"),
        ("whole runs", f"median {median} ms, least {least} ms"),
        ("steps", f"{within} ms in {count(len(_that_ran(profile)), 'step')}"),
        ("outside steps", _outside(profile)),
    ]
    if profile.on != "tosaic":
        facts.insert(0, ("computed by", profile.on))
    if profile.operations:
        rate = _number(profile.operations / max(profile.seconds, 1e-9) / 1e9)
        facts.append(("multiply-adds", f"{profile.operations // 2:,}: {rate} Gop/s, each counts as two"))
    facts.append(("measured peak", _peak(profile)))
    return Report(
        title=f"profile of {profile.name} @{profile.stage}",
        facts=tuple(facts),
        sections=tuple(_sections(profile)),
        data=_data(profile),
    )


def _outside(profile: Profile) -> str:
    each = ", ".join(f"{name} {_milliseconds(seconds)}" for name, seconds in profile.outside.items())
    return f"{_milliseconds(sum(profile.outside.values()))} ms: {each}"


def _peak(profile: Profile) -> str:
    peak = profile.peak
    used = {step.factors for step in profile.steps}
    rates = [
        f"{factors} {_number(2 * rate / 1e9)} {'GFLOP/s' if factors.startswith('f') else 'Gop/s'}"
        for factors, rate in peak.multiply_adds.items()
        if factors in used
    ]
    rates.append(f"memory {_number(peak.bandwidth / 1e9)} GB/s")
    return f"{', '.join(rates)} ({peak.isa}, {count(peak.threads, 'thread')})"


def _that_ran(profile: Profile) -> list[ProfiledStep]:
    return [step for step in profile.steps if step.calls]


def _sections(profile: Profile) -> Iterator[Section]:
    run = _that_ran(profile)
    slowest = sorted(run, key=lambda step: -step.own_seconds)
    by_operator = profile.by("operator")
    if len(by_operator) > 1:
        bars = [Bar(each.name, each.seconds * 1e3, _milliseconds(each.seconds)) for each in by_operator]
        yield Section("", Picture(bars_svg(bars[:_SHOWN], label="ms by operator")))
    yield _shares(profile, "operator", folded=False)
    more = f" ({_SHOWN} of {len(slowest)})" if len(slowest) > _SHOWN else ""
    yield Section(f"slowest steps{more}", _step_table(slowest[:_SHOWN], profile))
    for what in ("module", "kernel"):
        yield _shares(profile, what, folded=False)
    if any(len(step.nodes) > 1 for step in run):
        yield _shares(profile, "operators", folded=False)
    for what in ("source", "torch_operator"):
        yield _shares(profile, what, folded=True)
    yield Section("all steps", _all_steps(run, profile), folded=True)
    rows = [
        (str(i), *(_milliseconds(s) for s in (r.seconds, r.steps, r.arguments, r.inputs, r.outputs)))
        for i, r in enumerate(profile.runs)
    ]
    yield Section("runs", table(("run", "ms", "steps", "arguments", "inputs", "outputs"), rows), folded=True)


def _shares(profile: Profile, what: str, *, folded: bool) -> Section:
    """Returns the table of shares by a common property: a short table, or the whole one if `folded`."""
    found = profile.by(what)
    if what == "operators":
        found = tuple(each for each in found if " + " in each.name)
    most = _SHOWN if what == "operator" else _FEW
    shown = found if folded else found[:most]
    rows = [
        (each.name or "-" if folded else _words(each.name, _WIDE), f"{each.steps:,}", *_figures(each))
        for each in shown
    ]
    name = _NAMES.get(what, what)
    title = "fused kernels" if what == "operators" else f"by {name}"
    more = f" ({len(shown)} of {len(found)})" if len(shown) < len(found) else ""
    return Section(f"{title}{more}", table((name, "steps", *_FIGURES), rows), folded=folded)


def _figures(each: ProfileShare) -> tuple[str, ...]:
    return (
        _milliseconds(each.seconds),
        f"{each.share:.1%}",
        _giga(each.operations_per_second),
        _percent(each.peak_share),
        _giga(each.bytes_per_second),
    )


def _step_figures(step: ProfiledStep, profile: Profile) -> tuple[str, ...]:
    return (
        _milliseconds(step.own_seconds),
        f"{step.own_seconds / max(profile.seconds, 1e-9):.1%}",
        _giga(step.operations_per_second),
        _percent(profile.peak_share(step)),
        _giga(step.bytes_per_second),
    )


def _step_table(steps: Sequence[ProfiledStep], profile: Profile) -> Table:
    """Returns the table of steps. Their origins fill the rest of a terminal's width."""
    named = []
    for step in steps:
        others = len(step.nodes) - 1
        name = f"{_cut(step.name, _NARROW - 3)} +{others}" if others else _cut(step.name, _NARROW)
        named.append((name, *_step_figures(step, profile)))
    head = ("step", *_FIGURES)
    used = sum(max(map(len, column)) + len(GAP) for column in zip(head, *named, strict=True))
    room = max(WIDTH - used, _NARROW)
    origins = [next(iter(step.origins), None) for step in steps]
    places = [_place(origin, room) if origin else "-" for origin in origins]
    return table((*head, "from"), [(*row, place) for row, place in zip(named, places, strict=True)])


def _all_steps(steps: Sequence[ProfiledStep], profile: Profile) -> Table:
    names = [step.name for step in profile.steps]
    rows = [
        (
            step.name,
            " + ".join(node.op for node in step.nodes),
            ".".join(filter(None, (step.kernel, step.isa))),
            "" if step.parent is None else names[step.parent],
            f"{step.calls:,}",
            *_step_figures(step, profile),
            _milliseconds(step.least_seconds),
            f"{step.operations:,}",
            f"{step.bytes_read:,}",
            f"{step.bytes_written:,}",
            "; ".join(dict.fromkeys(_place(origin) for origin in step.origins)) or "-",
        )
        for step in steps
    ]
    columns = ("step", "operators", "kernel", "inside", "calls", *_FIGURES, "least")
    return table((*columns, "operations", "bytes read", "written", "from"), rows)


def _place(origin: NodeOrigin, longest: int | None = None) -> str:
    text = " ".join(filter(None, (origin.module_path, origin.source))) or "-"
    return text if longest is None else _words(text, longest)


def _words(text: str, longest: int) -> str:
    return " ".join(_cut(word, longest) for word in text.split(" "))


def _cut(text: str, longest: int) -> str:
    """Returns the end of a text that is too long, since paths and names differ most at the end."""
    return (text if len(text) <= longest else f"...{text[3 - longest :]}") or "-"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"


def _giga(rate: float) -> str:
    return _number(rate / 1e9) if rate else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}" if share <= 1 else ">100%"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _data(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "stage": profile.stage,
        "on": profile.on,
        "threads": profile.threads,
        "warmup": profile.warmup,
        "seconds": profile.seconds,
        "median_seconds": profile.median_seconds,
        "least_seconds": profile.least_seconds,
        "outside": dict(profile.outside),
        "operations": profile.operations,
        "peak": profile.peak,
        "steps": [_step_data(step, profile) for step in profile.steps],
        "by": {
            what: [_share_data(share) for share in profile.by(what)]
            for what in ("operator", "operators", "module", "source", "torch_operator", "kernel")
        },
        "runs": [_without(each, "events") for each in profile.runs],
    }


def _without(value: Any, *names: str) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name not in names}


def _step_data(step: ProfiledStep, profile: Profile) -> dict[str, Any]:
    return {
        "name": step.name,
        "op": step.op,
        **_without(step),
        "operations": step.operations,
        "operations_per_second": step.operations_per_second,
        "bytes_per_second": step.bytes_per_second,
        "peak_share": profile.peak_share(step),
    }


def _share_data(share: ProfileShare) -> dict[str, Any]:
    rates = {
        "operations_per_second": share.operations_per_second,
        "bytes_per_second": share.bytes_per_second,
    }
    return {**_without(share), **rates}


# ---- lowerings ----


def describe_lowering_profile(profile: LoweringProfile) -> Report:
    """Makes a report of the profile of a lowering."""
    facts = [("target", profile.target), ("time", time(profile.seconds))]
    for step in profile.steps:
        if step.bytes:
            speed = f", {_number(step.bytes / step.seconds / 1e9)} GB/s" if step.seconds > 0 else ""
            facts.append(("file", f"{memory(step.bytes)}{speed}"))
    groups: dict[str, list[LoweringStep]] = {}
    for step in profile.steps:
        groups.setdefault(_stage(step), []).append(step)
    stages = [(name, *_lowering_figures(steps, profile)) for name, steps in groups.items()]
    is_split = any(step.part for step in profile.steps)
    rows = [
        (
            *((step.part or "-",) if is_split else ()),
            f"{step.section}/{step.name}" if step.section else step.name,
            *_lowering_figures([step], profile),
            _milliseconds(step.verify_seconds),
            f"{step.nodes_before:,}",
            f"{step.nodes_after:,}",
        )
        for step in profile.steps
    ]
    columns = ("ms", "share")
    head = ("group", "step") if is_split else ("step",)
    return Report(
        title=f"profile of lowering {profile.name}",
        facts=tuple(facts),
        sections=(
            Section("by stage", table(("stage", *columns), stages)),
            Section("steps", table((*head, *columns, "verify", "nodes", "after"), rows), folded=is_split),
        ),
        data={
            "name": profile.name,
            "target": profile.target,
            "seconds": profile.seconds,
            "stages": {name: sum(step.seconds for step in steps) for name, steps in groups.items()},
            "steps": [_without(step) for step in profile.steps],
        },
    )


def _stage(step: LoweringStep) -> str:
    """Returns the section of a pass, and the name of any other step."""
    return step.section or step.name


def _lowering_figures(steps: Sequence[LoweringStep], profile: LoweringProfile) -> tuple[str, str]:
    seconds = sum(step.seconds for step in steps)
    return _milliseconds(seconds), f"{seconds / max(profile.seconds, 1e-12):.1%}"
