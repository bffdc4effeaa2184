"""`python/tosaic/_core.pyi` declares what the extension has: names, members, and parameters of functions.

pybind11 writes signatures into docstrings: ``lower(graph: Graph, *, target: str = '..') -> LoweredGraphs``.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CORE = importlib.import_module("tosaic._core")
STUB = Path(__file__).resolve().parents[1] / "python" / "tosaic" / "_core.pyi"
Parameters = tuple[list[str], list[str]]  # names of positional and of keyword-only parameters
_OF_PYBIND = "_pybind11_conduit_v1_"
_IMPLICIT = {"__iter__", "__buffer__", "__hash__"}  # of the sequence protocol and of the type in C


def declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The names that statements of a stub declare; private ones are for the stub itself."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return {name: node for name, node in found.items() if not name.startswith("_") or name.startswith("__")}


def missing(stub: dict[str, ast.stmt], module: Any) -> list[str]:
    """What only one of both has."""
    names = {name for name in dir(module) if not name.startswith("_")}
    only = [f"only the stub has {name}" for name in sorted(stub.keys() - names) if not hasattr(module, name)]
    return only + [f"only the module has {name}" for name in sorted(names - stub.keys())]


def written(node: ast.FunctionDef) -> Parameters:
    at, named = node.args.posonlyargs + node.args.args, node.args.kwonlyargs
    by_name = [each.arg for each in named] + ([f"**{node.args.kwarg.arg}"] if node.args.kwarg else [])
    variadic = [f"*{node.args.vararg.arg}"] if node.args.vararg else []
    return [each.arg for each in at if each.arg != "self"] + variadic, by_name


def _parts(text: str) -> Iterator[str]:
    """The parameters of a signature: commas inside of brackets and quotes do not part them."""
    depth, quote, part = 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[({<":
            depth += 1
        elif letter in "])}>":
            depth -= 1
        elif letter == "," and depth == 0:
            yield part.strip()
            part = ""
            continue
        part += letter
    if part.strip():
        yield part.strip()


def signatures(function: Any) -> list[Parameters]:
    """The overloads of a function of the extension, by its docstring."""
    found = []
    for match in re.finditer(r"^(?:\d+\. )?(\w+)\((.*)\) -> .*$", function.__doc__ or "", re.MULTILINE):
        if match[1] != function.__name__:
            continue
        names = [re.split(r"[:=]", part)[0].strip() for part in _parts(match[2])]
        first_named = names.index("*") if "*" in names else len(names)
        at, by_name = names[:first_named], names[first_named + 1 :]
        by_name += [name for name in at if name.startswith("**")]
        found.append(([name for name in at if name != "self" and not name.startswith("**")], by_name))
    return found


def agrees(stub: Parameters, module: Parameters) -> bool:
    """True if names and kinds are the same; pybind11 calls a parameter without a name arg0, arg1 ..."""
    own = list(module[0])
    if own and own[0] == "arg0" and len(own) == len(stub[0]) + 1:
        own = own[1:]  # self, of a method that is a lambda
    names = len(own) == len(stub[0]) and all(
        one == two or re.fullmatch(r"arg\d+", one) or (one[:1] == two[:1] == "*")
        for one, two in zip(own, stub[0], strict=True)
    )
    return names and (stub[1] == module[1] or any(name.startswith("**") for name in module[1]))


def disagreements(where: str, function: Any, node: ast.FunctionDef) -> list[str]:
    found = signatures(function)
    if not found or any(agrees(written(node), each) for each in found):
        return []
    return [f"{where}: the stub has {written(node)}, the module {found}"]


def faults(stub: str, module: Any) -> list[str]:
    body = declared(ast.parse(stub).body)
    found = missing(body, module)
    for name, node in body.items():
        own = getattr(module, name, None)
        if own is None:
            continue
        if isinstance(node, ast.FunctionDef):
            found += disagreements(name, own, node)
        elif isinstance(node, ast.ClassDef):
            members = declared(node.body)
            found += [f"{name}: {text}" for text in missing_members(members, own)]
            for member, each in members.items():
                is_method = isinstance(each, ast.FunctionDef) and not each.decorator_list
                if is_method and member in vars(own):
                    assert isinstance(each, ast.FunctionDef)
                    found += disagreements(f"{name}.{member}", vars(own)[member], each)
    return found


def missing_members(stub: dict[str, ast.stmt], own: type) -> list[str]:
    have = {name for name in vars(own) if not name.startswith("_")}
    only = [f"only the stub has {name}" for name in sorted(stub.keys() - set(dir(own)) - _IMPLICIT)]
    return only + [f"only the module has {name}" for name in sorted(have - stub.keys())]


def test_the_stub_declares_what_the_extension_has() -> None:
    assert faults(STUB.read_text(), CORE) == []


@pytest.mark.parametrize(
    ("text", "planted", "fault"),
    [
        (r"^def unfold_qdq\(graph: Graph", "def unfold_qdq(program: Graph", "unfold_qdq: the stub has"),
        (r"^def unfold_qdq", "def unfolded_qdq", "only the stub has unfolded_qdq"),
        (r"^def unfold_qdq", "def unfolded_qdq", "only the module has unfold_qdq"),
    ],
)
def test_a_planted_fault_of_the_stub_is_found(text: str, planted: str, fault: str) -> None:
    changed, count = re.subn(text, planted, STUB.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    assert any(fault in each for each in faults(changed, CORE))
