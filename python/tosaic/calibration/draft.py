"""Drafts of a quantization: plan, qparams and changed weights of a graph, and their accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.annotation.config import QConfig
from tosaic.annotation.plan import Plan
from tosaic.annotation.resolution import NarrowOperand
from tosaic.annotation.specs import Edge, Slot
from tosaic.base.dtypes import is_float_array
from tosaic.base.quantization import QParams
from tosaic.calibration.calibrate import calibrate
from tosaic.calibration.choose import chosen_qparams, infinite_masks
from tosaic.calibration.insert import with_quantization
from tosaic.calibration.narrow import joined_values, narrow_by_histograms, narrow_by_ranges
from tosaic.calibration.observations import observations
from tosaic.calibration.plan_program import PlannedProgram, plan_program
from tosaic.calibration.relevant import relevant_bounds, unobserved_values
from tosaic.calibration.table import job_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tosaic.program.program import Program

_MEASURED_ON = 8


@dataclass(frozen=True)
class Draft:
    """A planned graph with qparams.

    Attributes
    ----------
    planned : PlannedProgram
    qparams : dict of Slot to QParams
    statistics : tuple
        Statistics of the samples, from which the qparams follow.
    elements : dict of Edge to Constant
        Changed weights, by the edge on which a call reads them.
    narrow : tuple of NarrowOperand
        Operands of joins, and numbers next to much larger ones, that use few of the integers of a result.
    bounds : dict of int to (float, float)
        By sharing group: its limited range, if samples have numbers far beyond those that matter.
    """

    planned: PlannedProgram
    qparams: Mapping[Slot, QParams]
    statistics: tuple[Any, ...] = ()
    elements: Mapping[Edge, _core.Constant] = field(default_factory=dict)
    narrow: tuple[NarrowOperand, ...] = ()
    bounds: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def graph(self) -> _core.Graph:
        """Returns the graph with quantize and dequantize nodes."""
        infinite = infinite_masks(self.planned, self.qparams, self.statistics)
        return with_quantization(self.planned, self.qparams, self.elements, infinite, self.bounds)


class Drafting:
    """Makes drafts of graphs of one program, over the same samples, and measures them.

    Parameters
    ----------
    source : Program
    config : QConfig
    rules : sequence of callable
    samples : iterable of list of array
        Arrays for the inputs of the graph. For more than one draft or measurement, it must be a list.
    executor : concurrent.futures.Executor, optional
    """

    def __init__(
        self,
        source: Program,
        config: QConfig,
        rules: Sequence[Callable[[Plan], Plan | None]],
        samples: Iterable[list[Any]],
        executor: Executor | None,
    ) -> None:
        self._source = source
        self._config = config
        self._rules = rules
        self._samples = samples
        self._executor = executor
        self._wanted: list[list[Any]] | None = None

    def plan(self, graph: _core.Graph) -> PlannedProgram:
        """Plans a graph."""
        return plan_program(graph, self._config, module_types=self._source.module_types, rules=self._rules)

    def draft(self, graph: _core.Graph) -> Draft:
        """Plans a graph, runs the samples, and chooses qparams."""
        planned = self.plan(graph)
        observed = observations(planned)
        names = {name for each in joined_values(graph).values() for name in each}
        names |= set(unobserved_values(planned, observed))
        others = tuple((name, len(observed.kinds) + at) for at, name in enumerate(sorted(names)))
        kinds = (*observed.kinds, *((("range",),) * len(others)))
        statistics = self.observe(graph, (*observed.watches, *others), kinds, rounded=observed.watches)
        ranges = {name: statistics[at] for name, at in others}
        bounds = relevant_bounds(planned, observed, statistics, ranges)
        qparams = chosen_qparams(planned, observed, statistics, bounds=bounds)
        narrow = narrow_by_ranges(planned, qparams, ranges)
        narrow += narrow_by_histograms(planned, qparams, observed.statistics_of, statistics)
        return Draft(planned, qparams, tuple(statistics), narrow=narrow, bounds=bounds)

    def redrafted(self, draft: Draft, graph: _core.Graph) -> Draft:
        """Returns the draft of a graph that differs from the graph of `draft` only in biases.

        The statistics of the samples stay.
        """
        planned = self.plan(graph)
        held = {slot: found for slot, found in draft.qparams.items() if slot in draft.elements}
        observed = observations(planned)
        qparams = chosen_qparams(planned, observed, draft.statistics, held=held, bounds=draft.bounds)
        return Draft(planned, qparams, draft.statistics, draft.elements, draft.narrow, draft.bounds)

    def observe(
        self,
        graph: _core.Graph,
        watches: Sequence[tuple[str, int]],
        kinds: Sequence[tuple[Any, ...]],
        *,
        rounded: Sequence[tuple[str, int]] | None = None,
    ) -> list[Any]:
        """Runs the samples through a graph and returns the statistics.

        Infinities and NaN are refused in the values of `rounded`, by default all of `watches`.
        """
        finite = {name for name, _ in (watches if rounded is None else rounded)}
        job = job_of(self._source, graph, tuple(watches), tuple(kinds))
        job = replace(job, infinite=frozenset(name for name, _ in watches) - finite)
        found = calibrate(job, self._samples, self._executor)
        return [found[at] for at in range(len(found))]

    def sqnr_db(self, draft: Draft, reference: _core.Graph) -> float:
        """Returns the SQNR of the draft against a graph of floats, on the first samples."""
        samples = list(islice(self._samples, _MEASURED_ON))
        if self._wanted is None:
            session = self._source.overrides.session(reference)
            self._wanted = [float_outputs(session, arrays) for arrays in samples]
        session = self._source.overrides.session(draft.graph())
        return decibels(relative_noise([float_outputs(session, arrays) for arrays in samples], self._wanted))


def float_outputs(session: Any, arrays: Sequence[Any]) -> list[Any]:
    """Runs a graph from its initial state, and returns the outputs of floats as float64."""
    session.reset_state()
    outputs = [np.asarray(each) for each in session.run(list(arrays))]
    floats = [each for each in outputs if is_float_array(each)]
    return [each.astype(np.float64) for each in floats]


def relative_noise(found: Sequence[Sequence[Any]], wanted: Sequence[Sequence[Any]]) -> float:
    """Returns the power of errors over the power of outputs: by output over all samples, then the mean."""
    errors: dict[int, float] = {}
    powers: dict[int, float] = {}
    for outputs, right in zip(found, wanted, strict=True):
        for at, (output, exact) in enumerate(zip(outputs, right, strict=True)):
            errors[at] = errors.get(at, 0.0) + float(np.square(output - exact).sum())
            powers[at] = powers.get(at, 0.0) + float(np.square(exact).sum())
    ratios = [errors[at] / powers[at] for at in powers if powers[at] > 0]
    return sum(ratios) / len(ratios) if ratios else 0.0


def decibels(noise: float) -> float:
    """Returns a ratio of powers, noise over signal, as an SQNR in dB."""
    return math.inf if noise <= 0 else -10 * math.log10(noise)
