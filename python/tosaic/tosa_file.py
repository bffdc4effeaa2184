"""Reading `.tosa` files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic import _core
from tosaic.options import checked, file_path
from tosaic.program import Program
from tosaic.reading import read_bytes

if TYPE_CHECKING:
    import os

__all__ = ["load_tosa"]


@checked
def load_tosa(path: str | os.PathLike[str]) -> Program:
    """Reads a ``.tosa`` file into a program at stage ``tosa``.

    The format keeps no nested signature: inputs are given by position or by name, in the physical shapes and
    dtypes of the file, and several outputs come as a tuple. Variables are the program's states. What the file
    says in another way than ours is read all the same, with a remark in `Program.diagnostics`.

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to read it.
    InvalidGraph
        Malformed, truncated, or another version of the format.
    UnsupportedOp
        An operator outside TOSA 1.0, or constant operands that the program computes.
    """
    from tosaic.fx.diagnostics import Diagnostic

    file = file_path("load", path)
    graph, notes = _core.deserialize_with_notes(read_bytes("load", file))
    return Program(graph, diagnostics=[Diagnostic(rule, message, name) for rule, message, name in notes])
