"""Checks of all C++ sources, which the test command does for changed sources only, or not at all.

Needs the compile commands of the sanitized build of `tests/run`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "asan"

pytestmark = pytest.mark.full


def _sources() -> list[Path]:
    """Returns the layers' sources; kernels/isa is compiled once for each instruction set and left out."""
    return [path for path in sorted((ROOT / "cpp").rglob("*.cpp")) if "isa" not in path.parts]


def _failures(commands: dict[str, list[str]]) -> list[str]:
    """Returns the name and the output of each command that fails."""

    def run(command: list[str]) -> str:
        done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        printed = dict(zip(commands, pool.map(run, commands.values()), strict=True))
    return [f"{name}\n{text}" for name, text in printed.items() if text]


def test_clang_tidy_finds_nothing_in_any_source() -> None:
    tidy = str(Path(sys.executable).with_name("clang-tidy"))
    commands = {path.name: [tidy, "--quiet", "-p", str(BUILD), str(path)] for path in _sources()}
    assert len(commands) > 100
    assert _failures(commands) == []


def test_every_source_includes_what_it_uses_of_the_precompiled_headers() -> None:
    commands = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if "-include" not in words:
            continue
        at = words.index("-include")
        del words[at : at + 2]
        compiler = next(
            i for i, word in enumerate(words) if Path(word).name.startswith(("c++", "g++", "clang++"))
        )
        output = words.index("-o")
        command = [*words[compiler:output], *words[output + 2 :], "-fsyntax-only"]
        commands[entry["file"]] = [word for word in command if word not in ("-MD", "-Winvalid-pch")]
    assert len(commands) > 100
    assert _failures(commands) == []
