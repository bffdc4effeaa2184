"""`Library`: kernels of a library of ExecuTorch that compute nodes of a quantized graph.

A row is a function of a `KernelCall`: a node with its operands. It writes calls and returns the result; None
if no kernel of the library computes the node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tosaic import _core
from tosaic.base.quantization import QParams
from tosaic.pte.host import Held, Host


@dataclass(frozen=True)
class KernelCall:
    """A node that kernels of a library compute.

    Attributes
    ----------
    host : Host
    node : Node
        Of a graph at stage ``quantized``: its values have qparams.
    operands : list of Held or None
    form : str
        The form of the kernels on the CPU: see `tosaic.devices.Device.kernels`.
    scratch : int
        The bytes of the temporary buffers of the kernel.
    bounds : (int, int)
        The least and the greatest integer of the result.
    scratch_of_image : callable
        Returns the bytes of the buffer of a convolution, from the shapes of image, weight and result.
    """

    host: Host
    node: _core.Node
    operands: Sequence[Any]
    form: str
    scratch: int
    bounds: tuple[int, int]
    scratch_of_image: Callable[[Sequence[int], Sequence[int], Sequence[int]], int]

    @property
    def is_of_bytes(self) -> bool:
        """True if the node reads and computes int8, with one scale for each value but weights."""
        values = [*self.node.operands[:1], *self.node.results]
        return all(
            value is not None
            and value.dtype == "i8"
            and value.qparams is not None
            and value.qparams.axis is None
            and value.qparams.groups is None
            for value in values
        )

    def qparams(self, operand: int) -> QParams:
        """Returns the qparams of an operand, which has some."""
        value = self.node.operands[operand]
        assert value is not None
        assert value.qparams is not None
        return value.qparams

    @property
    def result(self) -> QParams:
        """The qparams of the result, which has some."""
        found = self.node.results[0].qparams
        assert found is not None
        return found

    @property
    def zero_of_result(self) -> int:
        """The zero point of the result."""
        return int(self.result.zero_points[0])

    def constant(self, operand: int) -> np.ndarray[Any, Any] | None:
        """Returns the elements of a constant operand; None for other operands."""
        value = self.node.operands[operand] if operand < len(self.node.operands) else None
        constant = None if value is None else value.constant
        return None if constant is None else np.asarray(constant.array)


LibraryRow: TypeAlias = Callable[[KernelCall], "Held | None"]
TableRow: TypeAlias = Callable[[KernelCall, Callable[[], np.ndarray[Any, Any]]], "Held | None"]


@dataclass
class Library:
    """The rows of a library by operator.

    Attributes
    ----------
    name : str
        The namespace of its operators: ``cortex_m``.
    rows : dict of str to callable
    bounded : set of str
        Operators whose kernels clamp their results, so that a clamp after them needs no kernel.
    scratch : dict of str to int
        By name of a kernel: how many of its last operands are temporary buffers.
    kernels : dict of str to tuple of str
        By operator, the kernels of which each node needs one.
    table_row : callable, optional
        The row of operators of one operand, from a function that returns the 256 results.
    """

    name: str
    rows: dict[str, LibraryRow] = field(default_factory=dict)
    bounded: set[str] = field(default_factory=set)
    scratch: dict[str, int] = field(default_factory=dict)
    table_row: TableRow | None = None
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def kernels_of(self, operator: str) -> tuple[str, ...]:
        """Returns the kernels one of which computes each node of an operator; empty if it may need none."""
        return tuple(f"{self.name}::{name}" for name in self.kernels.get(operator, ()))

    def row(self, *operators: str, bounded: bool = False) -> Callable[[LibraryRow], LibraryRow]:
        """Adds a function as the row of these operators."""

        def add(function: LibraryRow) -> LibraryRow:
            for operator in operators:
                assert operator not in self.rows
                self.rows[operator] = function
            self.bounded.update(operators if bounded else ())
            return function

        return add

    def table(self, function: TableRow) -> TableRow:
        """Sets the function as the row of tables."""
        self.table_row = function
        return function
