"""Quantization parameters of inputs and outputs in ports, reports and JSON; options of command `lower`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from torch import nn
from tosaic.cli import main
from tosaic.ports import QParams

Q = torch.ops.quantized_decomposed
INT, BOTH = "TOSA-1.0+INT", "TOSA-1.0+FP+INT"
INT8 = (torch.int8, -128, 127)
NARROW = (torch.int8, -127, 127)
UINT8 = (torch.uint8, 0, 255)
INT16 = (torch.int16, -32767, 32767)


def rounded(x: torch.Tensor, scale: float, zero: int, kind: tuple[torch.dtype, int, int]) -> torch.Tensor:
    dtype, least, greatest = kind
    integers = Q.quantize_per_tensor(x, scale, zero, least, greatest, dtype)
    return Q.dequantize_per_tensor(integers, scale, zero, least, greatest, dtype)


class Quantized(nn.Module):
    """Quantizes two images, one before and one after a permute, and reshapes their quantized sum."""

    def __init__(self, kind: tuple[torch.dtype, int, int], scale: float = 0.02, zero: int = 3) -> None:
        super().__init__()
        self.kind, self.scale, self.zero = kind, scale, zero

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = rounded(batch["x"].permute(0, 2, 3, 1), self.scale, self.zero, self.kind)
        y = rounded(batch["y"], 0.5, 0, self.kind)
        total = rounded(x + y.permute(0, 2, 3, 1), 0.25, 0, self.kind)
        return {"sum": total.reshape(1, -1)}


def exported(kind: tuple[torch.dtype, int, int] = INT8, **more: Any) -> Any:
    batch = {"x": torch.randn(1, 3, 4, 5), "y": torch.randn(1, 3, 4, 5)}
    return torch.export.export(Quantized(kind, **more).eval(), (batch,), strict=False)


def shown(ports: Sequence[tosaic.ports.Port]) -> list[tuple[Any, ...]]:
    return [(p.path, p.dtype, p.qparams, [t.dtype for t in p.tensors]) for p in ports]


X, Y = QParams("i8", (0.02,), (3,), -128, 127), QParams("i8", (0.5,), (0,), -128, 127)
SUM = QParams("i8", (0.25,), (0,), -128, 127)


@pytest.mark.parametrize(
    ("target", "io", "given", "carried"),
    [
        (INT, None, "f32", "i8"),
        (INT, {"inputs": "int8", "outputs": "int8"}, "i8", "i8"),
        (BOTH, None, "f32", "f32"),
        (BOTH, {"inputs": "int8", "outputs": "int8"}, "i8", "i8"),
        (BOTH, {"inputs": "float32", "outputs": "float32"}, "f32", "f32"),
    ],
)
def test_every_quantized_port_has_its_parameters(target: str, io: Any, given: str, carried: str) -> None:
    lowered = tosaic.lower(exported(), target=target, io=io)
    assert shown(lowered.io.inputs) == [
        ("batch['x']", given, X, [carried]),
        ("batch['y']", given, Y, [carried]),
    ]
    assert shown(lowered.io.outputs) == [("out['sum']", given, SUM, [carried])]


def test_the_imported_program_says_how_it_quantizes_its_floats() -> None:
    program = tosaic.from_exported(exported())
    assert [port.qparams for port in (*program.inputs, *program.outputs)] == [X, Y, SUM]
    assert [port.qparams for port in tosaic.lower(program, target=INT).at("canonical").inputs] == [X, Y]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (NARROW, QParams("i8", (0.02,), (3,), -127, 127)),
        (UINT8, QParams("i8", (0.02,), (3 - 128,), -128, 127)),  # the file has i8 for u8
        (INT16, QParams("i16", (0.02,), (0,), -32767, 32767)),
    ],
)
def test_ports_have_the_ranges_and_dtypes_of_the_file(kind: Any, expected: QParams) -> None:
    program = exported(kind, zero=expected.zero_point % 128 if kind is UINT8 else expected.zero_point)
    lowered = tosaic.lower(program, target=f"{INT}+int16")
    assert lowered.inputs[0].qparams == expected
    own = {torch.int8: "i8", torch.uint8: "u8", torch.int16: "i16"}[kind[0]]
    assert tosaic.from_exported(program).inputs[0].qparams.dtype == own


def test_integer_inputs_and_outputs_have_quantization_parameters() -> None:
    class Dequantizes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            floats = Q.dequantize_per_tensor(x, 0.02, 3, -128, 127, torch.int8)
            return Q.quantize_per_tensor(torch.relu(floats), 0.25, 0, -128, 127, torch.int8)

    program = torch.export.export(Dequantizes(), (torch.zeros(4, dtype=torch.int8),))
    for runnable in (tosaic.from_exported(program), tosaic.lower(program, target=INT)):
        assert shown(runnable.inputs) == [("x", "i8", X, ["i8"])]
        assert shown(runnable.outputs) == [("out", "i8", SUM, ["i8"])]


def test_scales_by_channel_have_their_axis() -> None:
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.int64)

    class ByChannel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scales", scales)
            self.register_buffer("zeros", zeros)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = Q.quantize_per_channel(x, self.scales, self.zeros, 1, -128, 127, torch.int8)
            return Q.dequantize_per_channel(q, self.scales, self.zeros, 1, -128, 127, torch.int8) * 2

    program = tosaic.from_exported(torch.export.export(ByChannel(), (torch.randn(2, 3, 4),)))
    (port,) = program.inputs
    assert port.qparams == QParams("i8", tuple(scales.double().tolist()), (0, 0, 0), -128, 127, axis=1)
    assert "0.1 to 0.3" in str(program.report())
    x = torch.randn(2, 3, 4)
    expected = Q.quantize_per_channel(x, scales, zeros, 1, -128, 127, torch.int8)
    assert np.array_equal(port.qparams.quantize(x.numpy()), expected.numpy())
    back = Q.dequantize_per_channel(expected, scales, zeros, 1, -128, 127, torch.int8)
    assert np.array_equal(port.qparams.dequantize(expected.numpy()), back.numpy())
    with pytest.raises(
        tosaic.QuantMismatch, match=r"no single scale: expected one scale.*got 3, one for each"
    ):
        port.qparams.scale  # noqa: B018


def test_an_input_quantized_with_two_sets_of_parameters_shows_both() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return rounded(x, 0.02, 3, INT8) + rounded(x, 0.5, 0, INT8)

    (port,) = tosaic.from_exported(torch.export.export(Twice(), (torch.randn(4),))).inputs
    assert port.quantized == (X, Y)
    assert port.qparams is None
    text = str(tosaic.ports.ports.Io((port,), ()))
    assert [line.split()[-3:] for line in text.splitlines()[-2:]] == [["i8", "0.02", "3"], ["i8", "0.5", "0"]]


def test_several_tensors_of_the_file_may_hold_one_input() -> None:
    """The graph has two inputs with one path, as after a split; the signature has only the first."""
    graph = tosaic.program.Graph.parse("""tosaic 1
