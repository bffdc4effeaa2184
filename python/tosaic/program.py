"""What the API hands out: a program that runs, a lowered one, and the answer to "would it lower?"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.arrays import as_array

if TYPE_CHECKING:
    import os

    from tosaic.fx.diagnostics import Diagnostic
    from tosaic.fx.signature import Signature
    from tosaic.layout import Layout, Objective, OwnCost
    from tosaic.report import Report

__all__ = [
    "CheckResult",
    "Lowered",
    "PassTiming",
    "Port",
    "Problem",
    "Program",
    "caller_inputs",
    "first_inputs",
    "flat_signature",
]


@dataclass(frozen=True)
class Port:
    """One input or output as the caller meets it.

    Attributes
    ----------
    name : str
        Name of the value in the graph.
    path : str
        Where it stands in the call or the result: ``x``, ``args[1]['mask']``, ``out['logits']``.
    dtype : str
        ``f32``, ``i64`` ...
    shape : tuple of int
    dim_order : tuple of int
        How an array lies in memory, outermost axis first.
    kind : str
        ``user``, ``state`` or ``mutation``.
    """

    name: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    kind: str = "user"

    @property
    def type_text(self) -> str:
        """``f32[1,3,8,8]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Problem:
    """One reason why a program does not fit a target.

    Attributes
    ----------
    what : str
        What is wrong.
    where : str
        The pass or check that found it.
    expected, got : str
    node : str
        The node it concerns.
    module_path, source : str
        Where that node came from: ``layer1.0.conv1``, ``model.py:41``.
    hint : str
        What to do about it.
    """

    what: str
    where: str = ""
    expected: str = ""
    got: str = ""
    node: str = ""
    module_path: str = ""
    source: str = ""
    hint: str = ""

    @classmethod
    def from_parts(cls, parts: Mapping[str, str]) -> Problem:
        """From the parts of an error."""
        return cls(**{name: str(parts.get(name, "")) for name in cls.__dataclass_fields__})

    @property
    def message(self) -> str:
        """The text of an error with these parts."""
        return str(_core.make_error(_core.Error, **{n: getattr(self, n) for n in self.__dataclass_fields__}))


@dataclass(frozen=True)
class PassTiming:
    """One step of the pipeline: seconds of the pass and of the verifier behind it, and numbers of nodes.

    `visits` counts the nodes and values that both looked at, which grows as the graph does.
    """

    name: str
    seconds: float
    verify_seconds: float
    changed: bool
    nodes_before: int
    nodes_after: int
    visits: int = 0


def flat_signature(graph: _core.Graph) -> Signature:
    """The calling convention of a bare graph: inputs by position or name, a tuple of outputs or the one."""
    from tosaic.fx.signature import InputLeaf, OutputLeaf, Signature, Tree

    leaf = Tree("leaf")
    ports = graph.inputs
    inputs = [(i, ports[i]) for i in first_inputs(graph)]
    outputs = [(i, port) for i, port in enumerate(graph.outputs) if port.kind == "user"]
    return Signature(
        inputs=Tree("tuple", (Tree("tuple", (leaf,) * len(inputs)), Tree("dict"))),
        outputs=leaf if len(outputs) == 1 else Tree("tuple", (leaf,) * len(outputs)),
        input_leaves=tuple(InputLeaf(port.path or port.name, i) for i, port in inputs),
        output_leaves=tuple(OutputLeaf(port.path or port.value.name, i) for i, port in outputs),
        arg_names=tuple(port.name for _, port in inputs),
    )


def caller_inputs(ports: Sequence[Any]) -> list[int]:
    """For each input, which of the caller's it is made from: those of one path from the same."""
    known: dict[Any, int] = {}
    return [known.setdefault(port.path or i, len(known)) for i, port in enumerate(ports)]


def first_inputs(graph: _core.Graph) -> list[int]:
    """Where the caller's inputs stand among those of the graph; of several of one path the first."""
    ports = graph.inputs
    users = [i for i, port in enumerate(ports) if port.kind == "user"]
    places = caller_inputs([ports[i] for i in users])
    return [users[places.index(place)] for place in dict.fromkeys(places)]


def _called_as(signature: Signature, source: _core.Graph, graph: _core.Graph) -> Signature:
    """The signature of a graph that another one was lowered to, which may have several inputs for one."""
    at = dict(zip(first_inputs(source), first_inputs(graph), strict=True))
    leaves = (
        leaf if leaf.index is None else replace(leaf, index=at[leaf.index]) for leaf in signature.input_leaves
    )
    return replace(signature, input_leaves=tuple(leaves))


def _output_ports(graph: _core.Graph) -> tuple[Port, ...]:
    return tuple(
        Port(port.value.name, port.path, port.dtype, tuple(port.shape), tuple(port.dim_order), port.kind)
        for port in graph.outputs
    )


def _input_ports(graph: _core.Graph) -> tuple[Port, ...]:
    return tuple(
        Port(port.name, port.path, port.dtype, tuple(port.shape), tuple(port.dim_order), port.kind)
        for port in graph.inputs
    )


