"""Foreign operators that the user describes: from torch to the bytes of a file, and back."""

from __future__ import annotations

import dataclasses
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from torch import nn

Q = torch.ops.quantized_decomposed
X = torch.linspace(-2, 2, 2 * 4 * 3 * 5).reshape(2, 4, 3, 5)


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    """Registers three torch operators that only this module knows."""
    with torch.library._scoped_library("tosaic_test", "DEF") as made:
        made.define("gate(Tensor x, float factor, str mode='soft') -> Tensor")
        made.define("split_sign(Tensor x, Tensor? weight=None) -> (Tensor, Tensor)")
        made.define("shift_channels(Tensor x, int[] by) -> Tensor")
        made.define("fused(Tensor x, bool less=False, *, Tensor y, float z, Tensor? w) -> Tensor")
        made.define("scale(Tensor x, Tensor by) -> Tensor")
        made.define("count(Tensor x) -> int")
        made.define("add_one_(Tensor(a!) x) -> ()")

        def gate(x: torch.Tensor, factor: float, mode: str = "soft") -> torch.Tensor:
            return x * torch.sigmoid(factor * x) if mode == "soft" else x * (x > 0)

        def split_sign(
            x: torch.Tensor, weight: torch.Tensor | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            scaled = x if weight is None else x * weight
            return scaled.clamp(min=0), (x < 0).to(torch.int64)

        def shift_channels(x: torch.Tensor, by: list[int]) -> torch.Tensor:
            return torch.roll(x, by, [1] * len(by)) + torch.arange(x.shape[1])[:, None, None]

        def fused(x: torch.Tensor, less: bool = False, *, y: Any, z: float, w: Any) -> torch.Tensor:
            return x - y * z if less else x + y * z

        def scale(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return x * by

        for name, function in (
            ("fused", fused),
            ("scale", scale),
            ("gate", gate),
            ("split_sign", split_sign),
            ("shift_channels", shift_channels),
        ):
            made.impl(name, function, "CompositeExplicitAutograd")
        made.impl("add_one_", lambda x: None if x.add_(1) is x else x, "CompositeExplicitAutograd")
        torch.library.register_fake("tosaic_test::add_one_", lambda x: None, lib=made)
        made.impl("count", lambda x: 3, "CompositeExplicitAutograd")
        torch.library.register_fake("tosaic_test::fused", fused, lib=made)
        torch.library.register_fake("tosaic_test::scale", scale, lib=made)
        torch.library.register_fake("tosaic_test::gate", lambda x, f, m="soft": torch.empty_like(x), lib=made)
        torch.library.register_fake(
            "tosaic_test::split_sign",
            lambda x, w=None: (torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)),
            lib=made,
        )
        torch.library.register_fake(
            "tosaic_test::shift_channels", lambda x, by: torch.empty_like(x), lib=made
        )
        yield


def gate(x: Any, factor: float, mode: str = "soft") -> Any:
    return x / (1 + np.exp(-factor * x)) if mode == "soft" else x * (x > 0)


def split_sign(x: Any, weight: Any = None) -> Any:
    return np.maximum(x if weight is None else x * weight, 0), (x < 0).astype(np.int64)


def shift_channels(x: Any, by: list[int]) -> Any:
    assert x.shape[1] == 4, "the axes are torch's, whatever the order in memory"
    return np.roll(x, sum(by), 1) + np.arange(4, dtype=np.float32)[:, None, None]


GATE = tosaic.ports.ForeignOp("tosaic_test::gate", gate, layout="any", domain="tosaic_test", name="gate")
SPLIT = tosaic.ports.ForeignOp(
    "tosaic_test.split_sign.default", split_sign, domain="tosaic_test", name="split"
)
SHIFT = tosaic.ports.ForeignOp(
    "tosaic_test::shift_channels", shift_channels, layout="channels_last", domain="tosaic_test", name="shift"
)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.conv, x)


