"""The profile of runs of a program as data: `Profile`, and shares of steps with something in common."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tosaic.base.options import checked, is_one_of, refusal
from tosaic.base.reportable import Reportable
from tosaic.base.visible import one_line
from tosaic.base.writing import write_text
from tosaic.profiling.peak import MachinePeak
from tosaic.profiling.steps import NodeOrigin, ProfiledStep, rate

_TRACE_SUFFIX = "trace.json"


@dataclass(frozen=True)
class ProfileRun:
    """The times of one run, which add up: ``seconds == steps + arguments + inputs + outputs``.

    Attributes
    ----------
    seconds : float
        The time of the run, from the arguments of the call to its result.
    steps : float
        Time in steps.
    arguments : float
        Time in Python: converting the arguments to arrays, and the arrays of outputs to the result.
    inputs : float
        Time to check inputs, to convert or copy those that cannot be read in place, and to allocate memory of
        outputs.
    outputs : float
        Time to convert or copy outputs that no step could write in place.
    begin : float
        Seconds since the start of the first run.
    events : numpy.ndarray
        int64 of shape [events, 3]: the position of a step in `Profile.steps`, and its begin and end in
        nanoseconds since the start of the run, in the order in which steps ended.
    """

    seconds: float
    steps: float
    arguments: float
    inputs: float
    outputs: float
    begin: float
    events: np.ndarray[Any, Any]

    @property
    def outside(self) -> float:
        """Time outside of steps."""
        return self.arguments + self.inputs + self.outputs


@dataclass(frozen=True)
class ProfileShare:
    """The costs in a run of all steps with a common property.

    Attributes
    ----------
    name : str
        The property that the steps have in common, such as the operator ``tosa.conv2d``.
    steps : int
    seconds : float
        The time of these steps, without the time of their inner steps.
    share : float
        Part of `Profile.seconds`, from 0 to 1.
    operations : int
        Operations; a multiply-add counts as two.
    bytes : int
        Bytes read and written.
    peak_share : float or None
        See `Profile.peak_share`.
    """

    name: str
    steps: int
    seconds: float
    share: float
    operations: int
    bytes: int
    peak_share: float | None

    @property
    def operations_per_second(self) -> float:
        """Operations per second."""
        return rate(self.operations, self.seconds)

    @property
    def bytes_per_second(self) -> float:
        """Bytes read and written per second."""
        return rate(self.bytes, self.seconds)


class SavedProfile(Reportable, ABC):
    """The base of profiles of runs and of lowerings: their numbers as data, and as files."""

    @abstractmethod
    def trace_events(self) -> dict[str, Any]:
        """Returns the profile in the trace-event format."""

    def as_dict(self) -> dict[str, Any]:
        """Returns all numbers as plain data, which `to_json` writes."""
        return dict(self.report().data)

    def to_json(self) -> str:
        """Returns all numbers as JSON."""
        return self.report().json

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the profile.

        Parameters
        ----------
        path : path
            A name that ends in ``trace.json`` gets the trace events, any other ``.json`` the numbers,
            ``.html`` the report as a page, and other names the report as text, with all steps.

        Raises
        ------
        WriteError
            The file cannot be written.
        """
        if Path(path).name.endswith(_TRACE_SUFFIX):
            write_text(path, json.dumps(self.trace_events(), allow_nan=False) + "\n")
        else:
            self.report().save(path)


