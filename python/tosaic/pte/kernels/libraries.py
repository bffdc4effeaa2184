"""The libraries of kernels by name."""

from __future__ import annotations

from collections.abc import Mapping

from tosaic.pte.kernels.cortex_m import LIBRARY as CORTEX_M
from tosaic.pte.kernels.library import Library

LIBRARIES: Mapping[str, Library] = {each.name: each for each in (CORTEX_M,)}
"""By name, as `tosaic.devices.Device.kernel_library` has it."""


def scratch_operands(operator: str) -> int:
    """Returns how many of the last operands of a kernel are temporary buffers, which it may overwrite.

    Parameters
    ----------
    operator : str
        ``cortex_m::quantized_conv2d``.
    """
    library, _, name = operator.partition("::")
    found = LIBRARIES.get(library)
    return 0 if found is None else found.scratch.get(name.removesuffix("_nhwc"), 0)


def is_of_library(operator: str) -> bool:
    """True for an operator of one of the libraries."""
    return operator.partition("::")[0] in LIBRARIES
