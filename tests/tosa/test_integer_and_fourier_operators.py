"""TABLE, RESCALE, FFT2D and RFFT2D: our results against the reference model and against the definitions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tosaic
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

EVERYTHING = "TOSA-1.0+INT+FP+int16+fft+doubleround+inexactround"
NUMPY = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "f32": np.float32}


def graph_of(
    op: str, operands: list[str], results: list[str], attrs: str, constants: str = ""
) -> _core.Graph:
    """Returns a graph of one operator, read back from a file.

    Operands are types of inputs or names of `constants`.
    """
    inputs = [(f"%in{i}", type_text) for i, type_text in enumerate(operands) if not type_text.startswith("%")]
    lines = [f'  input {name}: {type_text} path="{name[1:]}"' for name, type_text in inputs]
    taken = [name if name.startswith("%") else f"%in{i}" for i, name in enumerate(operands)]
    given = [f"%out{i}: {type_text}" for i, type_text in enumerate(results)]
    lines += [constants] if constants else []
    lines += [f"  {', '.join(given)} = tosa.{op}({', '.join(taken)}) {attrs}"]
    lines += [f'  return %out{i} path="out{i}"' for i in range(len(results))]
    graph = _core.Graph.parse("tosaic 1\ngraph @forward stage=tosa {\n" + "\n".join(lines) + "\n}\n")
    graph.verify()
    return _core.deserialize(_core.serialize(graph))


def ours_and_theirs(graph: _core.Graph, *inputs: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    lowered = tosaic.lower(tosaic.Program(graph), target=EVERYTHING)
    reference = run_reference_model(lowered, *inputs)
    assert reference.ok, reference.log
    theirs = reference.outputs if isinstance(reference.outputs, tuple) else (reference.outputs,)
    return list(zip(_core.Session(graph).run(list(inputs)), theirs, strict=True))


def listed(values: np.ndarray) -> str:
    return "[" + ",".join(map(str, values.tolist())) + "]"


def allowed(source: str, target: str, in_unsigned: bool, out_unsigned: bool) -> bool:
    """Returns whether RESCALE's ERROR_IF clauses allow these dtypes and signs."""
    if in_unsigned and (out_unsigned or source == "i32" or target == "i32"):
        return False
    return not (out_unsigned and (target == "i32" or source == "i32"))


RESCALES = [
    case
    for case in product(("i8", "i16", "i32"), ("i8", "i16", "i32"), (False, True), (False, True))
    if allowed(*case)
]


@pytest.mark.parametrize(("source", "target", "in_unsigned", "out_unsigned"), RESCALES)
@pytest.mark.parametrize(
    ("scale32", "rounding", "per_channel"),
    [
        (True, "single_round", False),
        (True, "single_round", True),
        (True, "double_round", True),
        (False, "single_round", True),
    ],
)
def test_rescale_equals_the_reference_models_to_the_bit(
    source: str,
    target: str,
    in_unsigned: bool,
    out_unsigned: bool,
    scale32: bool,
    rounding: str,
    per_channel: bool,
) -> None:
    rng = np.random.default_rng([ord(source[1]), ord(target[1]), in_unsigned, out_unsigned, scale32])
    channels = 5 if per_channel else 1
    bits = 31 if scale32 else 15
    multiplier = rng.integers(1 << (bits - 1), (1 << bits) - 1, channels)
    wanted = int(source[1:]) - int(target[1:])  # so that most results fit
    shift = np.clip(bits + wanted + rng.integers(-1, 8, channels), 2, 62)
    zero_points = {"i8": 7, "i16": 32768}
    input_zp = zero_points[source] if in_unsigned else -11 if source == "i8" else 0
    output_zp = zero_points[target] if out_unsigned else 5 if target == "i8" else 0
    attrs = (
        f"{{input_zp={input_zp}, output_zp={output_zp}, dtype={target}, scale32={str(scale32).lower()}, "
        f"rounding_mode={rounding}, per_channel={str(per_channel).lower()}, "
        f"input_unsigned={str(in_unsigned).lower()}, output_unsigned={str(out_unsigned).lower()}, "
        f"multiplier={listed(multiplier)}, shift={listed(shift)}}}"
    )
    graph = graph_of("rescale", [f"{source}[40,5]"], [f"{target}[40,5]"], attrs)
    info = np.iinfo(NUMPY[source])
    # A scaled value has to fit 32 bits: inputs are in the range that every multiplier and shift allows.
    room = min(2.0 ** (int(s) - 1) for s in shift) if scale32 else 2.0 ** (31 + int(shift.min()) - bits)
    limit = int(min(info.max, room - 16, 2**30))  # 16: margin for the zero point of i8
    x = rng.integers(max(info.min, -limit), limit, (40, 5), endpoint=True).astype(NUMPY[source])
    for got, expected in ours_and_theirs(graph, x):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["i8", "i16"])