def exported(function: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    return torch.export.export(Function(function).eval().requires_grad_(False), (X,))


def in_and_out(conv: Any, x: torch.Tensor) -> torch.Tensor:
    return conv(torch.ops.tosaic_test.gate(conv(x), 1.5))


def two_results(conv: Any, x: torch.Tensor) -> Any:
    positive, sign = torch.ops.tosaic_test.split_sign(conv(x), torch.ones(5))
    return conv(positive), sign


def channels(conv: Any, x: torch.Tensor) -> torch.Tensor:
    return conv(torch.ops.tosaic_test.shift_channels(conv(x), [1, 2]))


CASES = [(in_and_out, GATE), (two_results, SPLIT), (channels, SHIFT)]


@pytest.mark.parametrize(("function", "operator"), CASES, ids=["any", "row-major", "channels-last"])
def test_a_described_operator_goes_from_torch_to_bytes_and_back(
    function: Any, operator: tosaic.ports.ForeignOp, tmp_path: Any
) -> None:
    ep = exported(function)
    expected = ep.module()(X)
    expected = [each.numpy() for each in (expected if isinstance(expected, tuple) else (expected,))]
    program = tosaic.from_exported(ep, operators=[operator])
    lowered = tosaic.lower(program)
    lowered.save(tmp_path / "file.tosa")
    read = tosaic.load_tosa(tmp_path / "file.tosa").with_operators([operator])
    (custom,) = [node for node in lowered.graph.nodes if node.op == "tosa.custom"]
    assert custom.attrs["operator_name"] == operator.name
    assert custom.attrs["domain_name"] == "tosaic_test"
    arrays = read.run_arrays([np.ascontiguousarray(X.numpy()) for _ in read.inputs])
    for results in (program.run(X), lowered.run(X), arrays):
        found = list(results) if isinstance(results, list | tuple) else [results]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert tosaic.compare(ep, lowered, (X,)).ok
    assert tosaic.compare(program, lowered, (X,)).ok
    assert tosaic.compare(program, read, (X,)).ok


def test_an_operator_of_any_layout_needs_no_transpose_and_one_of_row_major_does() -> None:
    plans = {}
    for layout in ("any", "channels_last", "row_major"):
        operator = tosaic.ports.ForeignOp(GATE.target, gate, layout=layout, domain="d", name="n")
        lowered = tosaic.lower(tosaic.from_exported(exported(in_and_out), operators=[operator]))
        np.testing.assert_allclose(
            lowered.run(X), exported(in_and_out).module()(X).numpy(), rtol=1e-5, atol=1e-5
        )
        plans[layout] = len(lowered.layout.transposes)
    assert plans == {"any": 2, "channels_last": 2, "row_major": 4}


def test_the_arguments_of_a_call_are_attributes_of_the_file() -> None:
    program = tosaic.from_exported(
        exported(lambda conv, x: torch.ops.tosaic_test.gate(x, float("inf"), mode="hard")), operators=[GATE]
    )
    lowered = tosaic.lower(program)
    (custom,) = [node for node in lowered.graph.nodes if node.op == "tosa.custom"]
    call = '{"args":[{"$":0},{"float":"inf"}],"kwargs":{"mode":"hard"}}'
    assert custom.attrs["implementation_attrs"] == call
    np.testing.assert_array_equal(lowered.run(X), np.maximum(X.numpy(), 0))


def test_an_operator_that_is_not_described_is_refused_with_the_lines_to_write() -> None:
    program = tosaic.from_exported(exported(in_and_out))
    with pytest.raises(tosaic.UnsupportedOp) as error:
        tosaic.lower(program)
    assert "'tosaic_test.gate.default' is foreign to tosaic" in str(error.value)
    assert (
        "tosaic.from_exported(program, operators=[tosaic.ports.ForeignOp('tosaic_test.gate.default'"
        in str(error.value)
    )
    with pytest.raises(tosaic.UnsupportedOp) as error:
        program.run(X)
    assert (
        "program.with_operators([tosaic.ports.ForeignOp('tosaic_test.gate.default', kernel)]), where the "
        "target is that of the torch operator, or override it" in str(error.value)
    )


def test_a_description_without_a_name_runs_and_does_not_lower() -> None:
    operator = tosaic.ports.ForeignOp(GATE.target, gate)
    program = tosaic.from_exported(exported(in_and_out), operators=[operator])
    np.testing.assert_allclose(program.run(X), exported(in_and_out).module()(X).numpy(), rtol=1e-5, atol=1e-5)
    (problem,) = tosaic.check(program).problems
    assert "describe it with a domain and a name" in problem.hint
    operator = tosaic.ports.ForeignOp(GATE.target, gate, layout="any")
    with pytest.raises(
        tosaic.UnsupportedOp, match=r"described without a domain and name.*domain='my_library'"
    ):
        tosaic.lower(exported(in_and_out), operators=[operator])


def test_types_that_differ_from_torchs_are_refused() -> None:
    right = tosaic.ports.ForeignOp(GATE.target, gate, types=lambda x, factor, mode="soft": x)
    tosaic.from_exported(exported(in_and_out), operators=[right])
    wrong = tosaic.ports.ForeignOp(
        GATE.target, gate, types=lambda x, factor, mode="soft": tosaic.ports.TensorSpec("f16", x.shape)
    )
    with pytest.raises(tosaic.InvalidGraph, match=r"computes other types than torch recorded.*f32.*got.*f16"):
        tosaic.from_exported(exported(in_and_out), operators=[wrong])


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"target": "gate"}, "'target': expected a name such as 'my_library.my_op.default', got 'gate'"),
    ({"target": 3}, "'target': expected a string, got 3"),
    ({"kernel": 3}, "'kernel': expected a function of numpy arrays, got 3"),
    ({"layout": "nhwc"}, "'layout': expected 'row_major' or 'any' or 'channels_last', got 'nhwc'"),
    ({"domain": "d"}, "'name': expected a name and a domain, or neither, got 'd'"),
    ({"types": 3}, "'types': expected a function, or None, got 3"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_a_wrong_description_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(tosaic.InvalidGraph) as error:
        tosaic.ports.ForeignOp(**{"target": "a::b", "kernel": gate, **change})
    assert message in str(error.value)


def test_two_descriptions_of_one_operator_are_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="one description of each operator"):
        tosaic.from_exported(exported(in_and_out), operators=[GATE, GATE])


