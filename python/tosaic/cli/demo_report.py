"""The report of ``tosaic demo``, which fits one screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tosaic.report.document import Report
from tosaic.report.numbers import decibels, memory, time
from tosaic.report.parts import Section, table
from tosaic.report.program import describe_lowered
from tosaic.report.quantized import describe_quantized

if TYPE_CHECKING:
    from tosaic.cli.demo import DemoResult, Run

_TITLE = "held-out pictures; agreement with torch's answers, SQNR against float64"


def describe_demo(result: DemoResult) -> Report:
    """Makes a report of the accuracy, size and time of each engine, the checks, and the lowered programs."""
    parts = {
        "float32": describe_lowered(result.lowered),
        "int8": describe_lowered(result.lowered_int8),
        "quantization": describe_quantized(result.quantized, seconds=result.seconds["quantization"]),
    }
    checks = [(check.what, "ok" if check.ok else "FAILED", check.detail) for check in result.checks]
    failed = [i for i, check in enumerate(result.checks) if not check.ok]
    columns = ("digits", "accuracy", "agreement", "SQNR dB", "ms/picture", "file")
    rows = [_row(run, result.images) for run in result.runs]
    return Report(
        title="handwritten digits, from torch.export to TOSA, as floats and as int8",
        ok=result.ok,
        facts=(
            ("network", f"conv-bn-relu-pool twice, linear; {result.parameters:,} parameters"),
            ("pictures", f"{result.images:,} held out, {result.calibration_images:,} for calibration"),
            *((name, _lowered_fact(parts[name])) for name in ("float32", "int8")),
            ("time", ", ".join(f"{name} {time(seconds)}" for name, seconds in result.seconds.items())),
        ),
        sections=(
            Section(_TITLE, table(columns, rows)),
            Section("checks", table(("check", "", ""), checks, failed)),
            *_folded(parts),
        ),
        data={
            "ok": result.ok,
            "images": result.images,
            "calibration_images": result.calibration_images,
            "parameters": result.parameters,
            "runs": list(result.runs),
            "checks": list(result.checks),
            "seconds": result.seconds,
            "lowered": parts["float32"].data,
            "lowered_int8": parts["int8"].data,
            "quantization": parts["quantization"].data,
        },
    )


def _row(run: Run, images: int) -> tuple[str, ...]:
    return (
        run.engine,
        f"{run.accuracy:.1%}",
        f"{run.agreement:.1%}",
        decibels(run.error.sqnr_db),
        f"{1e3 * run.seconds / images:.4f}",
        "-" if run.file_bytes is None else memory(run.file_bytes),
    )


def _lowered_fact(lowered: Report) -> str:
    data = lowered.data
    sizes = {
        "file": data["file_bytes"],
        "arena": data["memory"]["arena_bytes"],
        "transposes": data["transposed_bytes"],
    }
    return f"{data['target']}: " + ", ".join(f"{name} {memory(size)}" for name, size in sizes.items())


def _folded(parts: dict[str, Report]) -> Iterator[Section]:
    """Yields the sections of the parts, each under the name of its part."""
    for name, part in parts.items():
        for section in part.sections:
            yield replace(section, title=f"{name}: {section.title}", folded=True)
