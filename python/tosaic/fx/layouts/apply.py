"""Applies a layout plan to an exported program of torch, or to an edge program of ExecuTorch.

::

    annotate   x ──▶ conv ──▶ relu ──▶ out       meta["val"] of conv and relu: strides of (0, 2, 3, 1)

    convert    x ─▶ clone(channels_last) ─▶ conv ─▶ relu ─▶ clone(contiguous) ─▶ out

The core makes the plan (`plan_calls`): a dim order for every value and, for every call, the order in which it
reads each of its operands. This module walks once over a copy of the graph, front to back:

* *annotate* writes strides. A node whose fake tensor has another order than the plan's gets a fake tensor
  that is dense in the planned order. Nothing is inserted: where the plan transposes, the compiler that reads
  the program has to transpose.
* *convert* changes the computation. If a call reads an operand in another order than the operand has, the
  operand is converted, once for all calls that read that order. All later nodes are computed again on
  fake tensors, node by node with all its arguments, as far as strides change. Where fake tensors may record
  other strides than torch computes, the call is computed on zeros (`eager_strides`). ``meta["val"]`` then
  records what torch computes.

In both:

* an input or output has the order that its entry in `orders` says: as traced, declared, or converted inside
  the program (`Convert`);
* a conversion of a quantized value converts its integers: it stands after the quantize call and before the
  dequantize call, so that a pattern dequantize, operator, quantize stays one;
* a call that names the order of its result (``clone``, ``_to_copy``, ``_clone_dim_order`` ... with a memory
  format) never contradicts that name: *annotate* does not change its order, *convert* makes the call name the
  planned order;
* weights, and values computed from weights alone, are not changed unless `weights` is true;
* a call that addresses memory by strides (``as_strided``) gets its operand as traced;
* nested graphs are not entered: they get their operands as traced.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch._guards import detect_fake_mode
from torch.export.graph_signature import ExportGraphSignature, OutputKind, OutputSpec, TensorArgument
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_unflatten

from tosaic import _core
from tosaic.base.dim_order import contiguous_strides, dim_order_of, has_order, is_same_order
from tosaic.base.options import is_one_of, shown
from tosaic.fx.dialects import dialect_of
from tosaic.fx.io.graph_copy import copied_graph
from tosaic.fx.io.quantize_calls import is_dequantize, is_quantize, operator_of
from tosaic.fx.layouts.applied import AppliedLayout, Conversion, Convert, Unmet
from tosaic.fx.layouts.eager_strides import as_computed, is_recorded_right
from tosaic.fx.reading.exported_program import ImportRecord, functional_hint, read_program
from tosaic.fx.reading.memory_order import (
    dense_in_order,
    format_of,
    order_name,
    order_of_format,
    set_value,
)
from tosaic.fx.reading.targets import default_of, row_for
from tosaic.lowering.layout import Objective, objective_of, read_plan
from tosaic.ports.boundary_orders import boundary_orders, index_of, require_sides
from tosaic.torch_operators.origins import error_at
from tosaic.torch_operators.value import Ref

__all__ = ["apply_program_layout"]

_Order = tuple[int, ...]
_WHERE = "apply layout"
_FORMATS = ("memory_format", "dim_order")
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def apply_program_layout(
    program: Any,
    *,
    mode: Literal["annotate", "convert"],
    orders: Mapping[str, Any] | None,
    weights: bool,
    objective: Objective,
    bind: Any,
) -> AppliedLayout:
    """See `tosaic.fx.apply_layout`."""
    if not is_one_of(mode, ("annotate", "convert")):
        raise _core.make_error(
            _core.InvalidGraph,
            where=_WHERE,
            what="unknown mode",
            expected="annotate or convert",
            got=shown(mode),
        )
    read = read_program(program, bind=bind)
    boundaries = _Boundaries(read.imported.graph, orders)
    return _Walk(program, read, boundaries, mode == "convert", weights, objective).run()


class _Boundaries:
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
            raise _core.make_error(
                _core.LayoutMismatch,
                where=_WHERE,
                what="tensors of torch have their logical shape, whatever their order",
                expected="channels_last, contiguous, traced or a dim order",
                got="'nhwc'",
                hint='Declare "channels_last" and pass an NHWC buffer as buffer.permute(0, 3, 1, 2)',
            )
        return form

    @staticmethod
    def _of_user(ports: Any, declared: list[Any] | None) -> list[_Order | None]:
        if declared is None:
            return [None] * len(ports)
        return [
            None if order is None or port.kind != "user" else tuple(order[0])
            for port, order in zip(ports, declared, strict=True)
        ]

    def order(self, side: str, index: int) -> _Order | None:
        """Returns the declared or converted order of an input or output; None if its order is as traced."""
        return (self.inputs if side == "inputs" else self.outputs)[index]

    def declared(self, side: str, index: int) -> _Order | None:
        """Returns the order of the input or output itself, if that is not as traced."""
        return None if index in self.is_converted[side] else self.order(side, index)


class _Walk:
    """A copy of the program while its layout is applied."""

    def __init__(
        self,
        program: Any,
        read: ImportRecord,
        boundaries: _Boundaries,
        converts: bool,
        weights: bool,
        objective: Objective,
    ) -> None:
        self._program = program
        self._dialect = dialect_of(program)
        self._read = read
        self._boundaries = boundaries
        self._converts = converts
        self._weights = weights
        graph = read.imported.graph
        self._graph_outputs = graph.outputs
        asked: Any = objective_of(objective)
        plan = _core.plan_calls(
            graph,
            objective=asked,
            input_orders=[None if order is None else (order, False) for order in boundaries.inputs],
            output_orders=[None if order is None else (order, False) for order in boundaries.outputs],
        )
        self._layout = read_plan(plan["plan"], graph, plan["names"], objective=asked)
        self._order_of: list[_Order | None] = plan["orders"]
        self._boundary_of: list[_Order] = plan["outputs"]
        self._reads: dict[tuple[str, int], _Order] = {
            (call, value): order for call, value, order in plan["reads"]
        }
        self._graph, self._old = copied_graph(program.graph)
        self._values = {node: read.values[old] for node, old in self._old.items() if old in read.values}
        self._is_written = any(self._writes(node) for node in self._graph.nodes)
        self._first = next((node for node in self._graph.nodes if node.op != "placeholder"), None)
        self._constant: set[Node] = set()
        self._moved: set[Node] = set()  # nodes whose order a declared input or output changed
        self._converted: dict[tuple[Any, str], Node] = {}
        self._made: dict[Node, tuple[Node, _Order, _Order]] = {}
        self._replaced: list[Node] = []  # dequantize calls, of whose integers there is another one
        self._unmet: list[Unmet] = []
        self._state = dict(program.state_dict)
        self._lifted = dict(program.constants)
        self._root = self._root_of_modules()
        self._fake = detect_fake_mode([node.meta.get("val") for node in self._graph.nodes])

    def run(self) -> AppliedLayout:
        if self._converts or self._boundaries.any_converted:
            self._refuse_mutation()
        output = next(iter(reversed(self._graph.nodes)))
        nodes = [node for node in self._graph.nodes if node is not output]
        for node in nodes:
            if node.op == "placeholder":
                self._lay_input(node)
            elif node.op == "get_attr":
                self._constant.add(node)
        for node in nodes:
            if node.op == "placeholder":
                self._convert_boundary(node)
            elif node.op == "call_function":
                self._lay_call(node)
        signature = self._lay_outputs(output)
        for node in (each for each in self._replaced if not each.users):
            self._graph.erase_node(node)
            nodes.remove(node)
        return AppliedLayout(
            self._finished(signature),
            self._layout,
            dict(self._planned()),
            tuple(node.name for node in nodes if self._has_changed(node)),
            tuple(self._report()),
            tuple(self._unmet),
        )

    # ---- boundaries ----

    def _lay_input(self, node: Node) -> None:
        at = self._read.inputs.get(node.name)
        if at is None:
            if isinstance(self._values.get(node), Ref):
                self._constant.add(node)
                self._lay_weight(node)
            return
        order = self._boundaries.declared("inputs", at)
        if order is not None and not self._has_order(node, order):
            set_value(node.meta, dense_in_order(node.meta["val"], order))
            self._moved.add(node)

    def _convert_boundary(self, node: Node) -> None:
        at = self._read.inputs.get(node.name)
        if at is None or at not in self._boundaries.is_converted["inputs"]:
            return
        order = self._boundaries.order("inputs", at)
        if order is None or self._has_order(node, order):
            return
        made = self._conversion(node, order)
        if made is None:
            raise self._inexpressible(node, order)
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user not in self._chain(made))
        self._values[made] = self._values[node]

    def _lay_weight(self, node: Node) -> None:
        """Stores a weight in the order that all of its readers read, and sets its metadata to match."""
        ref = self._values[node]
        wanted = [self._reads.get((user.name, ref.id)) for user in node.users]
        if not self._weights or not wanted or None in wanted:
            return
        orders = [order for order in wanted if order is not None]
        shape = node.meta["val"].shape
        agree = all(is_same_order(shape, order, orders[0]) for order in orders)
        if not agree or self._has_order(node, orders[0]):
            return
        (spec,) = [s for s in self._program.graph_signature.input_specs if s.arg.name == node.name]
        holder = self._state if spec.target in self._state else self._lifted
        tensor = holder[spec.target]
        copied = dense_in_order(tensor.detach(), orders[0]).copy_(tensor.detach())
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        holder[spec.target] = (
            torch.nn.Parameter(copied, requires_grad=tensor.requires_grad) if is_parameter else copied
        )
        set_value(node.meta, dense_in_order(node.meta["val"], orders[0]))

    def _lay_outputs(self, output: Node) -> ExportGraphSignature:
        given: Any = output.args[0]
        results = list(given)
        old = self._program.graph_signature
        specs = list(old.output_specs)
        labelled: set[Node] = set()
        for position, (result, spec) in enumerate(zip(results, specs, strict=True)):
            at = self._read.outputs[position]
            if (
                at is None
                or not isinstance(result, Node)
                or not isinstance(result.meta.get("val"), torch.Tensor)
            ):
                continue
            for order, converts in self._orders_at_output(at, spec):
                results[position] = result = self._output_in(result, order, converts, labelled)
            if result.name != spec.arg.name:
                specs[position] = OutputSpec(spec.kind, TensorArgument(name=result.name), spec.target)
        output.args = (type(given)(results),)
        if "val" in output.meta:
            output.meta["val"] = map_arg(output.args[0], lambda node: node.meta.get("val"))
        return ExportGraphSignature(list(old.input_specs), specs)

    def _orders_at_output(self, at: int, spec: OutputSpec) -> list[tuple[_Order, bool]]:
        """Returns (order, whether a conversion makes it) for each order that an output passes through."""
        boundary = self._boundary_of[at]
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            return [(boundary, True)] if self._converts else []
        if at in self._boundaries.is_converted["outputs"] and self._boundaries.outputs[at] is not None:
            return [(boundary, self._converts), (tuple(self._graph_outputs[at].dim_order), True)]
        return [(boundary, self._converts)]

    def _output_in(self, result: Node, order: _Order, converts: bool, labelled: set[Node]) -> Node:
        if not self._has_order(result, order):
            if not converts and result.op == "call_function" and result not in labelled | set(self._made):
                set_value(result.meta, dense_in_order(result.meta["val"], order))
            else:
                made = self._conversion(result, order)
                if made is None:
                    raise self._inexpressible(result, order)
                result = made
        labelled.add(result)
        return result

    # ---- calls ----

    def _lay_call(self, node: Node) -> None:
        operands = [arg for arg in node.all_input_nodes if isinstance(arg.meta.get("val"), torch.Tensor)]
        if all(arg in self._constant for arg in node.all_input_nodes):
            self._constant.add(node)
            if not self._weights:
                return
        elif any(arg in self._moved for arg in node.all_input_nodes):
            self._moved.add(node)
        if not self._converts and node in self._moved and node.target in _VIEWS and not self._is_written:
            node.target = torch.ops.aten.reshape.default  # reshape copies if the strides allow no view
        if self._addresses_memory(node):
            self._hand_over_as_traced(node, operands)
        elif self._converts and self._is_quantized_as_computed(node):
            self._keep_order_of_operand(node, operands[0])
        elif self._converts and node not in self._constant:
            self._convert_operands(node, operands)
        if not self._converts and (self._named_format(node) or self._label(node)):
            return
        has_changed = self._converts and self._follow_plan(node)
        if has_changed or any(self._is_in_another_order(arg) for arg in node.all_input_nodes):
            self._compute_again(node, operands)
        elif self._converts and self._can_compute(node) and self._has_tensors(node):
            self._correct(node)

    def _correct(self, node: Node) -> None:
        """Sets ``meta["val"]`` to the strides that torch computes, where fake tensors record others."""
        if is_recorded_right(node.target) or self._named_format(node) is not None:
            return
        args, kwargs = map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
        val = as_computed(node.target, args, kwargs, node.meta["val"], self._numbers)
        if val is not node.meta["val"]:
            set_value(node.meta, val)

    def _label(self, node: Node) -> bool:
        """Writes the planned orders; False if the plan has none for this node."""
        orders = self._orders(node)
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            if orders is None:
                return False
            if not self._has_order(node, orders):
                set_value(node.meta, dense_in_order(val, orders))
            return True
        if not isinstance(val, tuple | list) or not isinstance(orders, tuple):
            return False
        items = [
            dense_in_order(item, order)
            if isinstance(item, torch.Tensor) and order and not self._tensor_has_order(item, order)
            else item
            for item, order in zip(val, orders, strict=True)
        ]
        if any(new is not old for new, old in zip(items, val, strict=True)):
            set_value(node.meta, type(val)(items))
        return True

    def _orders(self, node: Node) -> Any:
        """Returns the planned order of a node's value; for several values, a tuple; None if not planned."""
        value = self._values.get(node)
        if isinstance(value, Ref):
            return self._order_of[value.id]
        if isinstance(value, list) and any(isinstance(item, Ref) for item in value):
            return tuple(self._order_of[item.id] if isinstance(item, Ref) else None for item in value)
        return None

    def _convert_operands(self, node: Node, operands: list[Node]) -> None:
        replaced: dict[Node, Node] = {}
        for arg in operands:
            ref = self._values.get(arg)
            if arg in self._constant or not isinstance(ref, Ref) or self._converts_by_itself(node):
                continue
            order = self._reads.get((node.name, ref.id))
            if order is None and not self._can_compute(node) and self._has_tensors(node):
                order = self._traced_order(arg)
            if order is None or self._has_order(arg, order):
                continue
            made = self._conversion(arg, order)
            if made is None:
                self._unmet.append(Unmet(arg.name, node.name, order))
            else:
                replaced[arg] = made
        self._replace(node, replaced)

    def _is_quantized_as_computed(self, node: Node) -> bool:
        """True for a quantize call, and for elementwise calls between an operator and its quantize call.

        They take the order that the operator makes: a conversion in front of them would come between operator
        and quantize call. It follows after the quantize call, where a reader needs another order.
        """
        first = node.all_input_nodes[:1]
        if node in self._constant or not first or is_dequantize(first[0]) or not self._can_compute(node):
            return False
        return _leads_to_quantize(node)

    def _keep_order_of_operand(self, node: Node, operand: Node) -> None:
        """Plans the order of the operand for the result of an elementwise call."""
        ref = self._values.get(node)
        if isinstance(ref, Ref) and ref != self._values.get(operand):
            self._order_of[ref.id] = self._order_of_tensor(operand.meta["val"])

    def _converts_by_itself(self, node: Node) -> bool:
        """True for a copy that is, or can be, in the planned order. Its operand needs no conversion."""
        order = self._orders(node)
        if order is None or self._named_format(node) is None or len(node.all_input_nodes) != 1:
            return False
        return format_of(node.meta["val"].shape, order) is not None

    def _hand_over_as_traced(self, node: Node, operands: list[Node]) -> None:
        """Converts operands of a call that addresses memory back to the traced order, or refuses the call."""
        replaced: dict[Node, Node] = {}
        for arg in operands:
            if not self._is_in_another_order(arg) and (self._converts or arg not in self._moved):
                continue
            old = self._as_traced(arg)
            made = None
            if self._converts and _is_dense(self._numbers(old.shape), self._numbers(old.stride())):
                made = self._conversion(arg, self._traced_order(arg))
            if made is not None:
                replaced[arg] = made
            elif not self._converts and arg not in self._moved:
                set_value(arg.meta, old)  # only the recorded strides differed
            else:
                raise error_at(
                    _core.LayoutMismatch,
                    node,
                    f"{node.target} addresses the memory of '{arg.name}' by strides",
                    where=_WHERE,
                    expected=f"strides {tuple(old.stride())}, as traced",
                    got="an operand whose order follows from other orders at the inputs",
                    hint="Export with inputs in the order that is declared"
                    + ("" if self._converts else ', or use mode="convert"'),
                )
        self._replace(node, replaced)

    @staticmethod
    def _replace(node: Node, replaced: Mapping[Node, Node]) -> None:
        if replaced:
            node.args = map_arg(node.args, lambda arg: replaced.get(arg, arg))
            node.kwargs = map_arg(node.kwargs, lambda arg: replaced.get(arg, arg))

    def _named_format(self, node: Node) -> tuple[int, str, _Order] | None:
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

    def _follow_plan(self, node: Node) -> bool:
        """Sets the order that a call names for its result to the planned one; True if that changed it."""
        named, order = self._named_format(node), self._orders(node)
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
        if not self._can_compute(node) or not self._has_tensors(node):
            return
        try:
            val = self._result_of(node)
        except Exception as first:
            if not self._converts:
                return  # the node stays as traced
            again = {
                arg: self._conversion(arg, self._traced_order(arg))
                for arg in operands
                if self._is_in_another_order(arg)
            }
            self._replace(node, {arg: made for arg, made in again.items() if made is not None})
            try:
                val = self._result_of(node)
            except Exception:
                raise error_at(
                    _core.LayoutMismatch,
                    node,
                    f"torch does not compute {node.target} with its operands in the planned order",
                    where=_WHERE,
                    got=str(first).partition("\n")[0],
                ) from first
        set_value(node.meta, val)
        if self._converts:
            self._correct(node)

    def _result_of(self, node: Node) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
        with torch.no_grad():
            if self._fake is None:
                return node.target(*args, **kwargs)  # type: ignore[operator]
            with self._fake:
                if self._fake.shape_env is None:
                    return node.target(*args, **kwargs)  # type: ignore[operator]
                with self._fake.shape_env.suppress_guards():
                    return node.target(*args, **kwargs)  # type: ignore[operator]

    @staticmethod
    def _can_compute(node: Node) -> bool:
        """True for torch operators and getitem, but not for nested graphs or data-dependent sizes."""
        is_operator = hasattr(node.target, "_schema") or getattr(node.target, "__name__", "") == "getitem"
        return (
            is_operator
            and "unbacked_bindings" not in node.meta
            and all("val" in arg.meta for arg in node.all_input_nodes)
        )

    @staticmethod
    def _has_tensors(node: Node) -> bool:
        return any(isinstance(item, torch.Tensor) for item in tree_flatten(node.meta.get("val"))[0])

    @staticmethod
    def _addresses_memory(node: Node) -> bool:
        schema = getattr(node.target, "_schema", None)
        return schema is not None and any(argument.name == "storage_offset" for argument in schema.arguments)

    # ---- orders ----

    def _numbers(self, sizes: Any) -> tuple[int, ...]:
        return tuple(self._read.sizes.shape(sizes))

    def _tensor_has_order(self, tensor: Any, order: _Order) -> bool:
        return has_order(tensor.shape, self._numbers(tensor.stride()), order)

    def _has_order(self, node: Node, order: _Order) -> bool:
        return self._tensor_has_order(node.meta["val"], order)

    def _order_of_tensor(self, val: Any) -> _Order:
        return dim_order_of(self._numbers(val.shape), self._numbers(val.stride()))[0]

    def _as_traced(self, node: Node) -> Any:
        """Returns what the given program records for a node; for a conversion, its own record."""
        return self._old.get(node, node).meta["val"]

    def _traced_order(self, node: Node) -> _Order:
        return self._order_of_tensor(self._as_traced(node))

    def _is_in_another_order(self, node: Node) -> bool:
        """True if the node's strides differ from the traced ones, or if it is a conversion."""
        return node not in self._old or self._has_changed(node)

    def _has_changed(self, node: Node) -> bool:
        now = tree_flatten(node.meta.get("val"))[0]
        before = tree_flatten(self._old[node].meta.get("val"))[0]
        return any(
            isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.stride() != b.stride()
            for a, b in zip(now, before, strict=True)
            if a is not b
        )

    # ---- conversions ----

    def _conversion(self, node: Node, order: _Order) -> Node | None:
        """Returns the node with this value in this order, added if needed; None if the dialect has none."""
        val = node.meta["val"]
        ref = self._values.get(node)
        name = order_name(val.shape, order)
        key = (ref.id if isinstance(ref, Ref) else node, name)
        if key in self._converted:
            return self._converted[key]
        if is_dequantize(node) and isinstance(node.args[0], Node) and node not in self._constant:
            return self._dequantized_in(node, order, key)
        calls = self._dialect.conversion(self._program, format_of(val.shape, order), order)
        if calls is None:
            return None
        before = self._order_of_tensor(val)
        last = node
        place = self._first if node.op == "placeholder" else node.next
        assert place is not None
        for target, args, kwargs in calls:
            with self._graph.inserting_before(place):
                made = self._graph.create_node(
                    "call_function", target, (last, *args), kwargs, f"{node.name}_{name}"
                )
            made.meta = {
                name: held
                for name, held in {**self._root, **node.meta}.items()
                if name in ("stack_trace", "nn_module_stack")
            }
            made.meta["val"] = self._result_of(made)
            last = made
        if ref is not None:
            self._values[last] = ref
        if "tensor_meta" in node.meta:
            last.meta["tensor_meta"] = node.meta["tensor_meta"]
            set_value(last.meta, last.meta["val"])
        if node in self._moved:
            self._moved.add(last)
        self._converted[key] = last
        self._converted.setdefault((key[0], order_name(val.shape, before)), node)
        self._made[last] = (node, before, order)
        return last

    def _dequantized_in(self, node: Node, order: _Order, key: tuple[Any, str]) -> Node | None:
        """Returns a dequantize call like `node`, of the same integers in this order."""
        source: Any = node.args[0]
        integers = self._conversion(source, order)
        if integers is None:
            return None
        target: Any = node.target
        with self._graph.inserting_after(node):
            made = self._graph.create_node(
                "call_function",
                target,
                (integers, *node.args[1:]),
                dict(node.kwargs),
                f"{node.name}_{key[1]}",
            )
        made.meta = copy.copy(node.meta)
        set_value(made.meta, self._result_of(made))
        if node in self._values:
            self._values[made] = self._values[node]
        if node in self._moved:
            self._moved.add(made)
        self._converted[key] = made
        before = self._order_of_tensor(node.meta["val"])
        self._converted.setdefault((key[0], order_name(node.meta["val"].shape, before)), node)
        self._replaced.append(node)
        return made

    def _root_of_modules(self) -> dict[str, Any]:
        """Returns the module of a conversion of an input, which `torch.export.unflatten` needs to know."""
        stacks = (node.meta.get("nn_module_stack") for node in self._graph.nodes)
        stack = next(filter(None, stacks), None)
        return {} if stack is None else {"nn_module_stack": dict(list(stack.items())[:1])}

    def _chain(self, last: Node) -> set[Node]:
        """Returns the nodes of a conversion."""
        source, nodes = self._made[last][0], {last}
        while last.args[0] is not source:
            last = last.args[0]  # type: ignore[assignment]
            nodes.add(last)
        return nodes

    # ---- the result ----

    def _refuse_mutation(self) -> None:
        for node in self._graph.nodes:
            if self._writes(node):
                raise error_at(
                    _core.UnsupportedOp,
                    node,
                    f"{node.target} writes to its operand, of which a conversion would be a copy",
                    where=_WHERE,
                    hint=functional_hint(self._program),
                )

    @staticmethod
    def _writes(node: Node) -> bool:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            return False
        row = row_for(node.target)
        return row is None or not row.writes_nothing(node)

    def _inexpressible(self, node: Node, order: _Order) -> Exception:
        return error_at(
            _core.LayoutMismatch,
            node,
            f"no conversion of the edge dialect gives '{node.name}' the order that was asked for",
            where=_WHERE,
            expected="row-major, or channels last at rank 4",
            got=str(order),
            hint="Declare the boundary in that order instead",
        )

    def _planned(self) -> Iterator[tuple[str, Any]]:
        for node in self._graph.nodes:
            orders = self._orders(node) if node in self._old else None
            if orders is not None and (self._weights or node not in self._constant):
                yield node.name, orders

    def _report(self) -> Iterator[Conversion]:
        for node in self._graph.nodes:
            if node in self._made:
                source, before, order = self._made[node]
                yield Conversion(
                    node.name, source.name, before, order, tuple(user.name for user in node.users)
                )

    def _finished(self, signature: ExportGraphSignature) -> torch.export.ExportedProgram:
        program = self._program
        self._graph.lint()
        return torch.export.ExportedProgram(
            root=program.graph_module,
            graph=self._graph,
            graph_signature=signature,
            state_dict=self._state,
            range_constraints=copy.deepcopy(program.range_constraints),
            module_call_graph=copy.deepcopy(program.module_call_graph),
            example_inputs=self._examples(),
            constants=self._lifted,
            verifiers=program.verifiers,
        )

    def _examples(self) -> Any:
        """Returns the example inputs, in the declared orders."""
        examples = self._program.example_inputs
        if examples is None or not any(self._boundaries.inputs):
            return examples
        leaves, tree = tree_flatten(examples)
        known = self._read.imported.signature.input_leaves
        if len(leaves) != len(known):
            return examples
        for i, (leaf, value) in enumerate(zip(known, leaves, strict=True)):
            order = None if leaf.index is None else self._boundaries.declared("inputs", leaf.index)
            if (
                order is not None
                and isinstance(value, torch.Tensor)
                and not self._tensor_has_order(value, order)
            ):
                leaves[i] = dense_in_order(value.detach(), order).copy_(value.detach())
        return tree_unflatten(leaves, tree)


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
