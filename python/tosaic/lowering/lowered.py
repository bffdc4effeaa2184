"""A network as a TOSA graph: `Lowered`, and the times of its lowering: `PassTiming`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.diagnostics import Diagnostic, Diagnostics
from tosaic.base.file_kinds import PTE
from tosaic.base.options import checked, refusal
from tosaic.base.threads import batch_threads
from tosaic.ports.ports import (
    Io,
    Port,
    first_inputs,
    with_known_qparams,
)
from tosaic.program.overrides import Overrides
from tosaic.program.prepared import Preparable, save_pte
from tosaic.program.program import Program

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from tosaic.lowering.layout import Layout, Objective, OwnCost
    from tosaic.memory.schedule import Schedule
    from tosaic.ports.signature import Signature
    from tosaic.profiling.lowering import LoweringProfile


@dataclass(frozen=True)
class PassTiming:
    """How long one pass of a lowering took.

    Attributes
    ----------
    name : str
        Name of the pass. The first entry, ``verify``, is for the graph that was passed in.
    section : str
        The section of the pipeline that has the pass.
    seconds, verify_seconds : float
        Time in the pass, and in the verifier after it.
    changed : bool
        True if the pass changed the graph.
    nodes_before, nodes_after : int
        Numbers of nodes.
    visits : int
        Nodes and values that the pass and the verifier looked at. It grows in proportion to the graph.
    """

    name: str
    section: str
    seconds: float
    verify_seconds: float
    changed: bool
    nodes_before: int
    nodes_after: int
    visits: int = 0


@dataclass
class OtherSeconds:
    """The seconds that a lowering took for steps that are not passes.

    Attributes
    ----------
    constants, check, file : float
        Time to compute constants, check the rules of the target, and lay out the file.
    bytes : (float, int), optional
        Time to make the bytes of the file, and their number; None if they were not made yet.
    """

    constants: float
    check: float
    file: float
    bytes: tuple[float, int] | None = None


def _called_as(signature: Signature, source: _core.Graph, graph: _core.Graph) -> Signature:
    """Returns the signature of `source` for the graph that `source` was lowered to.

    The lowered graph may have several inputs for one input of `source`.
    """
    at = dict(zip(first_inputs(source), first_inputs(graph), strict=True))
    leaves = (
        leaf if leaf.index is None else replace(leaf, index=at[leaf.index]) for leaf in signature.input_leaves
    )
    return replace(signature, input_leaves=tuple(leaves))


class Lowered(Preparable):
    """A network as one TOSA graph, with the graphs of the stages before it.

    `tosaic.lower` makes it. The lowered graphs own their constants. Only the constants of `source`, the
    program that was lowered (stage ``imported``), may still be views of torch's memory. If the module changes
    after the lowering, three things raise InvalidGraph: running the source, and deep copies and pickles of
    the lowered program, which contain the source. Everything else works, reports included. Call
    ``lowered.source.snapshot()`` before the module changes to make the source independent too.
    """

    def __init__(
        self,
        lowered: _core.LoweredGraphs,
        source: Program,
        *,
        target: str,
        seconds: float,
        objective: Objective | OwnCost = "bytes",
    ) -> None:
        super().__init__(lowered.tosa, _called_as(source.signature, source.graph, lowered.tosa))
        self.overrides = Overrides({}, source.overrides.foreign)
        self._decomposed = lowered.decomposed
        self._objective = objective
        self._source = source
        self._target = target
        self._seconds = seconds
        self._other_seconds = OtherSeconds(
            lowered.constants_seconds, lowered.check_seconds, lowered.file_seconds
        )
        self._file = lowered.file
        self._stages = {
            "exported": lowered.exported,
            "canonical": lowered.canonical,
            "tosa": lowered.tosa,
        }
        self._whole = lowered.whole
        self._orders = dict(lowered.orders)
        noticed = Diagnostics()
        for rule, message, name in lowered.notes:
            noticed.note(rule, message, name)
        self._diagnostics = tuple(noticed.items)
        self._timings = tuple(PassTiming(**timing) for timing in lowered.timings)

    @property
    def source(self) -> Program:
        """The program that was lowered."""
        return self._source

    @property
    def target(self) -> str:
        """The target as text, such as ``TOSA-1.0+FP``."""
        return self._target

    @property
    def seconds(self) -> float:
        """Seconds that the lowering took."""
        return self._seconds

    @property
    def stages(self) -> dict[str, _core.Graph]:
        """The graphs ``imported``, ``exported`` (simplified), ``canonical`` (with dim orders) and ``tosa``.

        The canonical graph has decomposed operators, and a dim order for each value.
        """
        return {"imported": self._source.graph, **self._stages}

    @property
    def timings(self) -> tuple[PassTiming, ...]:
        """The time of each pass, in the order in which the passes ran."""
        return self._timings

    @property
    def other_seconds(self) -> OtherSeconds:
        """The time of steps that are not passes."""
        return self._other_seconds

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Remarks of the lowering on constants that are stored in a wider dtype than before, or twice."""
        return self._diagnostics

    @property
    def profile(self) -> LoweringProfile:
        """Where the time of the lowering went: import, each pass, and the bytes of the file, if made.

        The import is the import of `source`, whenever that happened. `save` and `to_bytes` make bytes; the
        profile has the last time.
        """
        from tosaic.lowering.lowered_profile import profile_of_lowered

        return profile_of_lowered(self)

    def _schedule(self, alignment: int) -> Schedule:
        """Returns the conversions of the caller's arrays as a schedule, with the graph as one step."""
        from tosaic.program.memory_schedule import schedule_as_group

        del alignment  # only the host of a split program needs it, for views that are slices
        return schedule_as_group(self)

    @property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """The dim order of each TOSA value that holds a canonical value, by the name of the TOSA value."""
        return dict(self._orders)

    @cached_property
    def layout(self) -> Layout:
        """The layout plan: transposes, their reasons, and the proven lower bound of their cost.

        Raises
        ------
        InvalidGraph
            The source was already at stage ``tosa``. Its transposes are operators, and there is no plan.
        """
        from tosaic.lowering.layout import layout_of

        grids = _core.carries_grid(self._source.graph)
        return layout_of(self._decomposed, objective=self._objective, grids=grids)

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs that the caller passes, in order. States are not in the list."""
        return with_known_qparams(super().inputs, self._source.inputs)

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs that the caller gets, in order. New values of states are not in the list."""
        return with_known_qparams(super().outputs, self._source.outputs)

    @cached_property
    def states(self) -> tuple[Port, ...]:
        """Mutated buffers, or the variables of a TOSA program. Their values persist from run to run."""
        return with_known_qparams(super().states, self._source.states)

    @cached_property
    def io(self) -> Io:
        """The inputs, outputs and states of the program, with their qparams."""
        return Io(self.inputs, self.outputs, self.states)

    def whole(self) -> Lowered:
        """Returns the program before its attentions were computed in parts.

        It has the same results, and all values in one piece, which comparisons look for by their names.
        Returns the program itself if nothing was divided.
        """
        if self._whole is self._graph:
            return self
        state = self.__getstate__()
        cached = [name for name in state if isinstance(getattr(type(self), name, None), cached_property)]
        made = object.__new__(type(self))
        made.__dict__.update({name: value for name, value in state.items() if name not in cached})
        made._graph = self._whole
        return made

    def as_program(self) -> Program:
        """Returns the program at stage ``tosa``."""
        return self.at("tosa")

    @checked
    def at(self, stage: str) -> Program:
        """Returns the program at one of its `stages`, ready to run.

        Raises
        ------
        InvalidGraph
            There is no such stage.
        """
        stages = self.stages
        if stage not in stages:
            raise refusal("at", "stage", "one of " + ", ".join(map(repr, stages)), stage)
        graph = stages[stage]
        program = Program(graph, _called_as(self._source.signature, self._source.graph, graph))
        program.overrides = self.overrides
        return program

    @checked
    def to_bytes(self, *, locations: bool = True) -> bytes:
        """Returns the bytes of the ``.tosa`` file.

        The graph's constants become views of these bytes. With locations, no memory is copied, and each call
        returns the same object.

        A state is a variable in the file if the target has the extension ``variable`` and TOSA has variables
        of the state's dtype. Other states are inputs, and their new values are outputs, in the order of the
        graph.

        Parameters
        ----------
        locations : bool
            Write the origin of each operator as its location text.
        """
        start = time.perf_counter()
        data = self._file_with(locations)
        if data is None:
            threads = batch_threads()
            data = _core.serialize(self._graph, locations=locations, target=self._target, threads=threads)
        self._other_seconds.bytes = time.perf_counter() - start, len(data)
        return data

    def _file_with(self, locations: bool) -> bytes | None:
        """Returns the bytes of the file if the lowering made them."""
        return self._file if locations else None

    @checked
    def file_size(self, *, locations: bool = True) -> int:
        """Returns the size of the ``.tosa`` file in bytes, computed without writing the file."""
        file = self._file_with(locations)
        if file is not None:
            return len(file)
        return _core.serialized_size(self._graph, locations=locations, target=self._target)

    @checked
    def save(self, path: str | os.PathLike[str], *, locations: bool = True, sidecar: bool = False) -> int:
        """Writes the ``.tosa`` file; returns its size in bytes.

        A path that ends in ``.pte`` makes a file for ExecuTorch's runtime instead. Its one delegate has the
        ``.tosa`` file as payload. If the caller's arrays have another form than the payload, kernels of
        ExecuTorch quantize, dequantize and convert them.

        Parameters
        ----------
        path : path
        locations : bool
            As in `to_bytes`. Not for a ``.pte`` file.
        sidecar : bool
            Write a second file next to it, ``m.tosa.json`` for ``m.tosa``: the signature of the program, the
            dim orders, dtypes and qparams of its inputs and outputs, and the digest of the ``.tosa`` file.
            `tosaic.load_tosa` reads both, and the program that it returns then takes the caller's arrays, as
            `run` does. Without it, an older sidecar is removed, because it would not describe the new file.

        Raises
        ------
        WriteError
            A file cannot be written. Older files are then unchanged, both of them.
        UnsupportedOp
            The sidecar cannot hold a constant of the signature, or the program has something that a ``.pte``
            file cannot have; the message has all reasons.
        """
        from tosaic.lowering.sidecar import save_with_sidecar, save_without_sidecar

        if PTE.holds(path):
            return save_pte(self, path, sidecar=sidecar)
        start = time.perf_counter()
        file = self._file_with(locations)
        pieces: Sequence[Buffer] = (
            [file]
            if file is not None
            else _core.file_pieces(self._graph, locations=locations, target=self._target)
        )
        if sidecar:
            size = save_with_sidecar(self, path, pieces)
        else:
            size = save_without_sidecar(path, pieces)
        self._other_seconds.bytes = time.perf_counter() - start, size
        return size

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the session and the bytes of the file, which the constants repeat."""
        return {**super().__getstate__(), "_file": None}

    def __repr__(self) -> str:
        return f"<tosaic.Lowered {self._target}: {self.type_text}, {len(self._graph)} nodes>"
