"""The C++ package: its public headers, and the examples of its page built against an installed package.

The commands come from docs/guide/cpp_library.md, with other folders. `tests/run` has built the
libraries for the wheel, and names that build tree in TOSAIC_BUILD. Without this variable, the libraries are
built in build/package, which takes minutes the first time.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_layering import INCLUDE

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "guide" / "cpp_library.md").read_text()
COMMANDS = re.findall(r"^\$ (cmake .*)$", PAGE, re.MULTILINE)
# A program of the examples, its argument, and what the page says that it prints.
RUNS = re.findall(r"^\$ build/examples/(\w+) (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

needs_compiler = pytest.mark.skipif(
    not shutil.which("cmake") or not shutil.which("c++"), reason="needs CMake and a C++ compiler"
)


# ---- which headers are public ----


def public_headers(root: Path) -> list[str]:
    table = re.search(r"set\(TOSAIC_PUBLIC_HEADERS([^)]*)\)", (root / "CMakeLists.txt").read_text())
    assert table, "CMakeLists.txt has no TOSAIC_PUBLIC_HEADERS"
    return table[1].split()


def public_header_violations(root: Path) -> list[str]:
    """Finds public headers that do not exist, are private to a folder, or include what users do not have.

    A public header includes public headers and the standard library only. Headers of a folder inside a layer
    are private, except the one named as the folder.
    """
    public = public_headers(root)
    found = []
    for name in public:
        path = root / "cpp" / name
        if not path.exists():
            found.append(f"{name} does not exist")
            continue
        if path.parents[2].name == "tosaic" and path.stem != path.parent.name:
            found.append(f"{name} is private to its folder")
        for quote, included in INCLUDE.findall(path.read_text()):
            if included.startswith("tosaic/"):
                if included not in public:
                    found.append(f"{name} includes {included}, which is not public")
            elif quote == '"' or not re.fullmatch(r"[a-z_]+", included):
                found.append(f"{name} includes {included}, which is not of the standard library")
    return found


def test_public_headers_include_public_headers_and_the_standard_library_only() -> None:
    assert public_header_violations(ROOT) == []


@pytest.mark.parametrize(
    ("header", "text", "violation"),
    [
        ("tosaic/ir/a.h", None, "tosaic/ir/a.h does not exist"),
        ("tosaic/ir/a.h", '#include "tosaic/ir/b.h"', "includes tosaic/ir/b.h, which is not public"),
        (
            "tosaic/ir/a.h",
            "#include <Eigen/Core>",
            "includes Eigen/Core, which is not of the standard library",
        ),
        ("tosaic/ir/a.h", "#include <Python.h>", "includes Python.h, which is not of the standard library"),
        ("tosaic/ir/a.h", '#include "vector"', "includes vector, which is not of the standard library"),
        ("tosaic/passes/qdq/a.h", "", "tosaic/passes/qdq/a.h is private to its folder"),
    ],
)
def test_a_planted_violation_of_a_public_header_is_found(
    tmp_path: Path, header: str, text: str | None, violation: str
) -> None:
    (tmp_path / "CMakeLists.txt").write_text(f"set(TOSAIC_PUBLIC_HEADERS\n  {header}\n)\n")
    if text is not None:
        path = tmp_path / "cpp" / header
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (found,) = public_header_violations(tmp_path)
    assert violation in found


def test_the_header_of_a_folder_may_be_public(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text("set(TOSAIC_PUBLIC_HEADERS tosaic/passes/qdq/qdq.h)\n")
    (tmp_path / "cpp" / "tosaic" / "passes" / "qdq").mkdir(parents=True)
    (tmp_path / "cpp" / "tosaic" / "passes" / "qdq" / "qdq.h").write_text("#include <vector>\n")
    assert public_header_violations(tmp_path) == []


# ---- the installed package ----


def run(command: str, cwd: Path = ROOT) -> str:
    """Returns what a shell command prints. A command that fails fails the test, with all that it printed."""
    environment = os.environ | {"CMAKE_PREFIX_PATH": sysconfig.get_path("platlib")}  # flatc of tosa-tools
    if shutil.which("ninja"):
        environment["CMAKE_GENERATOR"] = "Ninja"
    done = subprocess.run(command, shell=True, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def build_tree() -> Path:
    """Returns a build tree that has the libraries."""
    if "TOSAIC_BUILD" in os.environ:
        return ROOT / os.environ["TOSAIC_BUILD"]
    tree = ROOT / "build" / "package"
    tree.mkdir(parents=True, exist_ok=True)
    with (tree / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest may come here
        for command in COMMANDS[:2]:
            run(command.replace("build/cpp", str(tree)))
    return tree


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of an installed package."""
    prefix = tmp_path_factory.mktemp("prefix")
    run(COMMANDS[2].replace("build/cpp", str(build_tree())).replace("build/prefix", str(prefix)))
    return prefix


@needs_compiler
def test_the_package_has_public_headers_libraries_version_and_licence(prefix: Path) -> None:
    headers = {path.relative_to(prefix / "include").as_posix() for path in (prefix / "include").rglob("*.*")}
    assert headers == set(public_headers(ROOT))
    files = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
    assert "share/doc/tosaic/LICENSE" in files
    libraries = {Path(name).name for name in files if name.endswith((".a", ".so"))}
    assert libraries >= {"libtosaic_ir.a", "libtosaic_exec.a", "libtosaic_pipeline.a"}
    assert not [name for name in libraries if not name.startswith("libtosaic_")]
    (version,) = prefix.glob("lib*/**/tosaic-config-version.cmake")
    (expected,) = re.findall(r"project\(tosaic VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert f'set(PACKAGE_VERSION "{expected}")' in version.read_text()


@needs_compiler
def test_each_public_header_compiles_alone(prefix: Path, tmp_path: Path) -> None:
    source = tmp_path / "alone.cpp"
    for header in public_headers(ROOT):
        if header.endswith(".h"):
            source.write_text(f"#include <{header}>\n")
            run(f"c++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I{prefix}/include {source}")


@needs_compiler
def test_the_examples_are_built_against_the_package_and_print_what_the_page_shows(
    prefix: Path, tmp_path: Path
) -> None:
    for command in COMMANDS[3:]:
        run(command.replace("$PWD/build/prefix", str(prefix)).replace("build/examples", str(tmp_path)))
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "relu.py").write_text(code)
    run(f"{sys.executable} relu.py", cwd=tmp_path)
    assert [program for program, _, _ in RUNS] == ["run_file", "lower_network"]
    for program, argument, printed in RUNS:
        assert run(f"./{program} {argument}", cwd=tmp_path) == printed
