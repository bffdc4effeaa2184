"""Integer lowering with the semantics of CMSIS-NN equals ExecuTorch's Cortex-M operators.

`cortex_m.checking` says where the Python operators differ from the kernels that they stand for. There, the
results equal recorded results of the kernels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tosaic

pytest.importorskip("executorch.backends.cortex_m.passes.cortex_m_pass_manager")

from cortex_m.checking import EXPLAINED, KERNELS, compared
from cortex_m.programs import PROGRAMS, Drawn
from cortex_m.recorded import read, seeds
from cortex_m.reference import TARGET, lowered, of_tosaic
from quantize_calls import dq, q
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
DRAWN = range(1, 4)  # tests/full draws more


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_equal_the_operators_of_the_backend(name: str) -> None:
    for seed in DRAWN:
        found = compared(name, seed)
        assert found.unexplained == 0, (seed, found)
        if name not in EXPLAINED:
            assert found.differing == 0, (seed, found)


@pytest.mark.parametrize("name", KERNELS)
def test_results_equal_the_kernels_of_cmsis_nn(name: str) -> None:
    for seed in seeds(name):
        program, expected = read(name, seed)
        np.testing.assert_array_equal(of_tosaic(program.exported, *program.arrays), expected, f"seed {seed}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_reference_model_computes_the_same_integers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tosa_reference_model")
    program = PROGRAMS[name](Drawn(3))
    path = tmp_path / "program.tosa"
    path.write_bytes(_core.serialize(lowered(program.exported).tosa))
    loaded = tosaic.lower(tosaic.load_tosa(path), target=TARGET)  # its arrays lie as in the file
    arrays = [array.permute(array.dim_order()).contiguous().numpy() for array in program.arrays]
    reference = run_reference_model(loaded, *arrays)
    assert reference.status == "VALID", reference.log
    (ours,) = _core.Session(loaded.graph).run(arrays)
    np.testing.assert_array_equal(np.asarray(reference.outputs), ours)


@pytest.mark.parametrize(
    "name",
    ["mul by constant", "div", "clamp", "log", "hardsigmoid", "hardswish", "avg_pool", "adaptive avg_pool"],
)
def test_the_usual_integer_forms_differ_from_the_backend(name: str) -> None:
    assert any(compared(name, seed).usual_differing for seed in DRAWN)


def test_a_sum_rounds_each_operand_to_units_of_twice_the_larger_scale() -> None:
    nodes = lowered(PROGRAMS["add"](Drawn(3)).exported).tosa.nodes
    rescales = [node.attrs for node in nodes if node.op == "tosa.rescale"]
    scales = [attrs["multiplier"][0] / 2 ** attrs["shift"][0] for attrs in rescales]
    assert scales.count(2.0**20) == 2  # 20 more bits for each operand
    assert max(scale for scale in scales if scale != 2.0**20) == 0.5  # the operand of the larger scale


def test_every_stage_from_integers_on_computes_the_same() -> None:
    for name in ("add", "softmax", "avg_pool", "div"):
        program = PROGRAMS[name](Drawn(3))
        graphs = lowered(program.exported)
        arrays = [np.ascontiguousarray(array.numpy()) for array in program.arrays]
        results = [_core.Session(graph).run(arrays)[0] for graph in (graphs.canonical, graphs.tosa)]
        np.testing.assert_array_equal(*results)


def test_long_rows_of_a_softmax_have_the_usual_form() -> None:
    import torch
    from fx.exporting import exported
    from quantize_calls import dq, q

    x = torch.randint(-128, 128, (2, 5000), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    program = exported(lambda x: q(torch.softmax(dq(x, 0.05), -1), 1 / 256, -128), x)
    usual = of_tosaic(program, x, semantics="tosa")
    np.testing.assert_array_equal(of_tosaic(program, x), usual)


def test_a_target_without_doubleround_refuses_the_semantics_of_cmsis_nn() -> None:
    program = PROGRAMS["conv"](Drawn(1)).exported
    graph = tosaic.from_exported(program).graph
    with pytest.raises(tosaic.SpecViolation, match=r"expected EXT-DOUBLEROUND"):
        _core.lower(graph, pipeline="TOSA-1.0+INT", semantics="cmsis-nn")


def test_unknown_semantics_are_refused() -> None:
    graph = tosaic.from_exported(PROGRAMS["relu"](Drawn(1)).exported).graph
    with pytest.raises(tosaic.InvalidGraph, match=r"unknown integer semantics.*'tosa' or 'cmsis-nn'.*'gemm'"):
        _core.lower(graph, pipeline=TARGET, semantics="gemm")  # type: ignore[arg-type]


def test_tables_stay_in_the_range_of_their_results() -> None:
    class Narrow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = dq(q(torch.exp(dq(q(x, 0.1), 0.1)), 0.004, -128, -127, 20), 0.004, -128, -127, 20)
            return dq(q(y + y, 0.01, -128), 0.01, -128)

    x = torch.linspace(-8, 3, 24).reshape(4, 6)
    program = torch.export.export(Narrow(), (x,))
    split = tosaic.lower(program, unsupported="split", claimants=["neutron"])
    (group,) = split.parts
    assert "exp" in {node.op for node in group.source.graph.nodes}
    np.testing.assert_array_equal(split.run(x), Narrow()(x))
