"""Input arrays in the program's dim order are read in place, and results are returned without a copy.

A test overwrites the caller's array after the first node. If the result changes, later nodes read that array;
if it does not change, they read a copy.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from torch import nn
from tosaic.base.arrays import as_array

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.randn(2, 3, 8, 6)
VOLUME = torch.randn(1, 2, 4, 3, 5)


@functools.cache
def lowered(form: Any, rank: int = 4) -> tosaic.Lowered:
    """Returns a program whose operators require no dim order, and whose last node reads the input again."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return x.flip(2) - x

    low = tosaic.lower(exported(call, X if rank == 4 else VOLUME), orders={"inputs": form, "outputs": form})
    assert low.layout.transposes == ()
    return low


def later_reads(low: tosaic.Lowered, given: Any) -> bool:
    """Returns whether the result changes if the caller's array is overwritten after the first node."""
    array = as_array(given)
    assert np.shares_memory(array, given.numpy() if isinstance(given, torch.Tensor) else given)
    before = low.session.trace([array], nodes=[])["outputs"][0]
    seen: list[str] = []

    def overwrite(name: str, results: list[Any]) -> None:
        if not seen:
            array[...] = 100
        seen.append(name)

    after = low.session.trace([array], nodes=[], observer=overwrite)["outputs"][0]
    assert len(seen) > 1
    return not np.array_equal(before, after)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.clone().to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


@pytest.mark.parametrize(
    ("form", "given"),
    [
        ("contiguous", lambda: X.clone()),
        ("contiguous", lambda: X.numpy().copy()),
        ("channels_last", lambda: last(X)),
        ("channels_last", lambda: last(X).numpy()),
        (
            "channels_last",
            lambda: np.ascontiguousarray(X.numpy().transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        ),
        ("channels_last", lambda: last(VOLUME)),
        ("nhwc", lambda: X.permute(0, 2, 3, 1).contiguous()),
        ("nhwc", lambda: VOLUME.permute(0, 2, 3, 4, 1).contiguous().numpy()),
        ((1, 0, 3, 2), lambda: X.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2)),
    ],
)
def test_an_array_in_the_declared_order_is_read_in_place(form, given) -> None:
    array = given()
    assert later_reads(lowered(form, array.ndim), array)


def test_parts_of_larger_arrays_and_unaligned_arrays_are_copied() -> None:
    assert not later_reads(lowered("contiguous"), torch.randn(2, 4, 8, 6)[:, :3])
    raw = np.zeros(X.numel() * 4 + 1, np.uint8)
    assert not later_reads(
        lowered("contiguous"), np.frombuffer(raw.data, np.float32, X.numel(), 1).reshape(X.shape)
    )


def test_axes_of_extent_1_may_have_any_stride() -> None:
    one = torch.randn(1, 1, 8, 6)

    def call(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x.abs(), 1) - x

    low = tosaic.lower(exported(call, one))
    assert later_reads(low, one.clone())
    assert later_reads(low, one.clone().as_strided((1, 1, 8, 6), (7, 1, 6, 1)))


def test_int8_inputs_are_read_in_place_and_int64_inputs_are_converted() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.maximum(x.flip(2), x)

    x = torch.randint(-9, 9, (2, 3, 4, 5))
    narrow = tosaic.lower(exported(call, x.to(torch.int8)), target="TOSA-1.0+INT")
    assert later_reads(narrow, x.to(torch.int8))
    wide = tosaic.lower(exported(call, x), target="TOSA-1.0+INT")  # int64 is int32 in TOSA
    assert not later_reads(wide, x.clone())


@pytest.mark.parametrize("form", ["contiguous", "channels_last", "nhwc"])
def test_results_are_memory_of_the_executor_in_the_declared_order(form) -> None:
    low = lowered(form)
    given = {"contiguous": X, "channels_last": last(X), "nhwc": X.permute(0, 2, 3, 1).contiguous()}[form]
    first, second = low.run(given), low.run(given)
    assert not first.flags.owndata
    assert not np.shares_memory(first, second)
    plan = {row["name"]: row for row in low.session.memory["values"]}
    assert plan[low.graph.outputs[0].value.name]["area"] == "output"
    orders = {"contiguous": (0, 1, 2, 3), "channels_last": (0, 2, 3, 1), "nhwc": (0, 1, 2, 3)}
    assert first.transpose(orders[form]).flags.c_contiguous


def test_a_network_of_images_reads_channels_last_arrays_in_place_and_transposes_nothing() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 3, 1).eval()

    def call(x: torch.Tensor) -> torch.Tensor:
        return conv(x) + x

    low = tosaic.lower(exported(call, last(X)))
    assert low.layout.transposes == ()
    assert later_reads(low, last(X))
