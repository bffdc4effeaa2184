"""The commands of ``tosaic``, one module each.

A module has ``SUMMARY``, a line for the help; ``add_options(command)``, which adds its options to a parser;
and ``run(args)``, which takes the parsed arguments and returns the exit code. A command imports its
dependencies when it runs.
"""

from __future__ import annotations

import argparse
from typing import Protocol, cast

from tosaic.cli.commands import (
    check,
    compare,
    cost,
    demo,
    diff,
    export,
    inspect,
    kernels,
    lower,
    ops,
    partition,
    passes,
    quantize,
    recipes,
    run,
    sensitivity,
)

__all__ = ["COMMANDS", "Command"]


class Command(Protocol):
    """The members of a command's module."""

    SUMMARY: str

    def add_options(self, command: argparse.ArgumentParser) -> None:
        """Adds the options of the command."""

    def run(self, args: argparse.Namespace) -> int:
        """Runs the command; returns the exit code."""
        ...


COMMANDS: dict[str, Command] = {
    module.__name__.rpartition(".")[2]: cast(Command, module)
    for module in (
        export,
        recipes,
        lower,
        quantize,
        sensitivity,
        check,
        partition,
        cost,
        inspect,
        kernels,
        run,
        compare,
        diff,
        passes,
        ops,
        demo,
    )
}
"""The module of each command, in the order of the help."""
