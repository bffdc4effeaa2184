"""Converts the arrays of a sample to the form (axes, memory order, dtype) that each compared program expects.

A sample has arrays for the exported program: logical shapes and the program's own dtypes. A lowered program
may expect the same numbers permuted (``orders=``), as integers (``io=``), or both. A ``.tosa`` file has no
paths and no qparams, and its states may be inputs. Arrays that already have the form of the reference's
inputs, as far as shape or dtype show this, are first converted back to the form of the exported program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.arrays import as_array, in_memory_order
from tosaic.base.dim_order import channels_last, significant_axes
from tosaic.base.dtypes import NUMPY_INTEGERS, is_float, is_float_array, type_text
from tosaic.base.options import invalid, layout_mismatch, quant_mismatch
from tosaic.base.quantization import QParams

if TYPE_CHECKING:
    from tosaic.program.program import Program
    from tosaic.program.runnable import Runnable
    from tosaic.program.samples import Sample

_Array = np.ndarray[Any, Any]
_Order = tuple[int, ...]
_MOST_COMBINATIONS = 4096  # the most combinations of orders that are compared; few of them differ
_HIGHEST_RANK = 6  # the highest rank for which all permutations are tried

Logical = dict[str, _Array]
"""Arrays of the user's inputs by path, in logical axes."""


def _path(port: Any) -> str:
    return str(port.path or port.name)


def logical_arrays(sample: Sample, program: Runnable, source: Program) -> Logical:
    """Returns the arrays of a sample for `program` in the form of `source`, the program before lowering."""
    leaves = program.signature.flatten(sample.args, sample.kwargs)
    own = {_path(port): port for port in program.graph.inputs if port.kind == "user"}
    wanted = {_path(port): port for port in source.graph.inputs if port.kind == "user"}
    out: Logical = {}
    paths = [leaf.path for leaf in program.signature.input_leaves if leaf.index is not None]
    for path, leaf in zip(paths, leaves, strict=True):
        array = as_array(leaf, path)
        port, target = own.get(path), wanted.get(path)
        out[path] = array if port is None or target is None else _as_source(array, port, target)
    return out


def _as_source(array: _Array, port: Any, source: Any) -> _Array:
    """Converts an array from the form of `port` to that of `source`, the same input before lowering."""
    shape = tuple(source.value.shape)
    if array.shape != shape and array.shape == tuple(port.shape) and port.physical:
        array = array.transpose(np.argsort(port.dim_order))
    storage = None if port.qparams is None else NUMPY_INTEGERS.get(port.qparams.dtype)
    if storage is not None and array.dtype == storage and is_float(source.dtype):
        array = port.qparams.dequantize(array)
    return array


def arrays_for(program: Runnable, logical: Logical) -> list[_Array]:
    """Returns the array for each graph input of `program` except states, in the form that the input expects.

    Raises
    ------
    InvalidGraph
        The programs have different inputs.
    """
    ports = {_path(port): port for port in reversed(list(program.graph.inputs)) if port.kind == "user"}
    leaves = program.signature.input_leaves
    by_path = logical
    wanted = [leaf.path for leaf in leaves if leaf.index is not None]
    if set(wanted) != set(logical) and len(wanted) == len(logical):
        by_path = dict(zip(wanted, logical.values(), strict=True))
    if set(wanted) != set(by_path):
        given = ", ".join(f"{path}: {type_text(x.dtype.name, x.shape)}" for path, x in logical.items())
        raise _different_inputs(given, program)
    forms = [
        leaf.value if leaf.index is None else _in_form(by_path[leaf.path], ports[leaf.path])
        for leaf in leaves
    ]
    args, kwargs = program.signature.inputs.unflatten(forms)
    return program.graph_arrays(program.arrays(*args, **kwargs))


def require_same_inputs(a: Runnable, b: Runnable) -> None:
    """Checks that both programs have the same number of inputs.

    Raises
    ------
    InvalidGraph
        The numbers differ.
    """
    paths_a, paths_b = (
        [leaf.path for leaf in program.signature.input_leaves if leaf.index is not None] for program in (a, b)
    )
    if len(paths_a) != len(paths_b):
        raise _different_inputs(_ports_text(a), b)


