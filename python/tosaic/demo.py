"""``tosaic demo``: one real network, from training to bytes that the TOSA reference model runs.

It needs the extra ``demo`` (torch, scikit-learn, tosa-tools). The same test pictures run through the network
five times: in torch in float64 (the reference for all errors), in torch in float32, on tosaic's executor as
imported, on tosaic's executor as lowered to TOSA, and on the TOSA reference model, which reads the bytes of
the file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.api import from_exported, lower
from tosaic.comparison import Metrics
from tosaic.options import checked
from tosaic.reference_model import run_reference_model
from tosaic.writing import make_folder

if TYPE_CHECKING:
    import os

    from tosaic.lowered import Lowered
    from tosaic.report import Report

__all__ = ["Check", "DemoResult", "Run", "run_demo"]

_LEAST_ACCURACY = 0.95


@dataclass(frozen=True)
class Run:
    """The network as run by one engine.

    Attributes
    ----------
    engine : str
    accuracy : float
        Share of the test pictures that are classified right.
    error : Metrics
        Error of the logits against torch in float64.
    seconds : float
        Time for all test pictures.
    """

    engine: str
    accuracy: float
    error: Metrics
    seconds: float


@dataclass(frozen=True)
class Check:
    """Something that must hold, and whether it did."""

    what: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured, and the files that it wrote.

    Attributes
    ----------
    lowered : Lowered
        The network lowered to TOSA.
    images, parameters : int
        Numbers of test pictures and of parameters of the network.
    runs : tuple of Run
    checks : tuple of Check
    seconds : dict of str to float
        Times of training, import and lowering.
    files : tuple of Path
    """

    lowered: Lowered
    images: int
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
        from tosaic.report.demo import describe_demo

        return describe_demo(self)


@checked
def run_demo(out: str | os.PathLike[str] = "tosaic-demo") -> DemoResult:
    """Trains, exports, lowers and checks a small network.

    Writes ``digits.tosa``, ``report.html`` and ``report.json`` to the folder `out`.

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
    folder = make_folder(out)
    files = (folder / "digits.tosa", folder / "report.html", folder / "report.json")
    lowered.save(files[0])

    def run(engine: str, logits: np.ndarray[Any, Any], seconds: float) -> Run:
        accuracy = float(np.mean(logits.argmax(1) == digits.labels))
        return Run(engine, accuracy, Metrics.of(_core.metrics(digits.exact_logits, logits)), seconds)

    results = {
        "torch, float32": _timed(lambda: _torch_logits(digits)),
        "tosaic, as exported": _timed_warm(lambda: program.run(digits.images)),
        "tosaic, as TOSA": _timed_warm(lambda: lowered.run(digits.images)),
    }
    reference, reference_seconds = _timed(lambda: run_reference_model(lowered, digits.images))
    if reference.outputs is not None:
        results["TOSA reference model"] = reference.outputs, reference_seconds
    runs = tuple(run(engine, *result) for engine, result in results.items())
    result = DemoResult(
        lowered=lowered,
        images=len(digits.images),
        parameters=digits.parameters,
        runs=runs,
        checks=_checks(runs, reference.status, {name: logits for name, (logits, _) in results.items()}),
        seconds={"training": training, "import": importing, "lowering": lowering},
        files=files,
    )
    report = result.report()
    for file in files[1:]:
        report.save(file)
    return result


def _train() -> Any:
    try:
        import sklearn  # noqa: F401

        from tosaic.fx.digits import train_digits
    except ImportError as error:
        raise ImportError(f"the demo needs {error.name}: pip install 'tosaic[demo]'") from error
    return train_digits()


def _torch_logits(digits: Any) -> np.ndarray[Any, Any]:
    from tosaic.fx.eager import run_eager

    return run_eager(digits.exported, [digits.images], trace=False).outputs[0]


def _timed(body: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = body()
    return result, time.perf_counter() - start


def _timed_warm(body: Any) -> tuple[Any, float]:
    """Returns the result and time of a second call; the first call prepares the session."""
    body()
    return _timed(body)


def _checks(runs: tuple[Run, ...], status: str, logits: dict[str, np.ndarray[Any, Any]]) -> tuple[Check, ...]:
    torch, *others = runs
    answers = {name: values.argmax(1) for name, values in logits.items()}
    allowed = {run.engine: 2 * torch.error.relative for run in others}
    lowered = runs[2]
    allowed["TOSA reference model"] = lowered.error.relative + torch.error.relative
    checks = [
        Check(
            f"accuracy at least {_LEAST_ACCURACY:.0%}",
            torch.accuracy >= _LEAST_ACCURACY,
            f"{torch.accuracy:.1%}",
        ),
        Check(
            "the same answer for each picture",
            all(np.array_equal(answer, answers[torch.engine]) for answer in answers.values()),
            f"{len(answers)} engines",
        ),
        Check("the reference model takes the bytes", status == "VALID", f"status {status}"),
    ]
    checks += [
        Check(
            f"{run.engine}: error within its bound",
            run.error.relative <= allowed[run.engine],
            f"{run.error.relative:.2g}, at most {allowed[run.engine]:.2g}",
        )
        for run in others
    ]
    return tuple(checks)
