"""Runs a compiler, and adds a line with its CPU seconds and the name of its output to a log.

    python compiler_launcher.py LOG COMPILER ARGUMENTS...

CMake starts every compiler through this script if CMAKE_CXX_COMPILER_LAUNCHER names it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    log, *command = sys.argv[1:]
    done = subprocess.run(command, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = command[command.index("-o") + 1] if "-o" in command else ""
    with Path(log).open("a") as file:  # one short write: the lines of two compilers do not mix
        file.write(f"{used.ru_utime + used.ru_stime:.3f}\t{output}\n")
    sys.exit(done.returncode)
