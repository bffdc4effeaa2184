"""The reports of a partition: claimants and their nodes, the host's reasons, and the groups as a picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from tosaic.partitions.plan import HOST, Border, NodePlace, PartitionPlan, QuantizationPlace
from tosaic.report.document import Report
from tosaic.report.numbers import count, memory
from tosaic.report.parts import Picture, Section, table

if TYPE_CHECKING:
    from tosaic.partitions.split_lowered import SplitLowered

_SHOWN = 10
_COLOURS = ("#d2e3fc", "#ceead6", "#fde7c3", "#e9d2fd", "#fad2cf", "#d0eef2")


def describe_partition(plan: PartitionPlan) -> Report:
    """Makes a report of a plan: shares, groups, reasons, and the gains by one more operator."""
    group_of = [group for _, each in plan.all_plans() for group in each.group_of]
    host, nodes = group_of.count(None), len(group_of)
    borders = _borders(plan)
    crossing = sum(border.bytes * len(border.read_by) for border in borders)
    facts = [
        ("nodes", f"{count(nodes, 'node')}, {_percent(nodes - host, nodes)} claimed"),
        ("groups", count(len(plan.groups), "group") + (", proven fewest" if plan.is_minimal else "")),
        ("crossing", f"{count(len(borders), 'value')}, {memory(crossing)}"),
    ]
    if plan.note:
        facts.append(("note", plan.note))
    if scratch := _scratch_text(plan):
        facts.append(("scratch", scratch))
    return Report(
        title="partition",
        facts=tuple(facts),
        sections=tuple(_sections(plan)),
        data=_data(plan),
    )


def describe_place(place: NodePlace) -> Report:
    """Makes a report of where one node goes, with all reasons."""
    facts = [("operator", place.op), ("goes to", _place_text(place.claimant, place.group))]
    if place.module_path:
        facts.append(("module", place.module_path))
    if place.source:
        facts.append(("source", place.source))
    reasons = [(each.claimant, each.rule, _problem_text(each.problem)) for each in place.refusals]
    sections = [Section("reasons", table(("claimant", "rule", "why"), reasons))] if reasons else []
    return Report(
        title=place.node,
        facts=tuple(facts),
        sections=tuple(sections),
        data={
            "node": place.node,
            "op": place.op,
            "claimant": place.claimant,
            "group": place.group,
            "refusals": [_refusal_data(each) for each in place.refusals],
        },
    )


def describe_split(split: SplitLowered) -> Report:
    """Makes a report of a split program: its plan, and the file and transposes of each group."""
    report = describe_partition(split.partitions)
    minimal = ", proven minimal" if split.is_layout_minimal else ""
    facts = (*report.facts, ("transposed", memory(split.transposed_bytes) + minimal))
    return Report(
        title="split program",
        facts=facts,
        sections=report.sections,
        data={
            **report.data,
            "transposed_bytes": split.transposed_bytes,
            "is_layout_minimal": split.is_layout_minimal,
            "seconds": split.seconds,
        },
    )


def _place_text(claimant: str, group: int | None) -> str:
    return claimant if group is None else f"{claimant}, group{group}"


def _problem_text(problem: Any) -> str:
    text = str(problem.what)
    if problem.expected:
        text += f": expected {problem.expected}"
    return text + (f", got {problem.got}" if problem.got else "")


def _rule_text(problem: Any) -> str:
    """Returns a problem without the found value, which differs from node to node."""
    return str(problem.what) + (f": expected {problem.expected}" if problem.expected else "")


def _percent(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.0%}"


def _sections(plan: PartitionPlan) -> Iterable[Section]:
    yield Section("claimants", table(_SHARES, _shares(plan)))
    if plan.groups:
        yield _first("groups", _GROUPS, _group_rows(plan))
    reasons = _ranked(plan)
    if reasons:
        yield _first("why nodes stay on the host", ("nodes", "claimant", "operator", "rule", "why"), reasons)
    if plan.gains:
        columns = ("operator", "nodes", "groups then", "host nodes then")
        gained = [(op, *(f"{each:,}" for each in row)) for op, *row in plan.gains]
        yield _first("if the claimants took one more operator", columns, gained)
    if plan.groups:
        yield Section("picture", Picture(quotient_svg(plan)))
    if borders := _borders(plan):
        crossing = [
            (
                border.value,
                f"{border.dtype}[{','.join(map(str, border.shape))}]",
                "" if border.qparams is None else "quantized",
                _part(border.made_by),
                ", ".join(map(_part, border.read_by)),
                f"{border.bytes:,}",
            )
            for border in borders
        ]
        titles = ("value", "type", "", "made by", "read by", "bytes")
        yield Section("values that cross", table(titles, crossing), folded=True)
    if any(group.scratch_bytes for group in plan.groups):
        yield _scratch(plan)
    places = [place for _, each in plan.all_plans() for place in (*each.quantization, *each.swallowed)]
    if places:
        nodes = [(each.node, each.op, _place(each) or "", each.why) for each in places]
        yield Section(
            "quantize and dequantize nodes", table(("node", "operator", "in", "why"), nodes), folded=True
        )


def _first(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Section:
    shown = rows[:_SHOWN]
    more = len(rows) - len(shown)
    return Section(title + (f" (first {_SHOWN} of {len(rows)})" if more else ""), table(columns, shown))


def _borders(plan: PartitionPlan) -> list[Border]:
    return [border for _, each in plan.all_plans() for border in each.borders]


_SHARES = ("claimant", "groups", "nodes", "share", "MACs", "share ", "bytes in", "bytes out")


def _shares(plan: PartitionPlan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    owner = [_name(plan, group) for _, each in plan.all_plans() for group in each.group_of]
    borders = _borders(plan)
    macs: Counter[str] = Counter()
    for group in plan.groups:
        macs[group.claimant] += group.macs
    macs[HOST] = sum(each.host_macs for _, each in plan.all_plans())
    total = sum(macs.values())
    for name in (*plan.claimants, HOST):
        nodes = owner.count(name)
        entering = sum(
            b.bytes
            for b in borders
            for reader in b.read_by
            if _name(plan, reader) == name != _name(plan, b.made_by)
        )
        leaving = sum(
            b.bytes
            for b in borders
            if _name(plan, b.made_by) == name and any(_name(plan, r) != name for r in b.read_by)
        )
        rows.append(
            (
                name,
                "" if name == HOST else str(sum(group.claimant == name for group in plan.groups)),
                f"{nodes:,}",
                _percent(nodes, len(owner)),
                f"{macs[name]:,}",
                _percent(macs[name], total),
                f"{entering:,}",
                f"{leaving:,}",
            )
        )
    return rows


def _name(plan: PartitionPlan, group: int | None) -> str:
    return HOST if group is None else plan.group(group).claimant


_GROUPS = ("group", "claimant", "nodes", "MACs", "from", "to")


def _group_rows(plan: PartitionPlan) -> list[tuple[str, ...]]:
    region = {index: f"{name}: " for name, each in plan.all_plans() if name for index in each.group_of}
    return [
        (
            group.name,
            group.claimant,
            f"{len(group.nodes):,}",
            f"{group.macs:,}",
            region.get(group.index, "") + group.nodes[0],
            group.nodes[-1],
        )
        for group in plan.groups
    ]


def _place(each: QuantizationPlace) -> str | None:
    """Returns the part that has a node or its qparams; None for a node that was folded."""
    return None if each.is_folded else _part(each.group)


def _scratch(plan: PartitionPlan) -> Section:
    """Returns a section of the groups that have a temporary buffer."""
    rows = [
        (group.name, group.claimant, f"{group.scratch_bytes:,}")
        for group in plan.groups
        if group.scratch_bytes
    ]
    return Section("temporary buffers", table(("group", "claimant", "bytes"), rows), folded=True)


def _scratch_text(plan: PartitionPlan) -> str:
    """Returns the largest temporary buffer of each claimant, whose groups run one after another."""
    most: dict[str, int] = {}
    for group in plan.groups:
        most[group.claimant] = max(most.get(group.claimant, 0), group.scratch_bytes)
    return ", ".join(f"{memory(size)} for {name}" for name, size in most.items() if size)


def _ranked(plan: PartitionPlan) -> list[tuple[str, ...]]:
    """Returns the reasons of the host's nodes; those with the most nodes come first."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for _, inner in plan.all_plans():
        for node in inner.nodes_of_host:
            for each in inner.refusals[node.id]:
                found[each.claimant, node.op, each.rule, _rule_text(each.problem)] += 1
    return [(f"{nodes:,}", *key) for key, nodes in found.most_common()]


