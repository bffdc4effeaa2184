"""Why a program does not fit a target: `Problem` and `CheckResult`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tosaic import _core
from tosaic.base.reportable import Reportable


@dataclass(frozen=True)
class Problem:
    """One reason why a program does not fit a target.

    Attributes
    ----------
    what : str
        What is wrong.
    where : str
        The pass or check that found the problem.
    expected, got : str
        What the check requires, and what it found.
    node : str
        Name of the node that has the problem.
    module_path, source : str
        Origin of that node, such as ``layer1.0.conv1`` and ``model.py:41``.
    hint : str
        What the user can do about the problem.
    """

    what: str
    where: str = ""
    expected: str = ""
    got: str = ""
    node: str = ""
    module_path: str = ""
    source: str = ""
    hint: str = ""

    @classmethod
    def from_parts(cls, parts: Mapping[str, str]) -> Problem:
        """Makes a problem from the parts of an error."""
        return cls(**{name: str(parts.get(name, "")) for name in cls.__dataclass_fields__})

    @property
    def message(self) -> str:
        """The text of an error with these parts."""
        return str(_core.make_error(_core.Error, **{n: getattr(self, n) for n in self.__dataclass_fields__}))


@dataclass(frozen=True)
class CheckResult(Reportable):
    """Whether a program would lower to a target and, if not, why.

    A result is true in a condition if the program would lower.

    Attributes
    ----------
    target : str
    problems : tuple of Problem
        All problems, not only the first.
    nodes : int
        Number of nodes of the program; 0 if the import already failed.
    notes : tuple of str
        Losses of the program before the check, such as saturated biases, and losses by lowering: operands
        that lose all bits. The program lowers nevertheless.
    """

    target: str
    problems: tuple[Problem, ...]
    nodes: int
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    __repr__ = Reportable.__str__