def test_a_kernel_that_returns_another_shape_is_refused() -> None:
    operator = tosaic.ports.ForeignOp(GATE.target, lambda x, factor, mode="soft": x[:1])
    program = tosaic.from_exported(exported(in_and_out), operators=[operator])
    with pytest.raises(tosaic.LayoutMismatch, match=r"returned the wrong array: expected f32\[2,4,3,5\]"):
        program.run(X)


def test_an_argument_that_only_has_a_name_is_passed_by_name() -> None:
    def fused(x: Any, less: bool = False, *, y: Any, z: float, w: Any) -> Any:
        return x - y * np.float32(z) if less else x + y * np.float32(z)

    operator = tosaic.ports.ForeignOp(
        "tosaic_test::fused", fused, domain="d", name="fused", types=lambda x, **_: x
    )
    ep = exported(lambda conv, x: torch.ops.tosaic_test.fused(x, y=conv(x), z=2.0, w=None))
    lowered = tosaic.lower(tosaic.from_exported(ep, operators=[operator]))
    np.testing.assert_allclose(lowered.run(X), ep.module()(X).numpy(), rtol=1e-5, atol=1e-5)


def test_tensors_of_different_ranks_are_row_major() -> None:
    """The batch, the channels and the width have extent 4, so that a wrong order has the right shape."""
    square = torch.linspace(-2, 2, 256).reshape(4, 4, 4, 4)
    operator = tosaic.ports.ForeignOp(
        "tosaic_test::scale", lambda x, by: x * by, layout="any", domain="d", name="scale"
    )
    by = torch.arange(4.0)
    module = Function(lambda conv, x: conv(torch.ops.tosaic_test.scale(conv(x), by))).eval()
    ep = torch.export.export(module.requires_grad_(False), (square,))
    lowered = tosaic.lower(tosaic.from_exported(ep, operators=[operator]))
    np.testing.assert_allclose(lowered.run(square), ep.module()(square).numpy(), rtol=1e-4, atol=1e-4)


def test_operators_of_one_domain_and_name_are_refused() -> None:
    shift = tosaic.ports.ForeignOp(SHIFT.target, shift_channels, domain="tosaic_test", name="gate")
    named = tosaic.ports.ForeignOp(SHIFT.target, shift_channels, domain="tosaic_test", name="gate.default")
    for operators in ([GATE, shift], [GATE, named]):
        with pytest.raises(
            tosaic.InvalidGraph, match=r"have one name: .*no other operator has, got domain 'tosaic_test'"
        ):
            tosaic.from_exported(exported(in_and_out), operators=operators)
    program = tosaic.from_exported(exported(in_and_out), operators=[GATE])
    with pytest.raises(tosaic.InvalidGraph, match=r"\[with_operators\].*have one name"):
        program.with_operators([shift])


