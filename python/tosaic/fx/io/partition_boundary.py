"""The options `io` and `orders` for a program that is split: its inputs and outputs before it is planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tosaic import _core
from tosaic.base.dtypes import WITH_INTEGER_FORM
from tosaic.fx.io.extract_io import extract_io_quant
from tosaic.ports.boundary_orders import boundary_orders
from tosaic.ports.ports import Port
from tosaic.program.program import Program


def with_boundary(program: Program, *, io: Mapping[str, Any] | None, orders: Any) -> Program:
    """Returns the program with integers at the inputs and outputs that `io` names, in the declared orders.

    Raises
    ------
    InvalidGraph, QuantMismatch, LayoutMismatch
        As `tosaic.lower`.
    """
    if io:
        sides = {side: io_entries(wanted, getattr(program, side)) for side, wanted in io.items()}
        program, _ = extract_io_quant(
            program, inputs=sides.get("inputs"), outputs=sides.get("outputs"), in_place=False
        )
    declared = boundary_orders(program.graph, orders, views_as_traced=False)
    graph = _core.with_boundary_orders(
        program.graph, input_orders=declared["inputs"], output_orders=declared["outputs"]
    )
    return program if graph is program.graph else program.with_graph(graph)


def io_entries(wanted: Any, ports: tuple[Port, ...]) -> Mapping[Any, Any]:
    """Returns what each port becomes. One dtype for a whole side concerns its float ports."""
    if isinstance(wanted, Mapping):
        return wanted
    return {i: wanted for i, port in enumerate(ports) if port.dtype in WITH_INTEGER_FORM}
