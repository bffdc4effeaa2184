"""The page keeps what other machines measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import page


def _published(monkeypatch: pytest.MonkeyPatch, machine: str, text: str) -> None:
    monkeypatch.setattr(page, "cpu_name", lambda: machine)
    page.Section("threads", "Two threads", text, ok=True, conditions="quiet").publish()


@pytest.fixture
def empty_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "benchmarks.md"
    monkeypatch.setattr(page, "PAGE", path)
    return path


def _text(number: int) -> str:
    rows = f"| network | ms |\n| --- | ---: |\n| a | {number} |\n"
    layers = rows.replace("network", "layer")
    return f"Text.\n\n{rows}\n{page.ABOVE}layer {number};\nlayer b.\n\n{layers}\nNo more."


def test_a_section_keeps_the_first_table_of_each_other_machine(
    empty_page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _published(monkeypatch, "One, 2 CPUs", _text(1))
    _published(monkeypatch, "Two, 2 CPUs", _text(2))
    _published(monkeypatch, "Three, 2 CPUs", _text(3))
    newest, *others = empty_page.read_text().split("### On another machine\n")
    assert _text(3) in newest
    assert "; Three, 2 CPUs; quiet." in newest
    assert len(others) == 2
    for other, machine, number in ((others[0], "Two", 2), (others[1], "One", 1)):
        assert f"; {machine}, 2 CPUs; quiet." in other
        assert f"| a | {number} |" in other
        assert f"{page.ABOVE}layer {number};\nlayer b.\n" in other
        assert "| layer |" not in other


def test_a_new_run_replaces_what_the_same_machine_measured(
    empty_page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for machine, number in (("One", 1), ("Two", 2), ("One", 3), ("One", 4)):
        _published(monkeypatch, f"{machine}, 2 CPUs", _text(number))
    text = empty_page.read_text()
    assert text.count("; One, 2 CPUs;") == text.count("; Two, 2 CPUs;") == 1
    assert [f"| a | {number} |" in text for number in (1, 2, 3, 4)] == [False, True, False, True]
    assert text.count("<!-- section") == text.count("<!-- end -->") == 1
