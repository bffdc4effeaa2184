"""Tracks the values of tensors whose memory in-place calls write.

Values of the graph cannot change. So each write is recorded: the elements of a memory and their new value.
When a node is read whose elements were written since its last value, it gets a new value: the written value,
if that has all elements of the node; else its part of the first tensor of the memory, into which the writes
are put one after another.

    t = x.clone()          has its own memory
    t[:, 0].add_(1)        is recorded: select(t) has the value of add
    t.sum()                t is read: slice_scatter(clone, add)

No node is added for a tensor that is never read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

from tosaic.torch_operators.aliasing import Aliases, Conflict, Member, Tensor
from tosaic.torch_operators.memory_regions import Region
from tosaic.torch_operators.value import Complex, Ref
from tosaic.torch_operators.view_paths import Moves, Path, path_between

BEHIND_ALL = 1 << 62
"""A position after all nodes."""

_FEW = 8  # the newest writes that are searched before all writes are put together


class Write(NamedTuple):
    """A write of a call.

    Attributes
    ----------
    position : int
        The position of the call among the nodes.
    node : node
        The call.
    operand : node
        The operand that the call wrote.
    tensor : Tensor
    region : Region
        The memory of the operand at that time.
    value : Ref, Complex or node
        The new value of the operand, in the form that the reader has for tensors.
    is_one_number : bool
        True if all elements of the value are known to be the same number.
    """

    position: int
    node: Any
    operand: Any
    tensor: Tensor
    region: Region
    value: Any
    is_one_number: bool = False


class Reader(Protocol):
    """The interface of the code that reads the nodes."""

    def moves_of(self, names: Iterator[str], write: Any) -> Moves:
        """Returns the writer of nodes with these names, for a call that wrote."""

    def refuse_read(self, write: Write, conflict: Conflict) -> Exception:
        """Returns the error for a read after a write whose elements are not known."""


class _Log:
    """The writes to one memory, and the value of its first tensor after the first `_done` writes."""

    def __init__(self, region: Region, value: Any) -> None:
        self.region, self.value = region, value
        self.writes: list[Write] = []
        self.positions: list[int] = []
        self._done = 0  # the number of writes that the value contains

    def add(self, write: Write) -> None:
        self.writes.append(write)
        self.positions.append(write.position)

    def whole(self, reader: Reader) -> Any:
        """Returns the first tensor's value after all writes; or a `Write` whose effect is not known."""
        paths: list[tuple[Write, Path]] = []  # from the last write to all elements on
        for write in self.writes[self._done :]:
            path = path_between(self.region, write.region, is_written=True, is_one_number=write.is_one_number)
            if path is None or not _has_value(self.value) or type(write.value) is not type(self.value):
                return write
            if path.is_whole:
                paths.clear()
            paths.append((write, path))
        for write, path in paths:
            moves = reader.moves_of(_names(f"after_{write.node.name}"), write.node)
            self.value = _by_parts(partial(path.write, moves), self.value, write.value)
        self._done = len(self.writes)
        return self.value


