"""Lays out the calls of a program: the orders of their operands, and the strides of their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from tosaic import _core
from tosaic.base.dim_order import contiguous_strides, is_same_order
from tosaic.fx.io.quantize_calls import is_dequantize, is_quantize, operator_of
from tosaic.fx.layouts.applied import Unmet
from tosaic.fx.layouts.conversions import Conversions
from tosaic.fx.layouts.eager_strides import as_computed, is_recorded_right
from tosaic.fx.layouts.planned_orders import PlannedOrders
from tosaic.fx.layouts.program_copy import WHERE, Order, ProgramCopy, can_compute, has_tensors
from tosaic.fx.reading.memory_order import dense_in_order, format_of, order_of_format, set_value
from tosaic.fx.reading.targets import default_of
from tosaic.torch_operators.origins import Where
from tosaic.torch_operators.value import Ref

_FORMATS = ("memory_format", "dim_order")
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


class CallLayout:
    """Lays out calls, each after those that it reads.

    Parameters
    ----------
    program : ProgramCopy
    plan : PlannedOrders
    conversions : Conversions
    converts : bool
        Whether calls compute in the planned orders; else only strides are written.
    weights : bool
        Whether values that are computed from weights alone are changed, too.

    Attributes
    ----------
    unmet : list of Unmet
        Planned orders that the program's dialect cannot express.
    """

    def __init__(
        self,
        program: ProgramCopy,
        plan: PlannedOrders,
        conversions: Conversions,
        *,
        converts: bool,
        weights: bool,
    ) -> None:
        self._copy = program
        self._plan = plan
        self._conversions = conversions
        self._converts = converts
        self._weights = weights
        self.unmet: list[Unmet] = []

    def lay(self, node: Node) -> None:
        """Lays out a call, whose operands are laid out already."""
        operands = [arg for arg in node.all_input_nodes if isinstance(arg.meta.get("val"), torch.Tensor)]
        if all(arg in self._copy.constant for arg in node.all_input_nodes):
            self._copy.constant.add(node)
            if not self._weights:
                return
        elif any(arg in self._copy.moved for arg in node.all_input_nodes):
            self._copy.moved.add(node)
        if (
            not self._converts
            and node in self._copy.moved
            and node.target in _VIEWS
            and not self._copy.is_written
        ):
            node.target = torch.ops.aten.reshape.default  # reshape copies if the strides allow no view
        if _addresses_memory(node):
            self._hand_over_as_traced(node, operands)
        elif self._converts and self._is_quantized_as_computed(node):
            self._keep_order_of_operand(node, operands[0])
        elif self._converts and node not in self._copy.constant:
            self._convert_operands(node, operands)
        if not self._converts and (_named_format(node) or self._label(node)):
            return
        has_changed = self._converts and self._follow_plan(node)
        if has_changed or any(self._copy.is_in_another_order(arg) for arg in node.all_input_nodes):
            self._compute_again(node, operands)
        elif self._converts and can_compute(node) and has_tensors(node):
            self._correct(node)

    def _correct(self, node: Node) -> None:
        """Sets ``meta["val"]`` to the strides that torch computes, where fake tensors record others."""
        if is_recorded_right(node.target) or _named_format(node) is not None:
            return
        args, kwargs = map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
        val = as_computed(node.target, args, kwargs, node.meta["val"], self._copy.numbers)
        if val is not node.meta["val"]:
            set_value(node.meta, val)

    def _label(self, node: Node) -> bool:
        """Writes the planned orders; False if the plan has none for this node."""
        orders = self._plan.of(node)
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            if orders is None:
                return False
            if not self._copy.has_order(node, orders):
                set_value(node.meta, dense_in_order(val, orders))
            return True
        if not isinstance(val, tuple | list) or not isinstance(orders, tuple):
            return False
        items = [
            dense_in_order(item, order)
            if isinstance(item, torch.Tensor) and order and not self._copy.tensor_has_order(item, order)
            else item
            for item, order in zip(val, orders, strict=True)
        ]
        if any(new is not old for new, old in zip(items, val, strict=True)):
            set_value(node.meta, type(val)(items))
        return True

    def _convert_operands(self, node: Node, operands: list[Node]) -> None:
        replaced: dict[Node, Node] = {}
        for arg in operands:
            ref = self._copy.values.get(arg)
            if arg in self._copy.constant or not isinstance(ref, Ref) or self._converts_by_itself(node):
                continue
            order = self._plan.read_by(node, ref)
            if order is None and not can_compute(node) and has_tensors(node):
                order = self._copy.traced_order(arg)
            if order is None or self._copy.has_order(arg, order):
                continue
            made = self._conversions.converted(arg, order)
            if made is None:
                self.unmet.append(Unmet(arg.name, node.name, order))
            else:
                replaced[arg] = made
        _replace(node, replaced)

    def _is_quantized_as_computed(self, node: Node) -> bool:
        """True for a quantize call, and for elementwise calls between an operator and its quantize call.

        They take the order that the operator makes: a conversion in front of them would come between operator
        and quantize call. It follows after the quantize call, where a reader needs another order.
        """
        first = node.all_input_nodes[:1]
        if node in self._copy.constant or not first or is_dequantize(first[0]) or not can_compute(node):
            return False
        return _leads_to_quantize(node)

    def _keep_order_of_operand(self, node: Node, operand: Node) -> None:
        """Plans the order of the operand for the result of an elementwise call."""
        ref = self._copy.values.get(node)
        if isinstance(ref, Ref) and ref != self._copy.values.get(operand):
            self._plan.change(ref, self._copy.order_of_tensor(operand.meta["val"]))

    def _converts_by_itself(self, node: Node) -> bool:
        """True for a copy that is, or can be, in the planned order. Its operand needs no conversion."""
        order = self._plan.of(node)
        if order is None or _named_format(node) is None or len(node.all_input_nodes) != 1:
            return False
        return format_of(node.meta["val"].shape, order) is not None

    def _hand_over_as_traced(self, node: Node, operands: list[Node]) -> None:
        """Converts operands of a call that addresses memory back to the traced order, or refuses the call."""
        replaced: dict[Node, Node] = {}
        for arg in operands:
            if not self._copy.is_in_another_order(arg) and (self._converts or arg not in self._copy.moved):
                continue
            old = self._copy.as_traced(arg)
            made = None
            if self._converts and _is_dense(self._copy.numbers(old.shape), self._copy.numbers(old.stride())):
                made = self._conversions.converted(arg, self._copy.traced_order(arg))
            if made is not None:
                replaced[arg] = made
            elif not self._converts and arg not in self._copy.moved:
                set_value(arg.meta, old)  # only the recorded strides differed
            else:
                raise Where.of(node, WHERE).error(
                    _core.LayoutMismatch,
                    f"{node.target} addresses the memory of '{arg.name}' by strides",
                    expected=f"strides {tuple(old.stride())}, as traced",
                    got="an operand whose order follows from other orders at the inputs",
                    hint="Export with inputs in the order that is declared"
                    + ("" if self._converts else ', or use mode="convert"'),
                )
        _replace(node, replaced)

    def _follow_plan(self, node: Node) -> bool:
        """Sets the order that a call names for its result to the planned order; True if the call changed."""
        named, order = _named_format(node), self._plan.of(node)
        if named is None or order is None:
            return False
        position, argument, given = named
        shape = node.meta["val"].shape
        form = format_of(shape, order)
        if form is None or is_same_order(shape, given, order):
            return False
        wanted: Any = form
        if argument != "memory_format":
            wanted = list(order_of_format(form, len(shape)) or ())
        if position < len(node.args):
            node.update_arg(position, wanted)
        else:
            node.update_kwarg(argument, wanted)
        return True

    def _compute_again(self, node: Node, operands: list[Node]) -> None:
        """Sets ``meta["val"]`` to torch's result for the operands with their current strides."""
        if not can_compute(node) or not has_tensors(node):
            return
        try:
            val = self._copy.result_of(node)
        except Exception as first:
            if not self._converts:
                return  # the node stays as traced
            again = {
                arg: self._conversions.converted(arg, self._copy.traced_order(arg))
                for arg in operands
                if self._copy.is_in_another_order(arg)
            }
            _replace(node, {arg: made for arg, made in again.items() if made is not None})
            try:
                val = self._copy.result_of(node)
            except Exception:
                raise Where.of(node, WHERE).error(
                    _core.LayoutMismatch,
                    f"torch does not compute {node.target} with its operands in the planned order",
                    got=str(first).partition("\n")[0],
                ) from first
        set_value(node.meta, val)
        if self._converts:
            self._correct(node)