def test_descriptions_of_operators_that_a_program_does_not_call_are_allowed() -> None:
    program = tosaic.from_exported(exported(in_and_out), operators=[GATE, SHIFT])
    again = program.with_operators([dataclasses.replace(SHIFT, name="other")])
    np.testing.assert_array_equal(again.run(X), program.run(X))
    assert tosaic.compare(program, tosaic.lower(again), (X,)).ok


def test_an_override_is_found_by_the_domain_and_name_of_a_description() -> None:
    plain = tosaic.ports.ForeignOp(GATE.target, gate)
    program = tosaic.from_exported(exported(in_and_out), operators=[GATE])
    key = f"{GATE.domain}.{GATE.name}"
    graph = tosaic.program.from_graph(program.graph).with_overrides({key: lambda x: np.zeros_like(x)})
    assert np.isfinite(graph.run(X)).all()
    with pytest.raises(tosaic.InvalidGraph, match=f"an override names no operator.*got '{key}'"):
        tosaic.from_exported(exported(in_and_out), operators=[plain]).with_overrides({key: np.zeros_like})


def in_branch(conv: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(
        x.sum() > 0, lambda x: torch.ops.tosaic_test.gate(x, 1.5), lambda x: torch.sigmoid(x), (x,)
    )


def test_an_operator_in_a_branch_is_compared_with_torch() -> None:
    ep = exported(in_branch)
    program = tosaic.from_exported(ep, operators=[GATE])
    lowered = tosaic.lower(program, target="TOSA-1.0+FP+cf")
    assert tosaic.compare(ep, lowered, [(X,), (X + 1,)]).ok


def test_a_file_is_compared_with_the_kernels_of_the_reference(tmp_path: Any) -> None:
    program = tosaic.from_exported(exported(in_and_out), operators=[GATE])
    tosaic.lower(program).save(tmp_path / "file.tosa")
    assert tosaic.compare(program, tosaic.load_tosa(tmp_path / "file.tosa"), (X,)).ok


def test_an_exception_of_a_kernel_says_which_operator_it_computed() -> None:
    def wrong(x: Any, factor: float, mode: str = "soft") -> Any:
        raise KeyError("nothing")

    program = tosaic.from_exported(
        exported(in_and_out), operators=[tosaic.ports.ForeignOp(GATE.target, wrong)]
    )
    with pytest.raises(KeyError) as raised:
        program.run(X)
    (operator, node) = raised.value.__notes__
    assert operator == "in the kernel of 'tosaic_test.gate.default', with operands f32[2, 4, 3, 5]"
    assert node == "in the function that computes node 'gate'"


@pytest.mark.parametrize("result", [None, "text", object()])
def test_a_kernel_that_returns_no_array_is_refused(result: Any) -> None:
    operator = tosaic.ports.ForeignOp(GATE.target, lambda x, factor, mode="soft": result)
    program = tosaic.from_exported(exported(in_and_out), operators=[operator])
    with pytest.raises(
        tosaic.LayoutMismatch, match=r"a result of the kernel of 'tosaic_test.gate.default' is not an array"
    ):
        program.run(X)


def test_a_kernel_may_return_numbers_and_arrays_of_another_byte_order() -> None:
    operator = tosaic.ports.ForeignOp(
        GATE.target, lambda x, factor, mode="soft": (x * (x > 0)).astype(x.dtype.newbyteorder())
    )
    ep = exported(lambda conv, x: torch.ops.tosaic_test.gate(x, 1.0, mode="hard"))
    np.testing.assert_array_equal(
        tosaic.from_exported(ep, operators=[operator]).run(X), np.maximum(X.numpy(), 0)
    )


def test_an_operator_that_returns_a_number_is_evaluated_at_export() -> None:
    operator = tosaic.ports.ForeignOp("tosaic_test::count", lambda x: 3)
    ep = exported(lambda conv, x: x * torch.ops.tosaic_test.count(x))
    np.testing.assert_array_equal(tosaic.from_exported(ep, operators=[operator]).run(X), 3 * X.numpy())


def test_a_kernel_that_cannot_be_pickled_is_named() -> None:
    operator = tosaic.ports.ForeignOp(GATE.target, lambda x, factor, mode="soft": x)
    program = tosaic.from_exported(exported(in_and_out), operators=[operator])
    with pytest.raises(tosaic.InvalidGraph, match=r"function 'kernel' of the description .*with_operators"):
        pickle.dumps(program)


# ---- programs that were read from a file ----


def saved(program: tosaic.Program, folder: Any, **options: Any) -> tuple[tosaic.Lowered, tosaic.Program]:
    lowered = tosaic.lower(program, **options)
    lowered.save(folder / "file.tosa")
    return lowered, tosaic.load_tosa(folder / "file.tosa")


def as_text(attributes: str, rank: int = 4) -> tosaic.Program:
    """Returns a program with one CUSTOM, whose attributes another writer may have written."""
    shape = ",".join(map(str, (1, 4, 3, 2)[:rank]))
    return tosaic.program.from_graph(
        tosaic.program.Graph.parse(f"""tosaic 1
graph @forward stage=tosa {{
  input %x: f32[{shape}] path="x"
  %y: f32[{shape}] = tosa.custom(%x) {{operator_name="n", domain_name="d", implementation_attrs={attributes}}}
  return %y path="out"
}}
""")
    )


@pytest.mark.parametrize("written", ["any", "channels_last", "row_major"])
@pytest.mark.parametrize("read", ["any", "channels_last", "row_major"])
def test_a_file_states_the_dim_orders_whatever_the_layout_of_a_description(
    written: str, read: str, tmp_path: Any
) -> None:
    """The kernel differs along its axes, so wrong axes make a wrong result."""

    def scan(x: Any, factor: float, mode: str = "soft") -> Any:
        assert x.shape == (2, 4, 3, 5)
        return gate(x, factor, mode)

    operator = tosaic.ports.ForeignOp(GATE.target, scan, layout=written, domain="d", name="n")
    program = tosaic.from_exported(exported(in_and_out), operators=[operator])
    lowered, file = saved(program, tmp_path, orders={"outputs": "contiguous"})
    (custom,) = [node for node in lowered.graph.nodes if node.op == "tosa.custom"]
    call = json.loads(custom.attrs["implementation_attrs"])
    assert call.get("dim_orders") == (None if written == "row_major" else [[0, 2, 3, 1]] * 2)
    again = file.with_operators([dataclasses.replace(operator, layout=read)])
    if written == "row_major" and read == "channels_last":
        with pytest.raises(
            tosaic.InvalidGraph, match=r"has layout 'channels_last', and the CUSTOM has no dim orders"
        ):
            again.run(X)
    else:
        np.testing.assert_array_equal(again.run(X), lowered.run(X))
        np.testing.assert_allclose(again.run(X), program.run(X), rtol=1e-5, atol=1e-5)


def test_dim_orders_have_an_entry_for_each_operand_and_result() -> None:
    operator = dataclasses.replace(SPLIT, layout="channels_last")
    lowered = tosaic.lower(exported(two_results), operators=[operator])
    (custom,) = [node for node in lowered.graph.nodes if node.op == "tosa.custom"]
    last = [0, 2, 3, 1]
    assert json.loads(custom.attrs["implementation_attrs"])["dim_orders"] == [last, [0], last, last]


@pytest.mark.parametrize("layout", ["row_major", "channels_last"])
def test_a_custom_without_attributes_has_the_layout_of_its_description(layout: str) -> None:
    shapes = []

    def kernel(x: Any) -> Any:
        shapes.append(x.shape)
        return x + 1

    operator = tosaic.ports.ForeignOp("a::b", kernel, layout=layout, domain="d", name="n")
    x = np.arange(24, dtype=np.float32).reshape(1, 4, 3, 2)
    np.testing.assert_array_equal(as_text('""').with_operators([operator]).run(x), x + 1)
    assert shapes == [(1, 2, 4, 3) if layout == "channels_last" else (1, 4, 3, 2)]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ('"\\x01z"', r"'implementation_attrs' of the CUSTOM 'd.n' are not the arguments of a call"),
        ('"[1]"', r"not the arguments of a call.*with_overrides\({'d.n': function}\)"),
        (
            '"{\\"args\\":[{\\"$\\":0}],\\"kwargs\\":{},\\"dim_orders\\":[[0,1,2,3]]}"',
            r"the dim orders of the CUSTOM 'd.n' do not fit: expected .* ranks 4, 4, got \[\[0, 1, 2, 3\]\]",
        ),
    ],
)
def test_attributes_that_describe_no_call_are_refused(attributes: str, message: str) -> None:
    operator = tosaic.ports.ForeignOp("a::b", lambda x: x, domain="d", name="n")
    with pytest.raises(tosaic.InvalidGraph, match=message):
        as_text(attributes).with_operators([operator]).run(np.ones((1, 4, 3, 2), np.float32))


