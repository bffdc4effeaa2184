"""Pages in Markdown: paragraphs and items of lists that fit the column limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["COLUMNS", "paragraphs", "too_long", "wrapped", "write_markdown"]

COLUMNS = 120

# Lines that no paragraph has: rows of tables, headings, HTML, and code by indentation.
_OTHER = re.compile(r"\s*(?:\||#|<|$)|\s{4,}(?![-+*]\s|\d+\.\s)\S")
_ITEM = re.compile(r"(?P<indent>\s*)(?:[-+*]|\d+\.) +(?=\S)")
_FENCE = re.compile(r"\s*(?:```|~~~)(?P<language>\w*)")
# Code as its author wrote it. Blocks of other languages, and blocks without one, are output or pictures.
_WRITTEN = ("python", "cpp")


def write_markdown(path: Path, text: str) -> None:
    """Writes a page, with paragraphs that fit the column limit."""
    path.write_text(wrapped(text), encoding="utf-8")


def wrapped(text: str, columns: int = COLUMNS) -> str:
    """Fills each paragraph that has a line beyond the limit, from the first such line on.

    A span of code stays in one line. Tables, headings and blocks of code are unchanged.
    """
    lines = text.split("\n")
    for start, end in reversed(list(paragraphs(lines))):
        beyond = [at for at in range(start, end) if len(lines[at]) > columns]
        if beyond:
            lines[beyond[0] : end] = _filled(lines, start, beyond[0], end, columns)
    return "\n".join(lines)


def too_long(text: str, columns: int = COLUMNS) -> list[int]:
    """Returns the numbers of the lines beyond the limit that somebody can break.

    These are lines of paragraphs with more than one word, and of code in Python or C++.
    """
    lines = text.split("\n")
    breakable = {
        at
        for start, end in paragraphs(lines)
        for at in range(start, end)
        if len(_words(lines[at][_indent(lines[at]) :])) > 1
    }
    breakable |= {at for at, language in _code(lines) if language in _WRITTEN}
    return [at + 1 for at in sorted(breakable) if len(lines[at]) > columns]


def paragraphs(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yields the indices of the first line of each paragraph or item of a list, and of the line after it."""
    code = {at for at, _ in _code(lines)}
    start: int | None = None
    for at, line in enumerate([*lines, ""]):
        is_text = at not in code and (start is not None or not _OTHER.match(line)) and line.strip() != ""
        is_text = is_text and not re.match(r"\s*(?:\||#|<)", line)
        if start is not None and (not is_text or _ITEM.match(line)):
            yield start, at
            start = None
        if is_text and start is None:
            start = at


def _code(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yields the index of each line of code, fences included, and the language of its block."""
    language: str | None = None
    for at, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence or language is not None:
            yield at, fence["language"] if fence and language is None else language or ""
        if fence:
            language = fence["language"] if language is None else None


def _indent(line: str) -> int:
    """Returns where the text of a line begins, after the mark of an item."""
    item = _ITEM.match(line)
    return item.end() if item else len(line) - len(line.lstrip())


def _filled(lines: list[str], start: int, first: int, end: int, columns: int) -> list[str]:
    """Returns lines `first` to `end` of the paragraph that begins at `start`, filled anew."""
    at = _indent(lines[first])
    margin = " " * _indent(lines[start])
    filled, line = [], lines[first][:at]
    for word in _words(" ".join([lines[first][at:], *(each.strip() for each in lines[first + 1 : end])])):
        if line.strip() in ("", lines[first][:at].strip()):
            line += word
        elif len(line) + 1 + len(word) <= columns or _ITEM.match(word + " x"):
            line += " " + word  # a mark of an item would begin one at the start of a line
        else:
            filled.append(line)
            line = margin + word
    return [*filled, line]


def _words(text: str) -> list[str]:
    """Splits a text at its spaces outside of spans of code."""
    spans = re.split(r"(`+[^`]*`+)", text)
    hidden = "".join(part.replace(" ", "\0") if at % 2 else part for at, part in enumerate(spans))
    return [word.replace("\0", " ") for word in hidden.split()]
