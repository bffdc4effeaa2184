"""The bridge to torch: the only folder that imports it, and not before it is asked to.

`from_exported` reads a ``torch.export.ExportedProgram`` into a `Graph` and a `Signature`; the signature works
without torch afterwards. `apply_layout` brings a layout plan back to such a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tosaic.border_orders import Form
from tosaic.fx.applied import AppliedLayout, Conversion, Convert, Unmet
from tosaic.fx.signature import Signature, Tree
from tosaic.layout import Objective
from tosaic.options import checked

if TYPE_CHECKING:
    from tosaic.fx.importer import Imported

__all__ = [
    "AppliedLayout",
    "Conversion",
    "Convert",
    "Signature",
    "Tree",
    "Unmet",
    "apply_layout",
    "from_exported",
]


@checked
def from_exported(ep: Any, *, bind: Any = None, method: str = "forward") -> Imported:
    """Read an exported program, one FX call to one node, at stage ``exported``.

    Parameters
    ----------
    ep : torch.export.ExportedProgram
        Decomposed or not, strict or not, training or inference form, ExecuTorch edge dialect or plain ATen.
    bind : mapping or example inputs, optional
        Sizes of symbolic dimensions: ``{"x": {0: 1}}`` by input (path, name, index) and axis, or example
        inputs: a tuple of positional arguments, ``(args, kwargs)``, or a dict of arrays by input name.
    method : str
        Name of the graph.

    Returns
    -------
    Imported
        The graph, its signature and the diagnostics of the import.

    Raises
    ------
    InvalidGraph
        The program contradicts itself or the sizes it is bound to.
    UnsupportedOp
        A dimension is left unbound, or the program mutates memory that another live value shares.
    """
    from tosaic.fx.importer import import_program

    return import_program(ep, bind=bind, method=method)


@checked
def apply_layout(
    ep: Any,
    *,
    mode: Literal["annotate", "convert"] = "annotate",
    orders: Mapping[str, Form | Convert | Mapping[str | int, Form | Convert]] | None = None,
    weights: bool = False,
    objective: Objective = "bytes",
    bind: Any = None,
) -> AppliedLayout:
    """Plan the dim orders of an exported program and write them into a copy of it.

    Parameters
    ----------
    ep : torch.export.ExportedProgram
        Plain ATen or ExecuTorch's edge dialect, float or quantized. It is not changed.
    mode : str
        ``annotate``: ``meta["val"]`` of every call is given strides of its planned dim order; no call is
        added. ``convert``: dim-order conversions are inserted where a call reads an operand in another order
        than it has, ``aten.clone`` with a memory format, or ``dim_order_ops._clone_dim_order`` in an edge
        program; ``meta["val"]`` is what torch computes.
    orders : mapping, optional
        How tensors lie at the border, of ``inputs`` and ``outputs``: one entry for all of rank 3 to 5, or
        entries by name or index. ``traced`` (the default), ``channels_last``, ``contiguous`` or a tuple of
        axes declares the border: the caller's tensors lie so. `Convert` of one of these leaves the border as
        traced and converts inside the program. The grid of a grid sampler keeps its coordinates innermost.
    weights : bool
        Also lay weights in the order that their readers want: the new program holds copies of them.
    objective : {"bytes", "count"} or callable
        What the plan makes least, as in `tosaic.lower`.
    bind : mapping or example inputs, optional
        Sizes of symbolic dimensions that the plan is made for, as in `from_exported`; shapes stay symbolic.

    Returns
    -------
    AppliedLayout
        The new program, the plan, and what was changed and inserted.

    Raises
    ------
    InvalidGraph
        An unknown mode, objective, entry, name, index or order, or a program that contradicts itself.
    LayoutMismatch
        A call that addresses memory by strides would find other memory, a border is asked for in an order
        that the dialect has no conversion to, or a grid or ``nhwc`` is asked for.
    UnsupportedOp
        A program that writes in place, where conversions are to be inserted.

    Examples
    --------
    >>> import torch
    >>> from tosaic.fx import apply_layout
    >>> ep = torch.export.export(torch.nn.Conv2d(3, 4, 3).eval(), (torch.randn(1, 3, 8, 8),))
    >>> [(c.value, c.to_order) for c in apply_layout(ep, mode="convert").conversions]
    [('input', (0, 2, 3, 1)), ('conv2d', (0, 1, 2, 3))]
    """
    from tosaic.fx.layouts import apply_program_layout

    return apply_program_layout(ep, mode=mode, orders=orders, weights=weights, objective=objective, bind=bind)
