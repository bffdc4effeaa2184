"""Whether Vela compiles a ``.tosa`` file, in a fork of this process: a start of Python would take longer."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tosaic.devices.device_compilers import vela_flags

__all__ = ["refusal_of"]

_FAILED, _SHOWN = 1, 300


@cache
def _main() -> Any:
    from ethosu.vela import vela

    return vela.main


def refusal_of(tosa: bytes, device: str) -> str:
    """Returns what Vela says if it refuses a file for a device, such as ``ethos-u55-128``; else nothing."""
    main = _main()
    with tempfile.TemporaryDirectory() as folder:
        source, log = Path(folder) / "model.tosa", Path(folder) / "log"
        source.write_bytes(tosa)
        child = os.fork()
        if child == 0:
            _compile(main, [*vela_flags(device), f"--output-dir={folder}", str(source)], log)
        _, status = os.waitpid(child, 0)
        if status == 0 and (Path(folder) / "model_vela.npz").exists():
            return ""
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return " ".join(lines)[-_SHOWN:] or f"status {status}"


def _compile(main: Any, arguments: list[str], log: Path) -> None:
    """Calls Vela and ends this process. Vela writes to the files of the process, not to `sys.stdout`."""
    code = _FAILED
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(log.parent)
        sys.stdout = sys.stderr = open(descriptor, "w", closefd=False)  # noqa: SIM115
        code = main(arguments) or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else _FAILED
    finally:
        sys.stdout.flush()
        os._exit(code)
