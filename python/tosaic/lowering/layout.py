"""The layout plan of a program: its transposes, their reasons, and a proven lower bound of their cost."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tosaic.base.dim_order import channels_last, is_same_order
from tosaic.base.options import checked, invalid, is_one_of, shown
from tosaic.base.reportable import Reportable
from tosaic.base.visible import one_line

if TYPE_CHECKING:
    from tosaic import _core

__all__ = ["Candidate", "Demand", "Layout", "Objective", "OwnCost", "Transpose", "layout_of", "objective_of"]


@dataclass(frozen=True)
class Candidate:
    """A value that a plan may transpose: the argument of a cost function.

    Attributes
    ----------
    value : str
        Name of the value in the planned graph, which has canonical, decomposed operators.
    shape : tuple of int
        Logical shape.
    dtype : str
        Such as ``"f32"``.
    bytes : int
        Size of the value. An i64 element counts 4 bytes, since TOSA computes with i32.
    """

    value: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


Objective: TypeAlias = Literal["bytes", "count"] | Callable[[Candidate], int]
"""What a layout plan minimises: transposed bytes, the number of transposes, or the costs of the caller.

The caller's cost belongs to a value. The plan pays the cost once for each dim order in which the value is
read but not produced, however many readers use that order. The cost cannot depend on the orders themselves.
Plans for such costs, and their proofs, are as exact as for bytes. Among plans of equal cost, the plan with
the fewest transposes is chosen; for ``"count"``, the plan with the fewest bytes.
"""


class OwnCost:
    """A cost function of the caller, which is called once per value; its answers are checked and stored.

    A value with a stored answer always has that cost. So a plan that is made again for a report is the plan
    that was made when the program was lowered.

    Attributes
    ----------
    name : str
        Name in reports: ``cycles()`` for a function ``cycles``.

    Raises
    ------
    InvalidGraph
        From a call: the answer is not an integer from 0 to 2**63 - 1, or the object was unpickled and has no
        answer for the value.
    """

    def __init__(self, cost: Callable[[Candidate], int]) -> None:
        self._cost: Callable[[Candidate], int] | None = cost
        self._answers: dict[Candidate, int] = {}
        self.name = f"{getattr(cost, '__name__', type(cost).__name__)}()"

    def __call__(self, value: str, shape: tuple[int, ...], dtype: str, size: int) -> int:
        """Returns the cost of transposing the value of this name, shape, dtype and size in bytes."""
        candidate = Candidate(value, shape, dtype, size)
        if candidate not in self._answers:
            if self._cost is None:
                raise self._left_behind(candidate)
            self._answers[candidate] = self._checked(candidate, self._cost(candidate))
        return self._answers[candidate]

    def __getstate__(self) -> dict[str, Any]:
        """Pickles only the answers: a function may not be picklable, and a known plan needs no others."""
        return {"_cost": None, "_answers": self._answers, "name": self.name}

    def _left_behind(self, candidate: Candidate) -> Exception:

        return invalid(
            "layout",
            f"{self.name} stayed behind when its plan was pickled, and was never asked about this value",
            got=f"'{candidate.value}'",
            node=candidate.value,
        )

    def _checked(self, candidate: Candidate, answer: Any) -> int:
        try:
            cost = operator.index(answer)
        except TypeError:
            cost = -1
        if not 0 <= cost < 2**63:
            raise invalid(
                "layout",
                f"{self.name} gives no cost of transposing '{candidate.value}'",
                expected="an integer from 0 to 2**63 - 1",
                got=repr(answer),
                node=candidate.value,
            )
        return cost


def objective_of(objective: Objective | OwnCost) -> Objective | OwnCost:
    """Returns the objective in the form that the core expects: a function is wrapped in `OwnCost`.

    Raises
    ------
    InvalidGraph
        The objective is neither ``"bytes"`` nor ``"count"`` nor callable.
    """
    if isinstance(objective, OwnCost):
        return objective
    if callable(objective):
        return OwnCost(objective)
    if not is_one_of(objective, ("bytes", "count")):
        raise invalid(
            "layout",
            "unknown objective",
            expected="'bytes', 'count' or a function that gives the cost of a transpose",
            got=shown(objective),
        )
    return objective


@dataclass(frozen=True)
class Demand:
    """An operator, or an input or output of the graph, that requires a dim order of a value.

    Attributes
    ----------
    who : str
        Name of the node, or path of the input or output.
    rule : str
        The requirement, such as ``max_pool wants channels last``.
    module_path, source : str
        Origin of the node, such as ``layer1.0.conv1`` and ``model.py:41``.
    remedy : str
        Which order the caller may declare for this input or output, and what is transposed then. If only a
        declaration of several inputs and outputs together helps, the text names all of them. Empty if no
        declaration saves anything.
    """

    who: str
    rule: str
    module_path: str = ""
    source: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        place = " ".join(filter(None, (self.module_path, self.source)))
        return one_line(f"{self.who}: {self.rule}" + (f" ({place})" if place else ""))


@dataclass(frozen=True)
class Transpose:
    """A value that is transposed to another dim order.

    Attributes
    ----------
    value : str
        Name of the value in the planned graph.
    from_order, to_order : tuple of int
        The order in which the value is produced, and the order in which it is read: logical axes, outermost
        first.
    bytes : int
        Size of the value.
    cost : int
        The cost for the objective: the bytes, 1, or the answer of the caller's function.
    made_by, read_by : tuple of Demand
        The nearest demands for `from_order` and for `to_order`, at most three each.
    """

    value: str
    from_order: tuple[int, ...]
    to_order: tuple[int, ...]
    bytes: int
    cost: int
    made_by: tuple[Demand, ...]
    read_by: tuple[Demand, ...]


@dataclass(frozen=True)
class Layout(Reportable):
    """The layout plan of a program.

    Attributes
    ----------
    objective : str
        What the plan minimises: ``bytes``, ``count``, or the name of the caller's function, such as
        ``cycles()``.
    transposes : tuple of Transpose
    bytes : int
        Bytes of all transposes together.
    cost, bound : int
        The cost of the plan, and a proven lower bound of the cost of every plan. Both are in the solver's
        units, which include the tie-break. A function that shares no code with the solver has checked the
        proof.
    orders : dict of str to tuple of int
        By name, the dim order in which each value is produced.
    ambiguous : tuple of str
        Inputs and outputs for which row-major and channels last are the same memory layout, because of
        extents of 1. Their strides do not show which one is meant, and nothing depends on it.
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
        """True if it is proven that no choice among the orders that the plan considers costs less."""
        return self.cost == self.bound


