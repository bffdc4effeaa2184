"""``tosaic passes``: list the passes that lower runs, in order."""

from __future__ import annotations

import argparse

from tosaic.base.defaults import TARGET
from tosaic.cli.errors import OK
from tosaic.cli.showing import show

SUMMARY = "list the passes that lower runs, in order"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic passes``."""
    command.add_argument("--target", default=TARGET, help="for which target (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic passes``; returns the exit code."""
    from tosaic.lowering.pipeline import Pipeline
    from tosaic.report.pipeline import describe_pipeline

    show(describe_pipeline(Pipeline.default(args.target)), args)
    return OK
