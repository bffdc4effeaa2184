"""golden_file: reads and writes tests/golden/<pass>.txt, which lists cases of a pass as text.

A case in the file:

    ===== sentence that says the behaviour
    graph before the pass
    -----
    graph after the pass
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
_HEAD, _SPLIT = "===== ", "-----"


@dataclass(frozen=True)
class Case:
    """One behaviour of a pass: a sentence, the graph before the pass and the graph after it."""

    sentence: str
    before: str
    after: str


def read(name: str) -> list[Case]:
    """Returns the cases of `golden/<name>.txt`."""
    cases = []
    for block in (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").split(_HEAD)[1:]:
        sentence, _, graphs = block.partition("\n")
        before, _, after = graphs.partition(f"\n{_SPLIT}\n")
        cases.append(Case(sentence, before.strip() + "\n", after.strip() + "\n"))
    return cases


def write(name: str, cases: list[Case]) -> None:
    """Overwrites the file; refused in CI, where a golden file has to be the reviewed one."""
    refuse_in_ci(os.environ)
    blocks = [f"{_HEAD}{c.sentence}\n{c.before.strip()}\n{_SPLIT}\n{c.after.strip()}\n" for c in cases]
    (GOLDEN / f"{name}.txt").write_text("\n".join(blocks), encoding="utf-8")


def refuse_in_ci(environment: Mapping[str, str]) -> None:
    """Ends pytest with exit code 2 if the environment variable CI is set (to 1, true or yes)."""
    if environment.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.exit("--update-golden is refused where CI is set: golden text is changed by people", 2)
