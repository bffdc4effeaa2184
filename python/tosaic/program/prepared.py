"""Prepared programs: `Preparable.prepare` makes a `Prepared`, which runs with models or on other engines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tosaic import _core
from tosaic.base.options import checked, invalid
from tosaic.base.verbs import Verb
from tosaic.base.visible import one_line
from tosaic.program.models import ModelledGraph, Models
from tosaic.program.overrides import split_functions
from tosaic.program.runnable import Runnable

if TYPE_CHECKING:
    import os

    from tosaic.memory.plan import MemoryPlan
    from tosaic.memory.schedule import Schedule
    from tosaic.ports.ports import Port
    from tosaic.profiling.profile import Profile
    from tosaic.program.recording import Call

_MOST_SHOWN = 3
_R = TypeVar("_R")


class Prepared:
    """A program with its models, ready to run. `Program.prepare` and `Lowered.prepare` make it.

    A prepared program has its own states, which start from their initial values. Copies and pickles include
    the models, and the values of the states. Several threads may run it at once: runs of a program with
    states take turns, others run concurrently.
    """

    def __init__(
        self,
        source: Runnable,
        models: Models,
        *,
        on: str = "tosaic",
        threads: int = 1,
        write_back: bool = False,
    ) -> None:
        self._source = source
        self._models = models
        self._on = on
        self._threads = threads
        self._write_back = write_back
        self._state_to_resume: dict[str, Any] = {}
        self._of_thread = threading.local()
        self.session  # noqa: B018 - preparing the session refuses wrong keys

    @property
    def source(self) -> Runnable:
        """The program that was prepared."""
        return self._source

    @property
    def on(self) -> str:
        """The engine that computes the program: ``tosaic``, ``reference`` or ``vgf``."""
        return self._on

    @property
    def threads(self) -> int:
        """The greatest number of threads of one run."""
        return self._threads

    @property
    def write_back(self) -> bool:
        """True if a run writes new values of inputs into the caller's arrays."""
        return self._write_back

    @property
    def models(self) -> dict[str, str]:
        """The key of each modelled node, by the name of the node; includes nodes of regions."""
        return dict(self._modelled.keys)

    @property
    def has_whole_model(self) -> bool:
        """True if one function computes the whole graph."""
        return bool(self._models.whole_graph)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs that the caller passes, in order. States are not in the list."""
        return self._source.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The caller's outputs, in order, as `Program.outputs`."""
        return self._source.outputs

    @property
    def states(self) -> tuple[Port, ...]:
        """Mutated buffers, or the variables of a TOSA program. Their values persist from run to run."""
        return self._source.states

    @property
    def mutations(self) -> dict[str, Any]:
        """The new values of inputs that the program writes, by path, after the last `run` of this thread."""
        return dict(getattr(self._of_thread, "mutations", {}))

    @cached_property
    def _modelled(self) -> ModelledGraph:
        return self._models.of(self._source.graph, self._source.overrides)

    @cached_property
    def session(self) -> _core.Session:
        """The graph prepared to run on this machine; it holds the values of the states."""
        modelled = self._modelled
        functions = {} if self._models.whole_graph else self._source.overrides.functions_for(modelled.graph)
        nodes, operators = split_functions(functions, modelled.graph)
        session = _core.Session(
            modelled.graph,
            override_nodes=nodes,
            override_ops=operators,
            models=modelled.functions,
            threads=self._threads,
        )
        for path, value in self._state_to_resume.items():
            session.set_state(path, value)
        return session

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Parameters
        ----------
        *args, **kwargs
            The arguments of the network, as in `Program.run`.

        Returns
        -------
        object
            The module's result, with numpy arrays instead of tensors. `mutations` has the new values of
            inputs that the program writes. With `write_back`, they are also written to the caller's arrays.

        Raises
        ------
        LayoutMismatch
            An input has another shape, dtype or memory order than declared, or a model returned another dtype
            or shape than its node has.
        InvalidGraph
            The arguments have another nesting, or a model raised an exception: `__cause__` is the exception,
            and the message has the node, its module and its source line.
        """
        if self._takes_arrays and not kwargs:
            direct = self.session.run_plain(args)
            if direct is not None:
                return self._source.calling.result_of(direct)
        return self._run(args, kwargs, self.run_arrays, write_back=self._write_back)

    __call__ = run

    @cached_property
    def _takes_arrays(self) -> bool:
        """True if the arguments of a call may go to the session directly, see `Calling.takes_arrays`.

        False with models or overrides: their functions might call this program, which `_alone` refuses.
        """
        modelled = self._modelled
        functions = self._source.overrides.functions_for(modelled.graph)
        return self._source.calling.takes_arrays and not modelled.functions and not functions

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        compute: Callable[[list[Any]], list[Any]],
        *,
        write_back: bool,
    ) -> Any:
        source = self._source
        leaves = source.calling.leaves(args, kwargs)
        arrays = source.calling.arrays_of(leaves)
        writers = source.calling.writers(leaves, arrays) if write_back and source.calling.written else []
        results = compute(arrays)
        for index, write in writers:
            write(results[index])
        ports = self.inputs
        self._of_thread.mutations = {
            ports[i].path or ports[i].name: results[at] for at, i in source.calling.written
        }
        return source.nested(results)

    @checked
    def profile(self, *args: Any, runs: int = 10, warmup: int = 1, **kwargs: Any) -> Profile:
        """Runs the program several times, and measures where the time goes.

        The clock is read once after each step, so a profiled run takes as long as any other. The runs compute
        the same: each starts from the current values of the states, and afterwards the states are as after
        one run.

        Parameters
        ----------
        *args, **kwargs
            The arguments of the network, as in `run`. An argument that is named `runs` or `warmup` is passed
            by position.
        runs : int
            The number of runs whose times are recorded, at least 1.
        warmup : int
            The number of runs before them, 0 or more. The first run of a program is slower: its memory and
            weights are not in the caches yet.

        Returns
        -------
        Profile
            The time of each step, by node, operator, module and source line, with the peak of this machine.
            `Profile.result` is the result of `run`.

            A function of the user, such as a model, is one step. A group of a split program has its own inner
            steps, if tosaic computes it. With ``on="reference"`` or ``on="vgf"``, the whole graph is
            one step, since these engines do not report inner times.

        Raises
        ------
        InvalidGraph
            `runs` or `warmup` is no such number; or as `run`.
        LayoutMismatch
            As `run`.

        Examples
        --------
        >>> profile = lowered.prepare().profile(x, runs=20)  # doctest: +SKIP
        >>> print(profile)  # doctest: +SKIP
        >>> profile.save("run.trace.json")  # doctest: +SKIP
        """
        from tosaic.program.profile_prepared import profile_prepared

        def run_once(compute: Callable[[list[Any]], list[Any]], is_last: bool) -> Any:
            # Only the last run writes to the caller's arrays, since each run reads them as inputs.
            return self._run(args, kwargs, compute, write_back=self._write_back and is_last)

        return profile_prepared(self, run_once, runs=runs, warmup=warmup)

    def recorded(self, arrays: Sequence[Any], name: str = "") -> tuple[list[Any], Call]:
        """Runs on flat arrays, as `run_arrays`; also returns the record of the run, for a profile.

        `name` is the name of the group that the program computes.
        """
        from tosaic.program.recording import profile_session

        return self._alone(lambda given: profile_session(self, given, name), arrays)

    def run_arrays(self, arrays: Sequence[Any]) -> list[Any]:
        """Runs on flat arrays, one for each of `inputs`, and does not change them.

        Returns
        -------
        list of numpy.ndarray
            One for each of `outputs`.

        Raises
        ------
        LayoutMismatch, InvalidGraph
            As `run`.
        """
        return self._alone(lambda given: list(self.session.run(given)), arrays)

    def _alone(self, compute: Callable[[list[Any]], _R], arrays: Sequence[Any]) -> _R:
        """Runs `compute` with the graph's input arrays; refuses a call from a model of this program."""
        given = self._source.graph_arrays(arrays)
        if getattr(self._of_thread, "running", False):
            raise invalid(
                "run",
                "a model runs the prepared program that it is a model of",
                hint="NodeCall.default computes the node as tosaic does",
            )
        self._of_thread.running = True
        try:
            return compute(given)
        finally:
            self._of_thread.running = False

    def reset_state(self) -> None:
        """Resets every state to its initial value."""
        self.session.reset_state()

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the session and without values of single threads."""
        names = [port.path or port.name for port in self.states]
        left_out = ("session", "_modelled", "_of_thread")
        state = {name: value for name, value in vars(self).items() if name not in left_out}
        return {**state, "_state_to_resume": {name: self.session.state(name) for name in names}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _of_thread=threading.local())

    def __repr__(self) -> str:
        graph = self._source.graph
        return (
            f"<tosaic.program.Prepared '{one_line(graph.name)}' @{graph.stage} on {self._on}: "
            f"{self._source.type_text}, {self._models_text(len(graph))}>"
        )

    def _models_text(self, nodes: int) -> str:
        if self._on != "tosaic":
            return f"{nodes} nodes"
        if self._models.whole_graph:
            return f"a model of all {nodes} nodes"
        found = self.models
        if not found:
            return f"{nodes} nodes, no models"
        keys = [repr(key) for key in dict.fromkeys(found.values())]
        more = ", ..." if len(keys) > _MOST_SHOWN else ""
        return f"{nodes} nodes, models of {len(found)} ({', '.join(keys[:_MOST_SHOWN])}{more})"


class Preparable(Runnable):
    """A program that `prepare` can prepare: the base of programs, lowered programs and split programs."""

    @checked
    def plan_memory(
        self,
        *,
        alignment: int = 16,
        plan_inputs: bool = True,
        plan_outputs: bool = True,
        in_place: bool = True,
        scratch: bool = True,
        arenas: Mapping[str, str] | None = None,
        memories: Mapping[str, int | tuple[int | None, int] | None] | None = None,
    ) -> MemoryPlan:
        """Plans the memory of the whole program: host and groups, inputs and outputs.

        A step of the plan is a node of the host, a conversion at the boundary of a group, or the call of a
        group. The arguments and results of a call are needed during the whole call. Reshapes, and slices that
        are whole blocks, are views. Constants are not planned.

        Parameters
        ----------
        alignment : int
            Each buffer begins at a multiple of it: a power of two.
        plan_inputs : bool
            Inputs are in the arena, and their memory is used again after their last read. If False, they are
            the caller's arrays, which are read in place and not changed.
        plan_outputs : bool
            Outputs are in the arena. If False, each output is computed in the caller's memory if the graph
            allows it; other outputs stay in the arena and are copied at the end.
        in_place : bool
            Results may overwrite operands that are not read afterwards.
        scratch : bool
            The inner tensors of each group are in the arena while it runs, in memory that is free at that
            step. If False, the inner memory of groups is left out.
        arenas : mapping of str to str, optional
            Names of arenas: by the name of a buffer, else by its kind (``input``, ``output``, ``state``,
            ``activation``, ``scratch``), else by the group that makes it (``group0``, or ``host``). By
            default, states are in the arena ``states``, and everything else is in ``activations``. A view is
            in the arena of its base.
        memories : mapping, optional
            Memories of limited size, fastest first: ``{"sram": 262144, "dram": None}``, or with their own
            alignment, ``{"sram": (262144, 16), "dram": (None, 64)}``. Each buffer that `arenas` does not name
            goes into the first memory in which it fits. Buffers whose bytes are used most often are placed
            first, then those that are needed for the shortest time, then the largest.

        Returns
        -------
        MemoryPlan
            Its peak, and the proven lower bound.

        Raises
        ------
        InvalidGraph
            An option has another value, an entry of `arenas` names nothing in the program, or a memory is too
            small. The error names the step that needs the most bytes, and the largest buffers there.
        """
        from tosaic.memory.plan_options import options_of
        from tosaic.memory.planner import plan_schedule

        options = options_of(
            alignment=alignment,
            plan_inputs=plan_inputs,
            plan_outputs=plan_outputs,
            in_place=in_place,
            scratch=scratch,
            arenas=arenas,
            memories=memories,
        )
        return plan_schedule(self._schedule(alignment), options)

    def _schedule(self, alignment: int) -> Schedule:
        """Returns the steps of a run, with the memory that they use. See `plan_memory` for `alignment`."""
        from tosaic.program.memory_schedule import schedule_of

        return schedule_of(self, {}, alignment=alignment)

    @checked
    def prepare(
        self,
        *,
        models: Mapping[Any, Callable[..., Any]] | Callable[..., Any] | None = None,
        on: str = "tosaic",
        threads: int = 1,
        write_back: bool = False,
    ) -> Prepared:
        """Prepares the program to run, for example with models of operators or on another engine.

        Parameters
        ----------
        models : mapping or callable, optional
            Models of operators by key, or a model of the whole graph.

            A key selects nodes at the stage of this program. It is a `tosaic.Nodes`, or a string with one
            meaning. A string is an operator (``"conv"``, ``"tosa.conv2d"``), the name of a node or FX node,
            the path of a module, a torch operator (``"aten.conv2d.default"``), or ``"*"`` for all. If several
            keys select a node, the most specific one counts: name before FX name, module, torch operator and
            operator.

            A model is called with a `tosaic.NodeCall` and returns an array, or a list of arrays if the node
            has several results. `NodeCall.result_types` has the dtypes and shapes. At stages
            ``integer`` and ``tosa``, operands are the exact integers of the program; at stage ``quantized``,
            they are the integers of quantized values. Several threads may call a model at once.

            The model of the whole graph is called with a `tosaic.program.GraphCall`.
        on : {"tosaic", "reference", "vgf"}
            The engine that computes the nodes. ``"reference"`` is the TOSA reference model. ``"vgf"`` runs a
            VGF file on Vulkan, with Arm's converter and emulation layers. Both are for programs at stage
            ``tosa`` and take no models.
        threads : int
            The greatest number of threads of one run, including the calling thread, from 1 to 256. All runs
            of the process share one set of threads: a run takes idle threads, at most one for each core that
            the process may use, and does not wait for more. Threads sleep when nothing runs. The results are
            bit-identical for every number of threads. Scratch memory grows with the number.
        write_back : bool
            Write new values of inputs into the caller's arrays, as `run` does. If False, only
            `Prepared.mutations` has them.

        Returns
        -------
        Prepared
            It has its own states, which start from their initial values.

        Raises
        ------
        InvalidGraph
            A key selects no node or has several meanings, a model is not callable, an option has another
            value, or the stage does not fit `on`.
        UnsupportedOp
            An operator has neither a kernel nor a model.
        ImportError
            The TOSA reference model is not installed, or the requirements of VGF files are not: the packages
            of the extra ``devices`` and a Vulkan driver.

        Examples
        --------
        >>> program.prepare(models={"relu": lambda call: call.default()}).run(x)  # doctest: +SKIP
        """
        from tosaic.devices.engines import engine_named

        engine_named("prepare", on)  # refuses another value
        self._own_graph()
        source, table = self._with_models(models, on)
        return Prepared(source, table, on=on, threads=threads, write_back=write_back)

    def _with_models(self, models: Any, on: str) -> tuple[Runnable, Models]:
        """Returns the program that is to run, and its models."""
        if on == "reference":
            from tosaic.program.reference_graph import model_of_graph

            return self, Models(model_of_graph(self.graph, models))
        from tosaic.devices.engines import engine_named

        engine = engine_named("prepare", on)
        return self, Models(models if engine is None else engine.model_of_graph(self.graph, models))


@Verb
def save_pte(program: Preparable, path: str | os.PathLike[str], /, *, sidecar: bool = False) -> int:
    """Writes a program, a lowered program or a split program as a ``.pte`` file."""
    raise NotImplementedError
