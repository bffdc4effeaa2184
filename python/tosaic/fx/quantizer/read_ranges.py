"""Which numbers of a result its readers distinguish: only these need different integers.

    sum -> relu                       all numbers below 0 are equal
    scores -> exp(scores - amax)      numbers far below the greatest of their row become 0: masks

This applies if every operator has its own scale, and the result shares its scale with its readers or is the
operand of a function such as an exponential. The result's observer clamps samples to the range that is read,
and integers saturate beyond it. So a mask of -255 still leaves 8 bits of precision to the scores.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from tosaic.annotation.observers import ByUse
from tosaic.annotation.plan import Plan
from tosaic.annotation.specs import Edge, Observed, Output, Shared, Slot
from tosaic.fx.quantizer.biases import elements_of
from tosaic.fx.quantizer.observers import TosaicHistogramObserver, has_samples

_ATEN = torch.ops.aten
_BOUNDING = (_ATEN.relu, _ATEN.relu_, _ATEN.hardtanh, _ATEN.hardtanh_, _ATEN.clamp)
_RESHAPES = (_ATEN.view, _ATEN.reshape, _ATEN._unsafe_view, _ATEN.view_copy)
# Calls whose results have the elements of their operands at the same positions.
_SAME_POSITIONS = (_ATEN.where, _ATEN.clone, _ATEN.alias, _ATEN.dropout, _ATEN.contiguous)
# Calls whose results have elements of their operands in other positions along the same axes.
_SAME_AXES = (
    _ATEN.cat,
    _ATEN.constant_pad_nd,
    _ATEN.flip,
    _ATEN.index_put,
    _ATEN.index_select,
    _ATEN.masked_fill,
    _ATEN.pad,
    _ATEN.roll,
    _ATEN.scatter,
    _ATEN.select_scatter,
    _ATEN.slice,
    _ATEN.slice_copy,
    _ATEN.slice_scatter,
)
# Further calls whose results have elements of their operands.
_MOVING = (
    _ATEN.expand,
    _ATEN.expand_copy,
    _ATEN.gather,
    _ATEN.index,
    _ATEN.permute,
    _ATEN.permute_copy,
    _ATEN.repeat,
    _ATEN.select,
    _ATEN.split,
    _ATEN.split_with_sizes,
    _ATEN.squeeze,
    _ATEN.squeeze_copy,
    _ATEN.stack,
    _ATEN.t,
    _ATEN.transpose,
    _ATEN.unsqueeze,
    _ATEN.unsqueeze_copy,
)
# Functions whose results tend to 0 for numbers below 0.
_DECAYING = (_ATEN.sigmoid, _ATEN.gelu, _ATEN.silu, _ATEN.mish)
_EXTREMA = (_ATEN.maximum, _ATEN.minimum)
# Calls whose results lie within the range that is read of their operand.
_WITHIN_OPERAND = (
    *_BOUNDING,
    _ATEN.amax,
    _ATEN.amin,
    _ATEN.avg_pool2d,
    _ATEN.adaptive_avg_pool2d,
    _ATEN._adaptive_avg_pool2d,
    _ATEN.max_pool2d,
    _ATEN.mean,
)
# Calls with an argument that becomes an element of the result.
_WITH_CONSTANTS = (
    _ATEN.constant_pad_nd,
    _ATEN.full,
    _ATEN.full_like,
    _ATEN.index_fill,
    _ATEN.masked_fill,
    _ATEN.scalar_tensor,
    _ATEN.scatter,
    _ATEN.where,
)
_HIDDEN = -8192.0  # replaces lesser constants: the planner gives a result with numbers below -1e4 no scale
_MARGIN = 0.25  # of the results' largest magnitude
# Calls that read the shape of their operand, and no element.
_SHAPE_READERS = (_ATEN.full_like, _ATEN.zeros_like, _ATEN.ones_like, _ATEN.empty_like, _ATEN.sym_size)


@dataclass(frozen=True)
class ReadRange:
    """The range of numbers that the readers of a tensor distinguish.

    Attributes
    ----------
    least, greatest : float
    axis : int, optional
        If set, `least` is relative to the greatest number of each row along this axis. The axis is negative,
        -1 for the last. None: `least` is absolute.
    margin : float
        By how much the range is extended below `least`, relative to the largest magnitude of row maxima.
    decays : bool
        Below 0, the reader's results become smaller in magnitude, as those of a sigmoid. If all numbers are
        below 0, `least` is relative to the greatest one.
    """

    least: float
    greatest: float
    axis: int | None = None
    margin: float = 0.0
    decays: bool = False

    def end(self, greatest: float) -> float:
        """Returns the lower end of a range whose greatest number is `greatest`."""
        return self.least + min(greatest, 0.0) if self.decays else self.least


class ReadRangeObserver(TosaicHistogramObserver):
    """A `TosaicHistogramObserver` of the range that readers distinguish; other numbers are clamped to it.

    Parameters
    ----------
    read : ReadRange
    **options
        The options of `TosaicHistogramObserver`.

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
        self._ignored: tuple[float, float] | None = None  # range of ignored rows or tensors
        self._greatest = -math.inf

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observes a tensor and returns it.

        With `axis`, it ignores tensors whose numbers are all equal. If only differences in a row matter (no
        `margin`), it also ignores rows of equal numbers, such as rows that a mask hides completely: any scale
        makes their integers equal. With `decays`, tensors wholly below the range count only if there are no
        others.
        """
        if has_samples(x_orig):
            numbers = x_orig.detach()
            numbers = self._in_range(numbers) if self.read.axis is None else self._in_rows(numbers)
            if numbers.numel():
                super().forward(numbers.clamp(None, self.read.greatest))
        return x_orig

    def _in_range(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the numbers clamped from below; none if `decays` is set and all are below the range."""
        least, greatest = float(numbers.amin()), float(numbers.amax())
        if self.read.decays and greatest < self.read.least:
            self._ignore(least, greatest)
            return numbers.new_empty(0)
        self._greatest = max(self._greatest, greatest)
        return numbers.clamp(self.read.end(self._greatest), None)

    def _ignore(self, *numbers: float) -> None:
        ends = (*numbers, *(self._ignored or ()))
        self._ignored = min(ends), max(ends)

    def _in_rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the rows that count, as a matrix, clamped to the range from below."""
        read, axis = self.read, self.read.axis
        assert axis is not None
        rows = numbers.movedim(axis, -1).flatten(0, -2) if numbers.dim() >= -axis else numbers.reshape(1, -1)
        greatest, least = rows.amax(-1), rows.amin(-1)
        differ = least < greatest
        if read.margin and least.min() < greatest.max():
            differ = torch.ones_like(differ)  # the reader's result is the greatest number of each row
        if not differ.all():
            self._ignore(float(least.min()), float(greatest.max()))
        rows, greatest = rows[differ], greatest[differ]
        if not rows.numel():
            return rows
        end = read.least + float(greatest.min()) - read.margin * float(greatest.abs().max())
        return rows.clamp(end if math.isfinite(end) else -math.inf, None)

    def own_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the scales and zero points that the search chooses."""
        if self._ignored is not None and not any(each.range.finite for each in self.histograms):
            end = self.read.end(self._ignored[1]) if self.read.axis is None else -math.inf
            super().forward(torch.tensor(self._ignored).clamp(end, self.read.greatest))
        return super().own_qparams()


