"""The payload of a claimant's groups, and the compile specs of a delegate.

Arm's backends have some keys of compile specs with the same meaning: ``tosa_spec``, ``compile_flags``,
``output_format`` and, for some devices, ``target``. The key ``tosaic`` has the claimant and the runtime's id.

ExecuTorch finds the backend of a delegate by the name of a class, and its runtime by an id in the file. Arm's
classes have the names of the runtimes. Ours have other names, so that both can be loaded. The id of the
runtime is written when the program is lowered (`tosaic.executorch.delegates.runtime_ids`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tosaic.base.options import refusal, unsupported
from tosaic.devices.device import Payload
from tosaic.devices.registry import device_of, payload_of, payloads
from tosaic.devices.tool_cost import CostSummary
from tosaic.partitions.claimant import Claimant

SPEC_OWN, SPEC_TARGET, SPEC_FLAGS, SPEC_FORMAT = "tosaic", "tosa_spec", "compile_flags", "output_format"
_DEVICE = "target"


def kind_of(claimant: Claimant, where: str) -> Payload:
    """Returns the kind of payload of a claimant.

    Raises
    ------
    InvalidGraph
        The groups of the claimant have no payload.
    """
    found = payload_of(claimant.kind) if claimant.target else None
    if found is None:
        *first, last = dict.fromkeys(each.whose for each in payloads().values() if each.whose)
        raise refusal(where, "claimant", f"{', '.join(first)} or {last}", claimant.name)
    return found


def flags_of(payload: Payload, claimant: Claimant, given: Sequence[str], where: str) -> tuple[str, ...]:
    """Returns the flags of the tool that compiles a payload.

    Raises
    ------
    InvalidGraph
        The tool does not accept them.
    """
    if given and not payload.takes_flags:
        expected = f"none for '{claimant.name}', since nothing compiles {payload.shown} payloads"
        raise refusal(where, "flags", expected, given)
    return tuple(payload.flags(claimant.kind, given) if payload.flags else given)


def require_tool(payload: Payload) -> None:
    """Raises ImportError if the tool that compiles a payload is not installed."""
    if payload.require_tool is not None:
        payload.require_tool()


def compiled(payload: Payload, data: bytes, flags: Sequence[str]) -> tuple[bytes, CostSummary | None]:
    """Compiles a ``.tosa`` file for a payload. Also returns the tool's cost estimate of the same run.

    Raises
    ------
    UnsupportedOp
        The tool refuses the file, or it cannot be run.
    """
    try:
        if payload.compile_with_summary is not None:
            return payload.compile_with_summary(data, flags)
        return payload.compile(data, flags), None
    except OSError as error:  # the tool failed, not the writing of the payload's file
        raise unsupported(
            "compile",
            f"the tool of {payload.shown} payloads cannot be run",
            expected="an installed tool",
            got=str(error),
        ) from error


def is_kernels(claimant: Claimant) -> bool:
    """True if a claimant's groups have no payload: kernels, which a runtime may fuse, compute them."""
    device = device_of(claimant.kind)
    return device is not None and device.is_kernels


def has_kernels(claimant: Claimant) -> bool:
    """True if kernels of a library compute the integers of a claimant's nodes, each by its own call."""
    device = device_of(claimant.kind)
    return device is not None and device.kernel_library != ""


def spec_entries(payload: Payload, claimant: Claimant, runtime: str, flags: Sequence[str]) -> dict[str, str]:
    """Returns the compile specs of a delegate, by key.

    Parameters
    ----------
    payload : Payload
    claimant : Claimant
    runtime : str
        The id of the runtime that reads the payload.
    flags : sequence of str
        Options of the tool that compiles the payload.
    """
    own = {"claimant": claimant.name, "runtime": runtime, "flags": list(flags)}
    entries = {
        SPEC_TARGET: claimant.target,
        SPEC_FORMAT: payload.name,
        SPEC_FLAGS: " ".join(flags),
        SPEC_OWN: json.dumps(own, sort_keys=True),
    }
    if payload.names_member:
        entries[_DEVICE] = claimant.kind
    return entries
