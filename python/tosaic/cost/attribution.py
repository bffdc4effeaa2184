"""Attributes the rows of a tool's estimate to the nodes of a program.

::

    file    12 CONV2D -> a   13 RESCALE -> b   14 CLAMP -> c   15 RESHAPE -> d   16 CONV2D -> e
    tool    0: operator 12, writes c   1: operator 14, part of row 0   2: operator 16, writes e
    rows    conv2d a, with b and c fused                                conv2d e, with d fused

A row belongs to the node of its operator. All nodes without their own row are fused into a row: nodes between
the operator of a row and the tensor that the row writes; nodes whose row is part of another row's command;
and all others into the next row that reads their results. So each node of the file belongs to a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tosaic import _core
from tosaic.cost.device_cost import CostRow
from tosaic.cost.file_operators import file_operators
from tosaic.devices.tool_cost import ToolCost, ToolRow
from tosaic.profiling.steps import NodeOrigin, ProfiledNode

__all__ = ["attributed", "node_of"]


def attributed(tosa: bytes, cost: ToolCost) -> tuple[CostRow, ...]:
    """Returns the rows of a ``.tosa`` file with the nodes that they compute.

    If the cycles of the tool's rows do not add up to its total, a row without nodes has the difference.

    Raises
    ------
    InvalidGraph
        The file is damaged.
    """
    graph = _core.deserialize(tosa)
    tied = _Rows(graph, tosa, cost.rows)
    rows = [_row(cost, row, tied.nodes_of(place)) for place, row in tied.paid()]
    missing = cost.summary.cycles - sum(row.cycles for row in rows)
    if missing:
        rows.append(_row(cost, ToolRow(None, "other", "", missing), ()))
    return tuple(rows)


def node_of(node: _core.Node) -> ProfiledNode:
    """Returns a node in the form that costs use."""
    origins = tuple(NodeOrigin(each.module_path, each.source, each.target) for each in node.origins)
    return ProfiledNode(node.name, node.op, origins)


class _Rows:
    """The rows of a tool, and the index of each node's row."""

    def __init__(self, graph: _core.Graph, tosa: bytes, rows: Sequence[ToolRow]) -> None:
        self._rows = rows
        self._graph = graph
        self._makers = {result.name: node for node in graph.nodes for result in node.results}
        for node in graph.nodes:  # cycles of regions count for the node of control flow
            for name in _names_inside(node):
                self._makers.setdefault(name, node)
        self._own = self._nodes_of_operators(tosa)
        self._place = self._places()
        self._fused: dict[int, list[_core.Node]] = {}
        for node in graph.nodes:
            if node.id in self._place:
                self._fused.setdefault(self._place[node.id], []).append(node)

    def paid(self) -> list[tuple[int, ToolRow]]:
        """Returns the rows that keep their own cycles, with their indices."""
        return [(i, row) for i, row in enumerate(self._rows) if self._payer(i) == i]

    def nodes_of(self, place: int) -> tuple[ProfiledNode, ...]:
        """Returns the node of a row, then those that are fused into it."""
        own = self._own[place]
        if own is None:
            return ()
        return tuple(map(node_of, [own, *(node for node in self._fused.get(place, ()) if node.id != own.id)]))

    def _nodes_of_operators(self, tosa: bytes) -> list[_core.Node | None]:
        """Returns the node of each row."""
        operators = file_operators(tosa)

        def node(row: ToolRow) -> _core.Node | None:
            if operators is not None and row.operator is not None and row.operator < len(operators):
                names: Sequence[str] = operators[row.operator].outputs
            else:
                names = ()
            return next((self._makers[name] for name in names if name in self._makers), self._named(row))

        return list(map(node, self._rows))

    def _named(self, row: ToolRow) -> _core.Node | None:
        """Returns the node with the longest name that is a prefix of a row's tensor: ``x`` for ``x_copy``."""
        ends = [len(row.result), *(i for i, sign in enumerate(row.result) if not sign.isalnum())]
        names = (row.result[:end] for end in sorted(ends, reverse=True))
        return next((self._makers[name] for name in names if name in self._makers), None)

    def _payer(self, place: int) -> int:
        """Returns the row in which a row counts: itself, its leader, or the next row with cycles."""
        if self._rows[place].cycles:
            return place
        leader = self._rows[place].leader
        if leader is not None and leader != place and self._rows[leader].cycles:
            return leader
        later = (i for i in range(place, len(self._rows)) if self._rows[i].cycles)
        earlier = (i for i in range(place, -1, -1) if self._rows[i].cycles)
        return next(later, next(earlier, place))

    def _places(self) -> Mapping[int, int]:
        """Returns the index of the row of each node, by id of the node."""
        found: dict[int, int] = {}
        paid_first = sorted(range(len(self._rows)), key=lambda place: self._rows[place].cycles == 0)
        for place in paid_first:
            own = self._own[place]
            if own is not None:
                found.setdefault(own.id, self._payer(place))
        with_rows = set(found)
        for place, own in enumerate(self._own):
            last = self._makers.get(self._rows[place].result)
            if own is not None and last is not None:
                for node in _between(own, last, with_rows):
                    found.setdefault(node.id, self._payer(place))
        for node in reversed(self._graph.nodes):
            readers = [found[user.id] for result in node.results for user in result.users if user.id in found]
            if node.id not in found and readers:
                found[node.id] = min(readers)
        for node in self._graph.nodes:
            makers = [each.producer for each in node.operands if each is not None]
            places = [found[maker.id] for maker in makers if maker is not None and maker.id in found]
            if node.id not in found and places:
                found[node.id] = max(places)
        return found


def _names_inside(node: _core.Node) -> Iterator[str]:
    """Yields the names of values in the regions of a node."""
    for region in node.regions:
        for inner in region.nodes:
            yield from (result.name for result in inner.results)
            yield from _names_inside(inner)


def _between(first: _core.Node, last: _core.Node, stops: set[int]) -> list[_core.Node]:
    """Returns the nodes on paths from a node to a later one, including the later one."""
    leads: dict[int, bool] = {first.id: True}
    found: list[_core.Node] = []
    stack = [(last, False)]
    while stack:
        node, is_done = stack.pop()
        makers = [each.producer for each in node.operands if each is not None and each.producer is not None]
        if is_done:
            leads[node.id] = any(leads.get(maker.id, False) for maker in makers)
            if leads[node.id]:
                found.append(node)
        elif node.id not in leads and node.id not in stops:
            leads[node.id] = False
            stack.append((node, True))
            stack += [(maker, False) for maker in makers]
    return found


def _row(cost: ToolCost, row: ToolRow, nodes: tuple[ProfiledNode, ...]) -> CostRow:
    most = row.cycles * cost.summary.macs_per_cycle
    return CostRow(
        operator=row.operator,
        device_op=row.device_op,
        nodes=nodes,
        result=row.result,
        cycles=row.cycles,
        share=row.cycles / cost.summary.cycles if cost.summary.cycles else 0.0,
        npu_cycles=row.npu_cycles,
        sram_cycles=row.sram_cycles,
        dram_cycles=row.dram_cycles,
        on_chip_flash_cycles=row.on_chip_flash_cycles,
        off_chip_flash_cycles=row.off_chip_flash_cycles,
        sram_bytes=row.sram_bytes,
        macs=row.macs,
        mac_use=row.macs / most if most > 0 else 0.0,
    )
