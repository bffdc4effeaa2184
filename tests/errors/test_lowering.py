"""Refusals of `lower` report every offending node with its operator, module path and source line."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from errors.broken import export, place
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
from function_module import FunctionModule
from refusals import refusal
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic.annotation import Observed, Outputs

BOTH = "TOSA-1.0+FP+INT"


def forward(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.det(x) + torch.special.i0(x).sum()


def test_an_unsupported_operator_is_named_with_its_place() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.special.i0(x)

    assert refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(3))) == (
        "[legalize-tosa] operator 'aten.special_i0.default' is foreign to tosaic "
        f"{place(forward, 'special_i0')}. Leave it on the host, tosaic.lower(..., unsupported='split'), "
        "replace it in the module, or describe it with a domain and a name: tosaic.from_exported(program, "
        "operators=[tosaic.ports.ForeignOp('aten.special_i0.default', kernel, domain='my_library', "
        "name='my_operator')]), in C++ OpaqueAttrs::domain and name."
    )


def test_all_unsupported_operators_are_listed() -> None:
    with pytest.raises(tosaic.UnsupportedOp) as error:
        tosaic.lower(export(forward, torch.eye(3)))
    first, *rest = str(error.value).splitlines()
    assert first == "[legalize-tosa] 2 problems keep this graph from TOSA"
    assert "'aten.linalg_det.default'" in rest[0]
    assert "'aten.special_i0.default'" in rest[1]
    assert place(forward, "linalg_det") in rest[0]
    assert [problem.node for problem in error.value.problems] == ["linalg_det", "special_i0"]


def test_integers_of_an_unsupported_operator_are_not_a_second_problem() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        values, places = torch.frexp(x)
        return values + (places + 1)

    with pytest.raises(tosaic.UnsupportedOp) as error:
        tosaic.lower(export(forward, torch.ones(3)), target=BOTH)
    (problem,) = error.value.problems
    assert problem.what == "operator 'aten.frexp.Tensor' is foreign to tosaic"


def test_check_reports_the_same_problems_without_raising() -> None:
    result = tosaic.check(export(forward, torch.eye(3)))
    assert not result.ok
    assert [(p.node, p.module_path) for p in result.problems] == [
        ("linalg_det", "layer"),
        ("special_i0", "layer"),
    ]
    assert all(p.source.startswith("test_lowering.py:") for p in result.problems)


def test_double_precision_is_refused_at_the_input_and_at_the_node() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    text = refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(2, dtype=torch.float64)))
    assert (
        "[legalize-tosa] input 'x' has a dtype that TOSA lacks: expected bool, i8, i16, i32, i64, f16, bf16 "
        "or f32, got f64 (node 'x'). Cast the input or the module, e.g. module.float()." in text
    )
    assert f"[legalize-tosa] TOSA has no dtype f64 {place(forward, 'mul')}." in text


def test_integers_that_may_exceed_32_bits_are_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * x * x * x

    assert refusal(
        tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(2, dtype=torch.int64)), target=BOTH
    ) == (
        "[legalize-tosa] an i64 result may not fit i32, and TOSA has no i64 "
        f"{place(forward, 'mul_2')}. Bound the operands, e.g. with clamp."
    )


def test_a_constant_index_outside_its_table_is_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x[torch.tensor([0, 5])]

    assert refusal(tosaic.SpecViolation, tosaic.lower, export(forward, torch.ones(3)), target=BOTH) == (
        f"[target] tosa.gather: index 1 is out of range: expected 0 to 2, got 5 {place(forward, 'index')}"
    )


@pytest.mark.parametrize("target", [BOTH, "TOSA-1.0+FP"])
def test_a_constant_index_that_does_not_fit_i32_is_refused(target: str) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.index_select(x, 0, torch.tensor([2**31 + 5]))

    text = refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(3)), target=target)
    assert f"holds 2147483653, which does not fit i32 {place(forward, 'index_select')}" in text


def test_a_constant_divisor_of_zero_is_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.div(x, 0, rounding_mode="trunc")

    exported = export(forward, torch.ones(3, dtype=torch.int32))
    assert refusal(tosaic.SpecViolation, tosaic.lower, exported, target=BOTH) == (
        f"[target] tosa.intdiv: divisor 0 is zero: expected not 0, got 0 {place(forward, 'div')}"
    )


def test_clamp_bounds_that_are_nan_are_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, float("nan"), 1.0)

    assert refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(2))) == (
        f"[legalize-tosa] clamp bounds are NaN, which TOSA gives no meaning {place(forward, 'clamp')}"
    )


def test_a_tensor_without_elements_is_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x[:0] * 2

    text = refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(2)))
    what = "output 'out' of shape [0] has no elements, which TOSA does not allow"
    assert text == f"[legalize-tosa] {what}. Do not return it."


def test_an_output_without_elements_of_a_quantized_program_is_named_as_such() -> None:
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x[:0]

    exported = export(forward, torch.ones(2, 4))
    program = tosaic.quantize(exported, [(torch.rand(2, 4),)], progress=False)
    text = refusal(tosaic.UnsupportedOp, tosaic.lower, program, target="TOSA-1.0+INT")
    assert "output 'out[1]' of shape [0,4] has no elements, which TOSA does not allow" in text
    assert text.endswith("Do not return it.")


def test_a_refusal_for_floats_names_a_target_that_takes_the_program_and_the_host() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, torch.tensor(1e9), y * 0.125)

    args = torch.randn(2, 4), torch.randn(2, 4)
    program = tosaic.quantize(torch.export.export(FunctionModule(forward), args), [args], progress=False)
    text = refusal(tosaic.UnsupportedOp, tosaic.lower, program, target="TOSA-1.0+INT")
    assert "ower for TOSA-1.0+INT+FP, or leave what needs floats on the host: unsupported='split'" in text
    tosaic.lower(program, target="TOSA-1.0+INT+FP")
    tosaic.lower(program, target="TOSA-1.0+INT", unsupported="split")


def test_a_call_that_makes_nan_in_calibration_is_named_with_the_calls_to_leave_out() -> None:
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sqrt(x) + 1, x * 2

    exported, samples = export(forward, torch.ones(2, 4)), [(torch.randn(2, 4),)]
    text = refusal(tosaic.InvalidGraph, tosaic.quantize, exported, samples, progress=False)
    assert "leave floats around it: config.set(None, nodes=['sqrt', 'add'])." in text
    config = tosaic.QConfig.int8().set(None, nodes=["sqrt", "add"])
    made = tosaic.quantize(exported, samples, config=config, progress=False)
    tosaic.lower(made, target="TOSA-1.0+INT+FP")


def test_a_shape_that_depends_on_data_is_refused_at_import() -> None:
    text = refusal(tosaic.UnsupportedOp, tosaic.from_exported, export(torch.nonzero, torch.ones(2)))
    assert text.startswith("[import] the size u0 depends on data: expected sizes that follow from the shapes")


def test_a_kernel_beyond_the_level_is_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, torch.ones(1, 1, 1, 8200))

    assert refusal(tosaic.SpecViolation, tosaic.lower, export(forward, torch.ones(1, 1, 1, 8300))) == (
        "[target] dilation times kernel is beyond level 8K: expected at most 8192 (MAX_KERNEL), got 8200 "
        f"{place(forward, 'conv2d')}"
    )


def test_several_broken_limits_are_listed_and_level_none_has_no_limits() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool1d(x, 9000)

    exported = export(forward, torch.ones(1, 1, 9000))
    first, *rest = refusal(tosaic.SpecViolation, tosaic.lower, exported).splitlines()
    assert first == "[target] 2 rules of TOSA-1.0+FP are broken"
    assert "the kernel is beyond level 8K: expected at most 8192 (MAX_KERNEL), got 9000" in rest[0]
    assert "the stride is beyond level 8K: expected at most 8192 (MAX_STRIDE), got 9000" in rest[1]
    assert all(place(forward, "avg_pool1d") in line for line in rest)
    assert tosaic.lower(exported, target="TOSA-1.0+FP+none").target == "TOSA-1.0+FP+none"


def test_outputs_of_too_many_axes_are_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(1, 2, 1, 2, 1, 2, 2) * 2

    text = refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(16)))
    assert "output 'out' has 7 axes, and TOSA allows 6: got f32[1,2,1,2,1,2,2]" in text
    assert place(forward, "mul") in text


def test_a_list_beyond_the_level_is_concatenated_in_steps() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * i for i in range(65)])

    x = torch.ones(2)
    lowered = tosaic.lower(export(forward, x))
    assert max(len(node.operands) for node in lowered.graph.nodes) <= 64
    assert torch.equal(torch.from_numpy(lowered.run(x)), forward(x))


def test_integers_that_the_profile_lacks_are_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x[0] > 0, lambda x: x + 2**25, lambda x: x - 1, (x,))

    exported = export(forward, torch.ones(3, dtype=torch.int32))
    text = refusal(tosaic.UnsupportedOp, tosaic.lower, exported, target="TOSA-1.0+FP+cf")
    assert (
        "an integer result may leave the 24 bits that f32 counts exactly, and the target has no integer "
        "arithmetic (node 'cond', module 'layer', " in text
    ), text
    assert "Bound the operands, e.g. with clamp, or lower for TOSA-1.0+INT+FP." in text
    assert "holds 33554432, which does not fit the 24 bits that f32 counts exactly" in text
    assert tosaic.lower(exported, target=BOTH + "+cf")


@pytest.mark.filterwarnings("ignore")
def test_floats_that_are_returned_are_named_before_rules_of_the_target() -> None:
    class Returns(torch.nn.Module):
        def __init__(self, which: str) -> None:
            super().__init__()
            self.linear, self.which = torch.nn.Linear(4, 4), which

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return self.linear(x), {"x": x, "y": y, "weight": self.linear.weight}[self.which]

    arguments = torch.randn(2, 4), torch.randn(3)
    for which, source in (("x", "the input 'x'"), ("y", "the input 'y'"), ("weight", "the constant")):
        exported = torch.export.export(Returns(which).eval(), arguments)
        quantizer = xnnpack.XNNPACKQuantizer().set_global(xnnpack.get_symmetric_quantization_config())
        for rules in ([], [Outputs({1: Observed("int8", -128, 127)})]):
            prepared = prepare_pt2e(exported.module(), tosaic.wrap_quantizer(quantizer, rules=rules))
            prepared(*arguments)
            quantized = torch.export.export(convert_pt2e(prepared), arguments)
            if rules:
                assert tosaic.lower(quantized, target="TOSA-1.0+INT").outputs[1].qparams.dtype == "i8"
                continue
            text = refusal(tosaic.UnsupportedOp, tosaic.lower, quantized, target="TOSA-1.0+INT")
            assert text.startswith(f"[lower] output 'out[1]' is {source}"), text
            assert "as floats: it was not quantized. Quantize what is returned, e.g. with a rule" in text
        with pytest.raises(tosaic.UnsupportedOp, match="this program computes with floats"):
            tosaic.lower(exported, target="TOSA-1.0+INT")
    text = refusal(
        tosaic.UnsupportedOp, tosaic.lower, export(lambda x: x, torch.ones(2)), target="TOSA-1.0+INT"
    )
    assert "[lower] this program returns floats, and TOSA-1.0+INT has none. Quantize it first" in text


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "TOSA-9",
            "[target] unknown target: expected TOSA-1.0 and a profile, such as 'TOSA-1.0+INT', got 'TOSA-9'",
        ),
        (
            "TOSA-1.0",
            "[target] the target has no profile: expected +INT, +FP or both, got 'TOSA-1.0'. For example",
        ),
        ("TOSA-1.0+FPX", "[target] unknown part of a target: expected one of INT, FP, "),
        (
            "TOSA-1.0+FP+FP",
            "[target] a part of the target is given twice: expected each part, and one level, once",
        ),
        ("TOSA-1.0+FP+int16", "[target] the extension int16 needs its profile: expected PRO-INT"),
        ("", "[target] unknown target: expected TOSA-1.0 and a profile"),
    ],
)
def test_a_wrong_target_is_refused_before_any_work(target: str, message: str) -> None:
    exported = export(torch.relu, torch.ones(2))
    assert refusal(tosaic.InvalidGraph, tosaic.lower, exported, target=target).startswith(message)
    assert refusal(tosaic.InvalidGraph, tosaic.check, exported, target=target).startswith(message)


def test_wrong_values_of_option_unsupported_are_refused() -> None:
    exported = export(torch.relu, torch.ones(2))
    assert refusal(tosaic.InvalidGraph, tosaic.lower, exported, unsupported="skip") == (
        "[lower] unknown value of 'unsupported': expected 'error' or 'split', got 'skip'"
    )


def test_a_value_that_is_not_a_program_is_refused() -> None:
    assert refusal(tosaic.InvalidGraph, tosaic.lower, torch.nn.ReLU()) == (
        "[import] this is not a program: expected a torch.export.ExportedProgram, tosaic.Program, "
        "tosaic.program.Graph or path, got ReLU. "
        "Export the module first: torch.export.export(module, example_inputs)."
    )


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_subclass_as_weight_is_read_as_the_tensors_that_it_holds() -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    torch.manual_seed(0)
    module, x = torch.nn.Sequential(torch.nn.Linear(8, 4)), torch.randn(2, 8)
    quantize_(module, Int8WeightOnlyConfig())
    ep = torch.export.export(module, (x,))
    for program in (ep, ep.run_decompositions()):
        found = np.asarray(tosaic.lower(program).run(x))
        np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e5m2).to(torch.bfloat16) + 1


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


@pytest.mark.parametrize(
    ("function", "dtype", "target", "named"),
    [
        (F.relu, torch.bfloat16, "TOSA-1.0+FP", "TOSA-1.0+FP+bf16"),
        (F.relu, torch.bfloat16, BOTH, "TOSA-1.0+INT+FP+bf16"),
        (F.relu, torch.bfloat16, "TOSA-1.0+INT", "TOSA-1.0+FP+bf16"),
        (to_fp8, torch.float32, "TOSA-1.0+FP", "TOSA-1.0+FP+bf16+fp8e5m2"),
        (to_fp8, torch.float32, "TOSA-1.0+INT", "TOSA-1.0+FP+bf16+fp8e5m2"),
        (branch, torch.float32, "TOSA-1.0+FP", "TOSA-1.0+FP+cf"),
        (branch, torch.float32, "TOSA-1.0+INT", "TOSA-1.0+FP+cf"),
    ],
)
def test_the_target_with_the_missing_extension_is_named_and_takes_the_program(
    function: Any, dtype: torch.dtype, target: str, named: str
) -> None:
    program = export(function, torch.ones(4, dtype=dtype))
    with pytest.raises((tosaic.SpecViolation, tosaic.UnsupportedOp)) as error:
        tosaic.lower(program, target=target)
    hints = {problem.hint for problem in error.value.problems if "TOSA-1.0" in problem.hint}
    assert hints
    assert all(re.search(re.escape(named) + r"(?!\+)", hint) for hint in hints), hints
    assert tosaic.lower(program, target=named).target == named
