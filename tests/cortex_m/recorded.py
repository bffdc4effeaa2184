"""Results of CMSIS-NN's C kernels, recorded for the programs of a few seeds.

`tests/full/cortex_m_arithmetic.py --cmsis-nn FOLDER --record` writes the file. With it, tests compare with
the kernels on machines that have no checkout of CMSIS-NN.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import numpy as np

from cortex_m.checking import KERNELS, kernel_result
from cortex_m.kernels import Kernels
from cortex_m.programs import PROGRAMS, Drawn, Program

__all__ = ["FILE", "read", "seeds", "write"]

FILE = Path(__file__).with_name("kernel_results.json")
_SEEDS = range(100, 120)


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()


def _checksum(program: Program) -> int:
    return zlib.crc32(np.ascontiguousarray(program.arrays[0].numpy()).tobytes())


def write(kernels: Kernels, revision: str) -> None:
    """Records the results of all kernels."""
    results: dict[str, dict[str, dict[str, object]]] = {}
    for name in KERNELS:
        for seed in _SEEDS:
            program = PROGRAMS[name](Drawn(seed))
            result, is_defined = kernel_result(name, program, kernels)
            if not is_defined.all():
                continue
            entry = {"input": _checksum(program), "shape": result.shape, "result": _packed(result)}
            results.setdefault(name, {})[str(seed)] = entry
    FILE.write_text(json.dumps({"cmsis_nn": revision, "results": results}, indent=1) + "\n")


def _results(name: str) -> dict[str, dict[str, object]]:
    return json.loads(FILE.read_text())["results"][name]


def seeds(name: str) -> list[int]:
    """Returns the seeds of the recorded programs."""
    return [int(seed) for seed in _results(name)]


def read(name: str, seed: int) -> tuple[Program, np.ndarray]:
    """Returns the program of a seed, and the recorded result of the kernel."""
    entry = _results(name)[str(seed)]
    program = PROGRAMS[name](Drawn(seed))
    if _checksum(program) != entry["input"]:
        raise AssertionError(f"{name}, seed {seed}: torch draws other integers; record the results again")
    values = np.frombuffer(zlib.decompress(base64.b64decode(entry["result"])), np.int8)
    return program, values.reshape(entry["shape"])
