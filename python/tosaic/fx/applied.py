"""What is said, and told, when a layout is applied to a program of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tosaic.border_orders import Form
from tosaic.layout import Layout

if TYPE_CHECKING:
    import torch

__all__ = ["AppliedLayout", "Conversion", "Convert", "Unmet"]

_Order = tuple[int, ...]


@dataclass(frozen=True)
class Convert:
    """A border that stays as traced, with an explicit conversion to or from another order inside the program.

    Attributes
    ----------
    order : str or sequence of int
        ``channels_last``, ``contiguous`` or a dim order: of an input behind the conversion, of an output in
        front of it.
    """

    order: Form


@dataclass(frozen=True)
class Conversion:
    """A conversion that was inserted.

    Attributes
    ----------
    node : str
        Its name in the new program.
    value : str
        The node that it converts.
    from_order, to_order : tuple of int
        Logical axes, outermost first.
    read_by : tuple of str
        Nodes that read it, ``output`` among them.
    """

    node: str
    value: str
    from_order: _Order
    to_order: _Order
    read_by: tuple[str, ...]


@dataclass(frozen=True)
class Unmet:
    """An order that the dialect of the program cannot ask for: the reader takes the value as it is.

    Attributes
    ----------
    value, reader : str
        Nodes.
    order : tuple of int
        That the reader was planned to read in.
    """

    value: str
    reader: str
    order: _Order


@dataclass(frozen=True)
class AppliedLayout:
    """A program with a layout, and what was done to it.

    Attributes
    ----------
    program : torch.export.ExportedProgram
        A new one; weights are shared with the one it was made from, but for those that were laid anew.
    layout : Layout
        The plan, with its proof.
    orders : dict of str to tuple
        By node of the program, the dim order of its planned result; of several, a tuple of them (None: not
        planned).
    changed : tuple of str
        Nodes whose ``meta["val"]`` has other strides than before.
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
