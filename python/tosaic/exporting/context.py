"""`ExportContext`: the state that stages of an export can read and change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tosaic.base.options import invalid, refusal
from tosaic.base.visible import one_line

if TYPE_CHECKING:
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.program.program import Program
    from tosaic.quantizing.quantized_program import QuantizedProgram
    from tosaic.recipes.recipe import Recipe

LOG = logging.getLogger("tosaic.exporting")


@dataclass
class ExportContext:
    """The state of an export, which its stages get as second argument.

    Attributes
    ----------
    recipe : Recipe
    name : str
        The stem of file names.
    model : torch.nn.Module, optional
        The model after the stages at ``model``. None: the exported object was not a module.
    inputs : (tuple, dict), optional
        Example inputs: positional and keyword arguments.
    exported : torch.export.ExportedProgram, optional
    program : Program, optional
        The program of floats.
    rules : tuple of rule
        The rules of quantization: the recipe's, and those of devices for the calls that their claimants take.
    quantized : Program, optional
    lowered : SplitLowered, optional
    trained : torch.nn.Module, optional
        The module from which a stage of training made the quantized program. Checks compare the two.
    """

    recipe: Recipe
    name: str = "model"
    model: Any = None
    inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    exported: Any = None
    program: Program | None = None
    rules: tuple[Any, ...] = ()
    quantized: QuantizedProgram | Program | None = None
    lowered: SplitLowered | None = None
    trained: Any = None
    _conversions: list[Callable[[Any], Any]] = field(default_factory=list, repr=False)
    _files: dict[str, bytes] = field(default_factory=dict, repr=False)
    _notes: list[str] = field(default_factory=list, repr=False)
    _quantized_by: Any = field(default=None, repr=False)
    _quantized_as: Any = field(default=None, repr=False)

    def convert_inputs(self, convert: Callable[[Any], Any]) -> None:
        """Changes the example inputs, and all samples, such as to other dtypes.

        Parameters
        ----------
        convert : callable
            Takes and returns positional and keyword arguments: a tuple and a dict.
        """
        if self.inputs is not None:
            self.inputs = convert(self.inputs)
        self._conversions.append(convert)

    def converted(self, arguments: Any) -> Any:
        """Returns the arguments of a call after all conversions."""
        for convert in self._conversions:
            arguments = convert(arguments)
        return arguments

    def quantized_for_torch(self) -> Any:
        """Returns the quantized program in a form for torch: an exported program, or a `QuantizedProgram`.

        None if no quantized program was set, or if a stage at ``quantized`` has changed it since.
        """
        return self._quantized_by if self.quantized is self._quantized_as else None

    def set_quantized(self, made: Any, program: Program) -> None:
        """Records the quantized program, and the object that it was made from, for torch."""
        self.quantized = self._quantized_as = program
        self._quantized_by = made

    def add_file(self, name: str, contents: bytes | str) -> None:
        """Adds a file to the folder of the export.

        Parameters
        ----------
        name : str
            The path in the folder, with ``/`` between folders.
        contents : bytes or str
            Text is written as UTF-8.

        Raises
        ------
        InvalidGraph
            The path leads out of the folder, or there is such a file already.
        """
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise refusal("add_file", "name", "the path of a file in the folder", name)
        if str(path) in self._files:
            raise invalid("add_file", f"there is a file '{one_line(str(path))}' already")
        self._files[str(path)] = contents.encode() if isinstance(contents, str) else bytes(contents)

    def note(self, text: str) -> None:
        """Adds a remark to the report. `export_model` logs it as a warning, unless ``verbose=0``."""
        self._notes.append(text)

    @property
    def files(self) -> dict[str, bytes]:
        """The files that stages added, by path."""
        return dict(self._files)

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks that were made."""
        return tuple(self._notes)
