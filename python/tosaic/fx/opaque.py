"""Foreign calls: the target by name and its arguments as JSON, so that nothing is lost.

``{"$": i}`` stands for operand i, ``{"dtype": "f32"}`` for a dtype, ``{"float": "inf"}`` for a float JSON
cannot write, ``{"repr": ...}`` for other torch objects such as devices and memory formats. The last
entry says what the core cannot know of a call, and refers to when it refuses it: ``"training": true`` of
one that a module in training mode makes, ``"random": true`` of another one that draws random numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tosaic import _core
from tosaic.fx.value import Ref
from tosaic.fx.weights import CODE_OF

__all__ = ["arguments_json"]


def arguments_json(
    args: Any, kwargs: Mapping[str, Any], unsupported: Callable[[str], Exception], mark: str = ""
) -> tuple[str, list[int]]:
    """JSON text of the resolved arguments and the operands it refers to.

    Parameters
    ----------
    args, kwargs
        Arguments with `Ref` in place of tensors.
    unsupported : callable
        Makes the error for an argument that has no text, such as a submodule.
    mark : str
        ``training``, ``random`` or nothing: the last entry.
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
        if isinstance(value, torch.dtype):
            code = CODE_OF.get(value)
            return {"repr": str(value)} if code is None else {"dtype": _core.DTYPES[code]}
        if isinstance(value, complex | torch.device | torch.layout | torch.memory_format) or hasattr(
            value, "_schema"
        ):
            return {"repr": str(value)}
        raise unsupported(type(value).__name__)

    document: dict[str, Any] = {
        "args": [plain(arg) for arg in args],
        "kwargs": {key: plain(arg) for key, arg in kwargs.items()},
    }
    if mark:
        document[mark] = True
    return json.dumps(document, separators=(",", ":"), allow_nan=False), operands
