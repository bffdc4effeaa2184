"""Calls without a row of the table: imported by torch's decompositions, or opaque with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from function_module import FunctionModule
from fx.exporting import exported, imported, ops
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

generator = torch.Generator().manual_seed(7)
X, Y, Z = (torch.randn(3, 4, generator=generator) for _ in range(3))
LABELS = torch.tensor([1, 3, 0])
SQUARE = torch.randn(4, 4, generator=generator)
EDGES = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 3e38, 1e-45, -2.5])

CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "xlogy": (torch.xlogy, (X.abs(), Y.abs())),
    "xlogy in place": (lambda x, y: (x * 2).xlogy_(y) + 1, (X.abs(), Y.abs())),
    "huber_loss": (F.huber_loss, (X, Y)),
    "mse_loss": (F.mse_loss, (X, Y)),
    "smooth_l1_loss": (F.smooth_l1_loss, (X, Y)),
    "l1_loss, unreduced": (lambda x, y: F.l1_loss(x, y, reduction="none"), (X, Y)),
    "kl_div": (lambda x, y: F.kl_div(x, y, reduction="batchmean"), (X, Y.softmax(1))),
    "poisson_nll_loss": (F.poisson_nll_loss, (X, Y.abs())),
    "hinge_embedding_loss": (F.hinge_embedding_loss, (X, Y.sign())),
    "multi_margin_loss": (F.multi_margin_loss, (X, LABELS)),
    "multilabel_margin_loss": (
        F.multilabel_margin_loss,
        (X, torch.tensor([[1, 2, -1, 0], [3, -1, 3, 3], [0, 1, 2, 3]])),
    ),
    "triplet_margin_loss": (F.triplet_margin_loss, (X, Y, Z)),
    "cosine_embedding_loss": (F.cosine_embedding_loss, (X, Y, Z[:, 0].sign())),
    "cosine_similarity": (F.cosine_similarity, (X, Y)),
    "pairwise_distance": (F.pairwise_distance, (X, Y)),
    "cross_entropy": (F.cross_entropy, (X, LABELS)),
    "cross_entropy that ignores": (lambda x, t: F.cross_entropy(x, t, ignore_index=3), (X, LABELS)),
    "nll_loss": (lambda x, t: F.nll_loss(x.log_softmax(1), t), (X, LABELS)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), (torch.arange(16.0).reshape(1, 4, 2, 2),)),
    "cdist": (torch.cdist, (X, Y)),
    "bilinear": (F.bilinear, (X, Y, torch.randn(5, 4, 4, generator=generator))),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), (X,)),
    "heaviside": (torch.heaviside, (torch.tensor([-1.0, 0.0, 2.0]), torch.tensor(0.5))),
    "copysign": (torch.copysign, (X, torch.tensor([-0.0, 0.0, -1.0, 1.0]))),
    "signbit": (torch.signbit, (EDGES,)),
    "frac": (torch.frac, (X * 5,)),
    "sinc": (torch.sinc, (X,)),
    "deg2rad": (torch.deg2rad, (X,)),
    "exp2": (torch.exp2, (X,)),
    "outer": (torch.outer, (X[0], Y[1])),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), (X[0], Y[:, 0])),
    "count_nonzero": (lambda x: torch.count_nonzero(x, 1), (X.relu(),)),
    "aminmax": (lambda x: torch.aminmax(x, dim=1), (X,)),
    "std_mean": (lambda x: torch.std_mean(x, 1), (X,)),
    "bucketize": (torch.bucketize, (X, torch.tensor([-1.0, 0.0, 1.0]))),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), (X,)),
    "vander": (torch.vander, (X[0],)),
    "addbmm": (torch.addbmm, (SQUARE, torch.ones(2, 4, 3), torch.ones(2, 3, 4))),
    "tensordot": (lambda x, y: torch.tensordot(x, y, [[1], [1]]), (X, Y)),
    "threshold": (lambda x: F.threshold(x, 0.1, 20.0), (X,)),
    "bicubic": (lambda x: F.interpolate(x, size=(5, 6), mode="bicubic"), (SQUARE.reshape(1, 1, 4, 4),)),
}
TABLE = torch.randn(6, 3, generator=generator)
IDS, STARTS = torch.tensor([1, 2, 3, 2, 5]), torch.tensor([0, 2, 2])
CALLS |= {
    "conv_tbc": (torch.conv_tbc, (torch.ones(5, 2, 3), torch.ones(3, 3, 4), torch.ones(4))),
    "embedding_bag of rows": (lambda w, i: F.embedding_bag(i, w), (TABLE, IDS[:4].reshape(2, 2))),
    "embedding_bag with an empty bag": (lambda w, i, o: F.embedding_bag(i, w, o), (TABLE, IDS, STARTS)),
    "embedding_bag, greatest": (lambda w, i, o: F.embedding_bag(i, w, o, mode="max"), (TABLE, IDS, STARTS)),
    "embedding_bag with padding": (
        lambda w, i, o: F.embedding_bag(i, w, o, padding_idx=2),
        (TABLE, IDS, STARTS),
    ),
    "embedding_bag with weights": (
        lambda w, i, o, p: F.embedding_bag(
            i, w, o, mode="sum", per_sample_weights=p, include_last_offset=True
        ),
        (TABLE, IDS, torch.tensor([0, 2, 5]), torch.rand(5, generator=generator)),
    ),
}
PLACES = torch.rand(2, 3, 3, generator=generator)
PLANES, BLOCKS = torch.randn(2, 3, 7, 9, generator=generator), torch.randn(2, 3, 6, 5, 8, generator=generator)
ROWS_, EXPERTS = torch.randn(8, 16, generator=generator), torch.randn(2, 16, 8, generator=generator)
SPLIT = torch.tensor([3, 8], dtype=torch.int32)
CALLS |= {
    "fmax": (torch.fmax, (EDGES, EDGES.flip(0))),
    "fmin": (torch.fmin, (EDGES, EDGES.roll(1))),
    "round to decimals": (lambda x: torch.round(x, decimals=1), (X,)),
    "round to tens": (lambda x: torch.round(x * 100, decimals=-1), (X,)),
    "fractional pooling of planes": (
        lambda x, u: F.fractional_max_pool2d_with_indices(x, (2, 3), (4, 5), _random_samples=u),
        (PLANES, PLACES[:, :, :2].contiguous()),
    ),
    "fractional pooling of volumes": (
        lambda x, u: F.fractional_max_pool3d_with_indices(x, 2, (3, 1, 4), _random_samples=u),
        (BLOCKS, PLACES),
    ),
    "grouped_mm of batches": (lambda a, b: F.grouped_mm(a, b), (EXPERTS.bfloat16(), EXPERTS.mT.bfloat16())),
    "grouped_mm of rows": (
        lambda a, b, o: F.grouped_mm(a, b, offs=o),
        (ROWS_.bfloat16(), EXPERTS.bfloat16(), SPLIT),
    ),
    "grouped_mm of columns": (
        lambda a, b, o: F.grouped_mm(a, b, offs=o),
        (EXPERTS.mT.bfloat16(), torch.cat([EXPERTS[0], EXPERTS[1]], 1).bfloat16(), SPLIT * 2),
    ),
    "grouped_mm along what is summed": (
        lambda a, b, o: F.grouped_mm(a, b, offs=o),
        (ROWS_.mT.bfloat16(), ROWS_.bfloat16(), SPLIT),
    ),
}
UNIT = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 2**-20, torch.float64: 2**-48}


def close(got: Any, wanted: torch.Tensor) -> None:
    unit = UNIT.get(wanted.dtype, 0)
    assert np.asarray(got).shape == tuple(wanted.shape)
    np.testing.assert_allclose(
        np.asarray(got).astype(np.float64), wanted.double().numpy(), rtol=4 * unit, atol=4 * unit
    )


def all_close(got: Any, wanted: Any) -> None:
    """Compares one result or several."""
    for g, w in zip(
        got if isinstance(got, tuple) else [got],
        wanted if isinstance(wanted, tuple) else [wanted],
        strict=True,
    ):
        close(g, w)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_imported_by_torchs_decomposition(name: str) -> None:
    call, args = CALLS[name]
    program = tosaic.from_exported(exported(call, *args))
    assert "opaque" not in [node.op for node in program.graph.nodes]
    all_close(program.run(*args), call(*args))


# Calls that torch's decomposition would express by more axes, or by a slice without elements.
OWN: dict[str, Any] = {
    "cumprod": (lambda x: x.cumprod(1), (X,)),
    "kron": (torch.kron, (X, Y)),
    "kron of 4 axes": (torch.kron, (SQUARE.reshape(2, 2, 2, 2), SQUARE.reshape(2, 2, 2, 2) * 3)),
    "kron of axes of 1": (torch.kron, (SQUARE.reshape(2, 1, 2, 1, 4), torch.rand(1, 3, 2, 1, 1))),
    "kron of 5 axes and 2": (torch.kron, (SQUARE.reshape(1, 2, 2, 2, 2), torch.rand(3, 2))),
    "kron of a number": (torch.kron, (X, torch.tensor(2.0))),
    "kron of integers and floats": (torch.kron, (torch.arange(4).reshape(2, 2), Y)),
    "cumprod of 6 axes": (lambda x: x.reshape(1, 2, 2, 1, 2, 2).cumprod(2), (SQUARE,)),
    "cumprod of integers": (lambda x: x.cumprod(-1), (torch.arange(1, 7).reshape(2, 3),)),
    "cumprod of a number": (lambda x: x.cumprod(0), (torch.tensor(2.0),)),
    "cumprod in another dtype": (lambda x: x.cumprod(0, dtype=torch.float32), (torch.arange(4),)),
    "cumprod behind a zero": (lambda x: x.cumprod(0), (torch.tensor([0.0, 1e30, 1e30, 2.0]),)),
    "pad of nothing": (lambda x: F.pad(x, (-4, 2)), (X,)),
    "pad of nothing by a number": (lambda x: F.pad(x, (1, 1, -2, 3), value=7.0) + 1, (X[:2],)),
}


@pytest.mark.parametrize("name", OWN)
def test_a_call_with_many_axes_or_without_elements_inside_lowers(name: str) -> None:
    call, args = OWN[name]
    program = exported(call, *args)
    all_close(tosaic.from_exported(program).run(*args), call(*args))
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP")
    all_close(lowered.run(*args), call(*args))


LOWERED = ("cross_entropy", "cdist", "vander", "bicubic", "fmax", "round to decimals")


@pytest.mark.parametrize(
    "name", [n for n in CALLS if n in LOWERED or n.startswith(("fractional", "grouped"))]
)
def test_a_decomposed_call_lowers(name: str) -> None:
    call, args = CALLS[name]
    lowered = tosaic.lower(exported(call, *args), target="TOSA-1.0+INT+FP+bf16")
    all_close(lowered.run(*args), call(*args))


def test_every_node_of_a_decomposition_has_the_origin_of_its_call() -> None:
    result = imported(torch.fmax, X, Y)
    assert len(ops(result)) > 1
    assert {node.origin.fx_name for node in result.graph.nodes} == {"fmax"}
    assert {node.origin.target for node in result.graph.nodes} == {"aten.fmax.default"}
    assert result.graph.nodes[-1].name == "fmax"


def test_operators_with_a_row_stay_one_node() -> None:
    assert ops(imported(lambda x: F.gelu(F.layer_norm(x, [4])), X)) == ["layer_norm", "gelu"]


def test_two_imports_of_a_program_are_equal() -> None:
    program = exported(F.cross_entropy, X, LABELS)
    first, second = (tosaic.from_exported(program).graph.text() for _ in range(2))
    assert first == second


def test_random_keep_integers_opaque_with_the_reason() -> None:
    result = imported(lambda x: torch.rand_like(x) + x, X)
    assert ops(result) == ["opaque", "add"]
    assert "it draws random numbers" in result.diagnostics[0].message


def test_calls_without_a_decomposition_stay_opaque_with_the_reason() -> None:
    result = imported(lambda x: torch.linalg.inv(x), SQUARE)
    assert ops(result) == ["opaque"]
    assert "which has no counterpart here" in result.diagnostics[0].message


def test_losses_of_torch_nn_import_without_opaque_nodes() -> None:
    pairs: list[tuple[nn.Module, tuple[torch.Tensor, ...]]] = [
        (nn.MSELoss(), (X, Y)),
        (nn.L1Loss(), (X, Y)),
        (nn.SmoothL1Loss(), (X, Y)),
        (nn.HuberLoss(), (X, Y)),
        (nn.KLDivLoss(reduction="sum"), (X, Y.softmax(1))),
        (nn.PoissonNLLLoss(), (X, Y.abs())),
        (nn.NLLLoss(), (X, LABELS)),
        (nn.CrossEntropyLoss(label_smoothing=0.1), (X, LABELS)),
        (nn.MarginRankingLoss(), (X, Y, Z.sign())),
        (nn.HingeEmbeddingLoss(), (X, Y.sign())),
        (nn.MultiMarginLoss(), (X, LABELS)),
        (nn.TripletMarginLoss(), (X, Y, Z)),
        (nn.CosineEmbeddingLoss(), (X, Y, Z[:, 0].sign())),
    ]
    for module, args in pairs:
        program = tosaic.from_exported(exported(FunctionModule(module), *args))
        assert "opaque" not in [node.op for node in program.graph.nodes], module
        close(program.run(*args), module(*args))
