"""Operators that tosaic does not have, described by the user: imported, run, planned, lowered, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tosaic.base.arrays import as_array, dtype_name
from tosaic.base.dim_order import channels_last
from tosaic.base.dtypes import type_text
from tosaic.base.exception_notes import add_note
from tosaic.base.json_text import parsed_json
from tosaic.base.options import invalid, layout_mismatch, refusal, shown, unsupported
from tosaic.base.quantization import QParams

LAYOUTS = ("row_major", "any", "channels_last")
_Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorSpec:
    """The type of a tensor.

    Attributes
    ----------
    dtype : str
        ``f32``, ``i64`` ...
    shape : tuple of int
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class QuantizedArray:
    """Integers, and the numbers that they represent.

    Attributes
    ----------
    integers : numpy.ndarray
    qparams : QParams
    """

    integers: _Array
    qparams: QParams


@dataclass(frozen=True)
class ForeignOp:
    """The description of an operator that tosaic does not have.

    A description is plain data. It is not registered globally: it applies to the programs that
    `tosaic.from_exported` reads with it.

    Parameters
    ----------
    target : str
        The torch operator: ``my_library.my_op.default``, or ``my_library::my_op``.
    kernel : callable
        Computes the operator. It is called as the torch operator was called, with numpy arrays instead of
        tensors, and returns an array, or a sequence of arrays if the operator has several results. Its
        parameters have the names of the torch operator's: an argument whose parameter has a default is passed
        by name, and only if it differs from the default.
    layout : {"row_major", "any", "channels_last"}
        The dim order of operands and results in memory. With ``"any"``, the operator is elementwise, and all
        its tensors have the same, arbitrary order; a call with tensors of different ranks, or with
        per-channel qparams, is row-major. With ``"channels_last"``, tensors of rank 3 to 5 have their
        channels innermost. The kernel always gets arrays with torch's axes. In a program that was read from
        a file, the file states the orders, whatever `layout` is.
    domain, name : str
        Domain and name of the ``tosa.custom`` that the operator becomes, unique among all operators. Without
        a name, a program with the operator can be run and compared, but not lowered. The arguments of the
        call that are not tensors become its attributes, as JSON.
    types : callable, optional
        Computes the types of the results. It is called as `kernel` is, with a `TensorSpec` instead of each
        tensor, and returns a `TensorSpec` or a sequence of them. The import compares them with what torch
        recorded.
    quantized : callable, optional
        Computes the operator with integers, if all its float operands and results are quantized. It is called
        as `kernel` is, with a `QuantizedArray` instead of each quantized tensor and the keyword
        `results`, a tuple with the `QParams` of each result. It returns integers. Without `quantized`, the
        operator is computed with floats, which a target without profile FP refuses.

    Raises
    ------
    InvalidGraph
        A parameter has a value that is not accepted.

    Examples
    --------
    >>> import numpy as np
    >>> import tosaic
    >>> gate = tosaic.ports.ForeignOp(
    ...     "my_library::gate",
    ...     lambda x, factor: x / (1 + np.exp(-factor * x)),
    ...     layout="any",
    ...     domain="my_library",
    ...     name="gate",
    ... )
    >>> gate.target
    'my_library.gate.default'
    """

    target: str
    kernel: Callable[..., Any]
    layout: str = "row_major"
    domain: str = ""
    name: str = ""
    types: Callable[..., Any] | None = None
    quantized: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for option in ("target", "domain", "name", "layout"):
            value = getattr(self, option)
            if not isinstance(value, str):
                raise refusal("ForeignOp", option, "a string", value)
        object.__setattr__(self, "target", _full_target(self.target))
        if not callable(self.kernel):
            raise refusal("ForeignOp", "kernel", "a function of numpy arrays", self.kernel)
        for option in ("types", "quantized"):
            value = getattr(self, option)
            if value is not None and not callable(value):
                raise refusal("ForeignOp", option, "a function, or None", value)
        if self.layout not in LAYOUTS:
            raise refusal("ForeignOp", "layout", " or ".join(map(repr, LAYOUTS)), self.layout)
        if bool(self.domain) != bool(self.name):
            raise refusal("ForeignOp", "name", "a name and a domain, or neither", self.name or self.domain)


