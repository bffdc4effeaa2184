"""``tosaic check``: say what would not lower, and why."""

from __future__ import annotations

import argparse

from tosaic.cli.entries import bindings
from tosaic.cli.errors import ABOUT_FOREIGN, FAILED, OK
from tosaic.cli.options import add_bind, add_target
from tosaic.cli.output import say
from tosaic.cli.showing import show

SUMMARY = "say what would not lower, and why"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic check``."""
    command.add_argument("file", metavar="FILE")
    add_target(command)
    add_bind(command)


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic check``; returns the exit code."""
    from tosaic.api.calls import check

    result = check(args.file, target=args.target, bind=bindings(args.bind), trust=args.trust)
    show(result.report(), args)
    if not args.json and any("foreign" in problem.what for problem in result.problems):
        say(f"\n{ABOUT_FOREIGN}\n")
    return OK if result.ok else FAILED
