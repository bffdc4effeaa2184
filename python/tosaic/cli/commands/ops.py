"""``tosaic ops``: list the operators."""

from __future__ import annotations

import argparse
import json

from tosaic.cli.errors import OK
from tosaic.cli.output import say
from tosaic.cli.showing import show

SUMMARY = "list the operators"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic ops``."""
    command.add_argument("--markdown", action="store_true", help="as the page docs/reference/operators.md")


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic ops``; returns the exit code."""
    from tosaic import _core
    from tosaic.report.operators import describe_ops, operators_document

    if args.markdown:
        page = operators_document(_core.ops())
        say(json.dumps({"markdown": page}) + "\n" if args.json else page)
        return OK
    show(describe_ops(_core.ops()), args)
    return OK
