"""Operators that create tensors, and calls that do nothing (dropout in inference, assertions, sizes)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from operators.checking import Row
from operators.draw import ANY, FLOAT, arguments, number, shape, tensor
from operators.names import overload
from operators.values import T

Draw = Callable[[Any], Any]
ROWS: dict[str, Row] = {}
DTYPE = st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool])
FLOATS = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
OPTIONS = {"dtype": DTYPE}


@st.composite
def sizes(draw: Draw) -> list[int]:
    return list(draw(shape()))


ROWS["zeros"] = ROWS["ones"] = Row(arguments([sizes()], OPTIONS))
ROWS["full"] = Row(arguments([sizes(), number(0, 7)], OPTIONS))
ROWS["zeros_like"] = ROWS["ones_like"] = Row(arguments([tensor(shape(), ANY)], OPTIONS))
ROWS["full_like"] = Row(arguments([tensor(shape(), ANY), st.integers(0, 5)], OPTIONS))
ROWS["new_zeros"] = ROWS["new_ones"] = Row(arguments([tensor(shape(), ANY), sizes()], OPTIONS))
ROWS["new_full"] = Row(arguments([tensor(shape(), ANY), sizes(), st.integers(0, 5)], OPTIONS))
ROWS["scalar_tensor"] = Row(arguments([number(0, 1e10)], {"dtype": FLOATS}))
COUNT = st.integers(0, 9)
ROWS["eye"] = Row(arguments([COUNT], OPTIONS))
ROWS["eye.m"] = Row(arguments([COUNT, COUNT], OPTIONS))
NUMBERS = {"dtype": st.sampled_from([torch.float32, torch.int32, torch.int64, torch.float16])}
ROWS["arange"] = Row(arguments([st.sampled_from([5, 0, 1, 7.5, 16])], NUMBERS))
ROWS["arange.start"] = Row(
    arguments([st.sampled_from([0, -3, 2, 0.5]), st.sampled_from([5, 9, 7.25])], NUMBERS)
)
ROWS["arange.start_step"] = Row(
    st.one_of(
        arguments([st.integers(-5, 0), st.integers(0, 20), st.sampled_from([1, 2, 3, 0.5])]),
        arguments(
            [st.integers(0, 9), st.integers(-20, 0), st.sampled_from([-1, -2, -0.25])], {"dtype": FLOATS}
        ),
    )
)
ROWS["linspace"] = Row(
    arguments([number(0), number(10), st.integers(0, 12)], {"dtype": FLOATS}), scale="conditioned"
)
SCALAR = tensor((), ("f32",), const=None)
ROWS["linspace.Tensor_Tensor"] = Row(arguments([SCALAR, SCALAR, st.integers(0, 12)]), scale="conditioned")
ROWS["linspace.Tensor_Scalar"] = Row(arguments([SCALAR, number(0), st.integers(0, 12)]), scale="conditioned")
ROWS["linspace.Scalar_Tensor"] = Row(arguments([number(0), SCALAR, st.integers(0, 12)]), scale="conditioned")


@st.composite
def classes(draw: Draw) -> Any:
    """Draws an index and the number of classes. One time in eight the latter is -1, which depends on data."""
    count = draw(st.integers(1, 6))
    index = T(draw(shape(0, 4)), "i64", "range", draw(st.integers(0, 3)), low=0, high=count)
    return (index, -1 if draw(st.integers(0, 7)) == 7 else count), {}


ROWS["one_hot"] = Row(classes())

# ---- no-ops ----

ROWS["dropout"] = Row(arguments([tensor(shape(), FLOAT), st.sampled_from([0.5, 0.0, 1.0]), st.just(False)]))


def _then(name: str) -> Callable[..., Any]:
    """Returns a function that makes the call, which has no result, and returns the negated operand."""

    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        condition = torch.ops.aten.any.default(torch.ops.aten.eq.Tensor(x, x))
        overload(name)(condition if name.startswith("_assert_async") else x, *args, **kwargs)
        return torch.ops.aten.neg.default(x)

    return run


def _size_of(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.ops.aten.mul.Scalar(x, torch.ops.aten.sym_size.int(x, dim))


X = tensor(shape(1, 4, empty=False), ("f32", "f16", "bf16"), const=False)
ROWS["_assert_async"] = Row(arguments([X]), call=_then("_assert_async"))
ROWS["_assert_async.msg"] = Row(
    arguments([X, st.just("not equal to itself")]), call=_then("_assert_async.msg")
)
ROWS["_assert_tensor_metadata"] = Row(
    arguments([tensor(shape(), ("f32",)), st.none()], {"dtype": st.just(torch.float32)}),
    call=_then("_assert_tensor_metadata"),
)


@st.composite
def sized(draw: Draw) -> Any:
    x = draw(X)
    return (x, draw(st.integers(0, len(x.shape) - 1))), {}


ROWS["sym_size.int"] = Row(sized(), call=_size_of)


def _assert_size(x: torch.Tensor, least: int) -> torch.Tensor:
    torch.ops.aten._assert_scalar.default(torch.ops.aten.sym_size.int(x, 0) >= least, "too small")
    return torch.ops.aten.neg.default(x)


ROWS["_assert_scalar"] = Row(arguments([X, st.integers(0, 1)]), call=_assert_size)
