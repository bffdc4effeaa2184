"""``tosaic compare``: compare two programs node by node on the same inputs."""

from __future__ import annotations

import argparse

from tosaic.base.defaults import THRESHOLD_DB
from tosaic.cli.entries import bindings, with_sources
from tosaic.cli.errors import FAILED, OK
from tosaic.cli.options import add_bind, add_source, add_threads
from tosaic.cli.showing import show

SUMMARY = "compare two programs node by node on the same inputs"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic compare``."""
    command.add_argument("a", metavar="A", help="the reference; a .pt2 runs in torch")
    command.add_argument("b", metavar="B")
    command.add_argument(
        "--input", required=True, action="append", metavar="ARRAYS", help="an .npz or .npy; may be repeated"
    )
    command.add_argument(
        "--threshold",
        type=float,
        default=THRESHOLD_DB,
        metavar="DB",
        help="an output of floats with a lower SQNR fails (default: %(default)s)",
    )
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")
    add_threads(command)
    add_source(command)
    add_bind(command)


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic compare``; returns the exit code."""
    from tosaic.api.calls import compare

    a, b = with_sources(args.source, args.a, args.b)
    comparison = compare(
        a, b, list(args.input), threshold_db=args.threshold, bind=bindings(args.bind), trust=args.trust
    )
    report = comparison.report()
    if args.report:
        report.save(args.report)
    show(report, args)
    return OK if comparison.ok else FAILED
