"""The suite's own generator and runner, driven test by test: generate one test, run it, delete it.

`tosa_verif_conformance_generator` decides which batches of tests exist, `tosa_verif_build_tests` which tests
a batch has and what they contain; both run unchanged. A batch runs in a process of its own, because the
generator changes its own tables, and the suite's runner gets each test as soon as it is written. The caller
can store the names of all tests (the plan) and their results, so that an interrupted run continues.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import multiprocessing
import os
import queue
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import conformance.tosa_verif_conformance_generator as conformance_generator
import generator.tosa_verif_build_tests as build_tests
import numpy as np
import runner.tosa_verif_run_tests as run_tests
import schemavalidation.schemavalidation as schema_validation
from generator.tosa_test_select import TosaTestSelect
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from runner import tosa_refmodel_compliance_sut_run as reference
from runner.tosa_test_runner import TosaTestRunner

from tosa_conformance import sut
from tosa_conformance.tags import tag_of

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = "1.0.2"
SUITE_SEED = 42  # other seeds give tests that are not the official ones
_PASSES = ("EXPECTED_PASS", "EXPECTED_FAILURE")


@dataclass(frozen=True)
class Profile:
    """A profile of TOSA with the extensions that tosaic supports.

    Attributes
    ----------
    name : str
        ``fp``.
    extensions : tuple of str
        The names of the extensions, without ``tosa-ext-``.
    """

    name: str
    extensions: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """The options of the suite's commands that select this profile."""
        return [
            *("--profile", f"tosa-pro-{self.name}"),
            *("--extension", *(f"tosa-ext-{extension}" for extension in self.extensions)),
        ]


FP = Profile("fp", ("bf16", "controlflow", "fft", "fp8e4m3", "fp8e5m2", "variable"))
INT = Profile("int", ("controlflow", "doubleround", "inexactround", "int16", "int4", "variable"))
PROFILES = {profile.name: profile for profile in (FP, INT)}


@dataclass(frozen=True)
class Batch:
    """One call of the suite's test builder: its arguments and the tests it makes."""

    operator: str
    arguments: tuple[str, ...]
    tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """How a test ended.

    Attributes
    ----------
    test : str
    operator : str
        As the suite names it.
    outcome : str
        The runner's code for tosaic: ``EXPECTED_PASS``, ``EXPECTED_FAILURE``, ``UNEXPECTED_FAILURE`` ...;
        ``REFERENCE_FAILURE`` if the suite's own reference run did not succeed, so that nothing was compared.
    message : str
        The reason, if the suite does not accept the result.
    seconds : float
        The time of our run and of the comparison.
    """

    test: str
    operator: str
    outcome: str
    message: str
    seconds: float

    @property
    def ok(self) -> bool:
        """True if the suite accepts the result."""
        return self.outcome in _PASSES

    @property
    def negative(self) -> bool:
        """True if the test asks for a rejection."""
        return tag_of(self.test) is not None


def suite_version() -> str:
    """Returns the versions as text: ``tosa-tools 2026.8.0, specification 1.0.2``."""
    return f"tosa-tools {version('tosa-tools')}, specification {SPECIFICATION}"


def fingerprint() -> str:
    """Returns a hash of what may change a result.

    These are the suite, sut.py, tags.py, and the layers that read, check and run files.
    """
    digest = hashlib.sha256(suite_version().encode())
    folders = [
        ROOT / "cpp" / "tosaic" / layer for layer in ("base", "ir", "kernels", "target", "tosa", "exec")
    ]
    files = [file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()]
    files += [Path(__file__).parent / name for name in ("sut.py", "tags.py")]
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


# ---- faster versions of functions of the suite ----

_sound_schemas: set[str] = set()


def _validate(config: Any, schema: Any, registry: Any) -> None:
    """Replaces `jsonschema.validate`, which takes half of a test's time; checks each schema only once."""
    validator = validator_for(schema)
    text = json.dumps(schema)
    if text not in _sound_schemas:
        validator.check_schema(schema)
        _sound_schemas.add(text)
    error = best_match(validator(schema, registry=registry).iter_errors(config))
    if error is not None:
        raise error


schema_validation.validate = _validate

_argument = TosaTestSelect.getArg


@functools.lru_cache(maxsize=65536)
def _text_of_array(shape: tuple[int, ...], dtype: str, content: bytes) -> str:
    return ",".join(str(np.frombuffer(content, dtype).reshape(shape)).splitlines())


