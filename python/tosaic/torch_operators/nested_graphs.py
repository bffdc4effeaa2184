"""Reads higher-order operators with nested graphs: control flow, which becomes regions, and wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import proxy

from tosaic import _core
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.complex_values import HINT
from tosaic.torch_operators.dtypes import DEFAULT_OF_CATEGORY
from tosaic.torch_operators.foreign_calls import ForeignCalls
from tosaic.torch_operators.reader import Reader
from tosaic.torch_operators.value import Complex, Ref
from tosaic.torch_operators.wrappers import WRAPPERS, Place, Wrapped, changes_dtypes, wrapper_name

_CONTROL_FLOW = ("cond", "while_loop")


class NestedGraphs:
    """The part of a reader of nodes that reads higher-order operators.

    Attributes
    ----------
    wrapped : Wrapped
    own_place : Place
        The graph that the reader reads.
    """

    def __init__(self, reader: Reader, foreign: ForeignCalls) -> None:
        self._reader: Reader = proxy(reader)  # the owner of this object
        self._writer = reader.writer
        self._foreign = foreign
        self.wrapped = Wrapped()
        self.own_place = Place("", None)

    def begin(self) -> None:
        """Starts with the reader's own graph."""
        self.wrapped, self.own_place = Wrapped(), Place(self._writer.prefix, self._reader.owner)

    def opened(self, node: Any, at: Place) -> tuple[Sequence[Any], Place] | None:
        """Returns the nodes of the graph that a call wraps, and their place: they are read before the call.

        None for a call that wraps no graph, or a graph whose nodes were read before.
        """
        found = self._wrapped_by(node, at) if self._reader.is_higher_order(node.target) else None
        if found is None:
            return None
        inner = list(found.owner.graph.nodes)
        self.wrapped.places.update(dict.fromkeys(inner, found))
        return inner[:-1], found

    def enter(self, place: Place) -> None:
        """Sets the prefix of names, and the owner of the attributes, for the nodes of a graph."""
        self._writer.prefix, self._reader.owner = place

    def _wrapped_by(self, node: Any, at: Place) -> Place | None:
        """Returns the graph of a wrapper; None for a damaged call, which is refused when it is read."""
        name = wrapper_name(node)
        if name not in WRAPPERS:
            return None
        module_at, operands_of = WRAPPERS[name]
        try:
            if name == "wrap_with_autocast" and changes_dtypes(node.args):
                return None
            attribute = node.args[module_at]
            module = self._reader.nested_of(attribute, at.owner)
            if id(module) in self.wrapped.modules:
                return None
            inner = list(module.graph.nodes)
            inputs = [each for each in inner if each.op == "placeholder"]
            operands = dict(zip(inputs, operands_of(list(node.args)), strict=True))
            results = inner[-1].args[0]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        self.wrapped.modules.add(id(module))
        self.wrapped.operands.update(operands)
        self.wrapped.results[node] = results
        return Place(f"{at.prefix}{attribute.target}.", module)

    def read(self, node: Any, name: str, values: list[Any], keywords: dict[str, Any]) -> Any:
        """Reads the call of a higher-order operator, with its arguments."""
        if node in self.wrapped.results:
            return self._reader.resolved(self.wrapped.results[node])
        if name in _CONTROL_FLOW:
            return self._control_flow(name, [*values, *keywords.values()])
        if name == "wrap_with_autocast" and changes_dtypes(values):
            raise self._writer.error(
                _core.UnsupportedOp,
                "autocast changes dtypes in a nested graph",
                hint=self._reader.autocast_hint(),
            )
        if name in WRAPPERS:
            module_at, operands_of = WRAPPERS[name]
            return self._inline(node.args[module_at], values[module_at], operands_of(values))
        if any(hasattr(value, "graph") for value in values):
            raise self._writer.error(
                _core.UnsupportedOp,
                f"the higher-order operator {name} runs a nested graph, and has no counterpart",
                hint="Write it as a loop of Python, which torch.export unrolls, or as torch.while_loop",
            )
        recorded = node.meta.get("val")
        self._writer.types = []
        if recorded is None:
            raise self._writer.error(
                _core.UnsupportedOp,
                f"the higher-order operator {name} records no result",
                hint=self._reader.functional_hint(),
            )
        return self._foreign.opaque(f"higher_order.{name}", values, keywords)

    def _inline(self, attribute: Any, module: Any, operands: Sequence[Any]) -> Any:
        """Reads a nested graph that is only a wrapper: its calls become nodes of this graph."""
        inner = self._reader.inner(module, self._writer.builder, f"{self._writer.prefix}{attribute.target}.")
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
        self._foreign.refuse_missing([leading, operands])
        if leading and type(leading[0]) is not Ref:
            leading = [self._writer.constant(bool(leading[0]), DEFAULT_OF_CATEGORY[0])]
        self._expect_results()
        writer = self._writer
        node = writer.node
        regions = [self._region(module, operands, f"{node.name}.{i}") for i, module in enumerate(modules)]
        ids = [operand.id for operand in (*leading, *operands) if type(operand) is Ref]
        first = writer.builder.add_many(
            OP[name], None, ids, node.name, writer.origin(), writer.types, regions
        )
        return [Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(writer.types)]

    def _expect_results(self) -> None:
        recorded = self._writer.node.meta.get("val")
        items = recorded if isinstance(recorded, list | tuple) else [recorded]
        if not all(isinstance(item, self._reader.tensor_type) for item in items):
            raise self._writer.error(_core.UnsupportedOp, "control flow returns something else than tensors")
        self._writer.types = [self._writer.type_of(item) for item in items]

    def _region(self, module: Any, operands: Sequence[Any], name: str) -> _core.Graph:
        builder = _core.GraphBuilder(name)
        inner = self._reader.inner(module, builder, f"{self._writer.prefix}{name}.")
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
                raise inner.writer.error(_core.UnsupportedOp, "control flow gives a complex value", hint=HINT)
            if type(result) is not Ref:
                result = inner.writer.constant(
                    result, DEFAULT_OF_CATEGORY[0 if isinstance(result, bool) else 1]
                )
            builder.add_output(result.id, f"out[{i}]")
        return builder.finish()
