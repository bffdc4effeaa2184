"""Reading `.tosa` files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic import _core
from tosaic.options import checked, file_path
from tosaic.program import Program

if TYPE_CHECKING:
    import os

__all__ = ["load_tosa"]


@checked
def load_tosa(path: str | os.PathLike[str]) -> Program:
    """Reads a ``.tosa`` file into a program at stage ``tosa``.

    The format keeps no nested signature: inputs are given by position or by name, in the physical shapes and
    dtypes of the file, and several outputs come as a tuple. Variables are the program's states.

    Raises
    ------
    InvalidGraph
        Malformed, truncated, or another version of the format.
    UnsupportedOp
        An operator outside TOSA 1.0, or constant operands that the program computes.
    """
    return Program(_core.deserialize(file_path("load", path).read_bytes()))
