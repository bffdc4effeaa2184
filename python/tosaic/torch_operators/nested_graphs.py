"""Higher-order operators with nested graphs: control flow, which has regions, and wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tosaic import _core
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.complex_values import HINT
from tosaic.torch_operators.dtypes import DEFAULT_OF_CATEGORY
from tosaic.torch_operators.foreign_calls import ForeignCalls
from tosaic.torch_operators.value import Complex, Ref

__all__ = ["WRAPPERS", "NestedGraphs", "Place", "Wrapped", "changes_dtypes", "wrapper_name"]

_CONTROL_FLOW = ("cond", "while_loop")


class Place(NamedTuple):
    """The nested graph that a node is in: the prefix of its name, and the module that has its attributes."""

    prefix: str
    owner: Any


@dataclass(frozen=True)
class Wrapped:
    """The nodes of nested graphs that are read as nodes of the graph around them, so that they may write it.

    Attributes
    ----------
    operands : dict
        By input of a nested graph: the operand of the wrapper.
    results : dict
        By wrapper: the results of its graph.
    places : dict of node to Place
    """

    operands: dict[Any, Any] = field(default_factory=dict)
    results: dict[Any, Any] = field(default_factory=dict)
    places: dict[Any, Place] = field(default_factory=dict)


class NestedGraphs(ForeignCalls):
    """The part of a reader of FX nodes that reads higher-order operators."""

    if TYPE_CHECKING:
        env: dict[Any, Any]
        _prefix: str
        _owner: Any
        _wrapped: Wrapped

        @staticmethod
        def _nested_of(attribute: Any, owner: Any) -> Any:
            """Returns the nested graph that an attribute of `owner` is."""

        @staticmethod
        def _is_higher_order(target: Any) -> bool:
            """True if a target runs a nested graph."""

        def _reader(self, module: Any, builder: _core.GraphBuilder, prefix: str) -> Any:
            """Returns a reader for a nested graph."""

    def _with_nested(self, nodes: Sequence[Any], at: Place, modules: set[int]) -> Iterator[Any]:
        """Yields the nodes, and before each wrapper the nodes of its graph, unless these were read before."""
        for node in nodes:
            may_wrap = node.op == "call_function" and self._is_higher_order(node.target)
            found = self._wrapped_by(node, at, modules) if may_wrap else None
            if found is not None:
                inner = list(found.owner.graph.nodes)
                self._wrapped.places.update(dict.fromkeys(inner, found))
                yield from self._with_nested(inner[:-1], found, modules)
            yield node

    def _wrapped_by(self, node: Any, at: Place, modules: set[int]) -> Place | None:
        """Returns the graph of a wrapper, unless it is damaged, which is refused where it is read."""
        name = wrapper_name(node)
        if name not in WRAPPERS:
            return None
        module_at, operands_of = WRAPPERS[name]
        try:
            if name == "wrap_with_autocast" and changes_dtypes(node.args):
                return None
            attribute = node.args[module_at]
            module = self._nested_of(attribute, at.owner)
            if id(module) in modules:
                return None
            inner = list(module.graph.nodes)
            inputs = [each for each in inner if each.op == "placeholder"]
            operands = dict(zip(inputs, operands_of(list(node.args)), strict=True))
            results = inner[-1].args[0]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        modules.add(id(module))
        self._wrapped.operands.update(operands)
        self._wrapped.results[node] = results
        return Place(f"{at.prefix}{attribute.target}.", module)

    def _higher_order(self, node: Any, name: str, values: list[Any], keywords: dict[str, Any]) -> Any:
        if node in self._wrapped.results:
            return self.resolved(self._wrapped.results[node])
        if name in _CONTROL_FLOW:
            return self._control_flow(name, [*values, *keywords.values()])
        if name == "wrap_with_autocast" and changes_dtypes(values):
            raise self.error(
                _core.UnsupportedOp, "autocast changes dtypes in a nested graph", hint=self.autocast_hint()
            )
        if name in WRAPPERS:
            module_at, operands_of = WRAPPERS[name]
            return self._inline(node.args[module_at], values[module_at], operands_of(values))
        if any(hasattr(value, "graph") for value in values):
            raise self.error(
                _core.UnsupportedOp,
                f"the higher-order operator {name} runs a nested graph, and has no counterpart",
                hint="Write it as a loop of Python, which torch.export unrolls, or as torch.while_loop",
            )
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
        inner.read()
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
        inner.read()
        results = inner.resolved(nodes[-1].args[0])
        for i, result in enumerate(results if isinstance(results, list) else [results]):
            if type(result) is Complex:
                raise inner.error(_core.UnsupportedOp, "control flow gives a complex value", hint=HINT)
            if type(result) is not Ref:
                result = inner.constant(result, DEFAULT_OF_CATEGORY[0 if isinstance(result, bool) else 1])
            builder.add_output(result.id, f"out[{i}]")
        return builder.finish()


WRAPPERS: dict[str, tuple[int, Callable[[list[Any]], Sequence[Any]]]] = {
    "wrap_with_set_grad_enabled": (1, lambda values: values[2:]),
    "wrap_with_autocast": (4, lambda values: values[5:]),
    "wrap": (0, lambda values: values[1:]),
    "strict_mode": (0, lambda values: values[1]),
    "hints_wrapper": (0, lambda values: values[1]),
    "invoke_subgraph": (0, lambda values: values[2:]),
}
"""By wrapper: which argument is the nested graph, and the arguments that are its operands."""


def wrapper_name(node: Any) -> str:
    """Returns the name of the operator that a node calls, as `WRAPPERS` has it if it is a wrapper."""
    return str(getattr(node.target, "__name__", node.target)).removeprefix("higher_order.")


def changes_dtypes(args: Sequence[Any]) -> bool:
    """True if ``wrap_with_autocast`` with these arguments computes with other dtypes on a CPU."""
    return bool(args[2]) and args[0] == "cpu"
