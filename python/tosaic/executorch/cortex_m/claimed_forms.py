"""Rewrites claimed calls into forms from which ExecuTorch's passes can make kernels of Cortex-M.

::

    split ─▶ getitem ─▶ quantize             slice ─▶ quantize
    dequantize(s) ─▶ mul(c) ─▶ quantize(s * c)     the same integers, with scale s * c
    dequantize(s) ─▶ div(c) ─▶ quantize(t)         dequantize(s) ─▶ mul(dequantize(1, 1 / c)) ─▶ quantize(t)

The passes support no call with several results. They multiply only integers by integers, so a number becomes
the integer 1 or -1 with a scale. A product that only changes the scale needs no kernel. The transpose kernel
has at most four axes, so axes of extent 1 are dropped, and axes that stay adjacent are merged.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

from tosaic.executorch.cortex_m.call_marks import call_of, is_claimed
from tosaic.fx.io.quantize_calls import arguments_of, is_dequantize, is_quantize, schema_of

MOST_TRANSPOSED = 4
"""The most axes of the transpose kernel."""

_SPLITS = frozenset(("aten::split_with_sizes_copy", "aten::split_copy", "aten::unbind_copy"))
_PRODUCTS = frozenset(("aten::mul", "aten::div"))


@dataclass(frozen=True)
class Factor:
    """A product or quotient by a number.

    Attributes
    ----------
    operand : int
        The operand that is multiplied.
    number : float
        The factor of the operand.
    keeps_integers : bool
        True if the product only changes the scale, and its integers are those of the operand.
    """

    operand: int
    number: float
    keeps_integers: bool


# ---- splits ----


def with_slices(graph: Graph, operators: Any) -> None:
    """Replaces claimed calls that return several parts of a tensor by slices.

    Parameters
    ----------
    graph : Graph
        The graph of an edge program, with marks. The function changes it.
    operators : object
        The operators of ``aten`` in the dialect of the program.
    """
    for node in list(graph.nodes):
        schema = schema_of(node) if node.op == "call_function" else None
        if schema is not None and schema.name in _SPLITS and is_claimed(node.meta):
            _make_slices(node, operators)


def _make_slices(split: Node, operators: Any) -> None:
    source = split.args[0]
    assert isinstance(source, Node)
    dim = int(arguments_of(split).get("dim", 0))
    begin, is_unbind = 0, schema_of(split).name == "aten::unbind_copy"
    parts = {user.args[1]: user for user in split.users}
    for index, value in enumerate(split.meta["val"]):
        end = begin + (1 if is_unbind else value.shape[dim])
        part = parts.get(index)
        if part is not None:
            with split.graph.inserting_before(part):
                if is_unbind:
                    made = split.graph.call_function(operators.select_copy.int, (source, dim, index))
                else:
                    made = split.graph.call_function(operators.slice_copy.Tensor, (source, dim, begin, end))
            made.meta = {**copy.copy(split.meta), "val": value}
            part.replace_all_uses_with(made)
            split.graph.erase_node(part)
        begin = end
    if not split.users:
        split.graph.erase_node(split)


# ---- permutations ----


def with_small_permutations(graph: Graph, operators: Any) -> None:
    """Rewrites claimed permutations of many axes, between views, to as few axes as possible."""
    for node in list(graph.nodes):
        schema = schema_of(node) if node.op == "call_function" else None
        if schema is None or schema.name != "aten::permute_copy" or not is_claimed(node.meta):
            continue
        source, order = node.args
        assert isinstance(source, Node)
        shape = tuple(source.meta["val"].shape)
        if len(shape) > MOST_TRANSPOSED and all(isinstance(extent, int) for extent in shape):
            _make_small(
                node, source, small_permutation(shape, [each % len(shape) for each in order]), operators
            )


def small_permutation(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns a shape and a permutation of fewer axes that move the elements in the same way.

    Examples
    --------
    >>> small_permutation((1, 6, 2, 3, 16), (3, 1, 2, 0, 4))
    ([12, 3, 16], [1, 0, 2])
    """
    groups: list[list[int]] = []
    for axis in order:
        if shape[axis] == 1:
            continue
        between = range(groups[-1][-1] + 1, axis) if groups and axis > groups[-1][-1] else None
        if between is not None and all(shape[each] == 1 for each in between):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    ranked = sorted(groups)
    extents = [math.prod(shape[axis] for axis in group) for group in ranked]
    return extents or [1], [ranked.index(group) for group in groups] or [0]


def _make_small(node: Node, source: Node, small: tuple[list[int], list[int]], operators: Any) -> None:
    extents, order = small
    value = source.meta["val"]
    with node.graph.inserting_before(node):
        merged = node.graph.call_function(operators.view_copy.default, (source, extents))
        merged.meta = {**copy.copy(node.meta), "val": value.new_empty(extents)}
        moved = node.graph.call_function(operators.permute_copy.default, (merged, order))
        moved.meta = {**copy.copy(node.meta), "val": value.new_empty([extents[axis] for axis in order])}
        shape = list(node.meta["val"].shape)
        parted = node.graph.call_function(operators.view_copy.default, (moved, shape))
        parted.meta = copy.copy(node.meta)
    node.replace_all_uses_with(parted)
    node.graph.erase_node(node)


# ---- products ----


def without_factors(
    program: ExportedProgram,
    graph: Graph,
    factors: Mapping[str, Factor],
    product: Any,
    dequantize: Any,
    constant: Any,
) -> list[str]:
    """Rewrites the claimed products and quotients by numbers.

    Parameters
    ----------
    program : ExportedProgram
        The program, which gets new constants.
    graph : Graph
        The graph of the program. The function changes it.
    factors : mapping of str to Factor
        By name of a call.
    product, dequantize : object
        Operators in the dialect of the program.
    constant : callable
        ``create_constant_placeholder`` of ExecuTorch.

    Returns
    -------
    list of str
        The calls that only changed a scale, and were removed.
    """
    gone: list[str] = []
    for node in list(graph.nodes):
        schema = schema_of(node) if node.op == "call_function" else None
        call = call_of(node.meta)
        if schema is None or schema.name not in _PRODUCTS or not is_claimed(node.meta):
            continue
        if call is None or call not in factors:
            continue
        factor = factors[call]
        data = node.args[factor.operand]
        if not isinstance(data, Node) or not is_dequantize(data) or not all(map(is_quantize, node.users)):
            continue
        if factor.keeps_integers:
            for quantize in list(node.users):
                quantize.replace_all_uses_with(data.args[0])
                graph.erase_node(quantize)
            graph.erase_node(node)
            gone.append(call)
        else:
            _multiply_by_integers(program, node, data, factor, product, dequantize, constant)
    graph.eliminate_dead_code()
    return gone


def _multiply_by_integers(
    program: ExportedProgram,
    node: Node,
    data: Node,
    factor: Factor,
    product: Any,
    dequantize: Any,
    constant: Any,
) -> None:
    graph = node.graph
    shape = tuple(node.meta["val"].shape)
    sign = 1 if factor.number > 0 else -1
    elements = torch.full(shape, sign, dtype=torch.int8)
    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        integers = constant(program, graph, f"{node.name}_factor", InputKind.CONSTANT_TENSOR, elements)
    with graph.inserting_before(node):
        floats = graph.call_function(dequantize, (integers, abs(factor.number), 0, -128, 127, torch.int8))
        made = graph.call_function(product, (data, floats))
    floats.meta["val"] = node.meta["val"]
    made.meta = copy.copy(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
