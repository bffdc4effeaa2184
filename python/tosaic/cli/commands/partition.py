"""``tosaic partition``: plan which target takes which nodes, and say why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tosaic.cli.entries import bindings
from tosaic.cli.errors import OK
from tosaic.cli.options import add_bind, add_csv
from tosaic.cli.output import say
from tosaic.cli.showing import show
from tosaic.devices.engines import EXAMPLES

if TYPE_CHECKING:
    from tosaic.base.reportable import Reportable

SUMMARY = "plan which target takes which nodes, and say why"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic partition``."""
    command.add_argument("file", metavar="FILE")
    command.add_argument(
        "--claimants",
        metavar="NAMES",
        action="append",
        required=True,
        help=f"who takes nodes, in order: names such as {','.join(EXAMPLES)}, or TOSA targets",
    )
    command.add_argument(
        "--why", metavar="NODE", action="append", help="say where this node goes, with all reasons"
    )
    command.add_argument(
        "--disconnected", action="store_true", help="a group may have nodes that are not connected"
    )
    command.add_argument("--report", metavar="FILE", help="write the report: .html, .json or text")
    command.add_argument("-o", "--output", metavar="FOLDER", help="lower the groups, and write them there")
    command.add_argument(
        "--memory",
        action="store_true",
        help="lower the groups, and show one memory plan over host and groups instead",
    )
    add_csv(command)
    add_bind(command)


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic partition``; returns the exit code."""
    from tosaic.api.calls import open_program, partition
    from tosaic.partitions.propose import require_claimants
    from tosaic.partitions.split_lowered import lower_split
    from tosaic.report.numbers import count

    program = open_program(args.file, bind=bindings(args.bind), trust=args.trust)
    names = [name for each in args.claimants for name in each.split(",") if name]
    claimants = require_claimants("partition", names)
    connected = not args.disconnected
    split = None
    if args.output or args.memory or args.csv:
        split = lower_split(program, claimants, source=program, connected=connected)
    plan = partition(program, claimants, connected=connected)
    shown: Reportable = plan if split is None or not args.memory else split.plan_memory()
    if args.report:
        shown.report().save(args.report)
    for node in args.why or ():
        show(plan.why(node).report(), args)
    if not args.why:
        show(shown.report(), args)
    if split is not None and args.csv:
        split.plan_memory().to_csv(args.csv)
    if split is not None and args.output:
        files = split.save(args.output)
        if not args.json:
            say(f"\nwrote {count(len(files), 'file')} to {args.output}\n")
    return OK
