"""What a program computes, step by step, as far as memory is concerned: `Schedule`.

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
        Who makes it: ``host``, or the name of a group.
    path : str
        The place of an input or state in the call.
    view_of : (int, int) or None
        The value whose bytes it has, and the first of these bytes. Nothing writes a view.
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
        Values among `reads` over which the first of `writes` may be written, if the sizes are equal.
    scratch : int
        Bytes that the step needs while it runs.
    internals : tuple of Internal
        The tensors in the scratch.
    parts : tuple of (int, int)
        For a concatenation: values among `reads` that may be in the first of `writes` already, and the byte
        of the result at which each begins.
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
        States and inputs that have a new value at the end, and these values.
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
        """The step at which outputs are read: the one after the last."""
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
        """Returns the value that is not a view whose bytes a value has, and the first of these bytes."""
        chain: list[tuple[int, int]] = []  # views, each of the next one, and where they begin in it
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
        """Returns, for each step, whether a loop repeats it."""
        change = [0] * (len(self.steps) + 1)
        for begin, end in self.loops:
            change[begin] += 1
            change[end + 1] -= 1
        return [count > 0 for count in accumulate(change[:-1])]