def test_a_custom_without_a_kernel_names_the_domain_and_name_of_its_description(tmp_path: Any) -> None:
    _, file = saved(tosaic.from_exported(exported(channels), operators=[SHIFT]), tmp_path)
    for program in (file, file.with_operators([dataclasses.replace(SHIFT, name="shifted")])):
        with pytest.raises(tosaic.UnsupportedOp) as error:
            program.run_arrays([np.zeros(port.shape, np.float32) for port in program.inputs])
        assert (
            "with_operators([tosaic.ports.ForeignOp('my_library::my_operator', kernel, domain='tosaic_test', "
            "name='shift')]), where domain and name are those of the file" in str(error.value)
        )


def test_a_kernel_of_a_file_is_told_of_a_wrong_shape_with_torchs_axes(tmp_path: Any) -> None:
    program = tosaic.from_exported(exported(channels), operators=[SHIFT])
    wrong = dataclasses.replace(SHIFT, kernel=lambda x, by: x[:, :1])
    _, file = saved(program, tmp_path)
    with pytest.raises(
        tosaic.LayoutMismatch,
        match=r"the kernel of 'tosaic_test.shift_channels.default' returned the wrong array: "
        r"expected f32\[2,4,3,5\], got f32\[2,1,3,5\]",
    ):
        file.with_operators([wrong]).run(X)
    many = dataclasses.replace(SHIFT, kernel=lambda x, by: (x, x))
    with pytest.raises(tosaic.InvalidGraph, match=r"wrong number of arrays: expected 1, got 2"):
        file.with_operators([many]).run(X)


