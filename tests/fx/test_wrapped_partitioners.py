"""`wrap_partitioner` around the partitioners of ExecuTorch: six real ones, on one small network."""

from __future__ import annotations

import copy
import os
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tosaic
from tosaic.executorch import combine_partitioners, wrap_partitioner

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.exir")

import torch.nn.functional as F  # noqa: E402
from executorch.exir.backend.partitioner import Partitioner, PartitionResult  # noqa: E402
from executorch.exir.passes.quantize_io_pass import extract_io_quant_params  # noqa: E402
from models.delegates import WithDelegates, run_file  # noqa: E402
from models.wrapped import INTEGER_ONLY, PARTITIONERS, Watched, damaged, delegates, lower  # noqa: E402
from models.zoo import quiet  # noqa: E402
from torch import nn  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]
QUANTIZED = [kind for kind in PARTITIONERS if kind != "tosa-fp"]


class Warping(nn.Module):
    """Warps an image of features by a flow; the third output adds the second input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.flow = nn.Conv2d(4, 2, 3, padding=1)
        self.last = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Any, y: Any) -> Any:
        features = torch.relu(self.first(x))
        flow = torch.tanh(self.flow(features)).permute(0, 2, 3, 1)
        warped = F.grid_sample(features, flow, align_corners=False)
        result = torch.relu(self.last(warped)) + features
        return result, result.mean((2, 3)), result + y


@cache
def inputs() -> Any:
    torch.manual_seed(0)
    return torch.randn(1, 3, 8, 8), torch.randn(1, 4, 8, 8)


@cache
def exported() -> Any:
    torch.manual_seed(1)
    return torch.export.export(Warping().eval(), inputs())


@cache
def quantized() -> Any:
    return quantize(exported().module(check_guards=False), inputs())


def quantize(module: Any, args: Any) -> Any:
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(module, tosaic.Quantizer(compatible_with="arm"))
        prepared(*args)
        return torch.export.export(convert_pt2e(prepared), args)


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the commands of installed wheels on the path, where ExecuTorch's VGF backend looks for them."""
    folders = [str(Path(sys.executable).parent), str(Path(np.__file__).parents[4] / "bin")]
    monkeypatch.setenv("PATH", os.pathsep.join([*folders, os.environ["PATH"]]))


def host_calls(manager: Any) -> list[str]:
    """Returns the calls outside of delegates, as names of operators."""
    calls = [node for node in manager.exported_program().graph.nodes if node.op == "call_function"]
    names = [getattr(getattr(node.target, "_op", None), "__name__", "") or str(node.target) for node in calls]
    return [name for name in names if "getitem" not in name and "call_delegate" not in name]


@pytest.mark.parametrize("kind", QUANTIZED)
def test_exactly_the_chosen_boundary_and_the_sampler_are_outside(kind: str) -> None:
    wrapped = wrap_partitioner(
        PARTITIONERS[kind](),
        quantized_inputs=["y"],
        quantized_outputs=[0, "out[2]"],
        host_ops=["grid_sampler_2d"],
    )
    chosen = {"inputs": [1], "outputs": [0, 2], "host": "grid_sampler", "integer_only": kind in INTEGER_ONLY}
    watched = Watched(wrapped, **chosen)
    manager = lower(quantized(), [watched])
    assert watched.wrong == []
    if kind in INTEGER_ONLY:
        assert [each.floats for each in delegates(manager)] == [0, 0]
    if kind != "xnnpack":  # XNNPACK refuses the convolutions of this quantizer
        assert watched.groups == 2  # one before and one after the sampler
        calls = host_calls(manager)
        assert sum("grid_sampler" in call for call in calls) == 1
        assert not any("permute" in call or "clone" in call for call in calls)


