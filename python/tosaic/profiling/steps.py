"""The steps of a profiled program as data: `ProfiledStep`, its nodes, and their origins."""

from __future__ import annotations

from dataclasses import dataclass


def rate(amount: float, seconds: float) -> float:
    """Returns the amount per second, 0 if no time passed."""
    return amount / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class NodeOrigin:
    """The origin of a node.

    Attributes
    ----------
    module_path : str
        The path of the module, such as ``features.0.1``; empty if torch did not record it.
    source : str
        The source line, such as ``model.py:41``; empty if torch did not record it.
    torch_operator : str
        Such as ``aten.conv2d.default``.
    """

    module_path: str
    source: str
    torch_operator: str


@dataclass(frozen=True)
class ProfiledNode:
    """A node that a step computes.

    Attributes
    ----------
    name : str
    op : str
        The operator, such as ``tosa.conv2d``. A call of a foreign operator has its target, such as
        ``my_library.swish``, and a call of a group of a split program the name of the group.
    origins : tuple of NodeOrigin
        The calls of torch from which the node comes.
    """

    name: str
    op: str
    origins: tuple[NodeOrigin, ...]


@dataclass(frozen=True)
class ProfiledStep:
    """A step of a program: one kernel or function that runs.

    Attributes
    ----------
    nodes : tuple of ProfiledNode
        The nodes that the step computes. Several nodes are fused into one kernel.
    kernel : str
        The kernel's form: ``conv.gemm``, ``cond``, ``while_loop`` and so on; ``model`` or ``function`` for
        function of the user, ``group`` for a group of a split program, ``reference`` or ``vgf``.
    isa : str
        The instruction set of the kernel, such as ``avx512vnni`` or, on Arm, ``i8mm``; empty for other forms.
    factors : str or None
        The dtype of the factors that the kernel multiplies, if it adds up products. It may be wider than the
        operands: factors of float16 are multiplied as ``f32``.
    parent : int or None
        The position in `Profile.steps` of the step that runs this one: a cond, a while_loop, or a group.
    calls : int
        How many times the step is executed in one run of the program.
    own_seconds : float
        The time of the step in one run: the sum over its calls, without the time of its inner steps, such
        as the steps of the body of a loop. The median over all runs.
    seconds : float
        `own_seconds` of the step and of all its inner steps.
    least_seconds : float
        As `seconds`, but the least over all runs instead of the median.
    multiply_adds : int
        Multiply-adds of a run. 0 for operators that are not contractions or attentions.
    bytes_read, bytes_written : int
        Bytes of operands and results in a run. Values between fused nodes are in registers and do not count.
        Operators that select elements read at most as many bytes as they write.
    """

    nodes: tuple[ProfiledNode, ...]
    kernel: str
    isa: str
    factors: str | None
    parent: int | None
    calls: int
    own_seconds: float
    seconds: float
    least_seconds: float
    multiply_adds: int
    bytes_read: int
    bytes_written: int

    @property
    def name(self) -> str:
        """The name of the result that the step writes: the name of its last node."""
        return self.nodes[-1].name

    @property
    def op(self) -> str:
        """The operator of the first node."""
        return self.nodes[0].op

    @property
    def origins(self) -> tuple[NodeOrigin, ...]:
        """The origins of all nodes, each once."""
        return tuple(dict.fromkeys(origin for node in self.nodes for origin in node.origins))

    @property
    def operations(self) -> int:
        """Operations in a run: a multiply-add counts as two."""
        return 2 * self.multiply_adds

    @property
    def operations_per_second(self) -> float:
        """Operations per second, 0 for a step without multiply-adds."""
        return rate(self.operations, self.own_seconds)

    @property
    def bytes_per_second(self) -> float:
        """Bytes read and written per second."""
        return rate(self.bytes_read + self.bytes_written, self.own_seconds)
