"""A graph with a signature that can be run: the base of programs and lowered programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.options import invalid
from tosaic.base.reportable import Reportable
from tosaic.base.visible import one_line
from tosaic.ports.ports import (
    Port,
    caller_outputs,
    first_inputs,
    input_port,
    output_port,
    places_of_inputs,
    variable_ports,
)
from tosaic.program.calling import Calling
from tosaic.program.overrides import Overrides

if TYPE_CHECKING:
    from tosaic.ports.signature import Signature
    from tosaic.program.stacked_calls import StackedCall


def flat_signature(graph: _core.Graph) -> Signature:
    """Returns the signature of a bare graph.

    A call passes inputs by position or name, and returns one output or a tuple of outputs.
    """
    from tosaic.ports.signature import InputLeaf, OutputLeaf, Signature, Tree

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


def signature_fault(graph: _core.Graph, signature: Signature) -> str:
    """Returns the reason why a signature does not fit a graph; empty if the signature fits."""
    return signature.fault(first_inputs(graph), set(caller_outputs(graph)))


class Runnable(Reportable):
    """A graph with a signature, prepared to run on first use."""

    def __init__(self, graph: _core.Graph, signature: Signature | None) -> None:
        self._graph = graph
        self.overrides = Overrides()
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
        """The stage of the graph: ``exported``, ``quantized``, ``integer`` or ``tosa``."""
        return self._graph.stage

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs that the caller passes, in order. States are not in the list.

        If the graph has an array as several inputs, one for each quantization, it is one port here.
        """
        users = [port for port in self._graph.inputs if port.kind == "user"]
        arrays: dict[int, list[_core.Input]] = {}
        for port, place in zip(users, self._place_of_input, strict=True):
            arrays.setdefault(place, []).append(port)
        return tuple(input_port(ports) for ports in arrays.values())

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """The caller's outputs, in order: results, and new values of inputs that the program writes.

        A new value has kind ``mutation`` and the path of its input. New values of states are not in the list.
        """
        outputs = self._graph.outputs
        return tuple(output_port(outputs[index]) for index in self._output_indices)

    @cached_property
    def states(self) -> tuple[Port, ...]:
        """Mutated buffers, or the variables of a TOSA program. Their values persist from run to run."""
        inputs = tuple(input_port([port]) for port in self._graph.inputs if port.kind == "state")
        return inputs + variable_ports(self._graph)

    @cached_property
    def calling(self) -> Calling:
        """The conversion of a call's arguments to arrays, and of arrays to its result."""
        return Calling(self)

    @cached_property
    def session(self) -> _core.Session:
        """The graph prepared to run on this machine; it holds the values of the states."""
        session = self.overrides.session(self._own_graph())
        for path, value in self._state_to_resume.items():
            session.set_state(path, value)
        return session

    def _own_graph(self) -> _core.Graph:
        """Makes the graph own all its constants, and returns it."""
        return self._graph

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the session and without cached values.

        A copy gets its own session, with the current values of the states.
        """
        state = dict(self.__dict__)
        session = state.pop("session", None)
        state.pop("calling", None)
        if session is not None:
            names = [port.path or port.name for port in self.states]
            state["_state_to_resume"] = {name: session.state(name) for name in names}
        return state

    def arrays(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Flattens the arguments of a call to arrays, in the order of `inputs`."""
        return self.calling.arrays_of(self.calling.leaves(args, kwargs))

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
            Arrays may be stacks of samples, as in `tosaic.quantize`: with an additional first axis, or
            with a multiple of the extent of the first axis. The entries run one after the other.

        Returns
        -------
        object
            The module's result, with numpy arrays instead of tensors. The arrays are new memory; the last
            operators write directly to them unless a conversion is needed. Results of a stack are stacked in
            the same form.

        Raises
        ------
        LayoutMismatch
            An input has another shape, dtype or memory order than declared; the message names the input. Or
            the program writes an input whose argument cannot be written or shares memory with another input;
            then nothing has been written.
        InvalidGraph
            The arguments have another nesting, an integer is out of the range of its input, an index is out
            of range, or a weight was changed since import. Or stacks have different lengths or forms, or a
            result has no axis for their entries.

        Notes
        -----
        An array is read in place if it is dense, has the declared dtype and has the right memory order: the
        declared one for a lowered program, row-major for others. Other arrays are copied or converted
        first: arrays with any strides (slices, transposes, negative strides, repeated elements), arrays of
        another byte order, and integers of another width whose values fit the declared dtype. Two cases are
        refused: channels-last strides where row-major is declared, and, from rank 3 on, strides of another
        order than the declared order (``orders``).

        The arguments are read and written without the GIL: a thread that changes or frees their memory during
        the call races with it, as with torch's own operators.
        """
        try:
            if self.calling.takes_arrays and not kwargs:
                direct = self.session.run_plain(args)
                if direct is not None:
                    return self.calling.result_of(direct)
            return self.nested(self._run_leaves(self.calling.leaves(args, kwargs)))
        except _core.LayoutMismatch:
            stacked = self._stacked(args, kwargs)
            if stacked is None:
                raise
        return self.nested(self._joined(stacked, [self._run_leaves(leaves) for leaves in stacked]))

    __call__ = run

    def _run_leaves(self, leaves: Sequence[Any]) -> list[Any]:
        """Runs on the caller's argument for each of `inputs`, and writes new values into them."""
        arrays = self.calling.arrays_of(leaves)
        writers = self.calling.writers(leaves, arrays) if self.calling.written else []
        results = self.run_arrays(arrays)
        for index, write in writers:
            write(results[index])
        return results

    def _stacked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StackedCall | None:
        from tosaic.program.stacked_calls import stacked_call

        calling = self.calling
        return stacked_call(calling.leaves(args, kwargs), self.inputs, [i for _, i in calling.written])

    def _joined(self, stacked: StackedCall, results: Sequence[Sequence[Any]]) -> list[Any]:
        return stacked.joined(results, [port.path or port.name for port in self.outputs])

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
        try:
            results = self.run_arrays(self.arrays(*args, **kwargs))
        except _core.LayoutMismatch:
            stacked = self._stacked(args, kwargs)
            if stacked is None:
                raise
            arrays = map(self.calling.arrays_of, stacked)
            results = self._joined(stacked, [self.run_arrays(each) for each in arrays])
        names = [port.path or port.name for port in self.inputs]
        return self.nested(results), {names[i]: results[at] for at, i in self.calling.written}

    @cached_property
    def _output_indices(self) -> tuple[int, ...]:
        return caller_outputs(self._graph)

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
        """Returns the array for each input of the graph, without states.

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
            raise invalid(
                "inputs",
                "the program has another number of inputs",
                expected=f"a list of {count} array{'s' * (count != 1)}" + (f" ({names})" if names else ""),
                got=f"a {type(arrays).__name__}" if given is None else str(len(given)),
            )
        return [given[i] for i in self._place_of_input]

    @cached_property
    def _place_of_input(self) -> tuple[int, ...]:
        """For each input of the graph that is not a state, its position in `inputs`."""
        return places_of_inputs(self._graph)

    def nested(self, arrays: Sequence[Any]) -> Any:
        """Returns the caller's nested result for one array for each of `outputs`."""
        by_index: list[Any] = [None] * len(self._graph.outputs)
        for index, array in zip(self._output_indices, arrays, strict=True):
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

    @property
    def type_text(self) -> str:
        """The inputs and outputs as text: ``(x: f32[1,3,8,8]) -> f32[1,10]``."""
        inputs = ", ".join(f"{one_line(port.path or port.name)}: {port.type_text}" for port in self.inputs)
        return f"({inputs}) -> {', '.join(port.type_text for port in self.outputs)}"

    def text(self) -> str:
        """Returns the graph as text, which `Graph.parse` reads back."""
        return self._graph.text()
