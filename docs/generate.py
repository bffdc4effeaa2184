"""Writes the generated pages: run it after the operator table or a docstring changed.

    python docs/generate.py

docs/reference/operators.md is the output of `tosaic ops --markdown`: it counts and lists the operators, and
says in which dtypes they run and lower. docs/reference/api.md has the docstrings of what the public modules
list.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from markdown_page import wrapped  # noqa: E402


def operators_page() -> str:
    from tosaic import _core
    from tosaic.report.operators import operators_document

    return operators_document(_core.ops())


# ---- docs/reference/api.md ----

API_MODULES = (
    "tosaic",
    "tosaic.calibration.accuracy",
    "tosaic.annotation",
    "tosaic.fx",
    "tosaic.lowering.layout",
    "tosaic.lowering.reference_model",
    "tosaic.testing",
    "tosaic.base.target",
    "tosaic.devices",
    "tosaic.cost",
    "tosaic.cli.demo",
    "tosaic.executorch",
)
_INTRODUCTION = """# API

Generated from the docstrings by `docs/generate.py`. An option of a wrong type or value is refused with
`tosaic.InvalidGraph`; every error of tosaic is a `tosaic.Error`.
"""


def api_page() -> str:
    """Returns all that the public modules list, with its docstrings."""
    lines = [_INTRODUCTION]
    for name in API_MODULES:
        module = importlib.import_module(name)
        lines += [f"## {name}", "", _paragraphs(inspect.getdoc(module) or "").partition("\n\n")[0], ""]
        for public in module.__all__:
            lines += _entry(module, public)
    return wrapped("\n".join(lines).rstrip() + "\n")


def _entry(module: ModuleType, name: str) -> Iterator[str]:
    found = getattr(module, name)
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        return  # a number, or a name for a type
    call = _call(found) if inspect.isroutine(found) else ""
    yield from (f"### `{module.__name__}.{name}{call}`", "", _paragraphs(documented(found)), "")
    if inspect.isclass(found):
        members = dict(_members(found))
        yield from ["**Properties and methods**", ""] if members else []
        yield from (f"- {text}" for text in members.values())
        yield from [""] if members else []


def _members(found: type) -> Iterator[tuple[str, str]]:
    """Yields properties and methods, also our inherited ones, each with the first line of its docstring."""
    for owner in (found, *(base for base in found.__mro__[1:] if base.__module__.startswith("tosaic"))):
        if issubclass(owner, BaseException):
            return
        for name, member in vars(owner).items():
            function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            is_property = isinstance(member, property | cached_property)
            is_method = inspect.isroutine(function) and not is_property
            if name.startswith("_") or not (is_method or is_property):
                continue
            first = " ".join(_paragraphs(documented(function)).partition("\n\n")[0].split())
            kind = "" if is_method else _declared_types().get((owner.__name__, name), "")
            title = f"`{name}{_call(function) if is_method else ''}`" + (f" ({kind})" if kind else "")
            yield name, title + (f": {first}" if first else "")


@cache
def _declared_types() -> dict[tuple[str, str], str]:
    """Returns the types of the properties of the core's classes, by class and property, from its stub."""
    stub = ast.parse((ROOT / "python" / "tosaic" / "_core.pyi").read_text())

    def text(annotation: ast.expr) -> str:
        found = ast.unparse(annotation).replace("|", "or").replace("'", "`")
        found = re.sub(r"Literal\[(.*)\]", lambda choice: choice[1].replace(", ", " or "), found)
        return found.replace("npt.NDArray[np.generic]", "numpy.ndarray")

    return {
        (owner.name, member.name): text(member.returns)
        for owner in stub.body
        if isinstance(owner, ast.ClassDef)
        for member in owner.body
        if isinstance(member, ast.FunctionDef) and member.decorator_list and member.returns is not None
    }


def documented(found: Any) -> str:
    """Returns the docstring, without the line of types that pybind11 puts in front."""
    text = inspect.getdoc(found) or ""
    first, _, rest = text.partition("\n")
    return rest.strip() if re.match(r"\w+\(.*\) -> ", first) else text


def _call(function: Any) -> str:
    """Returns names and defaults of the parameters; types stand in the docstring."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return "(...)"
    parts, is_open = [], True
    for p in parameters:
        if p.name in ("self", "cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and is_open:
            parts.append("*")
        is_open = is_open and p.kind not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        parts.append(mark + p.name + ("" if p.default is p.empty else f"={p.default!r}"))
    return f"({', '.join(parts)})"


def _paragraphs(text: str) -> str:
    """Returns a NumPy docstring as Markdown: sections in bold, entries as a list, examples as they are."""
    out: list[str] = []
    lines = text.replace("``", "`").splitlines()
    section = ""
    for at, line in enumerate(lines):
        if set(line) == {"-"}:
            continue
        if at + 1 < len(lines) and lines[at + 1] and set(lines[at + 1]) == {"-"}:
            if section == "Examples":
                out.append("```")
            section = line
            out += [f"**{line}**", ""]
            out += ["```pycon"] if section == "Examples" else []
        elif section in ("", "Examples", "Notes"):
            out.append(line)
        elif line.startswith(" "):
            out[-1] += (": " if out[-1].startswith("- ") and ": " not in out[-1] else " ") + line.strip()
        elif line:
            name, _, kind = line.partition(" : ")
            out.append(f"- `{name}`" + (f" ({kind})" if kind else ""))
        else:
            out.append(line)
    while out and not out[-1]:
        out.pop()
    return "\n".join([*out, *(["```"] if section == "Examples" else [])])


def main() -> None:
    (ROOT / "docs" / "reference" / "operators.md").write_text(operators_page())
    (ROOT / "docs" / "reference" / "api.md").write_text(api_page())


if __name__ == "__main__":
    main()
