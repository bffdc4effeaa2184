"""README and docs are correct: examples and commands run, generated parts are up to date."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import re
import shlex
from pathlib import Path

import pytest
import torch
import tosaic
from tosaic.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Returns the path of the page in the repository."""
    return page.relative_to(ROOT).as_posix()


# A block of Python code and, if one follows, the block of text that it prints.
EXAMPLE = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n\n^```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL
)
EXAMPLES = [
    pytest.param(examples, id=name_of(page))
    for page in PAGES
    if (examples := [match.groups() for match in EXAMPLE.finditer(page.read_text())])
]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
QUANTIZED = """tosaic 1
graph @forward stage=exported {
  input %x: f32[4] path="x"
  %q: i8[4] = quantize(%x) {dtype=i8, qmin=-128, qmax=127, scales=[0.02], zero_points=[3]}
  %y: f32[4] = dequantize(%q) {qmin=-128, qmax=127, scales=[0.02], zero_points=[3]}
  return %y path="out"
}
"""
NPU = """tosaic 1
graph @forward stage=tosa {
  input %x: i8[1,8,8,16] path="x"
  %y: i8[1,4,4,16] = tosa.max_pool2d(%x) {kernel=[2,2], stride=[2,2], pad=[0,0,0,0], nan_mode=propagate}
  return %y path="out"
}
"""
COMMANDS = re.findall(r"^\$ tosaic (.*)$", (ROOT / "docs" / "reference" / "cli.md").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def masked(text: str) -> list[str]:
    """Returns the sorted lines of the text, without measured numbers and the spaces that align them."""
    numbers = re.sub(r"-?\d[\d.,]*(e[-+]\d+)?|\b(equal|inf)\b", "#", text)
    without = re.sub(r" +", " ", re.sub(r"# (ms|s)\b", "# s", numbers))
    return sorted(line.rstrip() for line in without.splitlines())


def test_the_example_of_the_readme_is_short() -> None:
    (example,) = EXAMPLE.finditer(README.read_text())
    assert len(example["code"].strip().splitlines()) <= 14
    assert example["output"]


def test_the_page_of_operators_is_up_to_date(generate, capsys) -> None:
    assert (ROOT / "docs" / "reference" / "operators.md").read_text() == generate.operators_page(), (
        "run python docs/generate.py"
    )
    assert main(["ops", "--markdown"]) == 0
    assert capsys.readouterr().out == generate.operators_page()


def test_the_page_of_the_api_is_up_to_date_and_documents_each_name(generate) -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert page == generate.api_page(), "run python docs/generate.py"
    for name in generate.API_MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            found = getattr(module, public)
            if inspect.isclass(found) or inspect.isroutine(found):
                assert len(generate.documented(found)) > 10, f"{name}.{public} has no docstring"
                assert f"### `{name}.{public}" in page
    signature = (
        "### `tosaic.check(program, *, target=None, pipeline=None, bind=None, operators=(), trust=False)`"
        "\n\nLists the reasons why a program would not lower"
    )
    assert signature in page
    assert "- `target, pipeline` (optional): As `lower` takes them." in page
    assert "- `inputs`: The inputs that the caller passes, in order. States are not in the list." in page


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_docs_runs(command, files, dynamic, capsys) -> None:
    torch.export.save(dynamic, "dynamic.pt2")
    quantized = tosaic.program.from_graph(tosaic.program.Graph.parse(QUANTIZED))
    quantized.save("quantized.tosaic")
    tosaic.save_pte(quantized, "quantized.pte")
    Path("npu.tosa").write_bytes(tosaic._core.serialize(tosaic.program.Graph.parse(NPU)))
    tosaic.save_pte(tosaic.load("model.tosaic"), "model.pte")
    try:
        code = main(shlex.split(command))
    except SystemExit as end:
        code = end.code
    assert code == 0, capsys.readouterr().err
    assert capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("examples", EXAMPLES)
def test_the_python_blocks_of_a_page_run_and_print_what_it_shows(examples, files, capsys) -> None:
    names: dict[str, object] = {}
    printed = ""
    for code, output in examples:
        exec(compile(code, "example.py", "exec"), names)
        assert logging.root.manager.disable == logging.NOTSET, "an example hides messages of the process"
        found = capsys.readouterr().out
        printed += found
        if output is not None:
            assert masked(found) == masked(output)
    assert printed


def test_the_two_commands_of_the_readme_are_the_ones_of_ci() -> None:
    readme = re.sub(r"^```.*?^```$", "", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^    (\S.*)$", readme, re.MULTILINE) == [
        'pip install -c constraints.txt ".[demo]" && tosaic demo',
        "tests/run",
    ]
    assert "tests/run" in (ROOT / ".ci" / "run").read_text()


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_to_existing_files_and_headings(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


# A source that a text names with its folder, such as `quant/graph_calls.h`: the end of a path.
SOURCE = re.compile(r"`([A-Za-z_.][\w.-]*(?:/[\w.-]+)+\.(?:py|pyi|cpp|h|md|toml))`")
# A file or folder that a text names by its path in the repository, such as `tests/full`.
PATH = re.compile(r"`((?:cpp|python|bindings|tests|docs|notebooks|cmake)/[\w./-]*)`")
PAGE_PATH = re.compile(r"\bdocs/(?:[\w-]+/)*[\w-]+\.(?:md|svg|py)\b")
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "tests" / "README.md"]


