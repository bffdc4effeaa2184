"""The main function of scripts that measure networks, each with several claimants, and write a page."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from models.results import in_shard, parser_of, recorded, stored

__all__ = ["measure_all"]


def measure_all(
    argv: Sequence[str] | None,
    *,
    doc: str | None,
    results: Path,
    names: tuple[Sequence[str], Sequence[str]],
    made: type[Any],
    measure: Callable[[str, str], Any],
    violations: Callable[[Any], list[str]],
    write: Callable[[list[Any]], Any],
) -> int:
    """Measures and prints what is not stored yet; returns the exit code.

    Parameters
    ----------
    argv : sequence of str, optional
    doc : str
        The docstring of the script.
    results : Path
        The folder of stored results.
    names : (sequence of str, sequence of str)
        Networks and claimants.
    made : type
        The dataclass that `measure` returns.
    measure, violations : callable
    write : callable
        Writes the page, when there is a result of everything.
    """
    networks, claimants = names
    parser = parser_of(doc, results)
    parser.add_argument("networks", nargs="*", default=list(networks))
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    items = [f"{name} {claimant}" for name in options.networks for claimant in claimants]
    wrong = False
    for item in in_shard(items, options.shard):
        name, claimant = item.split(" ")
        found = made(**recorded(options.results, item, lambda n=name, c=claimant: measure(n, c)))
        print(asdict(found), *violations(found), sep="\n  ", flush=True)
        wrong = wrong or bool(violations(found))
    every = [stored(options.results, f"{name} {claimant}") for name in networks for claimant in claimants]
    if all(every):
        write([made(**each) for each in every if each])
    return int(wrong)
