"""Damaged `.pt2` files, and what a user does with what can be read of them.

Half of the mutations change the JSON of the program or of the weights: a value is replaced by one of another
type, by a hostile number or by another value of the file, or is removed. The others hit the bytes of the
archive: its index, its headers and its entries.
"""

from __future__ import annotations

import copy
import io
import json
import random
import tempfile
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tosaic
from tosa_files.mutating import mutate
from tosaic.base.dtypes import NUMPY
from tosaic.pt2.program import read_pt2

from pt2.modules import MODULES, saved

__all__ = ["SOURCES", "damaged", "drive", "source"]

SOURCES = ("linear", "channels last", "states", "nested", "branches", "in place", "split", "shared storage")
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    1 << 31,
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63),
    10**40,
    1.5,
    "",
    "NaN",
    "../x",
    "\x00",
    "\ud800",
    [],
    {},
    [[]],
    {"as_int": -1},
    {"as_int": 1 << 62},
    {"as_none": True},
    {"as_tensor": {"name": "x"}},
    {"as_expr": {"expr_str": "Symbol('s0')", "hint": None}},
)
_MOST_ELEMENTS = 1 << 16  # larger programs are not run
_RUN_EVERY = 8


@cache
def source(name: str) -> bytes:
    """Returns the undamaged file."""
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        saved(MODULES[name](), Path(folder) / "m.pt2")
        return (Path(folder) / "m.pt2").read_bytes()


@cache
def _entries(name: str) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(source(name))) as archive:
        return {entry: archive.read(entry) for entry in archive.namelist()}


@cache
def _document(name: str, entry: str) -> Any:
    return json.loads(_entries(name)[entry])


def damaged(seed: int) -> bytes:
    """Returns a file with one to four mutations."""
    rng = random.Random(seed)
    name = rng.choice(SOURCES)
    if rng.randrange(2):
        data = bytearray(source(name))
        for _ in range(rng.randrange(1, 5)):
            mutate(rng, data)
        return bytes(data)
    entry = rng.choice([each for each in _entries(name) if each.endswith(".json")])
    document = copy.deepcopy(_document(name, entry))
    for _ in range(rng.randrange(1, 5)):
        _mutate_json(rng, document)
    made = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(made, "w", method) as archive:
        for each, content in _entries(name).items():
            archive.writestr(each, json.dumps(document) if each == entry else content)
    return made.getvalue()


def _mutate_json(rng: random.Random, document: Any) -> None:
    """Changes one value somewhere in a document."""
    parent, key = _place(rng, document)
    kind = rng.randrange(4)
    if parent is None:
        return
    if kind == 0:
        del parent[key]
    elif kind == 1:
        other, at = _place(rng, document)
        parent[key] = copy.deepcopy(other[at]) if other is not None else None
    else:
        parent[key] = copy.deepcopy(rng.choice(_VALUES))


def _place(rng: random.Random, document: Any) -> tuple[Any, Any]:
    """Returns a list or an object of the document, and an index or a key of it."""
    parent, key, value = None, None, document
    while isinstance(value, dict | list) and value and (parent is None or rng.randrange(8)):
        parent = value
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = parent[key]
    return parent, key


def drive(data: bytes, seed: int) -> bool:
    """Reads a file, and uses what is read. Returns True if it could be read.

    Raises
    ------
    Exception
        Something other than the errors of tosaic.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.pt2"
        path.write_bytes(data)
        try:
            read = read_pt2(path)
            program = tosaic.Program(read.graph, read.signature)
            assert program.text()
        except (tosaic.InvalidGraph, tosaic.UnsupportedOp, MemoryError):  # sizes may be claimed at will
            return False
        if seed % _RUN_EVERY == 0:
            _run(program)
    return True


def _run(program: tosaic.Program) -> None:
    """Runs a program on zeros, if it is small. The errors of a user are allowed."""
    sizes = [int(np.prod(each.shape, dtype=object)) for each in program.graph.values]
    if sum(sizes) <= _MOST_ELEMENTS and all(port.dtype in NUMPY for port in program.inputs):
        with suppress(tosaic.InvalidGraph, tosaic.UnsupportedOp, tosaic.LayoutMismatch):
            program.run_arrays([np.zeros(port.shape, NUMPY[port.dtype]) for port in program.inputs])
