"""The ways to copy an object of the API, as a parameter of tests."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

__all__ = ["every_copy", "through_pickle"]


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


every_copy = pytest.mark.parametrize(
    "copied", [through_pickle, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
