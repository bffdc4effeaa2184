"""No line passes its column limit: prose of Markdown 120, comments and docstrings 110."""

from __future__ import annotations

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
