"""The caller's models of operators: the arguments with which they are called, and checks of their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.base.arrays import dtype_name
from tosaic.base.dtypes import BITS, ML_DTYPES, NUMPY, type_text
from tosaic.base.options import invalid, layout_mismatch, shown
from tosaic.base.quantization import QParams
from tosaic.base.visible import one_line
from tosaic.ports.foreign import TensorSpec
from tosaic.program.comparison import Metrics, ModelRow, worst
from tosaic.program.model_keys import selected
from tosaic.program.overrides import Overrides, of_foreign_nodes, require_pickled, split_functions

_Array = np.ndarray[Any, Any]
_WHOLE_GRAPH = "the whole graph"


class Models:
    """The models of one program: a mapping by key, or one callable for the whole graph.

    Copies of a prepared program share one object.
    """

    def __init__(self, given: Mapping[Any, Any] | Callable[[GraphCall], Any] | None) -> None:
        self.given = dict(given) if isinstance(given, Mapping) else given

    @property
    def whole_graph(self) -> bool:
        """True if one model computes the whole graph."""
        return callable(self.given)

    def of(
        self, graph: _core.Graph, overrides: Overrides, deviations: Deviations | None = None
    ) -> ModelledGraph:
        """Returns the graph to run, and its nodes with their models.

        Runs record in `deviations` how far the results are from the results of tosaic's kernels.
        """
        if callable(self.given):
            call = _GraphModel(graph, self.given, overrides, deviations)
            one = _core.as_one_node(graph)
            return ModelledGraph(one, [(one.nodes[0], call)], {one.nodes[0].name: _WHOLE_GRAPH})
        found = selected(graph, self.given or {})
        return ModelledGraph(
            graph,
            [
                (node, _NodeModel(node, graph.stage, key, model, overrides, deviations))
                for node, key, model in found
            ],
            {node.name: key for node, key, _ in found},
        )

    def __deepcopy__(self, _: dict[int, Any]) -> Models:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Pickles all models.

        Raises
        ------
        InvalidGraph
            A model cannot be pickled; the message names its key.
        """
        entries = {_WHOLE_GRAPH: self.given} if callable(self.given) else self.given or {}
        for key, model in entries.items():
            require_pickled(f"the model of '{key}'", model, "prepare")
        return {"given": self.given}


class ModelledGraph:
    """A graph to run with models.

    Attributes
    ----------
    graph : Graph
        The program's graph; or a graph with one node, which the model of the whole graph computes.
    functions : list of (Node, callable)
        Functions of the operands, for `Session`.
    keys : dict of str to str
        The key of each modelled node, by the name of the node.
    """

    def __init__(
        self,
        graph: _core.Graph,
        functions: list[tuple[_core.Node, Callable[..., Any]]],
        keys: dict[str, str],
    ) -> None:
        self.graph = graph
        self.functions = functions
        self.keys = keys


