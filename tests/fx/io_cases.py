"""Quantized programs for the tests of `tosaic.extract_io_quant`, and what ExecuTorch's refuses."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from torch import nn
from tosaic import IoQuant
from tosaic.ports import QParams

Q = torch.ops.quantized_decomposed
Tensor = torch.Tensor
INT8, NARROW = (-128, 127, torch.int8), (-127, 127, torch.int8)
INT16, UINT8 = (-32767, 32767, torch.int16), (0, 255, torch.uint8)
SCALES, ZEROS = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, -2, 3])


def rounded(x: Tensor, scale: float, zero: int = 0, kind: tuple[Any, ...] = INT8) -> Tensor:
    return Q.dequantize_per_tensor(Q.quantize_per_tensor(x, scale, zero, *kind), scale, zero, *kind)


def rounded_by_channel(x: Tensor, axis: int, scales: Tensor, zeros: Tensor) -> Tensor:
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
    """Has a state of integers after its quantize node."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        total = rounded(rounded(x, 0.02, 3) + rounded(self.last, 0.04), 0.04)
        self.last.copy_(total)
        return total


def image(*shape: int) -> Tensor:
    return torch.linspace(-1.7, 1.6, int(np.prod(shape or (1, 3, 4)))).reshape(shape or (1, 3, 4))


class Refusal(NamedTuple):
    """Why ExecuTorch's extraction does not work for an input or output, and what it raises."""

    reason: str
    message: str


ONE_USER = Refusal("It takes an input with exactly one user.", r"Input \d has more than one users")
QUANTIZED_FIRST = Refusal(
    "It takes an input whose user is quantize_per_tensor: it looks through no layout operator.",
    r"Input \d is not used by a quantize op. It's used by .*(permute|pad)",
)
NOT_BY_CHANNEL = Refusal(
    "It takes an input whose user is quantize_per_tensor: it knows no qparams by channel.",
    r"Input \d is not used by a quantize op. It's used by .*quantize_per_channel",
)
DEQUANTIZED_LAST = Refusal(
    "It takes an output of dequantize_per_tensor: it knows no layout operator and no qparams by channel.",
    r"is not a dequantize op",
)


@dataclass(frozen=True)
class Case:
    """A module, its call, and the paths of inputs and outputs that become integers with ``auto``.

    ExecuTorch's extraction works for all inputs and outputs that are not in `refused`.
    """

    module: nn.Module
    args: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    qparams: dict[str, QParams] = field(default_factory=dict)  # those that are not plain


def several_users(x: Tensor) -> tuple[Tensor, Tensor]:
    return rounded(torch.relu(rounded(x, 0.02, 3)), 0.02), rounded(torch.tanh(rounded(x, 0.02, 3)), 0.01)


def moved(x: Tensor) -> Tensor:
    a = rounded(x.permute(0, 2, 1).unsqueeze(1)[:, :, 1:].reshape(3, 3), 0.02, 3)
    return rounded(a * 2, 0.04).reshape(1, 9).squeeze(0).clone()


def padded(x: Tensor) -> Tensor:
    return rounded(rounded(torch.nn.functional.pad(x, (1, 2)), 0.02, 3) * 2, 0.04, 5).flip(-1)


def by_channel_at_once(x: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    return rounded_by_channel(rounded_by_channel(x, 1, scales, zeros) * 2, 1, scales, zeros)


def by_channel(x: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    floats = rounded_by_channel(x.permute(0, 2, 1), 2, scales, zeros)
    return rounded_by_channel(floats * 2, 2, scales, zeros).permute(0, 2, 1)


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
    ),
    "several users": Case(
        OneInput(several_users), (image(),), ("x",), ("out[0]", "out[1]"), refused={"x": ONE_USER}
    ),
    "layout operators between": Case(
        OneInput(moved),
        (image(),),
        ("x",),
        ("out",),
        refused={"x": QUANTIZED_FIRST, "out": DEQUANTIZED_LAST},
    ),
    "padding between": Case(
        OneInput(padded),
        (image(),),
        ("x",),
        ("out",),
        refused={"x": QUANTIZED_FIRST, "out": DEQUANTIZED_LAST},
    ),
    "by channel": Case(
        ByChannel(by_channel_at_once),
        (image(2, 3, 4),),
        ("x",),
        ("out",),
        refused={"x": NOT_BY_CHANNEL, "out": DEQUANTIZED_LAST},
        qparams={"x": CHANNELS, "out": CHANNELS},
    ),
    "by channel behind a permute": Case(
        ByChannel(by_channel),
        (image(2, 3, 4),),
        ("x",),
        ("out",),
        refused={"x": QUANTIZED_FIRST, "out": DEQUANTIZED_LAST},
        qparams={"x": CHANNELS, "out": CHANNELS},
    ),
    "quantized in two ways": Case(
        OneInput(lambda x: rounded(rounded(x, 0.02, 3) + rounded(x, 0.5), 0.5)),
        (image(),),
        (),
        ("out",),
        refused={"x": ONE_USER},
    ),
    "also read as floats": Case(
        OneInput(lambda x: rounded(rounded(x, 0.02, 3) + torch.sin(x), 0.04)),
        (image(),),
        (),
        ("out",),
        refused={"x": ONE_USER},
    ),
    "repeated output": Case(
        OneInput(repeated), (image(),), ("x",), ("out[0]", "out[1]"), refused={"out[2]": DEQUANTIZED_LAST}
    ),
    "mutated buffer": Case(Counts(), (image(),), ("x",), ("out",)),
    "state": Case(Remembers(), (image(),), ("x",), ("out",)),
    "nested and keyword inputs": Case(
        Nested(nested),
        ({"b": image(), "a": image()},),
        ("batch['a']", "scale"),
        ("out['sum']",),
        {"scale": image()},
        refused={"batch['b']": ONE_USER},
    ),
    "unused input before": Case(
        TwoInputs(lambda x, y: rounded(rounded(y, 0.02, 3) * 2, 0.04)),
        (image(), image()),
        ("y",),
        ("out",),
        refused={"x": ONE_USER},
    ),
    "narrow range": Case(
        OneInput(lambda x: rounded(rounded(x, 1 / 127, 0, NARROW) * 2, 1 / 64, 0, NARROW)),
        (image(),),
        ("x",),
        ("out",),
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


def run(program: Any, args: Sequence[Any], kwargs: dict[str, Any], times: int = 1) -> dict[str, Any]:
    """Runs a program of any of the three types, from its initial states; returns its last outputs by path."""
    if isinstance(program, tosaic.Program):
        program.reset_state()
        runs = program.run
    else:
        program = program.exported_program() if hasattr(program, "exported_program") else program
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runs = copy.deepcopy(program).module()
    for _ in range(times):
        result = runs(*args, **kwargs)
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
