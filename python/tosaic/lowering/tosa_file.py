"""Reading `.tosa` files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic import _core
from tosaic.base.options import checked, file_path
from tosaic.base.reading import read_bytes
from tosaic.program.program import Program

if TYPE_CHECKING:
    import os


@checked
def load_tosa(path: str | os.PathLike[str], *, sidecar: bool = True) -> Program:
    """Reads a ``.tosa`` file into a program at stage ``tosa``.

    If the file has a sidecar (``m.tosa.json``, which ``Lowered.save(..., sidecar=True)`` writes), the program
    has the signature of the program that was lowered: `Program.run` takes the caller's arrays, as
    `Lowered.run` does, and refuses those with another shape, dtype or memory order.

    The format itself has no nested signature. Without a sidecar, a call of the program passes inputs by
    position or by name, with the physical shapes and the dtypes of the file, and returns several outputs as a
    tuple. Variables are states of the program. A valid construct that tosaic itself writes differently is
    read with a remark in `Program.diagnostics`.

    Parameters
    ----------
    path : path
    sidecar : bool
        Use the sidecar, if there is one.

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        The file is malformed or truncated, or has another version of the format. Or its sidecar is damaged,
        has another version, or belongs to another file.
    UnsupportedOp
        An operator is not in TOSA 1.0, or an operand that tosaic needs as a constant is computed by the
        program.
    """
    from tosaic.base.diagnostics import Diagnostic

    file = file_path("load", path)
    data = read_bytes("load", file)
    graph, notes = _core.deserialize_with_notes(data)
    diagnostics = [Diagnostic(rule, message, name) for rule, message, name in notes]
    if sidecar:
        from tosaic.lowering.sidecar import apply_sidecar, read_sidecar

        fields = read_sidecar("load", file, data)
        if fields is not None:
            return apply_sidecar(graph, fields, diagnostics)
    return Program(graph, diagnostics=diagnostics)
