"""tosaic as a system under test of the suite's runner: reads a file, checks it for its target, and runs it.

The target has exactly the profile and extensions that the test requires, so each test also checks our tables
of profiles and extensions; only the tests of one operator need more than they state. A negative test passes
only if the rule of its ERRORIF tag rejects it. Integer results also have to be equal on every instruction set
and with the scalar reference kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tosaic
from runner.tosa_test_runner import TosaTestRunner
from tosa_serializer import DType
from tosa_serializer.numpy_utils import save_npy
from tosaic import _core

from tosa_conformance.tags import rejected_by_rule_of, tag_of

Outcome = TosaTestRunner.TosaGraphResult


# Operators whose tests need profile INT too: the loops of the suite end on a GREATER of int32, which only
# profile INT has. `tosa-opt` refuses them for profile FP as well.
_NEED_INT = ("WHILE_LOOP",)


def target_of(desc: dict[str, Any], profile: str) -> str:
    """Returns the target of a test: its profile, and the extensions that it requires."""
    extensions = desc["test_requirements"].get("extensions_required", [])
    profiles = {profile.removeprefix("tosa-pro-").upper()}
    if desc["test_details"]["operator"] in _NEED_INT:
        profiles.add("INT")
    return "+".join(["TOSA-1.0", *sorted(profiles), *(name.removeprefix("tosa-ext-") for name in extensions)])


class Rejected(Exception):
    """Our reader, checker or executor refuses the test; the text has every reason."""


_DTYPES = {
    "bool": DType.BOOL,
    "i4": DType.INT4,
    "i8": DType.INT8,
    "i16": DType.INT16,
    "i32": DType.INT32,
    "i48": DType.INT48,
    "f8e4m3": DType.FP8E4M3,
    "f8e5m2": DType.FP8E5M2,
    "f16": DType.FP16,
    "bf16": DType.BF16,
    "f32": DType.FP32,
}


def read_array(file: Path) -> np.ndarray[Any, Any]:
    """Reads an array. A dtype that the format lacks is read as unsigned integers of the same width."""
    array = np.load(file)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def require_equal_paths(
    program: tosaic.Program, arrays: list[np.ndarray[Any, Any]], results: list[np.ndarray[Any, Any]]
) -> None:
    """Runs an integer program without fast kernels, and with the kernels of each instruction set.

    Raises
    ------
    AssertionError
        Results differ in an element.
    """
    sessions = {isa: _core.Session(program.graph, isa=isa) for isa in _core.usable_isas()}
    sessions["reference"] = _core.Session(program.graph, reference=True)
    for path, session in sessions.items():
        others = session.run(arrays)
        if not all(map(np.array_equal, results, others)):
            raise AssertionError(f"other integers on path {path}")


def require_equal_threads(
    program: tosaic.Program, arrays: list[np.ndarray[Any, Any]], results: list[np.ndarray[Any, Any]]
) -> None:
    """Runs a program by three threads, which share every loop.

    Raises
    ------
    AssertionError
        Results differ in a bit.
    """
    shared = _core.Session(program.graph, threads=3, share_all=True).run(arrays)
    if [array.tobytes() for array in shared] != [array.tobytes() for array in results]:
        raise AssertionError("other results by three threads")


def run_file(file: Path, target: str, inputs: dict[str, Path], outputs: dict[str, Path]) -> None:
    """Runs a `.tosa` file; `inputs` and `outputs` have the files of arrays, by the names of the tensors.

    Raises
    ------
    Rejected
        The reader, the checker or the executor refuses.
    """
    try:
        program = tosaic.load_tosa(file)
        problems = tosaic.check(program, target=target).problems
        if problems:
            raise Rejected("\n".join(problem.message for problem in problems))
        arrays = [read_array(inputs[port.path]) for port in program.inputs]
        results = program.run_arrays(arrays)
    except tosaic.InternalError:
        raise
    except _core.Error as error:
        raise Rejected(f"{type(error).__name__}: {error}") from error
    if all(port.dtype == "bool" or port.dtype[0] == "i" for port in (*program.inputs, *program.outputs)):
        require_equal_paths(program, arrays, results)
    require_equal_threads(program, arrays, results)
    for port, array in zip(program.outputs, results, strict=True):
        save_npy(outputs[port.path], array, _DTYPES[port.dtype])


class TosaSUTRunner(TosaTestRunner):  # type: ignore[misc]
    """Runs tosaic on a test directory, for the suite's runner."""

    def runTestGraph(self) -> tuple[Outcome, str | None]:
        desc, folder = self.testDesc, Path(self.testDirPath)
        (profile,) = self.args.profile
        try:
            run_file(
                folder / desc["tosa_file"],
                target_of(desc, profile),
                {n: folder / f for n, f in zip(desc["ifm_name"], desc["ifm_file"], strict=True)},
                {n: folder / f for n, f in zip(desc["ofm_name"], desc["ofm_file"], strict=True)},
            )
        except Rejected as rejection:
            return self.judged(str(rejection))
        return Outcome.TOSA_VALID, None

    def judged(self, reasons: str) -> tuple[Outcome, str]:
        """A rejection is the error that the test expects only if the rule of the test's tag rejects it."""
        tag = tag_of(self.testName)
        if tag is None or rejected_by_rule_of(tag, reasons):
            return Outcome.TOSA_ERROR, reasons
        return Outcome.OTHER_ERROR, f"rejected, but not by the rule of {tag}: {reasons}"
