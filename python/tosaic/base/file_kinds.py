"""Kinds of files that contain programs, by their suffix.

`tosaic.opening.sources.READERS` has the reader of each kind. Graph text and archives have any other suffix,
and are distinguished by their first bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileKind:
    """Files of one suffix.

    Attributes
    ----------
    suffix : str
        The suffix with its dot.
    has_symbols : bool
        Dimensions of a program in such a file may be symbolic: `bind` gives them sizes.
    """

    suffix: str
    has_symbols: bool = False

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """True for the path of such a file."""
        return Path(path).suffix == self.suffix


PT2 = FileKind(".pt2", has_symbols=True)
TOSA = FileKind(".tosa")
PTE = FileKind(".pte")
ARCHIVE = FileKind(".tosaic")
