"""Every path of integer contractions against the scalar reference: drawn shapes, zero points and rescales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tosaic import _core

Array = np.ndarray[Any, Any]
_DRAWS = 160
_MOST_CONSTANT = 20_000  # elements of weights in the text of a graph


def _text(lines: Sequence[str]) -> str:
    return "\n".join(["tosaic 1", "graph @drawn stage=tosa {", *(f"  {line}" for line in lines), "}", ""])


def _shape(array: Array, dtype: str) -> str:
    return f"{dtype}[{','.join(map(str, array.shape))}]"


class Drawn:
    """A contraction of i8 or i16 and, in most draws, the rescale and clamps after it."""

    def __init__(self, seed: int, *, wide: bool = False) -> None:
        self.random = np.random.default_rng([seed, wide])
        self.wide = wide
        self.left, self.sums = ("i16", "i48") if wide else ("i8", "i32")
        self.arrays: list[Array] = []
        self.inputs: list[str] = []

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`, more often a small one."""
        wide = self.random.random() < 0.3
        return int(self.random.integers(low, (high if wide else min(high, low + 8)) + 1))

    def zero_point(self, often: float) -> int:
        return int(self.random.integers(-128, 128)) if not self.wide and self.random.random() < often else 0

    def add_left(self, shape: Sequence[int]) -> None:
        self.add("x", self.array(shape, 16 if self.wide else 8), self.left)

    def array(self, shape: Sequence[int], bits: int = 8) -> Array:
        """Values of the whole range; often many at its ends."""
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        values = self.random.integers(low, high + 1, shape)
        if self.random.random() < 0.4:
            ends = self.random.choice([low, high], shape)
            values = np.where(self.random.random(shape) < 0.7, ends, values)
        return values.astype(np.int16 if bits == 16 else np.int8)

    def add_weights(self, array: Array) -> None:
        """Constant weights, which kernels pack in advance, or weights that are an input.

        With small weights, more products of i16 and i8 are added up before a sum needs more than 32 bits.
        """
        if self.wide and self.random.random() < 0.5:
            array = array // np.int8(16)
        if array.size > _MOST_CONSTANT or self.random.random() < 0.4:
            self.add("w", array, "i8")
            return
        values = ",".join(map(str, array.ravel()))
        self.inputs.append(f"const %w: {_shape(array, 'i8')} = parameter [{values}]")

    def add(self, name: str, array: Array, dtype: str) -> None:
        self.arrays.append(array)
        self.inputs.append(f'input %{name}: {_shape(array, dtype)} path="{name}"')

    def bias(self, channels: int) -> None:
        count = channels if self.random.random() < 0.7 else 1
        most = 1 << int(self.random.choice([20, 42] if self.wide else [20]))
        values = self.random.integers(-most, most, (count,))
        self.add("b", values.astype(np.int64 if self.wide else np.int32), self.sums)

    def run(self, call: str, shape: Sequence[int]) -> None:
        """Runs the program on every instruction set, alone and in threads, and on the reference."""
        dims = ",".join(map(str, shape))
        lines = [*self.inputs, f"%sums: {self.sums}[{dims}] = {call}"]
        last, dtype = "sums", self.sums
        if self.random.random() < 0.8:
            lines += self._rescale(dims, shape[-1])
            last, dtype = "scaled", self.scaled
            while dtype != "i32" and self.random.random() < 0.4:
                least = -(1 << (int(dtype[1:]) - 1))
                low, high = sorted(self.random.integers(least, -least, 2))
                lines.append(
                    f"%{last}.c: {dtype}[{dims}] = tosa.clamp(%{last}) "
                    f"{{min_val={low}, max_val={high}, nan_mode=propagate}}"
                )
                last += ".c"
        graph = _core.Graph.parse(_text([*lines, f'return %{last} path="out"']))
        expected = _core.Session(graph, reference=True).run(self.arrays)[0]
        for isa in _core.usable_isas():
            found = _core.Session(graph, isa=isa).run(self.arrays)[0]
            wrong = np.argwhere(found != expected)
            assert len(wrong) == 0, f"{isa}: {len(wrong)} of {expected.size} differ, first at {wrong[0]}"
            threads = int(self.random.choice([2, 3, 8]))
            shared = _core.Session(graph, isa=isa, threads=threads, share_all=True).run(self.arrays)[0]
            np.testing.assert_array_equal(shared, expected, f"{isa}, {threads} threads")

    def _rescale(self, dims: str, channels: int) -> list[str]:
        per_channel = self.random.random() < 0.6
        count = channels if per_channel else 1
        lowest = int(self.random.choice([28, 30, 32] if self.wide else [31, 33, 36]))
        shifts = self.random.integers(lowest, 48, count)
        most = 15 if self.wide else 31
        multipliers = self.random.integers(1 << (most - 1), (1 << most) - 1, count)
        common = "i16" if self.wide else "i8"
        self.scaled = str(self.random.choice([common, common, "i8", "i16", "i32"]))
        rounding = "double_round" if not self.wide and self.random.random() < 0.2 else "single_round"
        zero_point = self.zero_point(0.7) if self.scaled == "i8" else 0
        attrs = (
            f"input_zp=0, output_zp={zero_point}, dtype={self.scaled}, "
            f"scale32={str(not self.wide).lower()}, "
            f"rounding_mode={rounding}, per_channel={str(per_channel).lower()}, input_unsigned=false, "
            f"output_unsigned=false, multiplier=[{','.join(map(str, multipliers))}], "
            f"shift=[{','.join(map(str, shifts))}]"
        )
        return [f"%scaled: {self.scaled}[{dims}] = tosa.rescale(%sums) {{{attrs}}}"]


