"""Groups of Cortex-M in ``.pte`` files: kernels of ``cortex_m`` compute what the split program computes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.backends.cortex_m.passes.cortex_m_pass_manager")

import tosaic  # noqa: E402
from cortex_m.kernel_models import run_pte  # noqa: E402
from cortex_m.programs import PROGRAMS, Drawn  # noqa: E402
from cortex_m.reference import transformed  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


NOT_CLAIMED = {"hardsigmoid": "the convolution before it has floats", "transpose": "a group that only moves"}
BY_CPU = ("linear", "conv", "bmm", "avg_pool", "transposed conv")
"""Operators whose kernels get other arguments on a CPU without vectors."""


def _written(name: str, member: str, seed: int, folder: Path) -> tuple[Any, Any, Path]:
    program = PROGRAMS[name](Drawn(seed))
    split = tosaic.lower(program.exported, unsupported="split", claimants=[member])
    path = folder / f"{seed}.pte"
    split.save(path)
    return program, split, path


@pytest.mark.parametrize(
    ("name", "member"),
    [
        *((name, "cortex-m55") for name in PROGRAMS if name not in NOT_CLAIMED),
        *((name, "cortex-m4") for name in BY_CPU),
    ],
)
def test_the_kernels_of_an_operator_compute_the_split_program(name: str, member: str, tmp_path: Path) -> None:
    program, split, path = _written(name, member, 1, tmp_path)
    assert {group.claimant for group in split.partitions.groups} == {member}
    arrays = [np.asarray(each) for each in program.arrays]
    expected, found = split.run(*arrays), run_pte(tosaic.load_pte(path), *arrays)
    np.testing.assert_array_equal(found, expected)
    kernels = tosaic.registration.kernel_list(path)
    floats = {each.operator for each in kernels if "float32" in each.dtypes}
    assert all(each.startswith("cortex_m::") for each in floats)


@pytest.mark.parametrize("name", ["conv", "depthwise conv", "transposed conv", "bmm", "avg_pool"])
def test_temporary_buffers_have_the_sizes_that_executorch_allocates(name: str, tmp_path: Path) -> None:
    for seed in range(2):
        program, _, path = _written(name, "cortex-m55", seed, tmp_path)
        nodes = tosaic.load_pte(path).method("forward").program.graph.nodes
        found = [
            sum(math.prod(each.shape) for each in node.operands if each is not None and each.dtype == "u8")
            for node in nodes
        ]
        passed = transformed(program.exported, *program.arrays)
        buffers = [node for node in passed.graph.nodes if "alloc" in str(node.target)]
        assert sum(found) == sum(node.meta["val"].nbytes for node in buffers)


def test_a_linear_layer_with_scales_by_channel_is_a_convolution(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(24, 10), torch.nn.ReLU()).eval(), torch.randn(3, 24)
    quantized = tosaic.quantize(torch.export.export(model, (x,)), [(x,)], progress=False)
    split = tosaic.lower(quantized, unsupported="split", claimants=["cortex-m55"])
    split.save(tmp_path / "model.pte")
    operators = tosaic.registration.kernel_list(tmp_path / "model.pte").operators
    assert "cortex_m::quantized_conv2d.out" in operators
    assert "cortex_m::quantized_linear.out" not in operators
    assert "cortex_m::quantized_activation.out" not in operators  # the ReLU is a bound of the kernel
    found = run_pte(tosaic.load_pte(tmp_path / "model.pte"), x.numpy())
    np.testing.assert_array_equal(found, split.run(x.numpy()))


def test_a_buffer_is_no_state_of_the_file(tmp_path: Path) -> None:
    _, _, path = _written("conv", "cortex-m55", 1, tmp_path)
    program = tosaic.load_pte(path).method("forward").program
    assert not program.states
    assert {each.rule for each in program.diagnostics} == {"opaque"}
