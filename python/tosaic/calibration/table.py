"""Histograms of every float tensor of a graph, from which any plan of the graph gets its qparams."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.dtypes import is_float
from tosaic.base.options import unsupported
from tosaic.calibration.calibrate import calibrate
from tosaic.calibration.observations import Observations
from tosaic.calibration.plan_program import PlannedProgram
from tosaic.calibration.worker import Job
from tosaic.program.overrides import all_nodes

if TYPE_CHECKING:
    from tosaic.program.program import Program


@dataclass(frozen=True)
class Table:
    """The samples of each tensor.

    Attributes
    ----------
    histograms : dict of str to Histogram
        By name of the value.
    masks : dict of str to ObservedMask
        Statistics of the inputs, which may be masks.
    """

    histograms: dict[str, Any]
    masks: dict[str, Any]

    def statistics(self, planned: PlannedProgram, observed: Observations) -> list[Any]:
        """Returns the statistics for a plan of the same graph: tensors of a sharing group are merged.

        Raises
        ------
        UnsupportedOp
            The plan has moving averages, which depend on the order of samples.
        """
        is_mask = [kind[0] == "mask_range" for kind in observed.kinds]
        merged: list[Any] = [_core.ObservedMask() if mask else _core.Histogram() for mask in is_mask]
        for name, at in observed.watches:
            merged[at].merge(self.masks[name] if is_mask[at] else self._histogram(planned, name))
        return [
            each.range if self._wants_range(observed.kinds[at]) else each for at, each in enumerate(merged)
        ]

    def _histogram(self, planned: PlannedProgram, name: str) -> Any:
        known = self.histograms.get(name)
        if known is None:  # a constant, in a group with tensors
            constant = planned.graph.value(name).constant
            assert constant is not None
            known = self.histograms[name] = _core.Histogram()
            known.observe(constant.array)
        return known

    @staticmethod
    def _wants_range(kind: tuple[Any, ...]) -> bool:
        if kind[0] == "moving_range":
            raise unsupported(
                "quantize",
                "moving averages depend on the order of samples: a table of samples has none",
                expected="another observer",
                got="MovingAverage",
            )
        return bool(kind[0] == "range")


def calibration_table(
    source: Program,
    graph: _core.Graph,
    samples: Iterable[Any],
    executor: Executor | None = None,
    rounded: Collection[str] = (),
) -> Table:
    """Runs samples and counts the elements of every tensor of floats.

    Infinities and NaN are refused in the values `rounded`, and left out elsewhere: in masks, for example.
    """
    names = [value.name for value in graph.values if value.kind != "constant" and is_float(value.dtype)]
    masks = [value.name for value in graph.values if value.kind == "input" and is_float(value.dtype)]
    watches = tuple((name, at) for at, name in enumerate((*names, *masks)))
    kinds: tuple[tuple[Any, ...], ...] = (("histogram",),) * len(names) + (("mask_range",),) * len(masks)
    job = job_of(source, graph, watches, kinds)
    job = replace(job, infinite=frozenset(names) - set(rounded))
    statistics = calibrate(job, samples, executor)
    each = [statistics[at] for at in range(len(kinds))]
    return Table(
        dict(zip(names, each[: len(names)], strict=True)), dict(zip(masks, each[len(names) :], strict=True))
    )


def job_of(
    source: Program,
    graph: _core.Graph,
    watches: tuple[tuple[str, int], ...],
    kinds: tuple[tuple[Any, ...], ...],
) -> Job:
    """Returns a job for workers: the graph, with the functions that the program runs instead of operators."""
    nodes = {node.name for node in all_nodes(graph)}
    functions = source.overrides.functions_for(graph)
    return Job(
        graph,
        watches,
        kinds,
        {name: function for name, function in functions.items() if name in nodes},
        {name: function for name, function in functions.items() if name not in nodes},
    )