def observe_read_ranges(plan: Plan, nodes: Mapping[str, Node]) -> dict[Slot, Observed]:
    """Returns specs with a `ReadRangeObserver` for the results whose readers do not distinguish all numbers.

    Parameters
    ----------
    plan : Plan
        A plan with specs of all results. Specs whose observer is not `ByUse` stay.
    nodes : mapping of str to Node
    """
    groups: dict[Slot, list[Slot]] = {}
    for slot in plan.slots():
        groups.setdefault(_root(plan, slot), []).append(slot)
    of_group = {
        nodes[slot.node]: root
        for root, members in groups.items()
        for slot in members
        if isinstance(slot, Output)
    }
    found: dict[Slot, Observed] = {}
    for root, members in groups.items():
        spec = plan[root]
        if not isinstance(spec, Observed) or not isinstance(spec.observer, ByUse):
            continue
        read = _read_of_group(root, members, nodes, of_group, _reach(spec))
        if read is not None:
            found[root] = replace(
                spec, observer=ReadRangeObserver.with_args(read=read, eps=spec.observer.eps)
            )
    return found


def _read_of_group(
    root: Slot, members: list[Slot], nodes: Mapping[str, Node], of_group: Mapping[Node, Slot], reach: float
) -> ReadRange | None:
    ranges = []
    for slot in members:
        if isinstance(slot, Output):
            node = nodes[slot.node]
            if not _is_covered(node, of_group, root):
                ranges.append(read_range(node, of_group, reach))
        elif isinstance(root, Edge):
            ranges.append(_range_of_reader(nodes[slot.producer], nodes[slot.user], of_group, reach))
    return _united(ranges)


