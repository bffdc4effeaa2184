"""Verbs, which methods call and higher folders have, and the functions that make reports of results."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tosaic
from tosaic.base.bindings import BINDINGS
from tosaic.base.reportable import Reportable
from tosaic.base.verbs import Verb
from tosaic.report.registry import DESCRIPTIONS

PACKAGE = Path(tosaic.__file__).parent


def modules(word: str) -> Iterator[tuple[str, ast.Module]]:
    """Yields the modules of the package in which a word occurs."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if word in text:
            yield ".".join(["tosaic", *path.relative_to(PACKAGE).with_suffix("").parts]), ast.parse(text)


def declared_verbs() -> dict[str, str]:
    """Returns the module of each function that `Verb` decorates."""
    return {
        node.name: name
        for name, tree in modules("@Verb")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "Verb" for d in node.decorator_list)
    }


def test_each_verb_is_bound_and_nothing_else_is() -> None:
    assert set(BINDINGS) == set(declared_verbs())


def test_a_binding_binds_the_verb_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A binding of another verb would leave this one without a function."""
    for name, module in declared_verbs().items():
        verb = getattr(importlib.import_module(module), name)
        assert isinstance(verb, Verb)
        assert verb.name == name
        bound: list[Any] = []
        monkeypatch.setattr(verb, "bind", bound.append)
        BINDINGS[name]()
        assert [callable(each) for each in bound] == [True], name


def test_a_verb_calls_what_it_is_bound_to(monkeypatch: pytest.MonkeyPatch) -> None:
    @Verb
    def doubled(number: int, /) -> int:
        raise NotImplementedError

    bound: list[str] = []

    def bind() -> None:
        bound.append("once")
        doubled.bind(lambda number: 2 * number)

    monkeypatch.setitem(BINDINGS, "doubled", bind)
    assert (doubled(2), doubled(3), bound) == (4, 6, ["once"])


def reportables() -> dict[str, type[Any]]:
    """Returns the subclasses of `Reportable` in the package, by name."""
    for name, _ in modules("Reportable"):
        importlib.import_module(name)
    found: dict[str, type[Any]] = {}
    waiting: list[type[Any]] = [Reportable]
    for kind in waiting:
        own = [each for each in kind.__subclasses__() if each.__module__.startswith("tosaic.")]
        waiting += own
        found |= {each.__name__: each for each in own}
    return found


def test_each_result_has_a_function_that_describes_it() -> None:
    """Base classes of several results, and results that have the report of their base, have no row."""
    kinds = reportables()
    assert set(kinds) >= set(DESCRIPTIONS)
    for name, kind in kinds.items():
        described = [each.__name__ for each in kind.__mro__ if each.__name__ in DESCRIPTIONS]
        assert described or kind.__subclasses__(), f"{name} has no report"


@pytest.mark.parametrize("name", sorted(DESCRIPTIONS))
def test_the_function_of_a_class_takes_an_object_of_it(name: str) -> None:
    module, function = DESCRIPTIONS[name]
    first, *others = inspect.signature(getattr(importlib.import_module(module), function)).parameters.values()
    assert first.annotation == name
    assert all(each.default is not inspect.Parameter.empty for each in others)