def _ports_text(program: Runnable) -> str:
    ports = [port for port in program.graph.inputs if port.kind == "user"]
    return ", ".join(f"{_path(port)}: {type_text(port.dtype, port.shape)}" for port in ports)


def _different_inputs(expected: str, program: Runnable) -> Exception:
    return invalid(
        "compare", "the programs have different inputs", expected=expected, got=_ports_text(program)
    )


def _in_form(array: _Array, port: Any) -> _Array:
    if port.qparams is not None and is_float_array(array) and port.dtype == port.qparams.dtype:
        array = port.qparams.quantize(array)
    if port.physical:
        return np.ascontiguousarray(array.transpose(port.dim_order))
    order = tuple(port.dim_order)
    if len(order) != array.ndim:  # the run reports the wrong rank
        return array
    return in_memory_order(array, order)


# ---- .tosa files ----


class FileBoundary:
    """Matches inputs and outputs of a ``.tosa`` file with the inputs and outputs of the reference program.

    Inputs are matched by name if every name of the file is known. If not, they are matched by position.
    Outputs are matched by position. Positions count either the user's inputs (outputs), or all inputs
    (outputs), or all except those whose state is a variable of the file. New values of states that are
    variables are in `variables`. If the file has integers where the reference has floats, the qparams come
    from the reference's own quantize and dequantize nodes. The file does not say which memory order its
    arrays have: `forms` yields the orders that a caller may have declared for the inputs, and `output_orders`
    those for an output.

    Parameters
    ----------
    graph : Graph
        The graph of the file.
    reference : Graph
        The graph that the file is compared with.
    source : Graph
        The graph that the reference was made from, whose inputs and outputs have their traced orders.

    Raises
    ------
    InvalidGraph
        The numbers of inputs or outputs do not match.
    """

    def __init__(self, graph: _core.Graph, reference: _core.Graph, source: _core.Graph) -> None:
        self.graph = graph
        self._reference = reference
        self._own: dict[str, Sequence[Any]] = {"inputs": graph.inputs, "outputs": graph.outputs}
        self._theirs: dict[str, Sequence[Any]] = {"inputs": reference.inputs, "outputs": reference.outputs}
        self._traced: dict[str, dict[str, Any]] = {
            side: {_path(port): port for port in reversed(ports)}
            for side, ports in (("inputs", source.inputs), ("outputs", source.outputs))
        }
        self._positions: dict[str, int] = {}  # path -> position among the reference's user inputs
        for port in reference.inputs:
            if port.kind == "user":
                self._positions.setdefault(_path(port), len(self._positions))
        self._quantized: dict[str, dict[str, list[QParams]]] | None = None
        declared = {
            node.attrs["name"]
            for node in graph.nodes
            if node.op == "tosa.variable" and isinstance(node.attrs.get("name"), str)
        }
        self.variables = [
            (i, port.path)
            for i, port in enumerate(reference.outputs)
            if port.kind == "mutation" and port.path in declared
        ]
        self.inputs = self._pair(graph.inputs, reference.inputs, "inputs")
        self.outputs = self._pair(graph.outputs, reference.outputs, "outputs")

    def _pair(self, own: Sequence[Any], theirs: Sequence[Any], side: str) -> list[int]:
        """Returns, for each input (output) of the file, the index of its match in the reference."""
        names = {_value_name(port): i for i, port in enumerate(theirs)}
        found = [names.get(_value_name(port)) for port in own]
        if side == "inputs" and all(i is not None for i in found):
            return [i for i in found if i is not None]
        users = [i for i, port in enumerate(theirs) if port.kind == "user"]
        kept = {path for _, path in self.variables}
        # A state that is a variable of the file is neither an input nor an output of the file.
        others = [i for i, port in enumerate(theirs) if port.kind == "user" or port.path not in kept]
        for wanted in (users, list(range(len(theirs))), others):
            if len(wanted) == len(own):
                return wanted
        raise invalid(
            "compare",
            f"the programs have different {side}",
            expected=", ".join(f"{port.path or _value_name(port)}" for port in theirs),
            got=", ".join(_value_name(port) for port in own),
        )

    def _declared(self, side: str, i: int) -> list[_Order]:
        """Returns the dim orders that an input or output of the reference may have in a file.

        They are: the order in the reference; the traced order, which is the default of `lower`; row-major;
        and, for rank 3 to 5, channels last. Orders may repeat.
        """
        port = self._theirs[side][i]
        traced = self._traced[side].get(_path(port))
        found = [tuple(port.dim_order), *([] if traced is None else [tuple(traced.dim_order)])]
        rank = len(found[-1])
        return [*found, tuple(range(rank)), *([channels_last(rank)] if 3 <= rank <= 5 else [])]

    def output_orders(self, i: int) -> list[_Order]:
        """Returns the dim orders that output `i` of the reference may have in the file."""
        return self._declared("outputs", i)

    def forms(self, logical: Logical) -> Iterator[list[_Order]]:
        """Yields orders for all inputs, the likeliest combination first, each distinct layout once.

        A rule is a position in the list of `_declared`. Combinations in which all inputs follow one rule,
        as far as their shapes allow it, come first; mixtures of rules follow.
        """
        candidates = [self._candidates(k, logical) for k in range(len(self.inputs))]
        seen = set()
        for form in itertools.islice(_combined(candidates), _MOST_COMBINATIONS):
            key = tuple(
                tuple(significant_axes(self._array(logical, k).shape, order)) for k, order in enumerate(form)
            )
            if key not in seen:
                seen.add(key)
                yield form

    def _candidates(self, k: int, logical: Logical) -> list[_Order]:
        """Returns the orders that input `k` of the file may have, by rule.

        If no order of `_declared` fits the shape of the input in the file, the result has all permutations
        that fit.
        """
        shape, wanted = self._array(logical, k).shape, tuple(self._own["inputs"][k].shape)
        rules = self._declared("inputs", self.inputs[k])
        usual = [order for order in rules if _makes_shape(shape, order, wanted)]
        if usual:
            # One entry per rule, even if two are equal: entry i belongs to the same rule for every input.
            return [order if order in usual else usual[0] for order in rules]
        if len(shape) == len(wanted) <= _HIGHEST_RANK:
            return [o for o in itertools.permutations(range(len(shape))) if _makes_shape(shape, o, wanted)]
        return []

    def _array(self, logical: Logical, k: int) -> _Array:
        source = self._theirs["inputs"][self.inputs[k]]
        if source.kind == "state" and source.initial is not None:
            order = np.argsort(source.dim_order) if self._reference.stage == "tosa" else None
            return np.asarray(source.initial.array.transpose(order))
        return self._of(logical, source)

    def arrays(self, logical: Logical, form: Sequence[_Order]) -> list[_Array]:
        """Returns the arrays for the file's inputs, with `form` from `forms` as their orders.

        Raises
        ------
        QuantMismatch
            An input is an integer in the file, a float in the reference, and the reference has no qparams for
            it.
        """
        out = []
        for k, (port, i) in enumerate(zip(self._own["inputs"], self.inputs, strict=True)):
            array = self._array(logical, k)
            if is_float_array(array) and port.dtype in NUMPY_INTEGERS:
                array = self._qparams("inputs", i, port.dtype).quantize(array)
            if len(form[k]) == array.ndim:
                array = array.transpose(form[k])
            out.append(np.asarray(_fit(array, port), order="C"))
        return out

    def _of(self, logical: Logical, source: Any) -> _Array:
        if _path(source) in logical:
            return logical[_path(source)]
        return list(logical.values())[self._positions[_path(source)]]

    def output_qparams(self, i: int) -> QParams | None:
        """Returns the qparams of output `i` if the file has integers and the reference floats; else None."""
        theirs = self._theirs["outputs"][self.outputs[i]]
        own = self._own["outputs"][i]
        if not is_float(theirs.dtype) or own.dtype not in NUMPY_INTEGERS:
            return None
        return self._qparams("outputs", self.outputs[i], own.dtype)

    def _qparams(self, side: str, i: int, dtype: str) -> QParams:
        if self._quantized is None:
            quantized = _with_integer_boundaries(self._reference)
            self._quantized = {"inputs": _by_path(quantized.inputs), "outputs": _by_path(quantized.outputs)}
        named = self._theirs[side][i]
        found = self._quantized[side].get(named.path, [])
        fitting = [qparams for qparams in found if qparams.dtype == dtype]
        if not fitting:
            raise quant_mismatch(
                "compare",
                f"'{named.path or named.value.name}' of the {side} is {dtype} in the file",
                expected="a reference that quantizes it, once, to that dtype",
                got="a file without a sidecar, which would say which numbers its integers represent",
                hint="Write one with Lowered.save(path, sidecar=True), compare the lowered program itself, "
                "or compare with the program that was quantized",
            )
        return fitting[0]


