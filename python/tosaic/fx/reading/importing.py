"""Imports a torch ``ExportedProgram``: makes the casts of autocast explicit, then reads the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tosaic.base.process import collection_paused
from tosaic.fx.reading.explicit_dtypes import with_explicit_dtypes
from tosaic.fx.reading.exported_program import ImportedProgram, read_program
from tosaic.ports.foreign import ForeignOp


def import_program(ep: Any, *, bind: Any, method: str, operators: Mapping[str, ForeignOp]) -> ImportedProgram:
    """See `tosaic.fx.from_exported`; `operators` are by target."""
    explicit = with_explicit_dtypes(ep)
    with collection_paused():  # temporary values are freed before the collector runs again
        return read_program(explicit, bind=bind, method=method, operators=operators).imported
