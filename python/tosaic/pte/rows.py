"""Finds the row for an operator of a ``.pte`` file.

Files contain out variants: ``aten::add.out(a, b, alpha, out)``. The rows are those of the functional form:
``add.Tensor``. The file has no schemas, so the functional form is found by three rules of torch:

- The name is the name of the functional form, possibly with ``_copy`` (``permute_copy``), or with ``_`` for a
  call that writes its first operand (``copy_``).
- The overload is the overload of the functional form with ``out``: ``Scalar_out`` for ``Scalar``,
  ``IntList_out`` for ``dim_IntList``. A bare ``out`` may be any of them.
- The parameters are the same, except for the four that describe a new tensor (dtype, layout, device, memory).

So an overload fits if its row accepts these arguments. Among the overloads that fit, the one with the
nearest name is chosen.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from tosaic.torch_operators.call import Emit
from tosaic.torch_operators.table import TABLE
from tosaic.torch_operators.value import Ref


class Form(NamedTuple):
    """The functional form of a call.

    Attributes
    ----------
    name : str
        Key of the table: ``add.Tensor``.
    emit : callable
        The row.
    """

    name: str
    emit: Emit


def is_in_place(name: str) -> bool:
    """True for an operator that writes its first operand: ``aten::copy_``."""
    return name.endswith("_") and not name.endswith("__")


def form_of(name: str, overload: str, arguments: Sequence[Any]) -> Form | None:
    """Returns the row that reads a call; None if the table has none.

    Parameters
    ----------
    name, overload : str
        As in the file: ``aten::add``, ``out``.
    arguments : sequence
        Without results. Tensors are `Ref`.
    """
    bare = name.removeprefix("aten::")
    if is_in_place(bare):
        bare = bare.removesuffix("_")
    forms = _overloads().get(bare) or _overloads().get(bare.removesuffix("_copy")) or {}
    stem = _stem(overload)
    fitting = [
        (_rank(form, own, stem, arguments), form)
        for own, form in forms.items()
        if _fits(form.emit, arguments)
    ]
    return max(fitting, key=lambda each: each[0])[1] if fitting else None


@cache
def _overloads() -> dict[str, dict[str, Form]]:
    """Returns the rows by name and overload."""
    found: dict[str, dict[str, Form]] = defaultdict(dict)
    for key, emit in TABLE.items():
        name, _, overload = key.partition(".")
        found[name][overload] = Form(key, emit)
    return dict(found)


def _stem(overload: str) -> str:
    """Returns the functional overload's name in the name of an out variant: ``Scalar`` for ``Scalar_out``."""
    parts = [part for part in overload.split("_") if part not in ("out", "default")]
    return "_".join(parts)


# ---- which rows fit, and which one fits best ----


@cache
def _parameters(emit: Emit) -> tuple[tuple[inspect.Parameter, ...], inspect.Parameter | None]:
    """Returns the parameters of a row without the call, and its parameter for further arguments, or None."""
    every = list(inspect.signature(emit).parameters.values())[1:]
    rest = next((each for each in every if each.kind is each.VAR_POSITIONAL), None)
    return tuple(each for each in every if each is not rest), rest


def _fits(emit: Emit, arguments: Sequence[Any]) -> bool:
    parameters, rest = _parameters(emit)
    required = sum(each.default is each.empty for each in parameters)
    if len(arguments) < required or (rest is None and len(arguments) > len(parameters)):
        return False
    return all(_takes(str(p.annotation), a) for p, a in zip(parameters, arguments, strict=False))


def _takes(annotation: str, argument: Any) -> bool:
    """True if a parameter of a row accepts an argument, by the parameter's annotation."""
    if argument is None:
        return annotation == "Any" or annotation.endswith("| None")
    kind = annotation.removesuffix(" | None")
    if kind == "Ref":
        return isinstance(argument, Ref)
    if kind.startswith("Sequence[Ref"):
        return isinstance(argument, list) and all(each is None or isinstance(each, Ref) for each in argument)
    if kind.startswith("Sequence["):
        return isinstance(argument, list) and not any(isinstance(each, Ref) for each in argument)
    if kind in _SCALARS:
        return type(argument) in _SCALARS[kind]
    return True


_SCALARS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "str": (str,),
}


def _rank(form: Form, overload: str, stem: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Ranks the rows that fit a call by how likely the call means the row; the greatest rank is the best."""
    parameters, rest = _parameters(form.emit)
    # A row may ignore a size, which the result also has, but not a number.
    beyond = arguments[len(parameters) :] if rest is not None and rest.name == "_" else []
    ignored = any(type(each) in (int, float) for each in beyond)
    scalars = sum(
        str(p.annotation).removesuffix(" | None") in _SCALARS
        for p, _ in zip(parameters, arguments, strict=False)
    )
    has_tensors = any(isinstance(each, Ref) for each in arguments[1:])
    return (
        not ignored,
        overload == stem,
        bool(stem) and (stem in overload or (bool(overload) and overload in stem)),
        not overload,
        ("Tensor" in overload) == has_tensors,
        scalars,
        -len(overload),
    )