class Deviations:
    """How far the results of models are from the results of tosaic's kernels on the same operands."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str, str, str, str], list[list[Metrics]]] = {}

    def add(
        self, place: tuple[str, str, str, str, str], expected: list[_Array] | None, results: Sequence[_Array]
    ) -> None:
        """Records one call. `place` has the fields of `ModelRow` before `calls`."""
        pairs = [] if expected is None else zip(expected, results, strict=True)
        found = [Metrics.of(_core.metrics(wanted, result)) for wanted, result in pairs]
        self._calls.setdefault(place, []).append(found)

    def clear(self) -> None:
        """Forgets all calls."""
        self._calls.clear()

    @property
    def rows(self) -> tuple[ModelRow, ...]:
        """A row for each modelled node that ran, in the order of their first calls."""
        rows = []
        for place, calls in self._calls.items():
            known = [metrics for call in calls for metrics in call]
            rows.append(ModelRow(*place, len(calls), worst(known) if known else None))
        return tuple(rows)


class NodeCall:
    """One call of a model: a node of the graph, and the arrays on which it runs.

    Attributes
    ----------
    operands : tuple of numpy.ndarray or None
        The operands, in the order and axes of the node: at stage ``tosa`` the physical axes. Quantized values
        are their integers, at every stage. None represents an optional operand that is absent. The arrays are
        copies.
    """

    __slots__ = ("_model", "operands")

    def __init__(self, model: _NodeModel, operands: tuple[_Array | None, ...]) -> None:
        self._model = model
        self.operands = operands

    @property
    def node(self) -> _core.Node:
        """The node in the graph of the program."""
        return self._model.node

    @property
    def op(self) -> str:
        """The operator, such as ``conv`` or ``tosa.conv2d``."""
        return self._model.op

    @property
    def name(self) -> str:
        """The name of the node."""
        return self._model.name

    @property
    def stage(self) -> str:
        """The stage of the graph: ``exported``, ``quantized``, ``integer`` or ``tosa``."""
        return self._model.stage

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes of the node, by name. The mapping is read-only."""
        return self._model.attrs

    @property
    def roles(self) -> tuple[str, ...]:
        """The role of each operand, as ``tosaic ops`` lists it: ``("input", "weight", "bias")``."""
        return self._model.roles

    @property
    def qparams(self) -> tuple[QParams | None, ...]:
        """The qparams of each operand; None if the elements themselves are the numbers."""
        return self._model.qparams

    @property
    def result_qparams(self) -> tuple[QParams | None, ...]:
        """The qparams of each result."""
        return self._model.result_qparams

    @property
    def result_types(self) -> tuple[TensorSpec, ...]:
        """The dtype and shape of each result, which the model must return."""
        return self._model.result_types

    @property
    def module_path(self) -> str:
        """The path of the module of the first FX node of the node, or ``""``."""
        origin = self.node.origin
        return origin.module_path if origin is not None else ""

    @property
    def source(self) -> str:
        """The source line of the first FX node of the node, such as ``model.py:41``, or ``""``."""
        origin = self.node.origin
        return origin.source if origin is not None else ""

    def operand(self, role: str) -> _Array | None:
        """Returns the first operand of a role; None if an optional operand is absent.

        Raises
        ------
        InvalidGraph
            The operator has no operand of this role.
        """
        if role not in self.roles:
            if role in self._model.optional:
                return None
            raise invalid(
                "operand",
                f"{self.op} has no operand '{role}'",
                expected="one of " + ", ".join(map(repr, dict.fromkeys(self.roles))),
                got=shown(role),
            )
        return self.operands[self.roles.index(role)]

    def default(self, *operands: Any) -> Any:
        """Returns the result of tosaic's kernel for this node.

        Parameters
        ----------
        *operands : numpy.ndarray or None
            All operands, possibly changed, with the same dtypes and shapes. Default: the operands of the
            call.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray
            The result, or a list if the node has several results.

        Raises
        ------
        InvalidGraph, LayoutMismatch
            The number of operands, a dtype or a shape differs.
        """
        results = self._model.run_default(self.operands, operands if operands else self.operands)
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        operands = ", ".join("None" if x is None else _array_text(x) for x in self.operands)
        results = ", ".join(type_text(each.dtype, each.shape) for each in self.result_types)
        return f"<tosaic.NodeCall {self.op} '{one_line(self.name)}': ({operands}) -> {results}>"


class GraphCall:
    """One call of a model of a whole graph.

    Attributes
    ----------
    inputs : tuple of numpy.ndarray
        A value for each of `Graph.inputs`, in order and in the axes of the graph: at stage ``tosa`` the
        physical axes. Quantized values are integers, also if the caller passed floats. The value of a state
        is its value before the run. The arrays are copies.
    """

    __slots__ = ("_model", "inputs")

    def __init__(self, model: _GraphModel, inputs: tuple[_Array, ...]) -> None:
        self._model = model
        self.inputs = inputs

    @property
    def graph(self) -> _core.Graph:
        """The graph of the program."""
        return self._model.graph

    @property
    def stage(self) -> str:
        """The stage of the graph."""
        return self._model.graph.stage

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of each input, or its name if it has no path."""
        return tuple(port.path or port.name for port in self._model.graph.inputs)

    @property
    def qparams(self) -> tuple[QParams | None, ...]:
        """The qparams of each input, or None if the graph does not have them."""
        return tuple(port.value.qparams or port.qparams for port in self._model.graph.inputs)

    @property
    def result_qparams(self) -> tuple[QParams | None, ...]:
        """The qparams of each output."""
        return tuple(port.value.qparams or port.qparams for port in self._model.graph.outputs)

    @property
    def result_types(self) -> tuple[TensorSpec, ...]:
        """The dtype and shape of each of `Graph.outputs`, new values of states and inputs among them."""
        return self._model.result_types

    def default(self, *inputs: Any) -> Any:
        """Returns the result of tosaic's kernels for the graph; see `NodeCall.default`."""
        results = self._model.run_default(inputs if inputs else self.inputs)
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        inputs = ", ".join(map(_array_text, self.inputs))
        results = ", ".join(type_text(each.dtype, each.shape) for each in self.result_types)
        return (
            f"<tosaic.program.GraphCall '{one_line(self.graph.name)}' @{self.stage}: ({inputs}) -> {results}>"
        )


