"""`SplitLowered`: a program of several parts, each lowered for its claimant."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.defaults import THRESHOLD_DB
from tosaic.base.file_kinds import PTE
from tosaic.base.options import checked
from tosaic.base.threads import batch_threads
from tosaic.base.verbs import Verb
from tosaic.base.visible import one_line
from tosaic.devices.engines import engine_named
from tosaic.devices.registry import core_claimant
from tosaic.lowering.lowered import Lowered
from tosaic.partitions.emitted import exceeded_limits, unfit_nodes
from tosaic.partitions.inner_models import ModelledNodes, reaching_inside
from tosaic.partitions.propose import propose
from tosaic.partitions.split_folder import save_folder
from tosaic.program.models import Models
from tosaic.program.overrides import Overrides
from tosaic.program.part_call import PartCall
from tosaic.program.prepared import Preparable, save_pte
from tosaic.program.program import Program

if TYPE_CHECKING:
    import os

    from tosaic.base.problems import Problem
    from tosaic.lowering.pipeline import Pipeline
    from tosaic.memory.schedule import Schedule
    from tosaic.partitions.claimant import Claimant
    from tosaic.partitions.emitted import Barred
    from tosaic.partitions.plan import Group, PartitionPlan
    from tosaic.partitions.propose import Proposal
    from tosaic.profiling.lowering import LoweringProfile
    from tosaic.program.comparison import Comparison


class _Recorder:
    """A function that stores copies of its arguments."""

    def __init__(self, function: Callable[..., Any], entered: list[tuple[Any, ...]]) -> None:
        self._function = function
        self._entered = entered

    def __call__(self, *arrays: Any) -> Any:
        self._entered.append(tuple(np.array(array) for array in arrays))
        return self._function(*arrays)


class SplitLowered(Preparable):
    """A program whose groups are lowered for their claimants; the host runs the rest, and calls the groups.

    `tosaic.lower` makes it with ``unsupported="split"``. The graph is the host's, with a node
    ``group0``, ``group1`` ... for each group. A run computes the host's nodes and calls the groups, and its
    results are the results of the program before it was split. `prepare` takes models of groups by these
    names: a model gets the arrays that enter the group. Other keys select nodes of the program, also inside
    of groups: these nodes move from their groups to the host, where models compute them, and the rest of the
    groups is lowered as before. With ``on="reference"``, the TOSA reference model computes the groups, and
    tosaic the nodes of the host. With ``on="vgf"``, groups of claimants that read TOSA run as VGF files on
    Vulkan, and tosaic computes the rest.
    """

    def __init__(
        self,
        source: Program,
        plan: PartitionPlan,
        host: Program,
        parts: Sequence[Lowered | Program],
        *,
        claimants: Sequence[Claimant],
        borders: Mapping[str, Any],
        seconds: float,
        split_for: Callable[[Sequence[Claimant]], SplitLowered],
    ) -> None:
        super().__init__(host.graph, host.signature)
        self._split_for = split_for
        self._without: dict[ModelledNodes, SplitLowered] = {}
        self._source = source
        self._plan = plan
        self._parts = tuple(parts)
        self._claimants = {each.name: each for each in claimants}
        self._borders = dict(borders)
        self._seconds = seconds
        self.overrides = Overrides(self._calls("tosaic"), source.overrides.foreign)

    def _calls(self, on: str) -> dict[str, Callable[..., Any]]:
        """Returns the function of each group, by name. Groups that `on` cannot run are run on tosaic."""
        reads_files = engine_named("prepare", on) is not None

        def runs(group: Group, part: Lowered | Program) -> bool:
            is_read = not reads_files or bool(self._claimants[group.claimant].target)
            return isinstance(part, Lowered) and is_read

        return {
            group.name: PartCall(group.name, part, on if runs(group, part) else "tosaic")
            for group, part in zip(self._plan.groups, self._parts, strict=True)
        }

    def _with_functions(self, functions: Mapping[str, Callable[..., Any]]) -> SplitLowered:
        """Returns the same program with other functions of its groups."""
        changed = copy.copy(self)
        vars(changed).pop("session", None)
        changed.overrides = Overrides(functions, self.overrides.foreign)
        return changed

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
        """The groups by index, lowered for their claimants. Groups of the claimant ``host`` are programs.

        A lowered group of Cortex-M or Neutron computes the integers of CMSIS-NN, as a Cortex-M does. The
        integers of a Neutron are not known. The device gets the ``source`` of the group, a program of
        tosaic's operators.
        """
        return self._parts

    @property
    def host(self) -> Program:
        """The host's nodes as a program. It calls the groups when it runs."""
        program = Program(self._graph, self._signature)
        program.overrides = self.overrides
        return program

    def as_program(self) -> Program:
        """Returns `host`."""
        return self.host

    @property
    def claimants(self) -> dict[str, Claimant]:
        """The claimants by name."""
        return dict(self._claimants)

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

    @property
    def profile(self) -> LoweringProfile:
        """Where the time of the lowering went: import, partition, and each pass of each group."""
        from tosaic.lowering.lowered_profile import import_of, steps_of
        from tosaic.profiling.lowering import LoweringProfile, LoweringStep

        inside: list[LoweringStep] = []
        for group, part in zip(self.partitions.groups, self.parts, strict=True):
            if isinstance(part, Lowered):
                inside += steps_of(part, group.name)
        outside = max(self.seconds - sum(step.seconds for step in inside), 0.0)
        steps = [*import_of(self.source), LoweringStep("partition", seconds=outside), *inside]
        return LoweringProfile(self.graph.name, ", ".join(self.claimants), tuple(steps))

    def _schedule(self, alignment: int) -> Schedule:
        """Returns the nodes of the host, with the calls of groups between them."""
        from tosaic.program.memory_schedule import schedule_of

        parts = {group.name: part for group, part in zip(self._plan.groups, self._parts, strict=True)}
        return schedule_of(self, parts, alignment=alignment)

    def reached_by(self, models: Any) -> tuple[SplitLowered, Any]:
        """Returns the program in which the models' nodes are on the host, and the models for that host.

        Claimed nodes that a key selects move to the host; see `prepare`. Without such keys, this program is
        returned.

        Raises
        ------
        InvalidGraph
            A key has several meanings; or it selects a group, and another key a node inside of it.
        """
        if not isinstance(models, Mapping):
            return self, models
        reached = self

        def split_without(nodes: ModelledNodes) -> PartitionPlan:
            nonlocal reached
            if nodes not in self._without:
                takers = [nodes.denied_to(each) for each in self._claimants.values()]
                self._without[nodes] = self._split_for(takers)
            reached = self._without[nodes]
            return reached.partitions

        found = reaching_inside(models, self._plan, split_without)
        return reached, found

    def _with_models(self, models: Any, on: str) -> tuple[SplitLowered, Models]:
        """Returns the program whose groups run on `on`, and the models of the host's nodes."""
        reached, found = self.reached_by(models)
        return reached if on == "tosaic" else reached._with_functions(reached._calls(on)), Models(found)

    def entering(self, samples: Any) -> dict[str, list[tuple[Any, ...]]]:
        """Returns the arrays that enter each group in runs of the program.

        Parameters
        ----------
        samples
            As in `tosaic.compare`: arguments of `source`.

        Returns
        -------
        dict of str to list of tuple of array
            By name of the group, an entry for each call. Groups in a branch that no sample takes have none.
        """
        from tosaic.program.sample_forms import arrays_for, logical_arrays
        from tosaic.program.samples import read_samples

        entered: dict[str, list[tuple[Any, ...]]] = {group.name: [] for group in self._plan.groups}
        recording = self._with_functions(
            {name: _Recorder(function, entered[name]) for name, function in self.overrides.own.items()}
        )
        for sample in read_samples(samples, self._source):
            recording.reset_state()
            logical = logical_arrays(sample, self._source, self._source)
            recording.session.run(arrays_for(self.host, logical))
        return entered

    @checked
    def compare_groups(self, samples: Any, *, threshold_db: float = THRESHOLD_DB) -> dict[str, Comparison]:
        """Compares each lowered group with its nodes before lowering, on the arrays that enter it in a run.

        The comparison of whole programs, `tosaic.compare`, sees a group as one node. These comparisons look
        into the groups, node by node.

        Parameters
        ----------
        samples
            As in `tosaic.compare`: arguments of `source`.
        threshold_db : float
            As in `tosaic.compare`.

        Returns
        -------
        dict of str to Comparison
            By name of the group. Groups in a branch that no sample takes are missing.
        """
        entered = self.entering(samples)
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
            if isinstance(part, Lowered) and entered[group.name]
        }

    @checked
    def save(self, path: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Writes a folder: the files of each group, the host, and a listing. Or a ``.pte`` file.

        A path that ends in ``.pte`` makes one file for ExecuTorch's runtime. Groups are its delegates, and
        kernels of ExecuTorch compute the nodes of the host. The payload of a delegate is the file format of
        its claimant: a ``.tosa`` file, a VGF file or Vela's stream. `tosaic.save_pte` has more options.

        A lowered group is a ``.tosa`` file with its sidecar. A group whose claimant does not read TOSA is a
        ``.tosaic`` file of tosaic's operators; if the claimant has its own integer arithmetic, the ``.tosa``
        file next to it computes in that arithmetic.

        Parameters
        ----------
        path : path
            The folder, which is made if it does not exist; or the ``.pte`` file.

        Returns
        -------
        tuple of Path
            The files: the files of the groups, ``host.tosaic``, and the listing ``partitions.json``. Files of
            an earlier split in the same folder are removed.

        Raises
        ------
        WriteError
            A file cannot be written. The folder is unchanged then.
        UnsupportedOp
            A ``.pte`` file cannot have something of the program; the message has all reasons.
        """
        if PTE.holds(path):
            save_pte(self, path)
            return (Path(path),)
        host = Program(self._graph, self._signature)
        return save_folder(path, host, self._plan.groups, self._parts, self._claimants)

    def __repr__(self) -> str:
        return one_line(f"<tosaic.partitions.SplitLowered: {self.type_text}, {len(self._parts)} groups>")


@Verb
def compare_programs(
    a: Any, b: Any, samples: Any, /, *, threshold_db: float, local: bool, bind: Any
) -> Comparison:
    """Runs two programs on samples, and compares their results and nodes."""
    raise NotImplementedError


def lower_split(
    program: Program,
    claimants: Sequence[Claimant],
    *,
    source: Program,
    connected: bool = True,
    objective: Any = "bytes",
    verify: bool = True,
    on_change: Callable[[str, _core.Graph], None] | None = None,
    pipelines: Mapping[str, Pipeline] | None = None,
) -> SplitLowered:
    """Splits a program between claimants and lowers each group.

    `source` is the user's program, with which `program` is compared. `connected` is an option of
    `tosaic.partition`. `on_change` is called after each pass that changed a group, with the name of the
    group and the pass. `pipelines` has by claimant the pipelines other than the default. The other options
    are as in `tosaic.lower`.
    """
    start = time.perf_counter()
    program.snapshot()
    split_for = partial(
        lower_split,
        program,
        source=source,
        connected=connected,
        objective=objective,
        verify=verify,
        pipelines=pipelines,
    )
    options = {"objective": objective, "verify_each": verify}
    barred: Barred = {}
    while True:
        proposal = propose(
            program.graph,
            claimants,
            connected=connected,
            gains=False,
            pipelines=pipelines,
            barred=barred,
        )
        parts: list[Lowered | Program] = []
        borders = dict.fromkeys(("bytes", "cost", "bound"), 0)
        beyond: dict[tuple[str, str], tuple[Problem, ...]] = {}
        for each in proposal.all():
            lowered, found = _lower_parts(each, claimants, on_change, options, pipelines or {})
            parts += lowered
            borders = {name: count + found[name] for name, count in borders.items()}
            beyond |= _beyond_limits(each.plan, lowered, claimants)
        if not beyond:
            break
        barred = {**barred, **beyond}
    return SplitLowered(
        source,
        proposal.plan,
        Program(proposal.host, program.signature),
        parts,
        claimants=claimants,
        borders=borders,
        seconds=time.perf_counter() - start,
        split_for=split_for,
    )


def _beyond_limits(
    plan: PartitionPlan, parts: Sequence[Lowered | Program], claimants: Sequence[Claimant]
) -> Barred:
    """Returns the nodes whose operators, in the dim orders of the files, exceed limits of their devices."""
    by_name = {each.name: each for each in claimants}
    found: dict[tuple[str, str], tuple[Problem, ...]] = {}
    for group, part in zip(plan.groups, parts, strict=False):  # groups of regions have plans of their own
        taker = by_name[group.claimant]
        beyond = exceeded_limits(part.graph, taker) if isinstance(part, Lowered) and taker.target else ()
        if not beyond:
            continue
        nodes = plan.graph.nodes
        members = [node for node in nodes if plan.group_of[node.id] == group.index]
        unfit = unfit_nodes(beyond, members, taker.allows(plan.graph))
        found.update(((taker.name, nodes[node].name), problems) for node, problems in unfit.items())
    return found


def _lower_parts(
    proposal: Proposal,
    claimants: Sequence[Claimant],
    on_change: Callable[[str, _core.Graph], None] | None,
    options: Mapping[str, Any],
    pipelines: Mapping[str, Pipeline],
) -> tuple[list[Lowered | Program], dict[str, Any]]:
    """Lowers the groups of a proposal, without groups of regions; returns them, and their layout plan."""
    groups = proposal.plan.groups[: len(proposal.parts)]
    by_name = {each.name: each for each in claimants}
    takers = [by_name[group.claimant] for group in groups]
    # For a claimant that does not read TOSA, the layout plan keeps composite operators, which it gets whole.
    steps: dict[str, Any] = {each.name: each.arithmetic for each in claimants}
    steps |= {name: each.core for name, each in pipelines.items()}
    decomposed = [
        _core.before_layout(part, pipeline=steps[taker.name]) if taker.target else part
        for taker, part in zip(takers, proposal.parts, strict=True)
    ]
    borders = _core.border_orders(
        proposal.host,
        decomposed,
        claimants=[core_claimant(taker.kind) for taker in takers],
        objective=options["objective"],
    )
    parts: list[Lowered | Program] = []
    for group, graph, taker, orders in zip(groups, proposal.parts, takers, borders["parts"], strict=True):
        part = Program(graph)
        if not taker.arithmetic:
            parts.append(part)
            continue
        begin = time.perf_counter()
        inputs, outputs = ([(order, False) for order in side] for side in orders)
        lowered = _core.lower(
            graph,
            pipeline=steps[taker.name],
            semantics=taker.semantics,
            on_change=None if on_change is None else _named(group.name, on_change),
            input_orders=inputs,
            output_orders=outputs,
            threads=batch_threads(),
            file=True,
            **options,
        )
        seconds = time.perf_counter() - begin
        objective = options["objective"]
        parts.append(Lowered(lowered, part, target=taker.arithmetic, seconds=seconds, objective=objective))
    return parts, borders


def _named(group: str, on_change: Callable[[str, _core.Graph], None]) -> Callable[[str, _core.Graph], None]:
    return lambda name, graph: on_change(f"{group}-{name}", graph)
