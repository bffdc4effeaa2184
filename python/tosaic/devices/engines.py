"""The engines that run payloads of devices on this machine, besides tosaic and the TOSA reference model.

This module does not load the core: the command line lists the names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tosaic import _core

_OWN = ("tosaic", "reference")


@dataclass(frozen=True)
class Engine:
    """An engine that runs payloads.

    Attributes
    ----------
    name : str
        As ``prepare(on=...)`` takes it.
    machine : str
        For messages: the software that runs them.
    require : callable
        Raises ImportError if the engine is not installed.
    model_of_graph : callable
        Returns the model of a whole graph at stage ``tosa``, as `Models` takes it; its second argument is the
        user's models, which it refuses.
    program : callable
        Returns a payload as a runnable object: ``sides`` has its inputs and outputs, and ``run(arrays)``
        computes its outputs.
    """

    name: str
    machine: str
    require: Callable[[], None]
    model_of_graph: Callable[[_core.Graph, Any], Any]
    program: Callable[[bytes], Any]


def _require() -> None:
    from tosaic.devices.vgf_graph import require_vulkan

    require_vulkan()


def _model_of_graph(graph: _core.Graph, models: Any) -> Any:
    from tosaic.devices.vgf_graph import model_of_graph

    return model_of_graph(graph, models)


def _program(payload: bytes) -> Any:
    from tosaic.devices.vgf_graph import VgfProgram

    return VgfProgram(payload)


VULKAN = Engine("vgf", "Vulkan", _require, _model_of_graph, _program)
"""Arm's emulation layers, over a Vulkan driver."""

ENGINES = (VULKAN,)

EXAMPLES = ("ethos-u55-128", "cortex-m55")
"""Names of claimants for messages."""


def engine_names(*, own: bool = False) -> tuple[str, ...]:
    """Returns the names of engines, for comparisons with tosaic; with `own`, also ``tosaic``."""
    return (*(_OWN if own else _OWN[1:]), *(each.name for each in ENGINES))


def engine_named(where: str, on: Any) -> Engine | None:
    """Returns the engine of a name; None for tosaic and for the TOSA reference model.

    Raises
    ------
    InvalidGraph
        There is no such engine.
    """
    from tosaic.base.options import refusal

    if not isinstance(on, str) or on not in engine_names(own=True):
        *first, last = map(repr, engine_names(own=True))
        raise refusal(where, "on", f"{', '.join(first)} or {last}", on)
    return next((each for each in ENGINES if each.name == on), None)
