"""The numerical checks of an export: the outputs of each step against the outputs of the step before it.

Checks compare outputs, which takes as long as a run. `StageCheck.compare` compares the nodes inside a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic.base.dtypes import is_float
from tosaic.base.options import invalid
from tosaic.program.comparison import Comparison
from tosaic.program.sample_forms import arrays_for, logical_arrays

if TYPE_CHECKING:
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.ports.ports import Port
    from tosaic.program.prepared import Prepared
    from tosaic.program.program import Program
    from tosaic.program.samples import Sample

_Array = np.ndarray[Any, Any]
Runs = Sequence[Sequence[_Array]]
"""Arrays by sample and output."""


@dataclass(frozen=True)
class StageCheck:
    """A numerical check of an export.

    Attributes
    ----------
    name : str
        ``import``, ``model``, ``states``, ``quantize``, ``trained``, ``lower``, ``stream``, ``accuracy``,
        ``reference``, ``vgf`` or ``group0`` ...
    what : str
        What was compared with what.
    ok : bool
    db : float
        The least signal to noise ratio of an output in dB; inf if all outputs are equal, NaN if only one side
        has infinities or NaN.
    differing : int
        Elements of outputs that are not equal.
    elements : int
        Elements of outputs that were compared.
    """

    name: str
    what: str
    ok: bool
    db: float
    differing: int
    elements: int
    by_node: Callable[[], Comparison] | None = field(default=None, repr=False, compare=False)

    def compare(self) -> Comparison:
        """Compares the two sides node by node, which takes longer than the check.

        Raises
        ------
        InvalidGraph
            The two sides are one program on two machines, or one is a module before a stage changed it: then
            their nodes cannot be compared.
        """
        if self.by_node is None:
            raise invalid(
                "compare",
                f"check '{self.name}' has no comparison by node",
                expected="a check of two programs: import, quantize, lower or accuracy",
            )
        return self.by_node()


def check(name: str, what: str, expected: Runs, found: Runs, *, least_db: float | None = None) -> StageCheck:
    """Compares outputs.

    Parameters
    ----------
    name, what : str
    expected, found : sequence of sequence of array
        By sample and output, in the same form.
    least_db : float, optional
        The least ratio of an output. inf: all elements have to be equal. None: every finite error passes.
    """
    pairs = [(a, b) for one, two in zip(expected, found, strict=True) for a, b in zip(one, two, strict=True)]
    ratios = [ratio_db(a, b) for a, b in pairs]
    lowest = math.nan if any(map(math.isnan, ratios)) else min(ratios, default=math.inf)
    is_right = not math.isnan(lowest) and (least_db is None or lowest >= least_db)
    differing = sum(_differing(a, b) for a, b in pairs)
    return StageCheck(name, what, is_right, lowest, differing, sum(a.size for a, _ in pairs))


def group_checks(lowered: SplitLowered, samples: Sequence[Any]) -> Iterator[StageCheck]:
    """Compares each lowered group with its nodes before lowering, node by node."""
    for name, found in lowered.compare_groups(list(samples)).items():
        rows = found.outputs
        yield StageCheck(
            name,
            "the nodes of the lowered group against those before lowering",
            found.ok,
            min((row.metrics.sqnr_db for row in rows), default=math.inf),
            sum(row.metrics.mismatches for row in rows),
            sum(row.metrics.count for row in rows),
            by_node=lambda found=found: found,  # type: ignore[misc]
        )


def program_runs(
    program: Program, samples: Sequence[Sample], *, in_a_row: bool = False
) -> list[list[_Array]]:
    """Runs a program on samples; returns the user's outputs.

    Each sample runs from the initial states, or, with `in_a_row`, from those that the previous one wrote.
    """
    found: list[list[_Array]] = []
    program.reset_state()
    for sample in samples:
        if not in_a_row:
            program.reset_state()
        result, _ = program.run_functional(*sample.args, **sample.kwargs)
        found.append([np.asarray(each) for each in program.flat_outputs(result).values()])
    program.reset_state()
    return found


def raw_runs(
    lowered: SplitLowered, samples: Sequence[Sample], *, on: Prepared | None = None, in_a_row: bool = False
) -> list[list[_Array]]:
    """Runs a lowered program on samples of its source; returns its outputs in the caller's form.

    Parameters
    ----------
    lowered : SplitLowered
    samples : sequence of Sample
    on : Prepared, optional
        The result of `lowered.prepare`, to run there.
    in_a_row : bool
        Each sample runs from the states that the previous sample wrote.
    """
    source = lowered.source
    session = lowered.session if on is None else on.session
    found: list[list[_Array]] = []
    session.reset_state()
    for sample in samples:
        if not in_a_row:
            session.reset_state()
        arrays = arrays_for(lowered.host, logical_arrays(sample, source, source))
        result = lowered.nested([np.array(each) for each in session.run(arrays)])
        found.append(list(lowered.flat_outputs(result).values()))
    session.reset_state()
    return found


def lowered_runs(lowered: SplitLowered, runs: Runs, like: Runs) -> list[list[_Array]]:
    """Returns outputs of `raw_runs` in the form of the runs `like`: floats, logical axes, same channels."""
    paths = [leaf.path for leaf in lowered.signature.output_leaves if leaf.index is not None]
    ports = {port.path: port for port in lowered.outputs}
    return [
        [_as(array, other, ports.get(path)) for path, array, other in zip(paths, arrays, others, strict=True)]
        for arrays, others in zip(runs, like, strict=True)
    ]


def _as(array: _Array, other: _Array, port: Port | None) -> _Array:
    if port is None:
        return array
    if port.physical:
        array = array.transpose(np.argsort(port.dim_order))
    if port.qparams is not None and not is_float(port.dtype) and other.dtype.kind == "f":
        array = port.qparams.dequantize(array)
    if array.shape != other.shape and array.ndim == other.ndim:
        array = array[tuple(slice(extent) for extent in other.shape)]  # a fourth channel
    return array


def ratio_db(a: _Array, b: _Array) -> float:
    """Returns the signal to noise ratio of `b` against `a` in dB; NaN if only one has NaN or infinities."""
    if a.shape != b.shape:
        return math.nan
    one, two = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(two)):
        return math.nan
    noise = float(np.sum((two[finite] - one[finite]) ** 2))
    if noise == 0:
        return math.inf
    signal = float(np.sum(one[finite] ** 2))
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _differing(a: _Array, b: _Array) -> int:
    if a.shape != b.shape:
        return int(a.size)
    both_nan = np.isnan(a) & np.isnan(b) if a.dtype.kind == b.dtype.kind == "f" else np.zeros(a.shape, bool)
    return int(np.count_nonzero((a != b) & ~both_nan))
