"""Chooses the observer of each tensor.

configuration --planner_fields()--> planner --> plan --choose_observers()--> {slot: observer}
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tosaic import _core
from tosaic.annotation.config import Precision
from tosaic.annotation.observers import (
    ByUse,
    LeastError,
    LeastErrorBehind,
    MaskRange,
    MinMax,
    Observer,
    WholeNumbers,
)
from tosaic.annotation.plan import Plan
from tosaic.annotation.specs import Edge, Observed, Output, Slot
from tosaic.base.dtypes import OF_TORCH

_FEW_INTEGERS = 64


def planner_fields(precision: Precision, derive_bias: Callable[..., Any] | None) -> tuple[Any, ...]:
    """Returns the fields of a precision that the planner reads, with an observer for each role.

    Parameters
    ----------
    precision : Precision
    derive_bias : callable, optional
        The function of `Derived` specs of biases. None: biases stay float.

    Returns
    -------
    tuple
        An entry of the argument `precisions` of ``_core.plan_specs``.
    """
    activation, weight = precision.activation, precision.weight
    given = weight.observer if isinstance(weight.observer, Observer) else None
    grouped = None
    if weight.group_size is not None:
        grouped = weight.group_size, weight.observer or LeastError()
    of_channels = weight.observer if grouped is None else given
    return (
        _spec_fields(activation, activation.observer or ByUse()),
        _spec_fields(weight, of_channels or _of_weights(weight)),
        derive_bias,
        precision.fixed_ranges,
        precision.stream,
        precision.wide_functions,
        grouped,
        given,
        MaskRange(),
    )


def _of_weights(weight: Observed) -> Observer:
    """Returns the default observer. `LeastError` takes long, and pays off only for few integers."""
    is_coarse = (
        weight.qmin is not None and weight.qmax is not None and weight.qmax - weight.qmin < _FEW_INTEGERS
    )
    return LeastError() if is_coarse else MinMax()


def _spec_fields(spec: Observed, observer: Any) -> tuple[Any, ...]:
    return OF_TORCH.get(spec.dtype, spec.dtype), spec.qmin, spec.qmax, spec.scheme, observer


def choose_observers(plan: Plan, *, exact: Collection[Slot] = ()) -> dict[Slot, Observer]:
    """Returns the observer of each tensor that is observed.

    `ByUse` becomes the observer that suits the use. For a result that only one function reads, the error is
    measured at the function's result. Whole numbers, such as results of a `round`, get `WholeNumbers`: with
    scale 1 if they follow from integers of 32 or 64 bits, such as lengths, since later inputs may have larger
    ones than samples. Inputs of the program keep the range of all samples: later inputs often exceed the
    range of few samples, and no operator can recover what clipping removes. A spec without an observer gets
    `MinMax`. Other observers stay.

    Parameters
    ----------
    plan : Plan
    exact : collection of Edge or Output
        Slots that get `MinMax` instead of `ByUse`.

    Returns
    -------
    dict of Edge or Output to Observer
        In the order of the plan. Slots whose observer is a constructor of torchao are not in it.

    Examples
    --------
    >>> from tosaic.annotation import *
    >>> relu = Call("relu", "call", operands=(Operand("args[0]", "x"),))
    >>> graph = CallGraph([Call("x", "placeholder"), relu], inputs=[GraphPort("x", "x")])
    >>> plan = Plan(graph)
    >>> plan[Edge("x", "relu")] = plan[Output("relu")] = Observed(observer=ByUse())
    >>> choose_observers(plan)
    {Edge('x', 'relu'): MinMax(), Output('relu'): LeastError()}
    """
    inputs = {port.node for port in plan.graph.inputs}
    readers = _only_readers(plan)
    found: dict[Slot, Observer] = {}
    for slot in plan.slots():
        spec = plan[slot]
        if not isinstance(spec, Observed):
            continue
        observer = spec.observer or MinMax()
        if isinstance(observer, ByUse):
            observer = _by_use(plan, slot, observer.eps, inputs, exact, readers)
        if isinstance(observer, Observer):
            found[slot] = observer
    return found


def _by_use(
    plan: Plan,
    slot: Slot,
    eps: float,
    inputs: Collection[str | None],
    exact: Collection[Slot],
    readers: dict[str, str],
) -> Observer:
    producer = slot.producer if isinstance(slot, Edge) else slot.node
    author = plan.author(slot)
    if author == _core.COUNTS:
        return WholeNumbers(1.0)
    if author == _core.WHOLE_NUMBERS:
        return WholeNumbers(eps)
    if author == _core.STREAM or producer in inputs or slot in exact:
        return MinMax(eps)
    is_before_function = isinstance(slot, Output) and author == _core.BEFORE_FUNCTION
    if is_before_function and producer in readers:
        return LeastErrorBehind(readers[producer], eps)
    return LeastError(eps)


def _only_readers(plan: Plan) -> dict[str, str]:
    """Returns, for each node with exactly one reader, the name of the reader."""
    readers: dict[str, set[str]] = {}
    for call in plan.graph:
        for operand in call.operands:
            readers.setdefault(operand.producer, set()).add(call.name)
    return {producer: names.pop() for producer, names in readers.items() if len(names) == 1}