# ---- descriptions for functions that read exported programs and files ----


def test_functions_that_read_a_program_take_descriptions(tmp_path: Any) -> None:
    ep = exported(in_and_out)
    torch.export.save(ep, tmp_path / "model.pt2")
    assert tosaic.check(ep, operators=[GATE]).ok
    lowered = tosaic.lower(tmp_path / "model.pt2", operators=[GATE], orders={"outputs": "contiguous"})
    lowered.save(tmp_path / "model.tosa")
    tosaic.from_exported(ep).save(tmp_path / "model.tosaic")
    for name in ("model.pt2", "model.tosa", "model.tosaic"):
        program = tosaic.open_program(tmp_path / name, operators=[GATE])
        np.testing.assert_allclose(program.run(X), ep.module()(X).numpy(), rtol=1e-5, atol=1e-5)
    assert tosaic.compare(ep, tmp_path / "model.tosa", (X,), operators=[GATE]).ok


def test_descriptions_are_refused_for_a_program_that_is_imported_already() -> None:
    program = tosaic.from_exported(exported(in_and_out))
    for call in (tosaic.lower, tosaic.check, lambda p, **given: tosaic.compare(p, p, (X,), **given)):
        with pytest.raises(tosaic.InvalidGraph, match=r"'operators' describe nothing.*tosaic.from_exported"):
            call(program, operators=[GATE])
    with pytest.raises(tosaic.InvalidGraph, match=r"\[check\] unknown value of 'operators': expected a seq"):
        tosaic.check(exported(in_and_out), operators=GATE)


def test_a_description_with_a_misspelt_target_is_reported(caplog: Any) -> None:
    wrong = tosaic.ports.ForeignOp("tosaic_test::gaet", gate, domain="d", name="n")
    with caplog.at_level(logging.WARNING):
        program = tosaic.from_exported(exported(in_and_out), operators=[wrong])
    message = (
        "the description of 'tosaic_test.gaet.default' matches no call; "
        "calls without a description: 'tosaic_test.gate.default'"
    )
    assert message in [record.getMessage() for record in caplog.records]
    assert [note.message for note in program.diagnostics if note.rule == "description"] == [message]
    spare = tosaic.from_exported(exported(in_and_out), operators=[GATE, SHIFT])
    assert "description" not in [note.rule for note in spare.diagnostics]


