"""The dim orders that the core plans for the values of a program and for the operands of its calls."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from tosaic import _core
from tosaic.fx.layouts.boundaries import Boundaries
from tosaic.fx.layouts.program_copy import Order, ProgramCopy
from tosaic.lowering.layout import Objective, objective_of, read_plan
from tosaic.torch_operators.value import Ref


class PlannedOrders:
    """A plan for the nodes of a copy of a program.

    Attributes
    ----------
    layout : Layout
    at_outputs : list of order
        By position in the outputs of the imported graph.
    """

    def __init__(self, program: ProgramCopy, boundaries: Boundaries, objective: Objective) -> None:
        self._copy = program
        graph = program.read.imported.graph
        asked: Any = objective_of(objective)
        plan = _core.plan_calls(
            graph,
            objective=asked,
            input_orders=[None if order is None else (order, False) for order in boundaries.inputs],
            output_orders=[None if order is None else (order, False) for order in boundaries.outputs],
        )
        self.layout = read_plan(plan["plan"], graph, plan["names"], objective=asked)
        self.at_outputs: list[Order] = plan["outputs"]
        self._order_of: list[Order | None] = plan["orders"]
        self._reads: dict[tuple[str, int], Order] = {
            (call, value): order for call, value, order in plan["reads"]
        }

    def read_by(self, call: Node, operand: Ref) -> Order | None:
        """Returns the order in which a call reads an operand; None if not planned."""
        return self._reads.get((call.name, operand.id))

    def of(self, node: Node) -> Any:
        """Returns the planned order of a node's value; for several values, a tuple; None if not planned."""
        value = self._copy.values.get(node)
        if isinstance(value, Ref):
            return self._order_of[value.id]
        if isinstance(value, list) and any(isinstance(item, Ref) for item in value):
            return tuple(self._order_of[item.id] if isinstance(item, Ref) else None for item in value)
        return None

    def change(self, ref: Ref, order: Order) -> None:
        """Sets the planned order of a value."""
        self._order_of[ref.id] = order