def attributes_of_call(
    operator: ForeignOp, operands: Sequence[int], results: Sequence[int]
) -> dict[str, Any]:
    """Returns the part of a description that a node of the graph stores.

    Tensors of different ranks cannot have the same order, so a call with such tensors is row-major if the
    layout is ``"any"``. A number, of rank 0, fits every order.

    Parameters
    ----------
    operator : ForeignOp
    operands, results : sequence of int
        Ranks.
    """
    ranks = {*filter(None, operands), *results}
    return {
        "domain": operator.domain,
        "name": operator.name,
        "layout": "row_major" if operator.layout == "any" and len(ranks) > 1 else operator.layout,
        "integers": operator.quantized is not None,
    }


class Kernel:
    """Runs a described operator instead of a kernel of tosaic.

    Parameters
    ----------
    operator : ForeignOp
    physical : bool
        True for ``tosa.custom``, whose arrays have physical shapes.
    """

    takes_arguments = True  # the core also passes the node's arguments and result types

    def __init__(self, operator: ForeignOp, *, physical: bool) -> None:
        self.operator = operator
        self.physical = physical

    def __call__(self, arguments: str, operands: Sequence[_Array], results: Sequence[tuple[str, Any]]) -> Any:
        """Computes the results.

        Parameters
        ----------
        arguments : str
            JSON of the call. A ``tosa.custom`` of another writer may have none; then the kernel gets the
            operands only.
        operands : sequence of array
        results : sequence of (dtype, shape)

        Raises
        ------
        InvalidGraph
            The arguments have another form, the layout of the description contradicts them, or the kernel
            returns another number of arrays.
        LayoutMismatch
            The kernel returns something that is not an array, or an array of another shape.
        UnsupportedOp
            The call has integers, and the description has no function for them.
        """
        call = self._call(arguments, len(operands))
        orders = self._orders(call, bool(arguments.strip()), [x.ndim for x in operands], results)
        arrays: list[Any] = [
            x if order is None else x.transpose(np.argsort(order))
            for x, order in zip(operands, orders, strict=False)
        ]
        given = [f"{dtype_name(x.dtype)}{list(x.shape)}" for x in arrays]
        orders_of_results = orders[len(operands) :]
        qparams = call.get("qparams")
        keywords: dict[str, Any] = {}
        function, part = self.operator.kernel, "kernel"
        if qparams is not None:
            function, part = self._integer_function(given), "function 'quantized'"
            of = [None if each is None else QParams.of(each) for each in qparams["operands"]]
            arrays = [x if q is None else QuantizedArray(x, q) for x, q in zip(arrays, of, strict=True)]
            keywords["results"] = tuple(
                None if each is None else QParams.of(each) for each in qparams["results"]
            )
        args = [_filled(item, arrays) for item in call["args"]]
        keywords |= {key: _filled(item, arrays) for key, item in call["kwargs"].items()}
        try:
            made = function(*args, **keywords)
        except MemoryError:
            raise
        except Exception as error:
            self._note(error, part, given)
            raise
        if not results:  # an operator without tensors as results
            return []
        return self._results_of(made, part, results, orders_of_results)

    def _call(self, arguments: str, operand_count: int) -> dict[str, Any]:
        """Reads the call: its arguments, the qparams of integers, and the dim orders."""
        if not arguments.strip():
            return {"args": [{"$": i} for i in range(operand_count)], "kwargs": {}}
        try:
            call = _call_of(arguments)
            is_call = isinstance(call, dict) and {"args", "kwargs"} <= call.keys()
        except ValueError:  # no JSON
            is_call = False
        if is_call:
            return dict(call)
        name = f"{self.operator.domain}.{self.operator.name}"
        raise invalid(
            "run",
            f"'implementation_attrs' of the CUSTOM '{name}' are not the arguments of a call",
            expected='JSON with "args" and "kwargs", or nothing',
            got=shown(arguments),
            hint=f"Compute it with a function of its operands: with_overrides({{'{name}': function}})",
        )

    def _orders(
        self, call: dict[str, Any], has_arguments: bool, ranks: Sequence[int], results: Sequence[Any]
    ) -> list[tuple[int, ...] | None]:
        """Returns the dim order of each operand, then of each result; None for torch's axis order.

        The arguments of a call in a file state the orders, and the description has no effect.
        If the file has no arguments at all, the arrays have the layout of the description.
        """
        all_ranks = [*ranks, *(len(shape) for _, shape in results)]
        if not self.physical:
            return [None] * len(all_ranks)
        if "dim_orders" in call:
            return self._orders_of_file(call["dim_orders"], all_ranks)
        permuted = [channels_last(rank) if 3 <= rank <= 5 else None for rank in all_ranks]
        if self.operator.layout != "channels_last" or not any(permuted):
            return [None] * len(all_ranks)
        if has_arguments:
            raise invalid(
                "run",
                f"the description of '{self.operator.target}' has layout 'channels_last', and the "
                "CUSTOM has no dim orders",
                expected='"dim_orders" in implementation_attrs, where a tensor is not in torch\'s order',
                got="none",
                hint="With layout='row_major' the kernel gets the arrays as they are in the file",
            )
        return permuted

    def _orders_of_file(self, orders: Any, ranks: Sequence[int]) -> list[tuple[int, ...] | None]:
        found = orders if isinstance(orders, list) and len(orders) == len(ranks) else []
        fit = [
            order is None or (isinstance(order, list) and sorted(order) == list(range(rank)))
            for order, rank in zip(found, ranks, strict=False)
        ]
        if not all(fit) or len(fit) != len(ranks):
            raise invalid(
                "run",
                f"the dim orders of the CUSTOM '{self.operator.domain}.{self.operator.name}' do not fit",
                expected=f"one for each operand and result, of the ranks {', '.join(map(str, ranks))}",
                got=shown(orders),
            )
        return [None if order is None else tuple(order) for order in found]

    def _integer_function(self, given: Sequence[str]) -> Callable[..., Any]:
        if self.operator.quantized is None:
            raise unsupported(
                "run",
                f"'{self.operator.target}' computes with integers, and its description has no function "
                "for them",
                expected="tosaic.ports.ForeignOp(..., quantized=function)",
                got=f"no 'quantized', for operands {', '.join(given) or 'none'}",
            )
        return self.operator.quantized

    def _results_of(
        self,
        made: Any,
        part: str,
        results: Sequence[tuple[str, Any]],
        orders: Sequence[tuple[int, ...] | None],
    ) -> list[Any]:
        """Converts what the kernel returned to arrays in their dim orders."""
        items = list(made) if isinstance(made, list | tuple) else [made]
        source = f"the {part} of '{self.operator.target}'"
        if len(items) != len(results):
            raise invalid(
                "run",
                f"{source} returned the wrong number of arrays",
                expected=str(len(results)),
                got=str(len(items)),
            )
        arrays = []
        for item, (dtype, shape), order in zip(items, results, orders, strict=True):
            array = as_array(item, dtype=dtype, where="run", what=f"a result of {source}")
            inverse = range(len(shape)) if order is None else np.argsort(order)
            wanted = [shape[axis] for axis in inverse]  # with torch's axes, as the kernel returns it
            if list(array.shape) != wanted:
                raise layout_mismatch(
                    "run",
                    f"{source} returned the wrong array",
                    expected=type_text(dtype, wanted),
                    got=type_text(dtype_name(array.dtype), array.shape),
                )
            arrays.append(_of_dtype(array if order is None else array.transpose(order), dtype))
        return arrays

    def _note(self, error: Exception, part: str, given: Sequence[str]) -> None:
        """Adds a note to an exception of the user's function: which operator it computed."""
        operands = ", ".join(given) or "none"
        add_note(error, f"in the {part} of '{self.operator.target}', with operands {operands}")


