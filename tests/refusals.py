"""The text of the error that a call must raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["refusal"]


def refusal(kind: type[BaseException], call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Calls `call`, which must raise an error of this kind, and returns the text of the error."""
    with pytest.raises(kind) as error:
        call(*args, **options)
    return str(error.value)
