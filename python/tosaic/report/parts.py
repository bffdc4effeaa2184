"""The parts of a report as data: `Section`, with a `Table`, a `Picture` or text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tosaic.base.visible import one_line, visible


@dataclass(frozen=True)
class Table:
    """A table of text cells. Columns in which every cell is a number are aligned to the right.

    Attributes
    ----------
    columns : tuple of str
    rows : tuple of tuple of str
    marked : frozenset of int
        Indices of rows that are highlighted.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Escapes names that come from files, so that no writer of the table has to."""
        object.__setattr__(self, "columns", tuple(map(one_line, self.columns)))
        object.__setattr__(self, "rows", tuple(tuple(map(one_line, row)) for row in self.rows))


@dataclass(frozen=True)
class Picture:
    """A picture, which reports as text leave out.

    Attributes
    ----------
    svg : str
    """

    svg: str

    def __post_init__(self) -> None:
        """See `Table`."""
        object.__setattr__(self, "svg", visible(self.svg))


@dataclass(frozen=True)
class Section:
    """A table, text or picture under a heading.

    Attributes
    ----------
    title : str
    body : Table, Picture or str
    folded : bool
        The section is a detail: a closed ``<details>`` in HTML, and not part of `Report.text`.
    """

    title: str
    body: Table | Picture | str
    folded: bool = False

    def __post_init__(self) -> None:
        """See `Table`."""
        object.__setattr__(self, "title", one_line(self.title))
        if isinstance(self.body, str):
            object.__setattr__(self, "body", visible(self.body))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[int] = ()) -> Table:
    """Makes a `Table` from sequences."""
    return Table(tuple(columns), tuple(tuple(row) for row in rows), frozenset(marked))
