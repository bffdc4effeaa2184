"""``tosaic kernels``: list the kernels that a runtime has to register for .pte files."""

from __future__ import annotations

import argparse

from tosaic.cli.entries import refused_option
from tosaic.cli.errors import OK
from tosaic.cli.output import say
from tosaic.cli.showing import show

SUMMARY = "list the kernels that a runtime has to register for .pte files"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic kernels``."""
    command.add_argument("files", metavar="FILE", nargs="+", help=".pte files that one runtime has to run")
    command.add_argument(
        "-o", "--output", metavar="OUT", help="write the list for ExecuTorch's selective build: a .yaml file"
    )
    command.add_argument(
        "--all-dtypes", action="store_true", help="kernels for all dtypes, not only for dtypes of the calls"
    )
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic kernels``; returns the exit code."""
    from tosaic.base.writing import check_place
    from tosaic.registration.listing import kernel_list

    for place in (args.output, args.report):
        if place:
            check_place(place)
    if args.all_dtypes and not args.output:
        raise refused_option("--all-dtypes", "no list is written", "--output with the name of a file")
    kernels = kernel_list(args.files)
    if args.output:
        kernels.save(args.output, dtypes=not args.all_dtypes)
    report = kernels.report()
    if args.report:
        report.save(args.report)
    show(report, args)
    if args.output and not args.json:
        say(f"\nwrote {args.output}\n")
    return OK