def test_a_float_network_keeps_its_sampler_on_the_host() -> None:
    watched = Watched(
        wrap_partitioner(PARTITIONERS["tosa-fp"](), host_ops=["grid_sampler_2d"]), host="grid_sampler"
    )
    manager = lower(exported(), [watched])
    assert watched.wrong == []
    assert host_calls(manager) == ["grid_sampler_2d.default"]
    found = WithDelegates(manager.exported_program()).run(*inputs())
    for mine, theirs in zip(found, exported().module()(*inputs()), strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_the_vgf_partitioner_alone_claims_the_sampler() -> None:
    manager = lower(quantized(), [PARTITIONERS["vgf"]()])
    assert host_calls(manager) == []
    assert len(delegates(manager)) == 1


def test_nothing_chosen_changes_no_tag() -> None:
    for kind in ("tosa-int+fp", "xnnpack"):
        inner = [each.calls for each in delegates(lower(quantized(), [PARTITIONERS[kind]()]))]
        wrapped = [
            each.calls for each in delegates(lower(quantized(), [wrap_partitioner(PARTITIONERS[kind]())]))
        ]
        assert wrapped == inner


@pytest.mark.parametrize("kind", ["tosa-int+fp", "xnnpack"])
def test_both_extractions_find_the_quantized_inputs_and_outputs(kind: str) -> None:
    wrapped = wrap_partitioner(PARTITIONERS[kind](), quantized_inputs=[0, 1], quantized_outputs=[2])
    manager = lower(quantized(), [wrapped])
    _, ours = tosaic.extract_io_quant(manager, inputs=[0, 1], outputs=[2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = extract_io_quant_params(copy.deepcopy(manager), input_idxs=[0, 1], output_idxs=[2])
    found = [(p.qparams.scale, p.qparams.zero_point) for p in (*ours.inputs, *ours.outputs)]
    listed = [*theirs["inputs"].values(), *theirs["outputs"].values()]
    assert found == [(each["scale"], each["zero_point"]) for each in listed]


def test_payloads_compute_what_the_quantized_program_computes_and_damage_is_seen() -> None:
    wrapped = wrap_partitioner(
        PARTITIONERS["tosa-int+fp"](),
        quantized_inputs="all",
        quantized_outputs="all",
        host_ops=["grid_sampler_2d"],
    )
    program = lower(quantized(), [wrapped]).exported_program()
    expected = [each.detach().numpy() for each in quantized().module(check_guards=False)(*inputs())]
    found = WithDelegates(program).run(*inputs())
    steps = [scale_of(quantized(), i) for i in range(3)]
    for mine, theirs, step in zip(found, expected, steps, strict=True):
        assert np.abs(mine - theirs).max() <= 2.5 * step
    found = WithDelegates(program, lambda file, args: run_file(damaged(file), args)).run(*inputs())
    errors = zip(found, expected, steps, strict=True)
    assert any(np.abs(mine - theirs).max() > 2.5 * step for mine, theirs, step in errors)


def scale_of(program: Any, output: int) -> float:
    result = next(iter(reversed(program.graph.nodes))).args[0][output]
    return float(result.args[1])


class Whole(Partitioner):
    """Takes nothing, and wants an operator whole that it takes nowhere."""

    def __init__(self, *operators: Any) -> None:
        super().__init__()
        self.operators = list(operators)
        self.seen: set[str] = set()

    def ops_to_not_decompose(self, ep: Any) -> Any:
        return ([] if ep.dialect == "EDGE" else self.operators), None

    def partition(self, exported_program: Any) -> PartitionResult:
        self.seen |= {str(n.target) for n in exported_program.graph.nodes if n.op == "call_function"}
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={})


class Swish(nn.Module):
    def forward(self, x: Any) -> Any:
        return F.hardswish(x) + F.gelu(x) * F.silu(x)


def test_several_partitioners_keep_the_operators_of_all_of_them_whole() -> None:
    program = torch.export.export(Swish(), (torch.randn(2, 3),))
    first = wrap_partitioner(Whole(torch.ops.aten.gelu.default), host_ops=["hardswish"])
    second = Whole(torch.ops.aten.silu.default)
    lower(program, combine_partitioners([first, second]))
    for name in ("gelu", "silu", "hardswish"):
        assert any(f"aten.{name}.default" in each for each in second.seen), name
    alone = Whole(torch.ops.aten.silu.default)
    lower(program, [Whole(torch.ops.aten.gelu.default), alone])  # ExecuTorch itself: the first one decomposes
    assert not any("aten.silu.default" in each for each in alone.seen)


def test_a_second_backend_takes_what_the_first_one_leaves() -> None:
    first = Watched(
        wrap_partitioner(PARTITIONERS["tosa-int"](), host_ops=["grid_sampler_2d"]), integer_only=True
    )
    second = Watched(wrap_partitioner(PARTITIONERS["xnnpack"]()))
    manager = lower(quantized(), combine_partitioners([first, second]))
    assert (first.wrong, second.wrong) == ([], [])
    backends = [each.backend for each in delegates(manager)]
    assert backends.count("TOSABackend") == 2
    assert backends.count("XnnpackBackend") >= 1
    assert sum("grid_sampler" in call for call in host_calls(manager)) == 1


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.last(F.max_pool2d(torch.relu(self.first(x)), 2))


@pytest.mark.parametrize("kind", ["xnnpack", "tosa-int"])
def test_a_host_operator_without_a_kernel_is_decomposed_and_stays_outside(kind: str) -> None:
    """`max_pool2d` has no out variant; XNNPACK's partitioner wants it whole."""
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    program = quantize(torch.export.export(Pooled().eval(), (x,)).module(check_guards=False), (x,))
    wrapped = wrap_partitioner(PARTITIONERS[kind](), host_ops=["max_pool2d"])
    with quiet():
        edge = lower(program, [wrapped])
        called = [str(n.target) for n in edge.exported_program().graph.nodes if n.op == "call_function"]
        file = bytes(edge.to_executorch().buffer)
    assert any("max_pool2d_with_indices" in target for target in called)
    assert len(delegates(edge)) >= 2
    assert b"aten::max_pool2d_with_indices" in file
