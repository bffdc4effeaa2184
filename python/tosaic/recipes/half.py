"""The stage of floats of 16 bits: `half_model`."""

from __future__ import annotations

from typing import Any


def half_model(model: Any, context: Any) -> Any:
    """Returns a copy of a module whose floats have 16 bits; its inputs and samples get them, too."""
    from tosaic.fx.modules import half_copy, half_inputs

    context.convert_inputs(half_inputs)
    return half_copy(model)