def functions_of(operators: Iterable[ForeignOp]) -> dict[str, Kernel]:
    """Returns kernels by the names that nodes use: the target, and ``domain.name`` for ``tosa.custom``."""
    functions: dict[str, Kernel] = {}
    for operator in operators:
        functions[operator.target] = Kernel(operator, physical=False)
        if operator.name:
            functions[f"{operator.domain}.{operator.name}"] = Kernel(operator, physical=True)
    return functions


def operators_by_target(where: str, operators: Any) -> dict[str, ForeignOp]:
    """Returns the descriptions by target.

    Raises
    ------
    InvalidGraph
        `operators` is not a sequence of `ForeignOp`, or two of them describe the same operator or have the
        same domain and name.
    """
    expected = "a sequence of tosaic.ports.ForeignOp"
    if operators is None:
        return {}
    if isinstance(operators, str) or not isinstance(operators, Sequence):
        raise refusal(where, "operators", expected, operators)
    found: dict[str, ForeignOp] = {}
    for operator in operators:
        if not isinstance(operator, ForeignOp):
            raise refusal(where, "operators", expected, operator)
        if operator.target in found:
            raise refusal(where, "operators", "one description of each operator", operator.target)
        found[operator.target] = operator
    require_own_names(where, found.values())
    return found


