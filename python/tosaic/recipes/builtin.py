"""The recipes that come with tosaic, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tosaic import _core
from tosaic.annotation.config import QConfig
from tosaic.annotation.device_rules import rules_of
from tosaic.annotation.plan import Plan
from tosaic.annotation.rules import Custom
from tosaic.base.options import invalid, shown
from tosaic.devices.device import DeviceRecipe
from tosaic.devices.registry import device_of, devices
from tosaic.partitions.claimant import Claimant
from tosaic.recipes.half import half_model
from tosaic.recipes.kernels import cortex_m_kernels, register_kernels
from tosaic.recipes.recipe import Recipe, combine
from tosaic.recipes.stage import Stage

KERNELS = Stage("kernels", "lowered", register_kernels)
"""The stage that lists the kernels for ExecuTorch's selective build."""


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


def device_rules(claimants: Sequence[Claimant]) -> Iterator[tuple[str, Any]]:
    """Yields the rules of devices for the nodes they take, each after the name of the claimant."""
    for claimant in claimants:
        device = device_of(claimant.kind)
        for rule in rules_of(() if device is None else device.rules):
            yield claimant.name, rule


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
    return Recipe(
        name=data.name,
        summary=data.summary,
        config=QConfig.of_recipe(data),
        rules=rules_of(data.rules),
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
