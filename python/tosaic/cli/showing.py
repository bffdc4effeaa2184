"""Prints results of commands, and checks output files before the work."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tosaic.cli.entries import refused_option
from tosaic.cli.output import say

if TYPE_CHECKING:
    from tosaic.base.file_kinds import FileKind
    from tosaic.profiling.lowering import LoweringProfile
    from tosaic.profiling.profile import Profile
    from tosaic.report.document import Report


def show(report: Report, args: argparse.Namespace) -> None:
    """Prints a report; as JSON if the arguments request it."""
    say((report.json if args.json else report.text) + "\n")


def show_with_profile(report: Report, profile: Profile | LoweringProfile, args: argparse.Namespace) -> None:
    """Prints a report and a profile. If ``--profile`` names a file, the profile is written there."""
    measured = profile.report()
    if args.profile:
        profile.save(args.profile)
    if args.json:
        show(replace(report, data={**report.data, "profile": measured.data}), args)
        return
    say(f"{report.text}\n\n{measured.text}\n" + (f"\nwrote {args.profile}\n" if args.profile else ""))


def check_profile(args: argparse.Namespace, out: str) -> None:
    """Checks the file of ``--profile`` before the work that takes time.

    Raises
    ------
    InvalidGraph
        The file is the file of ``--output``.
    WriteError
        The file cannot be written.
    """
    from tosaic.base.writing import check_place

    if not args.profile:
        return
    if Path(args.profile).resolve() == Path(out).resolve():
        raise refused_option("--profile", "the file is that of --output, too", "the name of another file")
    check_place(args.profile)


def output_path(args: argparse.Namespace, kind: FileKind) -> str:
    """Returns the path of the file to write, which is checked before the work that takes time.

    Raises
    ------
    InvalidGraph
        The file to read is a folder; or the option is missing, and the default would replace that file.
    WriteError
        The folder is missing, or the file may not be written.
    """
    from tosaic.base.options import file_path
    from tosaic.base.writing import check_place

    file_path("open", args.file)  # a folder has no suffix to replace
    out = args.output or str(Path(args.file).with_suffix(kind.suffix))
    if not args.output and Path(out) == Path(args.file):
        raise refused_option("--output", "the file to write is the one to read", "the name of another file")
    check_place(out)
    return out