def _by_path(ports: Sequence[Any]) -> dict[str, list[QParams]]:
    found: dict[str, list[QParams]] = {}
    for port in ports:
        if port.qparams is not None:
            found.setdefault(port.path, []).append(port.qparams)
    return found


def _makes_shape(shape: Sequence[int], order: _Order, wanted: Sequence[int]) -> bool:
    return len(order) == len(shape) and tuple(shape[axis] for axis in order) == tuple(wanted)


def _combined(candidates: Sequence[Sequence[_Order]]) -> Iterator[list[_Order]]:
    """Yields first one rule for all inputs, then one input with another rule, then all combinations."""
    most = max((len(each) for each in candidates), default=1)

    def at(rule: int, k: int) -> _Order:
        own = candidates[k]
        return own[min(rule, len(own) - 1)] if own else ()

    inputs = range(len(candidates))
    for rule in range(most):
        yield [at(rule, k) for k in inputs]
    for rule, k, other in itertools.product(range(most), inputs, range(most)):
        yield [at(other if each == k else rule, each) for each in inputs]
    for form in itertools.product(*([*each, ()][: len(each) or 1] for each in candidates)):
        yield list(form)


def _value_name(port: Any) -> str:
    return str(port.value.name)


def _with_integer_boundaries(graph: _core.Graph) -> _core.Graph:
    """Makes inputs and outputs integers, with the qparams of the first and last Q/DQ nodes."""
    if graph.stage not in ("exported", "quantized"):
        return graph
    try:
        return _core.lower(
            graph, pipeline="TOSA-1.0+FP+INT+int16", inputs="integer", outputs="integer"
        ).canonical
    except _core.Error:
        return _core.before_integers(graph)


