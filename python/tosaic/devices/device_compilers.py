"""Compiles ``.tosa`` files for devices with the tools of their makers: Vela and the VGF model converter.

Each tool is a Python package that is installed separately. It runs in a separate process, because both tools
print, and change settings of the whole process.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tosaic.base.options import invalid, unsupported
from tosaic.base.writing import write_bytes

_MODULES = {"vela": "ethosu.vela.vela", "model-converter": "model_converter.cli"}
_VELA_ARRAYS = (
    "cmd_data",
    "weight_data",
    "scratch_shape",
    *(
        f"{side}_{field}"
        for side in ("input", "output")
        for field in ("shape", "elem_size", "offset", "region")
    ),
)
_LARGEST_FOR_VELA = 1 << 31
_SHOWN = 1_000  # characters of a tool's output in messages

VELA_CONFIGURATIONS = {
    "ethos-u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "ethos-u65": ("Ethos_U65_High_End", "Dedicated_Sram_384KB"),
    "ethos-u85": ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
}
"""By family of Ethos-U: the system configuration and the memory mode that ExecuTorch compiles for."""


def vela_flags(accelerator: str, flags: Sequence[str] = ()) -> list[str]:
    """Returns the flags with which Vela compiles for an accelerator, such as ``ethos-u55-128``.

    Parameters
    ----------
    accelerator : str
    flags : sequence of str
        Further flags, such as ``--optimise=Size``. ``--config``, ``--system-config`` and ``--memory-mode``
        replace the defaults, which are ExecuTorch's.
    """
    system, memory = VELA_CONFIGURATIONS[accelerator.rpartition("-")[0]]
    given = {flag.partition("=")[0] for flag in flags}
    defaults = {"--config": "Arm/vela.ini", "--system-config": system, "--memory-mode": memory}
    fixed = {"--accelerator-config": accelerator, "--output-format": "raw"}
    for name in fixed:
        if name in given:
            raise invalid(
                "vela",
                f"the flag {name} is not free",
                expected=f"{name}={fixed[name]}, which the claimant says",
                got=next(flag for flag in flags if flag.partition("=")[0] == name),
            )
    added = {**fixed, **{name: value for name, value in defaults.items() if name not in given}}
    return [*flags, *(f"{name}={value}" for name, value in added.items())]


@dataclass(frozen=True)
class VelaRun:
    """The output of a run of Vela.

    Attributes
    ----------
    arrays : mapping of str to numpy.ndarray
        See `compile_with_vela`.
    summary : mapping of str to str
        The totals, by column name of Vela's summary table.
    database : bytes
        Vela's debug database, as XML; empty unless it was requested.
    """

    arrays: Mapping[str, np.ndarray[Any, Any]]
    summary: Mapping[str, str]
    database: bytes = b""


def run_vela(tosa: bytes, flags: Sequence[str], *, database: bool = False) -> VelaRun:
    """Compiles a ``.tosa`` file for Ethos-U, and returns all output of Vela.

    `database` requests the debug database. The other parameters and the errors are those of
    `compile_with_vela`.
    """
    if len(tosa) >= _LARGEST_FOR_VELA:
        raise unsupported(
            "vela",
            "the file is too large for Vela",
            expected=f"less than {_LARGEST_FOR_VELA} bytes",
            got=f"{len(tosa)}",
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.tosa"
        write_bytes(source, tosa)
        made = Path(folder) / "model_vela.npz"
        more = ["--enable-debug-db"] if database else []
        _run("vela", [*flags, *more, f"--output-dir={folder}", str(source)], made)
        with np.load(made, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in _VELA_ARRAYS if name in arrays.files}
        tables = (table.read_text() for table in Path(folder).glob("model_summary_*.csv"))
        rows = (row for text in tables for row in csv.DictReader(text.splitlines()))
        debug = (Path(folder) / "model_debug.xml").read_bytes() if database else b""
        return VelaRun(found, next(rows, {}), debug)


def compile_with_vela(tosa: bytes, flags: Sequence[str]) -> Mapping[str, np.ndarray[Any, Any]]:
    """Compiles a ``.tosa`` file for Ethos-U.

    Parameters
    ----------
    tosa : bytes
    flags : sequence of str
        See `vela_flags`.

    Returns
    -------
    mapping of str to numpy.ndarray
        The arrays of Vela's raw output: ``cmd_data``, ``weight_data``, ``scratch_shape``, and shapes, element
        sizes, offsets and regions of inputs and outputs.

    Raises
    ------
    UnsupportedOp
        Vela refuses the file. The message has Vela's output.
    ImportError
        Vela is not installed.
    """
    return run_vela(tosa, flags).arrays


def compile_vgf(tosa: bytes, flags: Sequence[str] = ()) -> bytes:
    """Converts a ``.tosa`` file to a VGF file.

    Raises
    ------
    UnsupportedOp
        The converter refuses the file. The message has its output.
    ImportError
        The converter is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "model.tosa", Path(folder) / "model.vgf"
        write_bytes(source, tosa)
        _run("model-converter", [*flags, "--input", str(source), "--output", str(made)], made)
        return made.read_bytes()


def require_tool(tool: str) -> str:
    """Returns the module of a tool, ``vela`` or ``model-converter``.

    Raises
    ------
    ImportError
        The tool is not installed.
    """
    module = _MODULES[tool]
    if find_spec(module.partition(".")[0]) is None:
        raise ImportError(f"{tool} is not installed: pip install 'tosaic[devices]'")
    return module


def _run(tool: str, arguments: Sequence[str], made: Path) -> None:
    module = require_tool(tool)
    start = f"import sys; from {module} import main; sys.exit(main())"
    command = [sys.executable, "-c", start, *arguments]
    done = subprocess.run(command, capture_output=True, check=False, cwd=made.parent)
    if done.returncode == 0 and made.exists() and made.stat().st_size > 0:
        return
    printed = b"\n".join((done.stdout, done.stderr)).decode(errors="replace").strip()
    raise unsupported(
        tool,
        f"{tool} cannot compile the file",
        expected="exit code 0 and a compiled file",
        got=f"exit code {done.returncode}: {printed[-_SHOWN:]}",
    )