graph @forward stage=exported {
  input %x: f32[4] path="x"
  input %x_1: f32[4] path="x"
  %a: i8[4] = quantize(%x) {dtype=i8, qmin=-128, qmax=127, scales=[0.02], zero_points=[3]}
  %b: i8[4] = quantize(%x_1) {dtype=i8, qmin=-128, qmax=127, scales=[0.5], zero_points=[0]}
  return %a path="out[0]"
  return %b path="out[1]"
}
""")
    whole = tosaic.program.from_graph(graph).signature
    one = whole.inputs.children[0].children[0]
    tree = dataclasses.replace(
        whole.inputs,
        children=(dataclasses.replace(whole.inputs.children[0], children=(one,)), whole.inputs.children[1]),
    )
    signature = dataclasses.replace(whole, inputs=tree, input_leaves=whole.input_leaves[:1], arg_names=("x",))
    (port,) = tosaic.Program(graph, signature).inputs
    assert [tensor.name for tensor in port.tensors] == ["x", "x_1"]
    assert port.quantized == (X, Y)
    assert "i8 (x_1)" in str(tosaic.ports.ports.Io((port,), ()))


def test_inputs_and_outputs_that_are_not_quantized_have_no_parameters(case) -> None:
    for runnable in (case.program, case.lowered):
        assert all(port.quantized == () for port in (*runnable.inputs, *runnable.outputs))
        assert "quantized to" not in str(runnable.report())


def test_a_range_is_shown_where_the_dtype_has_more_integers() -> None:
    assert " i8 -127 to 127  " in tosaic.lower(exported(NARROW), target=INT).io.report().text


@pytest.mark.parametrize("kind", [INT8, NARROW, UINT8, INT16])
def test_run_quantizes_by_the_parameters_of_the_port(kind: Any) -> None:
    program = exported(kind, zero=0)
    io = {"inputs": str(kind[0]).replace("torch.u", "").replace("torch.", "")}
    floats = tosaic.lower(program, target=f"{INT}+int16")
    integers = tosaic.lower(program, target=f"{INT}+int16", io=io)
    x = torch.randn(1, 3, 4, 5) * 3
    x[0, 0, 0] = torch.tensor([float("inf"), -float("inf"), 0.01, -0.01, 1e9])
    y = torch.randn(1, 3, 4, 5) * 40
    given = {
        name: port.qparams.quantize(array)
        for name, port, array in zip("xy", integers.inputs, (x, y), strict=True)
    }
    assert np.array_equal(integers.run(given)["sum"], floats.run({"x": x, "y": y})["sum"])
    by_torch = Q.quantize_per_tensor(x, 0.02, 0, kind[1], kind[2], kind[0]).numpy()
    shift = 128 if kind is UINT8 else 0
    assert np.array_equal(given["x"].astype(int) + shift, by_torch.astype(int))
    out = tosaic.lower(program, target=f"{INT}+int16", io={"outputs": io["inputs"]})
    assert np.array_equal(
        out.outputs[0].qparams.dequantize(out.run({"x": x, "y": y})["sum"]),
        floats.run({"x": x, "y": y})["sum"],
    )


# ---- io by port ----


class Sampled(nn.Module):
    """A float image, an int16 grid and a uint8 mask; two outputs."""

    def forward(self, image: torch.Tensor, grid: torch.Tensor, mask: torch.Tensor) -> Any:
        a = rounded(image.permute(0, 2, 3, 1), 0.02, 3, INT8)
        b = rounded(grid, 1 / 32767, 0, INT16)
        c = rounded(mask, 0.02, 128, UINT8)
        total = rounded(a + c.permute(0, 2, 3, 1), 0.05, 0, INT8)
        return total, rounded(b * 2, 1 / 16384, 0, INT16)


SAMPLED = (
    torch.linspace(-1.5, 1.5, 48).reshape(1, 3, 4, 4),
    torch.linspace(-0.5, 0.5, 4),
    torch.rand(1, 3, 4, 4),
)
WIDE = QParams("i8", (0.04,), (1,), -127, 127)


@pytest.fixture(scope="module")
def sampled() -> Any:
    return torch.export.export(Sampled(), SAMPLED)


@pytest.mark.parametrize("target", [f"{INT}+int16", f"{BOTH}+int16"])
@pytest.mark.parametrize(
    ("io", "dtypes"),
    [
        ({"inputs": {"grid": "int16"}, "outputs": {0: "int8"}}, "f32 i16 f32 i8 f32"),
        (
            {"inputs": {"image": "uint8", "mask": "int8"}, "outputs": {0: "uint8", 1: "int16"}},
            "u8 f32 i8 u8 i16",
        ),
        ({"inputs": {2: "uint8"}, "outputs": {"out[1]": "int16"}}, "f32 f32 u8 f32 i16"),
        ({"inputs": {0: "int8", 1: "int16", 2: "uint8"}, "outputs": {}}, "i8 i16 u8 f32 f32"),
    ],
)
def test_io_of_single_ports_computes_the_same(sampled: Any, target: str, io: Any, dtypes: str) -> None:
    expected = tosaic.lower(sampled, target=target).run(*SAMPLED)
    lowered = tosaic.lower(sampled, target=target, io=io)
    ports = (*lowered.inputs, *lowered.outputs)
    assert [port.dtype for port in ports] == dtypes.split()
    own = {"u8": "i8"}  # TOSA has no unsigned dtypes
    for port in ports:
        if port.dtype != "f32":
            assert port.tensors[0].dtype == own.get(port.dtype, port.dtype)
            assert port.qparams.dtype == port.dtype
    given = [
        x if port.dtype == "f32" else port.qparams.quantize(x)
        for port, x in zip(lowered.inputs, SAMPLED, strict=True)
    ]
    found = [
        y if port.dtype == "f32" else port.qparams.dequantize(y)
        for port, y in zip(lowered.outputs, lowered.run(*given), strict=True)
    ]
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)


def test_floats_and_integers_may_be_side_by_side_if_the_target_has_floats(sampled: Any) -> None:
    io = {"inputs": {"image": "float32", "grid": "int16"}, "outputs": {0: "int8", 1: "float32"}}
    lowered = tosaic.lower(sampled, target=f"{BOTH}+int16", io=io)
    assert [p.tensors[0].dtype for p in lowered.inputs] == ["f32", "i16", "f32"]
    assert [p.tensors[0].dtype for p in lowered.outputs] == ["i8", "f32"]


def test_uint8_of_a_port_is_one_rescale_that_reads_unsigned_bits(sampled: Any) -> None:
    lowered = tosaic.lower(sampled, target=f"{INT}+int16", io={"inputs": {"image": "uint8"}})
    assert lowered.inputs[0].qparams == QParams("u8", (0.02,), (131,), 0, 255)
    rescales = [node.attrs for node in lowered.graph.nodes if node.op == "tosa.rescale"]
    assert [attrs["input_unsigned"] for attrs in rescales].count(True) == 1


def test_the_port_has_the_given_parameters(sampled: Any) -> None:
    lowered = tosaic.lower(
        sampled, target=f"{INT}+int16", io={"inputs": {"image": WIDE}, "outputs": {0: WIDE}}
    )
    assert lowered.inputs[0].qparams == WIDE
    assert lowered.outputs[0].qparams == WIDE
    given = WIDE.quantize(SAMPLED[0])
    floats = torch.from_numpy(WIDE.dequantize(given))
    expected = WIDE.quantize(tosaic.from_exported(sampled).run(floats, *SAMPLED[1:])[0])
    found = lowered.run(given, *SAMPLED[1:])[0]
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert found.min() >= -127


@pytest.mark.parametrize(
    ("io", "error", "message"),
    [
        ({"inputs": {"imag": "int8"}}, tosaic.InvalidGraph, r"no such entry of inputs.*Did you mean 'image'"),
        ({"outputs": {2: "int8"}}, tosaic.InvalidGraph, r"no such entry of outputs.*an index below 2, got 2"),
        ({"inputs": {"image": "int8", 0: "int8"}}, tosaic.InvalidGraph, r"named twice.*'image' and 0"),
        (
            {"inputs": {"image": "int4"}},
            tosaic.InvalidGraph,
            r"input 'image' cannot be this: expected one of",
        ),
        (
            {"inputs": {"image": "int16"}},
            tosaic.QuantMismatch,
            r"'image' of the inputs cannot be int16.*got i8",
        ),
        (
            {"inputs": {"grid": "uint8"}},
            tosaic.QuantMismatch,
            r"'grid' of the inputs cannot be uint8.*got i16",
        ),
        (
            {"inputs": {"grid": "float32"}},
            tosaic.QuantMismatch,
            r"'grid' of the inputs cannot be float32.*FP",
        ),
        ({"outputs": "float32"}, tosaic.QuantMismatch, r"'out\[0\]' of the outputs cannot be float32"),
        ({"inputs": "uint8"}, tosaic.QuantMismatch, r"'grid' of the inputs cannot be uint8"),
    ],
)
def test_a_port_that_cannot_be_what_io_asks_is_named(sampled: Any, io: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        tosaic.lower(sampled, target=f"{INT}+int16", io=io)


def test_reports_show_the_parameters_as_text_html_and_json(tmp_path: Path) -> None:
    lowered = tosaic.lower(exported(), target=INT)
    for report in (lowered.io.report(), lowered.report()):
        line = next(line for line in report.text.splitlines() if "batch['x']" in line)
        assert line.split() == [
            *("input", "batch['x']", "f32", "[1,3,4,5]", "[0,1,2,3]"),
            *("i8", "0.02", "3"),
        ]
        assert '<th class="n">scale</th>' in report.html
        x = json.loads(report.json)["inputs"][0]
        assert x["quantized"] == [
            {
                "dtype": "i8",
                "scales": [0.02],
                "zero_points": [3],
                "qmin": -128,
                "qmax": 127,
                "axis": None,
                "groups": None,
            }
        ]
        assert x["tensors"] == [{"name": "batch_x", "dtype": "i8", "shape": [1, 3, 4, 5]}]


# ---- the command line ----


@pytest.fixture
def quantized_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    tosaic.from_exported(exported()).save("model.tosaic")
    return "model.tosaic"


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        ([], {}),
        (["--io", "inputs=int8"], {"io": {"inputs": "int8"}}),
        (
            ["--io", "inputs=int8", "--io", "outputs=float32"],
            {"io": {"inputs": "int8", "outputs": "float32"}},
        ),
        (
            ["--io", "batch['x']=uint8", "--io", "outputs.0=int8", "--io", "inputs.1=float32"],
            {"io": {"inputs": {0: "uint8", 1: "float32"}, "outputs": {0: "int8"}}},
        ),
        (
            ["--io", "inputs=int8", "--io", "batch_x=float32"],
            {"io": {"inputs": {"batch_x": "float32", "batch_y": "int8"}}},
        ),
        (["--orders", "inputs=nhwc"], {"orders": {"inputs": "nhwc"}}),
        (
            ["--orders", "inputs.batch['x']=channels_last", "--orders", "inputs.1=nhwc"],
            {"orders": {"inputs": {"batch['x']": "channels_last", 1: "nhwc"}}},
        ),
        (["--orders", "inputs.batch_x=0,2,3,1"], {"orders": {"inputs": {"batch_x": (0, 2, 3, 1)}}}),
        (["--orders", "outputs=contiguous"], {"orders": {"outputs": "contiguous"}}),
        (["--objective", "count"], {"objective": "count"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_lower_accepts_the_options_of_the_function(
    quantized_file: str, capsys, options: list[str], keywords: dict[str, Any]
) -> None:
    assert main(["lower", quantized_file, "--target", BOTH, "-o", "out.tosa", *options, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    lowered = tosaic.lower(quantized_file, target=BOTH, **keywords)
    assert Path("out.tosa").read_bytes() == lowered.to_bytes()
    assert data["inputs"] == json.loads(lowered.report().json)["inputs"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--io", "inputs"], "'inputs' is not SIDE=DTYPE or NAME=DTYPE, such as inputs=int8"),
        (["--io", "=int8"], "'=int8' is not SIDE=DTYPE"),
        (["--io", "inputs=int9"], "[lower] unknown value of 'io': expected entries 'inputs' and 'outputs'"),
        (
            ["--io", "input=int8"],
            "[--io] there is no single input or output 'input': expected inputs, outputs",
        ),
        (["--io", "batch_z=int8"], "Did you mean 'batch_"),
        (
            ["--io", "inputs.batch_x=float32"],
            "'batch['x']' of the inputs cannot be float32: expected a target",
        ),
        (["--io", "batch_x=int8", "--io", "batch_x=int8"], "[--io] 'batch_x' is given twice"),
        (["--io", "inputs=int16"], "'batch['x']' of the inputs cannot be int16"),
        (["--io", "inputs=int8", "--io", "inputs=float32"], "[--io] 'inputs' is given twice"),
        (["--orders", "nhwc"], "'nhwc' is not SIDE=ORDER or SIDE.NAME=ORDER"),
        (["--orders", "inputs.=nhwc"], "'inputs.=nhwc' is not SIDE=ORDER"),
        (["--orders", "input=nhwc"], "[lower] unknown entry of 'orders': 'input'"),
        (["--orders", "inputs=NHWC"], "unknown order of all inputs: expected one of traced"),
        (["--orders", "inputs.z=nhwc"], "no such entry of inputs: expected one of \"batch['x']\""),
        (["--orders", "inputs.0=0,1,2"], "the order of input 0 is none of its axes"),
        (["--orders", "inputs=nhwc", "--orders", "inputs.0=nhwc"], "[--orders] 'inputs' is given twice"),
        (["--orders", "inputs.0=nhwc", "--orders", "inputs.0=traced"], "[--orders] 'inputs' is given twice"),
        (["--objective", "speed"], "[layout] unknown objective: expected 'bytes', 'count'"),
        (["--bind", "batch_x:0=2"], "[lower] 'bind' has nothing to bind"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_options_are_usage_errors(
    quantized_file: str, capsys, options: list[str], message: str
) -> None:
    try:
        code = main(["lower", quantized_file, "--target", INT, *options])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert not Path("model.tosa").exists()


class Writes(nn.Module):
    """Writes its first argument with values of the same qparams, and has an index and a half."""

    def forward(self, cache: torch.Tensor, at: torch.Tensor, half: torch.Tensor) -> Any:
        total = rounded(rounded(cache, 0.02, 0, INT8) + 1, 0.02, 0, INT8)
        cache.copy_(total)
        return total[at], half * 2


@pytest.mark.parametrize(
    ("io", "message"),
    [
        ({"cache": "uint8"}, "'cache' of the inputs cannot be uint8: expected an input that the program"),
        ({"at": "int32"}, "'at' of the inputs cannot be int32: expected i32, got i64"),
        ({"half": "float32"}, "'half' of the inputs cannot be float32: expected f32, got f16"),
    ],
)  # fmt: skip
def test_an_input_that_cannot_have_the_dtype_is_named_with_its_own(io: Any, message: str) -> None:
    example = (torch.zeros(2, 3), torch.arange(2), torch.ones(2, dtype=torch.float16))
    program = torch.export.export(Writes(), example)
    with pytest.raises(tosaic.QuantMismatch, match=message):
        tosaic.lower(program, target=BOTH, io={"inputs": io})


def test_the_command_lower_takes_a_path_before_the_name_of_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Same(nn.Module):
        """Has an output whose value is named like the path of its input."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    monkeypatch.chdir(tmp_path)
    tosaic.from_exported(torch.export.export(Same(), (torch.ones(2),))).save("m.tosaic")
    assert main(["lower", "m.tosaic", "--target", BOTH, "--io", "x=float32", "-o", "m.tosa"]) == 0
    assert main(["lower", "m.tosaic", "--target", BOTH, "--io", "out=float32", "-o", "m.tosa"]) == 0