def _replace(node: Node, replaced: Mapping[Node, Node]) -> None:
    if replaced:
        node.args = map_arg(node.args, lambda arg: replaced.get(arg, arg))
        node.kwargs = map_arg(node.kwargs, lambda arg: replaced.get(arg, arg))


def _named_format(node: Node) -> tuple[int, str, Order] | None:
    """Returns position and name of the argument that names the order of the result, and that order."""
    val = node.meta.get("val")
    schema = getattr(node.target, "_schema", None)
    if schema is None or not isinstance(val, torch.Tensor):
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.name not in _FORMATS:
            continue
        given = node.kwargs.get(argument.name, default_of(argument))
        if position < len(node.args):
            given = node.args[position]
        if argument.name == "memory_format":
            given = order_of_format(given, val.dim())
        named: Any = given
        return None if named is None else (position, argument.name, tuple(named))
    return None


def _addresses_memory(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(argument.name == "storage_offset" for argument in schema.arguments)


def _leads_to_quantize(node: Node) -> bool:
    """True for a quantize call, and for an elementwise call of one tensor that only such calls read."""
    if is_quantize(node):
        return True
    operator = operator_of(node)
    is_elementwise = torch.Tag.pointwise in getattr(operator, "tags", ()) and len(node.all_input_nodes) == 1
    return is_elementwise and bool(node.users) and all(map(_leads_to_quantize, node.users))


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    axes = sorted((axis for axis in range(len(shape)) if shape[axis] != 1), key=lambda axis: -strides[axis])
    return tuple(strides[axis] for axis in axes) == contiguous_strides([shape[axis] for axis in axes])
