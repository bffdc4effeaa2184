"""Measures the time to build the Python extension from scratch, without ccache, with two jobs.

    python tests/bench/build_time.py

Measured are the CPU time of all compilers and the linker, as `pip install .` starts them, and the slowest
translation units. pybind11, flatc and the headers of flatbuffers come from the environment that runs this.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pybind11
from bench.page import Section, options_of, table
from models.results import ROOT

MOST_CPU_MINUTES = 10.0
SLOWEST = 10


@dataclass(frozen=True)
class Result:
    """CPU minutes, wall-clock minutes, and wall-clock seconds of each object file."""

    cpu_minutes: float
    minutes: float
    objects: dict[str, float]

    @property
    def ok(self) -> bool:
        """The limit holds."""
        return self.cpu_minutes <= MOST_CPU_MINUTES


def run() -> Result:
    """Configures and builds in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder)
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CXX_COMPILER_LAUNCHER": "",
            "CMAKE_PREFIX_PATH": sysconfig.get_path("platlib"),
            "Python_EXECUTABLE": sys.executable,
            "TOSAIC_BUILD_PYTHON": "ON",
            "pybind11_DIR": pybind11.get_cmake_dir(),
        }
        defines = [f"-D{name}={value}" for name, value in settings.items()]
        environment = os.environ | {"CCACHE_DISABLE": "1"}
        before, start = _cpu_seconds(), time.perf_counter()
        for command in (
            ["cmake", "-S", str(ROOT), "-B", folder, "-G", "Ninja", *defines],
            ["cmake", "--build", folder, "--target", "tosaic_python", "-j", "2"],
        ):
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return Result(
            (_cpu_seconds() - before) / 60,
            (time.perf_counter() - start) / 60,
            _objects(build / ".ninja_log"),
        )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _objects(log: Path) -> dict[str, float]:
    """Seconds of each output that ninja recorded (milliseconds of start and end, tab-separated)."""
    seconds: dict[str, float] = {}
    for line in log.read_text().splitlines():
        if not line.startswith("#"):
            start, end, _, name, _ = line.split("\t")
            seconds[name] = (int(end) - int(start)) / 1000
    return seconds


def section(result: Result) -> Section:
    """The section of docs/benchmarks.md."""
    slowest = sorted(result.objects.items(), key=lambda item: -item[1])[:SLOWEST]
    rows = [(_source(name), f"{seconds:.1f}") for name, seconds in slowest]
    text = (
        "The Python extension is built from scratch by two jobs, without ccache: "
        f"**{result.cpu_minutes:.1f} minutes of CPU, {result.minutes:.1f} minutes of wall-clock time**.\n\n"
        f"{table(('slowest', 'seconds'), rows)}\n\n"
        f"At most {MOST_CPU_MINUTES:.0f} minutes of CPU are allowed."
    )
    return Section("build_time", "Build", text, ok=result.ok)


def _source(name: str) -> str:
    """``CMakeFiles/tosaic_ir.dir/cpp/tosaic/ir/parse.cpp.o`` as ``cpp/tosaic/ir/parse.cpp``."""
    folder, _, rest = name.removeprefix("CMakeFiles/").partition("/")
    source = rest.removesuffix(".o")
    isa = folder.removesuffix(".dir").rpartition("_")[2]
    return f"`{source}` ({isa})" if "/isa/" in source else f"`{source or folder}`"


if __name__ == "__main__":
    options_of(__doc__, rounds=1)
    sys.exit(section(run()).publish())
