"""``tosaic quantize``: quantize a program of floats on samples."""

from __future__ import annotations

import argparse
from dataclasses import replace

from tosaic.base.file_kinds import ARCHIVE, TOSA
from tosaic.cli.calibration import quantized_file
from tosaic.cli.entries import refused_option
from tosaic.cli.errors import OK
from tosaic.cli.options import add_bind, add_calibration, add_file_and_samples
from tosaic.cli.output import say
from tosaic.cli.showing import output_path, show

SUMMARY = "quantize a program of floats on samples"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic quantize``."""
    add_file_and_samples(command)
    command.add_argument(
        "-o", "--output", metavar="OUT", help="the archive to write (default: FILE with .tosaic)"
    )
    add_calibration(command)
    add_bind(command)
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic quantize``; returns the exit code."""
    from tosaic.report.quantized import describe_quantized

    out = output_path(args, ARCHIVE)
    if TOSA.holds(out):
        expected = "another suffix, such as .tosaic; lower --calibrate writes .tosa files"
        raise refused_option("--output", "a quantized program is saved as an archive", expected)
    program, seconds = quantized_file(args, args.samples)
    program.save(out)
    report = describe_quantized(program, seconds=seconds)
    if args.report:
        report.save(args.report)
    report = replace(report, data={"output": out, **report.data})
    show(report, args)
    if not args.json:
        say(f"\nwrote {out}\n")
    return OK
