"""The report of a program whose nodes are kernels of a CPU inside of ExecuTorch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tosaic.report.document import Report
from tosaic.report.numbers import count
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.partitions.kernel_plan import KernelNode, KernelProgram

_STATUS = {
    "kernel": "a kernel",
    "merged": "part of another kernel",
    "integers": "integers, by a portable kernel",
    "refused": "refused",
    "left": "left as it is",
}


def describe_kernel_program(program: KernelProgram) -> Report:
    """Makes a report that says what each node of the plan became; refused nodes come first."""
    counts = Counter(each.status for each in program.nodes)
    facts = [
        ("kernels of", program.claimant),
        ("nodes", ", ".join(f"{counts[each]} {text}" for each, text in _STATUS.items() if counts[each])),
    ]
    facts += [(f"left to {owner}", count(len(nodes), "node")) for owner, nodes in program.left.items()]
    if program.channels_last:
        facts.append(("in channels-last order", ", ".join(program.channels_last)))
    kernels = Counter(name for each in program.nodes for name in each.kernels)
    sections = []
    if program.refused:
        rows = [(each.node, each.op, each.reason, _origin(each)) for each in program.refused]
        sections.append(Section("refused", table(("node", "operator", "why", "from"), rows)))
    if kernels:
        rows_of_kernels = [(name, str(number)) for name, number in kernels.most_common()]
        sections.append(Section("kernels", table(("kernel", "nodes"), rows_of_kernels)))
    every = [
        (each.node, each.op, each.claimant, _STATUS[each.status], " ".join(each.kernels), each.reason)
        for each in program.nodes
    ]
    columns = ("node", "operator", "claimant", "became", "kernels", "why")
    sections.append(Section("nodes", table(columns, every), folded=True))
    taken = counts["kernel"] + counts["merged"] + counts["integers"]
    return Report(
        f"{taken} of {count(len(program.nodes), 'node')} by kernels of {program.claimant}",
        facts=tuple(facts),
        sections=tuple(sections),
        data={
            "claimant": program.claimant,
            "nodes": list(program.nodes),
            "channels_last": list(program.channels_last),
            "kernels": dict(kernels),
        },
    )


def _origin(node: KernelNode) -> str:
    return " ".join(filter(None, (node.module_path, node.source)))
