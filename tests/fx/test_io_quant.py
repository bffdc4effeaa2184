"""Extraction of quantized inputs and outputs from programs, exported programs and edge programs.

The peer is torch, which runs a program before and after the extraction. `test_io_in_executorch` compares with
ExecuTorch's own extraction.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from fx.io_cases import (
    CASES,
    FORMS,
    INT8,
    SCALES,
    Case,
    OneInput,
    Q,
    Tensor,
    edge,
    exported,
    given,
    image,
    rounded,
    rounded_by_channel,
    run,
)
from torch import nn
from tosaic import IoQuant
from tosaic.lowering.reference_model import run_reference_model
from tosaic.ports import QParams

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "DeprecationWarning")
]


def text_of(program: Any) -> str:
    if isinstance(program, tosaic.Program):
        return program.text()
    program = program.exported_program() if hasattr(program, "exported_program") else program
    values = [(node.name, node.meta.get("val")) for node in program.graph.nodes]
    return f"{program.graph}{program.graph_signature}{values}{program.example_inputs}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_the_extracted_program_computes_the_same_and_the_given_one_is_unchanged(name: str, form: str) -> None:
    case = CASES[name]
    program = FORMS[form](exported(case))
    before = text_of(program)
    expected = run(program, case.args, case.kwargs)
    changed, io = tosaic.extract_io_quant(program)
    assert type(changed) is type(program)
    assert text_of(program) == before
    assert tuple(port.path for port in io.inputs) == case.inputs
    assert tuple(port.path for port in io.outputs) == case.outputs
    for port in (*io.inputs, *io.outputs):
        assert port.qparams == case.qparams.get(port.path, port.qparams)
    args, kwargs = given(case, io)
    found = run(changed, args, kwargs)
    assert found.keys() == expected.keys()
    known = {port.path: port.qparams for port in io.outputs}
    for path, array in found.items():
        numbers = known[path].dequantize(array) if path in known else array
        assert np.array_equal(numbers, expected[path]), path
        assert (array.dtype.kind in "iu") == (path in known)
    assert IoQuant.from_json(io.to_json()) == io


@pytest.mark.parametrize("name", CASES)
def test_programs_of_each_type_have_the_same_parameters(name: str) -> None:
    program = exported(CASES[name])
    found = [tosaic.extract_io_quant(FORMS[form](program))[1] for form in ("program", "exported program")]
    each = [[(p.index, p.path, p.qparams) for p in (*io.inputs, *io.outputs)] for io in found]
    assert each[0] == each[1]


@pytest.mark.parametrize("form", FORMS)
def test_in_place_changes_the_given_program(form: str) -> None:
    case = CASES["several users"]
    program = FORMS[form](exported(case))
    expected = run(program, case.args, {})
    changed, io = tosaic.extract_io_quant(program, in_place=True)
    assert changed is program
    found = run(program, *given(case, io))
    for port in io.outputs:
        assert np.array_equal(port.qparams.dequantize(found[port.path]), expected[port.path])


@pytest.mark.parametrize("form", FORMS)
def test_only_the_chosen_inputs_and_outputs_change(form: str) -> None:
    program = FORMS[form](exported(CASES["int16 and uint8"]))
    for inputs, outputs, expected in (
        (["y"], None, [[(1, "y")], []]),
        ((), (0,), [[], [(0, "out[0]")]]),
        ({0: "int16", "y": "float32"}, {"out[1]": "uint8"}, [[(0, "x")], [(1, "out[1]")]]),
    ):
        _, io = tosaic.extract_io_quant(program, inputs=inputs, outputs=outputs)
        assert [[(port.index, port.path) for port in side] for side in (io.inputs, io.outputs)] == expected


WIDE = QParams("i8", (0.025,), (0,), -127, 127)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["one user", "quantized in two ways", "layout operators between"])
def test_given_parameters_are_converted_to_the_programs_parameters(name: str, form: str) -> None:
    case = CASES[name]
    program = FORMS[form](exported(case))
    changed, io = tosaic.extract_io_quant(program, inputs={"x": WIDE}, outputs={0: WIDE})
    assert [port.qparams for port in (*io.inputs, *io.outputs)] == [WIDE, WIDE]
    args, _ = given(case, io)
    floats = torch.from_numpy(WIDE.dequantize(args[0].numpy()))
    (expected,) = run(program, (floats,), {}).values()
    (found,) = run(changed, args, {}).values()
    assert np.array_equal(found, WIDE.quantize(expected))
    assert found.min() >= -127
    if name != "quantized in two ways":
        lowered = tosaic.lower(changed, target="TOSA-1.0+INT")
        assert {port.dtype for port in (*lowered.inputs, *lowered.outputs)} == {"i8"}
        floats_left = [n.name for n in lowered.graph.nodes for r in n.results if r.dtype == "f32"]
        assert floats_left == []
        steps = np.abs(lowered.run(args[0].numpy()).astype(int) - found)
        assert steps.max() <= 1


@pytest.mark.parametrize("form", FORMS)
def test_uint8_of_an_int8_input_has_the_same_scale_and_a_greater_zero_point(form: str) -> None:
    case = CASES["one user"]
    program = FORMS[form](exported(case))
    changed, io = tosaic.extract_io_quant(program, inputs={"x": "uint8"}, outputs={0: "uint8"})
    assert io.input("x") == QParams("u8", (0.02,), (131,), 0, 255)
    assert io.output("out") == QParams("u8", (0.04,), (128,), 0, 255)
    (expected,) = run(program, case.args, {}).values()
    (found,) = run(changed, *given(case, io)).values()
    assert found.dtype == np.uint8
    assert np.array_equal(io.output(0).dequantize(found), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "quantized in two ways",
            {"inputs": ["x"]},
            "cannot be integers: expected one quantization, got 2: i8",
        ),
        ("quantized in two ways", {"inputs": {0: "int8"}}, "cannot be int8"),
        ("also read as floats", {"inputs": ["x"]}, "sin.*' reads it as floats"),
        ("also read as floats", {"inputs": {"x": WIDE}}, "cannot be i8"),
        ("unused input before", {"inputs": [0]}, "cannot be integers.*nothing reads it"),
        ("one user", {"inputs": {"x": "int16"}}, "cannot be int16: expected quantized to int16, got i8"),
        ("repeated output", {"outputs": [2]}, "cannot be integers: expected a float32"),
    ],
)
def test_a_port_that_cannot_be_what_is_asked_is_named(
    name: str, form: str, options: dict[str, Any], message: str
) -> None:
    program = FORMS[form](exported(CASES[name]))
    before = text_of(program)
    port = r"'x' of the inputs" if "inputs" in options else r"'out\[2\]' of the outputs"
    with pytest.raises(tosaic.QuantMismatch, match=f"{port}.*{message}"):
        tosaic.extract_io_quant(program, in_place=True, **options)
    assert text_of(program) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": ["z"]}, r"no such entry of inputs: expected one of 'x', or an index below 1, got 'z'"),
        ({"inputs": "x"}, r"unknown value of 'inputs': expected 'auto', None, a sequence"),
        ({"outputs": {"oot": "int8"}}, r"no such entry of outputs.*Did you mean 'out'"),
        ({"inputs": {"x": "int8", 0: "int8"}}, r"one entry of inputs is named twice.*'x' and 0"),
        ({"inputs": {"x": "int9"}}, r"input 'x' cannot be this: expected one of 'float32', 'int8', 'uint8'"),
        ({"inputs": {"x": QParams("i8", (0.0,), (0,), -128, 127)}}, r"got the scale 0.0"),
        ({"inputs": {"x": QParams("i8", (1.0,), (0,), -129, 127)}}, r"got the range -129 to 127 in i8"),
        ({"inputs": {"x": QParams("i8", (1.0, 2.0), (0, 0), -128, 127, 0)}}, r"got 2 scales of axis 0"),
        ({"method": "encode"}, r"the program has no method 'encode': expected 'forward'"),
        ({"in_place": 1}, r"unknown value of 'in_place': expected True or False"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_option_is_refused(form: str, options: dict[str, Any], message: str) -> None:
    program = FORMS[form](exported(CASES["one user"]))
    with pytest.raises(tosaic.InvalidGraph, match=message):
        tosaic.extract_io_quant(program, **options)


def test_something_else_than_a_program_and_a_lowered_one_are_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"unknown value of 'program'"):
        tosaic.extract_io_quant(nn.ReLU())
    lowered = tosaic.lower(exported(CASES["one user"]), target="TOSA-1.0+INT").at("tosa")
    with pytest.raises(tosaic.InvalidGraph, match="the program is lowered already"):
        tosaic.extract_io_quant(lowered)


class Writes(nn.Module):
    """Writes its argument; the new value has the same qparams as the old one, or others."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, cache: Tensor, x: Tensor) -> Tensor:
        total = rounded(rounded(cache, 0.02) + rounded(x, 0.02), self.scale)
        cache.copy_(total)
        return torch.relu(total)