def missing_sources(text: str) -> list[str]:
    """Returns the named sources that are no file of the repository."""
    folders = [ROOT / name for name in ("cpp", "python", "bindings", "tests", "docs", "notebooks")]
    files = [path for folder in folders for path in folder.rglob("*.*") if "__pycache__" not in path.parts]
    known = {f"/{path.relative_to(ROOT).as_posix()}" for path in files}
    sources = [name for name in SOURCE.findall(text) if not any(each.endswith(f"/{name}") for each in known)]
    return sources + [
        path for path in PATH.findall(text) if path not in sources and not (ROOT / path).exists()
    ]


def test_sources_that_pages_name_exist() -> None:
    assert {name_of(page): missing for page in TEXTS if (missing := missing_sources(page.read_text()))} == {}


def test_a_planted_name_of_no_source_is_found() -> None:
    planted = "`quant/graph_calls.h`, `quant/no_such_file.h`, `fx/nowhere.py`, `tests/full` and `tests/empty`"
    assert missing_sources(planted) == ["quant/no_such_file.h", "fx/nowhere.py", "tests/empty"]


def test_pages_that_sources_and_notebooks_name_exist() -> None:
    folders = [ROOT / name for name in ("cpp", "python", "bindings", "tests", "docs", "notebooks")]
    sources = [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in (".py", ".cpp", ".h", ".def", ".ipynb") and path != Path(__file__)
    ]
    assert len(sources) > 500
    named = {(path, page) for path in sources for page in PAGE_PATH.findall(path.read_text())}
    assert [(name_of(path), page) for path, page in named if not (ROOT / page).exists()] == []
    assert not (ROOT / PAGE_PATH.findall("as docs/guide/nowhere.md says")[0]).exists()


def links_of(page: Path) -> list[Path]:
    """Returns the files that a page links to."""
    return [(page.parent / target).resolve() for target, _ in LINK.findall(page.read_text()) if target]


def test_each_page_can_be_reached_from_the_index() -> None:
    reached, ahead = set(), [ROOT / "docs" / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            ahead += links_of(page)
    assert [name_of(page) for page in PAGES if page not in reached and page != README] == []


def test_the_readme_leads_to_the_index_and_ends_in_eight_links() -> None:
    last = README.read_text().rpartition("\n## ")[2]
    assert len(LINK.findall(last)) == 8
    assert ROOT / "docs" / "index.md" in links_of(README)


GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"


def words_of_the_glossary() -> dict[str, str]:
    """Returns the text of each word."""
    entries = GLOSSARY.read_text().split("\n### ")[1:]
    return {word: " ".join(text.split()) for word, _, text in (entry.partition("\n") for entry in entries)}


def test_the_glossary_is_sorted_and_has_a_sentence_for_each_word() -> None:
    words = words_of_the_glossary()
    assert list(words) == sorted(words, key=str.lower)
    for word, text in words.items():
        assert re.fullmatch(r"[A-Z`\[].*[^.]\.", text), word
        assert not re.search(r"[a-z]\. [A-Z]", text), f"{word} has several sentences"


def test_each_word_of_the_glossary_is_linked_from_a_page_that_uses_it() -> None:
    linked = {
        anchor
        for page in PAGES
        if page != GLOSSARY
        for target, anchor in LINK.findall(page.read_text())
        if target and (page.parent / target).resolve() == GLOSSARY
    }
    anchors_of_words = {
        re.sub(r"[^\w -]", "", word.lower()).replace(" ", "-") for word in words_of_the_glossary()
    }
    assert anchors_of_words - linked == set()


def passes_by_section() -> dict[str, list[str]]:
    """Returns the passes of the longest default pipeline, by section."""
    found: dict[str, list[str]] = {}
    for step in tosaic.Pipeline.default("TOSA-1.0+INT"):
        section, name = step.id.split("/")
        found.setdefault(section, []).append(name)
    return found


@pytest.mark.parametrize(
    ("page", "row"),
    [
        ("internals/architecture.md", r"│  {section} +([a-z, -]+?)(?: +\(profile INT\))?$"),
        ("reference/cli.md", r"\| {section} \| (.*) \|$"),
    ],
    ids=["picture", "table"],
)
def test_lists_of_passes_by_section_are_the_pipeline(page: str, row: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    expected = passes_by_section()
    found = {section: re.findall(row.format(section=section), text, re.MULTILINE) for section in expected}
    assert found == {section: [", ".join(names)] for section, names in expected.items()}


def test_the_versions_of_the_readme_are_the_pinned_ones() -> None:
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    (least,) = re.findall(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", README.read_text(), re.MULTILINE)
    supported = {name.strip(): text.strip() for name, text in rows}

    def of(package: str) -> str:
        return ".".join(pins[package].split(".")[:2])

    assert supported["Python"] == f"{least} and later"
    assert supported["torch, torchao"] == f"{of('torch')}, {of('torchao')}"
    assert supported["ExecuTorch"] == of("executorch")
    assert supported["TOSA"] == f"1.0, by the tools of {of('tosa-tools')}"
