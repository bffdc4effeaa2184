"""What the API hands out: a program that runs, a lowered one, and the answer to "would it lower?"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.arrays import as_array
from tosaic.options import checked, refusal
from tosaic.overrides import Overrides
from tosaic.port_names import by_position
from tosaic.quantization import QParams, quantizations_of_input, quantizations_of_output
from tosaic.writing import make_folder, write_bytes, write_text

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
    "PortTensor",
    "Problem",
    "Program",
    "caller_inputs",
    "first_inputs",
    "flat_signature",
    "given_back",
    "signature_fault",
]


@dataclass(frozen=True)
class PortTensor:
    """A tensor of the graph that carries an input or output.

    Attributes
    ----------
    name : str
        Of the value; in a ``.tosa`` file, of the tensor.
    dtype : str
        May be narrower than the caller's: ``i8`` of floats that `Lowered.run` quantizes, ``i32`` of ``i64``.
    shape : tuple of int
        In the axes of the graph.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Port:
    """One input or output as the caller meets it.

    Attributes
    ----------
    name : str
        Name of the value in the graph.
    path : str
        Where it stands in the call or the result: ``x``, ``batch['mask']``, ``out['logits']``.
    dtype : str
        ``f32``, ``i64`` ...
    shape : tuple of int
    dim_order : tuple of int
        How an array lies in memory, outermost axis first.
    kind : str
        ``user``, ``state`` or ``mutation``.
    quantized : tuple of QParams
        Of integers, what they stand for. Of floats, into which integers the program, or `Lowered.run`,
        quantizes them, or from which it dequantizes them: an input may be quantized in several ways. Empty
        where nothing is quantized, or the program does not say how.
    tensors : tuple of PortTensor
        The tensors of the graph, and so of the ``.tosa`` file, that carry it: one, or one for each of
        `quantized`, in that order.
    """

    name: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    kind: str = "user"
    quantized: tuple[QParams, ...] = ()
    tensors: tuple[PortTensor, ...] = ()

    @property
    def qparams(self) -> QParams | None:
        """The parameters, where it is quantized in one way; else None."""
        return self.quantized[0] if len(self.quantized) == 1 else None

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
    """How long one pass of a lowering took.

    Attributes
    ----------
    name : str
        Of the pass. The first is ``verify``, of the graph as it was given.
    section : str
        Where the pass stands in the pipeline.
    seconds, verify_seconds : float
        In the pass, and in the verifier after it.
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


def _output_port(port: _core.Output) -> Port:
    return _port(port.value.name, port, [port.value], quantizations_of_output(port))


def _input_port(ports: Sequence[_core.Input]) -> Port:
    """What the caller gives as one array; `ports` are the inputs of the graph that are made of it."""
    quantized = dict.fromkeys(q for port in ports for q in quantizations_of_input(port))
    return _port(ports[0].name, ports[0], [port.value for port in ports], tuple(quantized))


def _port(
    name: str,
    port: _core.Input | _core.Output,
    values: Sequence[_core.Value],
    quantized: tuple[QParams, ...],
) -> Port:
    return Port(
        name,
        port.path,
        port.dtype,
        tuple(port.shape),
        tuple(port.dim_order),
        port.kind,
        quantized,
        tuple(PortTensor(value.name, value.dtype, tuple(value.shape)) for value in values),
    )


def _as_source_knows(ports: Sequence[Port], source: Sequence[Port]) -> tuple[Port, ...]:
    """The ports with the parameters of the program that was lowered, where their own graph tells none."""
    known = {port.path: port.quantized for port in source}
    out = []
    for port in ports:
        found = () if port.quantized else known.get(port.path, ())
        is_float = port.dtype.startswith(("f", "bf"))
        fits = is_float or all(qparams.dtype == port.dtype for qparams in found)
        out.append(replace(port, quantized=found) if found and fits else port)
    return tuple(out)


def _variable_ports(graph: _core.Graph) -> tuple[Port, ...]:
    declared = (node.attrs for node in graph.nodes if node.op == "tosa.variable")
    return tuple(
        Port(a["name"], a["name"], a["dtype"], a["shape"], tuple(range(len(a["shape"]))), "state")
        for a in declared
    )


def given_back(graph: _core.Graph) -> tuple[int, ...]:
    """Indices of the outputs that a run returns: the user's, and new values of the user's inputs."""
    inputs = graph.inputs
    return tuple(
        index
        for index, port in enumerate(graph.outputs)
        if port.mutated_input is None or inputs[port.mutated_input].kind == "user"
    )


def signature_fault(graph: _core.Graph, signature: Signature) -> str:
    """Why a signature is none of this graph's; empty if it is one."""
    return signature.fault(first_inputs(graph), set(given_back(graph)))


