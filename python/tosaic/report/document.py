"""A report as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic.options import checked
from tosaic.writing import write_text

if TYPE_CHECKING:
    import os

__all__ = ["Report", "Section", "Table"]


@dataclass(frozen=True)
class Table:
    """Cells as text; columns whose every cell reads as a number are set flush right.

    Attributes
    ----------
    columns : tuple of str
    rows : tuple of tuple of str
    marked : frozenset of int
        Rows to draw the eye to.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """A table or running text under a heading.

    Attributes
    ----------
    title : str
    body : Table or str
    folded : bool
        Beyond the first screen: a closed ``<details>`` in HTML, left out of the text.
    """

    title: str
    body: Table | str
    folded: bool = False


@dataclass(frozen=True)
class Report:
    """A document: a title, facts, sections, and the numbers behind them.

    Attributes
    ----------
    title : str
    ok : bool or None
        The verdict, where there is one.
    facts : tuple of (str, str)
    sections : tuple of Section
    data : mapping
        What `json` writes.
    """

    title: str
    ok: bool | None = None
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """One screen of text."""
        from tosaic.report.text import render

        return render(self)

    @property
    def full_text(self) -> str:
        """The text with the folded sections."""
        from tosaic.report.text import render

        return render(self, folded=True)

    @property
    def html(self) -> str:
        """A page that needs no other file."""
        from tosaic.report.html import page

        return page(self)

    @property
    def html_fragment(self) -> str:
        """The same for a notebook."""
        from tosaic.report.html import fragment

        return fragment(self)

    @property
    def json(self) -> str:
        """The numbers; infinities and NaN, which JSON lacks, are ``"inf"``, ``"-inf"`` and ``"nan"``."""
        from tosaic.report.plain import to_json

        return to_json(self.data)

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes ``.html``, ``.json`` or, with any other suffix, the full text."""
        file = Path(path)
        written = {".html": "html", ".json": "json"}.get(file.suffix, "full_text")
        write_text(file, str(getattr(self, written)) + "\n")

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html_fragment

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("..." if cycle else self.text)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[int] = ()) -> Table:
    """A table of lists."""
    return Table(tuple(columns), tuple(tuple(row) for row in rows), frozenset(marked))
