"""The inputs, outputs and states of a program in the caller's view, and the tensors that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tosaic import _core
from tosaic.base.dtypes import is_float, type_text
from tosaic.base.quantization import QParams, quantizations_of_input, quantizations_of_output
from tosaic.base.reportable import Reportable


@dataclass(frozen=True)
class PortTensor:
    """A tensor of the graph that holds an input or output.

    Attributes
    ----------
    name : str
        Name of the value in the graph, and of the tensor in a ``.tosa`` file.
    dtype : str
        Dtype in the graph. It may be narrower than the dtype of the caller's array: ``i8`` for floats that
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
        For integers, the qparams of the numbers that they represent. For a float input, the qparams with
        which the program or `Lowered.run` quantizes it; there may be several. For a float output, the qparams
        with which it is dequantized. Empty if nothing is quantized, or if the graph lacks the qparams.
    tensors : tuple of PortTensor
        The tensors of the graph, and so of the ``.tosa`` file, that hold this input or output: one, or one
        for each of `quantized` in the same order.
    physical : bool
        True if `shape` is the physical shape: the extents in dim order, as the order ``"nhwc"`` declares it.
        The array is then row-major.
    """

    name: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    kind: str = "user"
    quantized: tuple[QParams, ...] = ()
    tensors: tuple[PortTensor, ...] = ()
    physical: bool = False

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """The extents of the logical axes: `shape`, unless the array has the physical shape."""
        if not self.physical:
            return self.shape
        return tuple(self.shape[self.dim_order.index(axis)] for axis in range(len(self.shape)))

    @property
    def array_order(self) -> tuple[int, ...]:
        """The order of the array's own axes in memory: `dim_order`, or row-major for a physical shape."""
        return tuple(range(len(self.shape))) if self.physical else self.dim_order

    @property
    def qparams(self) -> QParams | None:
        """The qparams if there is exactly one entry in `quantized`, else None."""
        return self.quantized[0] if len(self.quantized) == 1 else None

    @property
    def type_text(self) -> str:
        """Dtype and shape as text: ``f32[1,3,8,8]``."""
        return type_text(self.dtype, self.shape)


@dataclass(frozen=True)
class Io(Reportable):
    """Inputs, outputs and states of a lowered program."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[Port, ...] = field(default=())


def caller_inputs(ports: Sequence[Any]) -> list[int]:
    """Returns, for each graph input, the index of the caller's input; inputs with the same path share one."""
    known: dict[Any, int] = {}
    return [known.setdefault(port.path or i, len(known)) for i, port in enumerate(ports)]


def places_of_inputs(graph: _core.Graph) -> tuple[int, ...]:
    """Returns, for each input of the graph that is not a state, the index of the caller's input."""
    return tuple(caller_inputs([port for port in graph.inputs if port.kind == "user"]))


def first_inputs(graph: _core.Graph) -> list[int]:
    """Returns, for each of the caller's inputs, the index of the first graph input with its path."""
    ports = graph.inputs
    users = [i for i, port in enumerate(ports) if port.kind == "user"]
    first: dict[int, int] = {}
    for index, place in zip(users, caller_inputs([ports[i] for i in users]), strict=True):
        first.setdefault(place, index)
    return list(first.values())


def caller_outputs(graph: _core.Graph) -> tuple[int, ...]:
    """Returns the indices of the caller's outputs: user outputs, and new values of user inputs.

    New values of states are the other outputs.
    """
    inputs = graph.inputs
    return tuple(
        index
        for index, port in enumerate(graph.outputs)
        if port.mutated_input is None or inputs[port.mutated_input].kind == "user"
    )


def output_port(port: _core.Output) -> Port:
    """Returns the port of one array that the caller gets."""
    return _port(port.value.name, port, [port.value], quantizations_of_output(port))


def input_port(ports: Sequence[_core.Input]) -> Port:
    """Returns the port of one array of the caller; `ports` are the graph inputs that are made from it."""
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
        port.physical,
    )


def with_known_qparams(ports: Sequence[Port], source: Sequence[Port]) -> tuple[Port, ...]:
    """Adds the qparams of the lowered program's source to ports whose own graph has no qparams."""
    known = {port.path: port.quantized for port in source}
    out = []
    for port in ports:
        found = () if port.quantized else known.get(port.path, ())
        fits = is_float(port.dtype) or all(qparams.dtype == port.dtype for qparams in found)
        out.append(replace(port, quantized=found) if found and fits else port)
    return tuple(out)


def variable_ports(graph: _core.Graph) -> tuple[Port, ...]:
    """Returns the variables that a TOSA graph declares, which are states."""
    declared = (node.attrs for node in graph.nodes if node.op == "tosa.variable")
    return tuple(
        Port(a["name"], a["name"], a["dtype"], a["shape"], tuple(range(len(a["shape"]))), "state")
        for a in declared
    )
