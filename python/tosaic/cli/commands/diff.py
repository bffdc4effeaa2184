"""``tosaic diff``: say how two graphs differ."""

from __future__ import annotations

import argparse

from tosaic.cli.entries import bindings
from tosaic.cli.errors import FAILED, OK
from tosaic.cli.options import add_bind
from tosaic.cli.showing import show

SUMMARY = "say how two graphs differ"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic diff``."""
    command.add_argument("a", metavar="A")
    command.add_argument("b", metavar="B")
    add_bind(command)


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic diff``; returns the exit code."""
    from tosaic.opening.sources import program_of, require_use
    from tosaic.report.comparison import describe_diff

    bind = bindings(args.bind)
    require_use("diff", bind, args.a, args.b)
    a, b = (program_of(path, bind=bind, trust=args.trust) for path in (args.a, args.b))
    difference = a.graph.diff(b.graph)
    show(describe_diff(args.a, args.b, difference), args)
    return FAILED if difference else OK
