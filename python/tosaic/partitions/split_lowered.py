"""A program of several parts, each lowered for its claimant: `SplitLowered`."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.defaults import THRESHOLD_DB
from tosaic.lowered import Lowered
from tosaic.options import checked
from tosaic.overrides import Overrides
from tosaic.partitions.propose import propose
from tosaic.prepared import Preparable, Prepared
from tosaic.program import Program
from tosaic.writing import make_folder, write_text

if TYPE_CHECKING:
    import os

    from tosaic.comparison import Comparison
    from tosaic.partitions.claimant import Claimant
    from tosaic.partitions.plan import PartitionPlan
    from tosaic.ports import Port

__all__ = ["PartCall", "SplitLowered", "lower_split"]


class PartCall:
    """Runs a part on logical arrays, as the host passes them: the function behind a call of a group.

    Attributes
    ----------
    part : Lowered or Program
    on : str
        What computes the part, as in `Program.prepare`.
    """

    def __init__(self, part: Lowered | Program, on: str = "tosaic") -> None:
        self.part = part
        self.on = on

    @cached_property
    def _prepared(self) -> Prepared:
        return self.part.prepare(on=self.on)

    def __call__(self, *arrays: Any) -> Any:
        """Returns the results: one array, or a list of them. The arrays may have any strides."""
        given = [_in_order(array, port) for array, port in zip(arrays, self.part.inputs, strict=True)]
        results = self._prepared.run_arrays(given)
        return results[0] if len(results) == 1 else results

    def __getstate__(self) -> dict[str, Any]:
        return {"part": self.part, "on": self.on}


class _Recorder:
    """A function that remembers copies of its arguments."""

    def __init__(self, function: Callable[..., Any], entered: list[tuple[Any, ...]]) -> None:
        self._function = function
        self._entered = entered

    def __call__(self, *arrays: Any) -> Any:
        self._entered.append(tuple(np.array(array) for array in arrays))
        return self._function(*arrays)


def _in_order(array: Any, port: Port) -> Any:
    """Returns the array in the memory order that the port declares."""
    order = port.dim_order
    return np.ascontiguousarray(np.transpose(array, order)).transpose(np.argsort(order))


class SplitLowered(Preparable):
    """A program whose groups are lowered for their claimants; the host runs the rest, and calls the groups.

    `tosaic.lower` makes it with ``unsupported="split"``. The graph is that of the host, with a node
    ``group0``, ``group1`` ... for each group. A run computes the host's nodes and calls the groups, and its
    results are those of the program before it was split. `prepare` takes models of groups by these names.
    """

    def __init__(
        self,
        source: Program,
        plan: PartitionPlan,
        host: Program,
        parts: Sequence[Lowered | Program],
        *,
        borders: Mapping[str, Any],
        seconds: float,
    ) -> None:
        super().__init__(host.graph, host.signature)
        self._source = source
        self._plan = plan
        self._parts = tuple(parts)
        self._borders = dict(borders)
        self._seconds = seconds
        self._call("tosaic")

    def _call(self, on: str) -> None:
        functions: dict[str, Callable[..., Any]] = {
            group.name: PartCall(part, on if isinstance(part, Lowered) else "tosaic")
            for group, part in zip(self._plan.groups, self._parts, strict=True)
        }
        self._overrides = Overrides(functions, self._source._overrides.foreign)

    @property
    def source(self) -> Program:
        """The program that was lowered."""
        return self._source

    @property
    def partitions(self) -> PartitionPlan:
        """Which nodes are in which group, and why."""
        return self._plan

    @property
    def parts(self) -> tuple[Lowered | Program, ...]:
        """The groups by index: lowered ones, and programs for claimants that do not take TOSA."""
        return self._parts

    @property
    def host(self) -> Program:
        """The host's nodes as a program. It calls the groups when it runs."""
        program = Program(self._graph, self._signature)
        program._overrides = self._overrides
        return program

    @property
    def transposed_bytes(self) -> int:
        """Bytes that one run transposes: at the boundary of the program, between parts and inside them."""
        return int(self._borders["bytes"])

    @property
    def is_layout_minimal(self) -> bool:
        """True if no choice of dim orders over the whole program transposes less."""
        return bool(self._borders["cost"] == self._borders["bound"])

    @property
    def seconds(self) -> float:
        """Seconds that the lowering took."""
        return self._seconds

    @checked
    def prepare(
        self,
        *,
        models: Mapping[Any, Callable[..., Any]] | Callable[..., Any] | None = None,
        on: str = "tosaic",
        threads: int = 1,
        write_back: bool = False,
    ) -> Prepared:
        """Prepares the program to run in a chosen way, as `Program.prepare`.

        Parameters
        ----------
        models : mapping or callable, optional
            A key ``"group0"`` selects a group: its model gets the arrays that enter the group.
        on : {"tosaic", "reference"}
            What computes the groups. ``"reference"`` is the TOSA reference model; the host's nodes run on
            tosaic.
        threads, write_back
            As in `Program.prepare`.
        """
        chosen = self
        if on == "reference":
            chosen = copy.copy(self)
            vars(chosen).pop("session", None)
            chosen._call(on)
            on = "tosaic"
        return Preparable.prepare(chosen, models=models, on=on, threads=threads, write_back=write_back)

    @checked
    def compare_groups(self, samples: Any, *, threshold_db: float = THRESHOLD_DB) -> dict[str, Comparison]:
        """Compares each lowered group with its nodes before lowering, on what enters the group in a run.

        The comparison of whole programs, `tosaic.compare`, sees a group as one node. These comparisons look
        into the groups, node by node.

        Parameters
        ----------
        samples
            As in `tosaic.compare`.
        threshold_db : float
            As in `tosaic.compare`.

        Returns
        -------
        dict of str to Comparison
            By name of the group.
        """
        from tosaic.compare_programs import compare_programs
        from tosaic.samples import read_samples

        entered: dict[str, list[tuple[Any, ...]]] = {group.name: [] for group in self._plan.groups}
        recording = copy.copy(self)
        vars(recording).pop("session", None)
        functions: dict[str, Callable[..., Any]] = {
            name: _Recorder(function, entered[name]) for name, function in self._overrides.own.items()
        }
        recording._overrides = Overrides(functions, self._source._overrides.foreign)
        for sample in read_samples(samples, self._source):
            recording.run(*sample.args, **sample.kwargs)
        return {
            group.name: compare_programs(
                Program(part.source.graph),
                part,
                entered[group.name],
                threshold_db=threshold_db,
                local=True,
                bind=None,
            )
            for group, part in zip(self._plan.groups, self._parts, strict=True)
            if isinstance(part, Lowered)
        }

    @checked
    def save(self, path: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Writes a folder: a ``.tosa`` file with sidecar for each lowered group, the host, and a listing.

        Parameters
        ----------
        path : path
            The folder, which is made if it does not exist.

        Returns
        -------
        tuple of Path
            The files. The listing, ``partitions.json``, is written last, so a folder that has it is complete.

        Raises
        ------
        WriteError
            A file cannot be written.
        """
        folder = make_folder(path)
        listing = folder / "partitions.json"
        listing.unlink(missing_ok=True)
        files = []
        entries = []
        for group, part in zip(self._plan.groups, self._parts, strict=True):
            lowered = isinstance(part, Lowered)
            file = folder / f"{group.name}{'.tosa' if lowered else '.tosaic'}"
            if isinstance(part, Lowered):
                part.save(file, sidecar=True)
            else:
                part.save(file)
            files.append(file)
            entries.append(
                {
                    "file": file.name,
                    "claimant": group.claimant,
                    "target": part.target if isinstance(part, Lowered) else None,
                    "inputs": [_port_entry(port) for port in part.inputs],
                    "outputs": [_port_entry(port) for port in part.outputs],
                    "nodes": list(group.nodes),
                }
            )
        host = folder / "host.tosaic"
        Program(self._graph, self._signature).save(host)
        write_text(listing, json.dumps({"host": host.name, "groups": entries}, indent=1) + "\n")
        return (*files, host, listing)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{port.path or port.name}: {port.type_text}" for port in self.inputs)
        outputs = ", ".join(port.type_text for port in self.outputs)
        return f"<tosaic.SplitLowered: ({inputs}) -> {outputs}, {len(self._parts)} groups>"


def _port_entry(port: Port) -> dict[str, Any]:
    return {"name": port.name, "type": port.type_text, "dim_order": list(port.dim_order)}


def lower_split(
    source: Program,
    claimants: Sequence[Claimant],
    *,
    objective: Any = "bytes",
    verify: bool = True,
) -> SplitLowered:
    """Splits a program between claimants and lowers each group, as `tosaic.lower` documents it."""
    start = time.perf_counter()
    source.snapshot()
    graph = _core.before_integers(source.graph)
    proposal = propose(graph, claimants, gains=False)
    by_name = {each.name: each for each in claimants}
    targets = [by_name[group.claimant].target for group in proposal.plan.groups]

    def lowered(index: int, orders: tuple[Any, Any] = (None, None)) -> Any:
        declared = [None if side is None else [(tuple(o), False) for o in side] for side in orders]
        return _core.lower(
            proposal.parts[index],
            pipeline=targets[index],
            verify_each=verify,
            objective=objective,
            input_orders=declared[0],
            output_orders=declared[1],
        )

    first = [
        lowered(i).decomposed if target else part
        for i, (target, part) in enumerate(zip(targets, proposal.parts, strict=True))
    ]
    borders = _core.border_orders(proposal.host, first, objective=objective)
    parts: list[Lowered | Program] = []
    for i, (target, orders) in enumerate(zip(targets, borders["parts"], strict=True)):
        part = Program(proposal.parts[i])
        if not target:
            parts.append(part)
            continue
        begin = time.perf_counter()
        graphs = lowered(i, orders)
        parts.append(
            Lowered(graphs, part, target=target, seconds=time.perf_counter() - begin, objective=objective)
        )
    host = Program(proposal.host, source.signature)
    return SplitLowered(
        source, proposal.plan, host, parts, borders=borders, seconds=time.perf_counter() - start
    )
