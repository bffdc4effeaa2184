"""Rules of quantization that devices need, and those that recipes name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tosaic.annotation.plan import Plan
from tosaic.annotation.rules import Custom, Inputs, Operator, Outputs
from tosaic.annotation.specs import Edge, Fixed, Observed, Output, Spec

SNORM = Fixed("int8", 1 / 127, 0, -127, 127, "per_tensor_symmetric")
"""Vulkan's format SNORM of 8 bits: -1 to 1."""

UNIT_GRID = Fixed("int16", 1 / 32767, 0, -32767, 32767, "per_tensor_symmetric")
"""The grid of a sampler with 16 bits: -1 to 1."""

_IMAGE_CHANNELS = (3, 4)
_PRODUCTS = ("aten.matmul", "aten.bmm", "aten.baddbmm", "aten.mm")


def snorm_images(plan: Plan) -> None:
    """A rule: images at inputs and outputs, whose numbers are in -1..1, get the format SNORM.

    An image is a float tensor of shape (N, 3, H, W) or (N, 4, H, W).
    """
    for rule, ports in ((Inputs, plan.graph.inputs), (Outputs, plan.graph.outputs)):
        images: dict[int | str, Spec | None] = {
            i: SNORM for i, port in enumerate(ports) if port.node is not None and _is_image(plan, port.node)
        }
        if images:
            plan.apply(rule(images))


def _is_image(plan: Plan, node: str) -> bool:
    call = plan.graph[node]
    shape = call.shape or ()
    return call.dtype == "f32" and len(shape) == 4 and shape[1] in _IMAGE_CHANNELS


def symmetric_products(plan: Plan, *, calls: Collection[str] | None = None) -> None:
    """A rule: operands of matrix products have zero point 0, as Neutron needs it.

    Parameters
    ----------
    plan : Plan
    calls : collection of str, optional
        Names of the calls to which the rule applies. None: to all.
    """
    group_of = {slot: group for group in plan.groups() for slot in group.slots}
    for call in plan.graph:
        if not call.target.startswith(_PRODUCTS) or (calls is not None and call.name not in calls):
            continue
        for operand in call.operands:
            slot = Edge(operand.producer, call.name)
            group = group_of.get(slot) or group_of.get(Output(operand.producer))
            if group is None or group.decided_by is None:
                continue
            if isinstance(group.spec, Observed) and group.spec.dtype == "int8" and group.spec.axis is None:
                plan[group.decided_by] = replace(
                    group.spec, qmin=-127, qmax=127, scheme="per_tensor_symmetric"
                )
            elif isinstance(group.spec, Fixed) and group.spec.dtype == "int8" and group.spec.zero_point:
                greatest = max(
                    abs(group.spec.scale * (bound - group.spec.zero_point)) for bound in (-128, 127)
                )
                plan[group.decided_by] = Fixed("int8", greatest / 127, 0, -127, 127, "per_tensor_symmetric")


_RULES: dict[str, Any] = {
    "snorm-images": Custom(snorm_images, allow_unmatched=True),
    "snorm-samplers": Operator(
        "grid_sampler", {"input": SNORM, "grid": UNIT_GRID}, SNORM, allow_unmatched=True
    ),
    "symmetric-products": Custom(symmetric_products, allow_unmatched=True),
    # ExecuTorch's kernel of a linear layer has one scale for all weights.
    "one-scale-linear": Operator(
        "linear", {"weight": Observed("int8", -127, 127, "per_tensor_symmetric")}, allow_unmatched=True
    ),
}
"""The rules that recipes of devices use, by name."""


def rules_of(rules: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the rules of a `DeviceRecipe`, of which some are names."""
    return tuple(_RULES[each] if isinstance(each, str) else each for each in rules)
