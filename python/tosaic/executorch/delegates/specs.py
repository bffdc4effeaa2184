"""The compile specs of our delegates, through which the partitioner passes options to the backend.

`tosaic.partitions.payload_kinds` says which entries there are. The user's specs come after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tosaic.base.json_fields import read_json
from tosaic.base.options import invalid, refusal
from tosaic.devices.device import Payload
from tosaic.devices.registry import payloads
from tosaic.partitions.claimant import Claimant
from tosaic.partitions.payload_kinds import SPEC_FORMAT, SPEC_OWN, SPEC_TARGET, spec_entries

_WHERE = "preprocess"


@dataclass(frozen=True)
class DelegateSpec:
    """The options of a delegate for the backend.

    Attributes
    ----------
    payload : Payload
    claimant : str
        The name of the claimant.
    target : str
        The TOSA target.
    runtime : str
        The id of the runtime that reads the payload.
    flags : tuple of str
        Options of the tool that compiles the payload.
    """

    payload: Payload
    claimant: str
    target: str
    runtime: str
    flags: tuple[str, ...]


def compile_specs_of(spec: DelegateSpec, claimant: Claimant, given: Sequence[Any]) -> list[Any]:
    """Returns the compile specs of a delegate.

    Parameters
    ----------
    spec : DelegateSpec
    claimant : Claimant
    given : sequence of executorch.exir.backend.compile_spec_schema.CompileSpec
        Specs of the user, for the runtime.

    Raises
    ------
    InvalidGraph
        An entry of `given` is no compile spec, or has a key of ours.
    """
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    entries = spec_entries(spec.payload, claimant, spec.runtime, spec.flags)
    for each in given:
        if not isinstance(each, CompileSpec):
            raise refusal("TosaicPartitioner", "compile_specs", "a sequence of CompileSpec", each)
        if each.key in entries:
            raise refusal(
                "TosaicPartitioner", "compile_specs", f"keys other than {', '.join(entries)}", each.key
            )
    return [*(CompileSpec(key, value.encode()) for key, value in entries.items()), *given]


def is_ours(specs: Sequence[Any]) -> bool:
    """True for compile specs that `compile_specs_of` made."""
    return any(spec.key == SPEC_OWN for spec in specs)


def read_compile_specs(specs: Sequence[Any]) -> DelegateSpec:
    """Reads compile specs that `compile_specs_of` made.

    Raises
    ------
    InvalidGraph
        An entry is missing or damaged.
    """
    texts = {spec.key: bytes(spec.value).decode(errors="replace") for spec in specs}
    for key in (SPEC_OWN, SPEC_TARGET, SPEC_FORMAT):
        if key not in texts:
            raise invalid(
                _WHERE,
                "these are no compile specs of a TosaicPartitioner",
                expected=f"an entry '{key}'",
                got=", ".join(texts) or "none",
            )
    known = payloads()
    payload = known.get(texts[SPEC_FORMAT])
    fields = read_json(f"{_WHERE}: compile spec '{SPEC_OWN}'", texts[SPEC_OWN])
    flags = fields.value("flags")
    if payload is None:
        raise fields.error(SPEC_FORMAT, " or ".join(map(repr, known)), texts[SPEC_FORMAT])
    if not isinstance(flags, list) or not all(isinstance(each, str) for each in flags):
        raise fields.error("flags", "a list of strings", flags)
    return DelegateSpec(
        payload, fields.text("claimant"), texts[SPEC_TARGET], fields.text("runtime"), tuple(flags)
    )
