"""`tests/README.md` says what each folder of tests is for, and which source folders it tests."""

from __future__ import annotations

import re
from pathlib import Path

from models.results import ROOT

PAGE = (ROOT / "tests" / "README.md").read_text()
ROW = re.compile(r"^\| (`[^|]*`) \| (.*) \|$", re.MULTILINE)


def code(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def rows(page: str) -> list[tuple[set[str], set[str]]]:
    """Returns the folders of each row, and what the row names in its second column."""
    return [(code(folders), code(text)) for folders, text in ROW.findall(page)]


def folders_of(path: Path) -> set[str]:
    """Returns the folders with a file that git would track."""
    return {
        each.name
        for each in path.iterdir()
        if each.is_dir() and not each.name.startswith((".", "__")) and _has_source(each)
    }


def _has_source(folder: Path) -> bool:
    return any("__pycache__" not in file.parts and file.is_file() for file in folder.rglob("*.*"))


def test_each_folder_of_tests_has_one_row_and_each_row_a_folder() -> None:
    named = [folder for folders, _ in rows(PAGE) for folder in folders]
    assert len(named) == len(set(named))
    assert set(named) == folders_of(ROOT / "tests")


def test_each_source_folder_is_in_a_row_and_each_named_one_exists() -> None:
    named = {
        text for _, texts in rows(PAGE) for text in texts if re.fullmatch(r"(cpp|python)/tosaic/\w+", text)
    }
    found = {
        f"{name}/tosaic/{folder}"
        for name in ("cpp", "python")
        for folder in folders_of(ROOT / name / "tosaic")
    }
    assert named == found


def test_a_layer_of_the_core_with_tests_has_them_in_a_folder_of_its_name() -> None:
    assert folders_of(ROOT / "tests" / "cpp") <= folders_of(ROOT / "cpp" / "tosaic")


def test_a_folder_without_a_row_is_found() -> None:
    assert rows("| folder | x |\n|---|---|\n| `a`, `b` | `c` and more |") == [({"a", "b"}, {"c"})]
    assert folders_of(ROOT / "tests") - {"api"} != {folder for folders, _ in rows(PAGE) for folder in folders}
