"""The bridge to torch: the only folder that imports it, and not before it is asked to.

`from_exported` reads a ``torch.export.ExportedProgram`` into a `Graph` and a `Signature`; the signature works
without torch afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic.fx.signature import Signature, Tree

if TYPE_CHECKING:
    from tosaic.fx.importer import Imported

__all__ = ["Signature", "Tree", "from_exported"]


def from_exported(ep: Any, *, bind: Any = None, method: str = "forward") -> Imported:
    """Read an exported program, one FX call to one node, at stage ``exported``.

    Parameters
    ----------
    ep : torch.export.ExportedProgram
        Decomposed or not, strict or not, training or inference form, ExecuTorch edge dialect or plain ATen.
    bind : mapping or example inputs, optional
        Sizes of symbolic dimensions: ``{"x": {0: 1}}`` by input name (or index) and axis, or example inputs:
        a tuple of positional arguments, ``(args, kwargs)``, or a dict of arrays by input name.
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
