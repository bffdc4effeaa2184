"""A memory plan as data: `MemoryPlan`, with its buffers and arenas."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.dtypes import type_text
from tosaic.base.options import checked
from tosaic.base.reportable import Reportable
from tosaic.base.visible import one_line
from tosaic.base.writing import write_text

if TYPE_CHECKING:
    import os

__all__ = [
    "CALLER",
    "CONSTANTS",
    "MemoryArena",
    "MemoryBuffer",
    "MemoryComparison",
    "MemoryPlan",
    "alignment_of",
]

CALLER = "caller"
CONSTANTS = "constants"


def alignment_of(offsets: Iterable[int], most: int) -> int:
    """Returns the greatest alignment, at most `most`, that all offsets have."""
    return math.gcd(most, *offsets)


@dataclass(frozen=True)
class MemoryArena:
    """Memory that a program needs while it runs.

    Attributes
    ----------
    name : str
    nbytes : int
        The size.
    alignment : int
        The first byte of the arena, and of each buffer in it, is a multiple of it. The scratch of groups is
        aligned to 64 bytes at least.
    lower_bound : int
        No arena that holds these buffers can be smaller. For each step, the sizes of the buffers that are
        needed at that step are added up; the bound is the greatest sum, or more if a search proves it.
    """

    name: str
    nbytes: int
    alignment: int
    lower_bound: int

    @property
    def gap(self) -> int:
        """Bytes between the size and the bound."""
        return self.nbytes - self.lower_bound


def _cell(text: str) -> str:
    """Returns a name for a cell, which a spreadsheet does not compute."""
    shown = one_line(text)
    return f"\\u{ord(shown[0]):04x}{shown[1:]}" if shown.startswith(("=", "+", "-", "@")) else shown


@dataclass(frozen=True)
class MemoryBuffer:
    """A tensor, or the scratch of a step, and where it is.

    Attributes
    ----------
    name : str
    part : str
        ``host``, or the group that makes it.
    kind : str
        ``input``, ``output``, ``state``, ``activation``, ``scratch``, or ``internal`` for a tensor inside the
        scratch of a group.
    path : str
        Of inputs, states and outputs: the place in the call or in the result.
    dtype : str
        Empty for scratch.
    shape : tuple of int
    nbytes : int
    first, last : int
        The steps from which and until which it is needed, both inclusive.
    arena : str
        Name of the arena; ``caller`` for memory of the caller, ``constants`` for a view of a constant.
    offset : int
        First byte: in the arena; for ``caller``, in the caller's array; for ``constants``, in the constant.
    alias : str
        ``none``; ``view`` of the same bytes; ``in_place``: computed over a buffer that nobody reads
        afterwards; or ``part``: written into the result of a concatenation.
    alias_of : str
        The buffer with which it shares memory; empty if there is none.
    """

    name: str
    part: str
    kind: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    first: int
    last: int
    arena: str
    offset: int
    alias: str = "none"
    alias_of: str = ""

    @property
    def type_text(self) -> str:
        """Dtype and shape as text: ``f32[1,3,8,8]``; empty for scratch."""
        return type_text(self.dtype, self.shape) if self.dtype else ""


@dataclass(frozen=True)
class MemoryPlan(Reportable):
    """Where every tensor of a program is while the program runs: host, groups, inputs and outputs.

    `Program.plan_memory`, `Lowered.plan_memory`, `SplitLowered.plan_memory` and `PteMethod.plan_memory` make
    plans. `PteMethod.memory_plan` is the plan that a ``.pte`` file has.

    Attributes
    ----------
    name : str
        Of the program.
    buffers : tuple of MemoryBuffer
    arenas : tuple of MemoryArena
    steps : tuple of str
        The names of the steps, in order. One more step follows them, at which the outputs are read.
    live_bytes : tuple of int
        For each step, the bytes of all arenas that are needed; shared memory counts once.
    fault : str
        What is wrong with the places, as an independent check finds it; empty if nothing is.
    """

    name: str
    buffers: tuple[MemoryBuffer, ...]
    arenas: tuple[MemoryArena, ...]
    steps: tuple[str, ...]
    live_bytes: tuple[int, ...]
    fault: str = ""

    @property
    def peak(self) -> int:
        """The bytes of all arenas."""
        return sum(arena.nbytes for arena in self.arenas)

    @property
    def lower_bound(self) -> int:
        """The proven bounds of all arenas together."""
        return sum(arena.lower_bound for arena in self.arenas)

    @property
    def gap(self) -> int:
        """Bytes between peak and bound; 0 is the proof that the peak is the least possible."""
        return self.peak - self.lower_bound

    @property
    def peak_step(self) -> int:
        """The first step at which most bytes are needed."""
        return self.live_bytes.index(max(self.live_bytes))

    def buffer(self, name: str) -> MemoryBuffer:
        """Returns the buffer with this name.

        Raises
        ------
        InvalidGraph
            There is none.
        """
        for each in self.buffers:
            if each.name == name:
                return each
        raise _core.make_error(
            _core.InvalidGraph, where="memory", what="the plan has no such buffer", got=repr(name)
        )

    def compare(self, other: MemoryPlan) -> MemoryComparison:
        """Returns this plan next to another one of the same program, such as the one of a ``.pte`` file."""
        return MemoryComparison(self, other)

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan as plain data for JSON."""
        return {
            "name": self.name,
            "peak": self.peak,
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "fault": self.fault,
            "arenas": [{**asdict(arena), "gap": arena.gap} for arena in self.arenas],
            "steps": list(self.steps),
            "live_bytes": list(self.live_bytes),
            "buffers": [{**asdict(each), "shape": list(each.shape)} for each in self.buffers],
        }

    @checked
    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes `as_dict` as a JSON file.

        Raises
        ------
        WriteError
            The file cannot be written.
        """
        write_text(path, json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n")

    @checked
    def to_csv(self, path: str | os.PathLike[str]) -> None:
        r"""Writes the buffers as a CSV file: a header, and a line for each buffer.

        The columns are the attributes of `MemoryBuffer`. Extents are separated by ``x``. In names, characters
        that act on terminals or in spreadsheets are escapes such as ``\u001b``.

        Raises
        ------
        WriteError
            The file cannot be written.
        """
        columns = [each.name for each in fields(MemoryBuffer)]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for buffer in self.buffers:
            row = {name: getattr(buffer, name) for name in columns}
            row["shape"] = "x".join(map(str, buffer.shape))
            writer.writerow([_cell(each) if isinstance(each, str) else each for each in row.values()])
        write_text(path, text.getvalue())

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> MemoryPlan:
        """Reads a plan that `to_json` wrote, and checks it again.

        Returns
        -------
        MemoryPlan
            Its `fault` is what the independent check finds, whatever the file says.

        Raises
        ------
        InvalidGraph
            The file cannot be read, or is no memory plan.
        """
        from tosaic.memory.read_plan import plan_from_json

        return plan_from_json(path)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> MemoryPlan:
        """Reads the buffers that `to_csv` wrote, and checks them again.

        A CSV file has no arenas and no names of steps: arenas are as large as their buffers need, and bounds
        are the greatest sums of bytes that are needed at a step.

        Returns
        -------
        MemoryPlan
            Its `fault` is what the independent check finds.

        Raises
        ------
        InvalidGraph
            The file cannot be read, or is no memory plan.
        """
        from tosaic.memory.read_plan import plan_from_csv

        return plan_from_csv(path)

    def __repr__(self) -> str:
        return (
            f"<tosaic.MemoryPlan '{one_line(self.name)}': {self.peak:,} bytes, "
            f"at least {self.lower_bound:,}, {len(self.buffers)} buffers>"
        )


@dataclass(frozen=True)
class MemoryComparison(Reportable):
    """Two memory plans of a program side by side.

    Attributes
    ----------
    plan, other : MemoryPlan
    """

    plan: MemoryPlan
    other: MemoryPlan

    @property
    def ok(self) -> bool:
        """True if `plan` needs at most as much memory as `other`."""
        return self.plan.peak <= self.other.peak

    @property
    def saved(self) -> int:
        """Bytes that `plan` needs less than `other`; negative if it needs more."""
        return self.other.peak - self.plan.peak

    def __repr__(self) -> str:
        return f"<tosaic.MemoryComparison: {self.plan.peak:,} bytes next to {self.other.peak:,}>"
