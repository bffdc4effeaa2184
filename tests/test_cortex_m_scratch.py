"""Temporary buffers of Cortex-M kernels: `Claimant.scratch_bytes` against CMSIS-NN and ExecuTorch's backend.

Sizes equal the results of CMSIS-NN's functions. The exception are transposed convolutions for which the
function returns less than the kernel uses (`cortex_m.scratch.too_small`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import tosaic
from cortex_m.scratch import CPUS, Call, drawn, graph_of, of_bindings, of_tosaic, recorded, too_small
from partitions.device_cases import DeviceCase, exported
from quantize_calls import qdq
from refusals import refusal
from torch import nn
from tosaic import Claimant, InvalidGraph


def sizes_of(cpu: str, program: object) -> dict[str, int]:
    sizes = Claimant.named(cpu).scratch_bytes(program)
    assert isinstance(sizes, dict)
    return sizes


# ---- against CMSIS-NN ----


@pytest.mark.parametrize("cpu", CPUS)
def test_sizes_equal_recorded_ones_of_the_functions_of_cmsis_nn(cpu: str) -> None:
    calls = [(call, sizes) for call, sizes in recorded() if not too_small(call)]
    found = of_tosaic([call for call, _ in calls], cpu)
    differing = [
        (call, size, sizes[CPUS[cpu]])
        for (call, sizes), size in zip(calls, found, strict=True)
        if size != sizes[CPUS[cpu]]
    ]
    assert not differing
    assert sum(map(bool, found)) > 80


@pytest.mark.parametrize("cpu", CPUS)
def test_sizes_equal_the_bindings_that_executorch_installs(cpu: str) -> None:
    pytest.importorskip("executorch.backends.cortex_m.library._cmsis_nn")
    calls = [call for call in map(drawn, range(1000, 1400)) if not too_small(call)]
    expected = [of_bindings(call, CPUS[cpu]) for call in calls]
    assert of_tosaic(calls, cpu) == expected


def test_the_recorded_calls_have_every_kernel_in_every_form() -> None:
    for form in ("SCALAR", "DSP", "MVE"):
        kinds = {
            (call.op, call.bits, call.is_depthwise)
            for call, sizes in recorded()
            if sizes[form] or form != "MVE"
        }
        assert {("conv", 8, False), ("conv", 8, True), ("conv", 16, False), ("conv", 16, True)} <= kinds
        assert {("transposed", 8, False)} <= kinds


def test_a_transposed_convolution_gets_as_much_as_its_kernel_uses() -> None:
    smaller = [(call, sizes) for call, sizes in recorded() if too_small(call)]
    assert smaller
    for cpu, form in CPUS.items():
        found = of_tosaic([call for call, _ in smaller], cpu)
        for (call, sizes), size in zip(smaller, found, strict=True):
            # arm_transpose_conv_s8 clears a row of sums: buf_x_elements, for max(kernel, stride) rows
            columns = (call.size[1] - 1) * call.stride[1] + max(call.kernel[1], call.stride[1])
            assert size == 4 * columns * call.filters * max(call.kernel[0], call.stride[0])
            assert size > sizes[form]


# ---- against ExecuTorch's backend ----


class _Net(nn.Module):
    """A convolution of each kernel, pools and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one_channel = nn.Conv2d(1, 24, (1, 4), padding=(0, 2))
        self.depthwise = nn.Conv2d(24, 24, 5, groups=24)
        self.pointwise = nn.Conv2d(24, 32, 1)
        self.reversed = nn.ConvTranspose2d(32, 4, 3, stride=2, padding=1)
        self.transposed = nn.ConvTranspose2d(4, 6, 2, stride=(3, 1))
        self.grouped = nn.Conv2d(6, 8, 3, groups=2, dilation=2)
        self.head = nn.Linear(8, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pointwise(self.depthwise(self.one_channel(x)))
        x = self.grouped(self.transposed(self.reversed(x)))
        return torch.softmax(self.head(F.avg_pool2d(x, 2).mean((2, 3))), -1)


@pytest.mark.filterwarnings("ignore")
def test_sizes_equal_those_that_the_backend_of_executorch_allocates() -> None:
    pytest.importorskip("executorch.backends.cortex_m.passes.cortex_m_pass_manager")
    from cortex_m.reference import allocated
    from executorch.backends.cortex_m.target_config import CortexM
    from models.quantize import converted

    torch.manual_seed(0)
    program = converted(_Net().eval(), [(torch.randn(1, 1, 12, 13),)], "cortex-m")
    cpus = {"cortex-m0plus": CortexM.M0PLUS, "cortex-m4": CortexM.M4, "cortex-m55": CortexM.M55}
    for cpu, theirs in cpus.items():
        ours = sizes_of(cpu, program)
        sums = ours.pop("linear")  # the backend computes the sums of a constant weight before it runs
        assert sums == (4 * 7 if cpu == "cortex-m55" else 0)
        assert [size for size in ours.values() if size] == [s for s in allocated(program, theirs) if s], cpu


# ---- as users call it ----


def _case(*args: object, **more: object) -> DeviceCase:
    return DeviceCase("case", *args, **more)  # type: ignore[arg-type]


def test_nodes_that_the_claimant_does_not_take_have_no_size() -> None:
    case = _case(lambda x, w: torch.sin(qdq(F.conv2d(x, w), 0.05)), ((1, 3, 8, 8),), weight=(4, 3, 3, 3))
    program = exported(case)
    sizes = sizes_of("cortex-m4", program)
    assert sizes["conv2d"] == 112
    assert "sin" not in sizes
    text = refusal(InvalidGraph, Claimant.named("cortex-m4").scratch_bytes, program, "sin")
    assert text.startswith(
        "[scratch_bytes] cortex-m4 does not take the node, so it has no kernel for it: expected a node that "
        "the claimant takes, got 'sin', which breaks operator (node 'sin', "
    )


def test_the_bytes_of_one_node_are_an_int() -> None:
    program = exported(_case(F.conv2d, ((1, 3, 8, 8),), weight=(4, 3, 3, 3)))
    assert Claimant.named("cortex-m4").scratch_bytes(program, "conv2d") == 2 * 2 * 28
    assert "the program has no such node" in refusal(
        InvalidGraph, Claimant.named("cortex-m4").scratch_bytes, program, "conv3d"
    )


@pytest.mark.parametrize("name", ["neutron", "host", "vgf", "ethos-u55-128", "TOSA-1.0+INT"])
def test_claimants_without_kernels_have_no_sizes(name: str) -> None:
    program = exported(_case(F.conv2d, ((1, 3, 8, 8),), weight=(4, 3, 3, 3)))
    assert Claimant.named(name).scratch_bytes(program) == {}
    assert Claimant.named(name).scratch_bytes(program, "conv2d") == 0


@pytest.mark.parametrize("cpu", CPUS)
def test_other_kernels_need_no_buffer(cpu: str) -> None:
    for call, shapes in (
        (torch.add, ((1, 3, 4, 4), (1, 3, 4, 4))),
        (torch.relu, ((1, 3, 4, 4),)),
        (torch.tanh, ((4, 8),)),
        (lambda x: F.max_pool2d(x, 2), ((1, 2, 4, 4),)),
        (lambda x: x.permute(1, 0), ((4, 8),)),
    ):
        assert set(sizes_of(cpu, exported(_case(call, shapes))).values()) == {0}


def test_a_convolution_over_one_axis_is_one_of_images_of_height_1() -> None:
    line = exported(_case(lambda x, w: F.conv1d(x, w, padding=1), ((1, 8, 30),), weight=(5, 8, 3)))
    call = Call("conv", 8, 1, 8, 5, 1, (1, 30), (1, 3), (1, 1), (0, 1), (1, 1))
    for cpu in CPUS:
        assert sizes_of(cpu, line)["conv1d"] == of_tosaic([call], cpu)[0] > 0


def test_a_mean_over_images_is_an_average_pool() -> None:
    case = _case(lambda x: x.mean((2, 3)), ((1, 24, 5, 5),))
    assert sizes_of("cortex-m33", exported(case))["mean"] == 4 * 24
    assert sizes_of("cortex-m85", exported(case))["mean"] == 0


def test_a_node_without_a_kernel_has_no_buffer_although_a_rule_allows_it() -> None:
    wide = Call("conv", 16, 1, 8, 4, 2, (9, 9), (3, 3), (1, 1), (0, 0), (1, 1))
    assert of_tosaic([wide], "cortex-m55") == [0]


# ---- in plans ----


@pytest.fixture(scope="module")
def plan() -> tosaic.partitions.PartitionPlan:
    weight = torch.ones(6, 4, 3, 3) / 40

    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first = qdq(F.conv2d(x, w), 0.05)
        return F.avg_pool2d(qdq(torch.sin(qdq(F.conv2d(first, qdq(weight, 0.001)), 0.05)), 0.05), 2)

    case = _case(call, ((1, 3, 12, 12),), weight=(4, 3, 3, 3))
    return tosaic.partition(exported(case), ["cortex-m4"])


def test_a_group_has_the_largest_buffer_of_its_nodes(plan: tosaic.partitions.PartitionPlan) -> None:
    sizes = Claimant.named("cortex-m4").scratch_bytes(plan.graph)
    assert isinstance(sizes, dict)
    assert [group.scratch_bytes for group in plan.groups] == [
        max(sizes[node] for node in group.nodes) for group in plan.groups
    ]
    assert [group.scratch_bytes for group in plan.groups] == [2 * 2 * 36, 4 * 6]


def test_the_report_shows_buffers_if_a_group_has_one(plan: tosaic.partitions.PartitionPlan) -> None:
    report = plan.report()
    assert "  scratch   144 B for cortex-m4\n" in report.text
    assert [group["scratch_bytes"] for group in report.data["groups"]] == [144, 24]
    buffers = report.full_text.split("temporary buffers\n")[1].splitlines()[1:3]
    assert [line.split() for line in buffers] == [
        ["group0", "cortex-m4", "144"],
        ["group1", "cortex-m4", "24"],
    ]
    tanh = tosaic.partition(exported(_case(torch.tanh, ((4, 8),))), ["cortex-m4"])
    assert len(tanh.groups) == 1
    assert "scratch" not in tanh.report().text
    assert "temporary buffers" not in tanh.report().full_text


def test_the_listing_of_a_split_has_the_buffers(tmp_path: Path) -> None:
    program = exported(_case(F.conv2d, ((1, 3, 8, 8),), weight=(4, 3, 3, 3)))
    tosaic.lower(program, unsupported="split", claimants=["cortex-m4"]).save(tmp_path)
    (group,) = json.loads((tmp_path / "partitions.json").read_text())["groups"]
    assert group["scratch_bytes"] == 112


def test_a_graph_of_calls_has_a_node_for_each() -> None:
    assert len(graph_of([drawn(seed) for seed in range(20)])) == 20
