"""Sizes that are expressions of symbols. The archive writes them as sympy does, such as ``Symbol('s0')``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tosaic.base.options import unsupported
from tosaic.pt2.checked import beyond
from tosaic.pt2.values import Symbolic, TensorMeta

_SYMBOL = re.compile(r"Symbol\('(\w+)'[^()]*\)")
_HINT = 'Pass bind={"<input>": {<axis>: <size>}} or bind=<example inputs>'
_INT = frozenset({int})


class Sizes:
    """The sizes of a program without symbols. Torch reads programs with symbols, whose values it knows."""

    def resolve(self, value: Symbolic) -> Any:
        """Returns a size with a number in place of each bound symbol."""
        return value

    def value(self, size: Any) -> Any:
        """Returns the number of a size; anything else is returned unchanged.

        Raises
        ------
        UnsupportedOp
            The size depends on a symbol.
        """
        if type(size) is Symbolic:
            raise beyond(f"the size {_text(size)} is an expression of symbols")
        return size

    def shape(self, shape: Sequence[Any]) -> Sequence[int]:
        """Returns the shape with a number for every size."""
        return shape if _INT.issuperset(map(type, shape)) else tuple(self.value(size) for size in shape)

    def bind(self, bind: Any, inputs: Sequence[tuple[str, str, Any]]) -> None:
        """Refuses symbolic dimensions of the inputs.

        Raises
        ------
        UnsupportedOp
            An input has a symbolic dimension.
        """
        unbound = []
        for name, _, recorded in inputs:
            is_tensor = isinstance(recorded, TensorMeta)
            for axis, size in enumerate(recorded.shape if is_tensor else [recorded]):
                if type(size) is Symbolic:
                    place = f"axis {axis} of input '{name}'" if is_tensor else f"input '{name}'"
                    unbound.append((place, _text(size)))
        if not unbound and not bind:
            return
        if bind or not all(text.isidentifier() for _, text in unbound):
            raise beyond("'bind' gives sizes to symbols" if bind else "an input has a symbolic size")
        raise unsupported(
            "bind",
            "symbolic dimensions are not bound",
            expected="a size for each",
            got=", ".join(f"{place} ({text})" for place, text in unbound),
            hint=_HINT,
        )


def _text(size: Symbolic) -> str:
    found = _SYMBOL.fullmatch(size.expression)
    return found[1] if found else size.expression
