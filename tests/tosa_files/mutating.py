"""Damaged `.tosa` files, texts and archives, and everything that a user does with what can be read from them.

Mutations: random bytes are overwritten; characters of names and other strings become bytes that are not
UTF-8; extents and other 32-bit integers become huge, negative or zero; files are truncated.
"""

from __future__ import annotations

import json
import random
import re
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tosaic
from tosaic import _core
from tosaic.api.calls import open_program

__all__ = [
    "FILES",
    "TEXTS",
    "damaged",
    "damaged_archive",
    "damaged_text",
    "drive",
    "drive_text",
    "mutate",
]

_EVERYTHING = "TOSA-1.0+INT+FP+int16+variable+cf"
_MOST_ELEMENTS = 1 << 16  # larger graphs are not run
_STRING = re.compile(rb"[A-Za-z_][A-Za-z0-9_.:/|; ]{1,}")
_NOT_UTF8 = (0xFF, 0xC0, 0x80, 0xED, 0xF5)
_NUMBERS = (0, 1, 2, -1, 255, 65535, 2**31 - 1, -(2**31), 2**30, 0x55555555)

_CUSTOM = """tosaic 1
graph @forward stage=tosa {
  input %x: f32[3] path="x"
  %y: f32[3] = tosa.custom(%x) {operator_name="twice", domain_name="lab", implementation_attrs="\\\\x01z"}
  return %y path="out"
}
"""
_BRANCH = """tosaic 1
graph @forward stage=tosa {
  input %p: bool[1] path="p"
  input %x: f32[2,3] path="x"
  %r: f32[2,3] = tosa.cond_if(%p, %x) regions {
    graph @then stage=tosa {
      input %a: f32[2,3]
      %sum: f32[2,3] = tosa.add(%a, %a)
      return %sum
    }
    graph @else stage=tosa {
      input %a: f32[2,3]
      const %half: f32[1,1] = lifted [0.5]
      %scaled: f32[2,3] = tosa.mul(%a, %half) {shift=0}
      return %scaled
    }
  }
  return %r path="out"
}
"""


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 3, 3)
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu().mean((2, 3))
        self.state.add_(y[0])
        return torch.cat([y, self.state[None].expand(1, 3)], 1).reshape(2, 3)


@cache
def _program() -> tosaic.Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return tosaic.from_exported(torch.export.export(_Net().eval(), (torch.ones(1, 2, 6, 6),)))


@cache
def _sources() -> dict[str, bytes]:
    lowered = tosaic.lower(_program(), target="TOSA-1.0+FP+variable")
    return {
        "network with a variable": lowered.to_bytes(),
        "branch": _core.serialize(_core.Graph.parse(_BRANCH)),
        "custom operator": _core.serialize(_core.Graph.parse(_CUSTOM)),
    }


FILES = ("network with a variable", "branch", "custom operator")
TEXTS = ("program", "branch", "custom operator")


