"""Calls that change the shape of their operand in place: which values have the new shape, which the old."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fx.agreement import assert_agrees
from fx.exporting import exported, imported, ops
from tosaic.fx import from_exported

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
X = torch.randn(3, 1, 4, generator=torch.Generator().manual_seed(5))

CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "squeeze_": lambda y: y.squeeze_(),
    "squeeze_ of an axis": lambda y: y.squeeze_(1),
    "squeeze_ of an axis that stays": lambda y: y.squeeze_(0),
    "squeeze_ of axes": lambda y: torch.ops.aten.squeeze_.dims(y, [0, 1]),
    "unsqueeze_": lambda y: y.unsqueeze_(-1),
    "transpose_": lambda y: y.transpose_(0, 2),
    "swapaxes_": lambda y: y.swapaxes_(0, -1),
    "swapdims_": lambda y: y.swapdims_(1, 2),
    "t_": lambda y: y.squeeze_(1).t_(),
    "as_strided_": lambda y: y.as_strided_((4, 3), (3, 1)),
    "as_strided_ of a part": lambda y: y.as_strided_((2, 2), (6, 2), 1),
    "as_strided_ of what was transposed in place": lambda y: y.transpose_(0, 2).as_strided_((2, 6), (6, 1)),
    "resize_": lambda y: y.resize_(2, 6),
    "resize_ to fewer": lambda y: y.resize_(5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_shape_changed_in_place_is_the_shape_of_the_result_and_of_the_operand(name: str) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        z = CHANGES[name](y)
        return y * 2, z

    assert_agrees(call, X, decomposed=False)
    assert "opaque" not in ops(imported(call, X))


def test_an_alias_of_the_operand_has_its_old_shape() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        alias, view = y.detach(), y.view(12)
        y.transpose_(0, 2)
        return y * 2, alias * 2, view * 2

    assert_agrees(call, X, decomposed=False)


def test_a_write_after_a_change_of_shape_is_seen_by_every_name_of_the_tensor() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        z = y.mul_(2)
        y.transpose_(0, 2)
        z.add_(torch.arange(3.0))
        whole = y.detach()
        y.mul_(3)
        return y, z, whole

    assert_agrees(call, X, decomposed=False)


def test_a_write_after_a_change_of_shape_is_seen_by_an_alias_of_the_old_shape() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        alias = y.detach()
        y.transpose_(0, 2)
        y.add_(torch.arange(3.0))
        return y, alias

    assert_agrees(call, X, decomposed=False)


def test_a_write_before_the_change_of_shape_is_still_seen_by_views_of_the_whole() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        alias = y.detach()
        y.mul_(torch.arange(4.0))
        y.squeeze_(1)
        return y, alias

    assert_agrees(call, X, decomposed=False)


def test_a_resize_beyond_the_memory_of_the_tensor_is_opaque() -> None:
    ep = exported(lambda x: (x + 1).resize_(40) * 0, X)
    assert "opaque" in ops(from_exported(ep))