def _variable_ports(graph: _core.Graph) -> tuple[Port, ...]:
    declared = (node.attrs for node in graph.nodes if node.op == "tosa.variable")
    return tuple(
        Port(a["name"], a["name"], a["dtype"], a["shape"], tuple(range(len(a["shape"]))), "state")
        for a in declared
    )


class _Runnable:
    """A graph with a calling convention, prepared on first use."""

    def __init__(self, graph: _core.Graph, signature: Signature | None) -> None:
        self._graph = graph
        self._signature = flat_signature(graph) if signature is None else signature

    @property
    def graph(self) -> _core.Graph:
        """The graph; immutable."""
        return self._graph

    @property
    def signature(self) -> Signature:
        """How nested arguments become the inputs of the graph, and its outputs a nested result."""
        return self._signature

    @property
    def stage(self) -> str:
        """``exported``, ``quantized``, ``integer`` or ``tosa``."""
        return self._graph.stage

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """What the graph takes from the caller, in order; state is left out.

        An input that is quantized in several ways is several of a lowered program, all of one path.
        """
        return tuple(port for port in _input_ports(self._graph) if port.kind == "user")

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """What the caller gets, in order; new values of state are left out."""
        return tuple(port for port in _output_ports(self._graph) if port.kind == "user")

    @cached_property
    def states(self) -> tuple[Port, ...]:
        """Mutated buffers, or the variables of a TOSA program, which keep their values from run to run."""
        inputs = tuple(port for port in _input_ports(self._graph) if port.kind == "state")
        return inputs + _variable_ports(self._graph)

    @cached_property
    def session(self) -> _core.Session:
        """The graph made ready to run on this machine."""
        return _core.Session(self._graph)

    def arrays(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The flat arrays of a call, in the order of `inputs`: one array for all inputs of one path."""
        leaves = self._signature.flatten(args, kwargs)
        places = caller_inputs(self.inputs)
        named = {place: port.path or port.name for place, port in zip(places, self.inputs, strict=True)}
        given = [as_array(leaf, name) for leaf, name in zip(leaves, named.values(), strict=True)]
        return [given[place] for place in places]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Parameters
        ----------
        *args, **kwargs
            As the exported module takes them: numpy arrays or torch tensors, nested as they were. Dense ones
            of the program's own dtype that lie as it does are read where they lie: of a lowered program those
            in the order of the border, else row-major ones. Others are copied or converted first.

        Returns
        -------
        object
            The module's result with numpy arrays in the place of tensors: new memory, which the last
            operators have written themselves where nothing is converted.

        Raises
        ------
        LayoutMismatch
            An input has another shape, dtype or layout than declared; the message names it.
        InvalidGraph
            The arguments are nested otherwise, an index is out of range, or a weight was changed since
            import.
        """
        return self._nested(self.session.run(self.arrays(*args, **kwargs)))

    __call__ = run

    @cached_property
    def _given_back(self) -> tuple[int, ...]:
        """Indices of the outputs that a run returns: the user's, and new values of the user's inputs."""
        graph = self._graph
        inputs = graph.inputs
        return tuple(
            index
            for index, port in enumerate(graph.outputs)
            if port.mutated_input is None or inputs[port.mutated_input].kind == "user"
        )

    def run_arrays(self, arrays: Sequence[Any]) -> list[Any]:
        """Runs on the flat arrays of `arrays`; gives those of `outputs`."""
        outputs = self._graph.outputs
        results = zip(self._given_back, self.session.run(list(arrays)), strict=True)
        return [array for index, array in results if outputs[index].kind == "user"]

    def _nested(self, arrays: Sequence[Any]) -> Any:
        by_index: list[Any] = [None] * len(self._graph.outputs)
        for index, array in zip(self._given_back, arrays, strict=True):
            by_index[index] = array
        return self._signature.unflatten(by_index)

    def flat_outputs(self, result: Any) -> dict[str, Any]:
        """The arrays of a result of `run` by their paths."""
        leaves = zip(
            self._signature.output_leaves, self._signature.outputs.flatten(result, "out"), strict=True
        )
        return {leaf.path: value for leaf, value in leaves if leaf.index is not None}

    def reset_state(self) -> None:
        """Gives every state its initial value again."""
        self.session.reset_state()

    def text(self) -> str:
        """The graph as text, which `Graph.parse` reads back."""
        return self._graph.text()

    def report(self) -> Report:
        """A report to print, or to keep as HTML or JSON."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.report().text

    def _repr_html_(self) -> str:
        return self.report().html_fragment


class Program(_Runnable):
    """One method of a network: a graph and how it is called.

    Made by `tosaic.from_exported`, `tosaic.load` and `tosaic.load_tosa`.
    """

    def __init__(
        self,
        graph: _core.Graph,
        signature: Signature | None = None,
        *,
        diagnostics: Sequence[Diagnostic] = (),
    ) -> None:
        super().__init__(graph, signature)
        self._diagnostics = tuple(diagnostics)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What the import noticed without refusing."""
        return self._diagnostics

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes graph, signature and weights into one archive, which `tosaic.load` reads with numpy alone.

        The same program gives the same bytes.
        """
        from tosaic.archive import save

        save(self, path)

    def report(self) -> Report:
        """The border and the operators of the graph."""
        from tosaic.report import describe_program

        return describe_program(self)

    def __repr__(self) -> str:
        graph = self._graph
        inputs = ", ".join(f"{port.path or port.name}: {port.type_text}" for port in self.inputs)
        outputs = ", ".join(port.type_text for port in self.outputs)
        return f"<tosaic.Program '{graph.name}' @{graph.stage}: ({inputs}) -> {outputs}, {len(graph)} nodes>"


@dataclass(frozen=True)
class Io:
    """The border of a lowered program."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[Port, ...] = field(default=())

    def report(self) -> Report:
        """Inputs and outputs as a table."""
        from tosaic.report import describe_io

        return describe_io(self)

    def __str__(self) -> str:
        return self.report().text

    def _repr_html_(self) -> str:
        return self.report().html_fragment


class Lowered(_Runnable):
    """A network as one TOSA graph, with the stages it went through.

    Made by `tosaic.lower`.
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
        self._decomposed = lowered.decomposed
        self._objective = objective
        self._source = source
        self._target = target
        self._seconds = seconds
        self._stages = {
            "imported": source.graph,
            "exported": lowered.exported,
            "canonical": lowered.canonical,
            "tosa": lowered.tosa,
        }
        self._orders = dict(lowered.orders)
        self._timings = tuple(PassTiming(**timing) for timing in lowered.timings)

    @property
    def source(self) -> Program:
        """The program that was lowered."""
        return self._source

    @property
    def target(self) -> str:
        """``TOSA-1.0+FP``."""
        return self._target

    @property
    def seconds(self) -> float:
        """How long the lowering took."""
        return self._seconds

    @property
    def stages(self) -> dict[str, _core.Graph]:
        """``imported``, ``exported`` (simplified), ``canonical`` (decomposed, dim orders) and ``tosa``."""
        return dict(self._stages)

    @property
    def timings(self) -> tuple[PassTiming, ...]:
        """Each pass in the order it ran."""
        return self._timings

    @property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """Physical order of each TOSA value that stands for a canonical value of the same name."""
        return dict(self._orders)

    @cached_property
    def layout(self) -> Layout:
        """Where the program transposes, who wants it, and the proof that less is not possible.

        Raises
        ------
        InvalidGraph
            The program was TOSA before it was lowered: its transposes are operators of its own.
        """
        from tosaic.layout import layout_of

        grids = _core.carries_grid(self._source.graph)
        return layout_of(self._decomposed, objective=self._objective, grids=grids)

    @cached_property
    def io(self) -> Io:
        """Inputs, outputs and states as the caller meets them."""
        return Io(self.inputs, self.outputs, self.states)

    def at(self, stage: str) -> Program:
        """The program at one of its `stages`, ready to run.

        Raises
        ------
        KeyError
            No such stage.
        """
        graph = self._stages[stage]
        return Program(graph, _called_as(self._source.signature, self._source.graph, graph))

    def to_bytes(self, *, locations: bool = True) -> bytes:
        """The bytes of the ``.tosa`` file.

        States are variables where the target has the extension ``variable`` and they a dtype that variables
        may have; else they are inputs, and their new values outputs, in the order of the graph.

        Parameters
        ----------
        locations : bool
            Write the origin of each operator as its location text.
        """
        return _core.serialize(self._graph, locations=locations, target=self._target)

    def save(self, path: str | os.PathLike[str], *, locations: bool = True) -> int:
        """Writes the ``.tosa`` file; returns its size in bytes."""
        return Path(path).write_bytes(self.to_bytes(locations=locations))

    def report(self) -> Report:
        """Border, operators, memory and time."""
        from tosaic.report import describe_lowered

        return describe_lowered(self)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{port.path or port.name}: {port.type_text}" for port in self.inputs)
        outputs = ", ".join(port.type_text for port in self.outputs)
        return f"<tosaic.Lowered {self._target}: ({inputs}) -> {outputs}, {len(self._graph)} nodes>"


@dataclass(frozen=True)
class CheckResult:
    """Would it lower, and if not, why.

    True in a condition if nothing keeps the program from the target.

    Attributes
    ----------
    target : str
    problems : tuple of Problem
        All reasons, not only the first.
    nodes : int
        Nodes that were looked at; 0 if the import already failed.
    """

    target: str
    problems: tuple[Problem, ...]
    nodes: int

    @property
    def ok(self) -> bool:
        """No problem was found."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def report(self) -> Report:
        """The problems as a table."""
        from tosaic.report import describe_check

        return describe_check(self)

    def __str__(self) -> str:
        return self.report().text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.report().html_fragment


def dump_to(folder: str | os.PathLike[str]) -> Callable[[str, _core.Graph], None]:
    """A callback that writes each changed graph as ``NN-<pass>.txt``."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    count = 0

    def write(name: str, graph: _core.Graph) -> None:
        nonlocal count
        (target / f"{count:02d}-{name}.txt").write_text(graph.text(), encoding="utf-8")
        count += 1

    return write
