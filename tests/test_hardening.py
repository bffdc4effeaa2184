"""The extension is linked and compiled so that a fault of memory is harder to exploit.

The file itself is read, by readelf: flags that a build has lost would not show elsewhere.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tosaic import _core

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the extension is an ELF file on Linux only")

# What a protected function begins with: ENDBR64, or on AArch64 PACIASP (signs the return address) or BTI C.
MARKS = {"x86_64": [b"\xf3\x0f\x1e\xfa"], "aarch64": [b"\x3f\x23\x03\xd5", b"\x5f\x24\x03\xd5"]}


def readelf(*options: str) -> str:
    command = ["readelf", "--wide", *options, _core.__file__]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_relocations_are_read_only_after_loading() -> None:
    assert "GNU_RELRO" in readelf("--segments")
    dynamic = readelf("--dynamic")
    assert re.search(r"\(FLAGS\).*BIND_NOW", dynamic) or "(BIND_NOW)" in dynamic
    assert re.search(r"\(FLAGS_1\).*NOW", dynamic)


def test_the_stack_is_not_executable_and_has_canaries() -> None:
    (stack,) = (line for line in readelf("--segments").splitlines() if "GNU_STACK" in line)
    assert re.search(r" RW +0x", stack)
    assert "__stack_chk_fail" in readelf("--dyn-syms")


def test_calls_of_the_c_library_check_sizes() -> None:
    """No symbol shows it: no call of ours has a buffer of known size that it could exceed."""
    assert _core.FORTIFY_SOURCE >= 2


def test_no_segment_is_writable_and_executable() -> None:
    assert not [line for line in readelf("--segments").splitlines() if re.search(r" RWE +0x", line)]


@pytest.mark.skipif(platform.machine() not in MARKS, reason="the processor has no such protection")
def test_indirect_branches_land_only_at_marked_places() -> None:
    marks = MARKS[platform.machine()]
    (symbol,) = re.findall(
        r"([0-9a-f]{16}) +\d+ FUNC +GLOBAL +DEFAULT +\d+ PyInit__core", readelf("--dyn-syms")
    )
    entry = int(symbol, 16)
    section = re.search(r"\.text +PROGBITS +([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)", readelf("--sections"))
    assert section is not None
    begin, offset, size = (int(each, 16) for each in section.groups())
    assert begin <= entry < begin + size
    code = Path(_core.__file__).read_bytes()[offset : offset + size]
    assert code[entry - begin :][:4] in marks
    # Every layer, not the entry alone.
    assert sum(code.count(mark) for mark in marks) > 1000
