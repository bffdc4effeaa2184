"""Writes results as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def plain(value: Any) -> Any:
    """Converts dataclasses to dicts, tuples to lists, and infinities and NaN to strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def to_json(data: Any) -> str:
    """Returns the data as indented JSON; keys are not sorted."""
    return json.dumps(plain(data), indent=1, allow_nan=False, ensure_ascii=False)
