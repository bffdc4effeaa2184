"""Names from files do not act on terminals, pages and logs: all commands and reports are tried.

Each kind of name in a file (input, weight, module path, source file, file name) has an escape sequence, an
8-bit control character, a sign that turns the direction of text, and a newline that would begin a line.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from tosaic.base.visible import one_line, visible
from tosaic.cli import main

EVIL = "\x1b[31mn\x07\x9b2J\u202e<b>\nFORGED: yes"
ACTING = set(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2028, 0x200F]))


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ x.T).softmax(-1)


def found_in(text: str) -> set[str]:
    """Returns what acts in a text: characters, and the lines that a name forged."""
    forged = {line for line in text.splitlines() if line.lstrip().startswith("FORGED")}
    return (ACTING & set(text)) | forged


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def program() -> Any:
    """A program whose names come from a file: the graph text has evil names of everything."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), Inner()).eval()
    exported = torch.export.export(net, (torch.ones(4, 4),))
    imported = tosaic.from_exported(exported)
    text = imported.graph.text()
    quoted = json.dumps(EVIL, ensure_ascii=False).replace("\\u001b", "\\x1b").replace("\\u0007", "\\x07")
    evil = quoted.replace('"', "")
    changed = (
        text.replace("%relu", f'%"{evil}"')
        .replace("%input", f'%"{evil}2"')
        .replace('path="input"', f'path="{evil}"')
        .replace('path="out"', f'path="{evil}.out"')
        .replace("%0.weight", f'%"{evil}3"')
        .replace("test_visible_names.py", evil)
        .replace("linear.py", evil)
    )
    return tosaic.program.from_graph(tosaic.program.Graph.parse(changed))


@pytest.fixture(scope="module")
def files(program: Any, folder: Path) -> dict[str, str]:
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    np.save(folder / "x.npy", x)
    name = folder / (EVIL.replace("/", "") + ".tosaic")
    program.save(name)
    lowered = tosaic.lower(program)
    lowered.save(folder / "m.tosa", sidecar=True)
    lowered.save(folder / "p.pte", sidecar=True)
    tosaic.quantize(program, [(x,)], progress=False).save(folder / "q.tosaic")
    return {
        "m": str(name),
        "x": str(folder / "x.npy"),
        "t": str(folder / "m.tosa"),
        "q": str(folder / "q.tosaic"),
        "p": str(folder / "p.pte"),
    }


COMMANDS = (
    ["inspect", "m", "--layout", "--memory", "--text"],
    ["inspect", "m", "--dot"],
    ["inspect", "m", "--quantization"],
    ["inspect", "t", "--text"],
    ["inspect", "q", "--text"],
    ["check", "m", "--target", "TOSA-1.0+INT"],
    ["check", "m"],
    ["run", "m", "--input", "x", "-o", "{}.npz"],
    ["run", "m", "--input", "x", "-o", "{}.npz", "--profile"],
    ["compare", "m", "t", "--input", "x"],
    ["compare", "m", "q", "--input", "x"],
    ["diff", "m", "q"],
    ["quantize", "m", "--samples", "x", "-o", "{}.tosaic"],
    ["sensitivity", "m", "--samples", "x"],
    ["lower", "m", "-o", "{}.tosa", "--profile"],
    ["lower", "m", "--target", "TOSA-1.0+INT", "-o", "{}.tosa"],
    ["lower", "m", "--calibrate", "x", "-o", "{}.tosa"],
    ["lower", "q", "--io", "nothing=int8", "-o", "{}.tosa"],
    ["partition", "m", "--claimants", "TOSA-1.0+INT,TOSA-1.0+FP", "--memory"],
    ["partition", "m", "--claimants", "TOSA-1.0+INT", "--why", "linear"],
    ["partition", "m", "--claimants", "TOSA-1.0+FP", "-o", "{}", "--report", "{}.txt"],
    ["inspect", "p", "--memory"],
    ["inspect", "p", "--text"],
    ["kernels", "p", "-o", "{}.yaml"],
    ["compare", "m", "p", "--input", "x", "--report", "{}.html"],
    ["compare", "m", "q", "--input", "x", "--report", "{}.txt"],
    ["inspect", "m", "--memory", "--csv", "{}.csv"],
    ["lower", "m", "--dump", "{}", "-o", "{}.tosa", "--report", "{}.txt"],
    ["quantize", "m", "--samples", "x", "-o", "{}.tosaic", "--report", "{}.html"],
    ["sensitivity", "m", "--samples", "x", "--plot", "{}.svg", "--report", "{}.txt"],
    ["export", "m", "--recipe", "tosa-int8", "--samples", "x", "-o", "{}", "--verbose", "3"],
    ["recipes", EVIL],
    ["open", EVIL],
    ["inspect", "m", "--bind", EVIL],
    ["run", "m", "--input", "x", "-o", "{}.npz", "--threads", EVIL],
    ["check", EVIL],
    ["inspect", EVIL + ".pte"],
    ["inspect", EVIL + ".pt2"],
    ["kernels", EVIL + ".pte"],
    ["run", "m", "--input", EVIL + ".npz", "-o", "{}.npz"],
    ["lower", "m", "-o", f"/{EVIL}/x.tosa"],
    ["compare", "m", "t", "--input", "x", "--report", f"/{EVIL}/x.html"],
)