def fit_to_ports(arrays: Sequence[_Array], ports: Sequence[Any]) -> list[_Array]:
    """Converts arrays to the shapes and dtypes of a ``.tosa`` file's inputs.

    An array whose shape does not fit is transposed to channels last if it fits then. int64 becomes int32, and
    uint8 and uint16 become int8 and int16 with the same bits.

    Raises
    ------
    LayoutMismatch
        A number does not fit the narrower dtype.
    """
    return [_fit(array, port) for array, port in zip(arrays, ports, strict=True)]


def _fit(array: _Array, port: Any) -> _Array:
    shape, last = tuple(port.shape), channels_last(array.ndim) if 3 <= array.ndim <= 5 else None
    if array.shape != shape and last is not None and tuple(array.shape[i] for i in last) == shape:
        array = np.ascontiguousarray(array.transpose(last))
    if array.dtype == np.int64 and port.dtype == "i32":
        narrow = array.astype(np.int32)
        if not np.array_equal(narrow, array):
            raise layout_mismatch(
                "inputs",
                f"input '{_path(port)}' does not fit the dtype of the file",
                expected="numbers of 32 bits",
                got=f"{array.min()} to {array.max()}",
            )
        array = narrow
    if array.dtype == np.uint8 and port.dtype == "i8":
        array = array.view(np.int8)  # the same bits: RESCALE has an attribute for unsigned inputs
    if array.dtype == np.uint16 and port.dtype == "i16":
        array = array.view(np.int16)
    return array
