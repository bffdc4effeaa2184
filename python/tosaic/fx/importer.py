"""Reads the calls of an FX graph: one call, one node, by the rows of `tosaic.torch_operators`.

A call that the table does not know becomes an opaque node with its target, its arguments and the result types
that torch recorded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_list
from torch.utils._pytree import tree_map_only

from tosaic import _core
from tosaic.exception_notes import add_note
from tosaic.foreign import ForeignOp, TensorSpec, attributes_of_call
from tosaic.fx.aliasing import Aliases
from tosaic.fx.decomposed import Expansion, is_random, tensors_of
from tosaic.fx.node_writer import NodeWriter, Shared
from tosaic.fx.opaque import arguments_json
from tosaic.fx.origins import place_of
from tosaic.fx.targets import Row, row_for
from tosaic.fx.weights import CODE_OF, TORCH_OF
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.complex_values import HINT, as_complex, emit_complex, has_complex, is_known
from tosaic.torch_operators.dtypes import DEFAULT_OF_CATEGORY
from tosaic.torch_operators.value import Complex, NoValue, Ref

__all__ = ["Importer"]

_FUNCTIONALIZE = "Call ep.run_decompositions() first, which makes the program functional"
_PLAIN = frozenset({int, float, bool, str, type(None)})
_LISTS = frozenset({list, tuple, immutable_list, torch.Size})
_CONSTANTS = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_MAY_HOLD_COMPLEX = frozenset({Complex, complex, list})
_CONTROL_FLOW = ("cond", "while_loop")


class Importer(NodeWriter):
    """Reads the nodes of one FX graph into a builder; the rows of the table call back into it."""

    def __init__(
        self,
        shared: Shared,
        builder: _core.GraphBuilder,
        owner: Any,
        prefix: str = "",
        outer: NodeWriter | None = None,
        results: Iterable[Node] = (),
    ) -> None:
        super().__init__(shared, builder, prefix, outer, results)
        self.env: dict[Node, Any] = {}  # by node: its `Ref`, a list of them, a number, or a `NoValue`
        self._owner = owner  # the module whose attributes the graph reads

    # ---- walking ----

    def prepare(self, nodes: Sequence[Any]) -> None:
        """Resolves the call targets; if a call writes to its operands, finds out which nodes share memory."""
        rows = self._shared.rows
        mutates = False
        for node in nodes:
            if node.op == "call_function":
                target = node.target
                if target in rows:
                    row = rows[target]
                else:
                    row = self._resolve(target)
                if row is not None and row.mutates:
                    mutates = True
        if mutates:
            self._aliases = Aliases(nodes, lambda node: rows[node.target], self._counts)

    def _resolve(self, target: Any) -> Row | None:
        if target is operator.getitem:
            row: Row | None = Row("getitem", "getitem", None)
            assert row is not None
            row.getitem = True
        else:
            row = row_for(target)
        self._shared.rows[target] = row
        return row

    def _counts(self, user: Any) -> bool:
        """True for a use that makes a value live: any use except by a dropped call (an assertion)."""
        row = self._shared.rows.get(user.target) if user.op == "call_function" else None
        return row is None or not row.dropped

    def is_mutated(self, node: Node) -> bool:
        """True if a call writes into the memory of this node."""
        return self._aliases is not None and self._aliases.is_mutated(node)

    def read(self, nodes: Sequence[Any]) -> None:
        """Reads every call and attribute; the placeholders must be in ``env`` already."""
        node = None
        try:
            for node in nodes:
                self._read_node(node)
        except _core.UnsupportedOp as error:
            raise self._located(error, node) from error

    def _read_node(self, node: Any) -> None:
        env, op = self.env, node.op
        if op == "call_function":
            row = self._shared.rows[node.target]
            self._node, self._row = node, row
            if row is None:
                env[node] = self._foreign(node)
            elif row.getitem:
                env[node] = self._getitem(node)
            elif row.target in self._shared.foreign:
                env[node] = self._described(node, row, self._shared.foreign[row.target])
            elif row.dropped:
                env[node] = NoValue(row.target)
            else:
                env[node] = self._call(node, row)
        elif op == "get_attr":
            env[node] = self._attribute(node)
        elif op not in ("placeholder", "output"):
            raise self.error(
                _core.UnsupportedOp,
                f"an FX node of kind {op} has no meaning here",
                hint="Export the module",
            )

    def _located(self, error: Any, node: Any) -> Exception:
        """Locates the error of an unknown size at the node that needs it; other errors know their node."""
        parts = error.parts
        if parts["node"] or node is None:
            return error  # type: ignore[no-any-return]
        said = {key: parts[key] for key in ("expected", "got", "hint")}
        self._node = node
        return self.error(type(error), parts["what"], **said)

    def _call(self, node: Any, row: Row) -> Any:
        env = self.env
        args = node.args
        kwargs = node.kwargs
        if kwargs or len(args) != row.arity:
            args = row.complete(args, kwargs)
        values = [
            env[arg] if type(arg) is Node else arg if type(arg) in _PLAIN else self.resolved(arg)
            for arg in args
        ]
        if row.evaluated:
            return self._evaluate_size(row, values)
        try:
            self._expect(node, row)
        except _core.UnsupportedOp:
            if not self._learn_sizes(values):
                raise
            self._expect(node, row)
        if row.training_at and row.is_training(values):
            self.note(
                "training",
                f"'{node.name}' ({row.target}) is in training mode: call .eval() before torch.export.export, "
                "unless that is what you mean",
            )
        kinds = set(map(type, values))
        if not kinds.isdisjoint(_MAY_HOLD_COMPLEX) and any(has_complex(value) for value in values):
            return self._complex_call(row, values)
        result = None
        if row.emit is not None and NoValue not in kinds:
            result = row.emit(self, *values)
            if self._is_complex:
                result = as_complex(self, row.name, result)
        reason = ""
        if result is None:
            result = self._evaluated(values)
        if result is None:
            result, reason = self._decomposed(row, values)
        if result is None:
            result = self._opaque(row.target, values[: row.required], self._keywords(row, values), reason)
        if row.mutates:
            self._written(node, row, result)
        return result

    def _complex_call(self, row: Row, values: Sequence[Any]) -> Any:
        """Reads a call with complex operands by its parts, or as the calls that torch decomposes it into."""
        if not is_known(row.name, row.emit):
            result, _ = self._decomposed(row, values)
            if result is not None:
                return result
        return emit_complex(self, row.name, row.emit, values)

    def _learn_sizes(self, values: Sequence[Any]) -> bool:
        """Learns result sizes that depend on data, if the data is constant; True if it did.

        Torch computes the call on the constants, with zeros in place of the tensor whose elements are chosen.
        """
        recorded = self._node.meta.get("val")
        tensors = self._constants_of(values)
        if not isinstance(recorded, torch.Tensor) or not tensors or self._row is None:
            return False
        if tensors[0] is None and self._row.name in _CHOOSE_ELEMENTS:
            x = values[0]
            tensors[0] = torch.zeros((), dtype=TORCH_OF[x.dtype]).expand(tuple(x.shape))
        result = self._made_by_torch(values, tensors)
        if not isinstance(result, torch.Tensor):
            return False
        for size, known in zip(recorded.shape, result.shape, strict=True):
            self._shared.sizes.learn(size, known)
        return True

    def _evaluated(self, values: Sequence[Any]) -> Ref | None:
        """Returns torch's result of a call whose tensors are all constants: it is the same in every run."""
        result = self._made_by_torch(values, self._constants_of(values))
        readable = isinstance(result, torch.Tensor) and result.dtype in CODE_OF
        return self.lifted_tensor(result) if readable else None

    def _constants_of(self, values: Sequence[Any]) -> list[torch.Tensor | None]:
        return [self._held(ref) if isinstance(ref, Ref) else None for ref in tensors_of(values)]

    def _made_by_torch(self, values: Sequence[Any], tensors: Sequence[torch.Tensor | None]) -> Any:
        """Returns the result of the call over these tensors; None if another run may have another result."""
        target = self._node.target
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or is_random(target):
            return None
        if self._has_no_value(values) or any(tensor is None for tensor in tensors):
            return None
        for tensor in tensors:
            if tensor is not None:
                self._shared.weights.read(tensor)
        rest = iter(tensors)
        filled = tree_map_only(Ref, lambda _: next(rest), list(values))
        arguments = target._schema.arguments
        positional = [v for v, a in zip(filled, arguments, strict=True) if not a.kwarg_only]
        keywords = {a.name: v for v, a in zip(filled, arguments, strict=True) if a.kwarg_only}
        with torch.no_grad():
            return target(*positional, **keywords)

    @staticmethod
    def _keywords(row: Row, values: Sequence[Any]) -> dict[str, Any]:
        """Returns the arguments by name that differ from their defaults or have none."""
        rest = zip(
            row.names[row.required :], values[row.required :], row.defaults[row.required :], strict=True
        )
        return {
            name: value
            for name, value, default in rest
            if type(value) is Ref or name in row.needed_by_name or value != default
        }

    @staticmethod
    def _has_no_value(values: Sequence[Any]) -> bool:
        return any(type(value) is NoValue for value in values)

    def resolved(self, value: Any) -> Any:
        """Replaces the nodes in an FX argument by their values, and symbolic sizes by numbers."""
        kind = type(value)
        if kind is Node:
            return self.env[value]
        if kind in _LISTS:
            env = self.env
            return [
                item if type(item) in _PLAIN else env[item] if type(item) is Node else self.resolved(item)
                for item in value
            ]
        if kind in _CONSTANTS:
            return value
        if isinstance(value, dict):
            return {key: self.resolved(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self.resolved(value.start), self.resolved(value.stop), self.resolved(value.step))
        return self._shared.sizes.value(value)

    # ---- calls outside the table ----

    def _described(self, node: Any, row: Row, operator: ForeignOp) -> Any:
        """Adds a node for a call of an operator that the user described."""
        if row.mutates:
            raise self.error(
                _core.UnsupportedOp,
                f"{row.target} writes an operand, which a described operator may not do",
                hint=_hint_of_writing(row),
            )
        values = [self.resolved(arg) for arg in row.complete(node.args, node.kwargs)]
        keywords = self._keywords(row, values)
        result = self._opaque(row.target, values[: row.required], keywords, described=operator)
        if operator.types is not None:
            self._compare_types(operator, result, values[: row.required], keywords)
        return result

    def _compare_types(
        self, operator: ForeignOp, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Raises InvalidGraph if the types that a description computes are not those that torch recorded."""

        def spec(value: Any) -> Any:
            if type(value) is Ref:
                return TensorSpec(_core.DTYPES[value.dtype], tuple(value.shape))
            return type(value)(map(spec, value)) if isinstance(value, list | tuple) else value

        assert operator.types is not None
        try:
            computed = operator.types(*map(spec, args), **{key: spec(value) for key, value in kwargs.items()})
        except Exception as error:
            add_note(error, f"in the function 'types' of '{operator.target}', for node '{self._node.name}'")
            raise
        expected = list(computed) if isinstance(computed, list | tuple) else [computed]
        found = [spec(item) for item in (result if isinstance(result, list | tuple) else [result])]
        if expected != found:
            raise self.error(
                _core.InvalidGraph,
                f"the description of {operator.target} computes other types than torch recorded",
                expected=str(found),
                got=str(expected),
            )

    def _opaque(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        reason: str = "",
        described: ForeignOp | None = None,
    ) -> Any:
        """Adds an opaque node, which stores the call without interpreting it."""
        node = self._node
        recorded = node.meta.get("val")
        self._refuse_missing((args, kwargs))
        if isinstance(recorded, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            return self._opaque_number(recorded, target)
        items = list(recorded) if isinstance(recorded, list | tuple) else [recorded]
        if any(isinstance(item, torch.Tensor) and item.is_complex() for item in items):
            raise self.error(
                _core.UnsupportedOp, f"{target} with a complex result is not supported", hint=HINT
            )
        text, operands = arguments_json(args, kwargs, self._no_text, self._mark())
        types = [self._type_of(item) for item in items if isinstance(item, torch.Tensor)]
        attributes = {"target": target, "arguments": text}
        if described is not None:
            tensors = tensors_of([args, list(kwargs.values())])
            attributes |= attributes_of_call(
                described,
                [len(tensor.shape) for tensor in tensors if isinstance(tensor, Ref)],
                [len(shape) for _, shape in types],
            )
        first = self.builder.add_many(OP["opaque"], attributes, operands, self._name(), self._origin(), types)
        if described is None:
            because = f": {reason}" if reason else ""
            self.note("opaque", f"'{node.name}' ({target}) is kept as an opaque node{because}")
        refs = iter(Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(types))
        results = [next(refs) if isinstance(item, torch.Tensor) else NoValue(target) for item in items]
        return results if isinstance(recorded, list | tuple) else results[0]

    def _mark(self) -> str:
        """Returns why TOSA has no counterpart of this call, ``training`` or ``random``; else empty."""
        row, node = self._row, self._node
        if row is not None and row.is_training(row.complete(node.args, node.kwargs)):
            return "training"
        return "random" if is_random(node.target) else ""

    def _decomposed(self, row: Row, values: Sequence[Any]) -> tuple[Any, str]:
        """Returns the results of the call by torch's decomposition, or None and the reason for that."""
        recorded = self._node.meta.get("val")
        items = list(recorded) if isinstance(recorded, list | tuple) else [recorded]
        if self._has_no_value(values) or not any(isinstance(item, torch.Tensor) for item in items):
            return None, ""
        used = self.used_results() if isinstance(recorded, list | tuple) else {0}
        results = [
            (item.dtype, tuple(self._shape_of(item.shape)))
            if isinstance(item, torch.Tensor) and i in used
            else None
            for i, item in enumerate(items)
        ]
        expansion = self._shared.decompositions.find(self._node.target, values, results)
        if expansion.module is None:
            return None, expansion.reason
        return self._read_expansion(row, expansion, tensors_of(values)), ""

    def _read_expansion(self, row: Row, expansion: Expansion, tensors: Sequence[Ref | Complex]) -> Any:
        assert expansion.module is not None
        nodes = list(expansion.module.graph.nodes)
        results = nodes[-1].args[0]
        prefix = f"{self._prefix}{self._node.name}."
        results_of = nodes[-1].all_input_nodes
        inner = Importer(self._shared, self.builder, expansion.module, prefix, self, results_of)
        inner.env.update(zip((node for node in nodes if node.op == "placeholder"), tensors, strict=True))
        inner.prepare(nodes)
        inner.read(nodes)
        read = inner.resolved(results)
        if not isinstance(results, list | tuple):
            return read
        return [NoValue(row.target) if item is None else item for item in read]

    def _opaque_number(self, recorded: Any, target: str) -> Any:
        """Returns the number if it follows from the bound shapes; else a `NoValue`, which no call may use."""
        try:
            return self._shared.sizes.value(recorded)
        except _core.UnsupportedOp:
            return NoValue(target, place_of(self._node))

    def _refuse_missing(self, value: Any) -> None:
        if type(value) is NoValue:
            raise self.error(
                _core.UnsupportedOp,
                f"it uses a result of {value.target} that has no value here",
                expected="a number that does not depend on data" if value.place else "",
                got=value.place,
                hint="Keep the number a tensor, e.g. x * n in place of x * n.item()"
                if value.place
                else "Results that are not kept cannot be imported",
            )
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for item in value:
                self._refuse_missing(item)

    def _no_text(self, kind: str) -> Exception:
        return self.error(
            _core.UnsupportedOp,
            f"an argument of type {kind} cannot be kept",
            hint="Call ep.run_decompositions() first, or rewrite the call without it",
        )

    def _evaluate_size(self, row: Row, values: Sequence[Any]) -> Any:
        name = row.name.partition(".")[0]
        operand = values[0]
        if type(operand) is Ref and name == "sym_size":
            return operand.shape[values[1]] if row.arity > 1 else list(operand.shape)
        if type(operand) is Ref and name == "sym_numel":
            return math.prod(operand.shape)
        return self._shared.sizes.value(self._node.meta["val"])

    def _getitem(self, node: Any) -> Any:
        container, index = node.args
        held = self.env[container]
        if isinstance(held, list | tuple | dict):
            return held[self.resolved(index)]
        return NoValue(str(container.target))

    def _attribute(self, node: Any) -> Any:
        self._node, self._row = node, None
        found = self._owner
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, GraphModule) or not isinstance(found, torch.Tensor):
            return found
        if found.is_complex():
            return self.complex_constant(found, str(node.target), "lifted")
        constant = self._shared.weights.tensor(found, str(node.target), "lifted")
        ref = Ref(self.builder.add_constant(constant), CODE_OF[found.dtype], tuple(found.shape))
        self.remember(ref, found)
        return ref

    def _foreign(self, node: Any) -> Any:
        """Reads a call that is no operator overload: arithmetic on sizes, or a higher-order operator."""
        target = node.target
        values = [self.resolved(arg) for arg in node.args]
        keywords = {key: self.resolved(arg) for key, arg in node.kwargs.items()}
        name = getattr(target, "__name__", str(target))
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._higher_order(node, name, values, keywords)
        if all(isinstance(value, bool | int | float) for value in values) and not keywords:
            return target(*values)
        if any(type(value) is NoValue for value in values):
            return NoValue(name)
        raise self.error(
            _core.UnsupportedOp, f"a call of {name} is no operator of torch", hint=_FUNCTIONALIZE
        )

    # ---- higher-order operators ----

    def _higher_order(self, node: Any, name: str, values: list[Any], keywords: dict[str, Any]) -> Any:
        if name in _CONTROL_FLOW:
            return self._control_flow(name, [*values, *keywords.values()])
        if name == "wrap_with_autocast" and values[2] and values[0] == "cpu":
            raise self.error(
                _core.UnsupportedOp, "autocast changes dtypes in a nested graph", hint=_FUNCTIONALIZE
            )
        if name in _INLINED:
            module_at, operands_of = _INLINED[name]
            return self._inline(node.args[module_at], values[module_at], operands_of(values))
        recorded = node.meta.get("val")
        self.types = []
        if recorded is None:
            raise self.error(
                _core.UnsupportedOp,
                f"the higher-order operator {name} records no result",
                hint=_FUNCTIONALIZE,
            )
        return self._opaque(f"higher_order.{name}", values, keywords)

    def _inline(self, attribute: Node, module: GraphModule, operands: Sequence[Any]) -> Any:
        """Reads a nested graph that is only a wrapper: its calls become nodes of this graph."""
        inner = Importer(self._shared, self.builder, module, f"{self._prefix}{attribute.target}.")
        nodes = list(module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        inner.env.update(zip(placeholders, operands, strict=True))
        inner.prepare(nodes)
        inner.read(nodes)
        return inner.resolved(nodes[-1].args[0])

    def _control_flow(self, name: str, values: list[Any]) -> Any:
        """Adds a node with regions; numbers among the operands become constants of the regions."""
        if name == "cond":
            leading, modules, operands = [values[0]], values[1:3], list(values[3] if len(values) > 3 else ())
        else:
            leading, modules = [], values[:2]
            operands = [*values[2], *(values[3] if len(values) > 3 else ())]
        self._refuse_missing([leading, operands])
        if leading and type(leading[0]) is not Ref:
            leading = [self.constant(bool(leading[0]), DEFAULT_OF_CATEGORY[0])]
        self._expect_results()
        node = self._node
        regions = [self._region(module, operands, f"{node.name}.{i}") for i, module in enumerate(modules)]
        ids = [operand.id for operand in (*leading, *operands) if type(operand) is Ref]
        first = self.builder.add_many(OP[name], None, ids, node.name, self._origin(), self.types, regions)
        return [Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(self.types)]

    def _expect_results(self) -> None:
        recorded = self._node.meta.get("val")
        items = recorded if isinstance(recorded, list | tuple) else [recorded]
        if not all(isinstance(item, torch.Tensor) for item in items):
            raise self.error(_core.UnsupportedOp, "control flow returns something else than tensors")
        self.types = [self._type_of(item) for item in items]

    def _region(self, module: GraphModule, operands: Sequence[Any], name: str) -> _core.Graph:
        builder = _core.GraphBuilder(name)
        inner = Importer(self._shared, builder, module, f"{self._prefix}{name}.")
        nodes = list(module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for placeholder, operand in zip(placeholders, operands, strict=True):
            if type(operand) is Ref:
                value = builder.add_input(placeholder.name, operand.dtype, operand.shape, placeholder.name)
                inner.env[placeholder] = Ref(value, operand.dtype, operand.shape)
            else:
                inner.env[placeholder] = operand
        inner.prepare(nodes)
        inner.read(nodes)
        results = inner.resolved(nodes[-1].args[0])
        for i, result in enumerate(results if isinstance(results, list) else [results]):
            if type(result) is Complex:
                raise inner.error(_core.UnsupportedOp, "control flow gives a complex value", hint=HINT)
            if type(result) is not Ref:
                result = inner.constant(result, DEFAULT_OF_CATEGORY[0 if isinstance(result, bool) else 1])
            builder.add_output(result.id, f"out[{i}]")
        return builder.finish()

    # ---- in-place calls ----

    def _written(self, node: Any, row: Row, result: Any) -> None:
        """Assigns the new value of each written operand to all nodes that are the same whole tensor."""
        assert self._aliases is not None
        if row.writes_nothing(node):
            return
        args = row.complete(node.args, node.kwargs)
        if row.changes_shape:
            self._reshaped(node, args[0], result)
            return
        for position in row.mutates:
            operand, index = args[position], row.returned[position]
            if operand is None:
                continue
            if index is None or not isinstance(operand, Node):
                raise self.error(
                    _core.UnsupportedOp,
                    f"it writes to '{row.names[position]}' without returning it",
                    hint=_hint_of_writing(row),
                )
            if self._prefix and self._aliases.reaches_placeholder(operand):
                raise self.error(
                    _core.UnsupportedOp, "a nested graph writes to a value outside of it", hint=_FUNCTIONALIZE
                )
            fresh = result if type(result) is Ref else result[index]
            self._aliases.update(node, operand, self.env, fresh, self._refuse_shared)

    def _reshaped(self, node: Any, operand: Any, result: Any) -> None:
        """Assigns the reshaped result to all nodes that are the same tensor object as the operand."""
        assert self._aliases is not None
        if self._aliases.is_placeholder(operand):
            raise self.error(
                _core.UnsupportedOp,
                f"it changes the shape of input '{operand.name}' in place, which the caller would see",
                hint="Write x = x.unsqueeze(0) for x.unsqueeze_(0)",
            )
        self._aliases.reshape(node, operand, self.env, result)

    def _refuse_shared(self, operand: Any, other: Any) -> Exception:
        return self.error(
            _core.UnsupportedOp,
            f"it writes to '{operand.name}', whose memory '{other.name}' shares in part and is seen later",
            hint=_FUNCTIONALIZE,
        )


def _hint_of_writing(row: Row) -> str:
    """Returns what to do about a call that writes an operand; only torch's own have functional forms."""
    if row.target.startswith("aten."):
        return _FUNCTIONALIZE
    return "Write an operator that returns the new value, and call that one"


# Wrappers: the position of the nested module among the arguments, and the arguments that are its operands.
_INLINED: dict[str, tuple[int, Callable[[list[Any]], Sequence[Any]]]] = {
    "wrap_with_set_grad_enabled": (1, lambda values: values[2:]),
    "wrap_with_autocast": (4, lambda values: values[5:]),
    "wrap": (0, lambda values: values[1:]),
    "strict_mode": (0, lambda values: values[1]),
    "hints_wrapper": (0, lambda values: values[1]),
    "invoke_subgraph": (0, lambda values: values[2:]),
}
# Calls whose result shape depends on their first operand only through its shape.
_CHOOSE_ELEMENTS = ("index.Tensor", "repeat_interleave.self_Tensor")
