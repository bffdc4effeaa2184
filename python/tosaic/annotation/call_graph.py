"""The nodes of a graph of torch as plain data, on which plans and rules work.

A `CallGraph` is made from records. It knows neither torch nor what the operators mean::

    CallGraph(
        [
            Call("x", "placeholder", dtype="f32"),
            Call("w", "get_attr", dtype="f32"),
            Call(
                "conv2d",
                "call",
                target="aten.conv2d.default",
                operands=(Operand("args[0]", "x", "input"), Operand("args[1]", "w", "weight")),
                modules=(("", "Net"), ("layer1", "torch.nn.modules.conv.Conv2d")),
                source="model.py:41",
                dtype="f32",
            ),
            Call("output", "output", operands=(Operand("args[0][0]", "conv2d"),)),
        ],
        inputs=[GraphPort("x", "x")],
        outputs=[GraphPort("out", "conv2d")],
    )
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tosaic import _core

CallKind = Literal["placeholder", "get_attr", "call", "output"]


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a node: a place in its arguments that refers to another node.

    Attributes
    ----------
    path : str
        Where the producer is in the arguments: ``args[0]``, ``args[1][2]``, ``kwargs.bias``.
    producer : str
        Name of the node that is read, an earlier one.
    name : str
        Name of the argument in the operator's schema; empty if there is none. All elements of a list have the
        name of the list.
    """

    path: str
    producer: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A node.

    Attributes
    ----------
    name : str
        Unique in the graph.
    kind : {"placeholder", "get_attr", "call", "output"}
        ``"call"``: calls of functions, methods and modules.
    target : str
        ``"aten.conv2d.default"`` for operators, else any text.
    operands : tuple of Operand
        In the order of the arguments, those by keyword last.
    modules : tuple of (str, str)
        The modules that contain the call, outermost first: path (``layer1.0``) and type
        (``torch.nn.modules.conv.Conv2d``).
    source : str
        ``model.py:41``, or empty.
    dtype : str
        Dtype of the tensor that the node computes, by the name of graphs (``"f32"``) or, for a dtype that
        graphs do not have, of torch. Empty if the node computes no tensor (a tuple of tensors) or the dtype
        is not known.
    shape : tuple of int, optional
        Sizes that are not known are -1.
    users : tuple of str, optional
        The nodes that read this one, each once, in the order in which torch lists them. None: in the order
        of the graph. Implicit sharing visits users in this order.
    """

    name: str
    kind: CallKind
    target: str = ""
    operands: tuple[Operand, ...] = ()
    modules: tuple[tuple[str, str], ...] = ()
    source: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    users: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class GraphPort:
    """An input or output of the graph, as its caller sees it.

    Attributes
    ----------
    path : str
        The name by which rules may choose it, in addition to its position: ``x``, ``batch['x']``, ``out[1]``.
    node : str, optional
        The placeholder of an input, or the node that an output returns. None: no node (an output that is a
        number or None).
    """

    path: str
    node: str | None


class CallGraph:
    """The nodes of a graph, in the order of execution.

    Parameters
    ----------
    nodes : sequence of Call
        Producers stand before their users.
    inputs : sequence of GraphPort
        The inputs of the caller, flattened, in order, those included that nothing reads. Placeholders of
        parameters and buffers are not inputs of the caller.
    outputs : sequence of GraphPort
        The results for the caller, flattened, in order. A node that is returned twice is listed twice.
        Writes to buffers are not outputs.

    Raises
    ------
    InvalidGraph
        Two nodes have one name, or an operand, user or port names a node that does not exist or comes later.
    """

    __slots__ = ("_core",)

    def __init__(
        self, nodes: Sequence[Call], *, inputs: Sequence[GraphPort] = (), outputs: Sequence[GraphPort] = ()
    ) -> None:
        self._core = _core.CallGraph(nodes, inputs, outputs)

    @classmethod
    def of_core(cls, core: _core.CallGraph) -> CallGraph:
        """Returns the graph of an object of the core."""
        made = cls.__new__(cls)
        made._core = core
        return made

    @property
    def core(self) -> _core.CallGraph:
        """The graph as the C++ package has it."""
        return self._core

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes, in order."""
        return self._core.names

    @property
    def inputs(self) -> tuple[GraphPort, ...]:
        """The inputs of the caller."""
        return tuple(GraphPort(*port) for port in self._core.input_ports)

    @property
    def outputs(self) -> tuple[GraphPort, ...]:
        """The results for the caller."""
        return tuple(GraphPort(*port) for port in self._core.output_ports)

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[Call]:
        return map(self.__getitem__, range(len(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._core

    def __getitem__(self, key: str | int) -> Call:
        """Returns the node of a name or position.

        Raises
        ------
        InvalidGraph
            There is no node of this name; the message has near names.
        IndexError
            There is no node at this position.
        """
        fields = self._core.call(key)
        operands = tuple(Operand(*operand) for operand in fields.pop("operands"))
        return Call(operands=operands, **fields)

    def __repr__(self) -> str:
        return f"<CallGraph of {len(self)} nodes>"
