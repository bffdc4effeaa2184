"""Memory orders that a caller declares for the tensors which enter and leave delegates.

    "channels_last"                         images: tensors of rank 4, except for sampling grids
    (0, 2, 3, 1)                            all tensors of rank 4
    {"grid": "contiguous", "*": ...}        one tensor, and all others
    "any"                                   the delegate computes in any order: nothing is converted for it

The grid of a sampler also has rank 4, but its axes are N, H, W and the coordinates: it is not an image. A
value is a grid if a sampler reads it as its grid, directly or through calls that keep the axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch.fx import Graph, Node

from tosaic.base.options import invalid, shown
from tosaic.fx.io.quantize_calls import arguments_of, is_conversion, operator_of, schema_of
from tosaic.fx.io.user_ports import user_ports

CHANNELS_LAST = (0, 2, 3, 1)
ANY: Literal["any"] = "any"
OTHERS = "*"
"""The key of the entry for all tensors without their own entry."""
GRID = "tosaic_sampling_grid"
"""Key of the metadata of a grid, because its sampler may be in a delegate when the borders are checked."""

Order: TypeAlias = tuple[int, ...]
Wanted: TypeAlias = Order | Literal["any"] | None

_COPIES = (
    "aten::clone",
    "aten::_to_copy",
    "dim_order_ops::_clone_dim_order",
    "dim_order_ops::_to_dim_order_copy",
)
_KEEP_AXES = frozenset(
    (
        "aten::slice",
        "aten::slice_copy",
        "aten::cat",
        "aten::flip",
        "aten::roll",
        "aten::constant_pad_nd",
        *_COPIES,
    )
)


@dataclass(frozen=True)
class Declared:
    """The declared orders of the tensors on one side.

    Attributes
    ----------
    orders : tuple of tuple of int, or None
        At most one dim order for each rank. A tensor of another rank has the order that the program gives it.
        None: row-major at every rank.
    images : bool
        The orders apply to images only, and not to grids of samplers.
    is_any : bool
        The delegate accepts and returns every order.
    tensors : tuple of pair
        The name and the order of each tensor with its own entry.
    """

    orders: tuple[Order, ...] | None = ()
    images: bool = False
    is_any: bool = False
    tensors: tuple[tuple[str | int, Declared], ...] = ()

    def of(self, rank: int, *, is_grid: bool) -> Wanted:
        """Returns the order of a tensor without its own entry."""
        if self.is_any:
            return ANY
        if self.orders is None:
            return tuple(range(rank))
        if self.images and is_grid:
            return None
        return next((order for order in self.orders if len(order) == rank), None)


@dataclass(frozen=True)
class BorderOrders:
    """The declared orders of a delegate's inputs and outputs."""

    inputs: Declared = Declared()
    outputs: Declared = Declared()

    def in_program(self, program: Any) -> Borders:
        """Returns the orders of the tensors of an exported program."""
        return Borders(self, _Names(program), {node.name for node in grids_of(program.graph)})


@dataclass
class Borders:
    """The declared orders of one program's tensors, by name, so that they also hold for copies of its graph.

    Attributes
    ----------
    declared : BorderOrders
    """

    declared: BorderOrders
    _names: _Names
    _grids: set[str]
    _used: set[tuple[str, str | int]] = field(default_factory=set)
    _seen: dict[str, dict[str, None]] = field(default_factory=lambda: {"input": {}, "output": {}})

    def of(self, side: str, node: Node) -> Wanted:
        """Returns the declared order of a tensor at a border; None if it may have the program's order."""
        declared = self.declared.inputs if side == "input" else self.declared.outputs
        names = self._names.of(side, node)
        self._seen[side].update(dict.fromkeys(str(each) for each in names[:1]))
        for key, own in declared.tensors:
            if key in names:
                self._used.add((side, key))
                declared = own
                break
        is_grid = node.name in self._grids or bool(node.meta.get(GRID))
        return declared.of(node.meta["val"].dim(), is_grid=is_grid)

    def require_used(self, where: str) -> None:
        """Raises InvalidGraph for an entry whose tensor enters (or leaves) no delegate."""
        for side, declared in (("input", self.declared.inputs), ("output", self.declared.outputs)):
            for key, _ in declared.tensors:
                if (side, key) in self._used:
                    continue
                raise invalid(
                    where,
                    f"an entry of 'orders' names no {side} of a delegate",
                    expected=f"a path or index of the user's {side}s, {OTHERS!r}, or the name of a node: "
                    f"one of {', '.join(map(repr, self._seen[side]))}",
                    got=shown(key),
                )


class _Names:
    """The names by which a caller may refer to a tensor at a border."""

    def __init__(self, program: Any) -> None:
        ports = user_ports(program)
        self._inputs = {port.node.name: (port.path, i) for i, port in enumerate(ports.inputs)}
        self._outputs: dict[str, list[str | int]] = {}
        for i, port in enumerate(ports.outputs):
            for node in _behind_conversions(port.node):
                self._outputs.setdefault(node.name, []).extend((port.path, i))

    def of(self, side: str, node: Node) -> list[str | int]:
        """Returns the names of a tensor, with the preferred name first."""
        chain = list(_behind_conversions(node))
        nodes: list[str | int] = [each.name for each in chain]
        if side == "input":
            return [*self._inputs.get(chain[-1].name, ()), *nodes]
        return [*dict.fromkeys(key for each in chain for key in self._outputs.get(each.name, ())), *nodes]


def _behind_conversions(node: Node) -> Iterator[Node]:
    """Yields a node, and then each node of which it is a quantized, dequantized or reordered copy."""
    yield node
    while _is_conversion(node):
        node = node.args[0]  # type: ignore[assignment]
        yield node


def _is_conversion(node: Node) -> bool:
    schema = schema_of(node) if node.op == "call_function" else None
    is_copy = schema is not None and schema.name in _COPIES
    return (is_copy or is_conversion(node)) and isinstance(node.args[0], Node)


def grids_of(graph: Graph) -> set[Node]:
    """Returns the tensors of rank 4 that are grids of samplers, and not images."""
    neighbours: dict[Node, list[Node]] = {}
    found: list[Node] = []
    for node in graph.nodes:
        schema = schema_of(node) if node.op == "call_function" else None
        if schema is None:
            continue
        if schema.name.startswith("aten::grid_sampler"):
            grid = arguments_of(node)["grid"]
            found += [grid] if isinstance(grid, Node) and _is_of_rank_4(grid) else []
        elif schema.name == "aten::affine_grid_generator":
            found += [node] if _is_of_rank_4(node) else []
        elif _is_of_rank_4(node) and _keeps_axes(node):
            for operand in filter(_is_of_rank_4, node.all_input_nodes):
                neighbours.setdefault(node, []).append(operand)
                neighbours.setdefault(operand, []).append(node)
    grids: set[Node] = set()
    while found:
        node = found.pop()
        if node not in grids:
            grids.add(node)
            found += neighbours.get(node, [])
    return grids


def _is_of_rank_4(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 4


def _keeps_axes(node: Node) -> bool:
    """True if each axis of the result has the same meaning as in the operands."""
    operator = operator_of(node)
    is_elementwise = operator is not None and torch.Tag.pointwise in operator.tags
    return is_elementwise or schema_of(node).name in _KEEP_AXES or is_conversion(node)
