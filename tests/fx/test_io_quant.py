"""Extraction of quantized inputs and outputs from programs, exported programs and edge programs.

The peers are torch, which runs a program before and after the extraction, and ExecuTorch's own extraction
where that works.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from torch import nn
from tosaic import IoQuant, QParams

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "DeprecationWarning")
]

Q = torch.ops.quantized_decomposed
Tensor = torch.Tensor
INT8, NARROW = (-128, 127, torch.int8), (-127, 127, torch.int8)
INT16, UINT8 = (-32767, 32767, torch.int16), (0, 255, torch.uint8)
SCALES, ZEROS = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, -2, 3])


def rounded(x: Tensor, scale: float, zero: int = 0, kind: tuple[Any, ...] = INT8) -> Tensor:
    return Q.dequantize_per_tensor(Q.quantize_per_tensor(x, scale, zero, *kind), scale, zero, *kind)


def rounded_by_channel(x: Tensor, axis: int, scales: Tensor = SCALES, zeros: Tensor = ZEROS) -> Tensor:
    integers = Q.quantize_per_channel(x, scales, zeros, axis, *INT8)
    return Q.dequantize_per_channel(integers, scales, zeros, axis, *INT8)


class Calls(nn.Module):
    """A module whose forward is a function, with the buffers that per-channel scales need."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("scales", SCALES.clone())
        self.register_buffer("zeros", ZEROS.clone())


class OneInput(Calls):
    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class TwoInputs(Calls):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


class Nested(Calls):
    def forward(self, batch: dict[str, Tensor], *, scale: Tensor) -> Any:
        return self.function(batch, scale)


class ByChannel(Calls):
    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.scales, self.zeros)


class Counts(nn.Module):
    """Writes a buffer of floats, which is in the list of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = rounded(rounded(x, 0.02, 3) * 2, 0.04)
        self.seen.add_(y)
        return y


class Remembers(nn.Module):
    """Has a state of integers behind its quantize node."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        total = rounded(rounded(x, 0.02, 3) + rounded(self.last, 0.04), 0.04)
        self.last.copy_(total)
        return total


def image(*shape: int) -> Tensor:
    return torch.linspace(-1.7, 1.6, int(np.prod(shape or (1, 3, 4)))).reshape(shape or (1, 3, 4))


@dataclass(frozen=True)
class Case:
    """A module, its call, and the paths of inputs and outputs that become integers with ``auto``."""

    module: nn.Module
    args: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    in_executorch: bool = False  # extract_io_quant_params works on it
    qparams: dict[str, QParams] = field(default_factory=dict)  # those that are not plain


def several_users(x: Tensor) -> tuple[Tensor, Tensor]:
    return rounded(torch.relu(rounded(x, 0.02, 3)), 0.02), rounded(torch.tanh(rounded(x, 0.02, 3)), 0.01)


def moved(x: Tensor) -> Tensor:
    a = rounded(x.permute(0, 2, 1).unsqueeze(1)[:, :, 1:].reshape(3, 3), 0.02, 3)
    return rounded(a * 2, 0.04).reshape(1, 9).squeeze(0).clone()


def padded(x: Tensor) -> Tensor:
    return rounded(rounded(torch.nn.functional.pad(x, (1, 2)), 0.02, 3) * 2, 0.04, 5).flip(-1)