def _is_covered(node: Node, of_group: Mapping[Node, Slot], root: Slot) -> bool:
    """True if the result's numbers lie within the ranges read of its operands, which have the same scale."""
    values = [(each, each.meta.get("val")) for each in node.all_input_nodes]
    operands = [
        each for each, value in values if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    is_within = _overload(node) in (*_WITHIN_OPERAND, *_RESHAPES, *_SAME_POSITIONS, *_SAME_AXES, *_MOVING)
    return is_within and bool(operands) and all(of_group.get(each) == root for each in operands)


def _united(ranges: Collection[ReadRange | None]) -> ReadRange | None:
    """Returns the smallest range that contains all `ranges`; None if one is None or of another kind."""
    known = [each for each in ranges if each is not None]
    if not known or len(known) < len(ranges) or len({(each.axis, each.margin) for each in known}) > 1:
        return None
    least, greatest = min(each.least for each in known), max(each.greatest for each in known)
    decays = any(each.decays for each in known)
    return replace(known[0], least=least, greatest=greatest, decays=decays)


def bound_hiding_constants(model: GraphModule) -> None:
    """Replaces constants far below all numbers that their readers distinguish, such as -1e9 before a softmax.

    The planner gives a result with such numbers no scale, and Arm's lowering would not take it. A new
    buffer replaces a constant that is an attribute of the module.

    Parameters
    ----------
    model : GraphModule
        As Arm's passes return it. It changes.
    """
    anywhere = dict.fromkeys(model.graph.nodes, 0)
    for node in list(model.graph.nodes):
        if not _may_hide(model, node):
            continue
        read = read_range(node, anywhere, reach_of(2**16 - 1))
        if read is None or read.margin or read.least < (_HIDDEN if read.axis is None else -math.inf):
            continue
        if node.op != "get_attr":
            node.args = tuple(_HIDDEN if _is_far(each) else each for each in node.args)
            continue
        value = node.meta["val"]
        elements = elements_of(model, node).clip(_HIDDEN, None)
        bounded = torch.tensor(elements, dtype=value.dtype, device=value.device)
        node.target = f"{node.target}_bounded".replace(".", "_")
        model.register_buffer(node.target, bounded)
    model.recompile()


def _may_hide(model: GraphModule, node: Node) -> bool:
    if node.op != "get_attr":
        return _overload(node) in _WITH_CONSTANTS and any(map(_is_far, node.args))
    elements = elements_of(model, node)
    return elements is not None and bool(np.isfinite(elements).all() and (elements < _HIDDEN).any())


def _is_far(number: Any) -> bool:
    return isinstance(number, float) and math.isfinite(number) and number < _HIDDEN


def is_bounded_above(node: Node) -> bool:
    """Returns whether a call bounds its operand from above by a number: hardtanh, ReLU6, clamp.

    Arm's passes omit such a call if the bound has the greatest integer. Otherwise they reject the call and
    the convolution before it. So the scale must not be larger than the range needs.
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
    least, greatest = spec.qmin or 0, spec.qmax or 0
    is_symmetric = spec.scheme is not None and spec.scheme.endswith("symmetric")
    return reach_of(greatest if is_symmetric else greatest - least)


def reach_of(steps: int) -> float:
    """Returns the distance below the maximum at which exp is less than half a step of its results."""
    return math.log(2 * steps)


def _overload(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def read_range(node: Node, of_group: Mapping[Node, Any], reach: float = math.inf) -> ReadRange | None:
    """Returns the range that the readers of a result distinguish; None if it is unlimited or not a range.

    Parameters
    ----------
    node : Node
    of_group : mapping of Node to object
        Equal objects for results that have a scale in common.
    reach : float
        The distance below the maximum of a row up to which an exponential distinguishes numbers.
    """
    return _united([_range_of_reader(node, user, of_group, reach) for user in _readers(node)])


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        if _overload(user) in _SHAPE_READERS:
            continue
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
    if overload is _ATEN.exp and _axis_of_rows(node) is not None:
        return ReadRange(-reach, math.inf)
    if (ends := _flat_beyond(overload, reach)) is not None:
        return ReadRange(*ends, decays=overload in _DECAYING)
    if overload is _ATEN.amax:
        users = list(user.users)
        found = _range_of_reader(node, users[0], of_group, reach) if len(users) == 1 else None
        axis = _reduced_axis(user)
        return found or (None if axis is None else ReadRange(0.0, math.inf, axis, _MARGIN))
    if overload in _EXTREMA:
        return _absolute(read_range(user, of_group, reach))
    if (factor := _factor(node, user)) is not None:
        return _divided(read_range(user, of_group, reach), factor)
    if overload is _ATEN.sub and node in user.all_input_nodes and (axis := _axis_of_rows(user)) is not None:
        is_exponent = all(_overload(each) is _ATEN.exp for each in user.users)
        return ReadRange(-reach, math.inf, axis) if is_exponent else None
    group = of_group.get(user)
    if group is None or group != of_group.get(node):
        return None
    if overload in _SAME_POSITIONS or overload in _SAME_AXES:
        # A row of the operand is a part of a row of the result, whose maximum is at least as large.
        return read_range(user, of_group, reach)
    if overload in _MOVING:
        return _absolute(read_range(user, of_group, reach))
    if overload not in _RESHAPES:
        return None
    found = read_range(user, of_group, reach)
    kept = (found.axis or 0) if found is not None else 0  # the shapes must agree from this axis on
    has_same_rows = kept == 0 or node.meta["val"].shape[kept:] == user.meta["val"].shape[kept:]
    return found if has_same_rows else None


def _flat_beyond(overload: Any, reach: float) -> tuple[float, float] | None:
    """Returns the bounds beyond which a function changes by less than half a step of its results."""
    ends = {
        _ATEN.sigmoid: (-reach, reach),
        _ATEN.tanh: (-reach / 2, reach / 2),
        _ATEN.erf: (-4.0, 4.0),
        _ATEN.gelu: (-5.0, math.inf),
        _ATEN.silu: (-reach - 4, math.inf),
        _ATEN.mish: (-reach - 4, math.inf),
        _ATEN.elu: (-reach, math.inf),
        _ATEN.hardswish: (-3.0, math.inf),
        _ATEN.hardsigmoid: (-3.0, 3.0),
    }
    return ends.get(overload)


def _absolute(found: ReadRange | None) -> ReadRange | None:
    """Returns the range if it is absolute, so that it still holds for moved elements; else None."""
    return found if found is not None and found.axis is None else None


def _factor(node: Node, user: Node) -> float | None:
    """Returns the constant factor by which `user` multiplies `node`; None for other calls."""
    if _overload(user) not in (_ATEN.mul, _ATEN.div) or len(user.args) != 2:
        return None
    x, other = user.args
    if x is not node and _overload(user) is _ATEN.mul:
        x, other = other, x
    if isinstance(other, Node) and _overload(other) is _ATEN.full:
        other = other.args[1]
    if x is not node or not isinstance(other, int | float) or not other or not math.isfinite(other):
        return None
    return float(other) if _overload(user) is _ATEN.mul else 1 / other


def _divided(found: ReadRange | None, factor: float) -> ReadRange | None:
    if found is None or found.axis is not None or (found.decays and factor < 0):
        return None
    least, greatest = sorted((found.least / factor, found.greatest / factor))
    return replace(found, least=least, greatest=greatest)


def _reduced_axis(node: Node) -> int | None:
    """Returns the only axis that an amax or amin reduces, as a negative number; else None."""
    axes = node.args[1] if len(node.args) > 1 else ()
    axes = [axes] if isinstance(axes, int) else axes
    x = node.args[0]
    if not isinstance(x, Node) or not isinstance(axes, list | tuple) or len(axes) != 1:
        return None
    rank, axis = x.meta["val"].dim(), axes[0]
    return axis % rank - rank if rank and isinstance(axis, int) else None


def _axis_of_rows(node: Node) -> int | None:
    """Returns the axis of x - amax(x, axis), as a negative number; None for other calls."""
    if _overload(node) is not _ATEN.sub or len(node.args) != 2:
        return None
    x, greatest = node.args
    if not isinstance(greatest, Node) or _overload(greatest) is not _ATEN.amax or greatest.args[0] is not x:
        return None
    return _reduced_axis(greatest)
