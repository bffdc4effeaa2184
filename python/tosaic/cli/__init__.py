"""The command ``tosaic``.

Exit codes: 0 ok, 1 a check failed, 2 usage, 3 unsupported, 4 internal error, 130 interrupted. If a file or
standard output cannot be written, the exit code is 2, whatever the command's result. ``--help`` imports
neither torch nor the core. With ``--json``, standard output is one JSON object at every exit code: the result
of the command, or ``{"error": {"kind", "message", "exit_code", "problems"}}``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tosaic.base.threads import all_cores
from tosaic.base.visible import one_line
from tosaic.cli.arguments import UsageError, asks_for_json, parser_of
from tosaic.cli.commands import COMMANDS
from tosaic.cli.errors import (
    FAILED,
    INTERNAL,
    INTERRUPTED,
    OK,
    UNSUPPORTED,
    USAGE,
    exit_code,
    fail,
    kind_of,
    message_of,
    problems_of,
)
from tosaic.cli.output import OutputError, complain

__all__ = ["FAILED", "INTERNAL", "OK", "UNSUPPORTED", "USAGE", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = parser_of(COMMANDS)
    asked = sys.argv[1:] if argv is None else argv
    try:
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return USAGE
    except UsageError as error:
        return fail(
            one_line(str(error)), USAGE, kind="usage", as_json=asks_for_json(asked), before=error.usage
        )
    except OutputError as error:
        return complain(str(error), USAGE)
    try:
        with all_cores(getattr(args, "threads", None)):
            return int(args.run(args))
    except OutputError as error:
        return complain(str(error), USAGE)
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED, kind="interrupt", as_json=args.json)
    except Exception as error:
        return fail(
            message_of(error),
            exit_code(error),
            kind=kind_of(error),
            as_json=args.json,
            problems=problems_of(error),
        )
