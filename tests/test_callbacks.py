"""Callbacks of Python that C++ gets: they are copied and destroyed by any thread, also without the GIL.

A lambda that holds a Python object by value would count its references then, which only a build with
assertions refuses. So the sources of the bindings are read: such a lambda holds `owned(object)`.
"""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest
import torch
import tosaic

BINDINGS = Path(__file__).parent.parent / "bindings"
# A Python object as a parameter or a variable: its name is the group.
DECLARED = re.compile(r"\bpy::(?!gil_|ssize_t|module_)\w+(?:<[\w:]+>)?\s*[&*]?\s+(\w+)\s*(?=[,)=;{(])")
LAMBDA = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\s*(?:\([^;{}]*\))?\s*(?:mutable\s*)?(?:->[^{;]*)?\{")


def split(captures: str) -> list[str]:
    """Returns the captures of a lambda, which commas outside of brackets separate."""
    parts, depth = [""], 0
    for character in captures:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def held(source: str) -> list[str]:
    """Returns the captures of lambdas that copy a Python object."""
    code = re.sub(r"//[^\n]*", "", source)
    found = []
    for match in LAMBDA.finditer(code):
        declared = set(DECLARED.findall(code[max(0, match.start() - 2000) : match.start()]))
        for capture in split(match[1]):
            name, given, value = capture.partition("=")
            if given and name.strip() and not name.strip().startswith("&"):
                is_object = re.search(r"\bpy::|\.attr\(", value) or value.strip() in declared
                if is_object and not value.strip().startswith("owned("):
                    found.append(capture)
            elif not given and (capture in declared or (capture == "=" and declared)):
                found.append(capture)
    return found


def test_no_callback_of_the_bindings_counts_references_of_an_object_that_it_holds() -> None:
    found = {path.name: held(path.read_text()) for path in sorted(BINDINGS.glob("*.[ch]*"))}
    assert sum(path.read_text().count("owned(") for path in BINDINGS.glob("*.cpp")) >= 8
    assert {name: captures for name, captures in found.items() if captures} == {}


@pytest.mark.parametrize(
    ("code", "captures"),
    [
        ("void f(const py::object& call) { g([call](int x) { call(x); }); }", ["call"]),
        ("void f(py::handle each) { g([call = each.cast<py::function>()](int) {}); }",
         ["call = each.cast<py::function>()"]),
        ("void f(const py::object& call) { g([held = owned(call)](int) {}); }", []),
        ("void f(const py::object& call) { g([&](int) { call(1); }); }", []),
        ("void f(py::object call, int n) { g([n, held = owned(std::move(call))] { (*held)(); }); }", []),
        ("void f() { auto call = 1; g([call] {}); }", []),
    ],
)  # fmt: skip
def test_such_a_callback_is_found(code: str, captures: list[str]) -> None:
    assert held(code) == captures


def test_references_to_a_callback_are_counted_while_other_threads_count_theirs() -> None:
    exported = torch.export.export(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()), (torch.ones(2),))
    program = tosaic.from_exported(exported)
    names: list[str] = []

    def noted(name: str, graph: tosaic.program.Graph) -> None:
        names.append(name)

    before, stop = sys.getrefcount(noted), threading.Event()

    def count() -> None:
        while not stop.is_set():
            kept = [noted] * 50
            del kept

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(50):
            tosaic._core.lower(program.graph, on_change=noted)
    finally:
        stop.set()
        thread.join()
    assert names.count("legalize-tosa") == 50
    assert sys.getrefcount(noted) == before
