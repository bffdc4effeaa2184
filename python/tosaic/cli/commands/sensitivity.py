"""``tosaic sensitivity``: say what each layer loses in low precision, and find cheap mixes."""

from __future__ import annotations

import argparse

from tosaic.cli.entries import bindings
from tosaic.cli.errors import FAILED, OK
from tosaic.cli.options import add_bind, add_file_and_samples
from tosaic.cli.showing import show

SUMMARY = "say what each layer loses in low precision, and find cheap mixes"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic sensitivity``."""
    add_file_and_samples(command)
    command.add_argument(
        "--least-db", type=float, metavar="DB", help="search for the cheapest mix with this SQNR"
    )
    command.add_argument(
        "--levels",
        default="int8,int16x8",
        metavar="A,B",
        help="precisions, the cheapest first: int8, uint8, int16x8, float (default: %(default)s)",
    )
    command.add_argument("--plot", metavar="FILE", help="write the curve of SQNR over cost as SVG")
    add_bind(command)
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic sensitivity``; returns the exit code."""
    from tosaic.api.calls import open_program
    from tosaic.base.writing import check_place
    from tosaic.quantizing.sensitivity import sensitivity

    for place in (args.plot, args.report):
        if place:
            check_place(place)
    found = sensitivity(
        open_program(args.file, bind=bindings(args.bind), trust=args.trust),
        list(args.samples),
        least_db=args.least_db,
        levels=args.levels.split(","),
    )
    report = found.report()
    if args.plot:
        found.plot(args.plot)
    if args.report:
        report.save(args.report)
    show(report, args)
    is_met = args.least_db is None or any(mix.db >= args.least_db for mix in found.curve)
    return OK if is_met else FAILED
