"""Replaces symbolic sizes by numbers: binds inputs' axes, evaluates derived sizes, checks ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from tosaic import _core
from tosaic.base.options import invalid, shown, unsupported, whole_number
from tosaic.ports.port_names import position_of
from tosaic.ports.signature import Tree

_HINT = 'Pass bind={"<input>": {<axis>: <size>}} or bind=<example inputs>'
_INT = frozenset({int})
_LARGEST = 2**63 - 1
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Sizes:
    """Values of the symbols of a program; a program without symbols is unaffected."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}
        self._known: dict[Any, int] = {}

    def value(self, size: Any) -> Any:
        """Returns the number of a symbolic value; anything else is returned unchanged."""
        if not isinstance(size, _SYMBOLIC):
            return size
        expression = size.node.expr
        known = self._known.get(expression)
        if known is None:
            number = expression.xreplace(self._values)
            if number.free_symbols:
                raise unsupported(
                    "import",
                    f"the size {expression} depends on data",
                    expected="sizes that follow from the shapes of the inputs",
                    got=f"free symbols {sorted(map(str, number.free_symbols))}",
                    hint="Keep all elements, e.g. torch.where(mask, x, 0) in place of x[mask], and keep "
                    "numbers tensors, without .item()",
                )
            if isinstance(size, torch.SymFloat):
                return float(number)
            known = int(number)
            if abs(known) > _LARGEST:
                raise invalid(
                    "bind",
                    f"the size {expression} is too large",
                    expected=f"at most {_LARGEST}",
                    got=shown(known),
                )
            self._known[expression] = known
        return bool(known) if isinstance(size, torch.SymBool) else known

    def learn(self, size: Any, value: int) -> None:
        """Notes the value of a data-dependent size; a size that is not a single symbol stays unknown."""
        if isinstance(size, _SYMBOLIC) and size.node.expr.is_Symbol:
            import sympy  # type: ignore[import-untyped]

            self._values[size.node.expr] = sympy.Integer(value)

    def shape(self, shape: Sequence[Any]) -> Sequence[int]:
        """Returns the shape with a number for every size."""
        return shape if _INT.issuperset(map(type, shape)) else tuple(self.value(size) for size in shape)

    def bind(
        self,
        inputs: Sequence[tuple[str, str, Any]],
        wanted: Mapping[tuple[int, int], int],
        ranges: Mapping[Any, Any],
    ) -> None:
        """Binds the symbols of the user inputs to values.

        Parameters
        ----------
        inputs : sequence of (name, path, meta value)
            The user inputs in order.
        wanted : mapping
            Sizes by (position of the input, axis); axis -1 means the value of an integer input.
        ranges : mapping
            ``ExportedProgram.range_constraints``.
        """
        pending = []
        for (position, axis), size in wanted.items():
            name, _, recorded = inputs[position]
            symbolic = recorded if axis < 0 else recorded.shape[axis]
            if isinstance(symbolic, _SYMBOLIC):
                pending.append((name, axis, symbolic.node.expr, size))
            elif symbolic != size:
                raise invalid(
                    "bind", f"axis {axis} of input '{name}' is static", expected=str(symbolic), got=str(size)
                )
        pending.sort(key=lambda item: not item[2].is_Symbol)
        for name, axis, expression, size in pending:
            self._equate(name, axis, expression, size)
        self._check_ranges(ranges)
        self._learn_single(ranges)
        self._refuse_unbound(inputs)

    def _equate(self, name: str, axis: int, expression: Any, size: int) -> None:
        left = expression.xreplace(self._values)
        free = sorted(left.free_symbols, key=str)
        if len(free) == 1:
            import sympy

            symbol = free[0]
            solved = [root for root in sympy.solve(left - size, symbol) if root.is_integer and root >= 0]
            if len(solved) == 1:
                self._values[symbol] = solved[0]
                return
        if not free and int(left) == size:
            return
        raise invalid(
            "bind",
            f"axis {axis} of input '{name}' has the size {expression}",
            expected=str(left),
            got=str(size),
        )

    def _check_ranges(self, ranges: Mapping[Any, Any]) -> None:
        for symbol, allowed in ranges.items():
            value = self._values.get(symbol)
            if value is not None and not (allowed.lower <= value <= allowed.upper):
                raise invalid(
                    "bind",
                    f"the symbol {symbol} was exported for another range",
                    expected=f"{allowed.lower} to {allowed.upper}",
                    got=str(value),
                )

    def _learn_single(self, ranges: Mapping[Any, Any]) -> None:
        """Learns the sizes that can have one value only, such as the length of a ``narrow``."""
        for symbol, allowed in ranges.items():
            if symbol not in self._values and allowed.is_singleton() and allowed.lower.is_Integer:
                self._values[symbol] = allowed.lower

    def _refuse_unbound(self, inputs: Sequence[tuple[str, str, Any]]) -> None:
        unbound = []
        for name, _, recorded in inputs:
            sizes = recorded.shape if isinstance(recorded, torch.Tensor) else [recorded]
            for axis, size in enumerate(sizes):
                if isinstance(size, _SYMBOLIC) and size.node.expr.xreplace(self._values).free_symbols:
                    where = (
                        f"axis {axis} of input '{name}'"
                        if isinstance(recorded, torch.Tensor)
                        else f"input '{name}'"
                    )
                    unbound.append(f"{where} ({size.node.expr})")
        if unbound:
            raise unsupported(
                "bind",
                "symbolic dimensions are not bound",
                expected="a size for each",
                got=", ".join(unbound),
                hint=_HINT,
            )


