"""``tosaic demo``: one real network, from training to a file that the TOSA reference model runs.

It needs the extra ``demo`` (torch, scikit-learn, tosa-tools). The network is lowered as floats and, after
quantization, as 8-bit integers. It runs on the same test pictures in several forms. Torch runs it in float64
(the reference for all errors) and in float32. tosaic's executor and the TOSA reference model run the float
graph of TOSA. As integers, it runs in q/dq form, in integer arithmetic, and as TOSA on both. The reference
model reads the bytes of the files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tosaic import _core
from tosaic.api.calls import compare, from_exported, lower
from tosaic.base.options import checked
from tosaic.base.writing import make_folder
from tosaic.lowering.reference_model import ReferenceRun, run_reference_model
from tosaic.program.comparison import Metrics
from tosaic.quantizing.quantize_program import quantize

if TYPE_CHECKING:
    import os

    from tosaic.lowering.lowered import Lowered
    from tosaic.program.program import Program
    from tosaic.quantizing.quantized_program import QuantizedProgram
    from tosaic.report.document import Report

__all__ = ["Check", "DemoResult", "Run", "run_demo"]

_LEAST_ACCURACY = 0.95
_CALLS = 5
_MOST_LOSS = 0.005  # the most loss of accuracy by quantization
_TORCH = "torch, float32"
_FLOAT, _FLOAT_TOSA, _FLOAT_MODEL = "float32, as exported", "float32, as TOSA", "float32, reference model"
_QDQ, _INTEGER = "int8, q/dq", "int8, integer arithmetic"
_INT8_TOSA, _INT8_MODEL = "int8, as TOSA", "int8, reference model"

_ENGINES = (_TORCH, _FLOAT, _FLOAT_TOSA, _FLOAT_MODEL, _QDQ, _INTEGER, _INT8_TOSA, _INT8_MODEL)
_FILES = ("digits.tosa", "digits_int8.tosa", "report.html", "report.json")

_Logits: TypeAlias = np.ndarray[Any, Any]
_Timed: TypeAlias = tuple[_Logits, float]


@dataclass(frozen=True)
class Run:
    """The results of one engine that ran the network.

    Attributes
    ----------
    engine : str
    accuracy : float
        Share of the test pictures that are classified correctly.
    agreement : float
        Share of the test pictures that are classified as by torch in float32.
    error : Metrics
        Error of the logits against torch in float64.
    seconds : float
        Time for all test pictures.
    file_bytes : int, optional
        Size of the ``.tosa`` file. None: the engine runs another form of the network.
    """

    engine: str
    accuracy: float
    agreement: float
    error: Metrics
    seconds: float
    file_bytes: int | None = None


@dataclass(frozen=True)
class Check:
    """A condition that must hold, and whether it held."""

    what: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class DemoResult:
    """The measurements of the demo, and the files that it wrote.

    Attributes
    ----------
    lowered : Lowered
        The network lowered to TOSA as floats.
    quantized : QuantizedProgram
        The network quantized to int8.
    lowered_int8 : Lowered
        The quantized network lowered to TOSA.
    images, calibration_images, parameters : int
        Numbers of test pictures, of training pictures for calibration, and of parameters of the network.
    runs : tuple of Run
    checks : tuple of Check
    seconds : dict of str to float
        Times of training, import, quantization and lowering.
    files : tuple of Path
    """

    lowered: Lowered
    quantized: QuantizedProgram
    lowered_int8: Lowered
    images: int
    calibration_images: int
    parameters: int
    runs: tuple[Run, ...]
    checks: tuple[Check, ...]
    seconds: dict[str, float]
    files: tuple[Path, ...]

    @property
    def ok(self) -> bool:
        """True if every check held."""
        return all(check.ok for check in self.checks)

    def report(self) -> Report:
        """Makes a report of one screen."""
        from tosaic.cli.demo_report import describe_demo

        return describe_demo(self)


@checked
def run_demo(out: str | os.PathLike[str] = "tosaic-demo") -> DemoResult:
    """Trains, exports, quantizes, lowers and checks a small network.

    Writes ``digits.tosa``, ``digits_int8.tosa``, ``report.html`` and ``report.json`` to the folder `out`.

    Raises
    ------
    ImportError
        The extra ``demo`` is not installed.
    WriteError
        The folder or a file cannot be written.
    """
    digits, training = _timed(_train)
    program, importing = _timed(lambda: from_exported(digits.exported))
    lowered, lowering = _timed(lambda: lower(program))
    batch = len(digits.images)
    calibration = digits.training[: len(digits.training) // batch * batch]  # a stack of whole batches
    quantized, quantizing = _timed(lambda: quantize(program, calibration))
    lowered_int8, lowering_int8 = _timed(lambda: lower(quantized, target="TOSA-1.0+INT"))
    folder = make_folder(out)
    files = tuple(folder / name for name in _FILES)
    lowered.save(files[0])
    lowered_int8.save(files[1])
    results, references = _results(digits, program, lowered, quantized, lowered_int8)
    runs = _runs(digits, results, {_FLOAT_TOSA: files[0], _INT8_TOSA: files[1]})
    result = DemoResult(
        lowered=lowered,
        quantized=quantized,
        lowered_int8=lowered_int8,
        images=batch,
        calibration_images=len(calibration),
        parameters=digits.parameters,
        runs=runs,
        checks=(
            *_accuracy_checks({run.engine: run for run in runs}),
            *_error_checks({run.engine: run for run in runs}),
            *_integer_checks(results, references),
            _node_check(quantized, lowered_int8, digits.images),
        ),
        seconds={
            "training": training,
            "import": importing,
            "quantization": quantizing,
            "lowering": lowering + lowering_int8,
        },
        files=files,
    )
    report = result.report()
    for file in files[2:]:
        report.save(file)
    return result


def _train() -> Any:
    try:
        import sklearn  # noqa: F401

        from tosaic.fx.digits import train_digits
    except ImportError as error:
        raise ImportError(f"the demo needs {error.name}: pip install 'tosaic[demo]'") from error
    return train_digits()


def _timed(body: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = body()
    return result, time.perf_counter() - start


def _timed_warm(body: Any) -> tuple[Any, float]:
    """Returns the result and the least time of several calls; the first call prepares the session."""
    body()
    return min((_timed(body) for _ in range(_CALLS)), key=itemgetter(1))


# ---- runs ----


def _results(
    digits: Any, program: Program, lowered: Lowered, quantized: QuantizedProgram, lowered_int8: Lowered
) -> tuple[dict[str, _Timed], dict[str, ReferenceRun]]:
    """Returns the logits and the time of each engine, and the runs of the reference model."""
    engines: dict[str, Program | Lowered] = {
        _FLOAT: program,
        _FLOAT_TOSA: lowered,
        _QDQ: quantized,
        _INTEGER: lowered_int8.at("canonical"),
        _INT8_TOSA: lowered_int8,
    }
    results = {_TORCH: _timed_warm(digits.run)}
    for name, engine in engines.items():
        results[name] = _timed_warm(partial(engine.run, digits.images))
    references: dict[str, ReferenceRun] = {}
    for name, model in {_FLOAT_MODEL: lowered, _INT8_MODEL: lowered_int8}.items():
        references[name], seconds = _timed(partial(run_reference_model, model, digits.images))
        if references[name].outputs is not None:
            results[name] = references[name].outputs, seconds
    return results, references


def _runs(digits: Any, results: Mapping[str, _Timed], files: Mapping[str, Path]) -> tuple[Run, ...]:
    answers = results[_TORCH][0].argmax(1)
    return tuple(
        Run(
            name,
            float(np.mean(logits.argmax(1) == digits.labels)),
            float(np.mean(logits.argmax(1) == answers)),
            Metrics.of(_core.metrics(digits.exact_logits, logits)),
            seconds,
            files[name].stat().st_size if name in files else None,
        )
        for name, (logits, seconds) in ((name, results[name]) for name in _ENGINES if name in results)
    )


# ---- checks ----


def _accuracy_checks(runs: Mapping[str, Run]) -> Iterator[Check]:
    accuracy = runs[_TORCH].accuracy
    loss = accuracy - runs[_INT8_TOSA].accuracy
    yield Check(f"accuracy at least {_LEAST_ACCURACY:.0%}", accuracy >= _LEAST_ACCURACY, f"{accuracy:.1%}")
    yield Check(
        f"int8 loses at most {100 * _MOST_LOSS:.1f} points", loss <= _MOST_LOSS, f"{100 * loss:.1f} points"
    )
    floats = [runs[name] for name in (_FLOAT, _FLOAT_TOSA, _FLOAT_MODEL) if name in runs]
    yield Check(
        "float32: the same answer for each picture",
        all(run.agreement == 1 for run in floats),
        f"{len(floats) + 1} engines",
    )


def _error_checks(runs: Mapping[str, Run]) -> Iterator[Check]:
    """Compares the error of each float engine with that of torch or of tosaic's executor."""
    torch = runs[_TORCH].error.relative
    allowed = {
        _FLOAT: 2 * torch,
        _FLOAT_TOSA: 2 * torch,
        _FLOAT_MODEL: runs[_FLOAT_TOSA].error.relative + torch,
    }
    for name, most in allowed.items():
        if name not in runs:
            continue
        found = runs[name].error.relative
        yield Check(f"{name}: error in bound", found <= most, f"{found:.2g}, at most {most:.2g}")


def _integer_checks(results: Mapping[str, _Timed], references: Mapping[str, ReferenceRun]) -> Iterator[Check]:
    """Compares the integers of each stage with those of the TOSA graph, element by element."""
    statuses = [run.status for run in references.values()]
    yield Check(
        "the reference model takes the bytes", set(statuses) == {"VALID"}, f"status {', '.join(statuses)}"
    )
    ours = results[_INT8_TOSA][0]
    for name in (_INTEGER, _INT8_MODEL):
        if name in results:
            differing = int(np.count_nonzero(results[name][0] != ours))
            detail = f"{differing:,} of {ours.size:,} elements differ"
            yield Check(f"{name}: the same integers", differing == 0, detail)


def _node_check(quantized: QuantizedProgram, lowered: Lowered, images: _Logits) -> Check:
    """Checks that each node of the integer program is within its bound against the q/dq program."""
    comparison = compare(quantized, lowered, (images,))
    return Check("int8, as TOSA: each node in bound of q/dq", comparison.ok, f"{len(comparison.rows)} nodes")
