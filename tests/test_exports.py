"""The extension module exports its entry point and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tosaic import _core

ROOT = Path(__file__).resolve().parents[1]
EXPORTS = ROOT / "cmake" / "extension_exports.map"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("nm"), reason="reads the symbols of an ELF library with nm"
)


def exported(library: Path) -> list[str]:
    """Returns the names of all symbols that a shared library exports, weak ones too."""
    command = ["nm", "-D", "--defined-only", "--format=just-symbols", str(library)]
    return sorted(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_the_extension_exports_its_entry_point_only() -> None:
    assert exported(Path(_core.__file__)) == ["PyInit__core"]


@pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")
def test_a_planted_export_is_found_and_hidden_by_the_list_of_exports(tmp_path: Path) -> None:
    source = tmp_path / "leak.cpp"
    source.write_text('extern "C" int PyInit__core() { return 0; }\nextern "C" int leak() { return 1; }\n')
    for option, expected in {
        "-shared": ["PyInit__core", "leak"],
        f"-Wl,--version-script={EXPORTS}": ["PyInit__core"],
    }.items():
        library = tmp_path / "leak.so"
        command = ["c++", "-shared", "-fPIC", "-nostdlib", option, str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        assert exported(library) == expected
