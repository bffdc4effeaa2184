"""The report of ``tosaic demo``, which fits one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.report.describe import describe_lowered, metrics_row
from tosaic.report.document import Report, Section, table
from tosaic.report.numbers import time

if TYPE_CHECKING:
    from tosaic.demo import DemoResult

__all__ = ["describe_demo"]


def describe_demo(result: DemoResult) -> Report:
    """Makes a report of the accuracy and error of each engine, the checks, and the lowered program."""
    lowered = describe_lowered(result.lowered)
    runs = [
        (run.engine, f"{run.accuracy:.1%}", *metrics_row(run.error), time(run.seconds)) for run in result.runs
    ]
    columns = ("engine", "accuracy", "SQNR dB", "cosine", "max abs", "relative", "max ulp", "p99 ulp", "time")
    checks = [(check.what, "ok" if check.ok else "FAILED", check.detail) for check in result.checks]
    failed = [i for i, check in enumerate(result.checks) if not check.ok]
    return Report(
        title="handwritten digits, from torch.export to TOSA",
        ok=result.ok,
        facts=(
            ("network", f"conv-bn-relu-pool twice, linear; {result.parameters:,} parameters"),
            ("test pictures", f"{result.images:,}"),
            *(fact for fact in lowered.facts if fact[0] != "lowered in"),
            ("time", ", ".join(f"{name} {time(seconds)}" for name, seconds in result.seconds.items())),
        ),
        sections=(
            Section("error of the logits against the same network in float64", table(columns, runs)),
            Section("checks", table(("check", "", ""), checks, failed)),
            *(Section(s.title, s.body, folded=True) for s in lowered.sections),
        ),
        data={
            "ok": result.ok,
            "images": result.images,
            "parameters": result.parameters,
            "runs": list(result.runs),
            "checks": list(result.checks),
            "seconds": result.seconds,
            "lowered": lowered.data,
        },
    )
