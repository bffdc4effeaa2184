"""Where a lowered program transposes, who wants it, and the proof that less is not possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tosaic import _core
    from tosaic.report import Report

__all__ = ["Demand", "Layout", "Transpose", "layout_of"]


@dataclass(frozen=True)
class Demand:
    """An operator, or a border, that lets a value have one order alone.

    Attributes
    ----------
    who : str
        The node, or the path of the input or output.
    rule : str
        ``max_pool wants channels last``.
    module_path, source : str
        Where the node came from: ``layer1.0.conv1``, ``model.py:41``.
    remedy : str
        What the caller may do about it; empty where that is nothing.
    """

    who: str
    rule: str
    module_path: str = ""
    source: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        place = " ".join(filter(None, (self.module_path, self.source)))
        return f"{self.who}: {self.rule}" + (f" ({place})" if place else "")


@dataclass(frozen=True)
class Transpose:
    """A value that is brought to another order.

    Attributes
    ----------
    value : str
    from_order, to_order : tuple of int
        Logical axes, outermost first.
    bytes : int
        Of the value.
    made_by, read_by : tuple of Demand
        The nearest reasons on either side, at most three each.
    """

    value: str
    from_order: tuple[int, ...]
    to_order: tuple[int, ...]
    bytes: int
    made_by: tuple[Demand, ...]
    read_by: tuple[Demand, ...]


@dataclass(frozen=True)
class Layout:
    """The layout plan of a program.

    Attributes
    ----------
    objective : str
        ``bytes`` or ``count``: what was made least.
    transposes : tuple of Transpose
    bytes : int
        Of all transposes.
    cost, bound : int
        What the objective gives, in units of its own, and what was proven that no plan goes below. The proof
        is checked by a function that shares no code with the solver.
    orders : dict of str to tuple of int
        The dim order that each value is made in.
    ambiguous : tuple of str
        Inputs and outputs whose extents of 1 make row-major and channels last one and the same: strides tell
        neither, and nothing depends on which of them is meant.
    """

    objective: str
    transposes: tuple[Transpose, ...]
    bytes: int
    cost: int
    bound: int
    orders: dict[str, tuple[int, ...]]
    ambiguous: tuple[str, ...] = ()

    @property
    def is_minimal(self) -> bool:
        """Proven: no choice among the orders that operators can compute in costs less."""
        return self.cost == self.bound

    def report(self) -> Report:
        """Transposes, their reasons and the bound."""
        from tosaic.report.layout import describe_layout

        return describe_layout(self)

    def __str__(self) -> str:
        return self.report().text

    def _repr_html_(self) -> str:
        return self.report().html_fragment


def layout_of(graph: _core.Graph, *, objective: str = "bytes") -> Layout:
    """Plans a graph of canonical operators, as lowering does.

    Raises
    ------
    InvalidGraph
        No such objective, or the graph is at stage tosa.
    """
    from tosaic import _core

    if graph.stage == "tosa":
        raise _core.make_error(
            _core.InvalidGraph,
            where="layout",
            what="a graph of TOSA operators has no layout plan: its transposes are operators",
            expected="a graph of canonical operators",
            got="a graph at stage tosa",
        )
    plan = _core.plan_layout(graph, objective=objective)
    ports: list[Any] = [*graph.inputs, *graph.outputs]
    return Layout(
        objective=objective,
        transposes=tuple(_transpose(row) for row in plan["transposes"]),
        bytes=plan["bytes"],
        cost=plan["cost"],
        bound=plan["bound"],
        orders={value.name: order for value, order in zip(graph.values, plan["orders"], strict=True)},
        ambiguous=tuple(port.path for port in ports if _is_ambiguous(port.shape)),
    )


def _is_ambiguous(shape: tuple[int, ...]) -> bool:
    rank = len(shape)
    if rank not in (4, 5):
        return False
    significant = [axis for axis in (0, *range(2, rank), 1) if shape[axis] != 1]
    return significant == sorted(significant)


def _transpose(row: dict[str, Any]) -> Transpose:
    made, read = (tuple(Demand(**demand) for demand in row[side]) for side in ("made_by", "read_by"))
    return Transpose(row["value"], row["from"], row["to"], row["bytes"], made, read)