class _NodeModel:
    """The function of operands that calls the model of one node."""

    def __init__(
        self,
        node: _core.Node,
        stage: str,
        key: str,
        model: Callable[[NodeCall], Any],
        overrides: Overrides,
        deviations: Deviations | None,
    ) -> None:
        self.node, self.op, self.name, self.stage = node, node.op, node.name, stage
        self.key, self._model, self.overrides, self._deviations = key, model, overrides, deviations
        self.result_types = tuple(TensorSpec(value.dtype, tuple(value.shape)) for value in node.results)
        self._sessions: dict[tuple[bool, ...], _core.Session] = {}
        self._lock = threading.Lock()

    def __call__(self, *operands: _Array | None) -> list[_Array]:
        call = NodeCall(self, operands)
        where = {"node": self.name, "module_path": call.module_path, "source": call.source}
        expected = (
            None if self._deviations is None else _if_supported(lambda: self.run_default(operands, operands))
        )
        results = _checked_results(self._model, call, self.result_types, f"key '{self.key}'", where)
        if self._deviations is not None:
            place = self.name, self.op, self.key, call.module_path, call.source
            self._deviations.add(place, expected, results)
        return results

    @cached_property
    def attrs(self) -> Mapping[str, Any]:
        return MappingProxyType(dict(self.node.attrs))

    @cached_property
    def qparams(self) -> tuple[QParams | None, ...]:
        return tuple(None if value is None else value.qparams for value in self.node.operands)

    @cached_property
    def result_qparams(self) -> tuple[QParams | None, ...]:
        return tuple(value.qparams for value in self.node.results)

    @cached_property
    def optional(self) -> frozenset[str]:
        return frozenset(name[:-1] for name in _ROLES[self.op] if name.endswith("?"))

    @cached_property
    def roles(self) -> tuple[str, ...]:
        names = _ROLES[self.op]
        count = len(self.node.operands)
        if names and names[-1].endswith("*"):
            names = (*names[:-1], *[names[-1]] * (count - len(names) + 1))
        return tuple(name.rstrip("?*") for name in names[:count])

    def run_default(self, own: Sequence[_Array | None], given: Sequence[_Array | None]) -> list[_Array]:
        """Runs the node on tosaic's kernels. Constant operands that are not changed stay constants."""
        if len(given) != len(own):
            raise invalid(
                "default",
                "the node has another number of operands",
                expected=f"{len(own)} ({', '.join(self.roles)})",
                got=str(len(given)),
                node=self.name,
            )
        values = self.node.operands
        for role, value, x in zip(self.roles, values, given, strict=True):
            if (value is None) != (x is None):
                raise invalid(
                    "default",
                    f"operand '{role}' is absent" if value is None else f"operand '{role}' is missing",
                    expected="None" if value is None else type_text(value.dtype, value.shape),
                    got=shown(x),
                    node=self.name,
                )
        as_input = tuple(
            value is not None and (value.constant is None or x is not y)
            for value, x, y in zip(values, own, given, strict=True)
        )
        with self._lock:
            session = self._sessions.get(as_input)
            if session is None:
                graph = _core.node_alone(self.node, list(as_input))
                session = self._sessions[as_input] = _session(graph, self.overrides)
        return list(session.run([x for x, is_input in zip(given, as_input, strict=True) if is_input]))


