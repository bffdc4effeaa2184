"""The operators of a ``.tosa`` file in its order: `file_operators`.

A graph that is read from a file has its nodes in another order, and its constants are not nodes. Tools name
operators by their index in the file, so the operators' lists of names are read here. The tables of a
flatbuffer begin with the distance to a table of the places of their fields::

    TosaGraph.regions[i].blocks[i].operators[i].inputs, .outputs     field 1, 1, 1, 3 and 4 of the tables
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["FileOperator", "file_operators"]

_REGIONS = _BLOCKS = _OPERATORS = 1
_INPUTS, _OUTPUTS = 3, 4


@dataclass(frozen=True)
class FileOperator:
    """An operator of a file.

    Attributes
    ----------
    inputs, outputs : tuple of str
        Names of tensors.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def file_operators(tosa: bytes) -> tuple[FileOperator, ...] | None:
    """Returns the operators of the one block of a file.

    Parameters
    ----------
    tosa : bytes
        A file that the reader of tosaic has read, which checks all places in it.

    Returns
    -------
    tuple of FileOperator or None
        None: the file has several blocks, so an index is ambiguous.
    """
    root = struct.unpack_from("<I", tosa)[0]
    blocks = [block for region in _tables(tosa, root, _REGIONS) for block in _tables(tosa, region, _BLOCKS)]
    if len(blocks) != 1:
        return None
    return tuple(
        FileOperator(tuple(_texts(tosa, operator, _INPUTS)), tuple(_texts(tosa, operator, _OUTPUTS)))
        for operator in _tables(tosa, blocks[0], _OPERATORS)
    )


def _tables(data: bytes, table: int, field: int) -> Iterator[int]:
    """Yields the places of the entries of the list in a field of a table."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, fields)[0]
    at = 4 + 2 * field
    place = struct.unpack_from("<H", data, fields + at)[0] if at < size else 0
    if place:
        entries = table + place
        entries += struct.unpack_from("<I", data, entries)[0]
        for i in range(struct.unpack_from("<I", data, entries)[0]):
            entry = entries + 4 + 4 * i
            yield entry + struct.unpack_from("<I", data, entry)[0]


def _texts(data: bytes, table: int, field: int) -> Iterator[str]:
    for place in _tables(data, table, field):
        size = struct.unpack_from("<I", data, place)[0]
        yield data[place + 4 : place + 4 + size].decode("utf-8", errors="replace")
