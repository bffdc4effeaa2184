"""Makes the payload of each group of a file, by the claimant that took it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tosaic.base.options import invalid, refusal, shown
from tosaic.devices.built_in import TOSA_PAYLOAD
from tosaic.lowering.lowered import Lowered
from tosaic.partitions.claimant import Claimant
from tosaic.partitions.payload_kinds import (
    SPEC_FORMAT,
    SPEC_TARGET,
    compiled,
    flags_of,
    is_kernels,
    kind_of,
    require_tool,
    spec_entries,
)
from tosaic.pte.group_kernels import library_of
from tosaic.pte.method_writer import PtePayload

_WHERE = "save"


class GroupPayloads:
    """The payloads for the backends, with the options of the caller.

    Parameters
    ----------
    methods : mapping of str to Program, Lowered or SplitLowered
    payloads : mapping of str to PtePayload
        See `save_pte`.
    flags : mapping of str to sequence of str
        See `save_pte`.
    """

    def __init__(
        self,
        methods: Mapping[str, Any],
        payloads: Mapping[str, PtePayload],
        flags: Mapping[str, Sequence[str]],
    ) -> None:
        self._methods, self._payloads, self._flags = methods, payloads, flags
        groups = [self._key(name, group) for name in methods for group in _groups(methods[name], name)]
        _require_known("payloads", payloads, groups, "a group")
        for key, payload in payloads.items():
            if not isinstance(payload, PtePayload):
                raise refusal(
                    _WHERE,
                    "payloads",
                    "a tosaic.pte.PtePayload for each group",
                    f"{shown(payload)} for '{key}'",
                )
        claimants = {each for program in methods.values() for each in getattr(program, "claimants", {})}
        _require_known("flags", flags, sorted(claimants), "a claimant")

    def of_method(self, name: str) -> MethodPayloads:
        """Returns the payloads of a method."""
        program = self._methods[name]
        keys = {group: self._key(name, group) for group in _groups(program, name)}
        given = {group: self._payloads[key] for group, key in keys.items() if key in self._payloads}
        return MethodPayloads(getattr(program, "claimants", {}), given, self._flags)

    def _key(self, method: str, group: str) -> str:
        return _key(self._methods, method, group)


@dataclass(frozen=True)
class MethodPayloads:
    """The payloads for the groups of a method.

    Attributes
    ----------
    claimants : mapping of str to Claimant
        By name.
    given : mapping of str to PtePayload
        Payloads of the caller, by name of the group.
    flags : mapping of str to sequence of str
        Options of tools, by name of the claimant.
    """

    claimants: Mapping[str, Claimant]
    given: Mapping[str, PtePayload]
    flags: Mapping[str, Sequence[str]]

    def payload(self, group: str, part: Lowered, claimant: str | None) -> PtePayload | None:
        """Returns the payload of a lowered group; None if its claimant does not read TOSA.

        `claimant` is the name of the claimant; None for a program that was lowered whole, for a target.

        Raises
        ------
        UnsupportedOp
            The tool of the claimant refuses the group.
        """
        if group in self.given:
            return self.given[group]
        if claimant is None:
            specs = ((SPEC_TARGET, part.target.encode()), (SPEC_FORMAT, TOSA_PAYLOAD.name.encode()))
            return PtePayload(TOSA_PAYLOAD.runtime, part.to_bytes(), specs)
        taker = self.claimants[claimant]
        if not taker.target:
            return None
        payload = kind_of(taker, _WHERE)
        flags = flags_of(payload, taker, tuple(self.flags.get(claimant, ())), _WHERE)
        require_tool(payload)
        entries = spec_entries(payload, taker, payload.runtime, flags)
        encoded = tuple((key, value.encode()) for key, value in entries.items())
        data, estimated = compiled(payload, part.to_bytes(), flags)
        return PtePayload(payload.runtime, data, encoded, estimated)

    def is_kernels(self, claimant: str) -> bool:
        """True if the groups of a claimant are written as kernel calls, which a runtime may fuse."""
        return is_kernels(self.claimants[claimant])

    def has_library(self, claimant: str) -> bool:
        """True if kernels of a library compute the integers of a claimant's groups."""
        return library_of(self.claimants[claimant]) is not None


def empty_payloads(methods: Mapping[str, Any]) -> dict[str, PtePayload]:
    """Returns payloads without bytes for all groups of claimants that read TOSA.

    The calls of a file do not depend on its payloads, so no tool has to compile them.

    Parameters
    ----------
    methods : mapping of str to Program, Lowered or SplitLowered
    """
    found = {}
    for name, program in methods.items():
        claimants = getattr(program, "claimants", {})
        plan = getattr(program, "partitions", None)
        for group in () if plan is None else plan.groups:
            if group.claimant is not None and claimants[group.claimant].target:
                runtime = kind_of(claimants[group.claimant], _WHERE).runtime
                found[_key(methods, name, group.name)] = PtePayload(runtime, b"")
    return found


def _key(methods: Mapping[str, Any], method: str, group: str) -> str:
    """Returns the key of a group among the options."""
    return f"{method}/{group}" if len(methods) > 1 else group


def _groups(program: Any, method: str) -> list[str]:
    """Returns the names of the groups of a program."""
    if isinstance(program, Lowered):
        return [method]
    plan = getattr(program, "partitions", None)
    return [] if plan is None else [group.name for group in plan.groups]


def _require_known(option: str, given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for key in given:
        if key not in known:
            raise invalid(
                _WHERE,
                f"'{option}' names {what} that is not in the file",
                expected=", ".join(map(repr, known)) or "nothing: there is none",
                got=shown(key),
            )
