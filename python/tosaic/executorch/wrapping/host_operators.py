"""Operators that a caller names: as torch's operators, as edge operators, or as texts.

A name without an overload means every overload, and a name without a namespace means ``aten``:
``"grid_sampler_2d"``, ``"aten.grid_sampler_2d.default"`` and ``"aten::grid_sampler_2d"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tosaic.base.options import invalid, shown
from tosaic.fx.io.quantize_calls import CONVERSION_LIBRARIES, operator_of, torch_operator
from tosaic.torch_operators.origins import source_targets


@dataclass(frozen=True)
class _Named:
    """An operator as it was named.

    Attributes
    ----------
    text : str
        What the caller wrote, for messages.
    operator : str
        ``aten::grid_sampler_2d``.
    overload : str or None
        None: every overload.
    """

    text: str
    operator: str
    overload: str | None

    def is_text(self, target: str) -> bool:
        """True for ``aten.max_pool2d.default``, as FX writes an operator."""
        name, _, overload = target.replace("::", ".").rpartition(".")
        return name.replace(".", "::", 1) == self.operator and self.overload in (None, overload)

    def means(self, operator: Any) -> bool:
        schema = operator._schema
        return schema.name == self.operator and self.overload in (None, schema.overload_name or "default")


@dataclass(frozen=True)
class HostOperators:
    """The operators that stay on the host."""

    where: str
    named: tuple[_Named, ...]

    def match(self, node: Node) -> bool:
        """True if the node calls one of the operators, in any dialect, or is a part of such a call.

        ExecuTorch decomposes calls: ``meta["from_node"]`` leads from the parts to the call.
        """
        if node.op != "call_function":
            return False
        return self.hold(node.target) or any(self._is_source(each, node) for each in self.named)

    def _is_source(self, named: _Named, node: Node) -> bool:
        operator = torch_operator(node.target)
        if operator is not None and operator._schema.name.startswith(CONVERSION_LIBRARIES):
            return False  # torchao copies sources of neighbouring calls to quantize and dequantize nodes
        return any(named.is_text(target) for target in source_targets(node))

    def hold(self, target: Any) -> bool:
        """True if an operator, of torch or of the edge dialect, is one of the host operators."""
        operator = torch_operator(target)
        return operator is not None and any(each.means(operator) for each in self.named)

    def overloads_in(self, module: GraphModule) -> list[Any]:
        """Returns torch's overloads of host operators that the graph and its bodies call."""
        found = (operator_of(node) for node in _calls(module) if self.hold(node.target))
        return list(dict.fromkeys(found))

    def require_calls(self, module: GraphModule) -> None:
        """Raises InvalidGraph if a host operator has no call in a graph and its bodies.

        Calls in delegates count, too: a partitioner before this one may have taken all of them.
        """
        called = {operator_of(node): None for node in _calls(module)}
        for delegate in _delegates(module):
            called |= {operator_of(node): None for node in _calls(delegate)}
        called.pop(None, None)
        for each in self.named:
            if any(each.means(operator) for operator in called):
                continue
            if any(self._is_source(each, node) for node in _calls(module)):
                continue
            names = {_text_of(operator): None for operator in called}
            raise invalid(
                self.where,
                f"the program has no call of '{each.text}', which is in 'host_ops'",
                expected="an operator that the program calls",
                got=f"calls of {', '.join(sorted(names)) or 'nothing'}",
                hint=_near(each.operator, [operator._schema.name for operator in called]),
            )


def host_operators(where: str, given: Iterable[Any]) -> HostOperators:
    """Reads the option `host_ops`.

    Raises
    ------
    InvalidGraph
        An entry is not an operator, or torch has no operator with this name.
    """
    return HostOperators(where, tuple(_named(where, each) for each in given))


def _named(where: str, given: Any) -> _Named:
    operator = torch_operator(given)
    if operator is not None:
        schema = operator._schema
        return _Named(_text_of(operator), schema.name, schema.overload_name or "default")
    if isinstance(given, torch._ops.OpOverloadPacket):
        return _Named(str(given), given._qualified_op_name, None)
    if isinstance(given, str) and given:
        return _read(where, given)
    raise invalid(
        where,
        "an entry of 'host_ops' is no operator",
        expected="an operator of torch, an edge operator, or a name like 'aten.grid_sampler_2d.default'",
        got=shown(given),
    )


def _read(where: str, text: str) -> _Named:
    known = set(torch._C._dispatch_get_all_op_names())  # "aten::add.Tensor", "aten::relu"
    operators = {name.partition(".")[0] for name in known}
    for operator, overload in _readings(text):
        name = operator if overload in (None, "default") else f"{operator}.{overload}"
        if operator in operators and (overload is None or name in known):
            return _Named(text, operator, overload)
    raise invalid(
        where,
        f"there is no operator {shown(text)}, which is in 'host_ops'",
        expected="an operator that torch has, like 'grid_sampler_2d' or 'aten.grid_sampler_2d.default'",
        hint=_near(next(_readings(text))[0], sorted(operators))
        or "Import the library that registers the operator first",
    )


def _readings(text: str) -> Iterator[tuple[str, str | None]]:
    """Yields the possible meanings of a name: a qualified operator, and an overload or None."""
    first, *rest = text.replace("::", ".").split(".")
    if not rest:
        yield f"aten::{first}", None
    elif len(rest) == 1:
        if "::" not in text:
            yield f"aten::{first}", rest[0]
        yield f"{first}::{rest[0]}", None
    else:
        yield f"{first}::{rest[0]}", ".".join(rest[1:])


def _near(operator: str, names: Iterable[str]) -> str:
    near = get_close_matches(operator, sorted(set(names)), n=3, cutoff=0.7)
    return f"Did you mean {' or '.join(repr(name.replace('::', '.')) for name in near)}" if near else ""


def _text_of(operator: Any) -> str:
    schema = operator._schema
    return f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"


# ---- graphs ----


def bodies_of(node: Node) -> list[GraphModule]:
    """Returns the graphs that a call of control flow runs."""
    module = node.graph.owning_module
    found = (
        getattr(module, str(each.target), None) for each in node.all_input_nodes if each.op == "get_attr"
    )
    return [each for each in found if isinstance(each, GraphModule)]


def modules_of(module: GraphModule) -> Iterator[GraphModule]:
    """Yields a graph, and the bodies of its control flow, at every depth."""
    yield module
    seen: set[GraphModule] = set()
    for node in module.graph.nodes:
        for body in bodies_of(node):
            if body not in seen:
                seen.add(body)
                yield from modules_of(body)


def _delegates(module: GraphModule) -> Iterator[GraphModule]:
    """Yields the graphs that ExecuTorch's delegates were lowered from."""
    for each in modules_of(module):
        for child in each.children():
            program = getattr(child, "original_module", None)
            if program is not None:
                yield program.graph_module


def _calls(module: GraphModule) -> Iterator[Node]:
    for each in modules_of(module):
        yield from (node for node in each.graph.nodes if node.op == "call_function")