class Profile(SavedProfile):
    """The times of runs of a program, by step. `Prepared.profile` makes it.

    In a terminal, it prints as a table of 80 columns; in a notebook, it is shown as HTML. The times shown are
    medians over all runs, step by step, so an interruption of a step in some runs does not count. They
    add up to `seconds`. The times of each run add up, too.

    Attributes
    ----------
    name : str
        The name of the graph.
    stage : str
        The stage of the graph.
    on : str
        The engine that computed the program: ``tosaic``, ``reference`` or ``vgf``.
    threads : int
        The greatest number of threads of a run.
    warmup : int
        The number of runs before the recorded ones, whose times are not recorded.
    steps : tuple of ProfiledStep
        In the order in which they run; an outer step comes before its inner steps.
    runs : tuple of ProfileRun
        In the order in which they ran.
    peak : MachinePeak
        The peak to which shares of peak refer.
    result : object
        What `Prepared.run` returns for the same arguments.
    """

    def __init__(
        self,
        *,
        name: str,
        stage: str,
        on: str,
        threads: int,
        warmup: int,
        steps: tuple[ProfiledStep, ...],
        runs: tuple[ProfileRun, ...],
        peak: MachinePeak,
        result: Any,
    ) -> None:
        self.name, self.stage, self.on, self.threads = name, stage, on, threads
        self.warmup, self.steps, self.runs, self.peak, self.result = warmup, steps, runs, peak, result

    @property
    def seconds(self) -> float:
        """The time of a run as the sum of its parts: own times of steps, and `outside`. All are medians."""
        return sum(step.own_seconds for step in self.steps) + sum(self.outside.values())

    @cached_property
    def outside(self) -> Mapping[str, float]:
        """Time outside of steps: medians of ``arguments``, ``inputs`` and ``outputs`` (see `ProfileRun`)."""
        return {
            name: median(getattr(run, name) for run in self.runs)
            for name in ("arguments", "inputs", "outputs")
        }

    @property
    def median_seconds(self) -> float:
        """The median of the times of whole runs, greater than `seconds` if single steps took longer."""
        return median(run.seconds for run in self.runs)

    @property
    def least_seconds(self) -> float:
        """The time of the shortest run."""
        return min(run.seconds for run in self.runs)

    @property
    def operations(self) -> int:
        """Operations of a run: a multiply-add counts as two."""
        return sum(step.operations for step in self.steps)

    def peak_share(self, step: ProfiledStep) -> float | None:
        """Returns the share of the machine's peak that a step reaches.

        Parameters
        ----------
        step : ProfiledStep

        Returns
        -------
        float or None
            For a step with multiply-adds, the share of the peak for its `factors`; None if the peak of this
            dtype was not measured. For other steps with operands or results, the share of the memory
            bandwidth, which may be greater than 1, since bytes in a cache are faster. None for a step that no
            kernel of tosaic computes, and if the time is 0.

        Raises
        ------
        InvalidGraph
            `step` is not a step.
        """
        if not isinstance(step, ProfiledStep):
            raise refusal("peak_share", "step", "a step of the profile", step)
        return _share_of_peak([step], self.peak)

    def by(self, what: str) -> tuple[ProfileShare, ...]:
        """Adds up the steps with a common property.

        Parameters
        ----------
        what : {"operator", "operators", "module", "source", "torch_operator", "kernel"}
            A fused step counts for the operator and origin of its first node. ``"operators"`` are the
            operators of all its nodes, such as ``tosa.conv2d + tosa.rescale``.

        Returns
        -------
        tuple of ProfileShare
            The longest time first. Steps and time outside of steps add up to the time of the run.

        Raises
        ------
        InvalidGraph
            `what` is something else.
        """
        if not is_one_of(what, tuple(_KEYS)):
            raise refusal("by", "what", "one of " + ", ".join(map(repr, _KEYS)), what)
        found: dict[str, list[ProfiledStep]] = {}
        for step in self.steps:
            if step.calls:
                found.setdefault(_KEYS[what](step), []).append(step)
        shares = [
            ProfileShare(
                name=name,
                steps=len(steps),
                seconds=(seconds := sum(step.own_seconds for step in steps)),
                share=rate(seconds, self.seconds),
                operations=sum(step.operations for step in steps),
                bytes=sum(step.bytes_read + step.bytes_written for step in steps),
                peak_share=_share_of_peak(steps, self.peak),
            )
            for name, steps in found.items()
        ]
        return tuple(sorted(shares, key=lambda share: -share.seconds))

    def trace_events(self) -> dict[str, Any]:
        """Returns the runs in the trace-event format, with steps inside of runs.

        Returns
        -------
        dict
            ``{"traceEvents": [...], "displayTimeUnit": "ms"}``, as JSON a file for ``chrome://tracing`` or
            https://ui.perfetto.dev.
        """
        from tosaic.profiling.trace import events_of_profile

        return events_of_profile(self)

    def __repr__(self) -> str:
        count = len(self.steps)
        return (
            f"<tosaic.profiling.Profile of {one_line(self.name)}: {self.seconds * 1e3:.3f} ms, {count} steps>"
        )


def _share_of_peak(steps: list[ProfiledStep], peak: MachinePeak) -> float | None:
    """Returns the time that the steps would take at peak, divided by their time.

    Steps with multiply-adds count by these, and other steps by their bytes. If some steps have multiply-adds,
    steps without are left out.
    """
    kernels = [step for step in steps if step.isa]
    computing = [step for step in kernels if step.multiply_adds]
    if computing:
        speeds = [peak.multiply_adds.get(step.factors or "") for step in computing]
        if None in speeds:
            return None
        best = sum(step.multiply_adds / speed for step, speed in zip(computing, speeds, strict=True) if speed)
    else:
        computing = [step for step in kernels if step.bytes_read + step.bytes_written]
        best = sum(step.bytes_read + step.bytes_written for step in computing) / peak.bandwidth
    seconds = sum(step.own_seconds for step in computing)
    return best / seconds if seconds > 0 else None


def _origin(step: ProfiledStep) -> NodeOrigin:
    return next(iter(step.origins), NodeOrigin("", "", ""))


_KEYS: Mapping[str, Callable[[ProfiledStep], str]] = {
    "operator": lambda step: step.op,
    "operators": lambda step: " + ".join(node.op for node in step.nodes),
    "module": lambda step: _origin(step).module_path,
    "source": lambda step: _origin(step).source,
    "torch_operator": lambda step: _origin(step).torch_operator,
    "kernel": lambda step: ".".join(filter(None, (step.kernel, step.isa))),
}
