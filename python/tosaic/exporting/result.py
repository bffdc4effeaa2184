"""`ExportResult`: the result of an export."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.dtypes import is_float
from tosaic.base.options import checked, invalid
from tosaic.base.reportable import Reportable
from tosaic.ports.io_quant import IoQuant, PortQuant

if TYPE_CHECKING:
    import numpy as np

    from tosaic.devices.tool_cost import CostSummary
    from tosaic.exporting.checks import StageCheck
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.ports.ports import Port
    from tosaic.program.program import Program
    from tosaic.recipes.recipe import Recipe


class CheckError(_core.Error, ValueError):
    """A numerical check of an export failed, and nothing was written. ``result`` is the `ExportResult`."""

    result: ExportResult


@dataclass
class ExportResult(Reportable):
    """The result of `tosaic.export_model`: the artifact of each stage, and the checks.

    Attributes
    ----------
    recipe : Recipe
        The recipe, including the options of the call.
    name : str
        The stem of file names.
    exported : torch.export.ExportedProgram, optional
        The program that torch exported. None: a `Program` was passed.
    program : Program
        The program of floats.
    quantized : Program, optional
        The quantized program. None: the flow quantizes nothing.
    lowered : SplitLowered
        The groups, lowered for their claimants, and the host's nodes.
    checks : tuple of StageCheck
    seconds : dict of str to float
        The time of each step.
    notes : tuple of str
        Remarks, such as on samples beyond the range of a fixed format.
    folder : Path, optional
        Where the files are. None: nothing was written yet.
    files : tuple of Path
        The files in the folder.
    samples : tuple of dict
        The samples of the checks: arrays by path, as ``lowered.source`` takes them.
    added : dict of str to bytes
        Files that stages of the recipe added, by path in the folder.
    costs : dict of str to CostSummary
        The cost estimate of the tool that compiled a group's payload, by name of the group. Empty before
        `save`, which compiles payloads, and for devices whose tool estimates nothing.
        `tosaic.device_cost` has more details.
    """

    recipe: Recipe
    name: str
    exported: Any
    program: Program
    quantized: Program | None
    lowered: SplitLowered
    checks: tuple[StageCheck, ...]
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()
    folder: Path | None = None
    files: tuple[Path, ...] = ()
    samples: tuple[Mapping[str, np.ndarray[Any, Any]], ...] = field(default=(), repr=False)
    added: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    costs: Mapping[str, CostSummary] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """True if every check passed."""
        return all(check.ok for check in self.checks)

    def __bool__(self) -> bool:
        return self.ok

    @cached_property
    def io(self) -> IoQuant:
        """The inputs and outputs that hold integers, and the numbers that these represent."""
        return IoQuant(_integers(self.lowered.inputs), _integers(self.lowered.outputs))

    @property
    def accuracy_db(self) -> float:
        """The least signal to noise ratio of an output against the model in floats, in dB."""
        return next((check.db for check in self.checks if check.name == "accuracy"), float("nan"))

    def check(self, name: str) -> StageCheck:
        """Returns the check of a name.

        Raises
        ------
        InvalidGraph
            There is no such check; the message lists the names.
        """
        names = [each.name for each in self.checks]
        if name not in names:
            raise invalid(
                "check",
                f"there is no check '{name}'",
                expected=", ".join(names),
                hint=_core.did_you_mean(name, names),
            )
        return self.checks[names.index(name)]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the lowered program; see `SplitLowered.run`."""
        return self.lowered.run(*args, **kwargs)

    @checked
    def save(self, path: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Writes all files of the export into a new folder, which is complete or absent.

        Parameters
        ----------
        path : path
            A folder that does not exist, or that is empty.

        Returns
        -------
        tuple of Path
            The files, see `docs/guide/exporting.md`.

        Raises
        ------
        WriteError
            The folder is not empty, or a file cannot be written. Nothing is left of the folder then.
        UnsupportedOp, ImportError
            The tool of a claimant refuses a group, or is not installed.
        """
        from tosaic.exporting.artifacts import write_folder

        self.folder, self.files = write_folder(self, path)
        return self.files


def _integers(ports: tuple[Port, ...]) -> tuple[PortQuant, ...]:
    """Returns the ports whose arrays are integers with known qparams."""
    users = [port for port in ports if port.kind == "user"]
    return tuple(
        PortQuant(i, port.path, port.name, port.qparams)
        for i, port in enumerate(users)
        if port.qparams is not None and not is_float(port.dtype)
    )
