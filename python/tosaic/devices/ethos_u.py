"""The devices Ethos-U: streams of commands, by Vela."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tosaic import _core
from tosaic.base.options import invalid
from tosaic.devices.device import DeviceRecipe, Payload, Sizes

if TYPE_CHECKING:
    from tosaic.devices.tool_cost import CostSummary, ToolCost

# Vela is called from modules that are loaded on the first use: the devices are known in every program.


def _require_tool() -> None:
    from tosaic.devices.device_compilers import require_tool

    require_tool("vela")


def _flags(member: str, flags: Sequence[str]) -> Sequence[str]:
    from tosaic.devices.device_compilers import vela_flags

    return vela_flags(member, flags)


def _compile_with_summary(tosa: bytes, flags: Sequence[str]) -> tuple[bytes, CostSummary | None]:
    from tosaic.devices.vela_cost import compile_with_summary

    return compile_with_summary(tosa, flags)


def _cost(tosa: bytes, member: str, options: Mapping[str, str], flags: Sequence[str]) -> ToolCost:
    from tosaic.devices.vela_cost import vela_cost

    return vela_cost(tosa, member, options, flags)


def _sizes(payload: bytes) -> tuple[Sizes, Sizes]:
    from tosaic.devices.vela_stream import unpack_vela

    try:
        stream = unpack_vela(payload)
    except _core.InvalidGraph as error:
        said = {name: error.parts[name] for name in ("expected", "got", "hint")}
        what = f"the payload: {error.parts['what']}"
        raise invalid("payload", what, **said) from error
    inputs, outputs = (
        [math.prod(each.shape) * each.element_bytes for each in side]
        for side in (stream.inputs, stream.outputs)
    )
    return inputs, outputs


VELA_PAYLOAD = Payload(
    "vela",
    lambda tosa, flags: _compile_with_summary(tosa, flags)[0],
    runtime="EthosUBackend",
    backend="TosaicEthosUBackend",
    title="Vela",
    require_tool=_require_tool,
    flags=_flags,
    magic=b"vela_bin_stream\0",
    sizes=_sizes,
    contents="commands for Ethos-U, which only the device runs",
    whose="an Ethos-U such as 'ethos-u55-128'",
    names_member=True,
    compile_with_summary=_compile_with_summary,
    cost=_cost,
)


def _recipe(family: str, macs: int, member: str) -> DeviceRecipe:
    """Returns the recipe of a family.

    Operators read and write 8 bits, which the device computes fastest. It adds two operands of 16 bits as
    fast, so the sums of a residual stream have 16.
    """
    summary = f"int8 for an {family} with {macs} multipliers."
    return DeviceRecipe(
        family.lower(), summary, (member,), every_operator=True, stream="int16", partners=("cortex-m",)
    )


U55_RECIPES = (_recipe("Ethos-U55", 128, "ethos-u55-128"),)

U85_RECIPES = (_recipe("Ethos-U85", 256, "ethos-u85-256"),)