def _conv_shape(drawn: Drawn, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Extents of the input, pads, strides and dilations for which TOSA's output size is whole."""
    extents, pads, strides, dilations = [], [], [], []
    for taps in kernel:
        stride, dilation = drawn.number(1, 3), drawn.number(1, 3)
        before, after = drawn.number(0, 4), drawn.number(0, 4)
        reach = (taps - 1) * dilation
        steps = drawn.number(0, 30)
        extent = steps * stride + reach + 1 - before - after
        while extent < 1:
            extent += stride
        extents.append(extent)
        pads += [before, after]
        strides.append(stride)
        dilations.append(dilation)
    return extents, pads, strides, dilations


def _out(extent: int, pads: Sequence[int], taps: int, stride: int, dilation: int) -> int:
    return (extent + sum(pads) - (taps - 1) * dilation - 1) // stride + 1


def _list(numbers: Sequence[int]) -> str:
    return "[" + ",".join(map(str, numbers)) + "]"


_forms = pytest.mark.parametrize("wide", [False, True], ids=["i8", "i16"])
_draws = pytest.mark.parametrize("seed", range(_DRAWS))


@_forms
@_draws
def test_convolutions(seed: int, wide: bool) -> None:
    drawn = Drawn(seed, wide=wide)
    kernel = [drawn.number(1, 5), drawn.number(1, 5)]
    extents, pads, strides, dilations = _conv_shape(drawn, kernel)
    batch, channels, filters = drawn.number(1, 3), drawn.number(1, 130), drawn.number(1, 100)
    drawn.add_left((batch, *extents, channels))
    drawn.add_weights(drawn.array((filters, *kernel, channels)))
    drawn.bias(filters)
    out = [_out(extents[i], pads[2 * i : 2 * i + 2], kernel[i], strides[i], dilations[i]) for i in range(2)]
    drawn.run(
        f"tosa.conv2d(%x, %w, %b) {{pad={_list(pads)}, stride={_list(strides)}, "
        f"dilation={_list(dilations)}, input_zp={drawn.zero_point(0.7)}, "
        f"weight_zp={drawn.zero_point(0.3)}, acc_type={drawn.sums}, local_bound=false}}",
        (batch, *out, filters),
    )


@_forms
@_draws
def test_depthwise_convolutions(seed: int, wide: bool) -> None:
    drawn = Drawn(seed, wide=wide)
    kernel = [3, 3] if drawn.random.random() < 0.5 else [drawn.number(1, 7), drawn.number(1, 7)]
    extents, pads, strides, dilations = _conv_shape(drawn, kernel)
    batch, channels = drawn.number(1, 3), drawn.number(1, 200)
    multiplier = 1 if drawn.random.random() < 0.7 else drawn.number(1, 3)
    drawn.add_left((batch, *extents, channels))
    drawn.add_weights(drawn.array((*kernel, channels, multiplier)))
    drawn.bias(channels * multiplier)
    out = [_out(extents[i], pads[2 * i : 2 * i + 2], kernel[i], strides[i], dilations[i]) for i in range(2)]
    drawn.run(
        f"tosa.depthwise_conv2d(%x, %w, %b) {{pad={_list(pads)}, stride={_list(strides)}, "
        f"dilation={_list(dilations)}, input_zp={drawn.zero_point(0.7)}, "
        f"weight_zp={drawn.zero_point(0.2)}, acc_type={drawn.sums}, local_bound=false}}",
        (batch, *out, channels * multiplier),
    )


@_forms
@_draws
def test_transposed_convolutions(seed: int, wide: bool) -> None:
    drawn = Drawn(seed, wide=wide)
    kernel = [drawn.number(1, 4), drawn.number(1, 4)]
    extents = [drawn.number(1, 12), drawn.number(1, 12)]
    strides = [drawn.number(1, 8), drawn.number(1, 8)]
    pads = [drawn.number(1 - taps, 6) for taps in kernel for _ in range(2)]
    batch, channels, filters = drawn.number(1, 2), drawn.number(1, 40), drawn.number(1, 40)
    out = [(extents[i] - 1) * strides[i] + pads[2 * i] + pads[2 * i + 1] + kernel[i] for i in range(2)]
    if min(out) < 1:
        pads, out = [0] * 4, [(extents[i] - 1) * strides[i] + kernel[i] for i in range(2)]
    drawn.add_left((batch, *extents, channels))
    drawn.add_weights(drawn.array((filters, *kernel, channels)))
    drawn.bias(filters)
    drawn.run(
        f"tosa.transpose_conv2d(%x, %w, %b) {{out_pad={_list(pads)}, stride={_list(strides)}, "
        f"input_zp={drawn.zero_point(0.7)}, weight_zp={drawn.zero_point(0.3)}, "
        f"acc_type={drawn.sums}, local_bound=false}}",
        (batch, *out, filters),
    )


@_draws
def test_products(seed: int) -> None:
    drawn = Drawn(seed)
    batch, rows, depth, columns = (
        drawn.number(1, 4),
        drawn.number(1, 300),
        drawn.number(1, 20000 if seed % 20 == 0 else 400),
        drawn.number(1, 200),
    )
    drawn.add("x", drawn.array((batch, rows, depth)), "i8")
    drawn.add("y", drawn.array((batch, depth, columns)), "i8")
    drawn.run(
        f"tosa.matmul(%x, %y) {{first_zp={drawn.zero_point(0.6)}, second_zp={drawn.zero_point(0.6)}, "
        "dtype=i32}",
        (batch, rows, columns),
    )


@pytest.mark.parametrize("channel", [0, 3, 17, 39])
def test_a_sum_of_48_bits_without_a_result_is_refused_by_every_path(channel: int) -> None:
    """The value of one element is out of range of its multiplier, wherever a vector has it."""
    values = np.full(40, 1000, np.int64)
    values[channel] = 1 << 46
    multipliers, shifts = np.full(40, 1 << 14), np.full(40, 29)
    drawn = Drawn(channel, wide=True)
    drawn.add("x", np.ones((1, 1, 1, 40), np.int16), "i16")
    drawn.add("w", np.zeros((40, 1, 1, 40), np.int8), "i8")
    drawn.add("b", values, "i48")
    graph = _core.Graph.parse(
        _text(
            [
                *drawn.inputs,
                "%sums: i48[1,1,1,40] = tosa.conv2d(%x, %w, %b) {pad=[0,0,0,0], stride=[1,1], "
                "dilation=[1,1], input_zp=0, weight_zp=0, acc_type=i48, local_bound=false}",
                "%scaled: i16[1,1,1,40] = tosa.rescale(%sums) {input_zp=0, output_zp=0, dtype=i16, "
                "scale32=false, rounding_mode=single_round, per_channel=true, input_unsigned=false, "
                f"output_unsigned=false, multiplier={_list(multipliers)}, shift={_list(shifts)}}}",
                'return %scaled path="out"',
            ]
        )
    )
    messages = set()
    for options in ({"reference": True}, *({"isa": isa} for isa in _core.usable_isas())):
        with pytest.raises(_core.InvalidGraph, match=f"got {1 << 46}") as raised:
            _core.Session(graph, **options).run(drawn.arrays)
        messages.add(str(raised.value))
    assert len(messages) == 1
