"""The rows of the host: which kernels of ExecuTorch compute an operator.

A row is a function of the host, the node and its operands. It writes calls, and returns the results; None if
no kernel computes this node. The arguments of a call are in the order of the schema of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tosaic import _core
from tosaic.pte.host import Held, Host

Results: TypeAlias = "Held | list[Held] | None"
Operands: TypeAlias = "list[Any]"
"""The operands of a node: a `Held` each, or None for an absent operand."""
Row: TypeAlias = Callable[[Host, _core.Node, Operands], Results]

ROWS: dict[str, Row] = {}
"""The rows by operator."""


def row(*operators: str) -> Callable[[Row], Row]:
    """Adds a function as the row of these operators."""

    def add(function: Row) -> Row:
        for operator in operators:
            assert operator not in ROWS
            ROWS[operator] = function
        return function

    return add


def result(host: Host, node: _core.Node, kernel: str, operands: Sequence[Any]) -> Held:
    """Writes the call that makes the only result of a node, and returns it."""
    value = node.results[0]
    return host.call(kernel, operands, value.dtype, value.shape)


def add_kernel(operator: str, kernel: str, *attributes: str) -> None:
    """Adds a row for a kernel whose arguments are the operands, followed by these attributes."""

    @row(operator)
    def write(host: Host, node: _core.Node, operands: Operands) -> Held:
        values = [node.attrs[name] for name in attributes]
        listed = [list(value) if isinstance(value, tuple) else value for value in values]
        return result(host, node, kernel, [*operands, *listed])
