"""The devices of tosaic, with the tables of the core (``tosaic/claimant/devices/``)."""

from __future__ import annotations

from functools import cache
from typing import Any

from tosaic import _core
from tosaic.devices.device import Device, DeviceRecipe, Payload
from tosaic.devices.ethos_u import U55_RECIPES, U85_RECIPES, VELA_PAYLOAD
from tosaic.devices.vgf import RECIPES as VGF_RECIPES
from tosaic.devices.vgf import VGF_PAYLOAD

TOSA_PAYLOAD = Payload(
    "tosa",
    lambda tosa, _: tosa,
    runtime="TOSABackend",
    backend="TosaicTosaBackend",
    title="TOSA",
    takes_flags=False,
    magic=b"TOSA",
    magic_at=4,
    whose="a TOSA target",
)
"""The payload of claimants that are TOSA targets: the ``.tosa`` file itself."""

_CORTEX_M = DeviceRecipe(
    "cortex-m",
    "int8 for kernels of CMSIS-NN on a Cortex-M55.",
    ("cortex-m55",),
    every_operator=True,
    stages=("kernels", ("cortex-m", "cortex_m")),
)
_NEUTRON = DeviceRecipe(
    "neutron",
    "int8 for a Neutron NPU: its plan, and the integer program and inputs of each group.",
    ("neutron",),
    every_operator=True,
    stages=(),
    partners=("cortex-m",),
)

_MORE: dict[str, dict[str, Any]] = {
    "vgf": {"payload": VGF_PAYLOAD, "recipes": VGF_RECIPES},
    "ethos-u55": {"payload": VELA_PAYLOAD, "recipes": U55_RECIPES},
    "ethos-u85": {"payload": VELA_PAYLOAD, "recipes": U85_RECIPES},
    "cortex-m": {"recipes": (_CORTEX_M,), "rules": ("one-scale-linear",), "kernel_library": "cortex_m"},
    "neutron": {"recipes": (_NEUTRON,), "rules": ("symmetric-products",)},
    "grid-sampler": {"is_kernels": True},
}
"""By family: the fields that the core's tables do not have."""


@cache
def built_in_devices() -> tuple[Device, ...]:
    """Returns the devices of tosaic; the first is the host."""
    return tuple(Device.of_core(core, **_MORE.get(core.fields["name"], {})) for core in _core.devices())
