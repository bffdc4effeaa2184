"""The recipes that come with tosaic, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tosaic import _core
from tosaic.annotation.config import QConfig
from tosaic.annotation.plan import Plan
from tosaic.annotation.rules import Custom, Inputs, Operator, Outputs
from tosaic.annotation.specs import Edge, Fixed, Observed, Output, Spec
from tosaic.base.options import shown
from tosaic.partitions.claimant import Claimant
from tosaic.recipes.combining import combine
from tosaic.recipes.half import half_model
from tosaic.recipes.kernels import cortex_m_kernels, register_kernels
from tosaic.recipes.recipe import Recipe, Stage

__all__ = ["KERNELS", "SNORM", "UNIT_GRID", "named", "names", "snorm_images", "symmetric_products"]

SNORM = Fixed("int8", 1 / 127, 0, -127, 127, "per_tensor_symmetric")
"""Vulkan's format SNORM of 8 bits: -1 to 1."""

UNIT_GRID = Fixed("int16", 1 / 32767, 0, -32767, 32767, "per_tensor_symmetric")
"""The grid of a sampler with 16 bits: -1 to 1."""

KERNELS = Stage("kernels", "lowered", register_kernels)
"""The stage that lists the kernels for ExecuTorch's selective build."""

_IMAGE_CHANNELS = (3, 4)
_PRODUCTS = ("aten.matmul", "aten.bmm", "aten.baddbmm", "aten.mm")


def snorm_images(plan: Plan) -> None:
    """A rule: images at inputs and outputs have the format SNORM. Their numbers are in -1..1.

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


def symmetric_products(plan: Plan) -> None:
    """A rule: what products of matrices read has zero point 0, as Neutron needs it."""
    group_of = {slot: group for group in plan.groups() for slot in group.slots}
    for call in plan.graph:
        if not call.target.startswith(_PRODUCTS):
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


def _vgf_snorm() -> Recipe:
    samplers = Operator("grid_sampler", {"input": SNORM, "grid": UNIT_GRID}, SNORM, allow_unmatched=True)
    return Recipe(
        name="vgf-snorm",
        summary="int8 for VGF, with images of SNORM, and grid samplers on the texture unit.",
        config=QConfig.int8(),
        rules=[Custom(snorm_images, allow_unmatched=True), samplers],
        stages=[KERNELS],
        claimants=["grid-sampler", Claimant.named("vgf", connected=False)],
        rgba=True,
    )


def _ethos_u55() -> Recipe:
    return Recipe(
        name="ethos-u55",
        summary="int8 for an Ethos-U55 with 128 multipliers.",
        config=QConfig.int8(),
        stages=[KERNELS],
        claimants=["ethos-u55-128"],
    )


def _ethos_u85() -> Recipe:
    return Recipe(
        name="ethos-u85",
        summary="int8 for an Ethos-U85 with 256 multipliers.",
        config=QConfig.int8(),
        stages=[KERNELS],
        claimants=["ethos-u85-256"],
    )


def _cortex_m() -> Recipe:
    # ExecuTorch's kernel of a linear layer has one scale for all weights.
    one_scale = Observed("int8", -127, 127, "per_tensor_symmetric")
    return Recipe(
        name="cortex-m",
        summary="int8 for kernels of CMSIS-NN on a Cortex-M55.",
        config=QConfig.int8(every_operator=True),
        rules=[Operator("linear", {"weight": one_scale}, allow_unmatched=True)],
        stages=[Stage("cortex-m", "lowered", cortex_m_kernels)],
        claimants=["cortex-m55"],
    )


def _neutron() -> Recipe:
    return Recipe(
        name="neutron",
        summary="int8 for a Neutron NPU: its plan, and the integer program and inputs of each group.",
        config=QConfig.int8(every_operator=True),
        rules=[Custom(symmetric_products, allow_unmatched=True)],
        claimants=["neutron"],
    )


_RECIPES: dict[str, Callable[[], Recipe]] = {
    "tosa-int8": _tosa_int8,
    "tosa-int16x8": _tosa_int16x8,
    "tosa-fp16": _tosa_fp16,
    "vgf-snorm": _vgf_snorm,
    "ethos-u55": _ethos_u55,
    "ethos-u85": _ethos_u85,
    "cortex-m": _cortex_m,
    "neutron": _neutron,
    "neutron+cortex-m": lambda: combine([_neutron(), _cortex_m()]),
}


def names() -> tuple[str, ...]:
    """Returns the names of the recipes that come with tosaic."""
    return tuple(_RECIPES)


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
    if not isinstance(asked, str) or asked not in _RECIPES:
        raise _core.make_error(
            _core.InvalidGraph,
            where="recipes",
            what="there is no recipe of this name",
            expected=", ".join(_RECIPES),
            got=shown(asked),
            hint=_core.did_you_mean(asked, list(_RECIPES)) if isinstance(asked, str) else "",
        )
    return _RECIPES[name]()
