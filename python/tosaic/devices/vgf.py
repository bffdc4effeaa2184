"""The device VGF: files for Vulkan, by Arm's model converter."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tosaic import _core
from tosaic.devices.device import DeviceRecipe, Payload, Sizes
from tosaic.devices.engines import VULKAN

_HEADER = struct.Struct("<4s4xBBBx4x8Q")
"""Magic, version (major, minor, patch), then the offset and the size of each of four sections."""


# The converter is called from a module that is loaded on the first use.


def _require_tool() -> None:
    from tosaic.devices.device_compilers import require_tool

    require_tool("model-converter")


def _compile(tosa: bytes, flags: Sequence[str]) -> bytes:
    from tosaic.devices.device_compilers import compile_vgf

    return compile_vgf(tosa, flags)


def _sizes(payload: bytes) -> tuple[Sizes, Sizes] | None:
    """Checks version and size of a file; returns None, because the file does not record its inputs."""
    least = _HEADER.size
    if len(payload) < least:
        raise _fault("the VGF payload is truncated", f"a header of {least} bytes", str(len(payload)))
    _, major, _, _, *sections = _HEADER.unpack_from(payload)
    if major != 0:
        raise _fault(
            "the VGF payload has an unknown version", "major version 0", str(major), _core.UnsupportedOp
        )
    for offset, size in zip(sections[::2], sections[1::2], strict=True):
        if offset + size > len(payload):
            wanted = f"{size} bytes from byte {offset}"
            raise _fault("the VGF payload is truncated", wanted, f"{len(payload)} bytes")
    return None


def _fault(what: str, expected: str, got: str, kind: type[Exception] = _core.InvalidGraph) -> Exception:
    return _core.make_error(kind, where="payload", what=what, expected=expected, got=got)


VGF_PAYLOAD = Payload(
    "vgf",
    _compile,
    runtime="VgfBackend",
    backend="TosaicVgfBackend",
    title="VGF",
    require_tool=_require_tool,
    magic=b"VGF1",
    sizes=_sizes,
    engine=VULKAN,
    contents="a VGF file, which only Vulkan runs",
    whose="'vgf'",
)

RECIPES = (
    DeviceRecipe(
        "vgf-snorm",
        "int8 for VGF, with images of SNORM, and grid samplers on the texture unit.",
        ("grid-sampler", "vgf"),
        rules=("snorm-images", "snorm-samplers"),
        options={"vgf": {"connected": False}},
        rgba=True,
    ),
)