def _argument_once(self: Any, param: str) -> Any:
    """Caches `TosaTestSelect.getArg`: the suite formats equal small arrays thousands of times."""
    value = self.argsDict.get(param)
    if param in ("rank", "type") or not isinstance(value, np.ndarray) or value.dtype == object:
        return _argument(self, param)
    return _text_of_array(value.shape, value.dtype.str, value.tobytes())


TosaTestSelect.getArg = _argument_once

# ---- lists of batches and of tests ----


def _batches(profile: Profile) -> list[Batch]:
    """Records all calls of the test builder that the suite's generator would make, and runs none."""
    commands: list[list[str]] = []

    def record(cwd: Path, command: list[str]) -> tuple[list[str], int, str, str]:
        commands.append(command)
        return command, 0, "", ""

    kept = conformance_generator._run_sh_command_mp, sys.argv
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*profile.arguments, "--tosa-version", SPECIFICATION]
        arguments += ["--seed", str(SUITE_SEED), "--jobs", "1", "--build-directory", folder]
        arguments += ["--list-tests-to-file", str(Path(folder) / "list.txt")]
        conformance_generator._run_sh_command_mp = record
        sys.argv = ["tosa_verif_conformance_generator", *arguments]
        try:
            with _silence():
                status = conformance_generator.main()
        finally:
            conformance_generator._run_sh_command_mp, sys.argv = kept
    if status != 0 or not commands:
        raise RuntimeError(f"the suite's generator gave {status} and {len(commands)} batches")
    return sorted(map(_batch, commands), key=lambda batch: (batch.operator, batch.arguments))


def _batch(command: list[str]) -> Batch:
    output = command.index("-o")
    operator = Path(command[output + 1]).parts[-3]
    arguments = [*command[1:output], *command[output + 2 :]]
    extension = arguments.index("--extension")  # the suite passes the extensions in the order of a set
    end = next(i for i in range(extension + 1, len(arguments)) if arguments[i].startswith("--"))
    arguments[extension + 1 : end] = sorted(arguments[extension + 1 : end])
    return Batch(operator, tuple(argument for argument in arguments if argument != "--list-tests"))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discards what the suite prints; its results come back as data."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with Path(os.devnull).open("w") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in enumerate(kept, 1):
            os.dup2(original, number)
            os.close(original)


def operators(profile: Profile = FP) -> list[str]:
    """Returns the suite's names of the operators that it has tests for."""
    return sorted({batch.operator for batch in _batches(profile)})


def plan(profile: Profile = FP, only: Collection[str] | None = None, jobs: int = 1) -> list[Batch]:
    """Returns every batch, or the batches of some operators, with the names of its tests."""
    tasks = [(batch,) for batch in _batches(profile) if only is None or batch.operator in only]
    batches = [
        Batch(batch.operator, batch.arguments, tuple(names))
        for batch, names in _in_processes(_list_names, tasks, jobs)
    ]
    return sorted(batches, key=lambda batch: (batch.operator, batch.arguments))


