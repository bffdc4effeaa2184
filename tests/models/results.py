"""Stores results of long measurements on disk, so that an interrupted run can be continued.

There is one JSON file per item. It has a fingerprint of everything that the result depends on: the compiled
core, the importer, the quantizers, the networks, and the versions of torch and transformers. A result with
another fingerprint is measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import tosaic
from tosaic import _core

ROOT = Path(__file__).resolve().parents[2]

__all__ = [
    "ROOT",
    "cpu_name",
    "in_shard",
    "measured_with",
    "parser_of",
    "recorded",
    "resolve_shard",
    "store",
    "stored",
]


@cache
def fingerprint(folder: Path, also: tuple[str, ...] = ()) -> str:
    """Returns a hash of everything that results depend on.

    `folder` has the Python sources that measure them. `also` are further folders of the package.
    """
    digest = hashlib.sha256(f"{torch.__version__} {version('transformers')}".encode())
    package = Path(tosaic.__file__).parent
    folders = ("fx/**", "annotation", "calibration", "executorch", *also)
    sources = [path for each in folders for path in package.glob(f"{each}/*.py")] + [*folder.glob("*.py")]
    for path in [Path(_core.__file__), *sorted(sources)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def stored(
    folder: Path, name: str, sources: Path = Path(__file__).parent, also: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """Returns the stored result of this name; None if there is none, or if other sources made it."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    return content["result"] if content["fingerprint"] == fingerprint(sources, also) else None


def store(
    folder: Path,
    name: str,
    result: Any,
    sources: Path = Path(__file__).parent,
    also: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Stores the result of this name, a dataclass, and returns it as a dict."""
    found = dataclasses.asdict(result)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"fingerprint": fingerprint(sources, also), "result": found}, indent=1))
    partial.replace(path)
    return found


def recorded(
    folder: Path, name: str, measure: Callable[[], Any], also: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the result of this name as a dict. It is measured and stored if there is none yet.

    `measure` returns a dataclass. `also` are further folders of the package that the result depends on.
    """
    known = stored(folder, name, also=also)
    return store(folder, name, measure(), also=also) if known is None else known


def parser_of(doc: str | None, results: Path) -> argparse.ArgumentParser:
    """Returns the parser of a script that stores its results: its shard, and the folder of the results."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shard", type=resolve_shard, default=(1, 1), metavar="I/N")
    parser.add_argument("--results", type=Path, default=results)
    return parser


def resolve_shard(text: str) -> tuple[int, int]:
    """Parses a shard: ``2/5`` is the second of five parts.

    Raises
    ------
    ValueError
        The text is not such a pair.
    """
    part, _, parts = text.partition("/")
    index, count = int(part), int(parts)
    if not 1 <= index <= count:
        raise ValueError(f"shard {text!r}: expected i/n with 1 <= i <= n")
    return index, count


def in_shard(names: Sequence[str], shard: tuple[int, int]) -> list[str]:
    """Returns the names of the shard i/n: every n-th name, beginning with the i-th."""
    return list(names[shard[0] - 1 :: shard[1]])


def measured_with() -> dict[str, str]:
    """Returns what a page says of its measurements: the date, the CPU, and the versions of the packages."""
    return {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "version": tosaic.__version__,
        "torch": torch.__version__,
        **{name: version(name) for name in ("torchao", "executorch")},
    }


def cpu_name() -> str:
    """Returns the CPU model of this machine, and the number of CPUs."""
    import platform

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return f"{model}, {os.cpu_count()} CPUs"
