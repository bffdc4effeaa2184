"""Finds out which FX nodes share memory.

A call may return its operand, a view of it, or new memory; several nodes may be the very same tensor object.
`Memory` says which memory the results of a call have. Readers of torch's programs and of files each have one.

A call that changes the shape of its operand in place (``t_``, ``squeeze_``) writes no element. From then on
all nodes that are that very tensor object (earlier in-place results, a ``contiguous`` with nothing to do)
have the new shape. The shape of a view does not change, and the view no longer counts as the same tensor.

`tosaic.torch_operators.written_memory` says which values the nodes have after calls wrote into memory.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from tosaic.torch_operators.memory_regions import Region, anywhere_in
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.wrappers import Wrapped


class Tensor:
    """A tensor object: several nodes may be the same one.

    Attributes
    ----------
    source : node
        The node that made it.
    changes : list of (int, node, Region)
        From this position on, the object has this memory, and the shape that is recorded at this node.
    """

    __slots__ = ("changes", "source")

    def __init__(self, source: Any, region: Region) -> None:
        self.source = source
        self.changes: list[tuple[int, Any, Region]] = [(-1, source, region)]

    @property
    def region(self) -> Region:
        """The memory after the last change."""
        return self.changes[-1][2]

    def at(self, position: int) -> tuple[int, Any, Region]:
        """Returns the last change up to a position."""
        if len(self.changes) == 1:
            return self.changes[0]
        return self.changes[bisect_right(self.changes, position, key=lambda change: change[0]) - 1]


class Memory(Protocol):
    """The memory of inputs and of results."""

    def of_source(self, node: Any) -> Region | None:
        """Returns the memory of a placeholder or an attribute; None if it is not a tensor."""

    def of_results(self, node: Any, row: OperatorRow, tensors: Callable[[Any], Any]) -> Any:
        """Returns the memory of the results of a call.

        The result is None for a call without tensors, a `Region` for a new tensor object, or a `Tensor`,
        which is one of the operands; or a list of these for a call with several results. `tensors` returns
        the `Tensor` of a node, a list of them, or None. A pair of a `Tensor` and a `Region` is an operand
        with another layout.
        """


class Conflict(NamedTuple):
    """Why a write is refused.

    Attributes
    ----------
    what : str
        The end of a sentence that begins with "it writes to 'x'".
    is_known : bool
        True if the tensors are known to share memory; False if they may share it.
    """

    what: str
    is_known: bool


class Member(NamedTuple):
    """A node that has a certain tensor as its result, or as one of its results.

    Attributes
    ----------
    position : int
        The position of the node in the graph.
    node : node
    item : int or None
        Index of the tensor among the node's results; None for a single result.
    tensor : Tensor
    """

    position: int
    node: Any
    item: int | None
    tensor: Tensor


class Aliases:
    """Memory shared between the nodes of one FX graph.

    Attributes
    ----------
    mutated : frozenset of nodes
        The nodes whose memory a call writes.
    """

    def __init__(
        self,
        nodes: Sequence[Any],
        rows: Sequence[OperatorRow | None],
        counts: Callable[[Any], bool],
        memory: Memory,
        states: Container[Any] = (),
        wrapped: Wrapped | None = None,
    ) -> None:
        self._counts = counts
        self._operands = {} if wrapped is None else wrapped.operands
        self._results = {} if wrapped is None else wrapped.results
        self._position = {node: i for i, node in enumerate(nodes)}
        self._tensors: dict[Any, Any] = {}  # by node: a `Tensor`, or a list with `Tensor` or None
        self._members: dict[Hashable, list[Member]] = {}  # by storage: its tensors, in the order of the nodes
        self._sources: set[Hashable] = set()  # storages of placeholders and attributes
        self._attributes: set[Hashable] = set()  # storages of attributes that are no states
        written: set[Hashable] = set()
        self._calls: list[tuple[Any, OperatorRow]] = []
        for node, row in zip(nodes, rows, strict=True):
            if node in self._operands:
                self._place(node, self._of_argument(self._operands[node]))
            elif self.is_source(node):
                region = memory.of_source(node)
                if region is not None:
                    self._sources |= region.memories
                    if node.op == "get_attr" and node not in states:
                        self._attributes |= region.memories
                    self._place(node, Tensor(node, region))
            elif node.op == "call_function":
                self._place(node, self._made(node, row, memory))
                if row is not None and row.mutates:
                    written |= self._written_by(node, row)
        self._written = frozenset(written)
        self.mutated = frozenset(member.node for memory in written for member in self._members[memory])

    # ---- which memory a node has ----

    def _made(self, node: Any, row: OperatorRow | None, memory: Memory) -> Any:
        """Returns the tensors of a call."""
        if row is None:
            has_results = node in self._results
            return self._of_results(self._results[node]) if has_results else self._of_foreign(node)
        if row.getitem:
            held = self._tensors.get(node.args[0])
            if isinstance(held, list):
                index = node.args[1]
                return held[index] if isinstance(index, int) and index < len(held) else None
            return None if held is None else Tensor(node, held.region)
        if row.dropped or row.evaluated:
            return None
        found = memory.of_results(node, row, self._tensors.get)
        if isinstance(found, list):
            return [self._tensor(node, item) for item in found]
        return self._tensor(node, found)

    def _of_results(self, results: Any) -> Any:
        """Returns the tensors that the graph of a wrapper returns."""
        if isinstance(results, list | tuple):
            found = [self._of_argument(each) for each in results]
            return [each if isinstance(each, Tensor) else None for each in found]
        return self._of_argument(results)

    def _of_foreign(self, node: Any) -> Tensor:
        """A wrapper or another foreign call may return any of its operands."""
        operands = [tensor for each in node.all_input_nodes for _, tensor in _items(self._tensors.get(each))]
        memories = frozenset[Hashable]().union(*(tensor.region.memories for tensor in operands))
        return Tensor(node, anywhere_in(memories | {node}))

    def _tensor(self, node: Any, found: Any) -> Tensor | None:
        if isinstance(found, Region):
            return Tensor(node, found)
        if isinstance(found, tuple):
            tensor, region = found
            tensor.changes.append((self._position[node], node, region))
            return tensor  # type: ignore[no-any-return]
        return found  # type: ignore[no-any-return]

    def _place(self, node: Any, tensors: Any) -> None:
        if tensors is None:
            return
        self._tensors[node] = tensors
        for index, tensor in _items(tensors):
            member = Member(self._position[node], node, index, tensor)
            for memory in tensor.region.memories:
                self._members.setdefault(memory, []).append(member)

    def _written_by(self, node: Any, row: OperatorRow) -> frozenset[Hashable]:
        if row.changes_shape or row.writes_nothing(node):
            return frozenset()
        self._calls.append((node, row))
        return frozenset(memory for memory, _, _ in self._writes_of(node, row))

    def _of_argument(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [tensor for item in argument for _, tensor in _items(self._of_argument(item))]
        return self._tensors.get(argument) if hasattr(argument, "meta") else None

    # ---- what may be asked of a node ----

    def is_source(self, node: Any) -> bool:
        """True for an input or an attribute of the program, but not for an input of a wrapper."""
        return node.op in ("placeholder", "get_attr") and node not in self._operands

    def position(self, node: Any) -> int:
        """Returns the position of a node in the graph."""
        return self._position[node]

    def members_of(self, node: Any) -> list[Member]:
        """Returns the tensors of a node."""
        at = self._position.get(node, 0)
        return [Member(at, node, item, tensor) for item, tensor in _items(self._tensors.get(node))]

    def first_in(self, memory: Hashable) -> Member:
        """Returns a tensor with all of a memory: its largest input or attribute, else the first tensor."""
        members = self._members[memory]
        sources = [member for member in members if self.is_source(member.node)]
        return max(sources, key=lambda member: member.tensor.region.count) if sources else members[0]

    def reaches_source(self, node: Any) -> bool:
        """True if this node shares memory with an input or an attribute."""
        return any(tensor.region.memories & self._sources for _, tensor in _items(self._tensors.get(node)))

    def reaches_attribute(self, node: Any) -> bool:
        """True if this node shares memory with an attribute that is no state."""
        return any(tensor.region.memories & self._attributes for _, tensor in _items(self._tensors.get(node)))

    def is_placeholder(self, node: Any) -> bool:
        """True if this node is an input itself: the very tensor object."""
        return any(tensor.source.op == "placeholder" for _, tensor in _items(self._tensors.get(node)))

    def shaped_by(self, node: Any, reader: Any) -> Any:
        """Returns the node whose recorded shape and strides `node` has at the time when `reader` reads it."""
        tensor = self._tensors.get(node)
        if not isinstance(tensor, Tensor):
            return node
        position, changed, _ = tensor.at(self._position[reader] - 1)
        return node if position < 0 else changed

    @property
    def written(self) -> frozenset[Hashable]:
        """The memories that calls write."""
        return self._written

    def written_through_views(self, *, overlapping: bool = True) -> set[Hashable]:
        """Returns the memories in which a write changes another tensor object that is used later.

        Without `overlapping`, the other object may also have other elements of the memory, such as the other
        half of a split tensor.
        """
        found: set[Hashable] = set()
        seen: dict[Hashable, dict[Tensor, float]] = {}  # by memory: the last use of each tensor object
        for node, row in self._calls:
            now = self._position[node]
            for memory, tensor, region in self._writes_of(node, row):
                if memory in found:
                    continue
                if memory not in seen:
                    seen[memory] = self._last_seen(memory)
                if any(
                    last > now
                    and other is not tensor
                    and (not overlapping or other.at(now)[2].overlaps(region))
                    for other, last in seen[memory].items()
                ):
                    found.add(memory)
        return found

    def _writes_of(self, node: Any, row: OperatorRow) -> Iterator[tuple[Hashable, Tensor, Region]]:
        """Yields the tensor objects that a call writes, with each memory in which they may be."""
        args = row.complete(node.args, node.kwargs)
        for position in row.mutates:
            for _, tensor in _items(self._of_argument(args[position])):
                region = tensor.at(self._position[node])[2]
                for memory in region.memories:
                    yield memory, tensor, region

    def _last_seen(self, memory: Hashable) -> dict[Tensor, float]:
        """Returns the position at which each tensor object of a memory is made or used for the last time."""
        found: dict[Tensor, float] = {}
        for member in self._members[memory]:
            found[member.tensor] = max(found.get(member.tensor, 0), self._last_use(member.node))
        return found

    def _last_use(self, node: Any) -> float:
        """Returns the last position at which a node is made or used; infinity for the caller's inputs.

        A user that is not among the nodes does not count: a planner leaves out calls that store a state.
        """
        if node.op == "placeholder" and self.is_source(node):
            return math.inf
        used = [self._position.get(user, -1) for user in node.users if self._counts(user)]
        return max([self._position[node], *used])

    def calls_in_written_memory(self) -> list[Any]:
        """Returns the calls that write, and those with results in memory that any call writes."""
        found = dict.fromkeys(node for node, _ in self._calls)
        for memory in self._written:
            found |= dict.fromkeys(
                member.node for member in self._members[memory] if member.node.op == "call_function"
            )
        return sorted(found, key=self._position.__getitem__)

    @property
    def has_shared_sources(self) -> bool:
        """True if two inputs share memory that a call writes."""
        return any(
            sum(self.is_source(member.node) for member in self._members[memory]) > 1
            for memory in self._written
        )

    @property
    def has_overlap(self) -> bool:
        """True if several elements of one tensor share a place in memory that a call writes."""
        return any(
            member.tensor.region.overlaps_itself
            for memory in self._written
            for member in self._members[memory]
        )

    # ---- writes ----

    def conflict_in(self, node: Any, row: OperatorRow, operand: Any) -> Conflict | None:
        """Returns a conflict if the value that call `node` writes to `operand` depends on write order.

        Several elements of the operand have the same memory, or the call reads elements that it writes.
        Neither matters to ``fill_``: torch reads the number before it writes.
        """
        now = self._position[node]
        if row.fills:
            return None
        for _, tensor in _items(self._tensors.get(operand)):
            region = tensor.at(now)[2]
            if region.overlaps_itself and not self.writes_one_number(node, row):
                return Conflict(
                    f"'{operand.name}', of which several elements share memory", region.layout is not None
                )
            for other in node.all_input_nodes:
                if other is operand:
                    is_alone = sum(item is operand for item in nodes_in([node.args, node.kwargs])) == 1
                    if is_alone or row.is_pointwise:
                        continue
                for _, read in _items(self._tensors.get(other)):
                    its = read.at(now)[2]
                    if not its.overlaps(region):
                        continue
                    if its.is_same(region) and row.is_pointwise:
                        continue
                    return Conflict(
                        f"'{operand.name}' while it reads '{other.name}', which shares its memory",
                        its.layout is not None and region.layout is not None,
                    )
        return None

    def writes_one_number(self, node: Any, row: OperatorRow) -> bool:
        """True if the call is known to write the same number to all elements."""
        if row.fills:
            return True
        if row.name.partition(".")[0] != "copy_":
            return False
        source = self._tensors.get(row.complete(node.args, node.kwargs)[1])
        return isinstance(source, Tensor) and source.at(self._position[node])[2].count == 1

    def same_as(self, node: Any, operand: Any) -> list[Member] | Conflict:
        """Returns the nodes whose result is the tensor object whose shape call `node` changes.

        Returns a conflict if other nodes may have the same object.
        """
        now = self._position[node]
        tensor = self._tensors.get(operand)
        if not isinstance(tensor, Tensor):
            return Conflict(f"the shape of '{operand.name}', whose memory is not known", False)
        found = []
        for memory in tensor.region.memories:
            for other in self._members.get(memory, []):
                if other.position >= now or self._last_use(other.node) <= now:
                    continue
                if other.tensor is tensor:
                    found.append(other)
                elif other.tensor.region.layout is None or tensor.region.layout is None:
                    return Conflict(
                        f"the shape of '{operand.name}', which may be the same tensor as '{other.node.name}'",
                        False,
                    )
        return found


def _items(tensors: Any) -> Sequence[tuple[int | None, Tensor]]:
    """Returns the tensors of a node with their indices; the index of a single tensor is None."""
    if tensors is None:
        return ()
    if isinstance(tensors, list):
        return [(index, tensor) for index, tensor in enumerate(tensors) if tensor is not None]
    return ((None, tensors),)


def nodes_in(tree: Any) -> Iterator[Any]:
    """Yields the nodes in nested arguments."""
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from nodes_in(item)
    elif isinstance(tree, dict):
        yield from nodes_in(list(tree.values()))
    elif hasattr(tree, "meta"):
        yield tree
