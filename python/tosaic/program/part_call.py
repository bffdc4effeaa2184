"""The function that runs a group of a split program: `PartCall`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tosaic.base.arrays import in_memory_order
from tosaic.program.recording import profiled_calls

if TYPE_CHECKING:
    from tosaic.program.prepared import Preparable, Prepared


class PartCall:
    """Runs a part on logical arrays, as the host passes them: the function of a group's call.

    Attributes
    ----------
    name : str
        The name of the group.
    part : Program or Lowered
    on : str
        The engine that computes the part, as in `Program.prepare`.
    """

    def __init__(self, name: str, part: Preparable, on: str = "tosaic") -> None:
        self.name = name
        self.part = part
        self.on = on

    @cached_property
    def _prepared(self) -> Prepared:
        return self.part.prepare(on=self.on)

    def __call__(self, *arrays: Any) -> Any:
        """Returns the results: one array, or a list of them. The arrays may have any strides."""
        given = [
            in_memory_order(array, port.dim_order)
            for array, port in zip(arrays, self.part.inputs, strict=True)
        ]
        calls = profiled_calls()
        if calls is None:
            results = self._prepared.run_arrays(given)
        else:
            results, call = self._prepared.recorded(given, self.name)
            calls.append(call)
        return results[0] if len(results) == 1 else results

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "part": self.part, "on": self.on}
