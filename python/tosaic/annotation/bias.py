"""Raises scales of weights and biases until the biases fit in 32 bits.

A contraction adds its bias to its sums of products, so the bias has the unit of the sums: the product of the
scales of data and weight. The scale is tiny for a channel whose weights are zero, or nearly zero, and for an
operand that was zero in all samples. The integers of a bias in such a unit would leave int32::

    weights of a channel are 0, bias 3    scale of the weights 1.2e-7, data 1/255:  3 / 4.7e-10 = 6.4e9
                                          scale of the weights raised to 7.1e-7:   3 / 2.8e-9  = 2^30

The raised scale costs no precision if each channel has its own scale: each product of such a channel is below
2^-15 of its bias, or 2^-8 with data of 16 bits. If all channels have one scale, the weights of the other
channels would lose bits. Then the bias gets its own scale instead, and lowering adds it in a separate step.
Targets without such a step (`QConfig.every_operator`, Arm's lowering) get the raised scale.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tosaic.annotation.plan import Group, Plan
from tosaic.annotation.specs import Edge, Observed, Output, Slot, integers_of
from tosaic.base.arrays import channel_axis
from tosaic.base.quantization import QParams

_LOG = logging.getLogger(__name__)

LARGEST_BIAS = 2**30
"""The largest integer of a bias. The other half of int32 is left for the products that are added to it."""

_Array = np.ndarray[Any, Any]
_ADDING = ("aten.add.", "aten.add_.", "aten.sub.", "aten.sub_.", "aten.rsub.", "aten.addmm.", "aten.baddbmm.")
_PRODUCTS = ("aten.addmm.", "aten.baddbmm.")  # operand 0 is the addend
_LISTED = 8
_COARSE = 16  # steps of a sum: half of them is an error of 3 % of an 8-bit range


def fitting_weight_scales(
    weight_scales: _Array, data_scale: float, bias: _Array, *, has_elements: bool, unit_of_sums: bool
) -> _Array:
    """Returns the scales of a weight, raised where the bias would not fit.

    Parameters
    ----------
    weight_scales : float32 array
        One scale, or one for each element of the bias.
    data_scale : float
        The scale of the other operand.
    bias : array
        Elements that are not finite are ignored.
    has_elements : bool
        Whether the weight has elements that its scales do not round to zero.
    unit_of_sums : bool
        The target supports no other scale of a bias: a single scale for all channels is raised, too.
    """
    least = _magnitudes(bias) / (float(data_scale) * LARGEST_BIAS)
    if weight_scales.size != least.size:
        if has_elements and not unit_of_sums:
            return weight_scales
        least = least.max(initial=0.0, keepdims=True)
    raised: _Array = np.maximum(weight_scales, least.astype(np.float32))
    return raised


def fitting_bias_scales(scales: _Array, bias: _Array) -> _Array:
    """Returns the scales of a bias, raised where an element would not fit in 32 bits.

    If one scale is too small for an element, each element gets its own: a single scale, raised for a bias of
    -1e6 that an activation discards, would leave few bits to the other channels.
    """
    least = _magnitudes(bias) / LARGEST_BIAS
    if scales.size not in (1, least.size):
        least = least.max(initial=0.0, keepdims=True)
    # Scales that are too small by a relative 2^-10 at most stay: they exceed LARGEST_BIAS only by rounding.
    fits = scales * np.float32(1 + 2**-10) >= least
    raised: _Array = scales if fits.all() else np.where(fits, scales, least.astype(np.float32))
    return raised


def lost_bits(before: _Array, after: _Array) -> float:
    """Returns the most bits that a channel of a weight loses by a raised scale."""
    return float(np.log2(np.asarray(after, np.float64) / np.asarray(before, np.float64)).max(initial=0.0))


def free_crowded_addends(plan: Plan, elements_of: Callable[[str], Any]) -> None:
    """Removes the specs of constant addends in which one channel would leave no bits to others.

    Integer lowering then rounds the constant with the scale of the sum. An addend that shares its scale with
    other slots keeps its spec.

    Parameters
    ----------
    plan : Plan
    elements_of : callable
        Returns the elements of a constant, by the name of its call; None for other calls.
    """
    alone = {group.slots[0]: spec for group, spec in _one_scale(plan) if len(group.slots) == 1}
    for slot in addends(plan):
        spec = alone.get(slot)
        elements = None if spec is None else elements_of(slot.producer)
        if spec is None or elements is None:
            continue
        if crowded_channels(elements, full_range_scale(elements, integers_of(spec))) is not None:
            with plan.authored_by("crowded addend"):
                del plan[slot]


def note_crowded_addends(
    plan: Plan, elements_of: Callable[[Edge], Any], chosen: Mapping[Slot, QParams]
) -> None:
    """Warns of constant addends whose scale leaves too few bits to channels.

    `note_coarse_addend` defines what is too few.

    Parameters
    ----------
    plan : Plan
    elements_of : callable
        Returns the elements of a constant; None for other operands.
    chosen : mapping of Slot to QParams
        The qparams of the addends and sums.
    """
    results = {slot.node: slot for slot in plan if isinstance(slot, Output)}
    reads = {slot.producer: slot for slot in plan if isinstance(slot, Edge)}
    for slot in addends(plan):
        found, elements = chosen.get(slot), elements_of(slot)
        if found is None or len(found.scales) != 1 or elements is None:
            continue
        of_sum = chosen.get(results.get(slot.user, reads.get(slot.user, slot)), found)
        note_coarse_addend(slot.user, found.dtype, elements, found.scale, max(of_sum.scales))


def note_coarse_addend(call: str, dtype: str, elements: Any, scale: float, of_sum: float) -> bool:
    """Warns if the scale of a constant addend leaves too few bits to channels, and returns whether it did.

    Too few means no bit at all, or an error of more than eight steps of the sum in a channel whose elements
    are below 16 steps of the addend.

    Parameters
    ----------
    call, dtype : str
        The call that adds, and the integers of the addend, for the message.
    elements : array
    scale, of_sum : float
        The scales of the addend and of the sum.
    """
    is_coarse = scale > _COARSE * of_sum
    crowded = crowded_channels(elements, scale * (_COARSE if is_coarse else 1))
    if crowded is not None:
        _note(call, dtype, crowded, "few" if is_coarse else "no")
    return crowded is not None


def note_crowded_sums(plan: Plan, elements_of: Callable[[str], Any]) -> None:
    """Warns of constant addends that leave no bits to channels if ranges cover all numbers.

    Torchao's observers choose such ranges for addends and sums, even if readers distinguish fewer numbers.
    """
    one_scale = {slot: spec for group, spec in _one_scale(plan) for slot in group.slots}
    users: dict[str, list[str]] = {}
    for call in plan.graph:
        for operand in call.operands:
            users.setdefault(operand.producer, []).append(call.name)
    for slot in addends(plan):
        sums = [Output(slot.user), *(Edge(slot.user, user) for user in users.get(slot.user, ()))]
        spec = next((one_scale[each] for each in (slot, *sums) if each in one_scale), None)
        elements = None if spec is None else elements_of(slot.producer)
        if spec is None or elements is None:
            continue
        scale = full_range_scale(elements, integers_of(spec))
        note_coarse_addend(slot.user, spec.dtype, elements, scale, scale)


def _one_scale(plan: Plan) -> Iterator[tuple[Group, Observed]]:
    for group in plan.groups():
        if isinstance(group.spec, Observed) and not str(group.spec.scheme).startswith("per_channel"):
            yield group, group.spec


def addends(plan: Plan) -> Iterator[Edge]:
    """Yields the operands that an addition reads, and the addends of matrix products."""
    for call in plan.graph:
        if call.kind != "call" or not call.target.startswith(_ADDING):
            continue
        is_product = call.target.startswith(_PRODUCTS)
        for name in dict.fromkeys(each.producer for each in call.operands[: 1 if is_product else None]):
            yield Edge(name, call.name)


def _note(call: str, dtype: str, crowded: tuple[list[int], int, float], bits: str) -> None:
    lost, channel, largest = crowded
    listed = ", ".join(map(str, lost[:_LISTED]))
    more = f" and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
    _LOG.warning(
        "the addend of '%s', or the sum with it, has one scale of %s for all channels: %.3g in channel %d "
        "leaves %s bits to channel%s %s%s. The bias of a linear layer or convolution keeps them, as does a "
        "configuration without every_operator",
        call,
        dtype,
        largest,
        channel,
        bits,
        "s" if len(lost) > 1 else "",
        listed,
        more,
    )


def full_range_scale(elements: Any, integers: tuple[int, int]) -> float:
    """Returns the scale with which all elements just fit in integers."""
    found = np.asarray(elements, np.float64)
    return float(found.max(initial=0.0) - found.min(initial=0.0)) / (integers[1] - integers[0])


def crowded_channels(constant: Any, least: float) -> tuple[list[int], int, float] | None:
    """Returns the channels whose elements are below `least`, the channel with the largest element, and that.

    None if there is no such channel. `channel_axis` says which axis has the channels.
    """
    elements = np.asarray(constant, np.float64)
    axis = channel_axis(elements.shape)
    if axis is None or not np.isfinite(elements).all():
        return None
    channels = np.moveaxis(elements, axis, 0).reshape(elements.shape[axis], -1)
    magnitudes = np.abs(channels).max(axis=1)
    lost = np.flatnonzero((magnitudes > 0) & (magnitudes < least))
    if not lost.size:
        return None
    most = int(magnitudes.argmax())
    return lost.tolist(), most, float(channels[most][np.abs(channels[most]).argmax()])


def _magnitudes(bias: _Array) -> _Array:
    found = np.abs(np.asarray(bias, np.float64)).reshape(-1)
    return np.where(np.isfinite(found), found, 0.0)
