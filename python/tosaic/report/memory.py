"""The reports of memory plans: arenas, the buffers at the peak, and a picture of the arenas over time."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from tosaic.report.document import Report
from tosaic.report.numbers import count, memory
from tosaic.report.parts import Picture, Section, table

if TYPE_CHECKING:
    from tosaic.memory.buffers import MemoryBuffer
    from tosaic.memory.plan import MemoryComparison, MemoryPlan
    from tosaic.pte.file import PteFile

_SHOWN = 10
_BUFFERS = ("buffer", "part", "kind", "path", "type", "bytes", "first", "last", "arena", "offset", "shares")
_WIDTH, _HEIGHT = 720, 260
_LEFT, _BOTTOM, _TOP = 8, 34, 22
_MOST_NAMED = 0.065
"""A rectangle that is lower or narrower than this share of the picture is drawn without its name."""
_COLOURS = {
    "input": "#ceead6",
    "output": "#fde7c3",
    "state": "#d0eef2",
    "activation": "#d2e3fc",
    "scratch": "#fad2cf",
}


def describe_memory_plan(plan: MemoryPlan) -> Report:
    """Makes a report of a plan."""
    facts = [
        ("peak", f"{memory(plan.peak)}, {_proof(plan)}"),
        ("steps", f"{len(plan.steps):,}, most is needed at {_step(plan, plan.peak_step)}"),
        ("sharing", _sharing(plan)),
    ]
    if plan.fault:
        facts.append(("fault", plan.fault))
    return Report(
        title=f"memory of {plan.name}",
        ok=False if plan.fault else None,
        facts=tuple(facts),
        sections=tuple(_sections(plan)),
        data=plan.as_dict(),
    )


def describe_memory_comparison(comparison: MemoryComparison) -> Report:
    """Makes a report of two plans side by side."""
    plans = (("this plan", comparison.plan), ("the other", comparison.other))
    rows = [
        (
            title,
            f"{plan.peak:,}",
            f"{plan.lower_bound:,}",
            f"{plan.gap:,}",
            *(
                str(sum(each.alias == kind for each in _outside(plan)))
                for kind in ("view", "in_place", "part")
            ),
        )
        for title, plan in plans
    ]
    columns = ("plan", "peak", "proven bound", "gap", "views", "in place", "parts")
    pictures = [
        Section(f"{title}: {arena.name}", Picture(arena_svg(plan, arena.name)))
        for title, plan in plans
        for arena in plan.arenas
    ]
    return Report(
        title=f"memory of {comparison.plan.name}",
        ok=comparison.ok,
        facts=(("saved", f"{comparison.saved:,} bytes"),),
        sections=(Section("bytes", table(columns, rows)), *pictures),
        data={
            "ok": comparison.ok,
            "saved": comparison.saved,
            "plan": comparison.plan.as_dict(),
            "other": comparison.other.as_dict(),
        },
    )


def describe_pte_memory(file: PteFile) -> Report:
    """Makes a report of the memory plans of a ``.pte`` file, next to tosaic's for the same instructions."""
    found = {name: method.plan_memory().compare(method.memory_plan) for name, method in file.methods.items()}
    rows = [
        (
            name,
            f"{each.other.peak:,}",
            f"{each.other.lower_bound:,}",
            f"{each.plan.peak:,}",
            f"{each.plan.lower_bound:,}",
            each.other.fault or "none",
        )
        for name, each in found.items()
    ]
    columns = ("method", "in the file", "its bound", "tosaic's", "its bound ", "fault in the file")
    pictures = [
        Section(f"{name}: {arena.name} in the file", Picture(arena_svg(each.other, arena.name)))
        for name, each in found.items()
        for arena in each.other.arenas
    ]
    return Report(
        title=f"memory of {file.name or 'a .pte file'}",
        sections=(Section("planned bytes", table(columns, rows)), *pictures),
        data={"methods": {name: each.report().data for name, each in found.items()}},
    )


def _proof(plan: MemoryPlan) -> str:
    if plan.gap == 0:
        return "the least possible"
    return f"at least {memory(plan.lower_bound)} needed, gap {memory(plan.gap)}"


def _step(plan: MemoryPlan, number: int) -> str:
    return f"step {number}, {plan.steps[number]}" if number < len(plan.steps) else "the end"


def _outside(plan: MemoryPlan) -> list[MemoryBuffer]:
    return [each for each in plan.buffers if each.kind != "internal"]