def test_table_equals_the_reference_models_to_the_bit(dtype: str) -> None:
    rng = np.random.default_rng(3)
    info = np.iinfo(NUMPY[dtype])
    size = 256 if dtype == "i8" else 513
    table = rng.integers(info.min // 2, info.max // 2, size)
    graph = graph_of(
        "table",
        [f"{dtype}[256,4]", "%t"],
        [f"{'i8' if dtype == 'i8' else 'i32'}[256,4]"],
        "",
        f"  const %t: {dtype}[{size}] = lifted {listed(table)}",
    )
    x = rng.integers(info.min, info.max, (256, 4), endpoint=True).astype(NUMPY[dtype])
    x[0] = [info.min, info.max, 0, -1]
    for got, expected in ours_and_theirs(graph, x):
        np.testing.assert_array_equal(got, expected)


SHAPES = [(1, 1, 1), (2, 1, 8), (1, 4, 1), (3, 2, 2), (1, 16, 32)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inverse", [False, True])
def test_fft2d_is_the_sum_of_its_definition(shape: tuple[int, int, int], inverse: bool) -> None:
    rng = np.random.default_rng(4)
    real, imag = (rng.uniform(-1, 1, shape).astype(np.float32) for _ in range(2))
    type_text = f"f32[{','.join(map(str, shape))}]"
    attrs = f"{{inverse={str(inverse).lower()}, local_bound=false}}"
    graph = graph_of("fft2d", [type_text] * 2, [type_text] * 2, attrs)
    values = real.astype(np.float64) + 1j * imag.astype(np.float64)
    exact = np.fft.ifft2(values) * shape[1] * shape[2] if inverse else np.fft.fft2(values)
    atol = 1e-6 * float(np.abs(values).sum())
    for (got, theirs), part in zip(ours_and_theirs(graph, real, imag), (exact.real, exact.imag), strict=True):
        np.testing.assert_allclose(got, part.astype(np.float32), rtol=2e-7, atol=1e-12 * atol)
        np.testing.assert_allclose(got, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("shape", SHAPES)
def test_rfft2d_has_no_imaginary_part_where_the_definition_has_none(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    half = (shape[0], shape[1], shape[2] // 2 + 1)
    result = f"f32[{','.join(map(str, half))}]"
    graph = graph_of("rfft2d", [f"f32[{','.join(map(str, shape))}]"], [result, result], "{local_bound=false}")
    exact = np.fft.rfft2(x.astype(np.float64))
    (real, their_real), (imag, their_imag) = ours_and_theirs(graph, x)
    atol = 1e-6 * float(np.abs(x).sum())
    np.testing.assert_allclose(real + 1j * imag, exact, rtol=1e-6, atol=1e-6 * atol)
    np.testing.assert_allclose(real, their_real, rtol=0, atol=atol)
    np.testing.assert_allclose(imag, their_imag, rtol=0, atol=atol)
    for y, column in product({0, shape[1] // 2}, {0, shape[2] // 2}):
        if (y == 0 or shape[1] % 2 == 0) and (column == 0 or shape[2] % 2 == 0):
            assert (imag[:, y % shape[1], column] == 0).all()


def test_rescale_refuses_attributes_that_its_error_if_clauses_exclude() -> None:
    def refusal(type_text: str, **changed: str) -> str:
        attrs = {
            "input_zp": "0",
            "output_zp": "0",
            "dtype": "i8",
            "multiplier": "[1]",
            "shift": "[2]",
        } | changed
        text = ", ".join(f"{name}={value}" for name, value in attrs.items())
        with pytest.raises(tosaic.InvalidGraph) as error:
            graph_of("rescale", [type_text], [f"{attrs['dtype']}[2,3]"], f"{{{text}}}")
        return str(error.value).removeprefix("[infer] tosa.rescale: ").removesuffix(" (node 'out0')")

    assert refusal("i16[2,3]", input_zp="3") == "attribute 'input_zp' for i16: expected 0, got 3"
    assert (
        refusal("i8[2,3]", output_zp="300") == "attribute 'output_zp' for i8: expected -128 to 127, got 300"
    )
    assert refusal("i16[2,3]", input_zp="5", input_unsigned="true") == (
        "attribute 'input_zp' for u16: expected 0 or 32768, got 5"
    )
    assert refusal("i8[2,3]", input_unsigned="true", output_unsigned="true") == (
        "input and output are both unsigned: expected at most one of them, got both"
    )
    assert refusal("i48[2,3]") == "'scale32' for i48: expected false, got true"
    assert refusal("i8[2,3]", scale32="false", rounding_mode="double_round") == (
        "'rounding_mode' without 'scale32': expected single_round or inexact_round, got double_round"
    )
    assert (
        refusal("i8[2,3]", per_channel="true") == "wrong number of entries in 'multiplier': expected 3, got 1"
    )
    assert refusal("i8[2,3]", shift="[63]") == "an entry of 'shift' is out of range: expected 2 to 62, got 63"
    assert refusal("i8[2,3]", multiplier="[-1]") == (
        "an entry of 'multiplier' is out of range: expected 0 to 2147483647, got -1"
    )
