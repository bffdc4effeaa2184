"""`half_model`: the stage that converts a model to 16-bit floats."""

from __future__ import annotations

from typing import Any


def half_model(model: Any, context: Any) -> Any:
    """Returns a copy of a module whose floats have 16 bits; also converts its inputs and samples."""
    from tosaic.fx.modules import half_copy, half_inputs

    context.convert_inputs(half_inputs)
    return half_copy(model)