class _Runnable:
    """A graph with a calling convention, prepared on first use."""

    def __init__(self, graph: _core.Graph, signature: Signature | None) -> None:
        self._graph = graph
        self._state_to_resume: dict[str, Any] = {}
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
        """What the caller gives, in order; state is left out."""
        ports = self._graph.inputs
        leaves = sorted(leaf.index for leaf in self._signature.input_leaves if leaf.index is not None)
        more: dict[str, list[_core.Input]] = {}  # further tensors of the same array
        for index, port in enumerate(ports):
            if port.kind == "user" and index not in leaves:
                more.setdefault(port.path, []).append(port)
        return tuple(_input_port([ports[i], *more.get(ports[i].path, ())]) for i in leaves)

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """What the caller gets, in order: results, and new values of inputs that the program writes.

        The kind of these is ``mutation``, and their path that of the input. New values of state are left out.
        """
        outputs = self._graph.outputs
        return tuple(_output_port(outputs[index]) for index in self._given_back)

    @cached_property
    def states(self) -> tuple[Port, ...]:
        """Mutated buffers, or the variables of a TOSA program, which keep their values from run to run."""
        inputs = tuple(_input_port([port]) for port in self._graph.inputs if port.kind == "state")
        return inputs + _variable_ports(self._graph)

    @cached_property
    def session(self) -> _core.Session:
        """The graph made ready to run on this machine."""
        session = self._prepared(self._own_graph())
        for path, value in self._state_to_resume.items():
            session.set_state(path, value)
        return session

    def _prepared(self, graph: _core.Graph) -> _core.Session:
        return _core.Session(graph)

    def _own_graph(self) -> _core.Graph:
        """The graph, which from now on reads nobody's memory."""
        return self._graph

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the session: a copy has its own, which starts from the present values of state."""
        state = dict(self.__dict__)
        session = state.pop("session", None)
        if session is not None:
            names = [port.path or port.name for port in self.states]
            state["_state_to_resume"] = {name: session.state(name) for name in names}
        return state

    def arrays(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The flat arrays of a call, in the order of `inputs`."""
        return self._arrays_of(self._leaves(args, kwargs))

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """What the caller gave for each of `inputs`."""
        named = self._named_inputs(args, kwargs)
        return self._signature.flatten(args, kwargs) if named is None else named

    def _arrays_of(self, leaves: Sequence[Any]) -> list[Any]:
        return [
            as_array(leaf, port.path or port.name, dtype=port.dtype)
            for leaf, port in zip(leaves, self.inputs, strict=True)
        ]

    def _named_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The inputs of a call that names each of them; None of one that names the module's parameters.

        The latter names all of them, those too that were constants when the module was exported.
        """
        signature = self._signature
        if args or signature.is_called_by(set(kwargs)):
            return None
        found = by_position(kwargs, [(port.path, port.name) for port in self.inputs])
        if found is None or len(found) != len(self.inputs):
            return None
        return [found[i] for i in range(len(found))]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Inputs that the module writes (``cache.index_copy_(1, pos, q)``) are written as the module would: once
        the program has run, their new values are put into the caller's arrays or tensors. `run_functional`
        returns them instead.

        Parameters
        ----------
        *args, **kwargs
            As the exported module takes them, nested as they were: numpy arrays, torch tensors, or numbers of
            Python; or each input by its path or name, as `inputs` has them: ``run(batch_x=x)``,
            ``run(**{"batch['x']": x})``. Dense arrays of the program's own dtype that lie as it does are read
            where they lie: of a lowered program those in the order of the border, else row-major ones. Others
            are copied or converted first: arrays with any strides (slices, transposes, negative strides,
            repeated elements), of another byte order, and integers of another width that the declared dtype
            can hold. Channels-last strides where row-major ones were declared, and of rank 3 and more other
            strides than those of an order that was declared, are refused.

        Returns
        -------
        object
            The module's result with numpy arrays in the place of tensors: new memory, which the last
            operators have written themselves where nothing is converted.

        Raises
        ------
        LayoutMismatch
            An input has another shape, dtype or layout than declared; the message names it. Or the program
            writes an input, and what was given for it cannot be written, or shares memory with another input;
            then nothing was written.
        InvalidGraph
            The arguments are nested otherwise, an integer is out of the range of its input, an index is out
            of range, or a weight was changed since import.

        Notes
        -----
        The arguments are read, and written, without the GIL: a thread that changes or frees their memory
        meanwhile races with the call, as it would with torch's own operators.
        """
        leaves = self._leaves(args, kwargs)
        arrays = self._arrays_of(leaves)
        writers = self._writers(leaves, arrays) if self._written else []
        results = self.run_arrays(arrays)
        for index, write in writers:
            write(results[index])
        return self._nested(results)

    __call__ = run

    def run_functional(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Runs the program and writes nothing of the caller's.

        Parameters
        ----------
        *args, **kwargs
            As `run` takes them; read-only arrays are as good as others, and inputs that share memory count as
            separate ones.

        Returns
        -------
        result : object
            As `run` returns it.
        mutations : dict of str to numpy.ndarray
            The new values of the inputs that the program writes, by the paths of these: ``{"cache": ...}``.
        """
        results = self.run_arrays(self.arrays(*args, **kwargs))
        ports = self.inputs
        return self._nested(results), {ports[i].path or ports[i].name: results[at] for at, i in self._written}

    @cached_property
    def _written(self) -> tuple[tuple[int, int], ...]:
        """Of each new value of a user's input: the position in `outputs`, and the input's in `inputs`."""
        users = sorted(leaf.index for leaf in self._signature.input_leaves if leaf.index is not None)
        targets = [self._graph.outputs[index].mutated_input for index in self._given_back]
        return tuple((at, users.index(i)) for at, i in enumerate(targets) if i is not None)

    def _writers(
        self, leaves: Sequence[Any], arrays: Sequence[Any]
    ) -> list[tuple[int, Callable[[Any], None]]]:
        """What writes new values into the arguments, by position in `outputs`."""
        from tosaic.written import refuse_shared_memory, writer

        names = [port.path or port.name for port in self.inputs]
        writers = []
        for at, i in self._written:
            port = self.outputs[at]
            writers.append((at, writer(leaves[i], arrays[i], names[i], port.dtype, port.shape)))
            refuse_shared_memory(i, arrays, names)
        return writers

    @cached_property
    def _given_back(self) -> tuple[int, ...]:
        return given_back(self._graph)

    def run_arrays(self, arrays: Sequence[Any]) -> list[Any]:
        """Runs on flat arrays, which stay as they are.

        Parameters
        ----------
        arrays : sequence of array
            One for each of `inputs`, as `arrays` gives them.

        Returns
        -------
        list of numpy.ndarray
            One for each of `outputs`.

        Raises
        ------
        InvalidGraph
            These are more arrays than the program has inputs, or fewer.
        LayoutMismatch
            An array has another shape, dtype or layout than its input.
        """
        return list(self.session.run(self.graph_arrays(arrays)))

    def graph_arrays(self, arrays: Sequence[Any]) -> list[Any]:
        """For each input of the graph the array that it is made from; state is left out.

        An input that is quantized in several ways is several of a lowered program, all of one path.

        Parameters
        ----------
        arrays : sequence of array
            One for each of `inputs`.

        Raises
        ------
        InvalidGraph
            These are more arrays than the program has inputs, or fewer.
        """
        given = None if isinstance(arrays, Mapping | str) or not np.iterable(arrays) else list(arrays)
        if given is None or len(given) != len(self.inputs):
            names = ", ".join(f"'{port.path or port.name}'" for port in self.inputs)
            count = len(self.inputs)
            raise _core.make_error(
                _core.InvalidGraph,
                where="inputs",
                what="the program has another number of inputs",
                expected=f"a list of {count} array{'s' * (count != 1)}" + (f" ({names})" if names else ""),
                got=f"a {type(arrays).__name__}" if given is None else str(len(given)),
            )
        return [given[i] for i in self._port_of_input]

    @cached_property
    def _port_of_input(self) -> tuple[int, ...]:
        """Of each input of the graph that is no state: the position in `inputs`."""
        ports = self._graph.inputs
        leaves = sorted(leaf.index for leaf in self._signature.input_leaves if leaf.index is not None)
        first = {ports[index].path: at for at, index in reversed(list(enumerate(leaves)))}
        at = {index: place for place, index in enumerate(leaves)}
        users = (index for index, port in enumerate(ports) if port.kind == "user")
        return tuple(at[index] if index in at else first[ports[index].path] for index in users)

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

    The constants of an imported program are views of torch's memory until it is first run, compared or saved,
    which calls `snapshot`. Until then it is what the exported program is. A weight that was given other
    memory, resized, freed or changed in place is refused by name where torch tells (see
    `tosaic.from_exported`); elements that were overwritten behind torch's back (``p.data.mul_(2)``) are read
    as they are then, all of them at one moment. Afterwards nothing that happens to the module concerns it.
    """

    @checked
    def __init__(
        self,
        graph: _core.Graph,
        signature: Signature | None = None,
        *,
        diagnostics: Sequence[Diagnostic] = (),
    ) -> None:
        found = "" if signature is None else signature_fault(graph, signature)
        if found:
            raise _core.make_error(
                _core.InvalidGraph, where="Program", what="the signature is not that of the graph", got=found
            )
        super().__init__(graph, signature)
        self._diagnostics = tuple(diagnostics)
        self._overrides = Overrides()
        self._verify: Callable[[], None] | None = None

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What the import noticed without refusing."""
        return self._diagnostics

    @classmethod
    def _of_import(
        cls,
        graph: _core.Graph,
        signature: Signature,
        diagnostics: Sequence[Diagnostic],
        verify: Callable[[], None],
    ) -> Program:
        """A program whose constants are views; `verify` is what `verify_weights` calls."""
        program = cls(graph, signature, diagnostics=diagnostics)
        program._verify = verify
        return program

    def verify_weights(self) -> None:
        """Compares what the import has read of torch's memory with what is there now.

        That is what graph and attributes hold already, such as scales and weights that are not dense. Views
        are checked wherever they are read.

        Raises
        ------
        InvalidGraph
            Something else is there; the message names it.
        """
        if self._verify is not None:
            self._verify()

    def snapshot(self) -> Program:
        """Copies all constants that are views of torch's memory, once; `graph` is the one with the copies.

        Nothing of torch is kept alive afterwards.

        Returns
        -------
        Program
            The program itself.

        Raises
        ------
        InvalidGraph
            A weight was changed, resized or freed since import; the message names it.
        """
        self._own_graph()
        return self

    def _own_graph(self) -> _core.Graph:
        self.verify_weights()
        self._graph = self._graph.own_constants()
        self._verify = None
        return self._graph

    def __getstate__(self) -> dict[str, Any]:
        """A copy owns its constants, as after `snapshot`."""
        self._own_graph()
        return super().__getstate__()

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes graph, signature and weights into one archive, which `tosaic.load` reads with numpy alone.

        The same program gives the same bytes. Functions of `with_overrides` are not written.
        """
        from tosaic.archive import save

        self._overrides.warn_of_loss("the archive")
        save(self.snapshot(), path)

    @checked
    def with_overrides(self, functions: Mapping[str, Callable[..., Any]]) -> Program:
        """The same program, run with functions of the caller in the place of some of its operators.

        These are added to the functions that the program has already, or take their places. Copies and
        pickles of the program have the functions, too; archives and lowerings, which are made of the graph
        alone, do not, and a warning is logged. State starts from its initial values.

        Parameters
        ----------
        functions : mapping
            By the name of a node (``conv2d_1``), of an operator (``conv``) or of a foreign operator
            (``aten.special_i0.default``): a function that takes the operands as numpy arrays, None for an
            absent one, and returns the result, or a list of the results.

        Raises
        ------
        InvalidGraph
            A name is that of no node and no operator.

        Examples
        --------
        >>> program = program.with_overrides({"aten.special_i0.default": scipy.special.i0})  # doctest: +SKIP
        """
        made = Program(self._own_graph(), self._signature, diagnostics=self._diagnostics)
        made._overrides = Overrides({**self._overrides.functions, **functions})
        made.session  # noqa: B018 - names that mean nothing are refused here
        return made

    def _prepared(self, graph: _core.Graph) -> _core.Session:
        nodes = {node.name for node in graph.nodes}
        functions = self._overrides.functions
        return _core.Session(
            graph,
            override_nodes={name: function for name, function in functions.items() if name in nodes},
            override_ops={name: function for name, function in functions.items() if name not in nodes},
        )

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

    Made by `tosaic.lower`. It is independent of torch's memory, but for the program that was lowered:
    `source`, which is the stage ``imported``, may still be a view of it. Where the module was changed since,
    that program is refused by name when it runs, and so are deep copies and pickles of the lowered program,
    which hold it. Everything else works, reports included. ``lowered.source.snapshot()``, called before the
    module changes, makes the source independent, too.
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
        return {"imported": self._source.graph, **self._stages}

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
    def inputs(self) -> tuple[Port, ...]:
        """What the caller gives, in order; state is left out."""
        return _as_source_knows(super().inputs, self._source.inputs)

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """What the caller gets, in order; new values of state are left out."""
        return _as_source_knows(super().outputs, self._source.outputs)

    @cached_property
    def states(self) -> tuple[Port, ...]:
        """Mutated buffers, or the variables of a TOSA program, which keep their values from run to run."""
        return _as_source_knows(super().states, self._source.states)

    @cached_property
    def io(self) -> Io:
        """Inputs, outputs and states as the caller meets them, with what their integers stand for."""
        return Io(self.inputs, self.outputs, self.states)

    @checked
    def at(self, stage: str) -> Program:
        """The program at one of its `stages`, ready to run.

        Raises
        ------
        InvalidGraph
            No such stage.
        """
        stages = self.stages
        if stage not in stages:
            raise refusal("at", "stage", "one of " + ", ".join(map(repr, stages)), stage)
        graph = stages[stage]
        return Program(graph, _called_as(self._source.signature, self._source.graph, graph))

    @checked
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

    @checked
    def file_size(self, *, locations: bool = True) -> int:
        """The size of the ``.tosa`` file in bytes, which is not made for it."""
        return _core.serialized_size(self._graph, locations=locations, target=self._target)

    @checked
    def save(self, path: str | os.PathLike[str], *, locations: bool = True) -> int:
        """Writes the ``.tosa`` file; returns its size in bytes."""
        return write_bytes(path, self.to_bytes(locations=locations))

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
    target = make_folder(folder)
    count = 0

    def write(name: str, graph: _core.Graph) -> None:
        nonlocal count
        write_text(target / f"{count:02d}-{name}.txt", graph.text())
        count += 1

    return write
