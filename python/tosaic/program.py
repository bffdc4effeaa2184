"""The classes that the API returns: programs that run, lowered programs, and the result of a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.arrays import as_array
from tosaic.foreign import ForeignOp, operators_by_target
from tosaic.options import checked, refusal
from tosaic.overrides import Overrides
from tosaic.port_names import by_position
from tosaic.quantization import QParams, quantizations_of_input, quantizations_of_output
from tosaic.writing import make_folder, write_bytes, write_text

if TYPE_CHECKING:
    import os

    from tosaic.diagnostics import Diagnostic
    from tosaic.layout import Layout, Objective, OwnCost
    from tosaic.report.document import Report
    from tosaic.signature import Signature

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
        Name of the value in the graph, and of the tensor in a ``.tosa`` file.
    dtype : str
        Dtype in the graph. It may be narrower than that of the caller's array: ``i8`` for floats that
        `Lowered.run` quantizes, ``i32`` for ``i64``.
    shape : tuple of int
        Shape in the graph's axes, which are the physical ones at stage ``tosa``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Port:
    """One input, output or state of a program, described by the caller's array for it.

    Attributes
    ----------
    name : str
        Name of the value in the graph.
    path : str
        Place in the call or in the result: ``x``, ``batch['mask']``, ``out['logits']``.
    dtype : str
        Dtype of the array, such as ``f32`` or ``i64``.
    shape : tuple of int
        Shape of the array.
    dim_order : tuple of int
        Order of the logical axes in memory, outermost first.
    kind : str
        ``user``, ``state``, or ``mutation`` for the new value of an input.
    quantized : tuple of QParams
        For integers, the qparams that say which numbers they represent. For a float input, the qparams with
        which the program or `Lowered.run` quantizes it; there may be several. For a float output, the qparams
        with which it is dequantized. Empty if nothing is quantized, or if the graph does not say how.
    tensors : tuple of PortTensor
        The tensors of the graph, and so of the ``.tosa`` file, that carry this input or output: one, or one
        for each of `quantized` in the same order.
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
        """The qparams if there is exactly one entry in `quantized`, else None."""
        return self.quantized[0] if len(self.quantized) == 1 else None

    @property
    def type_text(self) -> str:
        """Dtype and shape as text: ``f32[1,3,8,8]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Problem:
    """One reason why a program does not fit a target.

    Attributes
    ----------
    what : str
        What is wrong.
    where : str
        The pass or check that found the problem.
    expected, got : str
        What the check requires, and what it found.
    node : str
        Name of the node that has the problem.
    module_path, source : str
        Origin of that node, such as ``layer1.0.conv1`` and ``model.py:41``.
    hint : str
        What the user can do about the problem.
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
        """Makes a problem from the parts of an error."""
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
    """The signature of a bare graph: inputs by position or name; the result is one output or a tuple."""
    from tosaic.signature import InputLeaf, OutputLeaf, Signature, Tree

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
    """For each input, the index of the caller's input that it is made from: inputs of one path share one."""
    known: dict[Any, int] = {}
    return [known.setdefault(port.path or i, len(known)) for i, port in enumerate(ports)]


def first_inputs(graph: _core.Graph) -> list[int]:
    """For each of the caller's inputs, its index among the graph's inputs: the first one of its path."""
    ports = graph.inputs
    users = [i for i, port in enumerate(ports) if port.kind == "user"]
    places = caller_inputs([ports[i] for i in users])
    return [users[places.index(place)] for place in dict.fromkeys(places)]


def _called_as(signature: Signature, source: _core.Graph, graph: _core.Graph) -> Signature:
    """The signature of `source` for the graph that `source` was lowered to.

    The lowered graph may have several inputs for one input of `source`.
    """
    at = dict(zip(first_inputs(source), first_inputs(graph), strict=True))
    leaves = (
        leaf if leaf.index is None else replace(leaf, index=at[leaf.index]) for leaf in signature.input_leaves
    )
    return replace(signature, input_leaves=tuple(leaves))


def _output_port(port: _core.Output) -> Port:
    return _port(port.value.name, port, [port.value], quantizations_of_output(port))


