"""Damaged `.pte` files and sidecars, and everything that a user does with what can be read of them.

The sources are files that ExecuTorch's flows made, and files with TOSA, VGF and Vela payloads of tosaic. Most
mutations hit the flatbuffer in front; the others hit payloads and constants after it.
"""

from __future__ import annotations

import random
import struct
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tosaic
from tosa_files.mutating import mutate
from tosaic import _core
from tosaic.base.dtypes import NUMPY
from tosaic.pte.file import PteFile

from pte.examples import EXAMPLES, made_by_tosaic, make

__all__ = ["SOURCES", "damaged", "drive", "drive_sidecar", "source"]

_CLAIMANTS = ("TOSA-1.0+INT", "vgf", "ethos-u55-128")
SOURCES = (*EXAMPLES, *_CLAIMANTS)
_MOST_ELEMENTS = 1 << 16  # larger programs are not run
_HEADER = struct.Struct("<4sIQ")
_NUMBERS = (b"0", b"-1", b"9", b"99999999999999999999", b"1e400", b"null", b'"a"')
_IN_FRONT = 7, 8  # 7 of 8 mutations hit the flatbuffer


@cache
def source(name: str) -> bytes:
    """Returns the undamaged file."""
    return made_by_tosaic(name).data if name in _CLAIMANTS else make(name).data


def damaged(seed: int) -> bytes:
    """Returns a file with one to four mutations."""
    rng = random.Random(seed)
    data = source(rng.choice(SOURCES))
    _, _, size = _HEADER.unpack_from(data, 8)
    front, behind = bytearray(data[:size]), bytearray(data[size:])
    for _ in range(rng.randrange(1, 5)):
        is_in_front = rng.randrange(_IN_FRONT[1]) < _IN_FRONT[0]
        mutate(rng, front if is_in_front or not behind else behind)
    return bytes(front + behind)


def drive(data: bytes, seed: int) -> bool:
    """Reads a file, and uses what is read. Returns True if the file and its programs could be read.

    Raises
    ------
    Exception
        Something other than the errors of tosaic.
    """
    try:
        read = _core.read_pte(data)
    except (tosaic.InvalidGraph, tosaic.UnsupportedOp):
        return False
    written = _core.write_pte(read)
    assert _core.write_pte(_core.read_pte(written)) == written
    sources = None
    if seed % 4 == 0:
        sources = {"delegate0": made_by_tosaic("ethos-u55-128").sources[0]}
    try:
        file = PteFile(read, "damaged.pte", sources=sources)
        assert str(file)
        assert file.as_dict(payloads=seed % 16 == 0)
        programs = [method.program for method in file.methods.values()]
    except (tosaic.InvalidGraph, tosaic.UnsupportedOp, MemoryError):  # sizes may be claimed at will
        return False
    for program in programs:
        assert program.text()
        if sum(int(np.prod(each.shape)) for each in program.graph.values) <= _MOST_ELEMENTS:
            _run(program)
    return True


def _run(program: tosaic.Program) -> None:
    """Runs a program on zeros. The errors of a user are allowed: a delegate may have nothing that runs it."""
    if not all(port.dtype in NUMPY for port in program.inputs):
        return
    with suppress(tosaic.InvalidGraph, tosaic.UnsupportedOp, tosaic.LayoutMismatch):
        program.run_arrays([np.zeros(port.shape, NUMPY[port.dtype]) for port in program.inputs])


def drive_sidecar(data: bytes, text: str, seed: int) -> bool:
    """Reads a file with a damaged sidecar. Returns True if the sidecar was accepted."""
    rng = random.Random(seed)
    beside = bytearray(text.encode())
    for _ in range(rng.randrange(1, 4)):
        _mutate_text(rng, beside)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.pte"
        path.write_bytes(data)
        path.with_name("m.pte.json").write_bytes(beside)
        try:
            file = tosaic.load_pte(path)
            assert str(file)
            program: Any = file.program
            assert program.type_text
        except (tosaic.InvalidGraph, tosaic.UnsupportedOp):
            return False
        _run(program)
    return True


def _mutate_text(rng: random.Random, text: bytearray) -> None:
    """Damages a character, or puts one value of the JSON in place of another."""
    kind = rng.randrange(3)
    at = rng.randrange(len(text))
    if kind == 0:
        text[at] = rng.randrange(256)
    elif kind == 1:
        digits = [i for i, c in enumerate(text) if chr(c).isdigit()]
        at = rng.choice(digits)
        text[at : at + 1] = rng.choice(
            (b"0", b"-1", b"9", b"99999999999999999999", b"1e400", b"null", b'"a"')
        )
    else:
        lines = bytes(text).split(b"\n")
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[i] = lines[j] if rng.randrange(2) else b""
        text[:] = b"\n".join(lines)