def test_a_custom_operator_that_writes_its_operand_is_not_sent_to_decompositions() -> None:
    def forward(conv: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.ops.tosaic_test.add_one_(y)
        return y

    with pytest.raises(
        tosaic.UnsupportedOp, match=r"writes to 'x'.*Write an operator that returns the new value, and call"
    ):
        tosaic.from_exported(exported(forward))


def test_the_reference_model_has_no_kernels_for_described_operators() -> None:
    pytest.importorskip("tosa_reference_model")
    from tosaic.lowering.reference_model import run_reference_model

    lowered = tosaic.lower(exported(in_and_out), operators=[GATE])
    with pytest.raises(
        tosaic.UnsupportedOp, match=r"no kernels for CUSTOM operators.*got 'tosaic_test.gate'"
    ):
        run_reference_model(lowered, X)


def test_the_command_line_says_where_descriptions_are_taken(tmp_path: Any, capsys: Any) -> None:
    from tosaic.cli import main

    program = tosaic.from_exported(exported(in_and_out), operators=[GATE])
    lowered, _ = saved(program, tmp_path)
    tosaic.from_exported(exported(in_and_out)).save(tmp_path / "model.tosaic")
    np.save(tmp_path / "x.npy", np.zeros(lowered.inputs[0].shape, np.float32))
    run = ["run", "file.tosa", "--input", "x.npy", "-o", "y.npy"]
    told = 'docs/reference/cli.md, "Foreign operators", has the lines of Python'
    assert main([text if "." not in text else str(tmp_path / text) for text in run]) == 3
    assert told in capsys.readouterr().err
    assert main(["check", str(tmp_path / "model.tosaic")]) == 1
    assert told in capsys.readouterr().out


# ---- between quantized values ----


def quantized_gate(conv: Any, x: torch.Tensor) -> torch.Tensor:
    q = Q.quantize_per_tensor(x, 0.02, 3, -128, 127, torch.int8)
    y = torch.ops.tosaic_test.gate(Q.dequantize_per_tensor(q, 0.02, 3, -128, 127, torch.int8), 1.5)
    q = Q.quantize_per_tensor(y, 0.015, -5, -128, 127, torch.int8)
    return Q.dequantize_per_tensor(q, 0.015, -5, -128, 127, torch.int8)


def integer_gate(x: tosaic.ports.QuantizedArray, factor: float, mode: str = "soft", *, results: Any) -> Any:
    (out,) = results
    real = (x.integers.astype(np.float32) - x.qparams.zero_point) * np.float32(x.qparams.scale)
    stored = np.rint(gate(real, factor, mode) / np.float32(out.scale)) + out.zero_point
    return np.clip(stored, out.qmin, out.qmax).astype(np.int8)


def test_an_operator_over_quantized_values_computes_with_their_integers() -> None:
    operator = tosaic.ports.ForeignOp(
        GATE.target, gate, layout="any", domain="tosaic_test", name="gate", quantized=integer_gate
    )
    ep = exported(quantized_gate)
    program = tosaic.from_exported(ep, operators=[operator])
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    (custom,) = [node for node in lowered.graph.nodes if node.op == "tosa.custom"]
    assert [value.dtype for value in (*custom.operands, *custom.results)] == ["i8", "i8"]
    found, expected = lowered.run(X), ep.module()(X).numpy()
    assert np.abs(found - expected).max() <= 0.0151  # one unit: torch's sigmoid and numpy's exp differ
    np.testing.assert_allclose(program.run(X), expected, atol=0.0151)
    assert tosaic.compare(program, lowered, (X,)).ok


def test_a_file_with_integers_needs_a_description_with_a_function_for_them(tmp_path: Any) -> None:
    operator = dataclasses.replace(GATE, quantized=integer_gate)
    program = tosaic.from_exported(exported(quantized_gate), operators=[operator])
    _, file = saved(program, tmp_path, target="TOSA-1.0+INT")
    x = np.zeros(file.inputs[0].shape, np.int8)
    file.with_operators([operator]).run(x)
    with pytest.raises(
        tosaic.UnsupportedOp,
        match=r"'tosaic_test.gate.default' computes with integers, and its description has no function for "
        r"them: expected tosaic.ports.ForeignOp\(..., quantized=function\)",
    ):
        file.with_operators([GATE]).run(x)


def test_a_file_with_integers_is_compared_with_the_exported_program(tmp_path: Any) -> None:
    operator = dataclasses.replace(GATE, quantized=integer_gate)
    ep = exported(quantized_gate)
    program = tosaic.from_exported(ep, operators=[operator])
    _, file = saved(program, tmp_path, target="TOSA-1.0+INT")
    assert tosaic.compare(ep, file.with_operators([operator]), (X,)).ok
    assert tosaic.compare(ep, tmp_path / "file.tosa", (X,), operators=[operator]).ok


def test_a_wrong_kernel_is_found_though_the_exported_program_has_its_description(tmp_path: Any) -> None:
    wrong = tosaic.ports.ForeignOp(
        "aten.gelu.default", lambda x, approximate="none": x, layout="any", domain="d", name="gelu"
    )
    ep = exported(lambda conv, x: nn.functional.gelu(x))
    lowered = tosaic.lower(ep, operators=[wrong])
    comparison = tosaic.compare(ep, lowered, (X,))
    assert not comparison.ok
    assert [row.fx_name for row in comparison.rows if not row.ok] == ["gelu"]


@pytest.mark.parametrize(
    ("operators", "hint"),
    [
        ([], "ForeignOp('tosaic_test.gate.default', ..., quantized=function)"),
        ([GATE], "ForeignOp('tosaic_test.gate.default', ..., quantized=function)"),
        ([dataclasses.replace(GATE, quantized=lambda x: x)], "Quantize all its float operands and results"),
    ],
    ids=["undescribed", "floats", "integers"],
)
def test_a_float_operator_of_a_target_without_floats_is_named_by_its_target(
    operators: Any, hint: str
) -> None:
    problems = tosaic.check(exported(in_and_out), target="TOSA-1.0+INT", operators=operators).problems
    (problem,) = [problem for problem in problems if "gate" in problem.what]
    assert problem.what == "'tosaic_test.gate.default' computes with floats: it was not quantized"
    assert hint in problem.hint


def test_without_integers_it_stays_between_dequantize_and_quantize() -> None:
    program = tosaic.from_exported(exported(quantized_gate), operators=[GATE])
    with pytest.raises(tosaic.UnsupportedOp, match="gate"):
        tosaic.lower(program, target="TOSA-1.0+INT")
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP")
    (custom,) = [node for node in lowered.graph.nodes if node.op == "tosa.custom"]
    assert [value.dtype for value in (*custom.operands, *custom.results)] == ["f32", "f32"]
    np.testing.assert_allclose(lowered.run(X), exported(quantized_gate).module()(X).numpy(), atol=0.0151)


class PerChannel(nn.Module):
    """A gate between max pools, which take channels-last arrays; its operand has a scale for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scales", torch.linspace(0.01, 0.04, 4))
        self.register_buffer("zeros", torch.arange(4) - 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.max_pool2d(self.through(x), 2, 1, 1)
        args = (self.scales, self.zeros, 1, -128, 127, torch.int8)
        y = torch.ops.tosaic_test.gate(self.through(pooled), 1.5)
        y = Q.dequantize_per_channel(Q.quantize_per_channel(y, *args), *args)
        return self.through(nn.functional.max_pool2d(self.through(y), 2, 1, 1))

    def through(self, x: torch.Tensor) -> torch.Tensor:
        args = (0.03, 3, -128, 127, torch.int8)
        return Q.dequantize_per_tensor(Q.quantize_per_tensor(x, *args), *args)


@pytest.mark.parametrize("layout", ["row_major", "any", "channels_last"])
def test_the_axis_of_per_channel_qparams_counts_axes_of_the_arrays(layout: str) -> None:
    def integers(x: tosaic.ports.QuantizedArray, factor: float, mode: str = "soft", *, results: Any) -> Any:
        (out,) = results
        return out.quantize(gate(x.qparams.dequantize(x.integers), factor, mode))

    operator = tosaic.ports.ForeignOp(
        GATE.target, gate, layout=layout, domain="d", name="n", quantized=integers
    )
    x = torch.linspace(-3, 3, 64).reshape(1, 4, 4, 4)
    ep = torch.export.export(PerChannel(), (x,))
    program = tosaic.from_exported(ep, operators=[operator])
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP")
    assert tosaic.compare(program, lowered, (x,)).ok
