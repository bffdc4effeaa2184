"""The declared orders of inputs and outputs: the entries of the option `orders`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tosaic import _core
from tosaic.base.options import layout_mismatch
from tosaic.fx.layouts.applied import Convert
from tosaic.fx.layouts.program_copy import WHERE, Order
from tosaic.ports.boundary_orders import boundary_orders, index_of, require_sides


class Boundaries:
    """The entries of `orders` by side and position: orders for the plan, and which of them are converted."""

    def __init__(self, graph: _core.Graph, orders: Mapping[str, Any] | None) -> None:
        plain: dict[str, Any] = {}
        self.is_converted: dict[str, set[int]] = {"inputs": set(), "outputs": set()}
        require_sides(orders)
        for side, wanted in (orders or {}).items():
            ports: Any = graph.outputs if side == "outputs" else graph.inputs
            if isinstance(wanted, Mapping):
                plain[side] = {key: self._form(form) for key, form in wanted.items()}
                keys = [key for key, form in wanted.items() if isinstance(form, Convert)]
                chosen = {index_of(side, ports, key) for key in keys} if side in self.is_converted else set()
            else:
                plain[side] = self._form(wanted)
                chosen = set(range(len(ports))) if isinstance(wanted, Convert) else set()
            self.is_converted.setdefault(side, set()).update(chosen)
        declared = boundary_orders(graph, plain)
        self.inputs = self._of_user(graph.inputs, declared["inputs"])
        self.outputs = self._of_user(graph.outputs, declared["outputs"])
        self.any_converted = any(
            self.order(side, i) is not None for side, which in self.is_converted.items() for i in which
        )

    @staticmethod
    def _form(form: Any) -> Any:
        form = form.order if isinstance(form, Convert) else form
        if isinstance(form, str) and form == "nhwc":
            raise layout_mismatch(
                WHERE,
                "tensors of torch have their logical shape, whatever their order",
                expected="channels_last, contiguous, traced or a dim order",
                got="'nhwc'",
                hint='Declare "channels_last" and pass an NHWC buffer as buffer.permute(0, 3, 1, 2)',
            )
        return form

    @staticmethod
    def _of_user(ports: Any, declared: list[Any] | None) -> list[Order | None]:
        if declared is None:
            return [None] * len(ports)
        return [
            None if order is None or port.kind != "user" else tuple(order[0])
            for port, order in zip(ports, declared, strict=True)
        ]

    def order(self, side: str, index: int) -> Order | None:
        """Returns the declared or converted order of an input or output; None if its order is as traced."""
        return (self.inputs if side == "inputs" else self.outputs)[index]

    def declared(self, side: str, index: int) -> Order | None:
        """Returns the order of the input or output itself, if that is not as traced."""
        return None if index in self.is_converted[side] else self.order(side, index)
