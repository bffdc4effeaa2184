"""The options and results of applying a layout to a torch program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tosaic.lowering.layout import Layout
from tosaic.ports.boundary_orders import Form

if TYPE_CHECKING:
    import torch

_Order = tuple[int, ...]


@dataclass(frozen=True)
class Convert:
    """An input or output whose memory order stays as traced, while the program computes in another order.

    A call inside of the program converts the input, or the result before it is returned.

    Attributes
    ----------
    order : str or sequence of int
        ``channels_last``, ``contiguous`` or a dim order: the order after the conversion of an input, or
        before the conversion of an output.
    """

    order: Form


@dataclass(frozen=True)
class Conversion:
    """A conversion that was inserted.

    Attributes
    ----------
    node : str
        The name of the conversion in the new program.
    value : str
        The node whose value it converts.
    from_order, to_order : tuple of int
        Dim orders: logical axes, outermost first.
    read_by : tuple of str
        The nodes that read the conversion, possibly including ``output``.
    """

    node: str
    value: str
    from_order: _Order
    to_order: _Order
    read_by: tuple[str, ...]


@dataclass(frozen=True)
class Unmet:
    """A planned order that the program's dialect cannot express: the reader reads the value unconverted.

    Attributes
    ----------
    value, reader : str
        Names of nodes.
    order : tuple of int
        The order in which the plan has the reader read the value.
    """

    value: str
    reader: str
    order: _Order


@dataclass(frozen=True)
class AppliedLayout:
    """A program with a layout, and what was changed.

    Attributes
    ----------
    program : torch.export.ExportedProgram
        A new program. It shares weights with the given program, except those that were stored in another
        order.
    layout : Layout
        The plan, with the proof of its cost.
    orders : dict of str to tuple
        By node of the program, the planned dim order of its result. For several results, a tuple with one
        entry each, which is None for a result without a planned order.
    changed : tuple of str
        Nodes whose strides in ``meta["val"]`` differ from those in the given program.
    conversions : tuple of Conversion
        In the order of the graph.
    unmet : tuple of Unmet
    """

    program: torch.export.ExportedProgram
    layout: Layout
    orders: dict[str, Any]
    changed: tuple[str, ...]
    conversions: tuple[Conversion, ...]
    unmet: tuple[Unmet, ...]
