"""Foreign calls, stored as the target's name and the arguments as JSON, so that nothing is lost.

``{"$": i}`` is operand i, ``{"dtype": "f32"}`` a dtype, ``{"float": "inf"}`` a float that JSON does not have,
and ``{"repr": ...}`` another torch object, such as a device or memory format. The last entry tells the core
why it must refuse the call: ``"training": true`` for a call of a module in training mode, ``"random": true``
for any other call that draws random numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from tosaic.torch_operators.value import Ref


def arguments_json(
    args: Any,
    kwargs: Mapping[str, Any],
    describe: Callable[[Any], dict[str, str] | None],
    unsupported: Callable[[str], Exception],
    mark: str = "",
) -> tuple[str, list[int]]:
    """Returns the resolved arguments as JSON text, and the ids of the operands that the text refers to.

    Parameters
    ----------
    args, kwargs
        Arguments with `Ref` in place of tensors.
    describe : callable
        Returns ``{"dtype": ...}`` or ``{"repr": ...}`` for the reader's object of a dtype, a device or the
        like; None for any other object.
    unsupported : callable
        Makes the error for an argument that has no text form, such as a submodule.
    mark : str
        The last entry: ``training``, ``random`` or empty for none.
    """
    operands: list[int] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Ref):
            operands.append(value.id)
            return {"$": len(operands) - 1}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, Mapping):
            return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
        described = describe(value)
        if described is not None:
            return described
        raise unsupported(type(value).__name__)

    document: dict[str, Any] = {
        "args": [plain(arg) for arg in args],
        "kwargs": {key: plain(arg) for key, arg in kwargs.items()},
    }
    if mark:
        document[mark] = True
    return json.dumps(document, separators=(",", ":"), allow_nan=False), operands