@pytest.mark.parametrize("form", ["program", "exported program"])
def test_an_input_that_the_program_writes_and_its_new_value_become_the_same_integers(form: str) -> None:
    program = FORMS[form](torch.export.export(Writes(0.02), (image(), image())).run_decompositions({}))
    _, io = tosaic.extract_io_quant(program)
    assert [port.path for port in io.inputs] == ["cache", "x"]
    other = FORMS[form](torch.export.export(Writes(0.03), (image(), image())).run_decompositions({}))
    assert [port.path for port in tosaic.extract_io_quant(other)[1].inputs] == ["x"]
    with pytest.raises(
        tosaic.QuantMismatch, match=r"'cache' of the inputs.*a new value that is quantized with"
    ):
        tosaic.extract_io_quant(other, inputs=["cache"])
    changed, _ = tosaic.extract_io_quant(program)
    cache = torch.zeros(1, 3, 4, dtype=torch.int8)
    runs = changed if isinstance(changed, tosaic.Program) else changed.module()
    runs(cache, torch.full((1, 3, 4), 7, dtype=torch.int8))
    assert (cache == 7).all()


def test_the_chosen_method_of_an_edge_program_changes() -> None:
    exir = pytest.importorskip("executorch.exir")
    one = exported(CASES["one user"])
    two = exported(CASES["narrow range"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = exir.EdgeCompileConfig(_check_ir_validity=False)
        manager = exir.to_edge({"encode": one, "decode": two}, compile_config=config)
    changed, io = tosaic.extract_io_quant(manager, method="decode")
    assert io.method == "decode"
    assert io.input(0) == CASES["narrow range"].qparams["x"]
    assert changed.methods == manager.methods == {"encode", "decode"}
    assert changed.exported_program("encode") is manager.exported_program("encode")
    dtypes = [
        [node.meta["val"].dtype for node in each.exported_program("decode").graph.nodes if node.name == "x"]
        for each in (manager, changed)
    ]
    assert dtypes == [[torch.float32], [torch.int8]]
    with pytest.raises(tosaic.InvalidGraph, match="no method 'forward': expected 'decode' or 'encode'"):
        tosaic.extract_io_quant(manager)


def test_an_edge_program_with_integer_inputs_becomes_a_pte_file() -> None:
    pytest.importorskip("executorch.kernels.quantized")  # registers the operators of ExecuTorch's runtime
    changed, _ = tosaic.extract_io_quant(edge(exported(CASES["one user"])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert changed.to_executorch().buffer


def test_symbolic_sizes_stay_symbolic() -> None:
    module = OneInput(lambda x: rounded(rounded(x.permute(0, 2, 1), 0.02, 3) * 2, 0.04).unsqueeze(0))
    dynamic = {"x": {0: torch.export.Dim("n")}}
    program = torch.export.export(module, (image(2, 3, 4),), dynamic_shapes=(dynamic["x"],))
    changed, io = tosaic.extract_io_quant(program)
    x = image(5, 3, 4)
    expected = program.module()(x)
    found = changed.module()(torch.from_numpy(io.input("x").quantize(x.numpy())))
    assert np.array_equal(io.output(0).dequantize(found.numpy()), expected.numpy())


def test_a_program_at_stage_quantized_is_extracted() -> None:
    case = CASES["layout operators between"]
    program = tosaic.from_exported(exported(case))
    graph = tosaic.Pipeline.default("TOSA-1.0+INT")["fold-qdq"].run(program.graph)
    quantized = tosaic.Program(graph, program.signature)
    changed, io = tosaic.extract_io_quant(quantized)
    assert changed.stage == "quantized"
    (expected,) = run(program, case.args, {}).values()
    (found,) = run(changed, *given(case, io)).values()
    assert np.array_equal(io.output("out").dequantize(found), expected)
    lowered = tosaic.lower(changed, target="TOSA-1.0+INT")
    assert np.array_equal(lowered.run(*given(case, io)[0]), found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "the file is damaged: expected an object"),
        ("{", "its JSON cannot be read"),
        (3, "its JSON cannot be read"),
        ('{"format": "x"}', "format is damaged: expected 'tosaic io quantization'"),
        ('{"format": "tosaic io quantization", "version": 9}', "another version: expected 1, got 9"),
        ('{"format": "tosaic io quantization", "version": 1}', "inputs is damaged: expected an entry"),
    ],
)
def test_damaged_json_is_refused(text: Any, message: str) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        IoQuant.from_json(text)


def test_parameters_that_are_not_there_are_refused() -> None:
    _, io = tosaic.extract_io_quant(exported(CASES["unused input before"]))
    assert io.input(1) == io.input("y")
    with pytest.raises(
        tosaic.QuantMismatch, match=r"among the inputs that hold integers: expected 'y' \(1\), got 0"
    ):
        io.input(0)
    with pytest.raises(tosaic.QuantMismatch, match=r"got 'oot'. Did you mean 'out'"):
        io.output("oot")
    for key in (None, -1, 1.5, "", b"y"):
        with pytest.raises(tosaic.QuantMismatch, match="no such entry among the inputs"):
            io.input(key)


# ---- layout operators ----


F = nn.functional


def by_channel(module: Any, x: Tensor) -> Tensor:
    return rounded_by_channel(x, 1, module.scales, module.zeros)


class Moves(nn.Module):
    """Quantizes its moved input by channel, and moves its dequantized output."""

    def __init__(self, before: Any, after: Any, zeros: Sequence[int] = (1, -2, 3)) -> None:
        super().__init__()
        self.before, self.after = before, after
        self.register_buffer("scales", SCALES.clone())
        self.register_buffer("zeros", torch.tensor(zeros))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(by_channel(self, by_channel(self, self.before(x)) * 2))


def same(x: Tensor) -> Tensor:
    return x


def channels(order: Sequence[int], axis: int = 1) -> QParams:
    scales, zeros = SCALES.double().tolist(), (1, -2, 3)
    return QParams("i8", tuple(scales[i] for i in order), tuple(zeros[i] for i in order), -128, 127, axis)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("before", "after", "of_input", "of_output"),
    [
        (lambda x: x.flip(1), lambda y: y.flip(1, 2), channels((2, 1, 0)), channels((2, 1, 0))),
        (lambda x: x[:, :, ::2], lambda y: y[:, 1:], channels((0, 1, 2)), channels((1, 2))),
        (same, lambda y: y[:, ::2], channels((0, 1, 2)), channels((0, 2))),
        (
            lambda x: x[:1].expand(5, 3, 4),
            lambda y: y.expand(2, 5, 3, 4),
            channels((0, 1, 2)),
            channels((0, 1, 2), axis=2),
        ),
        (same, lambda y: y.repeat(1, 2, 1), channels((0, 1, 2)), channels((0, 1, 2, 0, 1, 2))),
    ],
)  # fmt: skip
def test_scales_by_channel_follow_the_indices_of_their_axis(
    form: str, before: Any, after: Any, of_input: QParams, of_output: QParams
) -> None:
    x = image(2, 3, 4)
    case = Case(Moves(before, after), (x,), ("x",), ("out",))
    program = FORMS[form](exported(case))
    changed, io = tosaic.extract_io_quant(program)
    assert (io.input("x"), io.output("out")) == (of_input, of_output)
    (expected,) = run(program, (x,), {}).values()
    (found,) = run(changed, *given(case, io)).values()
    assert np.array_equal(io.output("out").dequantize(found), expected)


def test_padding_inserts_one_integer_for_all_channels_or_the_input_stays_float() -> None:
    def padded(x: Tensor) -> Tensor:
        return F.pad(x, (1, 2))

    x = image(2, 3, 4)
    for form in FORMS:
        for zeros, is_integer in (((3, 3, 3), True), ((1, -2, 3), False)):
            case = Case(Moves(padded, padded, zeros), (x,), ("x",), ("out",))
            program = FORMS[form](exported(case))
            changed, io = tosaic.extract_io_quant(program)
            assert len(io.inputs) == len(io.outputs) == is_integer
            (expected,) = run(program, (x,), {}).values()
            (found,) = run(changed, *given(case, io)).values()
            assert np.array_equal(io.output(0).dequantize(found) if is_integer else found, expected)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("form", ["program", "exported program"])
def test_padding_with_elements_moves_integers(form: str, mode: str) -> None:
    def function(x: Tensor) -> Tensor:
        inside = rounded(F.pad(x, (1, 2), mode=mode), 0.02, 3)
        return F.pad(rounded(inside * 2, 0.04, 5), (1, 0), mode=mode)

    case = Case(OneInput(function), (image(),), ("x",), ("out",))
    program = FORMS[form](exported(case))
    changed, io = tosaic.extract_io_quant(program)
    assert len(io.inputs) == len(io.outputs) == 1
    (expected,) = run(program, case.args, {}).values()
    (found,) = run(changed, *given(case, io)).values()
    assert np.array_equal(io.output(0).dequantize(found), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zeros", [(0, 0), (4, 0), (0, 3), (4, 3)])
def test_a_triangle_of_zeros_is_one_of_integers_only_if_0_represents_0(
    form: str, zeros: tuple[int, int]
) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.triu(rounded(rounded(torch.tril(x), 0.02, zeros[0]) * 2, 0.04, zeros[1]))

    case = Case(OneInput(function), (image(3, 4),), ("x",), ("out",))
    program = FORMS[form](exported(case))
    changed, io = tosaic.extract_io_quant(program)
    if form != "edge program":  # there, tril is a mask and a where
        assert [len(io.inputs), len(io.outputs)] == [zero == 0 for zero in zeros]
    (expected,) = run(program, case.args, {}).values()
    (found,) = run(changed, *given(case, io)).values()
    assert np.array_equal(io.output(0).dequantize(found) if io.outputs else found, expected)
    lowered = tosaic.lower(exported(case), target="TOSA-1.0+FP+INT")
    assert np.array_equal(lowered.run(*case.args), expected)
    if zeros[0] and form != "edge program":
        with pytest.raises(tosaic.QuantMismatch, match="'tril' inserts 0, which its integers"):
            tosaic.extract_io_quant(program, inputs=["x"])


@pytest.mark.parametrize("form", ["program", "exported program"])
def test_an_extracted_program_with_padding_lowers_to_integers(form: str) -> None:
    case = CASES["padding between"]
    changed, io = tosaic.extract_io_quant(FORMS[form](exported(case)))
    lowered = tosaic.lower(changed, target="TOSA-1.0+INT")
    args, _ = given(case, io)
    (expected,) = run(changed, args, {}).values()
    assert np.array_equal(lowered.run(*args), expected)
    assert np.array_equal(run_reference_model(lowered, *args).outputs, expected)


@pytest.mark.parametrize(
    "move",
    [
        lambda q: q.flip(1),
        lambda q: q[:, 1:3],
        lambda q: q.reshape(-1),
        lambda q: q.unsqueeze(0).expand(2, 2, 3, 4),
        lambda q: F.pad(q, (1, 1), value=3),
    ],
)
def test_integers_by_channel_may_be_moved_and_returned(move: Any) -> None:
    class Integers(Moves):
        def forward(self, x: Tensor) -> Tensor:
            return self.before(Q.quantize_per_channel(x, self.scales, self.zeros, 1, *INT8))

    case = Case(Integers(move, same), (image(2, 3, 4),), (), ())
    lowered = tosaic.lower(exported(case), target="TOSA-1.0+FP+INT")
    (expected,) = run(exported(case), case.args, {}).values()
    assert np.array_equal(lowered.run(*case.args), expected)


def test_a_quantized_program_extracted_in_place_has_no_exported_program_of_floats() -> None:
    pytest.importorskip("torchao")
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    quantized = tosaic.quantize(torch.export.export(module, (torch.from_numpy(x),)), [(x,)])
    copied, io = tosaic.extract_io_quant(quantized)
    assert type(copied) is tosaic.Program
    assert type(quantized.to_exported()) is torch.export.ExportedProgram
    changed, _ = tosaic.extract_io_quant(quantized, in_place=True)
    assert changed is quantized
    assert np.array_equal(changed.run(io.input(0).quantize(x)), copied.run(io.input(0).quantize(x)))
    with pytest.raises(tosaic.InvalidGraph, match=r"changed the inputs and outputs.*Call to_exported first"):
        quantized.to_exported()
