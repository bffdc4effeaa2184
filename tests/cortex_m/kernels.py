"""CMSIS-NN itself: its C kernels, compiled for this machine from a checkout of its repository.

CMSIS-NN has a portable form of every kernel in addition to the forms for DSP and MVE. All forms compute the
same integers. ExecuTorch's Python operators compute average pools and softmax in floats instead, so the
kernels decide there.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["Kernels"]

_SOURCES = (
    "SoftmaxFunctions/arm_softmax_s8.c",
    "SoftmaxFunctions/arm_nn_softmax_common_s8.c",
    "PoolingFunctions/arm_avgpool_s8.c",
    "PoolingFunctions/arm_avgpool_get_buffer_sizes_s8.c",
)
_CALLS = """
#include "arm_nnfunctions.h"

void softmax(const int8_t* x, int rows, int size, int multiplier, int shift, int least, int8_t* out) {
  arm_softmax_s8(x, rows, size, multiplier, shift, least, out);
}

int average(const int8_t* x, const int32_t* d, int8_t* out) {
  const cmsis_nn_context none = {0, 0};
  const cmsis_nn_pool_params pool = {{d[5], d[4]}, {d[7], d[6]}, {-128, 127}};
  const cmsis_nn_dims in = {1, d[0], d[1], d[10]}, kernel = {1, d[2], d[3], d[10]};
  const cmsis_nn_dims result = {1, d[8], d[9], d[10]};
  return arm_avgpool_s8(&none, &pool, &in, x, &kernel, &result, out);
}
"""


def compiled(source: Path, folder: Path, calls: str, sources: Sequence[str]) -> ctypes.CDLL:
    """Compiles C functions of ours with files of the checkout `source`, and loads the library."""
    ours, library = folder / "calls.c", folder / "libcalls.so"
    ours.write_text(calls)
    files = [str(source / "Source" / name) for name in sources]
    flags = ["-O2", "-w", "-shared", "-fPIC", "-fwrapv", f"-I{source / 'Include'}"]
    subprocess.run(["cc", *flags, str(ours), *files, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Kernels:
    """The kernels of the checkout `source`, compiled into `folder`."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._library = compiled(source, folder, _CALLS, _SOURCES)

    def softmax(self, x: np.ndarray, multiplier: int, shift: int, least: int) -> np.ndarray:
        """Returns the softmax of the rows of an int8 array."""
        rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
        out = np.empty_like(rows)
        self._library.softmax(_at(rows), *rows.shape, multiplier, shift, least, _at(out))
        return out.reshape(x.shape)

    def average(
        self,
        x: np.ndarray,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
        result: tuple[int, int],
    ) -> np.ndarray:
        """Returns the averages over windows of an int8 array (1, C, H, W)."""
        image = np.ascontiguousarray(x[0].transpose(1, 2, 0))
        out = np.empty((*result, image.shape[2]), np.int8)
        sizes = (*image.shape[:2], *kernel, *stride, *padding, *result, image.shape[2])
        if self._library.average(_at(image), _at(np.array(sizes, np.int32)), _at(out)) != 0:
            raise ValueError("arm_avgpool_s8 refuses its arguments")
        return out.transpose(2, 0, 1)[None]
