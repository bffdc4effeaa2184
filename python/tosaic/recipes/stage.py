"""A function that runs at a place of the export flow: `Stage`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tosaic.base.options import is_mapping, refusal

Place = Literal["model", "exported", "quantize", "quantized", "lowered"]
PLACES: tuple[Place, ...] = ("model", "exported", "quantize", "quantized", "lowered")
"""The places of stages, in the order of the flow."""


@dataclass(frozen=True)
class Stage:
    """A function that runs at a place of the export flow.

    Attributes
    ----------
    name : str
        For the report. Two stages of a recipe have different names.
    at : {"model", "exported", "quantize", "quantized", "lowered"}
        The function gets, and may return a changed, ``torch.nn.Module`` (``model``), ``ExportedProgram``
        (``exported``), `Program` at stage ``quantized`` (``quantized``) or `SplitLowered` (``lowered``). At
        ``quantize`` it replaces `tosaic.quantize`: it gets the exported program, and returns a quantized
        `Program` or the exported program of ``convert_pt2e``. At most one stage may be at this place.
    function : callable
        ``function(value, context, **options)``. It returns the changed value, or None if there is no change.
        `context` is an `tosaic.exporting.ExportContext`.
    options : mapping of str to object
        Keyword arguments of the function.
    """

    name: str
    at: Place
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_name("Stage", self.name)
        if self.at not in PLACES:
            raise refusal("Stage", "at", f"one of {', '.join(PLACES)}", self.at)
        if not callable(self.function):
            raise refusal("Stage", "function", "a function of the value and the context", self.function)
        if not is_mapping(self.options) or not all(isinstance(key, str) for key in self.options):
            raise refusal("Stage", "options", "keyword arguments by name", self.options)
        object.__setattr__(self, "options", dict(self.options))

    def run(self, value: Any, context: Any) -> Any:
        """Calls the function; returns its result, or `value` if the result is None."""
        made = self.function(value, context, **self.options)
        return value if made is None else made


def require_name(where: str, name: Any) -> None:
    """Refuses a value that is not a name of a recipe or a stage."""
    if not isinstance(name, str) or not name:
        raise refusal(where, "name", "a name that is not empty", name)
