"""Random calls of kernels, and the sizes of their buffers by CMSIS-NN's functions.

A `Call` is a node with a kernel that may need a buffer. `graph_of` writes calls as a quantized graph,
`Functions` has the sizes by CMSIS-NN's own C functions, compiled from a checkout, and `of_bindings` those by
the Python bindings that ExecuTorch installs. `recorded` reads the results of the C functions for a few
hundred calls, which `tests/full/cortex_m_scratch.py --cmsis-nn FOLDER --record` writes.
"""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import tosaic
from tosaic import _core

from cortex_m.kernels import compiled

__all__ = [
    "CPUS",
    "FILE",
    "Call",
    "Functions",
    "drawn",
    "graph_of",
    "of_bindings",
    "of_tosaic",
    "recorded",
    "too_small",
    "write",
]

FILE = Path(__file__).with_name("scratch_sizes.json")
CPUS = {
    "cortex-m0plus": "SCALAR",
    "cortex-m4": "DSP",
    "cortex-m33": "DSP",
    "cortex-m55": "MVE",
    "cortex-m85": "MVE",
}
"""The claimants, and the form of the kernels on their CPU."""

FORMS = ("SCALAR", "DSP", "MVE")
Pair = tuple[int, int]


@dataclass(frozen=True)
class Call:
    """A node. Pairs are (height, width). Linear and matmul: size[0] x channels by channels x filters."""

    op: str  # conv, transposed, linear, matmul, avg_pool
    bits: int
    batch: int
    channels: int
    filters: int
    groups: int
    size: Pair
    kernel: Pair
    stride: Pair
    pad: Pair
    dilation: Pair

    @property
    def is_depthwise(self) -> bool:
        """Whether the call goes to a depthwise kernel. ExecuTorch sends batches to the dense one."""
        single = self.batch == 1 or self.bits == 16
        return self.op == "conv" and self.groups == self.channels and single

    @property
    def result(self) -> Pair:
        """Height and width of the result."""
        along = list(zip(self.size, self.kernel, self.stride, self.pad, self.dilation, strict=True))
        if self.op == "transposed":
            found = [(size - 1) * stride - 2 * pad + kernel for size, kernel, stride, pad, _ in along]
        else:
            found = [(n + 2 * pad - d * (k - 1) - 1) // stride + 1 for n, k, stride, pad, d in along]
        return found[0], found[1]


def drawn(seed: int) -> Call:
    """Returns the call of a seed."""
    draw = random.Random(seed)
    while True:
        call = _drawn(draw)
        if min(call.result) > 0:
            return call


def _pair(draw: random.Random, choices: Sequence[int]) -> Pair:
    one = draw.choice(choices)
    return one, one if draw.random() < 0.5 else draw.choice(choices)


def _drawn(draw: random.Random) -> Call:
    op = draw.choice(("conv", "conv", "conv", "transposed", "linear", "matmul", "avg_pool"))
    wide = op != "transposed" and draw.random() < 0.3
    channels = draw.choice((1, 2, 3, 4, 8, 16, 17, 24, draw.randint(1, 130)))
    filters, groups = draw.choice((1, 2, 9, draw.randint(1, 70))), 1
    if op == "conv" and draw.random() < 0.5:
        groups = channels
        filters = channels * draw.choice((1, 1, 2, 3))
    elif op == "conv" and not wide and channels % 2 == 0 and draw.random() < 0.2:
        groups, filters = 2, 2 * filters
    size, kernel = _pair(draw, range(1, 20)), _pair(draw, (1, 1, 2, 3, 3, 5, 7))
    if op == "conv" and draw.random() < 0.35:  # along one axis
        size, kernel = (1, draw.randint(1, 40)), (1, draw.randint(1, 9))
    if op == "conv" and wide and draw.random() < 0.1:
        size, kernel = (40, 40), (draw.randint(20, 25), draw.randint(20, 25))
    stride = _pair(draw, (1, 1, 2, 3, 4))
    pad = min(draw.choice((0, 0, 1, 2, 3)), kernel[0] // 2), min(draw.choice((0, 0, 1, 2, 3)), kernel[1] // 2)
    dilation = _pair(draw, (1, 1, 1, 2)) if op == "conv" else (1, 1)
    batch = draw.choice((1, 1, 1, 2))
    bits = 16 if wide else 8
    return Call(op, bits, batch, channels, filters, groups, size, kernel, stride, pad, dilation)


# ---- as a graph ----


def _type(bits: int, *shape: int) -> str:
    ends = "-128..127" if bits == 8 else "-32768..32767"
    return f"i{bits}[{','.join(map(str, shape))}] q(i{bits} {ends} scale 0.5 zp 0)"


def _node(call: Call) -> tuple[list[str], str, str]:
    """Returns the types of the operands, the type of the result, and the text of operator and attributes."""
    if call.op in ("linear", "matmul"):
        first = _type(call.bits, call.batch, call.size[0], call.channels)
        result = _type(call.bits, call.batch, call.size[0], call.filters)
        if call.op == "linear":
            return [first, _type(8, call.filters, call.channels)], result, "linear(%s)"
        return [first, _type(call.bits, call.batch, call.channels, call.filters)], result, "matmul(%s)"
    image = _type(call.bits, call.batch, call.channels, *call.size)
    pairs = {key: f"[{v[0]},{v[1]}]" for key, v in vars(call).items() if isinstance(v, tuple)}
    stride, dilation, pad = (pairs[key] for key in ("stride", "dilation", "pad"))
    if call.op == "avg_pool":
        attrs = (
            f"kernel={pairs['kernel']}, stride={stride}, padding={pad}, dilation=[1,1], ceil_mode=false, "
            "count_include_pad=false, divisor_override=none"
        )
        result = _type(call.bits, call.batch, call.channels, *call.result)
        return [image], result, f"avg_pool(%s) {{{attrs}}}"
    transposed = call.op == "transposed"
    outer = (call.channels, call.filters) if transposed else (call.filters, call.channels // call.groups)
    attrs = (
        f"stride={stride}, pad_before={pad}, pad_after={pad}, dilation={dilation}, output_padding=[0,0], "
        f"groups={call.groups}, transposed={str(transposed).lower()}"
    )
    result = _type(call.bits, call.batch, call.filters, *call.result)
    return [image, _type(8, *outer, *call.kernel)], result, f"conv(%s) {{{attrs}}}"


def graph_of(calls: Sequence[Call]) -> _core.Graph:
    """Returns a quantized graph with a node ``n0``, ``n1`` ... for each call. All operands are inputs."""
    inputs, nodes, outputs = [], [], []
    for i, call in enumerate(calls):
        operands, result, operator = _node(call)
        names = [f"%x{i}_{k}" for k in range(len(operands))]
        inputs += [
            f'  input {name}: {text} path="{name[1:]}"' for name, text in zip(names, operands, strict=True)
        ]
        nodes.append(f"  %n{i}: {result} = {operator % ', '.join(names)}")
        outputs.append(f'  return %n{i} path="y{i}"')
    return _core.Graph.parse(
        "\n".join(["tosaic 1", "graph @g stage=quantized {", *inputs, *nodes, *outputs, "}"])
    )


def of_tosaic(calls: Sequence[Call], cpu: str) -> list[int]:
    """Returns the bytes by the claimant of a CPU."""
    claimant = tosaic.Claimant.named(cpu)
    for op in {"conv" if call.op == "transposed" else call.op for call in calls}:
        claimant = claimant.allow(op=op)  # weights are inputs here, not constants
    sizes = claimant.scratch_bytes(graph_of(calls))
    assert isinstance(sizes, dict)
    return [sizes[f"n{i}"] for i in range(len(calls))]


# ---- by CMSIS-NN ----

_SOURCES = (
    "ConvolutionFunctions/arm_convolve_get_buffer_sizes_s8.c",
    "ConvolutionFunctions/arm_convolve_get_buffer_sizes_s16.c",
    "ConvolutionFunctions/arm_depthwise_conv_get_buffer_sizes_s8.c",
    "ConvolutionFunctions/arm_depthwise_conv_get_buffer_sizes_s16.c",
    "ConvolutionFunctions/arm_transpose_conv_get_buffer_sizes_s8.c",
    "FullyConnectedFunctions/arm_fully_connected_get_buffer_sizes_s8.c",
    "FullyConnectedFunctions/arm_fully_connected_get_buffer_sizes_s16.c",
    "PoolingFunctions/arm_avgpool_get_buffer_sizes_s8.c",
    "PoolingFunctions/arm_avgpool_get_buffer_sizes_s16.c",
)
# One C function for each kernel, width and form. d: batch, channels, filters, groups, height and width of the
# image, kernel, result, stride, pad, dilation.
_CALLS = """
#include "arm_nnfunctions.h"

#define DIMS                                                                                        \\
  const cmsis_nn_dims in = {d[0], d[4], d[5], d[1]}, out = {d[0], d[8], d[9], d[2]};                \\
  const cmsis_nn_tile stride = {d[11], d[10]}, pad = {d[13], d[12]}, dilation = {d[15], d[14]};     \\
  const cmsis_nn_activation all = {-128, 127};

#define CONV(bits, form, suffix)                                                                    \\
  int conv_##bits##_##form(const int32_t* d) {                                                      \\
    DIMS const cmsis_nn_dims filter = {d[2], d[6], d[7], d[1] / d[3]};                              \\
    const cmsis_nn_conv_params params = {0, 0, stride, pad, dilation, all};                         \\
    return arm_convolve_wrapper_s##bits##_get_buffer_size##suffix(&params, &in, &filter, &out);     \\
  }                                                                                                 \\
  int depthwise_##bits##_##form(const int32_t* d) {                                                 \\
    DIMS const cmsis_nn_dims filter = {1, d[6], d[7], d[2]};                                        \\
    const cmsis_nn_dw_conv_params params = {0, 0, d[2] / d[1], stride, pad, dilation, all};         \\
    return arm_depthwise_conv_wrapper_s##bits##_get_buffer_size##suffix(&params, &in, &filter, &out); \\
  }                                                                                                 \\
  int linear_##bits##_##form(const int32_t* d) {                                                    \\
    const cmsis_nn_dims filter = {d[1], 1, 1, d[2]};                                                \\
    return arm_fully_connected_s##bits##_get_buffer_size##suffix(&filter);                          \\
  }                                                                                                 \\
  int avg_pool_##bits##_##form(const int32_t* d) {                                                  \\
    return arm_avgpool_s##bits##_get_buffer_size##suffix(d[9], d[1]);                               \\
  }

#define TRANSPOSED(form, suffix)                                                                    \\
  int transposed_8_##form(const int32_t* d) {                                                       \\
    DIMS const cmsis_nn_dims filter = {d[2], d[6], d[7], d[1]};                                     \\
    const cmsis_nn_transpose_conv_params params = {0, 0, stride, pad, {0, 0}, dilation, all};       \\
    return arm_transpose_conv_s8_get_buffer_size##suffix(&params, &in, &filter, &out) +             \\
           arm_transpose_conv_s8_get_reverse_conv_buffer_size(&params, &in, &filter);               \\
  }

CONV(8, SCALAR, ) CONV(8, DSP, _dsp) CONV(8, MVE, _mve)
CONV(16, SCALAR, ) CONV(16, DSP, _dsp) CONV(16, MVE, _mve)
TRANSPOSED(SCALAR, ) TRANSPOSED(DSP, ) TRANSPOSED(MVE, _mve)
"""


class Functions:
    """The functions of the checkout `source`, compiled into `folder`."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._library = compiled(source, folder, _CALLS, _SOURCES)

    def size(self, call: Call, form: str) -> int:
        """Returns the bytes of all buffers of a call: of kernels of the form SCALAR, DSP or MVE."""
        name = "depthwise" if call.is_depthwise else {"matmul": "linear"}.get(call.op, call.op)
        pairs = (call.size, call.kernel, call.result, call.stride, call.pad, call.dilation)
        numbers = [call.batch, call.channels, call.filters, call.groups, *(n for pair in pairs for n in pair)]
        function = getattr(self._library, f"{name}_{call.bits}_{form}")
        return int(function((ctypes.c_int32 * len(numbers))(*numbers)))


def of_bindings(call: Call, form: str) -> int:
    """Returns the bytes of all buffers by the bindings that ExecuTorch installs."""
    from executorch.backends.cortex_m.library import cmsis_nn

    backend = getattr(cmsis_nn.Backend, form)
    dtype = cmsis_nn.DataType.A8W8 if call.bits == 8 else cmsis_nn.DataType.A16W8
    if call.op in ("linear", "matmul"):
        dims = [call.channels, 1, 1, call.filters]
        return int(cmsis_nn.fully_connected_buffer_size(backend, dtype, filter_nhwc=dims))
    if call.op == "avg_pool":
        sizes = {"dim_dst_width": call.result[1], "ch_src": call.channels}
        return int(cmsis_nn.avgpool_buffer_size(backend, dtype, **sizes))
    given: dict[str, Any] = {
        "input_nhwc": [call.batch, *call.size, call.channels],
        "filter_nhwc": [call.filters, *call.kernel, call.channels // call.groups],
        "padding_hw": list(call.pad),
        "stride_hw": list(call.stride),
        "dilation_hw": list(call.dilation),
    }
    output = {"output_nhwc": [call.batch, *call.result, call.filters]}
    if call.op == "transposed":
        given["padding_offsets_hw"] = [0, 0]
        reverse = cmsis_nn.transpose_conv_reverse_conv_buffer_size(backend, dtype, **given)
        return int(cmsis_nn.transpose_conv_buffer_size(backend, dtype, **given, **output)) + int(reverse)
    if call.is_depthwise:
        given |= {"filter_nhwc": [1, *call.kernel, call.filters], "ch_mult": call.filters // call.channels}
        return int(cmsis_nn.depthwise_conv_wrapper_buffer_size(backend, dtype, **given, **output))
    return int(cmsis_nn.convolve_wrapper_buffer_size(backend, dtype, **given, **output))


def too_small(call: Call) -> bool:
    """Whether CMSIS-NN's function returns less than the kernel of a transposed convolution uses.

    The function takes the stride of the height where `arm_transpose_conv_s8` takes the stride of the width.
    """
    runs_reversed = max(call.stride) <= 2 and call.channels > 16
    return (
        call.op == "transposed" and not runs_reversed and call.stride[1] > max(call.stride[0], call.kernel[1])
    )


# ---- recorded results ----


def write(functions: Functions, revision: str, seeds: Sequence[int]) -> None:
    """Records the sizes of the calls of these seeds."""
    rows = [[*astuple(call), [functions.size(call, form) for form in FORMS]] for call in map(drawn, seeds)]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    FILE.write_text(f'{{"cmsis_nn": "{revision}", "forms": {json.dumps(FORMS)}, "calls": [\n{lines}\n]}}\n')


def recorded() -> list[tuple[Call, dict[str, int]]]:
    """Returns the recorded calls, and the bytes by the form of the kernels."""
    data = json.loads(FILE.read_text())
    found = []
    for *fields, sizes in data["calls"]:
        call = Call(*(tuple(each) if isinstance(each, list) else each for each in fields))
        found.append((call, dict(zip(data["forms"], sizes, strict=True))))
    return found
