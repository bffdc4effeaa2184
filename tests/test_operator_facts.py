"""What the code knows about an operator is in its row of `ops.def`, or in one table for each family.

A `switch` over operators with a `default` decides silently for an operator that is added later, and so does a
chain of comparisons. The compiler checks a row, a table (`ir/op_table.h`) and an exhaustive `switch`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A comment in front of a switch that may have a default, with the reason: `// open switch: ...`.
EXCEPTION = re.compile(r"// open switch: \S.*\n\s*$")
# Their tables are of some operators of several families: arithmetic of i64, members of a chain, what can be
# computed in parts.
NO_FAMILY = {"legalize_wide_integers.cpp", "unit_axes.cpp", "split_attentions.cpp"}
CHAIN = 4  # an expression with this many comparisons with operators should be a table


def _without_text(source: str) -> str:
    """Returns the source with comments and strings replaced by spaces, so that all positions stay."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found.group()), source, flags=re.DOTALL)


def _end_of_block(code: str, start: int) -> int:
    """Returns the position after the closing brace of the block that begins at `start`."""
    depth = 0
    for position in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[position], 0)
        if depth == 0:
            return position + 1
    return len(code)


def _switches(code: str) -> Iterator[tuple[int, str]]:
    """Yields the position and the body of each switch; a body has no switches that are inside it."""
    for found in re.finditer(r"\bswitch\s*\(", code):
        start = code.index("{", found.end())
        body = code[start : _end_of_block(code, start)]
        inner = re.search(r"\bswitch\s*\(", body)
        while inner is not None:
            end = _end_of_block(body, body.index("{", inner.end()))
            body = body[: inner.start()] + body[end:]
            inner = re.search(r"\bswitch\s*\(", body)
        yield found.start(), body


def violations(root: Path) -> list[str]:
    """Returns the switches over operators that have a default, and the chains of comparisons."""
    found = []
    for path in sorted((root / "cpp" / "tosaic").rglob("*")) + sorted((root / "bindings").rglob("*")):
        if path.suffix not in (".cpp", ".h"):
            continue
        source = path.read_text()
        code = _without_text(source)

        def place(position: int, code: str = code, path: Path = path) -> str:
            return f"{path.relative_to(root)}:{code.count(chr(10), 0, position) + 1}"

        for position, body in _switches(code):
            line = source.rfind("\n", 0, position) + 1
            is_open = "case Op::" in body and re.search(r"\bdefault\s*:", body)
            if is_open and not EXCEPTION.search(source[:line]):
                found.append(f"{place(position)}: a switch over operators has a default")
        for statement in re.finditer(r"[^;{}]+", code):
            if len(re.findall(r"[=!]= Op::k", statement.group())) >= CHAIN:
                start = statement.start() + len(statement.group()) - len(statement.group().lstrip())
                found.append(f"{place(start)}: {CHAIN} or more comparisons with operators")
    return found


def test_no_switch_over_operators_has_a_default_and_no_chain_compares_four() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        (
            "int f(Op op) {\n  switch (op) {\n    case Op::kAdd: return 1;\n    default: return 0;\n  }\n}",
            2,
            "switch",
        ),
        ("// open switch:\nswitch (op) { case Op::kAdd: return 1; default: return 0; }", 2, "switch"),
        (
            "switch (x) {\n case 1:\n  switch (op) { case Op::kAdd: return 1; default: break; }\n}",
            3,
            "switch",
        ),
        (
            "bool f(Op op) {\n  return op == Op::kA || op == Op::kB || op == Op::kC ||\n op == Op::kD;\n}",
            2,
            "4",
        ),
        (
            "bool f(Op op) {\n  return op != Op::kA && op != Op::kB && op != Op::kC && op != Op::kD;\n}",
            2,
            "4",
        ),
    ],
)
def test_a_planted_open_decision_is_found(tmp_path: Path, code: str, line: int, message: str) -> None:
    file = tmp_path / "cpp" / "tosaic" / "ir" / "a.cpp"
    file.parent.mkdir(parents=True)
    file.write_text(code)
    (found,) = violations(tmp_path)
    assert found.startswith(f"cpp/tosaic/ir/a.cpp:{line}: ")
    assert message in found


