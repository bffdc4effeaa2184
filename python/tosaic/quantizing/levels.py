"""The precisions of mixes, and the layers that have one each."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tosaic.annotation.config import QConfig, Stream
from tosaic.base.options import refusal
from tosaic.quantizing.device_cycles import require_cycles

if TYPE_CHECKING:
    from tosaic.annotation.call_graph import CallGraph

_LEVELS: dict[str, QConfig | None] = {
    "int8": QConfig.int8(),
    "uint8": QConfig.uint8(),
    "int16x8": QConfig.int16x8(),
    "float": None,
}
_COSTS = {"int8": 1.0, "uint8": 1.0, "int16x8": 2.0, "float": 8.0}
_INPUTS = "inputs"
_FORMS: tuple[tuple[bool, Stream], ...] = (
    (True, "int16"),
    (True, "activation"),
    (False, "unrounded"),
    (False, "int16"),
    (False, "activation"),
)


def form_text(config: QConfig) -> str:
    """Returns the options of `QConfig` that all layers of a mix have in common."""
    first = next((each.stream for each in config.precisions() if each.stream is not None), None)
    stream = first or ("activation" if config.every_operator else "int16")
    return f"every_operator={config.every_operator}, stream={stream!r}"


@dataclass(frozen=True)
class Scale:
    """The levels, the cheapest first.

    Attributes
    ----------
    names : tuple of str
    configs : tuple of (QConfig or None)
    costs : tuple of float
        Of a multiply-accumulate. Empty if the costs are cycles of a device.
    device : str
    is_named : bool
        The levels were given by name.
    """

    names: tuple[str, ...]
    configs: tuple[QConfig | None, ...]
    costs: tuple[float, ...]
    device: str = ""
    is_named: bool = False

    @classmethod
    def of(cls, levels: Any, costs: Any) -> Scale:
        """Returns the levels and costs that `tosaic.sensitivity` got."""
        if isinstance(costs, str):
            require_cycles("sensitivity", costs)
            return cls._of_device(levels, costs)
        if isinstance(levels, Mapping):
            table = dict(levels)
        else:
            given = list(levels) if isinstance(levels, list | tuple) else [levels]
            unknown = [each for each in given if not isinstance(each, str) or each not in _LEVELS]
            if unknown:
                expected = (
                    "levels among " + ", ".join(map(repr, _LEVELS)) + ", or a mapping of names to QConfig"
                )
                raise refusal("sensitivity", "levels", expected, unknown[0])
            table = {each: _LEVELS[each] for each in given}
        if len(table) < 2 or not all(isinstance(each, QConfig | None) for each in table.values()):
            raise refusal(
                "sensitivity", "levels", "two levels or more: names, with a QConfig or None each", levels
            )
        return cls(tuple(table), tuple(table.values()), cls._costs_of(tuple(table), costs))

    @classmethod
    def _of_device(cls, levels: Any, device: str) -> Scale:
        """Returns levels of integers for a device: by name, as it computes them at least cost."""
        least = QConfig.for_target(device)
        stream = None if least.precision is None else least.precision.stream
        known = _integers(least.every_operator, stream) | {"int8": least}
        is_named = not isinstance(levels, Mapping)
        if is_named:
            given = list(levels) if isinstance(levels, list | tuple) else [levels]
            levels = {each: known.get(each) if isinstance(each, str) else None for each in given}
        unknown = [name for name, config in levels.items() if not isinstance(config, QConfig)]
        if unknown or len(levels) < 2:
            expected = (
                "two levels of integers or more: " + ", ".join(map(repr, known)) + ", or QConfig by name"
            )
            raise refusal("sensitivity", "levels", expected, unknown[0] if unknown else list(levels))
        return cls(tuple(levels), tuple(levels.values()), (), device, is_named)

    def forms(self) -> list[Scale]:
        """Returns the same levels in other forms: rounded by operator or by unit, and with other streams.

        There are none if the levels are configurations of the caller.
        """
        found = []
        for every, stream in _FORMS if self.is_named else ():
            table = _integers(every, stream)
            made = replace(self, configs=tuple(table[name] for name in self.names))
            if form_text(made.least) != form_text(self.least):
                found.append(made)
        return found

    @property
    def least(self) -> QConfig:
        """The configuration with the first level in all layers."""
        return self.configs[0] or QConfig()

    @staticmethod
    def _costs_of(names: tuple[str, ...], costs: Any) -> tuple[float, ...]:
        numbers_by_name = costs is None or (
            isinstance(costs, Mapping) and all(map(_is_number, costs.values()))
        )
        if not numbers_by_name:
            raise refusal("sensitivity", "costs", "numbers by the name of a level, or None", costs)
        known = {**_COSTS, **(costs or {})}
        unknown = [name for name in costs or () if name not in names]
        if unknown:
            raise refusal("sensitivity", "costs", "costs of " + ", ".join(map(repr, names)), costs)
        missing = [name for name in names if name not in known]
        if missing:
            raise refusal("sensitivity", "costs", f"the cost of level '{missing[0]}'", costs)
        found = tuple(float(known[name]) for name in names)
        grows = all(low < high for low, high in pairwise(found))
        if not (grows and found[0] > 0 and math.isfinite(found[-1])):
            expected = "positive numbers that grow from level to level"
            raise refusal("sensitivity", "costs", expected, dict(zip(names, found, strict=True)))
        return found

    def config(self, layers: Sequence[Layer], at: Sequence[int]) -> QConfig:
        """Returns the configuration in which each layer has its level."""
        made = self.least
        for level in range(1, len(self.names)):
            nodes = [
                call for layer, each in zip(layers, at, strict=True) if each == level for call in layer.calls
            ]
            if nodes:
                made = made.set(self.configs[level], nodes=nodes)
        return made


def _integers(every: bool, stream: Stream | None) -> dict[str, QConfig]:
    """Returns the levels of integers in one form."""
    return {
        "int8": QConfig.int8(every_operator=every, stream=stream),
        "uint8": QConfig.uint8(every_operator=every, stream=stream),
        "int16x8": QConfig.int16x8(every_operator=every, stream=stream),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class Layer:
    """A contraction, with the calls after it; see `LayerSensitivity`."""

    name: str
    calls: tuple[str, ...]
    module_path: str
    source: str
    macs: int


def layers_of(calls: CallGraph, macs: Mapping[str, int]) -> list[Layer]:
    """Divides the calls into layers: a call belongs to the last contraction that it depends on."""
    layer_of: dict[str, int] = {}
    members: list[list[str]] = [[]]
    heads: list[Any] = [None]
    for call in calls:
        at = max((layer_of[operand.producer] for operand in call.operands), default=0)
        if macs.get(call.name):
            at = len(members)
            members.append([])
            heads.append(call)
        layer_of[call.name] = at
        if call.kind == "call" and call.target != "getitem":
            members[at].append(call.name)
    return [
        Layer(
            _INPUTS if head is None else head.name,
            tuple(names),
            head.modules[-1][0] if head is not None and head.modules else "",
            "" if head is None else head.source,
            sum(macs.get(name, 0) for name in names),
        )
        for head, names in zip(heads, members, strict=True)
        if names
    ]