def _sharing(plan: MemoryPlan) -> str:
    buffers = _outside(plan)
    views, over, parts = (
        sum(each.alias == kind for each in buffers) for kind in ("view", "in_place", "part")
    )
    mine = sum(each.arena == "caller" for each in buffers)
    shared = f"{count(views, 'view')}, {over} in place, " + f"{count(parts, 'part')}, " * bool(parts)
    return f"{count(len(buffers), 'buffer')}, {shared}{mine} of the caller"


def _sections(plan: MemoryPlan) -> Iterable[Section]:
    rows = [
        (each.name, f"{each.nbytes:,}", f"{each.lower_bound:,}", f"{each.gap:,}", str(each.alignment))
        for each in plan.arenas
    ]
    yield Section("arenas", table(("arena", "bytes", "proven bound", "gap", "alignment"), rows))
    at = plan.peak_step
    held = sorted(_held_at(plan, at), key=lambda each: -each.nbytes)
    if held:
        names = [
            (each.name, each.part, each.kind, each.type_text, f"{each.nbytes:,}") for each in held[:_SHOWN]
        ]
        more = f" (largest {_SHOWN} of {len(held)})" if len(held) > _SHOWN else ""
        columns = ("buffer", "part", "kind", "type", "bytes")
        yield Section(f"needed at {_step(plan, at)}{more}", table(columns, names))
    for arena in plan.arenas:
        yield Section(f"{arena.name} over time", Picture(arena_svg(plan, arena.name)))
    yield Section("buffers", table(_BUFFERS, [_row(each) for each in plan.buffers]), folded=True)


def _held_at(plan: MemoryPlan, step: int) -> list[MemoryBuffer]:
    """Returns the arena buffers that are needed at a step; buffers with shared memory count once."""
    arenas = {arena.name for arena in plan.arenas}
    live = [each for each in _outside(plan) if each.first <= step <= each.last and each.nbytes]
    own = [each for each in live if each.alias != "view" and each.arena in arenas]
    overwritten = {each.alias_of for each in own if each.alias == "in_place" and each.first == step}
    return [each for each in own if each.name not in overwritten]


def _row(each: MemoryBuffer) -> tuple[str, ...]:
    shares = f"{each.alias} {each.alias_of}" if each.alias != "none" else ""
    numbers = (f"{each.nbytes:,}", str(each.first), str(each.last))
    return (
        each.name,
        each.part,
        each.kind,
        each.path,
        each.type_text,
        *numbers,
        each.arena,
        f"{each.offset:,}",
        shares,
    )


def arena_svg(plan: MemoryPlan, name: str) -> str:
    """Returns an arena as a picture: steps from left to right, bytes from the bottom up."""
    arena = next(each for each in plan.arenas if each.name == name)
    columns, height = len(plan.steps) + 1, max(arena.nbytes, 1)
    wide, high = _WIDTH - 2 * _LEFT, _HEIGHT - _TOP - _BOTTOM

    def y_of(offset: float) -> float:
        return _TOP + high * (1 - offset / height)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="14">{escape(name)}: {arena.nbytes:,} bytes, bound {arena.lower_bound:,}'
        "</text>",
    ]
    for each in _outside(plan):
        if each.arena != name or not each.nbytes or each.alias == "view":
            continue
        x, width = _LEFT + wide * each.first / columns, wide * (each.last - each.first + 1) / columns
        y, tall = y_of(each.offset + each.nbytes), high * each.nbytes / height
        title = f"{each.name}, {each.nbytes:,} bytes at {each.offset:,}, steps {each.first} to {each.last}"
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}"'
        parts.append(
            f'<rect {box} fill="{_COLOURS[each.kind]}" stroke="#666"><title>{escape(title)}</title></rect>'
        )
        if tall > _MOST_NAMED * high and width > 6 * len(each.name):
            centre, middle = x + width / 2, y + tall / 2 + 4
            parts.append(
                f'<text class="on" x="{centre:.1f}" y="{middle:.1f}" text-anchor="middle">'
                f"{escape(each.name)}</text>"
            )
    bound = y_of(arena.lower_bound)
    parts.append(
        f'<line x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{bound:.1f}" y2="{bound:.1f}" stroke="#c5221f" '
        'stroke-dasharray="5 4"/>'
    )
    x = float(_LEFT)
    for kind, colour in _COLOURS.items():
        parts.append(
            f'<rect x="{x:.0f}" y="{_HEIGHT - 20}" width="11" height="11" fill="{colour}" stroke="#666"/>'
        )
        parts.append(f'<text x="{x + 15:.0f}" y="{_HEIGHT - 10}">{kind}</text>')
        x += 100
    parts.append(f'<text x="{_WIDTH - _LEFT}" y="{_HEIGHT - 10}" text-anchor="end">steps</text></svg>')
    return "\n".join(parts)
