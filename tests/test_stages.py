"""Small networks and random graphs through the pipeline, with checks after every pass.

After each pass, the verifier accepts the graph, print -> parse -> print is the identity, a second run of the
pass changes nothing, and the executor's results agree with torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from random_graphs.checking import TARGETS, expected_outputs, reparsed
from random_graphs.generate import generate
from torch import nn
from tosaic import _core

SEEDS = range(1000, 1040)
# The order of the pipeline; the checks have to hold for any other order too.
PIPELINE = (
    *("fold-constants", "dead-code", "common-subexpressions", "simplify", "fold-batch-norm"),
    *("decompose", "fold-constants", "sink-reshapes", "simplify", "common-subexpressions"),
    *("choose-shapes", "assign-dim-order"),
    *("legalize-tosa", "fold-constants", "simplify", "common-subexpressions", "store-constants"),
    *("unit-axes", "narrow-operands", "split-tables", "split-rescales"),
    "split-attentions",
)


class Residual(nn.Module):
    """Convolutions, batch norms, a shortcut, squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8))
        self.depthwise = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.Hardswish()
        )
        self.squeeze, self.excite = nn.Linear(8, 2), nn.Linear(2, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu6(self.first(x))
        y = self.depthwise(x)
        scale = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))
        x = x + y * scale[:, :, None, None]
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Decoder(nn.Module):
    """Pooling, a transposed convolution, both resizings, a concatenation along channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        skip = F.silu(self.down(x))
        low = F.max_pool2d(skip, 2)
        y = self.last(torch.cat([skip, self.up(low)], 1))
        sizes = F.interpolate(y, scale_factor=2, mode="bilinear"), F.interpolate(y, scale_factor=2)
        return {"smooth": sizes[0], "blocky": sizes[1]}


class Attention(nn.Module):
    """Embeddings by index and position, causal attention, norms, gelu, an argmax."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.norm, self.mix, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        parts = self.mix(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = F.gelu(x + y.transpose(1, 2).flatten(2))
        logits = torch.log_softmax(self.out(x), -1)
        return logits, logits.argmax(-1)


class Speech(nn.Module):
    """One-dimensional convolutions, channels last inside, group and rms norm, a strided slice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.group, self.rms = nn.Conv1d(3, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.RMSNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.group(F.leaky_relu(self.conv(F.pad(x, (2, 2), mode="reflect"))))
        return torch.flip(self.rms(y.transpose(1, 2)), [1])[:, ::2].softmax(-1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "residual": (Residual, (torch.linspace(-2, 2, 3 * 81).reshape(1, 3, 9, 9),)),
    "decoder": (Decoder, (torch.linspace(-2, 2, 2 * 64).reshape(1, 2, 8, 8),)),
    "attention": (Attention, (torch.arange(5).reshape(1, 5),)),
    "speech": (Speech, (torch.linspace(-1, 1, 36).sin().reshape(1, 3, 12),)),
}


pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


def behind_each_pass(graph: _core.Graph) -> Iterator[tuple[str, _core.Graph]]:
    """Yields each graph of the pipeline with the name of the pass that made it, and checks each pass."""
    yield "import", graph
    for name in PIPELINE:
        before = graph.text()
        after = _core.run_pass(name, graph)
        assert graph.text() == before, f"{name} changed its operand"
        if after is graph:
            continue
        assert after.text() != before, f"{name} says that it changed something, and did not"
        assert _core.run_pass(name, after) is after, f"{name} changes its own result"
        graph = after
        yield name, graph


def refused(program: tosaic.Program) -> bool:
    return not any(tosaic.check(program, target=target) for target in TARGETS)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_same_results_after_every_pass(name: str) -> None:
    make, arguments = NETWORKS[name]
    torch.manual_seed(4)
    model = make().eval()
    with torch.no_grad():
        eager = model(*arguments)
    program = tosaic.from_exported(torch.export.export(model, arguments))
    expected = [value.numpy() for value in torch.utils._pytree.tree_leaves(eager)]
    for stage, graph in behind_each_pass(program.graph):
        graph.verify()
        assert reparsed(graph) == "", stage
        for value, got in zip(expected, _core.Session(graph).run(program.arrays(*arguments)), strict=True):
            if value.dtype.kind == "f":
                np.testing.assert_allclose(got, value, rtol=2e-5, atol=2e-5, err_msg=stage)
            else:
                np.testing.assert_array_equal(got, value, err_msg=stage)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_has_the_same_results_after_every_pass(seed: int) -> None:
    random = generate(seed)
    arguments = random.arguments()
    program = tosaic.from_exported(torch.export.export(random.module(), arguments))
    expected = expected_outputs(random)
    arrays: list[Any] = program.arrays(*arguments)
    try:
        for stage, graph in behind_each_pass(program.graph):
            graph.verify()
            assert reparsed(graph) == "", stage
            for name, value, got in zip(
                random.outputs, expected, _core.Session(graph).run(arrays), strict=True
            ):
                assert value.disagreement(got) == "", f"{name} behind {stage}\n{random.source()}"
    except tosaic.UnsupportedOp:
        assert refused(program)


def test_the_pipeline_verifies_after_every_change_and_reports_every_change() -> None:
    make, arguments = NETWORKS["residual"]
    program = tosaic.from_exported(torch.export.export(make().eval(), arguments))
    changes: list[tuple[str, str]] = []
    low = _core.lower(
        program.graph, verify_each=True, on_change=lambda name, g: changes.append((name, g.text()))
    )
    ran = [row["name"] for row in low.timings]
    assert ran == ["verify", *PIPELINE]
    assert [row["name"] for row in low.timings if row["changed"]] == [name for name, _ in changes]
    assert all(row["verify_seconds"] > 0 for row in low.timings if row["changed"])
    assert changes[-1][1] == low.tosa.text()


def test_passes_do_not_change_the_names_of_inputs_and_outputs() -> None:
    make, arguments = NETWORKS["decoder"]
    program = tosaic.from_exported(torch.export.export(make().eval(), arguments))
    for _, graph in behind_each_pass(program.graph):
        assert [port.name for port in graph.inputs] == ["x"]
        assert [port.path for port in graph.outputs] == ["out['smooth']", "out['blocky']"]
