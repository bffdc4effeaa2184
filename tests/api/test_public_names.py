"""Public names: each stands in one stub, and texts for users write it as it can be imported."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tosaic
from tosaic.base.public_names import public_names

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "tosaic"
MOST_AT_THE_TOP = 49
STUBS = [PACKAGE / "__init__.pyi", *sorted(PACKAGE.glob("*/**/__init__.pyi"))]
OTHER_NAMES = {"tosaic.model", "tosaic.model.graph"}  # operators of custom domains


def package_of(stub: Path) -> str:
    return ".".join(stub.relative_to(ROOT / "python").parent.parts)


PACKAGES = [package_of(stub) for stub in STUBS]
AREAS = PACKAGES[1:]


def names_of(package: str) -> dict[str, str]:
    """Returns the public names of a package that are no folders, each with the module that has it."""
    folder = ROOT / "python" / Path(*package.split("."))
    return {name: home for name, home in public_names(package, str(folder)).items() if home != package}


def test_the_top_has_few_names_and_every_area() -> None:
    assert len(tosaic.__all__) <= MOST_AT_THE_TOP
    folders = {f"tosaic.{name}" for name in dir(tosaic)} - {f"tosaic.{name}" for name in tosaic.__all__}
    assert folders == {*AREAS, "tosaic.cli"}


def test_each_public_name_stands_at_one_place() -> None:
    places: dict[Any, list[str]] = {}
    for package in PACKAGES:
        for name, home in names_of(package).items():
            places.setdefault((home, name), []).append(package)
            found = getattr(importlib.import_module(package), name)
            if callable(found):
                places.setdefault(id(found), []).append(f"{package}.{name}")
    assert [each for each in places.values() if len(each) > 1] == []


def test_all_errors_are_at_the_top() -> None:
    public = [
        getattr(importlib.import_module(package), name) for package in AREAS for name in names_of(package)
    ]
    assert [each for each in public if isinstance(each, type) and issubclass(each, tosaic.Error)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_the_names_of_its_stub(package: str) -> None:
    module = importlib.import_module(package)
    names = names_of(package)
    assert module.__all__ == list(names)
    assert set(names) <= set(dir(module))
    starred: dict[str, Any] = {}
    exec(f"from {package} import *", starred)
    assert starred.keys() - {"__builtins__"} == set(names)
    for name, home in names.items():
        assert starred[name] is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("package", AREAS)
def test_no_module_has_the_name_of_a_public_object_of_its_package(package: str) -> None:
    """The module would take the place of the object when something imports it."""
    folder = ROOT / "python" / Path(*package.split("."))
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules.isdisjoint(names_of(package))


def test_an_unknown_name_of_an_area_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'tosaic\.partitions' has no attribute 'Plan'"):
        tosaic.partitions.Plan  # type: ignore[attr-defined]  # noqa: B018


def test_areas_load_neither_the_core_nor_numpy_until_a_name_is_used() -> None:
    code = f"""