class WrittenMemory:
    """The writes of one graph, up to the node that is being read.

    Parameters
    ----------
    aliases : Aliases
    env : dict
        The values of the nodes; `refresh` updates the values that a node reads.
    """

    def __init__(self, aliases: Aliases, env: dict[Any, Any]) -> None:
        self._aliases, self._env = aliases, env
        self._logs: dict[Hashable, _Log] = {}
        # (node, item, memory) -> number of writes to this memory that the value in `env` contains
        self._seen: dict[tuple[Any, int | None, Hashable], int] = {}

    def note(self, node: Any, operand: Any, value: Any, *, is_one_number: bool = False) -> None:
        """Records that a call wrote an operand."""
        now = self._aliases.position(node)
        for member in self._aliases.members_of(operand):
            region = member.tensor.at(now)[2]
            if region.is_empty:
                continue
            write = Write(now, node, operand, member.tensor, region, value, is_one_number)
            for memory in region.memories:
                log = self._logs.get(memory)
                if log is None:
                    first = self._aliases.first_in(memory)
                    log = _Log(first.tensor.at(now)[2], _value_of(self._env, first))
                    self._logs[memory] = log
                log.add(write)

    def refresh(self, nodes: Sequence[Any], now: int, reader: Reader, item: int | None = None) -> None:
        """Updates nodes that are about to be read to the current values of their elements.

        Parameters
        ----------
        nodes : sequence of nodes
        now : int
            The position of the reader.
        reader : Reader
        item : int, optional
            The index of the only result that is read, for a node with several results.

        Raises
        ------
        UnsupportedOp
            The written elements are not known, or they were written as another dtype.
        """
        if not self._logs:
            return
        for node in nodes:
            for member in self._aliases.members_of(node):
                if item is not None and member.item not in (None, item):
                    continue
                region = member.tensor.at(now - 1)[2]
                for memory in region.memories:
                    log = self._logs.get(memory)
                    if log is not None:
                        self._refresh(member, region, memory, log, reader)

    def assign(self, member: Member, value: Any) -> None:
        """Sets a node to a value that contains all writes."""
        for memory in member.tensor.region.memories:
            if memory in self._logs:
                self._seen[member.node, member.item, memory] = len(self._logs[memory].writes)
        _assign(self._env, member, value)

    def _refresh(
        self,
        member: Member,
        region: Region,
        memory: Hashable,
        log: _Log,
        reader: Reader,
    ) -> None:
        key = (member.node, member.item, memory)
        since = self._seen.get(key)
        if since is None:  # a call's result has earlier writes; inputs and attributes have none
            is_source = self._aliases.is_source(member.node)
            since = 0 if is_source else bisect_right(log.positions, member.position)
        known = len(log.writes)
        self._seen[key] = known
        if since == known:
            return
        first = max(since, known - _FEW)
        last = next(
            (write for write in reversed(log.writes[first:]) if _reaches(write, member.tensor, region)), None
        )
        if last is None and first == since:
            return
        value = self._value(member, region, log, last, reader)
        if isinstance(value, Write):
            raise reader.refuse_read(value, _conflict(value, member, region))
        _assign(self._env, member, value)

    def _value(self, member: Member, region: Region, log: _Log, last: Write | None, reader: Reader) -> Any:
        """Returns the current value of a tensor; or the `Write` whose effect is not known."""
        if last is not None:
            if not _has_value(last.value):
                return last
            if last.tensor is member.tensor and last.region == region:
                return last.value
            path = path_between(last.region, region)
            if path is not None:
                return _read(path, last.value, member, last, reader)
        path = path_between(log.region, region)
        if path is None:
            return last or log.writes[-1]
        whole = log.whole(reader)
        if isinstance(whole, Write):
            return whole
        return _read(path, whole, member, log.writes[-1], reader)


def _read(path: Path, value: Any, member: Member, write: Write, reader: Reader) -> Any:
    """Returns a tensor after a write, from a value that has all of its elements."""
    names = _names(f"{member.node.name}_after_{write.node.name}")
    return _by_parts(partial(path.read, reader.moves_of(names, write.node)), value)


def _names(first: str) -> Iterator[str]:
    """Yields names for nodes, which torch's functional program could also have."""
    yield first
    for step in count(1):
        yield f"{first}_step{step}"


def _reaches(write: Write, tensor: Tensor, region: Region) -> bool:
    """True if a write may have changed an element of a tensor."""
    return write.tensor is tensor or write.region.overlaps(region)


def _has_value(value: Any) -> bool:
    """False for values that are no tensors: a `NoValue` or a number."""
    return isinstance(value, Ref | Complex) or hasattr(value, "meta")


def _by_parts(function: Callable[..., Any], *values: Any) -> Any:
    """Applies a function of tensors; for complex values, to both parts."""
    if type(values[0]) is not Complex:
        return function(*values)
    return Complex(function(*(each.real for each in values)), function(*(each.imag for each in values)))


def _value_of(env: dict[Any, Any], member: Member) -> Any:
    held = env.get(member.node)
    return held if member.item is None or held is None else held[member.item]


def _conflict(write: Write, member: Member, region: Region) -> Conflict:
    is_known = region.layout is not None and write.region.layout is not None
    return Conflict(
        f"'{write.operand.name}', whose memory '{member.node.name}' "
        f"{'shares in part' if is_known else 'may share'} and is seen later",
        is_known and region.is_certain and write.region.is_certain,
    )


def _assign(env: dict[Any, Any], member: Member, value: Any) -> None:
    if member.item is None:
        env[member.node] = value
    elif isinstance(env[member.node], list | tuple):
        held = list(env[member.node])
        held[member.item] = value
        env[member.node] = held
