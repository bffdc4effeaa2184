"""`Schedule`: the computation of a program, step by step, as far as memory is concerned.

::

    step  0  quantize    reads image             writes image_q
          1  group0      reads image_q           writes a          needs 9,216 bytes while it runs
          2  reshape                             b is a view of a
          3  relu        reads b                 writes c          may write c over b
    end      the caller reads c

Values and steps are referred to by index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

HOST = "host"


@dataclass(frozen=True)
class Value:
    """A tensor of the host, or between host and groups.

    Attributes
    ----------
    name : str
    kind : str
        ``input``, ``state``, ``constant``, or ``result`` of a step.
    dtype : str
    shape : tuple of int
    nbytes : int
    part : str
        ``host``, or the name of the group that makes it.
    path : str
        The place of an input or state in the call.
    view_of : (int, int) or None
        The value of which it is a view, and its first byte in that. No step writes a view.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    part: str = HOST
    path: str = ""
    view_of: tuple[int, int] | None = None


@dataclass(frozen=True)
class Internal:
    """A tensor inside a group, or inside a region of the host: its place in the scratch of the step.

    Attributes
    ----------
    name, dtype : str
    shape : tuple of int
    nbytes, offset : int
        Size, and first byte in the scratch.
    alias, alias_of : str
        How it shares memory, ``none``, ``view``, ``in_place`` or ``part``, and with which tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int
    alias: str = "none"
    alias_of: str = ""


@dataclass(frozen=True)
class Step:
    """A node of the host, a conversion at the boundary of a group, or a call of a group.

    Attributes
    ----------
    name : str
    part : str
        ``host``, or the name of the group.
    reads, writes : tuple of int
    in_place : tuple of int
        Values among `reads` that the first of `writes` may overwrite, if the sizes are equal.
    scratch : int
        Bytes that the step needs while it runs.
    internals : tuple of Internal
        The tensors in the scratch.
    parts : tuple of (int, int)
        For a concatenation: (value among `reads`, first byte in the first of `writes`) for each operand that
        may be at its place in the result already.
    """

    name: str
    part: str = HOST
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    in_place: tuple[int, ...] = ()
    scratch: int = 0
    internals: tuple[Internal, ...] = ()
    parts: tuple[tuple[int, int], ...] = ()


@dataclass
class Schedule:
    """The steps of a program.

    Attributes
    ----------
    name : str
    values : list of Value
        Values are only added, a view after its base.
    steps : list of Step
    outputs : list of (str, int)
        Paths and values that the caller reads at the end.
    new_values : list of (int, int)
        (state or input, its new value) for each state and input that has a new value at the end.
    loops : list of (int, int)
        First and last step of each loop. A value that a step of the loop reads or writes is needed until the
        loop has ended.
    """

    name: str
    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[tuple[str, int]] = field(default_factory=list)
    new_values: list[tuple[int, int]] = field(default_factory=list)
    loops: list[tuple[int, int]] = field(default_factory=list)
    _contents: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def end(self) -> int:
        """The number of the step after the last one, at which the caller reads outputs."""
        return len(self.steps)

    @property
    def final(self) -> list[int]:
        """The values that are needed at the end: outputs, and new values of states and inputs."""
        return [*(value for _, value in self.outputs), *(value for _, value in self.new_values)]

    def add(self, value: Value) -> int:
        """Adds a value and returns its index."""
        self.values.append(value)
        return len(self.values) - 1

    def contents(self, value: int) -> tuple[int, int]:
        """Returns the base of a value, possibly through several views, and the value's first byte in it."""
        chain: list[tuple[int, int]] = []  # views, each with its first byte in the next one
        at = value
        while at not in self._contents and (view := self.values[at].view_of) is not None:
            chain.append((at, view[1]))
            at = view[0]
        found, offset = self._contents.get(at, (at, 0))
        for at, first in reversed(chain):
            offset += first
            self._contents[at] = found, offset
        return found, offset

    def in_loops(self) -> list[bool]:
        """Returns, for each step, whether it is in a loop."""
        change = [0] * (len(self.steps) + 1)
        for begin, end in self.loops:
            change[begin] += 1
            change[end + 1] -= 1
        return [count > 0 for count in accumulate(change[:-1])]
