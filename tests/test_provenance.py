"""No code derives a meaning from the name of a value, node, variable or tensor.

Names are for people, and for the files in which they identify a tensor. Facts about a value on which code
depends are data: an id, an origin, a field, an attribute. A name may be compared as a whole; a part of it
says nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OWNER = r"(?:value|node|tensor|variable|constant|input|output|result|fresh|old|port)s?"
CPP_PART = r"(?:starts_with|ends_with|contains|find(?:_\w+)?|rfind|substr)\("
CPP = re.compile(
    # value.name.find(, graph.value(id).name.starts_with(, node->name.substr(
    rf"\b{OWNER}(?:\([^()]*\)|\[[^\]]*\])?(?:\.|->)name(?:\(\))?\.{CPP_PART}"
    # node_name(node).find(, result_name.substr(
    rf"|\b(?:node|value|result|tensor)_name(?:\([^;()]*\))?\.{CPP_PART}"
)
PYTHON_PART = r"(?:startswith|endswith|split|rsplit|partition|rpartition|removeprefix|removesuffix|find)\("
PYTHON = re.compile(rf"\b{OWNER}\.name\.{PYTHON_PART}|\bre\.\w+\([^)]*\b{OWNER}\.name\b")


def parts_of_names(root: Path) -> list[str]:
    """Returns the lines of our sources that look at a part of a name."""
    found = []
    for folder, suffixes, pattern in (
        ("cpp", {".h", ".cpp"}, CPP),
        ("bindings", {".h", ".cpp"}, CPP),
        ("python", {".py"}, PYTHON),
    ):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in suffixes:
                continue
            text = path.read_text()
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(root).as_posix()}:{line}: {match[0]}")
    return found


def test_no_code_looks_at_a_part_of_a_name() -> None:
    assert parts_of_names(ROOT) == []


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("cpp/tosaic/ir/a.cpp", 'if (fresh.name.starts_with(prefix + ".")) rename();'),
        ("cpp/tosaic/ir/a.cpp", 'if (graph.value(id).name.ends_with(".order")) skip();'),
        ("cpp/tosaic/ir/a.h", "return graph.node_name(node).substr(0, 3);"),
        ("bindings/a.cpp", "const auto dot = input->name.find('.');"),
        ("python/tosaic/a.py", 'if node.name.endswith(".order"):\n    pass'),
        ("python/tosaic/a.py", 'owner = value.name.rpartition(".")[0]'),
        ("python/tosaic/a.py", 'if re.match(r"conv\\d+", node.name):\n    pass'),
    ],
)
def test_a_planted_look_at_a_part_of_a_name_is_found(tmp_path: Path, where: str, text: str) -> None:
    (tmp_path / where).parent.mkdir(parents=True)
    (tmp_path / where).write_text(f"\n{text}\n")
    (found,) = parts_of_names(tmp_path)
    assert found.startswith(f"{where}:2: ")


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("cpp/tosaic/ir/a.cpp", "if (graph.value(id).name == name) return id;"),
        ("cpp/tosaic/ir/a.cpp", "const std::string text(info(node.op).name.substr(5));"),
        ("python/tosaic/a.py", "found = values.get(port.name)"),
    ],
)
def test_whole_names_and_names_of_operators_are_not_reported(tmp_path: Path, where: str, text: str) -> None:
    (tmp_path / where).parent.mkdir(parents=True)
    (tmp_path / where).write_text(text)
    assert parts_of_names(tmp_path) == []
