"""The commands and options that ``tosaic`` accepts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tosaic.cli.commands import Command
from tosaic.cli.output import say


def asks_for_json(argv: Sequence[str]) -> bool:
    """True if ``--json`` or an abbreviation of it is among arguments that could not be parsed."""
    options = argv[: list(argv).index("--")] if "--" in argv else argv
    return any(len(text) > 2 and "--json".startswith(text) for text in options)


class UsageError(Exception):
    """The arguments are wrong; `usage` is argparse's text about the accepted ones."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """Raises `UsageError` for wrong arguments, so that `main` reports them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.format_usage())

    def print_help(self, file: Any = None) -> None:
        """Prints the help to standard output with `say`, as the commands print their output."""
        if file is None:
            say(self.format_help())
        else:
            super().print_help(file)


class _Version(argparse.Action):
    """Prints the version. The core knows the version and is imported only here, not when parsing."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from tosaic._core import __version__

        say(f"tosaic {__version__}\n")
        parser.exit()


def parser_of(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Returns the parser of the command line. `commands` has the module of each command, by name."""
    parser = _Parser(
        prog="tosaic",
        description="From torch.export to verified TOSA.",
        epilog="Exit codes: 0 ok, 1 a check failed, 2 usage, 3 unsupported, 4 internal.",
    )
    parser.add_argument("--version", action=_Version, help="print the version")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, module in commands.items():
        summary = module.SUMMARY
        command = parsers.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=module.run)
        module.add_options(command)
    return parser
