"""The extension is linked and compiled so that a fault of memory is harder to exploit.

The file itself is read, by readelf: flags that a build has lost would not show elsewhere.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tosaic import _core

ROOT = Path(__file__).resolve().parents[1]

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


def test_a_flag_that_the_compiler_refuses_is_left_out(tmp_path: Path) -> None:
    """GCC for AArch64 refuses -fcf-protection and takes -mbranch-protection, as this compiler does."""
    compiler = tmp_path / "g++"
    refused, taken = "-fcf-protection", "-mbranch-protection=standard"
    compiler.write_text(
        "#!/bin/bash\n"
        "arguments=()\n"
        'for each in "$@"; do case "$each" in\n'
        f'  {refused}) echo "error: {refused} is not supported for this target" >&2; exit 1 ;;\n'
        f"  {taken}) ;;\n"
        '  *) arguments+=("$each") ;;\n'
        "esac; done\n"
        'exec c++ "${arguments[@]}"\n'
    )
    compiler.chmod(0o755)
    settings = {
        "CMAKE_CXX_COMPILER": str(compiler),
        "CMAKE_PREFIX_PATH": sysconfig.get_path("platlib"),
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
    }
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), "-G", "Ninja", *defines]
    subprocess.run(command, capture_output=True, check=True)
    commands = json.loads((tmp_path / "build" / "compile_commands.json").read_text())
    ours = [each["command"] for each in commands if "/cpp/tosaic/" in each["file"]]
    assert len(ours) > 100
    for each in ours:
        assert refused not in each
        assert f" {taken} " in each
        assert " -fstack-protector-strong " in each