@pytest.mark.parametrize(
    "code",
    [
        "switch (dtype) { case DType::kF32: return 1; default: return 0; }",
        "switch (op) { case Op::kAdd: return 1; case Op::kSub: return 0; }",
        "// switch (op) { case Op::kAdd: default: }",
        "// open switch: the operators of others have no enumerator\n"
        "switch (op) { case Op::kAdd: return 1; default: return 0; }",
        "switch (op) { case Op::kAdd: switch (x) { default: return 1; } }",
        "return op == Op::kA || op == Op::kB || op == Op::kC;",
    ],
)
def test_decisions_that_the_compiler_checks_are_allowed(tmp_path: Path, code: str) -> None:
    file = tmp_path / "bindings" / "a.cpp"
    file.parent.mkdir()
    file.write_text(code)
    assert violations(tmp_path) == []


# ---- the walk-through of CONTRIBUTING.md ----


def quoted_code(page: str, operator: str = "hypot") -> list[tuple[str, str]]:
    """Returns the file and the code of each block; the file is the last one named in front of the block."""
    section = page.split(f"### Example: {operator}")[1].split("\n### ")[0]
    found, file = [], ""
    for index, part in enumerate(section.split("```")):
        if index % 2 == 0:
            file = [file, *re.findall(r"`([\w/]+\.\w+)`", part)][-1]
        else:
            found.append((file, part.partition("\n")[2]))
    return found


def test_the_walk_through_quotes_the_code_of_the_repository() -> None:
    blocks = quoted_code((ROOT / "CONTRIBUTING.md").read_text())
    assert [file for file, code in blocks if code not in (ROOT / file).read_text()] == []
    assert len({file for file, _ in blocks}) == len(blocks) == 6


def test_the_second_walk_through_quotes_the_code_of_the_repository() -> None:
    blocks = quoted_code((ROOT / "CONTRIBUTING.md").read_text(), "clamp")
    assert [file for file, code in blocks if code not in (ROOT / file).read_text()] == []
    assert len({file for file, _ in blocks}) == len(blocks) == 10


def test_the_table_of_rule_families_names_every_file_and_table() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.split("The families of rules")[1].split("What you can omit")[0]
    folders = {"ir": "infer_*", "passes/decompose": "expand_*", "passes/lower_to_integer": "integer_*"}
    kinds = "Types|ValueId|std::vector<ValueId>|RuleResult"
    rules = re.compile(rf"^(?:{kinds}) (?:infer|expand|integer)_\w+\(", re.M)
    for folder, names in folders.items():
        for path in sorted((ROOT / "cpp/tosaic" / folder).glob(f"{names}.cpp")):
            if rules.search(path.read_text()):
                assert f"`{path.name}`" in table, path
    for name in re.findall(r"`(\w+\.cpp)`", table):
        assert list((ROOT / "cpp/tosaic").rglob(name)), name
    for folder in ("kernels", "passes/legalize_tosa"):
        for path in sorted((ROOT / "cpp/tosaic" / folder).glob("*.cpp")):
            for name in re.findall(r"^constexpr OpTable<.*> (k\w+) = \{", path.read_text(), re.M):
                line = next((line for line in table.splitlines() if f"`{path.name}`" in line), "")
                assert path.name in NO_FAMILY or f"`{name}`" in line, path


def test_hypot_is_in_the_places_of_the_walk_through_only() -> None:
    """Apart from these files, only tests of its own and generated pages name the operator."""
    named = {file for file, _ in quoted_code((ROOT / "CONTRIBUTING.md").read_text())}
    code = [
        path
        for folder in ("cpp/tosaic", "python/tosaic", "bindings", "tests/operators")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".cpp", ".h", ".def", ".py")
    ]
    assert {
        str(path.relative_to(ROOT)) for path in code if re.search(r"hypot\b", path.read_text(), re.I)
    } == named