TEXTS = (".txt", ".csv", ".html", ".svg", ".yaml", ".md")


@pytest.mark.parametrize("as_json", [False, True])
def test_no_command_prints_what_acts_on_a_terminal(
    as_json: bool, files: dict[str, str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    acting = {}
    for number, command in enumerate(COMMANDS):
        out = str(folder / f"out{number}{as_json}")
        arguments = [files.get(each, each).replace("{}", out) for each in command]
        main([*arguments, *["--json"] * as_json])
        printed, complained = capfd.readouterr()
        if as_json:
            json.loads(printed)
        if found_in(printed + complained):
            acting[" ".join(command)] = found_in(printed + complained)
        for path in folder.rglob(f"out{number}{as_json}*"):
            for file in path.rglob("*") if path.is_dir() else [path]:
                if file.suffix in TEXTS and ACTING & set(file.read_text()):
                    acting[f"{' '.join(command)}: {file.name}"] = ACTING & set(file.read_text())
    assert acting == {}


def reports(
    program: Any, quantized: Any, lowered: Any, x: Any, files: dict[str, str]
) -> Iterator[tuple[str, Any]]:
    yield "program", program
    file = tosaic.load_pte(files["p"])
    yield "pte", file
    yield "method", file.method()
    yield "kernels", tosaic.registration.kernel_list(program)
    yield "sensitivity", tosaic.sensitivity(program, [(x,)], progress=False)
    yield "explanation", tosaic.explain_quantization(quantized)
    yield "export", tosaic.export_model(program, recipe="tosa-int8", samples=[(x,)], verbose=0)
    yield "split", tosaic.lower(program, unsupported="split", claimants=["TOSA-1.0+FP"])
    plan = tosaic.partition(program, ["TOSA-1.0+INT", "TOSA-1.0+FP"])
    yield "place", plan.why(program.graph.nodes[0].name)
    yield "lowered", lowered
    yield "quantized", quantized
    yield "check", tosaic.check(program, target="TOSA-1.0+INT")
    yield "comparison", tosaic.compare(program, lowered, (x,))
    yield "memory", lowered.plan_memory()
    yield "partition", tosaic.partition(program, ["TOSA-1.0+INT", "TOSA-1.0+FP"])
    yield "io", lowered.io
    yield "layout", lowered.layout
    yield "profile", program.prepare().profile(x, runs=1)


def test_no_report_has_what_acts(program: Any, files: dict[str, str]) -> None:
    x = np.load(files["x"])
    quantized = tosaic.quantize(program, [(x,)], progress=False)
    lowered = tosaic.lower(program)
    acting = {}
    for name, each in reports(program, quantized, lowered, x, files):
        report = each.report() if hasattr(each, "report") else each
        texts = {"str": str(each), "repr": repr(each)}
        for form in ("text", "full_text", "html", "html_fragment", "json"):
            with contextlib.suppress(AttributeError):
                found = getattr(report, form)
                texts[form] = found() if callable(found) else found
        for form, text in texts.items():
            found = ACTING & set(text) if form.startswith("html") else found_in(text)
            if found:
                acting[f"{name}.{form}"] = found
            if form == "html":
                assert "<b>\\nFORGED" not in text
                assert "<b>" not in text.partition("</style>")[2]
    assert acting == {}
    assert found_in(program.text() + program.type_text + program.graph.dot()) == set()


def parts_of_reports() -> list[Any]:
    """Objects inside of results, with texts of their own, and recipes of strangers."""
    from tosaic import Recipe
    from tosaic.calibration.collapsed_operands import CollapsedOperand
    from tosaic.calibration.saturated_biases import SaturatedBias
    from tosaic.exporting.scenario import Scenario, ScenarioPort
    from tosaic.lowering.layout import Demand
    from tosaic.pte.payloads import Place
    from tosaic.recipes import Difference

    port = ScenarioPort(EVIL, "f32", (1,), (0,), EVIL)
    return [
        Recipe(name=EVIL, summary=EVIL, claimants=["TOSA-1.0+INT"]),
        Difference(EVIL, EVIL, EVIL, EVIL),
        Scenario((port,), (port,), (), ()),
        CollapsedOperand(EVIL, EVIL, 3, EVIL, EVIL),
        SaturatedBias(EVIL, EVIL, (1,), EVIL, EVIL),
        Demand(EVIL, EVIL, EVIL, EVIL),
        Place(EVIL, 0, EVIL),
    ]


def test_no_part_of_a_result_has_what_acts() -> None:
    for each in parts_of_reports():
        assert found_in(str(each) + repr(each)) == set(), type(each)


def test_labels_of_dot_end_between_characters(program: Any) -> None:
    """A label has 60 bytes, and half a character would be no text."""
    text = program.text().replace("%linear", '%"' + "层" * 30 + '"')
    graph = tosaic.program.Graph.parse(text)
    assert "层..." in graph.dot()


def test_a_memory_plan_in_a_table_has_no_name_that_acts(program: Any, folder: Path) -> None:
    """Neither on a terminal nor in a spreadsheet, where a cell that begins with = is computed."""
    text = (
        program.text().replace('\\nFORGED: yes"', '\\nFORGED: yes =SUM(1)"').replace("%linear", '%"=SUM(1)"')
    )
    plan = tosaic.lower(tosaic.program.from_graph(tosaic.program.Graph.parse(text))).plan_memory()
    plan.to_csv(folder / "plan.csv")
    written = (folder / "plan.csv").read_text()
    assert found_in(written) == set()
    assert not [line for line in written.splitlines() if line.startswith("=")]
    read = tosaic.memory.MemoryPlan.from_csv(folder / "plan.csv")
    assert [each.offset for each in read.buffers] == [each.offset for each in plan.buffers]
    assert read.fault == ""


def test_no_log_message_has_what_acts(program: Any, files: dict[str, str], caplog: Any) -> None:
    x = np.load(files["x"])
    with caplog.at_level(logging.DEBUG, "tosaic"):
        quantized = tosaic.quantize(program, [(x,)], progress=False)
        tosaic.lower(quantized, target="TOSA-1.0+INT+FP")
    assert found_in("".join(record.getMessage() for record in caplog.records)) == set()


def test_the_text_of_a_graph_is_read_back_with_its_names(program: Any) -> None:
    text = program.text()
    assert found_in(text) == set()
    assert tosaic.program.Graph.parse(text).text() == text
    assert EVIL in [each.name for each in tosaic.program.Graph.parse(text).values]


def test_an_error_has_the_name_itself_among_its_parts() -> None:
    error = tosaic._core.make_error(tosaic.InvalidGraph, where="x", what=f"'{EVIL}' is wrong", node=EVIL)
    assert found_in(str(error)) == set()
    assert error.parts["node"] == EVIL


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv\x1b[2J", "conv\\u001b[2J"),
        ("\x9b2J\x7f", "\\u009b2J\\u007f"),
        ("x\u202egpj", "x\\u202egpj"),
        ("a\u2028b", "a\\u2028b"),
        ("\udc80", "\\udc80"),
        ("größe 层 e\u0301 \U0001f600", "größe 层 e\u0301 \U0001f600"),
    ],
)
def test_what_acts_becomes_an_escape(text: str, shown: str) -> None:
    assert visible(text) == one_line(text) == shown
    assert visible("a\n\tb") == "a\n\tb"
    assert one_line("a\n\tb") == "a\\n\\tb"
    shown.encode()
