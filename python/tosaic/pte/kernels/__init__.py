"""Converts operators of tosaic to calls of ExecuTorch's kernels."""

from tosaic.pte.kernels import elementwise, movement, quantization, reductions, windows  # noqa: F401 - rows
from tosaic.pte.kernels.table import ROWS, Row

__all__ = ["ROWS", "Row"]