@checked
def layout_of(
    graph: _core.Graph, *, objective: Objective | OwnCost = "bytes", grids: Sequence[bool] = ()
) -> Layout:
    """Plans the dim orders of a graph of canonical operators, as `tosaic.lower` does.

    Parameters
    ----------
    graph : Graph
    objective : {"bytes", "count"} or callable
        As in `tosaic.lower`.
    grids : sequence of bool
        By input, True if the input holds the coordinates of a grid sampler. No remedy then suggests another
        order for this input.

    Raises
    ------
    InvalidGraph
        The objective is unknown, a cost is not an integer from 0 to 2**63 - 1, the costs add up to 2**60 or
        more (each counted twice for each order of each reader), or the graph is at stage tosa.
    """
    from tosaic import _core

    if graph.stage == "tosa":
        raise invalid(
            "layout",
            "a graph of TOSA operators has no layout plan: its transposes are operators",
            expected="a graph of canonical operators",
            got="a graph at stage tosa",
        )
    asked: Any = objective_of(objective)
    plan = _core.plan_layout(graph, objective=asked, grids=grids)
    return read_plan(plan, graph, [value.name for value in graph.values], objective=asked)


def read_plan(plan: dict[str, Any], graph: _core.Graph, names: Iterable[str], *, objective: Any) -> Layout:
    """Converts a plan of the core.

    Parameters
    ----------
    plan : dict
        From the core.
    graph : Graph
        It has the inputs and outputs of the planned graph.
    names : iterable of str
        Names of the planned graph's values, in order.
    objective
        The value that `objective_of` returned.
    """
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
