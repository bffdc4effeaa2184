"""Values of recipes as one line of text: `text_of`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tosaic.annotation.config import Precision, QConfig
from tosaic.annotation.select import Select
from tosaic.partitions.claimant import Claimant
from tosaic.recipes.stage import Stage

_CONFIGS = ("int8", "uint8", "int16x8")


def text_of(value: Any) -> str:
    """Returns a value of a recipe as one line of text."""
    if isinstance(value, Claimant):
        changed = "" if not value.rules else f", {len(value.rules)} rules"
        return repr(value.name) if not changed else f"<Claimant {value.name!r}{changed}>"
    if isinstance(value, tuple):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, QConfig):
        return _text_of_config(value)
    if callable(value) and not isinstance(value, type) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    if isinstance(value, Stage):
        name = getattr(value.function, "__qualname__", type(value.function).__name__)
        return f"Stage({value.name!r}, {value.at!r}, {name})"
    return repr(value)


def _text_of_config(config: QConfig) -> str:
    """Returns the calls that make a configuration, or its `repr`."""
    if not config.selections or config.selections[0][0] != Select():
        return repr(config)
    (_, first), *others = config.selections
    text = _text_of_precision(first, {"every_operator": True} if config.every_operator else {})
    if text is None:
        return repr(config)
    for where, precision in others:
        to = "None" if precision is None else _text_of_precision(precision, {}) or repr(precision)
        conditions = {name: each for name, each in vars(where).items() if each is not None}
        text += f".set({', '.join([to, *(f'{name}={each!r}' for name, each in conditions.items())])})"
    return text


def _text_of_precision(precision: Precision | None, options: dict[str, bool]) -> str | None:
    """Returns the call that makes a precision, or None if it differs from the results of such calls."""
    if precision is None:
        return None
    shown: dict[str, object] = {**options}
    if precision.stream is not None:
        shown["stream"] = precision.stream
    text = ", ".join(f"{name}={option!r}" for name, option in shown.items())
    plain = replace(precision, stream=None)
    return next(
        (f"QConfig.{name}({text})" for name in _CONFIGS if getattr(QConfig, name)().precision == plain), None
    )