def mutate(rng: random.Random, data: bytearray) -> None:
    """Damages bytes, characters of strings or 32-bit integers, or truncates the data."""
    if len(data) <= 32:  # a short member, or one that an earlier mutation has truncated
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        return
    kind = rng.randrange(4)
    if kind == 0:
        data[rng.randrange(8, len(data))] = rng.randrange(256)
    elif kind == 1:
        strings = list(_STRING.finditer(bytes(data)))
        if strings:
            chosen = rng.choice(strings)
            data[rng.randrange(chosen.start(), chosen.end())] = rng.choice(_NOT_UTF8)
    elif kind == 2:
        at = 4 * rng.randrange(2, len(data) // 4)
        for offset in range(0, 4 * rng.randrange(1, 7), 4):  # several extents of one shape
            data[at + offset : at + offset + 4] = rng.choice(_NUMBERS).to_bytes(4, "little", signed=True)
    elif rng.randrange(8) == 0:
        del data[rng.randrange(8, len(data)) :]


def damaged(name: str, seed: int) -> bytes:
    """Returns a file with one to four mutations."""
    rng = random.Random(f"{name} {seed}")
    data = bytearray(_sources()[name])
    for _ in range(rng.randrange(1, 5)):
        if len(data) > 32:
            mutate(rng, data)
    return bytes(data)


def _text_of(name: str) -> str:
    return {
        "program": lambda: _program().text(),
        "branch": lambda: _BRANCH,
        "custom operator": lambda: _CUSTOM,
    }[name]()


def damaged_text(name: str, seed: int) -> str:
    """Returns a text with one to three mutations.

    A mutation is an escaped byte in a string, another number, or a missing line.
    """
    rng = random.Random(f"{name} {seed}")
    text = _text_of(name)
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(3)
        found = list(re.finditer(r'"[^"\n]+"' if kind == 0 else r"\b\d+\b" if kind == 1 else r"[^\n]+", text))
        chosen = rng.choice(found)
        if kind == 0:
            at = rng.randrange(chosen.start() + 1, chosen.end())
            text = text[:at] + f"\\x{rng.choice(_NOT_UTF8):02x}" + text[at:]
        elif kind == 1:
            text = text[: chosen.start()] + str(rng.choice(_NUMBERS)) + text[chosen.end() :]
        else:
            text = text[: chosen.start()] + text[chosen.end() :]
    return text


def damaged_archive(seed: int, folder: Path) -> Path:
    """Returns an archive with one damaged member."""
    rng = random.Random(seed)
    whole, path = folder / "whole.tosaic", folder / "damaged.tosaic"
    _program().save(whole)
    with zipfile.ZipFile(whole) as before, zipfile.ZipFile(path, "w") as after:
        members = before.namelist()
        chosen = rng.choice(members)
        for member in members:
            data = bytearray(before.read(member))
            if member == chosen:
                for _ in range(rng.randrange(1, 4)):
                    mutate(rng, data)
            after.writestr(member, bytes(data))
    return path


def _use(program: tosaic.Program, folder: Path) -> None:
    """Uses a program: it is shown, walked, run, written and read again, lowered and compared."""
    str(program), repr(program), program._repr_html_()
    program.report().full_text, program.report().html, json.dumps(program.report().data, default=str)
    for port in (*program.inputs, *program.outputs, *program.states):
        str(port), repr(port), port.type_text
    graph = program.graph
    for node in graph.nodes:
        repr(node), node.name, repr(node.attrs), node.op, [r.name for r in node.results]
        repr(node.origin)
    for value in graph.values:
        repr(value), value.name
    _core.Graph.parse(program.text())
    again = folder / "again.tosaic"
    program.save(again)
    assert tosaic.load(again).text() == program.text()
    tosaic.check(program, target=_EVERYTHING)
    elements = sum(_elements(value.shape) for value in graph.values)
    runs = elements <= _MOST_ELEMENTS and not any(node.op == "tosa.while_loop" for node in graph.nodes)
    try:
        lowered = tosaic.lower(program, target=_EVERYTHING)
    except tosaic.Error as error:
        _is_ours(error)
    else:
        if runs:
            str(lowered), repr(lowered)
        if graph.stage == "tosa":
            path = folder / "again.tosa"
            lowered.save(path)
            tosaic.load_tosa(path)
        if runs:
            str(tosaic.compare(program, lowered, samples=tuple(_zeros(program))))
    if runs:
        program.run(*_zeros(program))


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= max(extent, 1)
    return count


def _zeros(program: tosaic.Program) -> list[np.ndarray[Any, Any]]:
    dtypes = {
        "bool": "bool",
        "i8": "int8",
        "i16": "int16",
        "i32": "int32",
        "f16": "float16",
        "f32": "float32",
    }
    return [np.zeros(port.shape, dtypes.get(port.dtype, "float32")) for port in program.inputs]


def _is_ours(error: Exception) -> None:
    assert not isinstance(error, tosaic.InternalError), error
    str(error).encode()
    repr(error)


def _driven(read: Callable[[], tosaic.Program], folder: Path) -> bool:
    try:
        program = read()
    except tosaic.Error as error:
        _is_ours(error)
        return False
    try:
        _use(program, folder)
    except tosaic.Error as error:
        _is_ours(error)
    return True


def drive(file: bytes | Path, folder: Path) -> bool:
    """Reads and uses a `.tosa` file, or the file at a path; every failure has to be one of our errors.

    Returns whether the file could be read.
    """
    if isinstance(file, Path):
        return _driven(lambda: open_program(file), folder)
    path = folder / "damaged.tosa"
    path.write_bytes(file)
    return _driven(lambda: open_program(path), folder)


def drive_text(text: str, folder: Path) -> bool:
    """Does for a text what `drive` does for a file."""
    return _driven(lambda: tosaic.program.from_graph(_core.Graph.parse(text)), folder)
