"""The graph that tosaic.Quantizer annotates computes what the model does, also in later calls."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import tosaic

torch = pytest.importorskip("torch")

from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(torch.nn.Module):
    """Two buffers, and a function of the module and an input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("a", torch.arange(6.0).reshape(2, 3))
        self.register_buffer("b", 5 * torch.arange(6.0).reshape(2, 3))

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def swap(s: Any, _: Any) -> Any:
    kept = s.a.clone()
    s.a.copy_(s.b)
    s.b.copy_(kept)
    return s.a - s.b


def shift(s: Any, x: Any) -> Any:
    s.b.copy_(s.a)
    s.a.copy_(x)
    return s.b + s.a


def write_what_was_stored(s: Any, x: Any) -> Any:
    y = x * 2
    s.a.copy_(y)
    y.add_(1)
    return y * 1, s.a * 1


def write_the_input_that_was_stored(s: Any, x: Any) -> Any:
    s.a.copy_(x)
    x.add_(100)
    return s.a * 1


def store_and_update(s: Any, x: Any) -> Any:
    s.a.add_(x)
    kept = s.a.clone()
    s.a.copy_(x)
    s.a.add_(kept)
    return s.a * 1


def read_a_result_after_a_later_write(s: Any, x: Any) -> Any:
    first = s.a.add_(x)
    s.a.mul_(2)
    return first * 1


def read_a_view_after_a_later_write(s: Any, x: Any) -> Any:
    s.a.add_(x)
    view = s.a.t()
    s.a.mul_(2)
    return view * 1


def write_a_part(s: Any, x: Any) -> Any:
    y = s.a + x
    s.a.fill_(3)
    s.a[0] = y[1]
    return y


def add_numbers_of_another_dtype(s: Any, x: Any) -> Any:
    s.a.add_(x.double())
    return s.a * 1


def read_what_was_stored_after_a_view_was(s: Any, x: Any) -> Any:
    view = s.a.t()
    stored = s.a.copy_(x * 2)
    return view * 1, stored - 1


def store_the_other_buffer(s: Any, x: Any) -> Any:
    s.a.copy_(x)
    s.a.add_(1)
    x.sub_(s.a)
    return s.a * 1


FUNCTIONS = [value for value in list(globals().values()) if getattr(value, "__module__", "") == __name__][1:]


def results(module: Any) -> list[list[Any]]:
    """Three calls in a row: outputs, and what the input holds then."""
    found = []
    for i in range(3):
        x = torch.arange(6.0).reshape(2, 3) + i
        outputs = module(x)
        found.append([each.clone() for each in (*(outputs if isinstance(outputs, tuple) else (outputs,)), x)])
    return found


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@torch.no_grad()
def test_a_model_with_states_computes_what_it_did_when_it_is_annotated(function: Any) -> None:
    exported = torch.export.export(Net(function), (torch.ones(2, 3),))
    expected = results(deepcopy(exported).module())
    changed = results(tosaic.Quantizer().transform_for_annotation(deepcopy(exported).module()))
    for found, wanted in zip(changed, expected, strict=True):
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize(
    "function",
    [swap, shift, store_and_update, write_what_was_stored, read_what_was_stored_after_a_view_was],
)
@torch.no_grad()
def test_a_model_that_stores_what_another_state_held_can_be_prepared(function: Any) -> None:
    exported = torch.export.export(Net(function), (torch.ones(2, 3),))
    expected = results(deepcopy(exported).module())
    for found, wanted in zip(
        results(prepare_pt2e(deepcopy(exported).module(), tosaic.Quantizer())), expected, strict=True
    ):
        assert all(map(torch.equal, found, wanted))
