"""Defaults that the Python functions and the command line share.

The module imports nothing, so ``tosaic --help`` can show the defaults without loading the core.
"""

from __future__ import annotations

TARGET = "TOSA-1.0+FP"
"""The target of `lower`, `check` and `Pipeline.default`."""

INTEGER_TARGET = "TOSA-1.0+INT"
"""The target of `explain_quantization`, and of the command ``lower --calibrate``."""

WIDE_INTEGER_TARGET = "TOSA-1.0+INT+int16"
"""The smallest target for programs with activations of 16 bits."""

THRESHOLD_DB = 30.0
"""`threshold_db` of `compare`: the least signal to noise ratio of outputs, in dB."""