def _input_port(ports: Sequence[_core.Input]) -> Port:
    """The port of one array of the caller; `ports` are the inputs of the graph that are made from it."""
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
    """Adds the qparams that the lowered program's source knows to ports whose own graph has none."""
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
    """Indices of the outputs that a run computes for the caller: user outputs and new values of user inputs.

    New values of states are the other outputs.
    """
    inputs = graph.inputs
    return tuple(
        index
        for index, port in enumerate(graph.outputs)
        if port.mutated_input is None or inputs[port.mutated_input].kind == "user"
    )


def signature_fault(graph: _core.Graph, signature: Signature) -> str:
    """The reason why a signature does not fit a graph; empty if the signature fits."""
    return signature.fault(first_inputs(graph), set(given_back(graph)))


class _Runnable:
    """A graph with a signature, prepared to run on first use."""

    def __init__(self, graph: _core.Graph, signature: Signature | None) -> None:
        self._graph = graph
        self._overrides = Overrides()
        self._state_to_resume: dict[str, Any] = {}
        self._signature = flat_signature(graph) if signature is None else signature

    @property
    def graph(self) -> _core.Graph:
        """The graph, which is immutable."""
        return self._graph

    @property
    def signature(self) -> Signature:
        """How nested arguments become the inputs of the graph, and how its outputs become a nested result."""
        return self._signature

    @property
    def stage(self) -> str:
        """``exported``, ``quantized``, ``integer`` or ``tosa``."""
        return self._graph.stage

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """What the caller gives, in order; state is left out.

        An array that the graph has as several inputs, one for each quantization, is one port here.
        """
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

        A new value has kind ``mutation`` and the path of its input. New values of states are not in the list.
        """
        outputs = self._graph.outputs
        return tuple(_output_port(outputs[index]) for index in self._given_back)

    @cached_property
    def states(self) -> tuple[Port, ...]:
        """Mutated buffers, or the variables of a TOSA program. Their values persist from run to run."""
        inputs = tuple(_input_port([port]) for port in self._graph.inputs if port.kind == "state")
        return inputs + _variable_ports(self._graph)

    @cached_property
    def session(self) -> _core.Session:
        """The graph prepared to run on this machine; it holds the values of the states."""
        session = self._prepared(self._own_graph())
        for path, value in self._state_to_resume.items():
            session.set_state(path, value)
        return session

    def _prepared(self, graph: _core.Graph) -> _core.Session:
        nodes = {node.name for node in graph.nodes}
        functions = self._overrides.functions
        return _core.Session(
            graph,
            override_nodes={name: function for name, function in functions.items() if name in nodes},
            override_ops={name: function for name, function in functions.items() if name not in nodes},
        )

    def _own_graph(self) -> _core.Graph:
        """The graph, after it was made to own all its constants."""
        return self._graph

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the session. A copy gets its own session, with the present values of the states."""
        state = dict(self.__dict__)
        session = state.pop("session", None)
        if session is not None:
            names = [port.path or port.name for port in self.states]
            state["_state_to_resume"] = {name: session.state(name) for name in names}
        return state

    def arrays(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Flattens the arguments of a call to arrays, in the order of `inputs`."""
        return self._arrays_of(self._leaves(args, kwargs))

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The caller's argument for each of `inputs`."""
        named = self._named_inputs(args, kwargs)
        return self._signature.flatten(args, kwargs) if named is None else named

    def _arrays_of(self, leaves: Sequence[Any]) -> list[Any]:
        return [
            as_array(leaf, port.path or port.name, dtype=port.dtype)
            for leaf, port in zip(leaves, self.inputs, strict=True)
        ]

    def _named_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The arguments of a call that names each of `inputs`, in their order; None for any other call.

        A call whose keywords are exactly the parameters of the exported module, including those that were
        constants at export, is a call of the module: None too.
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

        An input that the module writes (``cache.index_copy_(1, pos, q)``) is written here too: after the run,
        its new value is copied into the caller's array or tensor. `run_functional` returns the new values
        instead.

        Parameters
        ----------
        *args, **kwargs
            Either the arguments of the exported module, with the same nesting, or each input by its path or
            name from `inputs`: ``run(batch_x=x)``, ``run(**{"batch['x']": x})``. Tensors may be numpy arrays,
            torch tensors or Python numbers. The notes say which arrays are copied and which are refused.

        Returns
        -------
        object
            The module's result, with numpy arrays instead of tensors. The arrays are new memory; the last
            operators write directly to them unless a conversion is needed.

        Raises
        ------
        LayoutMismatch
            An input has another shape, dtype or memory order than declared; the message names the input. Or
            the program writes an input whose argument cannot be written or shares memory with another input;
            then nothing has been written.
        InvalidGraph
            The arguments have another nesting, an integer is out of the range of its input, an index is out
            of range, or a weight was changed since import.

        Notes
        -----
        An array is read in place if it is dense, has the declared dtype and has the right memory order: the
        declared one for a lowered program, row-major for others. Other arrays are copied or converted
        first: arrays with any strides (slices, transposes, negative strides, repeated elements), arrays of
        another byte order, and integers of another width whose values fit the declared dtype. Two cases are
        refused: channels-last strides where row-major is declared, and, from rank 3 on, strides of another
        order than the one that was declared with ``orders``.

        The arguments are read and written without the GIL: a thread that changes or frees their memory during
        the call races with it, as with torch's own operators.
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
        """Runs the program without writing to the caller's arrays.

        Parameters
        ----------
        *args, **kwargs
            As in `run`. Written inputs may be read-only arrays, and inputs may share memory: they are treated
            as separate arrays.

        Returns
        -------
        result : object
            As in `run`.
        mutations : dict of str to numpy.ndarray
            The new values of the inputs that the program writes, by the input's path: ``{"cache": ...}``.

        Raises
        ------
        LayoutMismatch, InvalidGraph
            As in `run`.
        """
        results = self.run_arrays(self.arrays(*args, **kwargs))
        ports = self.inputs
        return self._nested(results), {ports[i].path or ports[i].name: results[at] for at, i in self._written}

    @cached_property
    def _written(self) -> tuple[tuple[int, int], ...]:
        """For each new value of a user input: its position in `outputs`, and the input's in `inputs`."""
        users = sorted(leaf.index for leaf in self._signature.input_leaves if leaf.index is not None)
        targets = [self._graph.outputs[index].mutated_input for index in self._given_back]
        return tuple((at, users.index(i)) for at, i in enumerate(targets) if i is not None)

    def _writers(
        self, leaves: Sequence[Any], arrays: Sequence[Any]
    ) -> list[tuple[int, Callable[[Any], None]]]:
        """Functions that write new values into the arguments, each with its position in `outputs`.

        Raises
        ------
        LayoutMismatch
            An argument cannot be written, or shares memory with another one.
        """
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
        """Runs on flat arrays and does not change them.

        Parameters
        ----------
        arrays : sequence of array
            One for each of `inputs`, as returned by the method `arrays`.

        Returns
        -------
        list of numpy.ndarray
            One for each of `outputs`.

        Raises
        ------
        InvalidGraph
            The number of arrays is not the number of inputs, an integer or index is out of range, or a weight
            was changed since import.
        LayoutMismatch
            An array has another shape, dtype or layout than its input.
        """
        return list(self.session.run(self.graph_arrays(arrays)))

    def graph_arrays(self, arrays: Sequence[Any]) -> list[Any]:
        """The array for each input of the graph, without states.

        An input that is quantized with several qparams is several inputs of a lowered graph, which have the
        same path. They all get the same array.

        Parameters
        ----------
        arrays : sequence of array
            One for each of `inputs`.

        Raises
        ------
        InvalidGraph
            The number of arrays is not the number of inputs.
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
        """For each input of the graph that is not a state, its position in `inputs`."""
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
        """Flattens a result of `run`: the arrays by path."""
        leaves = zip(
            self._signature.output_leaves, self._signature.outputs.flatten(result, "out"), strict=True
        )
        return {leaf.path: value for leaf, value in leaves if leaf.index is not None}

    def reset_state(self) -> None:
        """Resets every state to its initial value."""
        self.session.reset_state()

    def text(self) -> str:
        """The graph as text, which `Graph.parse` reads back."""
        return self._graph.text()

    def report(self) -> Report:
        """A report to print, or to save as HTML or JSON."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.report().text

    def _repr_html_(self) -> str:
        return self.report().html_fragment


class Program(_Runnable):
    """One method of a network: a graph and its signature.

    Made by `tosaic.from_exported`, `tosaic.from_graph`, `tosaic.load` and `tosaic.load_tosa`.

    The constants of an imported program are views of torch's memory until the program is first run, compared,
    saved or copied. Each of these copies the constants, as `snapshot` does. Until then:

    - If torch reports that the memory of a weight was replaced, resized or freed, or that the weight was
      changed in place, the weight is refused by name (see `tosaic.from_exported`).
    - Torch does not report writes such as ``p.data.mul_(2)``. The program reads the elements as they are when
      the constants are copied, all of them at the same time.

    After the copy, a change to the module does not affect the program.
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
        self._verify: Callable[[], None] | None = None

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Remarks of the import that are not errors."""
        return self._diagnostics

    @classmethod
    def _of_import(
        cls,
        graph: _core.Graph,
        signature: Signature,
        diagnostics: Sequence[Diagnostic],
        verify: Callable[[], None],
        operators: Sequence[ForeignOp] = (),
    ) -> Program:
        """Makes a program whose constants are views; `verify_weights` calls `verify`."""
        program = cls(graph, signature, diagnostics=diagnostics)
        program._verify = verify
        program._overrides = Overrides({}, operators)
        return program

    def verify_weights(self) -> None:
        """Checks that tensors whose elements the import has already read still have the same elements.

        The import reads elements that become attributes of the graph, such as scales, and weights that are
        not dense. Constants that are views are checked whenever they are read instead.

        Raises
        ------
        InvalidGraph
            A tensor has changed since the import; the message names it.
        """
        if self._verify is not None:
            self._verify()

    def snapshot(self) -> Program:
        """Copies all constants that are views of torch's memory, so that the program owns its constants.

        Afterwards `graph` has the copies, and the program holds no memory of torch. A second call does
        nothing.

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
        """Copies the constants first, as `snapshot` does, so that a pickle or copy owns them."""
        self._own_graph()
        return super().__getstate__()

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes graph, signature and weights into one archive, which `tosaic.load` reads with numpy only.

        The same program is always written as the same bytes. Functions of `with_overrides` are not written; a
        warning is logged.

        Raises
        ------
        WriteError
            The file cannot be written.
        InvalidGraph
            A weight was changed since import.
        """
        from tosaic.archive import save

        self._overrides.warn_of_loss("the archive")
        save(self.snapshot(), path)

    @checked
    def with_overrides(self, functions: Mapping[str, Callable[..., Any]]) -> Program:
        """The same program, which runs functions of the caller instead of some of its operators.

        Functions that the program already has remain, unless `functions` has an entry of the same name.
        Copies and pickles of the program have the functions too. Archives and lowered programs do not, since
        they are made from the graph alone; a warning is logged. States start from their initial values.

        Parameters
        ----------
        functions : mapping
            Functions by the name of a node (``conv2d_1``), of an operator (``conv``) or of a foreign operator
            (``aten.special_i0.default``). A function is called with the operands as numpy arrays, None for an
            absent operand, and returns the result, or a list of the results.

        Raises
        ------
        InvalidGraph
            A name is neither that of a node nor that of an operator.

        Examples
        --------
        >>> program = program.with_overrides({"aten.special_i0.default": scipy.special.i0})  # doctest: +SKIP
        """
        made = Program(self._own_graph(), self._signature, diagnostics=self._diagnostics)
        made._overrides = Overrides({**self._overrides.own, **functions}, self._overrides.foreign)
        made.session  # noqa: B018 - preparing the session refuses unknown names
        return made

    @checked
    def with_operators(self, operators: Sequence[ForeignOp]) -> Program:
        """The same program with kernels for its foreign operators, such as one that was read from a file.

        Parameters
        ----------
        operators : sequence of ForeignOp
            They replace descriptions of the same operators. The graph stays as it is: layout, domain and name
            are those that it was imported with.

        Raises
        ------
        InvalidGraph
            `operators` is not a sequence of `ForeignOp`, or two describe the same operator.
        """
        given = operators_by_target("with_operators", operators)
        known = {operator.target: operator for operator in self._overrides.foreign}
        made = Program(self._own_graph(), self._signature, diagnostics=self._diagnostics)
        made._overrides = Overrides(self._overrides.own, {**known, **given}.values())
        return made

    def report(self) -> Report:
        """A report of the inputs, the outputs and the operators of the graph."""
        from tosaic.report import describe_program

        return describe_program(self)

    def __repr__(self) -> str:
        graph = self._graph
        inputs = ", ".join(f"{port.path or port.name}: {port.type_text}" for port in self.inputs)
        outputs = ", ".join(port.type_text for port in self.outputs)
        return f"<tosaic.Program '{graph.name}' @{graph.stage}: ({inputs}) -> {outputs}, {len(graph)} nodes>"


@dataclass(frozen=True)
class Io:
    """Inputs, outputs and states of a lowered program."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[Port, ...] = field(default=())

    def report(self) -> Report:
        """A report of the inputs and outputs as a table."""
        from tosaic.report import describe_io

        return describe_io(self)

    def __str__(self) -> str:
        return self.report().text

    def _repr_html_(self) -> str:
        return self.report().html_fragment


class Lowered(_Runnable):
    """A network as one TOSA graph, with the graphs of the stages before it.

    Made by `tosaic.lower`. The lowered graphs own their constants. Only `source`, the program that was
    lowered (stage ``imported``), may still be a view of torch's memory. If the module changes after the
    lowering, three things raise InvalidGraph: running the source, and deep copies and pickles of the lowered
    program, which contain the source. Everything else works, reports included. Call
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
        self._overrides = Overrides({}, source._overrides.foreign)
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
        from tosaic.layout import layout_of

        grids = _core.carries_grid(self._source.graph)
        return layout_of(self._decomposed, objective=self._objective, grids=grids)

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """What the caller gives, in order; state is left out."""
        return _as_source_knows(super().inputs, self._source.inputs)

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """What the caller gets, in order; new values of states are not in the list."""
        return _as_source_knows(super().outputs, self._source.outputs)

    @cached_property
    def states(self) -> tuple[Port, ...]:
        """Mutated buffers, or the variables of a TOSA program. Their values persist from run to run."""
        return _as_source_knows(super().states, self._source.states)

    @cached_property
    def io(self) -> Io:
        """The inputs, outputs and states of the program, with their qparams."""
        return Io(self.inputs, self.outputs, self.states)

    @checked
    def at(self, stage: str) -> Program:
        """The program at one of its `stages`, ready to run.

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
        program._overrides = self._overrides
        return program

    @checked
    def to_bytes(self, *, locations: bool = True) -> bytes:
        """The bytes of the ``.tosa`` file.

        A state is a variable in the file if the target has the extension ``variable`` and TOSA has variables
        of the state's dtype. Other states are inputs, and their new values are outputs, in the order of the
        graph.

        Parameters
        ----------
        locations : bool
            Write the origin of each operator as its location text.
        """
        return _core.serialize(self._graph, locations=locations, target=self._target)

    @checked
    def file_size(self, *, locations: bool = True) -> int:
        """The size of the ``.tosa`` file in bytes, computed without writing the file."""
        return _core.serialized_size(self._graph, locations=locations, target=self._target)

    @checked
    def save(self, path: str | os.PathLike[str], *, locations: bool = True) -> int:
        """Writes the ``.tosa`` file; returns its size in bytes.

        Raises
        ------
        WriteError
            The file cannot be written.
        """
        return write_bytes(path, self.to_bytes(locations=locations))

    def report(self) -> Report:
        """A report of the inputs and outputs, the operators, the memory and the time."""
        from tosaic.report import describe_lowered

        return describe_lowered(self)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{port.path or port.name}: {port.type_text}" for port in self.inputs)
        outputs = ", ".join(port.type_text for port in self.outputs)
        return f"<tosaic.Lowered {self._target}: ({inputs}) -> {outputs}, {len(self._graph)} nodes>"


@dataclass(frozen=True)
class CheckResult:
    """Whether a program would lower to a target and, if not, why.

    A result is true in a condition if the program would lower.

    Attributes
    ----------
    target : str
    problems : tuple of Problem
        All problems, not only the first.
    nodes : int
        Number of nodes of the program; 0 if the import already failed.
    """

    target: str
    problems: tuple[Problem, ...]
    nodes: int

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def report(self) -> Report:
        """A report of the problems as a table."""
        from tosaic.report import describe_check

        return describe_check(self)

    def __str__(self) -> str:
        return self.report().text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.report().html_fragment


def dump_to(folder: str | os.PathLike[str]) -> Callable[[str, _core.Graph], None]:
    """Makes the folder, and a callback that writes each changed graph to it as ``NN-<pass>.txt``."""
    target = make_folder(folder)
    count = 0

    def write(name: str, graph: _core.Graph) -> None:
        nonlocal count
        write_text(target / f"{count:02d}-{name}.txt", graph.text())
        count += 1

    return write
