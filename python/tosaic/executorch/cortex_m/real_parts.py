"""Replaces complex values of a program by pairs of real values: a runtime may have no complex kernels.

::

    z = view_as_complex(x)        a, b = select(x, -1, 0), select(x, -1, 1)
    y = mul(z, w)                 c, d = a * re(w) - b * im(w), a * im(w) + b * re(w)
    view_as_real(y)               stack([c, d], -1)

Torch's own decomposition of complex tensors defines the replacement of a call. A call without decomposition,
such as a transform, stays as it is, with complex operands and results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.complex_tensor._core import ComplexTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from tosaic.fx.quantizer.memory import Roots, written_arguments

_ATEN = torch.ops.aten
_Pair = tuple[Node, Node]
_MADE_OF_REAL: dict[Any, Callable[..., ComplexTensor]] = {
    _ATEN.view_as_complex.default: lambda x: ComplexTensor(x.select(-1, 0), x.select(-1, 1)),
    _ATEN.complex.default: lambda real, imag: ComplexTensor(*_ATEN.broadcast_tensors.default([real, imag])),
    _ATEN.polar.default: lambda size, angle: ComplexTensor(size * angle.cos(), size * angle.sin()),
}
_TAKEN_APART = {_ATEN.real.default: lambda z: z.re, _ATEN.imag.default: lambda z: z.im}
_SAME = (_ATEN.detach.default, _ATEN.alias.default, _ATEN.lift_fresh_copy.default)


def with_real_parts(program: Any) -> Any:
    """Returns an exported program that computes with pairs of real values instead of complex values.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        It is not changed.

    Returns
    -------
    torch.export.ExportedProgram
        The same program if it has no complex values or no example inputs, or if it writes to their memory.
    """
    if program.example_inputs is None or not any(map(_is_complex, program.graph.nodes)):
        return program
    module = program.module(check_guards=False)
    roots = Roots()
    written = {
        root for node in module.graph.nodes for each in written_arguments(node) for root in roots.of(each)
    }
    if any(_is_complex(node) and roots.of(node) & written for node in module.graph.nodes):
        return program
    _RealParts(module).replace()
    return torch.export.export(module, *program.example_inputs)


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


class _RealParts:
    """The complex values of a module, and the nodes of their parts."""

    def __init__(self, module: GraphModule) -> None:
        self._module, self._graph = module, module.graph
        self._parts: dict[Node, _Pair] = {}
        self._replaced: list[Node] = []

    def replace(self) -> None:
        for node in list(self._graph.nodes):
            complex_operands = [each for each in node.all_input_nodes if _is_complex(each)]
            if node.op != "call_function" or not (complex_operands or _is_complex(node)):
                continue
            is_kept = all(each.op == "call_function" and each not in self._parts for each in complex_operands)
            if complex_operands and is_kept and node.target is _ATEN.view_as_real.default:
                continue
            if not self._decompose(node):
                self._join(node, [each for each in complex_operands if each in self._parts])
        for node in reversed(self._replaced):
            if not node.users:
                self._graph.erase_node(node)
        for node in self._graph.find_nodes(op="get_attr"):
            if node in self._parts and not node.users:
                self._graph.erase_node(node)
                owner, _, name = str(node.target).rpartition(".")
                delattr(self._module.get_submodule(owner), name)
        self._module.recompile()

    def _decompose(self, node: Node) -> bool:
        """Inserts the calls of the parts before a node; returns False if torch cannot decompose the node."""
        operands = list(dict.fromkeys(node.all_input_nodes))
        try:
            traced = make_fx(lambda *given: _flat(_computed(node, operands, given)))(*_stand_ins(operands))
        except Exception:  # of any type: torch has no decomposition of this call
            return False
        given = [each for operand in operands for each in self._of(operand)]
        with self._graph.inserting_before(node):
            results = self._spliced(traced, given, node)
        if _is_complex(node):
            self._parts[node] = results[0], results[1]
        else:
            node.replace_all_uses_with(results[0])
        self._replaced.append(node)
        return True

    def _of(self, operand: Node) -> tuple[Node, ...]:
        """Returns the nodes of the parts of an operand, or the operand itself if it is real."""
        if not _is_complex(operand):
            return (operand,)
        if operand not in self._parts:
            self._parts[operand] = self._taken_apart(operand)
        return self._parts[operand]

    def _taken_apart(self, operand: Node) -> _Pair:
        if operand.op == "get_attr":
            owner, _, name = str(operand.target).rpartition(".")
            value = getattr(self._module.get_submodule(owner), name).resolve_conj()
            with self._graph.inserting_after(operand):
                made = [self._constant(part) for part in (value.real, value.imag)]
        else:
            with self._graph.inserting_after(operand):
                pair = self._called(_ATEN.view_as_real.default, (operand,), operand)
            with self._graph.inserting_after(pair):
                made = [self._called(_ATEN.select.int, (pair, -1, part), operand) for part in (0, 1)]
        return made[0], made[1]

    def _constant(self, tensor: torch.Tensor) -> Node:
        name = f"_part{sum(1 for _ in self._module.named_buffers())}"
        own = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._module.register_buffer(name, own, persistent=False)
        made = self._graph.get_attr(name)
        made.meta["val"] = own
        return made

    def _called(self, target: Any, args: tuple[Any, ...], like: Node) -> Node:
        made = self._graph.call_function(target, args)
        made.meta = {**like.meta, "val": target(*map_arg(args, lambda each: each.meta["val"]))}
        return made

    def _spliced(self, traced: GraphModule, given: list[Node], node: Node) -> list[Node]:
        """Copies traced calls in front of a node. Calls that depend on numbers alone are computed now."""
        for each in reversed(traced.graph.nodes):
            if each.op == "call_function" and not each.users:
                traced.graph.erase_node(each)
        made: dict[Node, Node] = {}
        constants: dict[Node, torch.Tensor] = {}
        placeholders = iter(given)

        def copied(each: Node) -> Node:
            if each not in made:
                made[each] = self._constant(constants[each])
            return made[each]

        for each in traced.graph.nodes:
            if each.op == "placeholder":
                made[each] = next(placeholders)
            elif each.op == "get_attr":
                constants[each] = getattr(traced, str(each.target))
            elif each.op == "call_function" and all(operand in constants for operand in each.all_input_nodes):
                args, kwargs = map_arg((each.args, each.kwargs), constants.__getitem__)
                constants[each] = each.target(*args, **kwargs)
            elif each.op == "call_function" and each.target in _SAME:
                made[each] = made[each.all_input_nodes[0]]
            elif each.op == "call_function":
                made[each] = self._graph.node_copy(each, copied)
                made[each].meta = {**node.meta, "val": each.meta["val"]}
        (output,) = traced.graph.find_nodes(op="output")
        return [copied(each) for each in output.all_input_nodes]

    def _join(self, node: Node, operands: list[Node]) -> None:
        """Joins the parts of the operands again for a call that stays complex."""
        for operand in operands:
            with self._graph.inserting_before(node):
                whole = self._graph.call_function(_ATEN.complex.default, self._parts[operand])
            whole.meta = dict(operand.meta)
            node.replace_input_with(operand, whole)


def _stand_ins(operands: list[Node]) -> Iterator[torch.Tensor]:
    for operand in operands:
        value = operand.meta["val"]
        real = value.real.dtype if value.is_complex() else value.dtype
        for _ in range(2 if value.is_complex() else 1):
            yield torch.zeros(tuple(map(int, value.shape)), dtype=real)


def _computed(node: Node, operands: list[Node], given: tuple[torch.Tensor, ...]) -> Any:
    """Computes a call with pairs in place of complex tensors."""
    parts = iter(given)
    values: dict[Node, Any] = {
        each: ComplexTensor(next(parts), next(parts)) if _is_complex(each) else next(parts)
        for each in operands
    }
    if not any(map(_is_complex, operands)):
        if node.target in _MADE_OF_REAL:
            return _MADE_OF_REAL[node.target](*(values[each] for each in operands))
        values = {key: ComplexTensor(value, torch.zeros_like(value)) for key, value in values.items()}
    elif node.target in _TAKEN_APART:
        return _TAKEN_APART[node.target](values[operands[0]])
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _flat(result: Any) -> list[torch.Tensor]:
    return [result.re, result.im] if isinstance(result, ComplexTensor) else [result]
