"""Which numbers of a result its readers tell apart: only those need integers of their own.

    sum -> relu                       all numbers below 0 are equal
    scores -> exp(scores - amax)      numbers far below the greatest of their row become 0: masks

Where every operator has a scale of its own, such a result has a scale in common with what reads it, or is the
operand of an exponential. Its observer then ignores how far a number is beyond the range that is read, and
saturation does the rest. A mask of -255 leaves the precision of 8 bits to the scores beside it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from tosaic.annotation import ByUse, Observed, Output, Plan, Shared, Slot
from tosaic.fx.annotations.observers import TosaicHistogramObserver, has_samples

__all__ = ["ReadRange", "ReadRangeObserver", "is_bounded_above", "observe_read_ranges", "read_range"]

_ATEN = torch.ops.aten
_BOUNDING = (_ATEN.relu, _ATEN.relu_, _ATEN.hardtanh, _ATEN.hardtanh_, _ATEN.clamp)
_RESHAPES = (_ATEN.view, _ATEN.reshape, _ATEN._unsafe_view, _ATEN.view_copy)
# Calls whose results have the elements of their operands at the same places.
_SAME_POSITIONS = (_ATEN.where, _ATEN.clone, _ATEN.alias, _ATEN.dropout, _ATEN.contiguous)


@dataclass(frozen=True)
class ReadRange:
    """The numbers that readers of a tensor tell apart.

    Attributes
    ----------
    least, greatest : float
    in_rows : bool
        `least` is relative to the greatest number of a row, along the last axis.
    """

    least: float
    greatest: float
    in_rows: bool = False


class ReadRangeObserver(TosaicHistogramObserver):
    """A `TosaicHistogramObserver` of the numbers that readers tell apart: others count as the nearest one.

    Parameters
    ----------
    read : ReadRange
    **options
        Those of `TosaicHistogramObserver`.

    Examples
    --------
    >>> import torch
    >>> observer = ReadRangeObserver(read=ReadRange(0, float("inf")))
    >>> _ = observer(torch.tensor([-50.0, 0.5, 1.0]))
    >>> float(observer.min_val)
    0.0
    """

    def __init__(self, *args: Any, read: ReadRange, **options: Any) -> None:
        super().__init__(*args, **options)
        self.read = read

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observes a tensor and returns it. A range in rows ignores a tensor of one element."""
        if has_samples(x_orig) and not (self.read.in_rows and x_orig.numel() == 1):
            least = self.read.least
            if self.read.in_rows:
                least += float(x_orig.detach().amax(-1).min())
            super().forward(x_orig.clamp(least, self.read.greatest))
        return x_orig


def observe_read_ranges(plan: Plan, nodes: Mapping[str, Node]) -> dict[Slot, Observed]:
    """Returns the specs of the results whose readers do not tell all numbers apart, with observers for that.

    Parameters
    ----------
    plan : Plan
        With specs of all results. Those whose observer is not `ByUse` stay.
    nodes : mapping of str to Node
    """
    groups: dict[Slot, list[Node]] = {}
    for slot in plan.slots():
        if isinstance(slot, Output):
            groups.setdefault(_root(plan, slot), []).append(nodes[slot.node])
    of_group = {node: root for root, members in groups.items() for node in members}
    found: dict[Slot, Observed] = {}
    for root, members in groups.items():
        spec = plan[root]
        if (
            not isinstance(root, Output)
            or not isinstance(spec, Observed)
            or not isinstance(spec.observer, ByUse)
        ):
            continue
        reach = _reach(spec)
        ranges = {
            read_range(member, of_group, reach) for member in members if _overload(member) not in _BOUNDING
        }
        if len(ranges) == 1 and (read := ranges.pop()) is not None:
            found[root] = replace(
                spec, observer=ReadRangeObserver.with_args(read=read, eps=spec.observer.eps)
            )
    return found


def is_bounded_above(node: Node) -> bool:
    """Returns whether a call bounds its operand by a number from above: hardtanh, ReLU6, clamp.

    Arm's passes omit such a call if the bound has the greatest integer, and else take neither it nor the
    convolution before it. So its scale must not be larger than the range needs.
    """
    overload = _overload(node)
    if overload not in _BOUNDING or overload in (_ATEN.relu, _ATEN.relu_):
        return False
    bounds = (*node.args[1:], None, None)[:2]
    return isinstance(bounds[1], int | float)


def _root(plan: Plan, slot: Slot) -> Slot:
    while isinstance(spec := plan[slot], Shared):
        slot = spec.slot
    return slot


def _reach(spec: Observed) -> float:
    """Returns how far below the greatest number an exponential has less than half of its unit."""
    least, greatest = spec.qmin or 0, spec.qmax or 0
    is_symmetric = spec.scheme is not None and spec.scheme.endswith("symmetric")
    return math.log(2 * (greatest if is_symmetric else greatest - least))


def _overload(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def read_range(node: Node, of_group: Mapping[Node, Any], reach: float = math.inf) -> ReadRange | None:
    """Returns what all readers of a result tell apart; None if that is everything, or if they differ.

    Parameters
    ----------
    node : Node
    of_group : mapping of Node to object
        Equal objects for results that have a scale in common.
    reach : float
        How far below the greatest number of a row an exponential counts.
    """
    ranges = {_range_of_reader(node, user, of_group, reach) for user in _readers(node)}
    return ranges.pop() if len(ranges) == 1 else None


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        if user.target is not operator.getitem:
            yield user
        else:
            yield from user.users


def _range_of_reader(node: Node, user: Node, of_group: Mapping[Node, Any], reach: float) -> ReadRange | None:
    overload = _overload(user)
    if overload in (_ATEN.relu, _ATEN.relu_):
        return ReadRange(0.0, math.inf)
    if overload in _BOUNDING:
        least, greatest = (*user.args[1:], None, None)[:2]
        return ReadRange(
            float(least) if isinstance(least, int | float) else -math.inf,
            float(greatest) if isinstance(greatest, int | float) else math.inf,
        )
    if overload is _ATEN.exp and _is_less_its_row(node):
        return ReadRange(-reach, math.inf)
    if overload is _ATEN.amax:
        users = list(user.users)
        return _range_of_reader(node, users[0], of_group, reach) if len(users) == 1 else None
    if overload is _ATEN.sub and _is_less_its_row(user) and node in user.all_input_nodes:
        is_exponent = all(_overload(each) is _ATEN.exp for each in user.users)
        return ReadRange(-reach, math.inf, in_rows=True) if is_exponent else None
    if of_group.get(user) != of_group[node]:
        return None
    has_same_rows = overload in _SAME_POSITIONS or (
        overload in _RESHAPES and node.meta["val"].shape[-1:] == user.meta["val"].shape[-1:]
    )
    return read_range(user, of_group, reach) if has_same_rows else None


def _is_less_its_row(node: Node) -> bool:
    """True for x - amax(x) along the last axis."""
    if _overload(node) is not _ATEN.sub or len(node.args) != 2:
        return False
    x, greatest = node.args
    if not isinstance(greatest, Node) or _overload(greatest) is not _ATEN.amax or greatest.args[0] is not x:
        return False
    axes = greatest.args[1]
    return isinstance(x, Node) and axes in ([-1], [x.meta["val"].dim() - 1])
