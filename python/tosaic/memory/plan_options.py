"""The options of memory plans, and the checks of two structured options: arenas and memories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tosaic.base.options import is_mapping, refusal
from tosaic.memory.buffers import CALLER, CONSTANTS

KINDS = ("input", "output", "state", "activation", "scratch")
"""The kinds of buffers that an entry of ``arenas`` may name."""


@dataclass(frozen=True)
class PlanOptions:
    """The options of a plan; `Preparable.plan_memory` explains them."""

    alignment: int = 16
    plan_inputs: bool = True
    plan_outputs: bool = True
    in_place: bool = True
    scratch: bool = True
    arenas: Mapping[str, str] = field(default_factory=dict)
    memories: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)


def options_of(**options: object) -> PlanOptions:
    """Returns the options, after a check of the mapping of arenas.

    Raises
    ------
    InvalidGraph
        ``arenas`` is not a mapping from names to names of arenas.
    """
    arenas = options.get("arenas")
    expected = (
        "a mapping from names to names of arenas, which are identifiers, such as {'scratch': 'sram'}, "
        f"other than '{CALLER}' and '{CONSTANTS}'"
    )
    if arenas is None:
        options["arenas"] = {}
    elif not is_mapping(arenas):
        raise refusal("plan_memory", "arenas", expected, arenas)
    else:
        reserved = (CALLER, CONSTANTS)
        for key, name in arenas.items():  # type: ignore[attr-defined]
            if (
                not (isinstance(key, str) and isinstance(name, str) and name.isidentifier())
                or name in reserved
            ):
                raise refusal("plan_memory", "arenas", expected, {key: name})
    options["memories"] = _memories_of(options.get("memories"), options.get("alignment"))
    return PlanOptions(**options)  # type: ignore[arg-type]


def _memories_of(memories: object, alignment: object) -> dict[str, tuple[int | None, int]]:
    """Returns size and alignment of each memory."""
    expected = (
        "a mapping from names to sizes, None for no limit, or to pairs of size and alignment, a power of two "
        "that is at least that of the plan"
    )
    if memories is None:
        return {}
    if not is_mapping(memories):
        raise refusal("plan_memory", "memories", expected, memories)
    found: dict[str, tuple[int | None, int]] = {}
    for name, each in memories.items():  # type: ignore[attr-defined]
        pair = each if isinstance(each, tuple) else (each, alignment)
        is_name = isinstance(name, str) and name.isidentifier() and name not in (CALLER, CONSTANTS)
        if not is_name or len(pair) != 2 or not (pair[0] is None or _is_count(pair[0])):
            raise refusal("plan_memory", "memories", expected, {name: each})
        if not _is_count(pair[1]) or pair[1] & (pair[1] - 1) or pair[1] < alignment:
            raise refusal("plan_memory", "memories", expected, {name: each})
        found[name] = pair
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
