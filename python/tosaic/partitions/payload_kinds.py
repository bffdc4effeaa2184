"""What a delegate's payload is, by claimant: TOSA, VGF, or Vela's stream for Ethos-U; and its compile specs.

Keys of compile specs that Arm's backends have, too, have the same meaning: ``tosa_spec``, ``compile_flags``,
``output_format`` and, for Ethos-U, ``target``. ``tosaic`` has the claimant and the id of the runtime.

ExecuTorch finds the backend of a delegate by the name of a class, and its runtime by an id in the file. Arm's
classes have the names of the runtimes. Ours have names of their own, so that both can be loaded, and the id
of the runtime is written when the program is lowered (`tosaic.executorch.delegates.runtime_ids`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tosaic.base.options import refusal
from tosaic.devices.device_compilers import compile_vgf, compile_with_vela, require_tool, vela_flags
from tosaic.devices.vela_stream import pack_vela
from tosaic.partitions.claimant import Claimant

__all__ = [
    "KINDS",
    "SPEC_FLAGS",
    "SPEC_FORMAT",
    "SPEC_OWN",
    "SPEC_TARGET",
    "PayloadKind",
    "is_kernels",
    "kind_of",
    "spec_entries",
]

SPEC_OWN, SPEC_TARGET, SPEC_FLAGS, SPEC_FORMAT = "tosaic", "tosa_spec", "compile_flags", "output_format"
_DEVICE = "target"


@dataclass(frozen=True)
class PayloadKind:
    """A kind of payload.

    Attributes
    ----------
    output_format : str
        Its name in compile specs: ``tosa``, ``vgf`` or ``vela``.
    backend : str
        The name of the class that ExecuTorch calls.
    runtime : str
        The id of the runtime that reads the payload.
    tool : str
        What compiles it; empty for none.
    compile : callable
        Returns the payload of a ``.tosa`` file and of the tool's flags.
    """

    output_format: str
    backend: str
    runtime: str
    tool: str
    compile: Callable[[bytes, Sequence[str]], bytes]

    def flags(self, claimant: Claimant, given: Sequence[str], where: str) -> tuple[str, ...]:
        """Returns the flags of the tool. Raises InvalidGraph for flags that it does not take."""
        if not self.tool and given:
            raise refusal(
                where, "flags", f"none for '{claimant.name}', since nothing compiles TOSA payloads", given
            )
        return tuple(vela_flags(claimant.kind, given) if self.tool == "vela" else given)

    def require_tool(self) -> None:
        """Raises ImportError if the tool is not installed."""
        if self.tool:
            require_tool(self.tool)


KINDS = {
    kind.output_format: kind
    for kind in (
        PayloadKind("tosa", "TosaicTosaBackend", "TOSABackend", "", lambda tosa, _: tosa),
        PayloadKind("vgf", "TosaicVgfBackend", "VgfBackend", "model-converter", compile_vgf),
        PayloadKind(
            "vela",
            "TosaicEthosUBackend",
            "EthosUBackend",
            "vela",
            lambda tosa, flags: pack_vela(compile_with_vela(tosa, flags)),
        ),
    )
}


def kind_of(claimant: Claimant, where: str) -> PayloadKind:
    """Returns the kind of payload of a claimant.

    Raises
    ------
    InvalidGraph
        The claimant has no target: it does not read TOSA.
    """
    if claimant.kind == "vgf":
        return KINDS["vgf"]
    if claimant.kind.startswith("ethos-u"):
        return KINDS["vela"]
    if claimant.target and claimant.kind not in Claimant.names():
        return KINDS["tosa"]
    raise refusal(
        where,
        "claimant",
        "a TOSA target, 'vgf' or an Ethos-U such as 'ethos-u55-128'",
        claimant.name,
    )


def is_kernels(claimant: Claimant) -> bool:
    """True if the groups of a claimant have no payload: kernels compute them, which a runtime may fuse."""
    return claimant.kind == "grid-sampler"


def spec_entries(kind: PayloadKind, claimant: Claimant, runtime: str, flags: Sequence[str]) -> dict[str, str]:
    """Returns the compile specs of a delegate, by key.

    Parameters
    ----------
    kind : PayloadKind
    claimant : Claimant
    runtime : str
        The id of the runtime that reads the payload.
    flags : sequence of str
        Of the tool that compiles the payload.
    """
    own = {"claimant": claimant.name, "runtime": runtime, "flags": list(flags)}
    entries = {
        SPEC_TARGET: claimant.target,
        SPEC_FORMAT: kind.output_format,
        SPEC_FLAGS: " ".join(flags),
        SPEC_OWN: json.dumps(own, sort_keys=True),
    }
    if kind.output_format == "vela":
        entries[_DEVICE] = claimant.kind
    return entries
