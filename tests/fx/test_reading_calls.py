"""How the import reads the arguments of calls, the elements of constants, and what it leaves behind."""

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from models.zoo import build
from torch import nn
from tosaic import _core
from tosaic.fx import from_exported
from tosaic.fx.reading.importer import Importer
from tosaic.torch_operators.value import NoValue, Ref

NAMES = ("input", "size", "factor")
DEFAULTS = (None, (1, 1), 2.0)


class Node(SimpleNamespace):
    __hash__ = object.__hash__


TYPES = _core.ArgumentTypes(Node, Ref, (int, float, bool, str, type(None), bytes), (list, tuple))


def read(args: Any, kwargs: Any, env: Any, resolved: Any = lambda value: value) -> tuple[list[Any], bool]:
    return _core.read_arguments(TYPES, args, kwargs, NAMES, DEFAULTS, env, resolved)


def test_arguments_come_in_the_order_of_the_parameters_with_defaults_filled_in() -> None:
    node, value = Node(), Ref(7, 0, ())
    assert read((node,), {"factor": 3}, {node: value}) == ([value, [1, 1], 3], True)
    assert read([node, [2, 4]], {}, {node: value}) == ([value, [2, 4], 2.0], True)
    assert read((node, b"f32", None), {}, {node: value}) == ([value, b"f32", None], True)


def test_an_argument_that_may_have_no_value_is_reported() -> None:
    node, missing = Node(), NoValue("aten.item.default")
    assert read((node,), {}, {node: missing}) == ([missing, [1, 1], 2.0], False)
    assert read((None, [node]), {}, {}, lambda _: [missing]) == ([None, [missing], 2.0], False)
    value = Ref(1, 0, ())
    assert read((None, [node]), {}, {}, lambda _: [value, 1]) == ([None, [value, 1], 2.0], True)
    assert read((1j,), {}, {}) == ([1j, [1, 1], 2.0], False)


def test_a_call_with_too_many_arguments_has_all_of_them() -> None:
    assert read((1, 2, 3, 4), {}, {}) == ([1, 2, 3, 4], True)


def test_a_node_that_was_not_read_raises_key_error() -> None:
    node = Node()
    with pytest.raises(KeyError) as raised:
        read((node,), {}, {})
    assert raised.value.args == (node,)


def test_errors_of_other_arguments_pass() -> None:
    def refuse(value: Any) -> Any:
        raise ValueError(f"no value: {value}")

    with pytest.raises(ValueError, match="no value"):
        read((object(),), {}, {}, refuse)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[1.5, -2.0, float("inf")]]),
        torch.tensor([1.5, -2.0]).to(torch.bfloat16),
        torch.tensor([0.5]).to(torch.float8_e4m3fn),
        torch.tensor([-128, 127], dtype=torch.int8),
        torch.tensor([1 << 40, -1]),
        torch.tensor([True, False]),
        torch.tensor(3.0),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_numbers_of_a_constant_are_its_elements_in_64_bits(tensor: torch.Tensor) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", tensor)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, self.held

    graph = from_exported(torch.export.export(Constant(), (torch.ones(2),))).graph
    numbers = graph.constants["held"].numbers()
    wide = torch.float64 if tensor.is_floating_point() else torch.int64
    assert numbers.dtype == (np.float64 if tensor.is_floating_point() else np.int64)
    assert numbers.shape == tuple(tensor.shape)
    assert np.array_equal(numbers, tensor.to(wide).numpy())


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu_(self.norm(self.conv(x))).flatten(1)


def test_an_import_leaves_nothing_for_the_garbage_collector() -> None:
    exported = torch.export.export(InPlace().eval(), (torch.ones(1, 3, 8, 8),))
    from_exported(exported)
    gc.collect()
    gc.disable()
    try:
        from_exported(exported)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["mobilenet_v2", "llama2", "unet"])
def test_plain_calls_are_read_as_all_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = build(name).export()
    reads = []

    class Counted:
        def read(self, *args: Any) -> Any:
            reads.append(plain.read(*args))
            return reads[-1]

    plain = Importer.plain_calls
    assert plain is not None
    monkeypatch.setattr(Importer, "plain_calls", Counted())
    fast = from_exported(exported).graph.text()
    assert sum(made is not None for made in reads) > 0.8 * len(reads) > 20
    monkeypatch.setattr(Importer, "plain_calls", None)
    assert from_exported(exported).graph.text() == fast


def test_a_call_in_training_mode_is_reported() -> None:
    exported = torch.export.export(nn.Dropout(0.5).train(), (torch.ones(2, 3),))
    rules = [each.rule for each in from_exported(exported).diagnostics]
    assert "training" in rules
