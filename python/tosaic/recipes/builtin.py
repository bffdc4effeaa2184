"""The recipes that come with tosaic, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tosaic import _core
from tosaic.annotation.config import QConfig
from tosaic.annotation.plan import Plan
from tosaic.annotation.rules import Custom, Inputs, Operator, Outputs
from tosaic.annotation.specs import Edge, Fixed, Observed, Output, Spec
from tosaic.base.options import invalid, shown
from tosaic.devices.device import DeviceRecipe
from tosaic.devices.registry import device_of, devices
from tosaic.partitions.claimant import Claimant
from tosaic.recipes.half import half_model
from tosaic.recipes.kernels import cortex_m_kernels, register_kernels
from tosaic.recipes.recipe import Recipe, combine
from tosaic.recipes.stage import Stage

SNORM = Fixed("int8", 1 / 127, 0, -127, 127, "per_tensor_symmetric")
"""Vulkan's format SNORM of 8 bits: -1 to 1."""

UNIT_GRID = Fixed("int16", 1 / 32767, 0, -32767, 32767, "per_tensor_symmetric")
"""The grid of a sampler with 16 bits: -1 to 1."""

KERNELS = Stage("kernels", "lowered", register_kernels)
"""The stage that lists the kernels for ExecuTorch's selective build."""

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


def _tosa_int8() -> Recipe:
    return Recipe(
        name="tosa-int8",
        summary="int8 for TOSA with profile INT.",
        config=QConfig.int8(),
        stages=[KERNELS],
        claimants=["TOSA-1.0+INT"],
    )


def _tosa_int16x8() -> Recipe:
    return Recipe(
        name="tosa-int16x8",
        summary="Activations of int16 and weights of int8, for TOSA with profile INT and int16.",
        config=QConfig.int16x8(),
        stages=[KERNELS],
        claimants=["TOSA-1.0+INT+int16"],
    )


def _tosa_fp16() -> Recipe:
    return Recipe(
        name="tosa-fp16",
        summary="Floats of 16 bits, for TOSA with profile FP.",
        stages=[Stage("half", "model", half_model), KERNELS],
        claimants=["TOSA-1.0+FP"],
    )


_TOSA: dict[str, Callable[[], Recipe]] = {
    "tosa-int8": _tosa_int8,
    "tosa-int16x8": _tosa_int16x8,
    "tosa-fp16": _tosa_fp16,
}

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


def device_rules(claimants: Sequence[Claimant]) -> Iterator[tuple[str, Any]]:
    """Yields the rules of devices for the nodes they take, each after the name of the claimant."""
    for claimant in claimants:
        device = device_of(claimant.kind)
        for each in () if device is None else device.rules:
            yield claimant.name, _RULES[each] if isinstance(each, str) else each


def rule_for(rule: Any, calls: Collection[str]) -> Custom:
    """Returns a rule of a device that applies to some calls only; others stay as the plan has them."""
    function = _for_calls if hasattr(rule, "where") else _custom_for_calls
    name = getattr(rule, "name", "") or type(rule).__name__
    return Custom(partial(function, rule=rule, calls=frozenset(calls)), name, allow_unmatched=True)


def _for_calls(plan: Plan, *, rule: Any, calls: frozenset[str]) -> None:
    names = tuple(call.name for call in plan.graph if call.name in calls)
    if names:
        plan.apply(replace(rule, where=replace(rule.where, nodes=names), allow_unmatched=True))


def _custom_for_calls(plan: Plan, *, rule: Custom, calls: frozenset[str]) -> Plan | None:
    function: Any = rule.function
    found: Plan | None = function(plan, calls=calls)
    return found


_STAGES = {"kernels": register_kernels, "cortex_m": cortex_m_kernels}
"""The stage functions that recipes of devices use, by name."""


def _of_device(data: DeviceRecipe) -> Recipe:
    config = getattr(QConfig, data.config)
    return Recipe(
        name=data.name,
        summary=data.summary,
        config=config(every_operator=True) if data.every_operator else config(),
        rules=[_RULES[each] if isinstance(each, str) else each for each in data.rules],
        stages=[_stage(each) for each in data.stages],
        claimants=[
            Claimant.named(name, **data.options[name]) if name in data.options else name
            for name in data.claimants
        ],
        rgba=data.rgba,
    )


def _stage(data: Any) -> Stage:
    if isinstance(data, Stage):
        return data
    name, function = (data, data) if isinstance(data, str) else data
    return Stage(name, "lowered", _STAGES[function])


def _recipes() -> dict[str, Callable[[], Recipe]]:
    """Returns the function that makes each recipe, by name: recipes of TOSA, then of devices."""
    found = dict(_TOSA)
    for data in (data for device in devices() for data in device.recipes):
        found[data.name] = partial(_of_device, data)
        for partner in data.partners:
            found[f"{data.name}+{partner}"] = partial(_combined, data.name, partner)
    return found


def _combined(*wanted: str) -> Recipe:
    return combine([named(each) for each in wanted])


def names() -> tuple[str, ...]:
    """Returns the names of the recipes that come with tosaic."""
    return tuple(_recipes())


def named(name: str) -> Recipe:
    """Returns a recipe that comes with tosaic.

    Parameters
    ----------
    name : str
        One of `names`.

    Raises
    ------
    InvalidGraph
        There is no such recipe.

    Examples
    --------
    >>> from tosaic import recipes
    >>> print(recipes.named("ethos-u55"))
    ethos-u55: int8 for an Ethos-U55 with 128 multipliers.
      config    QConfig.int8()
      stages    Stage('kernels', 'lowered', register_kernels)
      claimants 'ethos-u55-128'
    """
    asked: Any = name
    known = _recipes()
    if not isinstance(asked, str) or asked not in known:
        raise invalid(
            "recipes",
            "there is no recipe of this name",
            expected=", ".join(known),
            got=shown(asked),
            hint=_core.did_you_mean(asked, list(known)) if isinstance(asked, str) else "",
        )
    return known[name]()