def _part(group: int | None) -> str:
    return HOST if group is None else f"group{group}"


def _refusal_data(refusal: Any) -> dict[str, str]:
    return {"claimant": refusal.claimant, "rule": refusal.rule, "message": refusal.problem.message}


def _data(plan: PartitionPlan) -> dict[str, Any]:
    return {
        "claimants": list(plan.claimants),
        "is_minimal": plan.is_minimal,
        "at_least": list(plan.at_least),
        "groups": [
            {
                "name": group.name,
                "claimant": group.claimant,
                "nodes": list(group.nodes),
                "inputs": list(group.inputs),
                "outputs": list(group.outputs),
                "macs": group.macs,
                "scratch_bytes": group.scratch_bytes,
            }
            for group in plan.groups
        ],
        "host": [
            {"node": node.name, "op": node.op, "refusals": [_refusal_data(r) for r in plan.refusals[node.id]]}
            for node in plan.nodes_of_host
        ],
        "regions": {name: _data(region) for name, region in plan.regions.items()},
        "borders": [
            {
                "value": border.value,
                "type": f"{border.dtype}[{','.join(map(str, border.shape))}]",
                "made_by": _part(border.made_by),
                "read_by": [_part(reader) for reader in border.read_by],
                "bytes": border.bytes,
            }
            for border in plan.borders
        ],
        "quantization": [
            {
                "node": each.node,
                "op": each.op,
                "in": _place(each),
                "why": each.why,
                "value": each.value or None,
            }
            for each in (*plan.quantization, *plan.swallowed)
        ],
        "gains": [
            {"operator": op, "nodes": nodes, "groups": groups, "host_nodes": host}
            for op, nodes, groups, host in plan.gains
        ],
    }