def _list_names(report: Any, batch: Batch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report((batch, [str(test) for _, _, test in _listed(batch, folder)]))


def _listed(batch: Batch, folder: str) -> list[tuple[Any, Any, Any]]:
    """Returns (generator, method that writes the test to the folder, test) for each test of the batch."""
    found: list[tuple[Any, Any, Any]] = []

    class Listing(build_tests.TosaTestGen):  # type: ignore[misc]
        def serializeTest(self, test: Any) -> bool:
            found.append((self, super().serializeTest, test))
            return True

    build_tests.TosaTestGen = Listing
    build_tests.main([*batch.arguments, "-o", folder])
    return found


# ---- selection of tests ----


def sample(batches: Iterable[Batch], seed: int, limit: int) -> list[Batch]:
    """Returns at most `limit` tests of each operator, drawn by the seed."""
    batches = list(batches)
    chosen = set()
    for operator in {batch.operator for batch in batches}:
        names = [name for batch in batches if batch.operator == operator for name in batch.tests]
        names.sort(key=lambda name: zlib.crc32(f"{seed} {name}".encode()))
        chosen |= {(operator, name) for name in names[:limit]}
    return select(batches, lambda operator, name: (operator, name) in chosen)


def lightest_quarter(batches: Iterable[Batch], least: int = 1) -> list[Batch]:
    """Returns the tests whose largest tensor is in the lower quartile of its operator, by number of elements.

    The names of the tests have the shapes. If an operator has fewer than `least` such tests, its
    `least` lightest tests are returned instead.
    """
    batches = list(batches)
    sizes: dict[str, list[int]] = {}
    for batch in batches:
        sizes.setdefault(batch.operator, []).extend(map(elements, batch.tests))
    most = {
        operator: sorted(counts)[min(max(len(counts) // 4, least - 1), len(counts) - 1)]
        for operator, counts in sizes.items()
        if counts
    }
    return select(batches, lambda operator, name: elements(name) <= most[operator])


def elements(name: str) -> int:
    """Counts elements of the largest tensor in a test's name: 288 for ``conv2d_3x3_1x9x8x4_f32``."""
    shapes = (field.split("x") for field in name.split("_") if re.fullmatch(r"\d+(x\d+)*", field))
    return max((math.prod(map(int, shape)) for shape in shapes), default=0)


def select(batches: Iterable[Batch], keep: Any) -> list[Batch]:
    """Returns the batches, reduced to the tests for which ``keep(operator, name)`` is true."""
    reduced = [
        Batch(b.operator, b.arguments, tuple(name for name in b.tests if keep(b.operator, name)))
        for b in batches
    ]
    return [batch for batch in reduced if batch.tests]


# ---- running ----


def run(
    batches: Iterable[Batch], profile: Profile = FP, jobs: int = 1, failed: Path | None = None
) -> Iterator[Result]:
    """Generates and runs the tests of the batches; yields each result as soon as it exists.

    Parameters
    ----------
    batches : iterable of Batch
    profile : Profile
        The profile of the batches; each test is checked against it.
    jobs : int
        Number of processes at a time.
    failed : Path, optional
        Where to move the directories of tests that the suite does not accept.
    """
    pieces = [piece for batch in batches for piece in _pieces(batch, jobs)]
    pieces.sort(key=lambda piece: -len(piece.tests))
    # All processes use folders in this one, so nothing is left over even if a process is killed.
    with tempfile.TemporaryDirectory(prefix="conformance-") as root:
        yield from _in_processes(_run_batch, [(piece, profile, failed, root) for piece in pieces], jobs)


def _pieces(batch: Batch, jobs: int) -> list[Batch]:
    """Splits a large batch into parts. The process of each part lists all tests of the batch again."""
    count = min(jobs, 1 + len(batch.tests) // 150)
    return [Batch(batch.operator, batch.arguments, batch.tests[i::count]) for i in range(count)]


def _run_batch(report: Any, batch: Batch, profile: Profile, failed: Path | None, root: str) -> None:
    wanted = set(batch.tests)

    class Running(build_tests.TosaTestGen):  # type: ignore[misc]
        def serializeTest(self, test: Any) -> bool:
            if str(test) in wanted:
                wanted.remove(str(test))
                report(_make_and_run(self, super().serializeTest, test, batch.operator, profile, failed))
            return True

    build_tests.TosaTestGen = Running
    with tempfile.TemporaryDirectory(dir=root) as folder:
        build_tests.main([*batch.arguments, "-o", folder])
    for name in sorted(wanted):
        report(
            Result(name, batch.operator, "INTERNAL_ERROR", "the suite does not list this test any more", 0.0)
        )


def _make_and_run(
    generator: Any, make: Any, test: Any, operator: str, profile: Profile, failed: Path | None
) -> Result:
    """Writes a test, runs it, and deletes it or moves it to `failed`."""
    name = str(test)
    try:
        made = make(test)
        folder = Path(generator.basePath) / generator.testPath
        result = _run_test(folder, operator, profile) if made else None
    except Exception as error:  # an error of the suite, which must not end the batch
        return Result(name, operator, "INTERNAL_ERROR", repr(error), 0.0)
    if result is None:
        return Result(name, operator, "INTERNAL_ERROR", "the suite did not make this test", 0.0)
    if not result.ok and failed is not None:
        shutil.rmtree(failed / name, ignore_errors=True)
        shutil.move(folder, failed / name)
    else:
        shutil.rmtree(folder)
    return result


def list_and_run(
    operator: str,
    choose: Callable[[list[Batch]], Iterable[Batch]],
    profile: Profile = FP,
    most: int | None = None,
    seed: int = 0,
) -> list[Result]:
    """Lists the tests of an operator, lets `choose` select some of them, and runs these.

    `plan` and `run` would call the suite's builder twice for each batch; here the process that lists a batch
    waits for the selection and then runs it. The builder needs much time for a batch of positive tests, so at
    most `most` of these batches are listed; the seed draws them.
    """
    context = multiprocessing.get_context("fork")
    waiting: dict[tuple[str, ...], tuple[Any, Connection]] = {}
    listed: list[Batch] = []
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="conformance-") as root:
        try:
            for batch in _drawn([b for b in _batches(profile) if b.operator == operator], most, seed):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_in_child,
                    args=(_list_and_run, theirs, (theirs, batch, profile, root)),
                    daemon=True,
                )
                process.start()
                theirs.close()
                waiting[batch.arguments] = process, ours
                listed.append(Batch(operator, batch.arguments, _received(process, ours)))
            chosen = {batch.arguments: batch.tests for batch in choose(listed)}
            for arguments, (process, ours) in waiting.items():
                ours.send(chosen.get(arguments, ()))
                results += _received(process, ours)
        finally:
            for process, ours in waiting.values():
                ours.close()
                process.terminate()
                process.join()
    return results


def _drawn(batches: list[Batch], most: int | None, seed: int) -> list[Batch]:
    """Returns all batches of negative tests and at most `most` of positive ones, wherever the suite lies."""

    def is_negative(batch: Batch) -> bool:
        return batch.arguments[batch.arguments.index("--test-type") + 1] == "negative"

    def number(batch: Batch) -> int:
        # Absolute paths name files of the suite, and depend on where it is installed.
        arguments = [text for text in batch.arguments if not Path(text).is_absolute()]
        return zlib.crc32(f"{seed} {arguments}".encode())

    positive = [batch for batch in batches if not is_negative(batch)]
    positive.sort(key=number)
    return positive[:most] + [batch for batch in batches if is_negative(batch)]


def _received(process: Any, connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"a process of the suite ended with {process.exitcode}") from None


def _list_and_run(report: Any, connection: Connection, batch: Batch, profile: Profile, root: str) -> None:
    with tempfile.TemporaryDirectory(dir=root) as folder:
        listed = _listed(batch, folder)
        report(tuple(str(test) for _, _, test in listed))
        wanted = set(connection.recv())
        report(
            [
                _make_and_run(generator, make, test, batch.operator, profile, None)
                for generator, make, test in listed
                if str(test) in wanted
            ]
        )


def _run_test(folder: Path, operator: str, profile: Profile) -> Result:
    """Runs the suite's runner on one test: first the reference model in double precision, then tosaic."""
    options = run_tests.parseArgs([*profile.arguments, "--no-color", "--test", str(folder)])
    _find_tools(options)
    tasks: queue.Queue[Path] = queue.Queue()
    tasks.put(folder)
    answers: queue.Queue[Any] = queue.Queue()
    run_tests.workerThread(tasks, [(sut, [])], reference, options, answers)
    by_runner = {}
    while not answers.empty():
        module, _, outcome, message, duration = answers.get()
        by_runner[module] = outcome, message or "", duration.total_seconds()
    outcome, message, seconds = by_runner[sut.__name__]
    name = outcome.name
    if reference.__name__ in by_runner:
        other, why, _ = by_runner[reference.__name__]
        if other != TosaTestRunner.Result.EXPECTED_PASS:
            name, message = "REFERENCE_FAILURE", f"{other.name}: {why}"
    elif outcome == TosaTestRunner.Result.EXPECTED_PASS:
        name, message = "REFERENCE_FAILURE", "the test has no criteria: nothing was compared"
    return Result(folder.name, operator, name, message, round(seconds, 3))


def _find_tools(options: Any) -> None:
    tools = run_tests.cmf
    types = tools.TosaFileType
    options.ref_model_path = tools.find_tosa_file(types.REF_MODEL, None, False)
    options.generate_lib_path = tools.find_tosa_file(types.GENERATE_LIBRARY, options.ref_model_path)
    options.verify_path = tools.find_tosa_file(types.VERIFY, options.ref_model_path)
    options.flatc_path = tools.find_tosa_file(types.FLATC, options.ref_model_path)
    options.schema_path = tools.find_tosa_file(types.SCHEMA, options.ref_model_path)


# ---- processes ----


def _in_processes(work: Any, tasks: list[tuple[Any, ...]], jobs: int) -> Iterator[Any]:
    """Calls ``work(report, *task)`` for each task in a forked process; yields what they report.

    Raises
    ------
    RuntimeError
        A process ended without success.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(reversed(tasks))
    running: dict[Connection, Any] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            receiver, sender = context.Pipe(duplex=False)
            task = waiting.pop()
            process = context.Process(target=_in_child, args=(work, sender, task), daemon=True)
            process.start()
            sender.close()
            running[receiver] = process
        for receiver in wait(list(running)):
            assert isinstance(receiver, Connection)
            try:
                yield receiver.recv()
            except EOFError:
                process = running.pop(receiver)
                process.join()
                receiver.close()
                if process.exitcode != 0:
                    raise RuntimeError(f"a process of the suite ended with {process.exitcode}") from None


def _in_child(work: Any, sender: Connection, task: tuple[Any, ...]) -> None:
    with _silence():
        work(sender.send, *task)
    sender.close()
