"""Makes changed graphs in passes of the user: `Rewriter`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.base.arrays import as_array, dtype_name
from tosaic.base.dtypes import NUMPY, TORCH
from tosaic.base.options import invalid, refusal
from tosaic.base.quantization import QParams

# The dtypes to which `Rewriter.constant` converts, which both numpy and torch have.
_CONSTANTS = {name: NUMPY[name] for name in TORCH if name in NUMPY}


class Rewriter:
    """Makes a changed graph from a graph, node by node.

    Visit the nodes of `source` in order. For each, call `copy`, or emit other nodes and `replace` it. Nothing
    is copied before the first change. A node whose results nobody reads any more may be kept: later passes
    drop it.

    Parameters
    ----------
    graph : Graph

    Raises
    ------
    InvalidGraph
        Nodes are not visited in order, a replacement has another type or other qparams than the replaced
        value, operands do not fit an operator, or the result of an operator over quantized values has no
        qparams. The error names the node.

    Examples
    --------
    A pass that writes ``x - x`` as a constant:

    >>> import numpy as np
    >>> import tosaic
    >>> def zero_differences(graph):
    ...     rewriter = tosaic.Rewriter(graph)
    ...     for node in graph.nodes:
    ...         if node.op == "sub" and node.operands[0] == node.operands[1]:
    ...             zeros = np.zeros(node.results[0].shape, np.float32)
    ...             rewriter.replace(node, rewriter.constant(node, zeros))
    ...         else:
    ...             rewriter.copy(node)
    ...     return rewriter.finish()
    """

    def __init__(self, graph: _core.Graph) -> None:
        if not isinstance(graph, _core.Graph):
            raise refusal("Rewriter", "graph", "a tosaic.program.Graph, such as program.graph", graph)
        self._core = _core.Rewriter(graph)

    @property
    def source(self) -> _core.Graph:
        """The graph that is read."""
        return self._core.source

    def copy(self, node: _core.Node) -> None:
        """Copies the node, which must be the next one in the order of `source`."""
        self._core.copy(_node("copy", node))

    def replace(self, node: _core.Node, results: Any) -> None:
        """Replaces the results of the node, which must be the next one in the order of `source`, by values.

        Parameters
        ----------
        node : Node
        results : Value, NewValue, or a sequence of them
            As many values as the node has results, with the same dtypes and shapes, and at stage quantized
            with the same qparams. A `Value` of `source` represents the value that it has become in the new
            graph.
        """
        self._core.replace(_node("replace", node), results)

    def emit(
        self,
        at: _core.Node,
        op: str,
        operands: Sequence[Any],
        attrs: dict[str, Any] | None = None,
        *,
        qparams: QParams | Sequence[QParams | None] | None = None,
    ) -> Any:
        """Adds a node.

        Parameters
        ----------
        at : Node
            The node that is visited now. The new node is placed before it, and gets its origin.
        op : str
            An operator that is allowed at the stage of the graph; ``tosaic ops`` lists all operators.
        operands : sequence of Value, NewValue or None
            None for an optional operand that is absent.
        attrs : dict, optional
            Attributes by name. Missing attributes have their defaults.
        qparams : QParams, optional
            For a graph at stage quantized, where an operator over quantized values means "dequantize, compute
            in f32, quantize": the qparams with which the result is quantized, such as
            ``node.results[0].qparams``. The result is then integers of their dtype. A float result of an
            operator that reads quantized values must have them. A sequence for an operator with several
            results. The result of ``quantize`` has the qparams in its attributes.

        Returns
        -------
        NewValue or tuple of NewValue
            The result, or the results if the operator has several.
        """
        _node("emit", at)
        if not isinstance(op, str):
            raise refusal("emit", "op", "the name of an operator, such as 'add'", op)
        if isinstance(operands, str) or not isinstance(operands, Iterable):
            raise refusal("emit", "operands", "a sequence of values, also for one operand", operands)
        if isinstance(attrs, dict) and not all(isinstance(name, str) for name in attrs):
            raise refusal("emit", "attrs", "attributes by name", attrs)
        try:
            return self._core.emit(at, op, list(operands), attrs, qparams=qparams)
        except OverflowError as error:
            raise refusal("emit", "attrs", "integers of at most 64 bits", attrs) from error

    def constant(
        self,
        at: _core.Node,
        array: Any,
        *,
        dtype: str | None = None,
        qparams: QParams | None = None,
        name: str = "constant",
    ) -> _core.NewValue:
        """Adds a constant with the elements of an array, which is copied.

        Parameters
        ----------
        at : Node
            The node that is visited now.
        array : array_like or torch.Tensor
            Python floats become f32 and Python integers i64, also in lists, as ``torch.tensor`` converts
            them; at stage tosa, integers become i32. Arrays and tensors keep their dtype.
        dtype : str, optional
            ``f32``, ``i32`` ...: the elements are converted to it. TOSA has no f64, so an array of f64 is
            refused without it.
        qparams : QParams, optional
            The numbers that the integers represent, for a graph at stage quantized.
        name : str
            The name of the constant.

        Raises
        ------
        InvalidGraph
            The dtype is unknown, or an array of f64 has no `dtype`.
        LayoutMismatch
            `array` is not an array of numbers.
        """
        _node("constant", at)
        if not isinstance(name, str):
            raise refusal("constant", "name", "a string", name)
        elements = np.array(_elements(array, dtype, name, self.source.stage), order="C")
        constant = _core.Constant(
            name,
            "folded",
            dtype_name(elements.dtype),
            elements.shape,
            elements.ctypes.data,
            elements.nbytes,
            elements,
        )
        return self._core.constant(at, constant, qparams=qparams)

    def finish(self) -> _core.Graph | None:
        """Returns the new graph, or None if every node was copied. All nodes must have been visited."""
        return self._core.finish()


def _elements(array: Any, dtype: str | None, name: str, stage: str) -> np.ndarray[Any, Any]:
    """Returns the elements of a constant as an array of the dtype that it will have."""
    if dtype is not None and dtype not in _CONSTANTS:
        raise refusal("Rewriter.constant", "dtype", f"one of {', '.join(_CONSTANTS)}, or None", dtype)
    what = f"constant '{name}'"
    found = as_array(array, where="rewriter", what=what)
    if dtype is not None:
        return found if dtype_name(found.dtype) == dtype else found.astype(_CONSTANTS[dtype])
    if not hasattr(array, "dtype"):  # Python numbers
        found = (
            as_array(array, dtype="f32", where="rewriter", what=what) if found.dtype == np.float64 else found
        )
        found = found.astype(np.int32) if found.dtype == np.int64 and stage == "tosa" else found
    if found.dtype == np.float64:
        raise invalid(
            "rewriter",
            f"constant '{name}' has a dtype that TOSA lacks",
            expected="an array of another dtype, such as f32",
            got="an array of f64",
            hint="Write rewriter.constant(node, array, dtype='f32')",
        )
    return found


def _node(where: str, node: Any) -> _core.Node:
    if not isinstance(node, _core.Node):
        raise refusal(where, "at" if where in ("emit", "constant") else "node", "a node of the graph", node)
    return node
