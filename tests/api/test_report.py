"""Reports: text, HTML that needs no other file, JSON that every JSON reader accepts."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pytest
import tosaic
from tosaic.report import Bar, Report, Section, Table, bar_chart
from tosaic.report.text import render_markdown_table, render_table


@pytest.fixture
def report() -> Report:
    table = Table(("node", "dB"), (("conv<1>", "12.5"), ("relu", "-3")), frozenset({1}))
    return Report(
        "a <title>",
        False,
        (("target", "TOSA-1.0+FP"), ("nodes", "2")),
        (Section("worst", table), Section("all", "text & more", folded=True)),
        {"sqnr": math.inf, "worst": -math.inf, "none": math.nan, "rows": [(1, 2)]},
    )


PICTURE = re.compile(r'<rect x="[\d.]+" y="\d+" width="([\d.]+)"')


def test_text_is_aligned_and_marks_rows(report) -> None:
    assert report.text == (
        "FAILED: a <title>\n"
        "  target  TOSA-1.0+FP\n"
        "  nodes   2\n"
        "\n"
        "worst\n"
        "    node       dB\n"
        "    conv<1>  12.5\n"
        "  > relu       -3"
    )
    assert report.full_text.endswith("\n\nall\n  text & more")


def test_html_is_escaped_and_folded(report) -> None:
    assert "a &lt;title&gt;" in report.html
    assert "<details><summary>all</summary><pre>text &amp; more</pre></details>" in report.html
    assert '<tr class="mark"><td>relu</td><td class="n">-3</td></tr>' in report.html


class Checker(HTMLParser):
    """Records the open elements, and the elements and attributes that would load another file."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [
            f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "action", "data")
        ]
        if tag in ("script", "link", "iframe", "img", "object"):
            self.loads.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def test_a_page_is_well_formed_and_needs_no_other_file(case) -> None:
    for report in (
        case.lowered.report(),
        case.program.report(),
        tosaic.compare(case.program, case.lowered, (case.x,)).report(),
        case.lowered.prepare().profile(case.x, runs=1).report(),
        case.lowered.profile.report(),
    ):
        checker = Checker()
        checker.feed(report.html)
        assert checker.open == []
        assert checker.loads == []
        html = report.html.replace('xmlns="http://www.w3.org/2000/svg"', "")  # a name, not a file
        assert not re.search(r"url\(|@import u|https?:", html)


def test_json_has_strings_for_infinity_and_nan(report) -> None:
    data = json.loads(report.json, parse_constant=pytest.fail)
    assert data == {"sqnr": "inf", "worst": "-inf", "none": "nan", "rows": [[1, 2]]}


def test_save_chooses_by_suffix(report, tmp_path) -> None:
    for name, start in (("a.html", "<!doctype html>"), ("a.json", "{"), ("a.txt", "FAILED")):
        report.save(tmp_path / name)
        assert (tmp_path / name).read_text().startswith(start)
    assert "text & more" in (tmp_path / "a.txt").read_text()


def test_bars_are_as_long_as_their_numbers() -> None:
    bars = [Bar("half", 1.0, "1 B"), Bar("whole <a>", 2.0, "2 B"), Bar("endless", math.inf, "inf")]
    bars += [Bar("below", -1.0, "-1 B"), Bar("none", math.nan, "nan")]
    chart = bar_chart("sizes", bars, label="bytes & more")
    half, whole, endless, below, none = map(float, PICTURE.findall(chart.html))
    assert half == pytest.approx(whole / 2, abs=0.1)
    assert endless == whole
    assert below == none == 0
    assert "whole &lt;a&gt;" in chart.html
    assert "bytes &amp; more" in chart.html
    assert re.search(r"half +1 B", chart.full_text)
    assert json.loads(chart.json)["bars"]["endless"] == "inf"


def test_a_second_bar_is_drawn_behind_the_first_one() -> None:
    lengths = PICTURE.findall(bar_chart("", [Bar("a", 2.0, "2", light=4.0)], label="").html)
    assert float(lengths[0]) == pytest.approx(2 * float(lengths[1]), abs=0.2)


def test_long_names_keep_their_end() -> None:
    html = bar_chart("", [Bar("layers." * 9 + "conv", 1.0, "1")], label="").html
    assert re.search(r">\.\.\.[a-z.]{31}</text>", html)
    assert "layers.conv</text>" in html


def test_long_cells_are_broken_into_lines() -> None:
    report = Report("r", sections=(Section("s", Table(("a", "b"), (("x" * 41, "x" * 40),))),))
    assert f'<td class="t">{"x" * 41}</td><td>{"x" * 40}</td>' in report.html


def test_a_comparison_shows_the_nodes_that_are_not_equal_as_bars() -> None:
    import torch

    model = torch.nn.Sequential(*[torch.nn.Tanh() for _ in range(60)])
    x = torch.linspace(-2, 2, 32)
    exported = torch.export.export(model, (x,))
    program = tosaic.from_exported(exported)
    equal = tosaic.compare(program, program, (x,)).report()
    assert "nodes in the order of the program" not in equal.html
    quantized = tosaic.quantize(exported, [(x,)], progress=False)
    html = tosaic.compare(program, quantized, (x,)).report().html
    assert "nodes in the order of the program (30 of 60)" in html
    assert "<title>tanh: " in html
    assert "<title>tanh_2: " in html
    assert "<title>tanh_1: " not in html


def test_an_empty_table_says_so() -> None:
    assert render_table(Table(("a",), ())) == "(none)"


def test_bars_in_markdown_cells_are_escaped() -> None:
    assert render_markdown_table(("a",), [("x|y",)]) == "| a |\n| --- |\n| x\\|y |"


def test_the_message_of_a_problem_has_all_its_parts() -> None:
    problem = tosaic.lowering.Problem(
        what="no lowering", where="legalize-tosa", node="det", source="model.py:3", hint="Rewrite it"
    )
    assert problem.message == "[legalize-tosa] no lowering (node 'det', model.py:3). Rewrite it."
