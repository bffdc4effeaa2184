"""The verdicts of `compare` on a lowered program and its file, and on wrong programs and their files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tosaic
from tosaic import _core

from models.tampering import KINDS, tampered

__all__ = ["Verdicts", "verdicts"]

_TRIES = 12
_LEAST_EFFECT = 1e-4  # as a share of the largest magnitude of a float value


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on one program.

    Attributes
    ----------
    target : str
        The target for which the program was lowered.
    rows, judged : int
        The number of nodes that were matched, and the number of nodes whose local error is known.
    share : float
        The largest local error of a node, as a share of the allowed error.
    output_db : float
        The signal-to-noise ratio of the outputs, in dB.
    refused : dict of str to str
        Correct forms of the program that `compare` reports as wrong, with the first wrong node and its share.
    missed : dict of str to str
        Wrong programs that `compare` reports as correct.
    spoiled : dict of str to int
        By kind (`tampering.KINDS`): how many wrong programs were tried.
    """

    target: str
    rows: int = 0
    judged: int = 0
    share: float = 0.0
    output_db: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    spoiled: dict[str, int] = field(default_factory=dict)


def verdicts(
    reference: Any,
    lowered: tosaic.Lowered,
    samples: Sequence[Any],
    *,
    forms: dict[str, tosaic.Lowered] | None = None,
    wrong: int = 1,
) -> Verdicts:
    """Compares the reference with correct and with wrong programs.

    The correct ones are the lowered program, its file and its other `forms`. The wrong ones are `wrong`
    programs of each kind (fewer, if not enough tampered programs show an effect), and their files.
    """
    refused: dict[str, str] = {}
    missed: dict[str, str] = {}
    spoiled: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.tosa"
        lowered.save(file)
        found = tosaic.compare(reference, lowered, list(samples))
        for name, b in {"lowered": lowered, "file": file, **(forms or {})}.items():
            comparison = found if name == "lowered" else tosaic.compare(reference, b, list(samples))
            if not comparison.ok:
                refused[name] = _reason(comparison)
        for kind in KINDS:
            spoiled[kind] = 0
            for seed in range(_TRIES):
                other = tampered(lowered, kind, seed)
                if other is None or spoiled[kind] == wrong:
                    break
                if not shows(lowered, other, samples[0]):
                    continue
                spoiled[kind] += 1
                other.save(file)
                for name, b in (("lowered", other), ("file", file)):
                    if tosaic.compare(reference, b, [samples[0]]).ok:
                        missed[f"{kind} {seed}, {name}"] = "ok"
    shares = [row.local_share for row in found if row.local_share is not None]
    return Verdicts(
        lowered.target,
        len(found),
        len(shares),
        max(shares, default=0.0),
        found.output.sqnr_db,
        refused,
        missed,
        spoiled,
    )


def _reason(comparison: tosaic.Comparison) -> str:
    first = comparison.first_wrong
    return "an output" if first is None else f"{first.fx_name}: {first.local_share:.3g}"


def shows(right: tosaic.Lowered, wrong: tosaic.Lowered, sample: Any) -> bool:
    """True if the mistake in `wrong` changes some value of a run by more than rounding does.

    Some mistakes change nothing, e.g. a wrong weight that is only multiplied by padding. A transpose that
    swaps height and width changes no result if the program only averages over both afterwards: it moves
    elements of inner values, and the result does not depend on their positions. So this function sorts the
    elements of an inner value before it compares them, and compares elements of an output at their positions.
    """
    outputs = {port.value.name for port in right.graph.outputs}
    values = [
        _core.Session(program.graph).trace(right.arrays(*sample))["values"] for program in (right, wrong)
    ]
    for name, array in values[0].items():
        pair = (array, values[1][name])
        if name not in outputs:
            pair = (np.sort(pair[0], axis=None), np.sort(pair[1], axis=None))
        if _differ(*pair):
            return True
    return False


def _differ(right: Any, wrong: Any) -> bool:
    if right.dtype.kind != "f":
        narrow = right.dtype.itemsize == 1 and right.dtype.kind == "i"
        return bool(narrow and (np.abs(right.astype(np.int64) - wrong) > 1).any())
    off = np.abs(right.astype(np.float64) - wrong)
    off = off[np.isfinite(off)]
    size = np.abs(right[np.isfinite(right)]).max(initial=0)
    return bool(off.max(initial=0) > _LEAST_EFFECT * size)
