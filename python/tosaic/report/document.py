"""A report as data: `Report`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic.base.options import checked
from tosaic.base.visible import one_line, visible
from tosaic.base.writing import write_text
from tosaic.report.text import render

if TYPE_CHECKING:
    import os

    from tosaic.report.parts import Section


@dataclass(frozen=True)
class Report:
    """A document: a title, facts, sections, and the numbers that they show.

    Attributes
    ----------
    title : str
    ok : bool or None
        The verdict; None if the report has none.
    facts : tuple of (str, str)
        Names and values.
    sections : tuple of Section
    data : mapping
        The numbers, which the property `json` writes.
    """

    title: str
    ok: bool | None = None
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """See `Table`."""
        object.__setattr__(self, "title", one_line(self.title))
        facts = tuple((one_line(name), one_line(value)) for name, value in self.facts)
        object.__setattr__(self, "facts", facts)

    @property
    def text(self) -> str:
        """The report as text of one screen, without the folded sections."""
        return render(self)

    @property
    def full_text(self) -> str:
        """The report as text, with the folded sections."""
        return render(self, folded=True)

    @property
    def html(self) -> str:
        """The report as an HTML page that needs no other file."""
        from tosaic.report.html import page

        return page(self)

    @property
    def html_fragment(self) -> str:
        """The report as an HTML fragment, for a notebook."""
        from tosaic.report.html import fragment

        return fragment(self)

    @property
    def json(self) -> str:
        """The numbers as JSON, with the strings ``"inf"``, ``"-inf"`` and ``"nan"``, which JSON lacks."""
        from tosaic.report.plain import to_json

        return visible(to_json(self.data))

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes HTML for suffix ``.html``, JSON for ``.json``, and the full text for any other suffix.

        Raises
        ------
        WriteError
            The file cannot be written.
        """
        file = Path(path)
        written = {".html": "html", ".json": "json"}.get(file.suffix, "full_text")
        write_text(file, str(getattr(self, written)) + "\n")

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html_fragment

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("..." if cycle else self.text)
