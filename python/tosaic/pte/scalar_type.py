"""The element types of tensors in ``.pte`` files."""

from __future__ import annotations

from tosaic import _core

__all__ = ["scalar_type"]

_TYPES = {code: (name, dtype) for code, name, _, dtype in _core.pte_scalar_types()}


def scalar_type(tensor: _core.PteTensor) -> tuple[str, str | None]:
    """Returns the name of the element type in torch, and the dtype of graphs or None."""
    return _TYPES[tensor.scalar_type]
