"""``tosaic cost``: say what a program costs on a device."""

from __future__ import annotations

import argparse

from tosaic.cli.errors import OK
from tosaic.cli.showing import show

__all__ = ["SUMMARY", "add_options", "run"]

SUMMARY = "say what a program costs on a device, by node and module"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic cost``."""
    command.add_argument("file", metavar="FILE", help="a .tosa file, or the folder of a split program")
    command.add_argument(
        "--device",
        metavar="NAME",
        help="the device (default for a split program: those of its groups)",
    )
    command.add_argument(
        "--method",
        choices=("tool", "analytic"),
        help="who estimates: the device's tool, or tosaic's own model (default: the tool if it is installed)",
    )
    command.add_argument("--memory-mode", metavar="NAME", help="how the device uses memory")
    command.add_argument("--system-config", metavar="NAME", help="clock and memories of the chip")
    command.add_argument(
        "--flag",
        metavar="FLAG",
        action="append",
        default=[],
        help="a flag for the tool, such as --flag=--optimise=Size; may be repeated",
    )
    command.add_argument("--report", metavar="OUT", help="write the report too: .html, .json or text")


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic cost``; returns the exit code."""
    from tosaic.base.writing import check_place
    from tosaic.cost.call import device_cost

    if args.report:
        check_place(args.report)
    cost = device_cost(
        args.file,
        args.device,
        method=args.method or "auto",
        memory_mode=args.memory_mode,
        system_config=args.system_config,
        flags=args.flag,
    )
    report = cost.report()
    if args.report:
        report.save(args.report)
    show(report, args)
    return OK
