"""A memory plan as data: `MemoryPlan`."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from tosaic.base.options import checked, invalid
from tosaic.base.reportable import Reportable
from tosaic.base.visible import one_line
from tosaic.base.writing import write_text
from tosaic.memory.buffers import MemoryArena, MemoryBuffer
from tosaic.memory.read_plan import plan_from_csv, plan_from_json

if TYPE_CHECKING:
    import os


def _cell(text: str) -> str:
    """Returns a name in a form that a spreadsheet does not evaluate as a formula."""
    shown = one_line(text)
    return f"\\u{ord(shown[0]):04x}{shown[1:]}" if shown.startswith(("=", "+", "-", "@")) else shown


@dataclass(frozen=True)
class MemoryPlan(Reportable):
    """The place of every tensor of a program while the program runs: host, groups, inputs and outputs.

    `Program.plan_memory`, `Lowered.plan_memory`, `SplitLowered.plan_memory` and `PteMethod.plan_memory` make
    plans. `PteMethod.memory_plan` is the plan in a ``.pte`` file.

    Attributes
    ----------
    name : str
        The name of the program.
    buffers : tuple of MemoryBuffer
    arenas : tuple of MemoryArena
    steps : tuple of str
        The names of the steps, in order. One more step follows them, at which the outputs are read.
    live_bytes : tuple of int
        For each step, the bytes of all arenas that are needed; shared memory counts once.
    fault : str
        The first fault that an independent check finds in the plan; empty if there is none.
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
        """The first of the steps at which the most bytes are needed."""
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
        raise invalid("memory", "the plan has no such buffer", got=repr(name))

    def compare(self, other: MemoryPlan) -> MemoryComparison:
        """Returns this plan next to another one of the same program, such as the plan of a ``.pte`` file."""
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

        The columns are the attributes of `MemoryBuffer`. Extents are separated by ``x``. Characters in names
        that control terminals, or start formulas in spreadsheets, are escaped, such as ``\u001b``.

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
            The file cannot be read, or is not a memory plan.
        """
        return plan_from_json(path, cls)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> MemoryPlan:
        """Reads the buffers that `to_csv` wrote, and checks them again.

        A CSV file has no arenas and no names of steps: an arena is as large as its buffers need, and its
        bound is the greatest sum of bytes that are needed at one step.

        Returns
        -------
        MemoryPlan
            Its `fault` is what the independent check finds.

        Raises
        ------
        InvalidGraph
            The file cannot be read, or is not a memory plan.
        """
        return plan_from_csv(path, cls)

    def __repr__(self) -> str:
        return (
            f"<tosaic.memory.MemoryPlan '{one_line(self.name)}': {self.peak:,} bytes, "
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
        """The bytes by which `plan` is smaller than `other`; negative if it is larger."""
        return self.other.peak - self.plan.peak

    def __repr__(self) -> str:
        return f"<tosaic.memory.MemoryComparison: {self.plan.peak:,} bytes next to {self.other.peak:,}>"