def by_channel(x: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    integers = Q.quantize_per_channel(x.permute(0, 2, 1), scales, zeros, 2, *INT8)
    floats = Q.dequantize_per_channel(integers, scales, zeros, 2, *INT8)
    total = Q.quantize_per_channel(floats * 2, scales, zeros, 2, *INT8)
    return Q.dequantize_per_channel(total, scales, zeros, 2, *INT8).permute(0, 2, 1)


def repeated(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = rounded(rounded(x, 0.02, 3) + 1, 0.04)
    return y, y, torch.relu(y)


def nested(batch: dict[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
    return {"sum": rounded(rounded(batch["a"], 0.02, 3) + rounded(scale, 0.5), 0.5)}


def wide_and_unsigned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    wide = rounded(x, 1 / 32767, 0, INT16) * 0.5
    return rounded(wide, 1 / 32767, 0, INT16), rounded(y, 0.02, 9, UINT8)


CHANNELS = QParams("i8", tuple(SCALES.double().tolist()), tuple(ZEROS.tolist()), -128, 127, axis=1)
CASES = {
    "one user": Case(
        OneInput(lambda x: rounded(rounded(x, 0.02, 3) * 2, 0.04)),
        (image(),),
        ("x",),
        ("out",),
        in_executorch=True,
    ),
    "several users": Case(OneInput(several_users), (image(),), ("x",), ("out[0]", "out[1]")),
    "layout operators between": Case(OneInput(moved), (image(),), ("x",), ("out",)),
    "padding between": Case(OneInput(padded), (image(),), ("x",), ("out",)),
    "by channel": Case(
        ByChannel(by_channel), (image(2, 3, 4),), ("x",), ("out",), qparams={"x": CHANNELS, "out": CHANNELS}
    ),
    "quantized in two ways": Case(
        OneInput(lambda x: rounded(rounded(x, 0.02, 3) + rounded(x, 0.5), 0.5)), (image(),), (), ("out",)
    ),
    "also read as floats": Case(
        OneInput(lambda x: rounded(rounded(x, 0.02, 3) + torch.sin(x), 0.04)), (image(),), (), ("out",)
    ),
    "repeated output": Case(OneInput(repeated), (image(),), ("x",), ("out[0]", "out[1]")),
    "mutated buffer": Case(Counts(), (image(),), ("x",), ("out",)),
    "state": Case(Remembers(), (image(),), ("x",), ("out",)),
    "nested and keyword inputs": Case(
        Nested(nested),
        ({"b": image(), "a": image()},),
        ("batch['a']", "scale"),
        ("out['sum']",),
        {"scale": image()},
    ),
    "unused input before": Case(
        TwoInputs(lambda x, y: rounded(rounded(y, 0.02, 3) * 2, 0.04)), (image(), image()), ("y",), ("out",),
        in_executorch=True,
    ),
    "narrow range": Case(
        OneInput(lambda x: rounded(rounded(x, 1 / 127, 0, NARROW) * 2, 1 / 64, 0, NARROW)),
        (image(),),
        ("x",),
        ("out",),
        in_executorch=True,
        qparams={
            "x": QParams("i8", (1 / 127,), (0,), -127, 127),
            "out": QParams("i8", (1 / 64,), (0,), -127, 127),
        },
    ),
    "int16 and uint8": Case(
        TwoInputs(wide_and_unsigned),
        (image(), image()),
        ("x", "y"),
        ("out[0]", "out[1]"),
    ),
}  # fmt: skip


def exported(case: Case) -> Any:
    module = copy.deepcopy(case.module).eval()
    return torch.export.export(module, case.args, case.kwargs).run_decompositions({})


def edge(program: Any) -> Any:
    exir = pytest.importorskip("executorch.exir")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return exir.to_edge(program, compile_config=exir.EdgeCompileConfig(_check_ir_validity=False))


def run(program: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Runs a program of any of the three types; returns its outputs by path."""
    if isinstance(program, tosaic.Program):
        program.reset_state()
        result = program.run(*args, **kwargs)
    else:
        program = program.exported_program() if hasattr(program, "exported_program") else program
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = copy.deepcopy(program).module()(*args, **kwargs)
    if isinstance(result, dict):
        return {f"out[{key!r}]": np.asarray(value) for key, value in result.items()}
    if isinstance(result, tuple | list):
        return {f"out[{i}]": np.asarray(value) for i, value in enumerate(result)}
    return {"out": np.asarray(result)}


def given(case: Case, io: IoQuant) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of a case, with the integers that its extracted program takes."""
    known = {port.path: port.qparams for port in io.inputs}

    def integers(path: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: integers(f"{path}[{key!r}]", each) for key, each in value.items()}
        return torch.from_numpy(known[path].quantize(value.numpy())) if path in known else value

    names = ["batch"] if isinstance(case.module, Nested) else ["x", "y"]
    return (
        [integers(name, value) for name, value in zip(names, case.args, strict=False)],
        {name: integers(name, value) for name, value in case.kwargs.items()},
    )


FORMS = {
    "program": tosaic.from_exported,
    "exported program": lambda program: program,
    "edge program": edge,
}


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


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.in_executorch])
def test_the_parameters_are_those_of_executorch(name: str) -> None:
    case = CASES[name]
    manager = edge(exported(case))
    _, io = tosaic.extract_io_quant(manager)
    theirs = pytest.importorskip("executorch.exir.passes.quantize_io_pass").extract_io_quant_params(
        copy.deepcopy(manager),
        input_idxs=[port.index for port in io.inputs],
        output_idxs=[port.index for port in io.outputs],
    )
    for side, ports in (("inputs", io.inputs), ("outputs", io.outputs)):
        for port, other in zip(ports, theirs[side].values(), strict=True):
            own = {
                "scale": port.qparams.scale,
                "zero_point": port.qparams.zero_point,
                "quant_min": port.qparams.qmin,
                "quant_max": port.qparams.qmax,
            }
            assert {key: other[key] for key in own} == own


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
def test_given_parameters_are_converted_to_those_of_the_program(name: str, form: str) -> None:
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
