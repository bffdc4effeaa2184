"""Makes the report of an annotation plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tosaic.annotation.specs import Derived, Edge, Fixed, Foreign, Observed, Output, Shared
from tosaic.report.document import Report
from tosaic.report.numbers import count
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.annotation.plan import Change, Group, RuleRecord
    from tosaic.annotation.resolution import FloatTensor, Resolution, ResolvedSlot
    from tosaic.annotation.specs import Slot, Spec

_SHOWN = 12


def describe_annotation(resolution: Resolution) -> Report:
    """Makes a report of authors, conflicts and float tensors; all slots and the history are folded."""
    quantized = [r for r in resolution.slots if isinstance(r.resolved, Observed | Fixed | Derived | Foreign)]
    groups = {row.group for row in quantized if row.group is not None}
    return Report(
        title=f"{count(len(quantized), 'quantized slot')} in {count(len(groups), 'sharing group')}",
        ok=not any(c.kind != "unequal observers" for c in resolution.conflicts),
        facts=(
            ("dtypes", _dtypes(resolution)),
            ("conflicts", str(len(resolution.conflicts))),
            ("overwritten", str(len(resolution.overwritten))),
            ("dropped", str(len(resolution.dropped))),
            ("unmatched rules", str(len(resolution.unmatched))),
            ("quantized twice", count(len(resolution.requantized), "tensor")),
            ("left float", _float_fact(resolution.left_float)),
            *(
                [("integers and floats mixed", count(len(mixed), "call"))]
                if (mixed := resolution.mixed)
                else []
            ),
        ),
        sections=tuple(_sections(resolution)),
        data=annotation_data(resolution),
    )


def spec_text(spec: Spec | None) -> str:
    """Returns a spec in one line: ``int8 -128..127 per_tensor_affine``, ``int8 scale 0.00787 zero point 0``.

    Examples
    --------
    >>> spec_text(Observed("int8", -127, 127, "per_tensor_symmetric"))
    'int8 -127..127 per_tensor_symmetric'
    >>> spec_text(Fixed("int16", 1 / 32767))
    'int16 -32768..32767 scale 3.05185e-05 zero point 0'
    """
    if spec is None:
        return "-"
    if isinstance(spec, Shared):
        return f"as {slot_text(spec.slot)}"
    if isinstance(spec, Foreign):
        return f"a {type(spec.object).__name__}"
    if not isinstance(spec, Observed | Fixed | Derived):
        return "float"
    parts = [spec.dtype]
    if spec.qmin is not None or spec.qmax is not None:
        parts.append(f"{_or_empty(spec.qmin)}..{_or_empty(spec.qmax)}")
    if isinstance(spec, Fixed):
        parts.append(f"scale {spec.scale:.6g} zero point {spec.zero_point}")
    elif spec.scheme is not None:
        parts.append(spec.scheme if spec.axis is None else f"{spec.scheme} axis {spec.axis}")
    if isinstance(spec, Observed) and spec.group_size is not None:
        parts.append(f"groups of {spec.group_size}")
    if spec.dynamic:
        parts.append("dynamic")
    if isinstance(spec, Derived):
        parts.append(f"derived from {', '.join(map(slot_text, spec.slots))}")
    return " ".join(parts)


def slot_text(slot: Slot | None) -> str:
    """Returns a slot in short: ``conv2d``, ``conv2d -> relu``."""
    if slot is None:
        return "-"
    return f"{slot.producer} -> {slot.user}" if isinstance(slot, Edge) else slot.node


def annotation_data(resolution: Resolution) -> dict[str, Any]:
    """Returns the resolution as a dict, for JSON; slots and specs are texts."""
    return {
        "authors": [_author_data(author) for author in resolution.authors],
        "slots": [_slot_data(row) for row in resolution.slots],
        "groups": [_group_data(group) for group in resolution.groups],
        "conflicts": [
            {"kind": c.kind, "slot": slot_text(c.slot), "other": slot_text(c.other), "text": c.text}
            for c in resolution.conflicts
        ],
        "overwritten": [_change_data(change) for change in resolution.overwritten],
        "dropped": [_change_data(change) for change in resolution.dropped],
        "unmatched": [author.name for author in resolution.unmatched],
        "quantized_twice": [
            {"output": slot_text(row.output), "edge": slot_text(row.edge)} for row in resolution.requantized
        ],
        "left_float": [asdict(row) for row in resolution.left_float],
        "mixed": [asdict(row) for row in resolution.mixed],
        "not_rounded": [asdict(row) for row in resolution.not_rounded],
        "narrow": [asdict(row) for row in resolution.narrow],
    }


# ---- sections ----


def _sections(resolution: Resolution) -> list[Section]:
    sections = [Section("who annotated", _authors(resolution))]
    if resolution.conflicts:
        rows = [(c.kind, slot_text(c.slot), slot_text(c.other), c.text) for c in resolution.conflicts]
        sections.append(Section("conflicts", table(("kind", "slot", "other", "what"), rows)))
    if resolution.requantized:
        texts = {row.slot: spec_text(row.resolved) for row in resolution.slots}
        rows2 = [
            (slot_text(row.output), texts[row.output], slot_text(row.edge), texts[row.edge])
            for row in resolution.requantized
        ]
        sections += _long("quantized twice", ("tensor", "spec", "edge", "then"), rows2)
    if resolution.mixed:
        rows4 = [
            (
                row.node,
                row.target,
                ", ".join(row.integers),
                ", ".join(row.floats),
                row.module_path,
                row.source,
            )
            for row in resolution.mixed
        ]
        columns = ("node", "operator", "reads integers of", "reads floats of", "module", "source")
        sections += _long("calls of integers and floats", columns, rows4)
    for title, tensors in (
        ("left float", resolution.left_float),
        ("in integers, without a scale of their own", resolution.not_rounded),
    ):
        if tensors:
            rows3 = [
                (row.node, row.target, row.reason, _who(row.rule), row.module_path, row.source)
                for row in tensors
            ]
            sections += _long(title, ("node", "operator", "why", "by", "module", "source"), rows3)
    sections += narrow_sections(resolution)
    sections += _folded(resolution)
    return sections


def narrow_sections(resolution: Resolution) -> list[Section]:
    """Returns the numbers that use few integers of a result, and remedies."""
    joins = [row for row in resolution.narrow if row.beside is None]
    rows = [
        (
            row.node,
            row.operand,
            f"{row.integers} of {row.of:,}",
            f"{row.least:.4g} to {row.greatest:.4g}",
            row.module_path,
            row.source,
        )
        for row in joins
    ]
    columns = ("join", "operand", "integers", "range", "module", "source")
    title = "operands with few integers: return them separately, or scale them to one range"
    sections = _long(title, columns, rows) if rows else []
    others = [
        (
            row.node,
            row.operand,
            f"{row.integers} of {row.of:,}",
            f"{row.least:.4g} to {row.greatest:.4g}",
            f"{row.beside:.4g}",
            row.module_path,
            row.source,
        )
        for row in resolution.narrow
        if row.beside is not None
    ]
    columns2 = ("result", "operand", "integers", "numbers", "beside", "module", "source")
    title = "numbers with few integers: if the larger ones only hide, make them about ten times as large"
    return [*sections, *(_long(title, columns2, others) if others else [])]


def _authors(resolution: Resolution) -> Any:
    slots = Counter(row.set_by for row in resolution.slots)
    rows = [
        (
            _who(author.name),
            "-" if author.matches is None else str(author.matches),
            str(slots[author.name]),
            "; ".join(author.notes),
        )
        for author in resolution.authors
    ]
    unmatched = [n for n, author in enumerate(resolution.authors) if author.matches == 0]
    return table(("who", "matches", "slots", "notes"), rows, unmatched)


def _folded(resolution: Resolution) -> list[Section]:
    changes = [
        (slot_text(c.slot), spec_text(c.before), _who(c.set_by), _after(c), _who(c.changed_by), c.reason)
        for c in resolution.history
    ]
    groups = [
        (str(n), slot_text(g.root), spec_text(g.spec), ", ".join(map(slot_text, g.slots)))
        for n, g in enumerate(resolution.groups)
        if len(g.slots) > 1
    ]
    slots = [
        (
            slot_text(row.slot),
            spec_text(row.spec),
            spec_text(row.resolved),
            "-" if row.group is None else str(row.group),
            _who(row.set_by) + (" (no such edge)" if row.stale else ""),
        )
        for row in resolution.slots
    ]
    columns = ("slot", "spec", "set by", "changed to", "changed by", "because")
    cut = [(author.name,) for author in resolution.authors if _who(author.name) != author.name]
    return [
        *([Section("rules", table(("rule",), cut), folded=True)] if cut else []),
        Section("history", table(columns, changes), folded=True),
        Section("sharing groups", table(("group", "root", "spec", "slots"), groups), folded=True),
        Section("slots", table(("slot", "spec", "comes to", "group", "set by"), slots), folded=True),
    ]


def _long(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Section]:
    """Returns a section of the first rows, and a folded section of all rows if there are more."""
    if len(rows) <= _SHOWN:
        return [Section(title, table(columns, rows))]
    return [
        Section(f"{title}, the first {_SHOWN} of {len(rows)}", table(columns, rows[:_SHOWN])),
        Section(f"{title}, all", table(columns, rows), folded=True),
    ]


# ---- texts ----


def _or_empty(value: int | None) -> str:
    return "" if value is None else str(value)


def _who(name: str) -> str:
    """Returns the name of a rule, shortened for a column of a table."""
    return name if len(name) <= 40 else f"{name[:37]}..."


def _after(change: Change) -> str:
    return "removed" if change.after is None else spec_text(change.after)


def _dtypes(resolution: Resolution) -> str:
    dtypes = Counter(getattr(row.resolved, "dtype", "") for row in resolution.slots)
    dtypes.pop("", None)
    return ", ".join(f"{dtype} {number}" for dtype, number in sorted(dtypes.items())) or "-"


def _float_fact(rows: Sequence[FloatTensor]) -> str:
    reasons = Counter(row.reason for row in rows)
    texts = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
    return count(len(rows), "tensor") + (f": {texts}" if texts else "")


# ---- data ----


def _spec_data(spec: Spec | None) -> dict[str, Any] | None:
    """Returns the kind and the fields of a spec, with slots as texts and objects by their names."""
    if spec is None:
        return None
    values = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return {"kind": type(spec).__name__, **{name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Edge | Output):
        return slot_text(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | dict):
        return value
    return getattr(value, "__name__", type(value).__name__)


def _author_data(author: RuleRecord) -> dict[str, Any]:
    return {"name": author.name, "matches": author.matches, "notes": author.notes}


def _slot_data(row: ResolvedSlot) -> dict[str, Any]:
    return {
        "slot": slot_text(row.slot),
        "spec": _spec_data(row.spec),
        "resolved": _spec_data(row.resolved),
        "decided_by": slot_text(row.decided_by),
        "group": row.group,
        "set_by": row.set_by,
        "stale": row.stale,
    }


def _group_data(group: Group) -> dict[str, Any]:
    return {
        "slots": [slot_text(slot) for slot in group.slots],
        "root": slot_text(group.root),
        "decided_by": slot_text(group.decided_by),
        "spec": _spec_data(group.spec),
    }


def _change_data(change: Change) -> dict[str, Any]:
    return {
        "slot": slot_text(change.slot),
        "before": _spec_data(change.before),
        "set_by": change.set_by,
        "after": _spec_data(change.after),
        "changed_by": change.changed_by,
        "reason": change.reason,
    }