import sys, {", ".join(AREAS)}
print(*sorted({{"numpy", "torch", "tosaic._core"}} & set(sys.modules)))
print(sum(name.startswith("tosaic.") for name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, count = done.stdout.split("\n")[:2]
    assert loaded == ""
    # areas, the verbs with their table, and what reads the stubs
    assert int(count) <= len(AREAS) + 6


# ---- texts ----

# A name after `tosaic.`, not as part of a path, of an address or of a name of C++.
DOTTED = re.compile(r"(?<![\w./\\-])tosaic(?:\.[A-Za-z_]\w*)+(?![\w/]|\.\w|-)")
IMPORTED = re.compile(r"^\W*from (tosaic[\w.]*) import (\([^)]*\)|[^\n#\\\"]+)", re.MULTILINE)


def written_names(text: str) -> set[str]:
    """Returns the dotted names below tosaic that a text writes, and those that its code imports."""
    found = set(DOTTED.findall(text))
    for module, names in IMPORTED.findall(text):
        found |= {f"{module}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?", names)}
    return found


def is_there(dotted: str) -> bool:
    """True if the name is public, a module, or an attribute of one of these."""
    found: Any = tosaic
    path = "tosaic"
    for part in dotted.split(".")[1:]:
        path = f"{path}.{part}"
        if isinstance(found, ModuleType):
            stub = path.rpartition(".")[0]
            known = public_names(stub, found.__path__[0]) if stub in PACKAGES else None
            module = ROOT / "python" / Path(*path.split("."))
            if module.is_dir() or module.with_suffix(".py").exists() or path == "tosaic._core":
                found = importlib.import_module(path)
                continue
            if known is not None and part not in known:
                return False
        elif not isinstance(found, type):
            return True
        if not hasattr(found, part):
            return part in getattr(found, "__annotations__", {})
        found = getattr(found, part)
    return True


def text_of(path: Path) -> str:
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n".join("".join(cell["source"]) + "\n" for cell in cells)


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
FOR_USERS = [
    *(ROOT / "docs" / "guide").glob("*.md"),
    *(ROOT / "docs" / "howto").glob("*.md"),
    *(ROOT / "notebooks").glob("*.ipynb"),
    ROOT / "README.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_exists(page: Path) -> None:
    names = written_names(text_of(page))
    assert [name for name in sorted(names) if not is_there(name)] == []


def test_pages_for_users_name_public_places() -> None:
    """Not the module in an area that has the object, which may move."""
    found = {}
    for page in FOR_USERS:
        for name in written_names(text_of(page)):
            area, _, rest = name.partition(".")[2].partition(".")
            inside = rest.split(".")[0]
            if f"tosaic.{area}" in AREAS and inside and inside not in names_of(f"tosaic.{area}"):
                found[name] = page.name
    assert found == {}


def test_what_texts_of_the_sources_name_exists() -> None:
    files = [
        *PACKAGE.rglob("*.py"),
        *(path for folder in ("cpp", "bindings") for path in (ROOT / folder).rglob("*.[ch]*")),
    ]
    assert len(files) > 800
    missing = {
        name: path.relative_to(ROOT).as_posix()
        for path in files
        for name in sorted(set(DOTTED.findall(path.read_text())) - OTHER_NAMES)
        if not is_there(name)
    }
    assert missing == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pass a `tosaic.PartitionPlan`", "tosaic.PartitionPlan"),
        ("tosaic.partitions.PartitionPlan.groups and tosaic.partitions.Plan", "tosaic.partitions.Plan"),
        (">>> from tosaic import lower, rgba", "tosaic.rgba"),
        ("from tosaic.fx import (\n    Quantizer,\n)", "tosaic.fx.Quantizer"),
        ("tosaic.Program.lowerr, tosaic.Program.run", "tosaic.Program.lowerr"),
    ],
)
def test_a_planted_name_that_does_not_exist_is_found(text: str, wrong: str) -> None:
    assert [name for name in written_names(text) if not is_there(name)] == [wrong]


SCRIPT = """
import tosaic
import tosaic.partitions.plan
from tosaic.fx import apply_layout
from tosaic.pte import PteMethod

def groups(plan: tosaic.partitions.PartitionPlan) -> list[tosaic.partitions.Group]:
    return list(plan.groups)

def first(file: tosaic.PteFile) -> PteMethod:
    return file.methods["forward"]

same: type[tosaic.partitions.PartitionPlan] = tosaic.partitions.plan.PartitionPlan
wrong: int = tosaic.Pipeline.default("TOSA-1.0+FP")
tosaic.PartitionPlan
tosaic.partitions.Plan
"""


def test_a_type_checker_finds_the_names_of_areas_and_no_others(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    errors = [line.partition("error: ")[2] for line in done.stdout.splitlines() if "script.py" in line]
    assert errors == [
        'Incompatible types in assignment (expression has type "Pipeline", variable has type "int")  '
        "[assignment]",
        'Module has no attribute "PartitionPlan"  [attr-defined]',
        'Module has no attribute "Plan"  [attr-defined]',
    ], done.stdout + done.stderr
