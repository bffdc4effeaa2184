"""``tosaic lower``: lower a program to a .tosa file."""

from __future__ import annotations

import argparse
from typing import Any

from tosaic.base.defaults import INTEGER_TARGET, TARGET
from tosaic.base.file_kinds import TOSA
from tosaic.cli.calibration import default_target, quantized_file, refuse_calibration_options
from tosaic.cli.entries import bindings, io_sides, orders
from tosaic.cli.errors import OK
from tosaic.cli.options import add_bind, add_calibration, add_io, add_profile
from tosaic.cli.output import say
from tosaic.cli.showing import check_profile, output_path, show, show_with_profile

SUMMARY = "lower a program to a .tosa file"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic lower``."""
    command.add_argument("file", metavar="FILE", help="a .pt2 file, graph text or an archive of tosaic")
    command.add_argument("-o", "--output", metavar="OUT", help="the file to write (default: FILE with .tosa)")
    command.add_argument(
        "--target",
        help=f"what to lower to (default: {TARGET}; with --calibrate {INTEGER_TARGET}, "
        "and +int16 for int16x8)",
    )
    add_bind(command)
    command.add_argument(
        "--calibrate",
        metavar="ARRAYS",
        action="append",
        default=[],
        help="quantize FILE first, on samples as quantize takes them; may be repeated",
    )
    add_calibration(command)
    add_io(command)
    command.add_argument(
        "--objective",
        default="bytes",
        metavar="WHAT",
        help="what transposes are made least by: bytes or count (default: %(default)s)",
    )
    command.add_argument("--dump", metavar="DIR", help="write each graph to DIR that a pass changed")
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")
    command.add_argument(
        "--sidecar",
        action="store_true",
        help="write OUT.json too: the signature, orders and qparams with which run takes the caller's arrays",
    )
    command.add_argument("--no-locations", action="store_true", help="leave the origins out of the file")
    add_profile(command, "lowering")


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic lower``; returns the exit code."""
    from tosaic.api.calls import lower, open_program
    from tosaic.report.quantized import with_calibration

    out = output_path(args, TOSA)
    check_profile(args, out)
    program: Any = args.file
    bind = bindings(args.bind)
    if args.calibrate:
        (program, seconds), bind = quantized_file(args, args.calibrate), None
    else:
        refuse_calibration_options(args)
        if any(place not in ("inputs", "outputs") for place, _ in args.io):  # names of the program
            program, bind = open_program(args.file, bind=bind, trust=args.trust), None
    lowered = lower(
        program,
        target=default_target(args) if args.target is None else args.target,
        bind=bind,
        trust=args.trust,
        dump=args.dump,
        io=io_sides(args.io, program),
        orders=orders(args.orders),
        objective=args.objective,
    )
    lowered.save(out, locations=not args.no_locations, sidecar=args.sidecar)
    report = lowered.report()
    if args.calibrate:
        report = with_calibration(report, program, seconds)
    if args.report:
        report.save(args.report)
    if args.profile is None:
        show(report, args)
    else:
        show_with_profile(report, lowered.profile, args)
    if not args.json:
        say(f"\nwrote {out}\n")
    return OK
