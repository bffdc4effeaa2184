"""Measures the time to build the Python extension from scratch, without ccache, with two jobs.

    python tests/bench/build_time.py

It measures the CPU time of CMake, all compilers and the linker, as `pip install .` starts them, and the
CPU time of each compiler, which `compiler_launcher.py` writes down. pybind11, flatc and the headers of
flatbuffers come from the environment that runs this.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pybind11
from bench.page import Section, options_of, table
from models.results import ROOT

MOST_CPU_MINUTES = 8.0
MOST_MINUTES = 4.5  # on two cores
SLOWEST = 10
LAUNCHER = Path(__file__).resolve().with_name("compiler_launcher.py")


@dataclass(frozen=True)
class Result:
    """CPU minutes, wall-clock minutes, the compiler, and the CPU seconds of each output of a compiler."""

    cpu_minutes: float
    minutes: float
    compiler: str
    units: dict[str, float]

    @property
    def ok(self) -> bool:
        """True if both limits hold."""
        return self.cpu_minutes <= MOST_CPU_MINUTES and self.minutes <= MOST_MINUTES


def run(target: str = "tosaic_python") -> Result:
    """Configures and builds a target in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "cpu_seconds.txt"
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(log)]
        before, start = _cpu_seconds(), time.perf_counter()
        build(
            Path(folder),
            target,
            environment={"CCACHE_DISABLE": "1"},
            CMAKE_CXX_COMPILER_LAUNCHER=";".join(launcher),
        )
        return Result(
            (_cpu_seconds() - before) / 60,
            (time.perf_counter() - start) / 60,
            _compiler(Path(folder)),
            _units(log),
        )


def build(
    folder: Path,
    target: str = "tosaic_python",
    *,
    environment: Mapping[str, str] | None = None,
    **settings: str,
) -> None:
    """Configures and builds a target as `pip install .` does, with two jobs; `settings` are CMake's."""
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_PREFIX_PATH": sysconfig.get_path("platlib"),
        "Python_EXECUTABLE": sys.executable,
        "TOSAIC_BUILD_PYTHON": "ON",
        "TOSAIC_UNITY": "ON",  # as in a wheel
        "pybind11_DIR": pybind11.get_cmake_dir(),
        **settings,
    }
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *defines],
        ["cmake", "--build", str(folder), "--target", target, "-j", "2"],
    ):
        subprocess.run(
            command, env={**os.environ, **(environment or {})}, check=True, stdout=subprocess.DEVNULL
        )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _compiler(build: Path) -> str:
    """Returns the compiler that CMake found and its version: ``GNU 12.2.0``."""
    (file,) = build.glob("CMakeFiles/*/CMakeCXXCompiler.cmake")
    settings = dict(re.findall(r'^set\((\w+) "(.*)"\)$', file.read_text(), re.MULTILINE))
    return f"{settings['CMAKE_CXX_COMPILER_ID']} {settings['CMAKE_CXX_COMPILER_VERSION']}"


def _units(log: Path) -> dict[str, float]:
    """Returns the CPU seconds of each output in the log of the launcher."""
    lines = (line.split("\t") for line in log.read_text().splitlines())
    return {name: float(seconds) for seconds, name in lines if name.endswith((".o", ".gch"))}


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    slowest = sorted(result.units.items(), key=lambda item: -item[1])[:SLOWEST]
    rows = [(_source(name), f"{seconds:.1f}") for name, seconds in slowest]
    text = (
        "The Python extension is built from scratch by two jobs, without ccache: "
        f"**{result.cpu_minutes:.1f} minutes of CPU, {result.minutes:.1f} minutes of wall-clock time** for "
        f"{len(result.units)} translation units. These are the {len(rows)} slowest:\n\n"
        f"{table(('translation unit', 'CPU seconds'), rows)}\n\n"
        f"Allowed are {MOST_CPU_MINUTES:g} minutes of CPU and {MOST_MINUTES:g} minutes of wall-clock time."
    )
    return Section("build_time", "Build", text, ok=result.ok, conditions=f"{result.compiler}, two jobs")


def _source(name: str) -> str:
    """Returns ``cpp/tosaic/ir/parse.cpp`` for ``CMakeFiles/tosaic_ir.dir/cpp/tosaic/ir/parse.cpp.o``."""
    folder, _, rest = name.removeprefix("CMakeFiles/").partition("/")
    target = folder.removesuffix(".dir")
    if name.endswith(".gch"):
        return f"precompiled headers of `{target}`"
    source = rest.removesuffix(".o")
    isa = target.rpartition("_")[2]
    return f"`{source}` ({isa})" if "/isa/" in source else f"`{source}`"


if __name__ == "__main__":
    options_of(__doc__, rounds=1)
    sys.exit(section(run()).publish())
