"""Tables of the generated pages in docs/."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["markdown_table"]


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]], *, texts: int | None = None) -> str:
    """Returns a Markdown table.

    The first `texts` columns are aligned to the left, and the others to the right. Without `texts`, all
    columns have Markdown's default alignment.
    """
    count = len(header) if texts is None else texts
    rule = ("---",) * count + ("---:",) * (len(header) - count)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))
