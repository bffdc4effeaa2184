"""The stub of the extension declares what the extension has, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tosaic import _core

STUB = Path(__file__).resolve().parents[2] / "python" / "tosaic" / "_core.pyi"
# Methods that the stub has for type checkers only. The extension does without them: Python iterates its
# sequences by index, and pybind11 serves the buffer protocol without a method.
_FOR_CHECKERS = frozenset({"__iter__", "__buffer__"})
_OF_EVERY_CLASS = frozenset(dir(object)) | {"__dict__", "__module__", "__weakref__", "__annotations__"}


def declared(tree: ast.AST) -> dict[str, ast.stmt]:
    """Returns the declarations in a module or class by name."""
    found: dict[str, ast.stmt] = {}
    for each in ast.iter_child_nodes(tree):
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            found[each.name] = each
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = each
        elif isinstance(each, ast.Assign):
            found |= {target.id: each for target in each.targets if isinstance(target, ast.Name)}
    return {name: each for name, each in found.items() if not _is_type_alias(name, each)}


def _is_type_alias(name: str, each: ast.stmt) -> bool:
    """True for a name of the stub alone: a type variable, another name of a type, fields, or a base."""
    if not name.startswith("_") or name.startswith("__"):
        return False
    return isinstance(each, ast.ClassDef | ast.Assign | ast.AnnAssign)


def names_of(owner: Any) -> set[str]:
    """Returns the names that a module or class defines itself."""
    if isinstance(owner, ModuleType):
        return {name for name in vars(owner) if not name.startswith("__")}
    return {name for name in vars(owner) if name not in _OF_EVERY_CLASS and not name.startswith("_pybind11")}


def differences(owner: Any, tree: ast.AST, where: str = "") -> list[str]:
    """Returns the names that only the stub or only the extension has."""
    stub = declared(tree)
    exempt = {"__init__", "__iter__", "__next__", "__eq__", "__hash__", "__getstate__", "__setstate__"}
    missing = [name for name in stub if not hasattr(owner, name) and name not in _FOR_CHECKERS]
    found = [f"only the stub has {where}{name}" for name in missing]
    for name in sorted(names_of(owner) - stub.keys() - exempt):
        inherited = not isinstance(owner, ModuleType) and any(hasattr(base, name) for base in owner.__bases__)
        if not inherited:
            found.append(f"only the extension has {where}{name}")
    for name, each in stub.items():
        if isinstance(each, ast.ClassDef) and hasattr(owner, name):
            found += differences(getattr(owner, name), each, f"{where}{name}.")
    return found


def parsed() -> ast.Module:
    return ast.parse(STUB.read_text())


def test_the_stub_declares_what_the_extension_has() -> None:
    assert differences(_core, parsed()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def no_such_function() -> int: ...", "only the stub has no_such_function"),
        ("", "only the extension has Graph"),
    ],
)
def test_a_planted_difference_is_found(text: str, message: str) -> None:
    tree = ast.parse(text) if not text else ast.Module([*parsed().body, *ast.parse(text).body], [])
    assert message in differences(_core, tree)
