"""No line passes its column limit: prose of Markdown 120, comments and docstrings 110."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_page import COLUMNS, too_long, wrapped
from models.results import ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / ".github").rglob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("tests/*.md"),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_line_of_a_page_passes_the_limit(page) -> None:
    text = page.read_text()
    lines = text.splitlines()
    assert [f"{number}: {lines[number - 1]}" for number in too_long(text)] == []


CODE_COLUMNS = 110
SOURCES = {
    "C++": [
        path
        for folder in ("cpp", "bindings", "tests/cpp", "docs/examples")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".h", ".cpp", ".def", ".fbs")
    ],
    "Python": [
        path
        for folder in ("python", "tests", "docs")
        for path in sorted((ROOT / folder).rglob("*.py*"))
        if path.suffix in (".py", ".pyi")
    ],
}


def long_comments(path: Path, text: str) -> list[str]:
    """Returns the lines beyond the limit: comments of C++ with more than one word, and all lines of Python.

    clang-format breaks the code of C++. In Python, comments for linters may lie beyond the limit.
    """
    found = [line for line in text.splitlines() if len(line) > CODE_COLUMNS]
    if path.suffix in (".py", ".pyi"):
        return [line for line in found if not re.search(r"# (type: ignore|noqa)", line)]
    comments = ((line, re.search(r"//(.*)$", line)) for line in found)
    return [line for line, comment in comments if comment and len(comment[1].split()) > 1]


@pytest.mark.parametrize("language", SOURCES)
def test_no_comment_passes_the_limit(language: str) -> None:
    assert len(SOURCES[language]) > 200
    found = {path: long_comments(path, path.read_text()) for path in SOURCES[language]}
    assert {str(path.relative_to(ROOT)): lines for path, lines in found.items() if lines} == {}


def test_a_planted_comment_beyond_the_limit_is_found() -> None:
    long = "word " * 25
    assert long_comments(Path("a.h"), f"int x;  // {long}\n// short\n//   {'x' * 120}\n") == [
        f"int x;  // {long}"
    ]
    assert long_comments(Path("a.py"), f"# {long}\nx = 1  # {long} # noqa: E501\n") == [f"# {long}"]


LONG = "word " * 30 + "end"


@pytest.mark.parametrize(
    "text",
    [LONG, f"- {LONG}", f"1. {LONG}", f"  more of an item\n  {LONG}", f"```python\n# {LONG}\n```"],
    ids=["paragraph", "item", "numbered item", "continued item", "code"],
)
def test_a_long_line_that_can_be_broken_is_found(text: str) -> None:
    (number,) = too_long(text)
    assert len(text.splitlines()[number - 1]) > COLUMNS


@pytest.mark.parametrize(
    "text",
    [f"| {LONG} |", f"## {LONG}", f"```text\n{LONG}\n```", f"https://{'x' * 130}", f"- `{LONG}`"],
    ids=["row of a table", "heading", "printed text", "link", "span of code"],
)
def test_lines_that_nobody_can_break_are_left_out(text: str) -> None:
    assert too_long(text) == []
    assert wrapped(text) == text


def test_wrapping_keeps_words_items_and_spans_of_code() -> None:
    text = f"Short.\n\n- {LONG} `a span of code` - 5 {LONG}\n  {LONG}\n- next\n\n| {LONG} |\n"
    found = wrapped(text)
    assert found.split() == text.split()
    assert too_long(found) == []
    assert "`a span of code`" in found
    assert [line[:2] for line in found.splitlines()].count("- ") == 2
    assert wrapped(found) == found


def test_lines_before_the_first_long_one_are_unchanged() -> None:
    text = f"One\ntwo\n{LONG}\nthree"
    assert wrapped(text).startswith("One\ntwo\nword word")
