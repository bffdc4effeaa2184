"""``tosaic demo``: train, quantize, lower and check a small network."""

from __future__ import annotations

import argparse

from tosaic.cli.errors import FAILED, OK
from tosaic.cli.output import say
from tosaic.cli.showing import show

SUMMARY = "train, quantize, lower and check a small network"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic demo``."""
    command.add_argument(
        "--out", default="tosaic-demo", metavar="DIR", help="where to leave the files (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic demo``; returns the exit code."""
    from tosaic.cli.demo import run_demo

    result = run_demo(args.out)
    show(result.report(), args)
    if not args.json:
        say(f"\nwrote {', '.join(str(path) for path in result.files)}\n")
    return OK if result.ok else FAILED