def require_own_names(where: str, operators: Iterable[ForeignOp]) -> None:
    """Raises InvalidGraph if two operators have the same name, since a file could not tell them apart."""
    owner: dict[str, str] = {}
    operators = list(operators)
    for operator in operators:
        owner[operator.target] = operator.target
    for operator in operators:
        name = f"{operator.domain}.{operator.name}"
        if operator.name and name in owner:
            raise invalid(
                where,
                f"the operators '{owner[name]}' and '{operator.target}' have one name"
                if owner[name] != operator.target
                else f"domain and name of '{name}' together are the name of the torch operator",
                expected="a domain and name that no other operator has",
                got=f"domain '{operator.domain}' and name '{operator.name}'",
            )
        if operator.name:
            owner[name] = operator.target


def _full_target(target: str) -> str:
    full = target.replace("::", ".")
    parts = full.split(".")
    if len(parts) not in (2, 3) or not all(parts):
        raise refusal("ForeignOp", "target", "a name such as 'my_library.my_op.default'", target)
    return full if len(parts) == 3 else f"{full}.default"


@lru_cache(maxsize=4096)
def _call_of(arguments: str) -> Any:
    return parsed_json(arguments)


def _filled(item: Any, arrays: Sequence[Any]) -> Any:
    """Returns an argument of the call, with arrays instead of references to operands."""
    if isinstance(item, list):
        return [_filled(each, arrays) for each in item]
    if not isinstance(item, dict):
        return item
    if "$" in item:
        return arrays[item["$"]]
    if "float" in item:
        return float(item["float"])
    if "dict" in item:
        return {_filled(key, arrays): _filled(value, arrays) for key, value in item["dict"]}
    return item.get("dtype", item.get("repr"))


def _of_dtype(array: _Array, dtype: str) -> _Array:
    """Converts 64-bit integers to the 32 bits that they have in TOSA."""
    if dtype == "i32" and array.dtype == np.int64:
        narrow = array.astype(np.int32)
        if (narrow != array).any():
            raise invalid(
                "run",
                "a result of a foreign operator does not fit 32 bits",
                expected="-2147483648 to 2147483647",
                got=f"{array.min()} to {array.max()}",
            )
        return narrow
    return array
