"""Delegates of an NPU and kernels of an MCU in one program of ExecuTorch: by our tools, and by Arm's."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.backends.cortex_m.passes.cortex_m_pass_manager")

import tosaic  # noqa: E402
from cortex_m.reference import called  # noqa: E402
from torch import nn  # noqa: E402
from tosaic.annotation import Observed, Operator  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread_without_traces"),
]

NPU = "TOSA-1.0+INT"
MCU = "cortex-m55"
ONE_SCALE = Operator("linear", {"weight": Observed("int8", -127, 127, "per_tensor_symmetric")})


class Network(nn.Module):
    """Convolutions for the NPU, and a softmax for the MCU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(128, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return torch.softmax(self.head(nn.functional.max_pool2d(y, 2).flatten(1)), -1)


def _quantized(rules: Sequence[Any] = ()) -> tuple[tosaic.QuantizedProgram, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 3, 8, 8),) for _ in range(4)]
    exported = torch.export.export(Network().eval(), samples[0])
    config = tosaic.QConfig.int8(every_operator=True)
    return tosaic.quantize(exported, samples, config=config, rules=rules, progress=False), samples[0]


def _kinds(program: Any) -> Counter[str]:
    return Counter(each.removeprefix("quantized_decomposed.") for each in called(program))


def test_calls_that_cortex_m_program_leaves_become_delegates() -> None:
    quantized, _ = _quantized()
    npu = tosaic.Claimant.named(NPU).deny(op="softmax")
    made = tosaic.executorch.cortex_m_program(quantized, claimants=[npu, MCU])
    planned = [group for group in made.plan.groups if group.claimant == NPU]
    partitioner = tosaic.executorch.TosaicPartitioner(NPU)
    edge = made.edge.to_backend(partitioner)
    kinds = _kinds(edge.exported_program())
    assert kinds["executorch_call_delegate"] == len(planned) == 1
    assert kinds["cortex_m.softmax"] == kinds["cortex_m.quantize_per_tensor"] == 1
    assert not [each for each in kinds if each.startswith("aten.")]


def test_arms_partitioner_and_passes_find_the_integers_of_an_exported_program() -> None:
    pytest.importorskip("ethosu.vela")
    from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
    from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
    from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
    from executorch.exir import to_edge_transform_and_lower

    quantized, _ = _quantized()
    partitioner = EthosUPartitioner(EthosUCompileSpec("ethos-u55-128"))
    with contextlib.redirect_stdout(io.StringIO()):
        edge = to_edge_transform_and_lower(
            quantized.to_exported(symbolic=False),
            partitioner=[partitioner],
            compile_config=cortex_m_edge_compile_config(),
        )
    program = CortexMPassManager(edge.exported_program()).transform()
    kinds = _kinds(program)
    assert kinds["executorch_call_delegate"] >= 1
    assert kinds["cortex_m.softmax"] == 1  # Arm's partitioner leaves it
    assert not [each for each in kinds if each.startswith("aten.")]


def test_arms_passes_make_kernels_of_every_call_of_an_exported_program() -> None:
    from cortex_m.reference import backend_of

    quantized, _ = _quantized(rules=[ONE_SCALE])
    kinds = _kinds(backend_of(quantized.to_exported(symbolic=False)))
    assert kinds["cortex_m.quantized_conv2d"] == 2, kinds
    assert kinds["cortex_m.quantized_linear"] == 1
    assert kinds["cortex_m.softmax"] == 1
    assert not [each for each in kinds if each.startswith("aten.") and each != "aten.view_copy"]
