"""Where a lowered program transposes, who wants it, and the proof that less is not possible."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tosaic.dim_order import channels_last, is_same_order
from tosaic.options import checked, is_one_of, shown

if TYPE_CHECKING:
    from tosaic import _core
    from tosaic.report import Report

__all__ = ["Candidate", "Demand", "Layout", "Objective", "OwnCost", "Transpose", "layout_of", "objective_of"]


@dataclass(frozen=True)
class Candidate:
    """A value that a plan may bring to another order, as a cost function is told of it.

    Attributes
    ----------
    value : str
        Its name in the graph that is planned: canonical operators, decomposed.
    shape : tuple of int
        Logical.
    dtype : str
        ``"f32"``.
    bytes : int
    """

    value: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


Objective: TypeAlias = Literal["bytes", "count"] | Callable[[Candidate], int]
"""What a layout plan makes least: bytes, the number of transposes, or a cost of the caller's.

The cost belongs to a value: it is paid once for each order that the value is read in and is not made in,
whoever reads it, and it cannot depend on these orders. Under this the plan is as exact as under bytes, and so
is its proof. Among plans of one cost the one with the fewest transposes is taken.
"""


class OwnCost:
    """A caller's cost of transposing a value: asked once for each, checked, and remembered.

    What it answered once it answers again, so that a plan that is shown is the plan that was made.

    Attributes
    ----------
    name : str
        ``cycles()``, of a function ``cycles``.

    Raises
    ------
    InvalidGraph
        From a call: the answer is no integer from 0 to 2**63 - 1.
    """

    def __init__(self, cost: Callable[[Candidate], int]) -> None:
        self._cost: Callable[[Candidate], int] | None = cost
        self._answers: dict[Candidate, int] = {}
        self.name = f"{getattr(cost, '__name__', type(cost).__name__)}()"

    def __call__(self, value: str, shape: tuple[int, ...], dtype: str, size: int) -> int:
        """The cost of a value by its name, shape, dtype and bytes."""
        candidate = Candidate(value, shape, dtype, size)
        if candidate not in self._answers:
            if self._cost is None:
                raise self._left_behind(candidate)
            self._answers[candidate] = self._checked(candidate, self._cost(candidate))
        return self._answers[candidate]

    def __getstate__(self) -> dict[str, Any]:
        """The answers alone: a function may not be picklable, and all that a plan asked is answered."""
        return {"_cost": None, "_answers": self._answers, "name": self.name}

    def _left_behind(self, candidate: Candidate) -> Exception:
        from tosaic import _core

        return _core.make_error(
            _core.InvalidGraph,
            where="layout",
            what=f"{self.name} stayed behind when its plan was pickled, and was never asked about this value",
            got=f"'{candidate.value}'",
            node=candidate.value,
        )

    def _checked(self, candidate: Candidate, answer: Any) -> int:
        try:
            cost = operator.index(answer)
        except TypeError:
            cost = -1
        if not 0 <= cost < 2**63:
            from tosaic import _core

            raise _core.make_error(
                _core.InvalidGraph,
                where="layout",
                what=f"{self.name} gives no cost of transposing '{candidate.value}'",
                expected="an integer from 0 to 2**63 - 1",
                got=repr(answer),
                node=candidate.value,
            )
        return cost


def objective_of(objective: Objective | OwnCost) -> Objective | OwnCost:
    """The objective as the core takes it: a function is checked and remembers its answers.

    Raises
    ------
    InvalidGraph
        No such objective.
    """
    if isinstance(objective, OwnCost):
        return objective
    if callable(objective):
        return OwnCost(objective)
    if not is_one_of(objective, ("bytes", "count")):
        from tosaic import _core

        raise _core.make_error(
            _core.InvalidGraph,
            where="layout",
            what="unknown objective",
            expected="'bytes', 'count' or a function that gives the cost of a transpose",
            got=shown(objective),
        )
    return objective


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
        What the caller may declare at the border, with other borders where only all of them together help,
        and what is transposed then; empty where that is no less.
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
    cost : int
        What the objective counts it: its bytes, 1, or what the caller's function gave.
    made_by, read_by : tuple of Demand
        The nearest reasons on either side, at most three each.
    """

    value: str
    from_order: tuple[int, ...]
    to_order: tuple[int, ...]
    bytes: int
    cost: int
    made_by: tuple[Demand, ...]
    read_by: tuple[Demand, ...]


@dataclass(frozen=True)
class Layout:
    """The layout plan of a program.

    Attributes
    ----------
    objective : str
        ``bytes`` or ``count``, or the name of the caller's function, ``cycles()``: what was made least.
    transposes : tuple of Transpose
    bytes : int
        Of all transposes.
    cost, bound : int
        What the plan costs and what was proven that no plan goes below, in units of the solver's, in which
        ties count too. The proof is checked by a function that shares no code with the solver.
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


@checked
def layout_of(
    graph: _core.Graph, *, objective: Objective | OwnCost = "bytes", grids: Sequence[bool] = ()
) -> Layout:
    """Plans a graph of canonical operators, as lowering does.

    Parameters
    ----------
    graph : Graph
    objective : {"bytes", "count"} or callable
        As `tosaic.lower` takes it.
    grids : sequence of bool
        By input: the coordinates of a grid sampler, whose order is not to be declared otherwise.

    Raises
    ------
    InvalidGraph
        No such objective, a cost that is no integer from 0 to 2**63 - 1, costs that add up to 2**60 or more,
        each counted twice for each order of each reader, or a graph at stage tosa.
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
    asked: Any = objective_of(objective)
    plan = _core.plan_layout(graph, objective=asked, grids=grids)
    return read_plan(plan, graph, [value.name for value in graph.values], objective=asked)


def read_plan(plan: dict[str, Any], graph: _core.Graph, names: Iterable[str], *, objective: Any) -> Layout:
    """A plan of the core, by what `objective_of` gave, of values with these names."""
    ports: list[Any] = [*graph.inputs, *graph.outputs]
    return Layout(
        objective=objective.name if isinstance(objective, OwnCost) else objective,
        transposes=tuple(_transpose(row) for row in plan["transposes"]),
        bytes=plan["bytes"],
        cost=plan["cost"],
        bound=plan["bound"],
        orders=dict(zip(names, plan["orders"], strict=True)),
        ambiguous=tuple(port.path for port in ports if _is_ambiguous(port.shape)),
    )


def _is_ambiguous(shape: tuple[int, ...]) -> bool:
    rank = len(shape)
    if rank not in (4, 5):
        return False
    return is_same_order(shape, channels_last(rank), range(rank))


def _transpose(row: dict[str, Any]) -> Transpose:
    made, read = (tuple(Demand(**demand) for demand in row[side]) for side in ("made_by", "read_by"))
    return Transpose(row["value"], row["from"], row["to"], row["bytes"], row["cost"], made, read)
