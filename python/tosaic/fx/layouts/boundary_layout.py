"""Lays out the inputs, weights and outputs of a program."""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import ExportGraphSignature, OutputKind, OutputSpec
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_unflatten

from tosaic import _core
from tosaic.base.dim_order import is_same_order
from tosaic.fx.io.graph_copy import with_names_of_results
from tosaic.fx.layouts.boundaries import Boundaries
from tosaic.fx.layouts.conversions import Conversions
from tosaic.fx.layouts.planned_orders import PlannedOrders
from tosaic.fx.layouts.program_copy import WHERE, Order, ProgramCopy
from tosaic.fx.reading.memory_order import dense_in_order, set_value
from tosaic.torch_operators.origins import Where
from tosaic.torch_operators.value import Ref


class BoundaryLayout:
    """Lays out what a program reads and returns.

    Parameters
    ----------
    program : ProgramCopy
    boundaries : Boundaries
    plan : PlannedOrders
    conversions : Conversions
    converts : bool
        Whether outputs are converted into their orders; else strides are written where that is enough.
    weights : bool
        Whether weights are stored in the order in which their readers read them.

    Attributes
    ----------
    state, lifted : dict
        The state dict and the constants of the new program.
    """

    def __init__(
        self,
        program: ProgramCopy,
        boundaries: Boundaries,
        plan: PlannedOrders,
        conversions: Conversions,
        *,
        converts: bool,
        weights: bool,
    ) -> None:
        self._copy = program
        self._boundaries = boundaries
        self._plan = plan
        self._conversions = conversions
        self._converts = converts
        self._weights = weights
        self._outputs = program.read.imported.graph.outputs
        self.state = dict(program.program.state_dict)
        self.lifted = dict(program.program.constants)

    def lay_input(self, node: Node) -> None:
        """Sets the declared order of an input, or stores a weight in the order that its readers read."""
        at = self._copy.read.inputs.get(node.name)
        if at is None:
            if isinstance(self._copy.values.get(node), Ref):
                self._copy.constant.add(node)
                self._lay_weight(node)
            return
        order = self._boundaries.declared("inputs", at)
        if order is not None and not self._copy.has_order(node, order):
            set_value(node.meta, dense_in_order(node.meta["val"], order))
            self._copy.moved.add(node)

    def convert_input(self, node: Node) -> None:
        """Adds a conversion after an input that stays as traced."""
        at = self._copy.read.inputs.get(node.name)
        if at is None or at not in self._boundaries.is_converted["inputs"]:
            return
        order = self._boundaries.order("inputs", at)
        if order is None or self._copy.has_order(node, order):
            return
        made = self._conversions.converted(node, order)
        if made is None:
            raise _inexpressible(node, order)
        node.replace_all_uses_with(
            made, delete_user_cb=lambda user: user not in self._conversions.chain(made)
        )
        self._copy.values[made] = self._copy.values[node]

    def _lay_weight(self, node: Node) -> None:
        """Stores a weight in the order that all of its readers read, and sets its metadata to match."""
        ref = self._copy.values[node]
        wanted = [self._plan.read_by(user, ref) for user in node.users]
        if not self._weights or not wanted or None in wanted:
            return
        orders = [order for order in wanted if order is not None]
        shape = node.meta["val"].shape
        agree = all(is_same_order(shape, order, orders[0]) for order in orders)
        if not agree or self._copy.has_order(node, orders[0]):
            return
        (spec,) = [s for s in self._copy.program.graph_signature.input_specs if s.arg.name == node.name]
        holder = self.state if spec.target in self.state else self.lifted
        tensor = holder[spec.target]
        copied = dense_in_order(tensor.detach(), orders[0]).copy_(tensor.detach())
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        holder[spec.target] = (
            torch.nn.Parameter(copied, requires_grad=tensor.requires_grad) if is_parameter else copied
        )
        set_value(node.meta, dense_in_order(node.meta["val"], orders[0]))

    def lay_outputs(self, output: Node) -> ExportGraphSignature:
        """Converts the outputs into their orders, and returns the signature with the new names."""
        given: Any = output.args[0]
        results = list(given)
        old = self._copy.program.graph_signature
        labelled: set[Node] = set()
        for position, (result, spec) in enumerate(zip(results, old.output_specs, strict=True)):
            at = self._copy.read.outputs[position]
            if (
                at is None
                or not isinstance(result, Node)
                or not isinstance(result.meta.get("val"), torch.Tensor)
            ):
                continue
            for order, converts in self._orders_at_output(at, spec):
                results[position] = result = self._output_in(result, order, converts, labelled)
        output.args = (type(given)(results),)
        if "val" in output.meta:
            output.meta["val"] = map_arg(output.args[0], lambda node: node.meta.get("val"))
        return with_names_of_results(old, output.graph)

    def _orders_at_output(self, at: int, spec: OutputSpec) -> list[tuple[Order, bool]]:
        """Returns (order, whether a conversion makes it) for each order that an output passes through."""
        boundary = self._plan.at_outputs[at]
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            return [(boundary, True)] if self._converts else []
        if at in self._boundaries.is_converted["outputs"] and self._boundaries.outputs[at] is not None:
            return [(boundary, self._converts), (tuple(self._outputs[at].dim_order), True)]
        return [(boundary, self._converts)]

    def _output_in(self, result: Node, order: Order, converts: bool, labelled: set[Node]) -> Node:
        if not self._copy.has_order(result, order):
            if (
                not converts
                and result.op == "call_function"
                and result not in labelled | set(self._conversions.made)
            ):
                set_value(result.meta, dense_in_order(result.meta["val"], order))
            else:
                made = self._conversions.converted(result, order)
                if made is None:
                    raise _inexpressible(result, order)
                result = made
        labelled.add(result)
        return result

    def examples(self) -> Any:
        """Returns the example inputs, in the declared orders."""
        examples = self._copy.program.example_inputs
        if examples is None or not any(self._boundaries.inputs):
            return examples
        leaves, tree = tree_flatten(examples)
        known = self._copy.read.imported.signature.input_leaves
        if len(leaves) != len(known):
            return examples
        for i, (leaf, value) in enumerate(zip(known, leaves, strict=True)):
            order = None if leaf.index is None else self._boundaries.declared("inputs", leaf.index)
            if (
                order is not None
                and isinstance(value, torch.Tensor)
                and not self._copy.tensor_has_order(value, order)
            ):
                leaves[i] = dense_in_order(value.detach(), order).copy_(value.detach())
        return tree_unflatten(leaves, tree)


def _inexpressible(node: Node, order: Order) -> Exception:
    return Where.of(node, WHERE).error(
        _core.LayoutMismatch,
        f"no conversion of the edge dialect gives '{node.name}' the order that was asked for",
        expected="row-major, or channels last at rank 4",
        got=str(order),
        hint="Declare the boundary in that order instead",
    )
