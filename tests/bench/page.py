"""Measures programs alternately, and writes docs/measured/benchmarks.md: a dated section for each benchmark.

A section has the last measurement. For each other machine, it keeps the first table of the last run there.
"""

from __future__ import annotations

import argparse
import gc
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

from markdown_page import wrapped
from markdown_table import markdown_table
from models.results import ROOT, cpu_name

PAGE = ROOT / "docs" / "measured" / "benchmarks.md"
ORDER = (
    "lowering",
    "integer_lowering",
    "large_model",
    "layout",
    "partitioning",
    "executorch_backend",
    "pt2_loading",
    "pte_writing",
    "exporting",
    "executor",
    "integer_executor",
    "float_layers",
    "integer_layers",
    "integer_widths",
    "forms",
    "threads",
    "grid_sampler",
    "observers",
    "quantizing",
    "calibrating",
    "import_time",
    "build_time",
    "hardening",
)

_HEAD = """# Benchmarks

The scripts of `tests/bench` generate this page. Each script measures tosaic and a peer alternately, in one
process or in one series of processes, and writes its section. Compare ratios: times depend on the machine,
which each section names. Where a benchmark ran on several machines, the last run is shown in full, and the
first table of the last run on each of the others.
"""


ABOVE = "Above the limit: "
"""How a paragraph begins that a section keeps of another machine, in addition to its first table."""

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Measured(Generic[_Row]):
    """What a benchmark measured: a row for each network, with medians over the rounds."""

    rows: tuple[_Row, ...]
    rounds: int


def options_of(
    doc: str | None, *, rounds: int, names: Sequence[str] = (), files: Mapping[str, str] | None = None
) -> argparse.Namespace:
    """Reads the command line of a benchmark: `rounds`, `networks` if there are `names`, and paths of `files`.

    `files` has the help of each option that takes a path. Silences the log.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    if names:
        parser.add_argument("networks", nargs="*", default=names)
    for name, text in (files or {}).items():
        parser.add_argument(f"--{name}", type=Path, help=text)
    logging.disable(logging.WARNING)
    return parser.parse_args()


def timed(body: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the seconds that a function takes, and its result."""
    gc.collect()
    start = time.perf_counter()
    found = body()
    return time.perf_counter() - start, found


def in_turns(
    bodies: Sequence[Callable[[], Any]], rounds: int, repeats: Sequence[int] = ()
) -> list[tuple[float, Any]]:
    """Returns median seconds and last result of each body.

    Each body runs once as a warm-up. Then all run alternately, so that the state of the machine is the same.
    In each round, body i runs `repeats[i]` times, by default once. A body of milliseconds next to one of
    seconds should run several times: after the long one, the first run of the short one gets its memory from
    the system.
    """
    results: list[Any] = [body() for body in bodies]
    times: list[list[float]] = [[] for _ in bodies]
    for _ in range(rounds):
        for i, body in enumerate(bodies):
            for _ in range(repeats[i] if repeats else 1):
                seconds, results[i] = timed(body)
                times[i].append(seconds)
    return [(median(t), result) for t, result in zip(times, results, strict=True)]


def milliseconds(seconds: float) -> str:
    """Returns the milliseconds with three digits."""
    ms = 1e3 * seconds
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


table = partial(markdown_table, texts=1)  # all columns but the first are numbers


@dataclass(frozen=True)
class Section:
    """The outcome of one benchmark."""

    key: str
    title: str
    text: str
    ok: bool
    conditions: str = ""  # further conditions of the times; by default the version of torch and one thread

    def publish(self) -> int:
        """Prints the section, puts it into the page and returns the exit code."""
        stamp = f"{date.today().isoformat()}; {cpu_name()}; {self.conditions or _torch_and_threads()}."
        body = f"## {self.title}\n\n{stamp}\n\n{wrapped(self.text)}\n"
        print(f"{body}\n{'ok' if self.ok else 'MISSED'}")
        kept = _sections()
        kept[self.key] = body + "".join(_elsewhere(kept.get(self.key, "")))
        parts = [f"<!-- section {key} -->\n{kept[key]}<!-- end -->\n" for key in ORDER if key in kept]
        PAGE.write_text("\n".join([_HEAD, *parts]))
        return 0 if self.ok else 1


def _torch_and_threads() -> str:
    from torch import __version__ as torch_version

    return f"torch {torch_version}, one thread"


def _elsewhere(section: str) -> list[str]:
    """Returns what a new run on this machine keeps of a section: a part for each other machine."""
    newest, *parts = re.split(r"^(?=### On another machine$)", section, flags=re.MULTILINE)
    stamp = re.search(r"^\d{4}-\d\d-\d\d; .*$", newest, re.MULTILINE)
    table_found = re.search(r"^\|.*\n(?:\|.*\n)+", newest, re.MULTILINE)
    if stamp and table_found:
        above = re.findall(rf"^{re.escape(ABOVE)}.*\n(?:.+\n)*", newest, re.MULTILINE)
        lines = [f"{stamp[0]}\n", table_found[0], *above]
        parts.insert(0, "### On another machine\n\n" + "\n".join(lines))
    parts = ["\n" + part.strip("\n") + "\n" for part in parts]
    return [part for part in parts if f"; {cpu_name()}; " not in part]


def _sections() -> dict[str, str]:
    text = PAGE.read_text() if PAGE.exists() else ""
    return dict(re.findall(r"<!-- section (\w+) -->\n(.*?)<!-- end -->", text, re.DOTALL))
