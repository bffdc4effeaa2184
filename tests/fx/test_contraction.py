"""Contractions and normalisations agree with torch at every stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fx.agreement import assert_agrees
from torch import nn

# torch's own run_decompositions uses a class that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

A = torch.ops.aten
X3, X4, X5 = torch.randn(2, 6, 9), torch.randn(2, 6, 8, 10), torch.randn(1, 4, 5, 6, 7)

EQUATIONS = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "ij, jk": ((2, 3), (3, 4)),
    "bhqd,bhkd->bhqk": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "ii->i": ((4, 4),),
    "ii": ((4, 4),),
    "ij->": ((3, 4),),
    "ba": ((2, 3),),
    "...ij,jk->...ik": ((2, 3, 4, 5), (5, 6)),
    "a...b,b...->a...": ((2, 3, 4), (4, 3)),
    "...ii->...i": ((2, 3, 3),),
    "i,j->ij": ((3,), (4,)),
    "i,i->": ((3,), (3,)),
    "ij,ij->ij": ((2, 3), (2, 3)),
    "iij->j": ((3, 3, 4),),
    "iiij,j->ij": ((3, 3, 3, 4), (4,)),
    "ab,cd->dbca": ((2, 3), (4, 5)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 5)),
    "bi,ij,bj->b": ((2, 3), (3, 4), (2, 4)),
    "bnsd,bmsd,bsn->bnm": ((2, 3, 4, 5), (2, 6, 4, 5), (2, 4, 3)),
    "Aa,aB->AB": ((2, 3), (3, 4)),
    "ij,jk->ki": ((2, 1), (3, 4)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_agrees(equation: str) -> None:
    operands = [torch.randn(shape) for shape in EQUATIONS[equation]]
    assert_agrees(lambda *x: torch.einsum(equation, *x), *operands, tolerance=2e-5)


RANKS = [
    ((3,), (3,)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((2, 3), (5, 3, 4)),
    ((1, 5, 2, 3), (6, 1, 3, 4)),
    ((2, 2, 2, 2, 2, 3), (2, 1, 2, 1, 3, 2)),
]


@pytest.mark.parametrize(("a", "b"), RANKS, ids=str)
def test_matmul_of_all_ranks_agrees(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert_agrees(lambda x, y: torch.matmul(x, y), torch.randn(a), torch.randn(b), tolerance=2e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_convolution_without_channels_has_the_result_of_torch(rank: int, bias: bool) -> None:
    """The result has no channels, whatever the weights have, padded or not, for one image too."""
    conv = getattr(torch.nn.functional, f"conv{rank}d")
    weight, b = torch.zeros(2, 0, *[3] * rank), torch.zeros(2) if bias else None
    image = torch.zeros(0, *[4] * rank)
    for x, padding in ((image[None], 0), (image[None], 1), (image[None], "same"), (image, 1)):
        assert_agrees(lambda x, p=padding: conv(x, weight, b, padding=p), x, targets=())
        assert_agrees(lambda x, w, p=padding: conv(x, w, b, padding=p), x, weight, targets=())


def test_integers_are_multiplied_exactly() -> None:
    a, b = torch.arange(6).reshape(2, 3) - 3, torch.arange(12).reshape(3, 4) - 5
    assert_agrees(lambda x, y: torch.einsum("ij,jk->ik", x, y), a, b)


MODULES: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "transposed 1-d": (nn.ConvTranspose1d(6, 4, 3, 2, 1, 1, groups=2, dilation=2), X3),
    "transposed 2-d": (nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, groups=2, dilation=2), X4),
    "transposed 2-d, longer by the padding": (nn.ConvTranspose2d(6, 4, 1, output_padding=1, dilation=2), X4),
    "transposed 3-d": (nn.ConvTranspose3d(4, 4, 3, 2, 1, 1), X5),
    "transposed 3-d, grouped": (nn.ConvTranspose3d(4, 4, 2, (1, 2, 3), 1, groups=2, dilation=2), X5),
    "transposed 3-d, unbatched": (nn.ConvTranspose3d(4, 4, 2), X5[0]),
    "3-d, grouped and dilated": (nn.Conv3d(4, 6, 3, padding=1, dilation=2, groups=2), X5),
    "circular": (nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular"), X4),
    "instance norm": (nn.InstanceNorm2d(6, affine=True), X4),
    "instance norm, unbatched": (nn.InstanceNorm2d(6), X4[0]),
    "instance norm by statistics": (nn.InstanceNorm3d(4, track_running_stats=True, affine=True), X5),
    "batch norm of the batch": (nn.BatchNorm2d(6, track_running_stats=False), X4),
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_agrees(module: str) -> None:
    what, x = MODULES[module]
    assert_agrees(what, x, tolerance=1e-4 if "batch norm" in module else 2e-5)


NORMS: dict[str, Any] = {
    "native_batch_norm": lambda x, w, b, m, v: A.native_batch_norm(x, w, b, m, v, False, 0.1, 1e-5)[0],
    "no_training": lambda x, w, b, m, v: A._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5)[0],
    "no_stats": lambda x, w, b, m, v: A._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)[0],
    "layer norm with statistics": lambda x, *_: A.native_layer_norm(x, [10], None, None, 1e-5),
    "group norm with statistics": lambda x, w, b, *_: A.native_group_norm(x, w, b, 2, 6, 80, 3, 1e-5),
}


@pytest.mark.parametrize("norm", NORMS)
def test_every_form_of_a_norm_agrees(norm: str) -> None:
    assert_agrees(
        NORMS[norm],
        X4,
        *[torch.rand(6) + 0.5 for _ in range(4)],
        tolerance=1e-4,
        decomposed=norm != "native_batch_norm",
    )


def test_softmax_accepts_rank_0() -> None:
    assert_agrees(lambda x: x.softmax(0), torch.randn(()))
