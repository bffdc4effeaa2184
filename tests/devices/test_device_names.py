"""A device's name stands in its record, in tests and in docs only.

The records are in ``cpp/tosaic/claimant/devices``, ``cpp/tosaic/cost/devices`` and
``python/tosaic/devices``. The test reads the names from the records, and looks for them in identifiers and
in strings of all other sources. Explanations may name a device: comments, and docstrings.

One exception is a rule: ExecuTorch has a library of kernels that it calls after a CPU. Its names are
``cortex_m`` in identifiers, paths and operators, ``Cortex-M`` in messages, and modules of ours about it are
called ``cortex_m``. `cortex-m`, as claimants are spelled, is the name of a device. So are the other names in
paths of ExecuTorch's own modules ("executorch.backends.arm.vgf").
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import tosaic.devices

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ("cpp/tosaic/claimant/devices", "cpp/tosaic/cost/devices", "python/tosaic/devices")
NO_DEVICES = {"host", "grid-sampler"}  # who computes the rest, and an operator, which has its name elsewhere
FOLDERS = {"cpp": (".cpp", ".h", ".def"), "bindings": (".cpp", ".h"), "python": (".py",)}
LIBRARY = re.compile(r"(^|[._/])cortex_m(_[a-z_]+)?(\.py|/|$)")
EXECUTORCH = re.compile(r"executorch(\.\w+)+")
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)


def device_names() -> list[str]:
    """The names of families, without the number of a member: `ethos-u`, `cortex-m`."""
    families = {each.name for each in tosaic.devices.devices()} - NO_DEVICES
    return sorted({re.sub(r"\d+$", "", name) for name in families})


def pattern(names: list[str], *, is_library: bool) -> re.Pattern[str]:
    """Returns what finds names as strings have them, `ethos-u55`, and identifiers, `EthosU` or `ETHOS_U`."""
    found = []
    for name in names:
        parts = name.split("-")
        if parts == ["cortex", "m"]:
            found += [] if is_library else ["cortex-m"]
        else:
            found.append("(?i:" + "[-_ ]?".join(parts) + ")")
    return re.compile("|".join(found))


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yields identifiers and strings of Python that are not docstrings, without ExecuTorch's modules."""
    documentation = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    imported: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            if module.startswith("executorch"):
                imported.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type in (tokenize.NAME, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))
        if is_text and token.start not in documentation and token.start[0] not in imported:
            yield token.start[0], EXECUTORCH.sub("", token.string)


def cpp_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yields the lines of C++ without comments."""
    plain = COMMENT.sub(lambda match: match[1] or "\n" * match[0].count("\n"), source)
    yield from enumerate(plain.splitlines(), 1)


def misplaced_names(root: Path) -> list[str]:
    """Finds names of devices outside of the records."""
    names, found = device_names(), []
    for folder, suffixes in FOLDERS.items():
        for path in sorted((root / folder).rglob("*")):
            where = path.relative_to(root).as_posix()
            if path.suffix not in suffixes or where.startswith(RECORDS):
                continue
            wanted = pattern(names, is_library=LIBRARY.search(where) is not None)
            texts = (python_texts if path.suffix == ".py" else cpp_texts)(path.read_text())
            found += [f"{where}:{line}: {text.strip()}" for line, text in texts if wanted.search(text)]
    return found


def test_a_name_of_a_device_stands_in_its_record_only() -> None:
    assert device_names() == ["cortex-m", "ethos-u", "neutron", "vgf"]
    assert misplaced_names(ROOT) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("python/tosaic/a.py", 'if name == "ethos-u55-128":\n    pass'),
        ("python/tosaic/a.py", "def EthosU(): ..."),
        ("python/tosaic/a.py", 'x = f"for {a} on Neutron"'),
        ("python/tosaic/a.py", 'KIND = "cortex-m"'),
        ("cpp/tosaic/a.cpp", "// about it\nbool is_vgf = true;"),
        ("bindings/a.cpp", 'auto x = "http://vgf"; // y'),
    ],
)
def test_a_planted_name_is_found(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert len(misplaced_names(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("python/tosaic/a.py", '"""Runs on a Neutron."""\n# and on vgf\nx = 1'),
        ("python/tosaic/a.py", 'def f():\n    """For `vgf`."""'),
        ("python/tosaic/a.py", 'x = "executorch.backends.arm.vgf.shaders"'),
        ("python/tosaic/a.py", "from executorch.backends.arm.vgf import compiler"),
        ("python/tosaic/a.py", 'x = "cortex_m::quantized_conv2d"'),
        ("python/tosaic/executorch/cortex_m/b.py", 'x = "cortex-m55"'),
        ("python/tosaic/devices/mine.py", 'x = "ethos-u55-128"'),
        ("cpp/tosaic/a.h", "/* vgf\n */ int x; // neutron"),
    ],
)
def test_what_explains_and_what_is_of_executorch_may_name_a_device(
    tmp_path: Path, file: str, text: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert misplaced_names(tmp_path) == []
