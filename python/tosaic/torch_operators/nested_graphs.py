"""Higher-order operators with nested graphs: control flow, which has regions, and wrappers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.complex_values import HINT
from tosaic.torch_operators.dtypes import DEFAULT_OF_CATEGORY
from tosaic.torch_operators.foreign_calls import ForeignCalls
from tosaic.torch_operators.value import Complex, Ref

__all__ = ["NestedGraphs"]

_CONTROL_FLOW = ("cond", "while_loop")


class NestedGraphs(ForeignCalls):
    """The part of a reader of FX nodes that reads higher-order operators."""

    if TYPE_CHECKING:
        env: dict[Any, Any]
        _prefix: str

        def _reader(self, module: Any, builder: _core.GraphBuilder, prefix: str) -> Any:
            """Returns a reader for a nested graph."""

    def _higher_order(self, node: Any, name: str, values: list[Any], keywords: dict[str, Any]) -> Any:
        if name in _CONTROL_FLOW:
            return self._control_flow(name, [*values, *keywords.values()])
        if name == "wrap_with_autocast" and values[2] and values[0] == "cpu":
            raise self.error(
                _core.UnsupportedOp, "autocast changes dtypes in a nested graph", hint=self.functional_hint()
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
                hint=self.functional_hint(),
            )
        return self._opaque(f"higher_order.{name}", values, keywords)

    def _inline(self, attribute: Any, module: Any, operands: Sequence[Any]) -> Any:
        """Reads a nested graph that is only a wrapper: its calls become nodes of this graph."""
        inner = self._reader(module, self.builder, f"{self._prefix}{attribute.target}.")
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
        if not all(isinstance(item, self.tensor_type) for item in items):
            raise self.error(_core.UnsupportedOp, "control flow returns something else than tensors")
        self.types = [self._type_of(item) for item in items]

    def _region(self, module: Any, operands: Sequence[Any], name: str) -> _core.Graph:
        builder = _core.GraphBuilder(name)
        inner = self._reader(module, builder, f"{self._prefix}{name}.")
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


# Wrappers: the position of the nested module among the arguments, and the arguments that are its operands.
_INLINED: dict[str, tuple[int, Callable[[list[Any]], Sequence[Any]]]] = {
    "wrap_with_set_grad_enabled": (1, lambda values: values[2:]),
    "wrap_with_autocast": (4, lambda values: values[5:]),
    "wrap": (0, lambda values: values[1:]),
    "strict_mode": (0, lambda values: values[1]),
    "hints_wrapper": (0, lambda values: values[1]),
    "invoke_subgraph": (0, lambda values: values[2:]),
}