class _GraphModel:
    """The function of all inputs that calls the model of a whole graph."""

    def __init__(
        self,
        graph: _core.Graph,
        model: Callable[[GraphCall], Any],
        overrides: Overrides,
        deviations: Deviations | None,
    ) -> None:
        self.graph = graph
        self._model, self.overrides, self._deviations = model, overrides, deviations
        self.result_types = tuple(
            TensorSpec(port.value.dtype, tuple(port.value.shape)) for port in graph.outputs
        )
        self._lock = threading.Lock()
        self._session: _core.Session | None = None

    def __call__(self, *inputs: _Array) -> list[_Array]:
        call = GraphCall(self, inputs)
        expected = None if self._deviations is None else _if_supported(lambda: self.run_default(inputs))
        results = _checked_results(self._model, call, self.result_types, _WHOLE_GRAPH, {})
        if self._deviations is not None:
            self._deviations.add((self.graph.name, "graph", _WHOLE_GRAPH, "", ""), expected, results)
        return results

    def run_default(self, inputs: Sequence[_Array]) -> list[_Array]:
        """Runs the graph on tosaic's kernels."""
        with self._lock:
            if self._session is None:
                self._session = _session(_core.with_plain_boundary(self.graph), self.overrides)
        return list(self._session.run(list(inputs)))


_ROLES: dict[str, tuple[str, ...]] = {row.name: tuple(row.operands.split()) for row in _core.ops()}
"""The roles of operands by operator: ``name?`` may be absent, ``name*`` are any number."""
_OP_NAMES = frozenset(_ROLES)


def _if_supported(run: Callable[[], list[_Array]]) -> list[_Array] | None:
    """Returns the results of tosaic's kernels; None if an operator, such as a foreign one, has no kernel."""
    try:
        return run()
    except _core.UnsupportedOp:
        return None


def _session(graph: _core.Graph, overrides: Overrides) -> _core.Session:
    """Returns a session for a part of a program, with the program's functions for that part."""
    nodes, others = split_functions(overrides.functions, graph)
    foreign = of_foreign_nodes(graph, others)
    operators = {name: function for name, function in others.items() if name in _OP_NAMES}
    return _core.Session(graph, override_nodes=nodes, override_ops={**operators, **foreign})


def _checked_results(
    model: Callable[[Any], Any],
    call: NodeCall | GraphCall,
    types: Sequence[TensorSpec],
    key: str,
    where: Mapping[str, str],
) -> list[_Array]:
    """Calls a model and returns its results.

    Raises
    ------
    InvalidGraph
        The model raises an exception, or returns another number of arrays.
    LayoutMismatch
        A result has another dtype or shape, or an integer out of the range of its dtype.
    """
    try:
        made = model(call)
    except MemoryError:
        raise
    except Exception as error:  # the caller's model may raise any exception
        text = str(error)
        raise invalid(
            "run",
            f"the model ({key}) raised an exception",
            got=f"{type(error).__name__}{': ' if text else ''}{text}",
            **where,
        ) from error
    results = list(made) if isinstance(made, list | tuple) else [made]
    if len(results) != len(types):
        raise invalid(
            "run",
            f"the model ({key}) returned the wrong number of arrays",
            expected=str(len(types)),
            got=str(len(results)),
            **where,
        )
    for i, (result, wanted) in enumerate(zip(results, types, strict=True)):
        fault = _fault(result, wanted)
        if fault:
            raise layout_mismatch(
                "run",
                f"the model ({key}) returned the wrong array" + f" as result {i}" * (len(types) > 1),
                expected=type_text(wanted.dtype, wanted.shape),
                got=fault,
                **where,
            )
    return results


def _fault(result: Any, wanted: TensorSpec) -> str:
    """Returns what is wrong with a model's result for this type; empty if it is an array of the type."""
    if not isinstance(result, np.ndarray | np.generic):
        return shown(result)
    if result.dtype != _numpy_dtype(wanted.dtype) or tuple(result.shape) != wanted.shape:
        return _array_text(result)
    if wanted.dtype in ("i4", "i48") and result.size:
        limit = 1 << (BITS[wanted.dtype] - 1)
        least, greatest = int(result.min()), int(result.max())
        if least < -limit or greatest >= limit:
            return f"integers from {least} to {greatest}"
    return ""


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name in ML_DTYPES:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, ML_DTYPES[name]))
    return NUMPY.get(name, np.dtype("int64"))  # 48-bit integers are stored as int64


def _array_text(array: Any) -> str:
    return type_text(dtype_name(array.dtype), array.shape)