# ---- the picture ----

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y = 190, 44, 24, 46


def quotient_svg(plan: PartitionPlan) -> str:
    """Draws the groups, and the host's nodes between them, as boxes in the order in which they can run."""
    boxes, edges = _quotient(plan)
    rank = [0] * len(boxes)
    for a, b in sorted(edges):
        rank[b] = max(rank[b], rank[a] + 1)
    rows: dict[int, list[int]] = {}
    for box, row_of_box in enumerate(rank):
        rows.setdefault(row_of_box, []).append(box)
    widest = max(len(row) for row in rows.values())
    width = widest * (_BOX_WIDTH + _GAP_X) + _GAP_X
    height = len(rows) * (_BOX_HEIGHT + _GAP_Y) + _GAP_Y
    at: dict[int, tuple[float, float]] = {}
    for row, members in rows.items():
        left = (width - len(members) * (_BOX_WIDTH + _GAP_X) + _GAP_X) / 2
        for i, box in enumerate(members):
            at[box] = (left + i * (_BOX_WIDTH + _GAP_X), _GAP_Y / 2 + row * (_BOX_HEIGHT + _GAP_Y))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="sans-serif" font-size="11" role="img">',
        f'<rect class="back" width="{width}" height="{height}" fill="white"/>',
    ]
    for (a, b), size in edges.items():
        x1, y1 = at[a][0] + _BOX_WIDTH / 2, at[a][1] + _BOX_HEIGHT
        x2, y2 = at[b][0] + _BOX_WIDTH / 2, at[b][1]
        parts.append(
            f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="#80868b" '
            f'stroke-width="{1 + math.log10(1 + size) / 3:.1f}"><title>{size:,} bytes</title></line>'
        )
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(plan.claimants)}
    for box, (title, detail, claimant) in enumerate(boxes):
        x, y = at[box]
        parts.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5" '
            f'fill="{colours.get(claimant, "#f1f3f4")}" stroke="#5f6368"/>'
            f'<text x="{x + _BOX_WIDTH / 2:.0f}" y="{y + 18:.0f}" text-anchor="middle" font-weight="600" '
            f'fill="#202124">{escape(title)}</text>'
            f'<text x="{x + _BOX_WIDTH / 2:.0f}" y="{y + 34:.0f}" text-anchor="middle" '
            f'fill="#3c4043">{escape(detail)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _quotient(plan: PartitionPlan) -> tuple[list[tuple[str, str, str]], dict[tuple[int, int], int]]:
    """Returns boxes (title, detail, claimant) in topological order, and edges between them with bytes.

    Nodes of the host with the same number of groups before them share a box.
    """
    nodes = plan.graph.nodes
    level = _levels(plan)
    groups = [-1 if group is None else group for group in plan.group_of]
    keys = [(level[node.id], groups[node.id]) for node in nodes]
    order = sorted(dict.fromkeys(keys))
    index = {key: i for i, key in enumerate(order)}
    boxes: list[tuple[str, str, str]] = []
    for key in order:
        members = [node for node in nodes if keys[node.id] == key]
        if key[1] < 0:
            ops = list(dict.fromkeys(node.op for node in members))
            text = ", ".join(ops[:2]) + (" ..." if len(ops) > 2 else "")
            boxes.append((HOST, f"{count(len(members), 'node')}: {text}", HOST))
        else:
            group = plan.group(key[1])
            detail = f"{count(len(members), 'node')}, {group.macs:,} MACs"
            boxes.append((f"{group.name}: {group.claimant}", detail, group.claimant))
    edges: dict[tuple[int, int], int] = {}
    sizes = {border.value: border.bytes for border in plan.borders}
    for node in nodes:
        a = index[keys[node.id]]
        for result in node.results:
            for b in {index[keys[user.id]] for user in result.users} - {a}:
                edges[a, b] = edges.get((a, b), 0) + sizes.get(result.name, 0)
    return boxes, edges


def _levels(plan: PartitionPlan) -> list[int]:
    """Returns, by node, the most group borders on a path to it; the same for all nodes of a group."""
    nodes = plan.graph.nodes
    level = [0] * len(nodes)
    of_group = dict.fromkeys(plan.group_of, 0)
    changed = True
    while changed:
        changed = False
        for node in nodes:
            group = plan.group_of[node.id]
            found = 0 if group is None else of_group[group]
            for operand in node.operands:
                if operand is None or operand.producer is None:
                    continue
                before = operand.producer.id
                found = max(found, level[before] + int(plan.group_of[before] != group))
            changed |= found > level[node.id]
            level[node.id] = max(found, level[node.id])
            if group is not None and found > of_group[group]:
                of_group[group], changed = found, True
    return level
