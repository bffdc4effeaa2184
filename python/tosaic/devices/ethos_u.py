"""The devices Ethos-U: streams of commands, by Vela."""

from __future__ import annotations

import math

from tosaic import _core
from tosaic.base.options import invalid
from tosaic.devices.device import DeviceRecipe, Payload, Sizes
from tosaic.devices.device_compilers import require_tool, vela_flags
from tosaic.devices.vela_cost import compile_with_summary, vela_cost
from tosaic.devices.vela_stream import unpack_vela


def _sizes(payload: bytes) -> tuple[Sizes, Sizes]:
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
    lambda tosa, flags: compile_with_summary(tosa, flags)[0],
    runtime="EthosUBackend",
    backend="TosaicEthosUBackend",
    title="Vela",
    require_tool=lambda: require_tool("vela"),
    flags=vela_flags,
    magic=b"vela_bin_stream\0",
    sizes=_sizes,
    contents="commands for Ethos-U, which only the device runs",
    whose="an Ethos-U such as 'ethos-u55-128'",
    names_member=True,
    compile_with_summary=lambda tosa, flags: compile_with_summary(tosa, flags),
    cost=vela_cost,
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
