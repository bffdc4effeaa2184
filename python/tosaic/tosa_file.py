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

    The format has no nested signature. A call of the program passes inputs by position or by name, with the
    physical shapes and the dtypes of the file, and returns several outputs as a tuple. Variables are states
    of the program. A valid construct that tosaic itself writes differently is read with a remark in
    `Program.diagnostics`.

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        The file is malformed or truncated, or has another version of the format.
    UnsupportedOp
        An operator is not in TOSA 1.0, or an operand that tosaic needs as a constant is computed by the
        program.
    """
    from tosaic.diagnostics import Diagnostic

    file = file_path("load", path)
    graph, notes = _core.deserialize_with_notes(read_bytes("load", file))
    return Program(graph, diagnostics=[Diagnostic(rule, message, name) for rule, message, name in notes])