def wanted_sizes(
    bind: Any, inputs: Sequence[tuple[str, str, Any]], in_spec: Tree
) -> dict[tuple[int, int], int]:
    """Reads the `bind` argument into a map (position of the user input, axis) -> size."""
    if bind is None:
        return {}
    wanted: dict[tuple[int, int], int] = {}
    if isinstance(bind, Mapping):
        for key, sizes in bind.items():
            position = _position(key, inputs)
            if isinstance(sizes, Mapping):
                for axis, size in sizes.items():
                    place = _axis(axis, inputs[position])
                    wanted[position, place] = _size(size, inputs[position], axis)
            else:
                _add_example(wanted, position, sizes, inputs[position])
        return wanted
    for position, example in enumerate(_flatten_examples(bind, in_spec)):
        _add_example(wanted, position, example, inputs[position])
    return wanted


def _flatten_examples(bind: Any, in_spec: Tree) -> list[Any]:
    args = tuple(bind) if isinstance(bind, tuple | list) else (bind,)
    if len(args) == 2 and isinstance(args[0], tuple | list) and isinstance(args[1], Mapping):
        try:
            return in_spec.flatten((tuple(args[0]), dict(args[1])), "bind")
        except _core.InvalidGraph:
            pass  # then they are two positional arguments, not (args, kwargs)
    return in_spec.flatten((args, {}), "bind")


def _position(key: Any, inputs: Sequence[tuple[str, str, Any]]) -> int:
    named = [(path, name) for name, path, _ in inputs]
    position = position_of(key, named)
    if position is None:
        raise invalid(
            "bind",
            "no such input",
            expected=f"one of {[path or name for path, name in named]} or an index below {len(named)}",
            got=shown(key),
        )
    return position


def _axis(axis: Any, described: tuple[str, str, Any]) -> int:
    _, path, recorded = described
    rank = recorded.dim() if isinstance(recorded, torch.Tensor) else 0
    try:
        place = whole_number(axis)
    except TypeError:
        place = rank
    if not -rank <= place < rank:
        raise invalid(
            "bind", f"input '{path}' has no such axis", expected=f"an axis of its {rank}", got=shown(axis)
        )
    return place % rank


def _size(size: Any, described: tuple[str, str, Any], axis: Any = None) -> int:
    """Checks a size for an axis, or (`axis` None) the value of an input that is a number."""
    number: int | None = None
    with suppress(TypeError):
        number = whole_number(size)
    is_large = number is not None and abs(number) > _LARGEST
    if number is None or is_large or (axis is not None and number < 0):
        place = "" if axis is None else f"axis {axis} of "
        raise invalid(
            "bind",
            f"{place}input '{described[1]}' is bound to no size",
            expected="a whole number"
            + (f" of at most {_LARGEST}" if is_large else "" if axis is None else ", 0 or more"),
            got=shown(size),
        )
    return number


def _add_example(
    wanted: dict[tuple[int, int], int], position: int, example: Any, described: tuple[str, str, Any]
) -> None:
    _, path, recorded = described
    if isinstance(recorded, torch.Tensor):
        shape = getattr(example, "shape", None)
        if not isinstance(shape, tuple):  # torch.Size is one
            raise invalid(
                "bind",
                f"the example of input '{path}' is no array",
                expected="an array or tensor, or sizes by axis: {0: 1}",
                got=shown(example),
            )
        if len(shape) != recorded.dim():
            raise invalid(
                "bind",
                f"the example of input '{path}' has another rank",
                expected=str(recorded.dim()),
                got=str(len(shape)),
            )
        for axis, size in enumerate(shape):
            wanted[position, axis] = _size(size, described, axis)
    elif isinstance(recorded, _SYMBOLIC):
        wanted[position, -1] = _size(example, described)
