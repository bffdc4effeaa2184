"""Comparisons of quantized programs, with the floats that they were made from and with each other."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import tosaic
from models.tampering import KINDS, tampered
from torch import nn
from tosaic import _core
from tosaic.program.constants_in_text import InTextOrder, constants_in_text_order

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about its own code


class Images(nn.Module):
    """Convolutions with batch norms and bounds, a depthwise one, a split, a concatenation, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.depthwise, self.norm_2 = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8)
        self.branch, self.mix, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        left, right = nn.functional.relu6(self.norm_2(self.depthwise(x))).split(4, 1)
        z = self.mix(torch.cat([self.branch(left), right], 1)) + x
        return self.last(nn.functional.adaptive_avg_pool2d(nn.functional.max_pool2d(z, 2), 1).flatten(1))


class Tokens(nn.Module):
    """Token ids through an embedding and a transformer block: two outputs of floats, and an argmax."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.norm, self.norm_2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.project = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide, self.narrow, self.logits = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.embed(ids)
        q, k, v = (part.view(1, -1, 2, 8).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        seen = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v
        x = x + self.project(seen.transpose(1, 2).reshape(x.shape))
        x = x + self.narrow(nn.functional.gelu(self.wide(self.norm_2(x))))
        return self.logits(x), x.mean(1), self.logits(x).argmax(-1)


class Cache(nn.Module):
    """Attention over a cache of keys and values, which each call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 6, 8))
        self.register_buffer("values", torch.zeros(1, 6, 8))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, at, self.k(x))
        self.values.index_copy_(1, at, self.v(x))
        return torch.softmax(self.q(x) @ self.keys.transpose(1, 2) / 8**0.5, -1) @ self.values


class Case(NamedTuple):
    exported: Any
    samples: list[tuple[torch.Tensor, ...]]
    quantized: Any
    lowered: tosaic.Lowered


NETWORKS = ("images", "tokens", "cache")
CONFIGS = {
    "int8": (tosaic.QConfig.int8(), ""),
    "int16x8": (tosaic.QConfig.int16x8(), "+int16"),
}
_MADE: dict[tuple[str, str], Case] = {}


def case(network: str, config: str = "int8") -> Case:
    """Returns a network, its samples, and the network quantized and lowered. Each is made once."""
    if (network, config) not in _MADE:
        torch.manual_seed(0)
        draw = torch.Generator().manual_seed(3)
        module, samples = {
            "images": lambda: (Images(), [(torch.randn(1, 3, 8, 8, generator=draw),) for _ in range(4)]),
            "tokens": lambda: (Tokens(), [(torch.randint(0, 20, (1, 6), generator=draw),) for _ in range(4)]),
            "cache": lambda: (
                Cache(),
                [(torch.randn(1, 1, 8, generator=draw), torch.tensor([i])) for i in range(4)],
            ),
        }[network]()
        with torch.no_grad():
            for norm in (part for part in module.modules() if isinstance(part, nn.BatchNorm2d)):
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.5, 2)
        exported = torch.export.export(module.eval(), samples[0], strict=False)
        wanted, extension = CONFIGS[config]
        quantized = tosaic.quantize(exported, samples, config=wanted, progress=False)
        lowered = tosaic.lower(quantized, target=target(network, extension))
        _MADE[network, config] = Case(exported, samples, quantized, lowered)
    return _MADE[network, config]


def target(network: str, extension: str = "") -> str:
    """Returns the target for a network: the cache stays float outside, so it needs floats."""
    return ("TOSA-1.0+INT+FP" if network == "cache" else "TOSA-1.0+INT") + extension


every_case = pytest.mark.parametrize(
    ("network", "config"), [(network, config) for network in NETWORKS for config in CONFIGS]
)


# ---- right programs ----


@every_case
@pytest.mark.parametrize("side", ["quantized", "lowered"])
@pytest.mark.parametrize("reference", ["torch", "program"])
def test_a_quantized_program_is_judged_by_its_distance_to_the_floats(
    network: str, config: str, side: str, reference: str
) -> None:
    made = case(network, config)
    floats = made.exported if reference == "torch" else tosaic.from_exported(made.exported)
    comparison = tosaic.compare(floats, getattr(made, side), made.samples)
    assert comparison, str(comparison)
    assert comparison.against_floats
    assert comparison.first_wrong is None
    assert "b is quantized and a is not" in str(comparison)
    # In the lowered program, values that are stored in states, or moved out of states, have no qparams.
    assert len(comparison) >= (6 if network == "cache" else 8)
    assert all(row.local_share is None and row.local is not None for row in comparison)
    numbers = [row for row in comparison if row.fx_name != "argmax"]
    assert min(row.local.sqnr_db for row in numbers if row.local) > 25  # no value has other numbers
    assert not tosaic.compare(floats, getattr(made, side), made.samples, threshold_db=80)


@pytest.mark.parametrize("side", ["quantized", "lowered"])
def test_a_value_that_is_quantized_behind_a_bound_is_compared_behind_it(side: str) -> None:
    made = case("images")
    comparison = tosaic.compare(made.exported, getattr(made, side), made.samples)
    assert {"relu", "relu6", "split", "split.1", "conv2d_2", "cat", "linear"} <= {
        row.fx_name for row in comparison
    }
    reasons = {item.fx_name: item.reason for item in comparison.unmatched}
    assert reasons["batch_norm"] == "quantized as the result of 'relu'"
    assert comparison.first_divergence is None


@every_case
def test_a_quantized_program_and_its_lowered_program_are_equal(network: str, config: str) -> None:
    made = case(network, config)
    comparison = tosaic.compare(made.quantized, made.lowered, made.samples)
    assert comparison, str(comparison)
    assert not comparison.against_floats
    assert not comparison.other_qparams
    assert all(row.local_share is not None for row in comparison)
    assert comparison.output.sqnr_db > (80 if config == "int16x8" else 120)
    assert tosaic.compare(made.lowered, made.quantized, made.samples)
    same = tosaic.compare(made.quantized, made.quantized, made.samples)
    assert same
    assert all(row.total.mismatches == 0 for row in same)


@every_case
def test_programs_that_torchao_converted_agree_with_ours(network: str, config: str) -> None:
    made = case(network, config)
    converted = made.quantized.to_exported()
    theirs = tosaic.lower(converted, target=target(network, CONFIGS[config][1]))
    pairs = [
        (converted, made.quantized),
        (converted, made.lowered),
        (converted, theirs),
        (made.quantized, theirs),
        (made.lowered, theirs),
        (made.quantized, converted),
    ]
    for a, b in pairs:
        comparison = tosaic.compare(a, b, made.samples)
        assert comparison, str(comparison)
        assert not comparison.other_qparams
        assert comparison.output.sqnr_db > (80 if config == "int16x8" else 120)
    assert tosaic.compare(made.exported, theirs, made.samples).against_floats


def test_values_at_stage_quantized_are_compared_by_the_numbers_that_they_represent() -> None:
    made = case("images")
    comparison = tosaic.compare(made.quantized.to_exported(), made.quantized, made.samples)
    assert len(comparison) >= 10
    assert min(row.total.sqnr_db for row in comparison) > 60


def test_the_rounding_of_an_input_is_not_taken_for_the_call_that_reads_it() -> None:
    """The lowered program has the product inside of a table, after the rounding of its operand."""

    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.round(x * 4).clamp(-100, 100).to(torch.int16).argmin(-1)

    samples = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)),) for seed in range(4)]
    exported = torch.export.export(Rounded(), samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False)
    comparison = tosaic.compare(quantized, tosaic.lower(quantized, target="TOSA-1.0+INT+FP"), samples)
    assert comparison.ok, comparison
    assert "mul" in [row.fx_name for row in comparison.unmatched]


def _ok(module: nn.Module, samples: list[tuple[torch.Tensor, ...]], config: str, target: str) -> list[str]:
    """Returns the FX nodes that were compared, after a check that compare and numpy find equal outputs."""
    exported = torch.export.export(module.eval(), samples[0], strict=False)
    quantized = tosaic.quantize(exported, samples, config=getattr(tosaic.QConfig, config)(), progress=False)
    lowered = tosaic.lower(quantized, target=target)
    comparison = tosaic.compare(quantized, lowered, samples)
    assert comparison.ok, comparison
    for sample in samples:
        runs = [side.run(*sample) for side in (quantized, lowered)]
        for a, b in zip(*(run if isinstance(run, tuple) else (run,) for run in runs), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-3)
    return [row.fx_name for row in comparison]


def test_integers_that_are_rounded_in_a_later_table_are_not_taken_as_rounded() -> None:
    """The table of gelu reads the integers of x, in the scale of x."""

    class Enlarged(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.gelu(nn.functional.interpolate(x, scale_factor=3.0, mode="nearest"))

    samples = [(torch.randn(2, 5, 6, 3, generator=torch.Generator().manual_seed(k)),) for k in range(4)]
    exported = torch.export.export(Enlarged(), samples[0])
    text = str(tosaic.quantize(exported, samples, config=tosaic.QConfig.int8(), progress=False).graph)
    scales = re.findall(r"%(?:x.quantize|upsample_nearest2d): i8.*? scale (\S+)", text)
    assert len(set(scales)) == 2, text
    assert _ok(Enlarged(), samples, "int8", "TOSA-1.0+INT") == ["gelu"]


def test_unsigned_integers_that_are_not_numbers_of_a_scale_are_compared_as_they_are() -> None:
    """TOSA moves an input of uint8 in int8, with the same bits."""

    class Flipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.flip(0).to(torch.float32))

    random = torch.Generator().manual_seed(0)
    samples = [(torch.randint(0, 256, (4, 3), dtype=torch.uint8, generator=random),) for _ in range(4)]
    quantized = tosaic.quantize(torch.export.export(Flipped(), samples[0]), samples, progress=False)
    for target in ("TOSA-1.0+INT", "TOSA-1.0+INT+FP"):
        comparison = tosaic.compare(quantized, tosaic.lower(quantized, target=target), samples)
        assert comparison.ok, comparison
        assert "flip" in [row.fx_name for row in comparison]


def test_an_input_that_is_stored_in_a_state_as_it_is_is_compared() -> None:
    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("before", torch.zeros(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            difference = x - self.before
            self.before.copy_(x)
            return torch.relu(difference)

    samples = [(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)),) for seed in range(4)]
    exported = torch.export.export(Difference(), samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False)
    for target in ("TOSA-1.0+INT", "TOSA-1.0+INT+FP"):
        try:
            lowered = tosaic.lower(quantized, target=target)
        except (tosaic.UnsupportedOp, tosaic.SpecViolation):
            continue
        assert tosaic.compare(quantized, lowered, samples).ok
    assert tosaic.compare(tosaic.from_exported(exported), tosaic.lower(exported), samples).ok


def test_weights_in_groups_are_compared_with_floats() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    samples = [(torch.randn(2, 32, generator=torch.Generator().manual_seed(i)),) for i in range(4)]
    exported = torch.export.export(net, samples[0])
    quantized = tosaic.quantize(
        exported, samples, config=tosaic.QConfig.int8(weight_bits=4, group_size=8), progress=False
    )
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    for b in (quantized, lowered):
        comparison = tosaic.compare(exported, b, samples, threshold_db=15)
        assert comparison, str(comparison)
        assert comparison.against_floats
    assert tosaic.compare(quantized, lowered, samples)


def test_another_calibration_is_judged_by_the_threshold_and_another_range_is_wrong() -> None:
    made = case("images")
    for factor, right in ((1.0001, True), (1.5, False)):
        samples = [(x * factor,) for (x,) in made.samples]
        other = tosaic.quantize(made.exported, samples, progress=False)
        comparison = tosaic.compare(made.quantized, other, made.samples)
        assert comparison.ok is right, str(comparison)
        assert comparison.other_qparams
        assert ("with other qparams" in str(comparison)) is not right


def test_a_file_is_compared_with_the_quantized_program_but_has_no_numbers_for_floats(tmp_path: Path) -> None:
    made = case("images")
    made.lowered.save(tmp_path / "images.tosa")
    assert tosaic.compare(made.quantized, tmp_path / "images.tosa", made.samples)
    with pytest.raises(tosaic.QuantMismatch, match="a file without a sidecar"):
        tosaic.compare(made.exported, tmp_path / "images.tosa", made.samples)
    cache = case("cache")
    cache.lowered.save(tmp_path / "cache.tosa")
    with pytest.raises(tosaic.QuantMismatch, match="'keys' of the outputs is i8 in the file"):
        tosaic.compare(cache.exported, tmp_path / "cache.tosa", cache.samples)


# ---- wrong programs ----


def parsed(text: str, graph: _core.Graph, wrong: dict[int, _core.Constant] | None = None) -> _core.Graph:
    """Parses a text with the constants of a graph; `wrong` replaces some, by the address of their data."""
    constants = dict(constants_in_text_order(graph))

    def find(key: Any, _: _core.Constant) -> _core.Constant:
        return (wrong or {}).get(constants[key].array.ctypes.data, constants[key])

    return _core.Graph.parse(text, InTextOrder(find))


def with_rolled_weight(program: Any, name: str) -> tosaic.Program:
    """Returns the quantized program with the rows of one weight in another order."""
    graph = program.graph
    constant, text = graph.constants[name], graph.text()
    array = np.ascontiguousarray(np.roll(constant.array, 1, 0))
    line = next(line for line in text.splitlines() if line.lstrip().startswith(f"const %{name}:"))
    if "ref(" not in line:
        values = json.dumps([value.item() for value in array.ravel()])
        return tosaic.Program(
            parsed(text.replace(line, line[: line.rindex("[")] + values), graph), program.signature
        )
    wrong = _core.Constant(
        constant.name, constant.kind, constant.dtype, array.shape, array.ctypes.data, array.nbytes, array
    )
    return tosaic.Program(parsed(text, graph, {constant.array.ctypes.data: wrong}), program.signature)


def with_qparams(program: Any, name: str, *, factor: float = 1, shift: int = 0) -> tosaic.Program:
    """Returns the quantized program with another scale and zero point of one value."""
    text = program.graph.text()
    line = next(line for line in text.splitlines() if line.lstrip().startswith(f"%{name}:"))
    found = re.search(r"scale (\S+) zp (-?\d+)\)", line)
    assert found
    label = f"scale {float(found[1]) * factor!r} zp {int(found[2]) + shift})"
    return tosaic.Program(
        parsed(text.replace(line, line.replace(found[0], label, 1)), program.graph), program.signature
    )


def with_scaled_multiplier(lowered: tosaic.Lowered, name: str) -> tosaic.Lowered:
    """Returns the lowered program with 0.8 times the multipliers of one rescale."""
    text = lowered.graph.text()
    found = re.search(rf"%{re.escape(name)}: \S+ = tosa.rescale\(.*?multiplier=\[([\d,]+)\]", text)
    assert found
    smaller = ",".join(str(int(int(each) * 0.8)) for each in found[1].split(","))
    wrong = copy.copy(tampered(lowered, "zero point", 0))  # a copy without what depends on the graph
    assert wrong is not None
    wrong._graph = parsed(text[: found.start(1)] + smaller + text[found.end(1) :], lowered.graph)
    wrong._stages = {**lowered._stages, "tosa": wrong._graph}
    return wrong


def first_that_lost(before: tosaic.Comparison, after: tosaic.Comparison) -> str | None:
    """Returns the first node whose local error has become larger by 3 dB."""
    known = {row.fx_name: row.local for row in before}
    for row in after:
        local = known.get(row.fx_name)
        if local is not None and row.local is not None and row.local.sqnr_db < local.sqnr_db - 3:
            return row.fx_name
    return None


@pytest.mark.parametrize(
    ("network", "weight", "node", "shown"),
    [
        ("images", "first.weight", "batch_norm", "relu"),
        ("images", "branch.weight", "conv2d_2", "conv2d_2"),
        ("images", "last.weight", "linear", "linear"),
        ("tokens", "qkv.weight", "linear", "linear"),
        ("tokens", "wide.weight", "linear_2", "linear_2"),
    ],
)
def test_a_wrong_weight_is_found_by_both_references(network: str, weight: str, node: str, shown: str) -> None:
    made = case(network)
    wrong = with_rolled_weight(made.quantized, weight)
    lowered = tosaic.lower(wrong, target="TOSA-1.0+INT")
    for b, right in ((wrong, made.quantized), (lowered, made.lowered)):
        comparison = tosaic.compare(made.quantized, b, made.samples)
        assert not comparison
        assert comparison.first_wrong is not None
        assert comparison.first_wrong.fx_name == node
        before = tosaic.compare(made.exported, right, made.samples)
        after = tosaic.compare(made.exported, b, made.samples)
        assert first_that_lost(before, after) == shown
        assert after.worst_rows(1)[0].fx_name == shown


@pytest.mark.parametrize(
    ("network", "value", "change"),
    [
        ("images", "conv2d_2", {"factor": 0.5}),
        ("images", "linear", {"factor": 0.5}),
        ("images", "linear", {"shift": -60}),
        ("tokens", "linear_2", {"factor": 0.5}),
        ("tokens", "matmul", {"shift": 70}),
    ],
)
def test_a_wrong_scale_or_zero_point_of_a_quantized_value_is_found_by_both_references(
    network: str, value: str, change: dict[str, Any]
) -> None:
    made = case(network)
    wrong = with_qparams(made.quantized, value, **change)
    comparison = tosaic.compare(made.quantized, wrong, made.samples)
    assert not comparison
    assert comparison.other_qparams
    assert comparison.first_wrong is not None
    assert comparison.first_wrong.fx_name == value
    before = tosaic.compare(made.exported, made.quantized, made.samples)
    assert first_that_lost(before, tosaic.compare(made.exported, wrong, made.samples)) == value


@pytest.mark.parametrize(
    ("network", "rescale", "node"),
    [
        ("images", "batch_norm", "relu"),
        ("images", "conv2d_2", "conv2d_2"),
        ("images", "linear.rescale", "linear"),
        ("tokens", "linear.rescale", "linear"),
        ("tokens", "matmul.rescale", "matmul"),
    ],
)
def test_a_wrong_multiplier_of_a_lowered_program_is_found_by_both_references(
    network: str, rescale: str, node: str
) -> None:
    made = case(network)
    wrong = with_scaled_multiplier(made.lowered, rescale)
    for reference in (made.quantized, made.lowered):
        assert not tosaic.compare(reference, wrong, made.samples)
    before = tosaic.compare(made.exported, made.lowered, made.samples)
    assert first_that_lost(before, tosaic.compare(made.exported, wrong, made.samples)) == node


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", ["images", "tokens"])
def test_a_lowered_program_with_a_mistake_is_wrong_or_computes_the_same(network: str, kind: str) -> None:
    made = case(network)
    for seed in range(4):
        wrong = tampered(made.lowered, kind, seed)
        if wrong is None:
            continue
        same = all(
            np.array_equal(x, y)
            for sample in made.samples
            for x, y in zip(_outputs(made.lowered, sample), _outputs(wrong, sample), strict=True)
        )
        assert same or not tosaic.compare(made.quantized, wrong, made.samples), f"{kind} {seed}"


def _outputs(program: tosaic.Lowered, sample: tuple[torch.Tensor, ...]) -> list[Any]:
    found = program.run(*sample)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize(("dtype", "target"), [(torch.float16, "FP"), (torch.bfloat16, "FP+bf16")])
def test_a_network_of_half_precision_that_is_right_is_called_right(dtype, target) -> None:
    # Its input is rounded to integers by float operators, whose results are not results of the linear layer.
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).to(dtype).eval()
    samples = [(torch.randn(4, 16, dtype=dtype),) for _ in range(4)]
    quantized = tosaic.quantize(torch.export.export(module, samples[0]), samples, progress=False)
    comparison = tosaic.compare(quantized, tosaic.lower(quantized, target=f"TOSA-1.0+INT+{target}"), samples)
    assert comparison.ok, str(comparison)
    assert [row.ok for row in comparison.outputs] == [True]


class _Reordered(torch.nn.Module):
    """A convolution times a mask, whose result is returned in the order of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * mask


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+INT+FP"])
@pytest.mark.parametrize("make", [lambda: torch.nn.Linear(6, 6), _Reordered])
def test_integers_of_uint8_and_int8_that_represent_the_same_numbers_are_compared(make, target) -> None:
    torch.manual_seed(5)
    network = make().eval()
    shapes = [(2, 6)] if isinstance(network, torch.nn.Linear) else [(1, 3, 6, 6), (1, 1, 4, 4)]
    sample = tuple(torch.randn(shape) for shape in shapes)
    exported = torch.export.export(network, sample)
    quantized = tosaic.quantize(exported, [sample], config=tosaic.QConfig.uint8(), progress=False)
    lowered = tosaic.lower(quantized, target=target)
    found = tosaic.compare(quantized, lowered, [sample])
    assert found.ok
    assert all(row.local_share is not None for row in found)
    wrong = tosaic.compare(
        quantized, lowered, [sample], models={"tosa.rescale": lambda call: np.bitwise_xor(call.default(), 2)}
    )
    assert not wrong.ok


def test_floats_of_a_dequantized_result_are_not_taken_for_its_integers() -> None:
    """In the lowered program, integers and floats of the write belong to one call, with moved axes."""

    class Filled(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            normed = torch.nn.functional.group_norm(x, 5) - y
            written = normed.index_fill(1, torch.tensor([0, 1, 4]), -1.6)
            return written, written.select(3, 2) * 2

    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(1, 5, 5, 5, generator=generator), torch.rand(()) * 9) for _ in range(4)]
    exported = torch.export.export(Filled(), samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False)
    for target in ("TOSA-1.0+INT+FP", "TOSA-1.0+INT"):
        comparison = tosaic.compare(quantized, tosaic.lower(quantized, target=target), samples)
        assert comparison.ok, comparison
        assert "index_fill" in [row.fx_name for row in comparison]


def test_the_floats_of_a_rounded_input_are_not_taken_for_the_movement_that_reads_it() -> None:
    """The rounding of the input belongs to its first reader, a flip, which only moves numbers as well."""

    class Flipped(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            flipped = x.flip(1)
            rounded = torch.round(x * 4).clamp(-100, 100).to(torch.int32).to(torch.float32)
            return torch.tanh(flipped), torch.log_softmax(rounded, -2)

    generator = torch.Generator().manual_seed(0)
    samples = [(torch.rand(6, 3, 1, generator=generator) * 2 - 1,) for _ in range(4)]
    exported = torch.export.export(Flipped(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=tosaic.QConfig.int8(), progress=False)
    comparison = tosaic.compare(quantized, tosaic.lower(quantized, target="TOSA-1.0+INT+FP"), samples)
    assert comparison.ok, comparison


def test_the_bounded_form_of_a_result_is_not_taken_for_the_form_that_floats_read() -> None:
    """A write is rounded with the range of one reader, and is kept as floats for the other one."""

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            x = self.first(x).transpose(0, -1)
            x[:, None, -3].diagonal(0)[:2] *= factor
            return self.last(x)

    torch.manual_seed(0)
    samples = [(torch.rand(2, 3, 4, 8) * 4 - 2, torch.tensor(0.84)) for _ in range(6)]
    exported = torch.export.export(Written().eval(), samples[0]).run_decompositions({})
    quantized = tosaic.quantize(exported, samples, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    comparison = tosaic.compare(quantized, lowered, samples[:2])
    assert comparison.ok, str(comparison)
    assert any(node.op == "tosa.scatter" for node in lowered.graph.nodes)
    wrong = tosaic.compare(
        quantized, lowered, samples[:2], models={"tosa.scatter": lambda call: call.default() + 1}
    )
    assert not wrong.ok


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_movement_of_doubled_integers_keeps_the_scale_of_the_product(factor: float) -> None:
    """The product has the integers of x at another scale, so the lowered program slices x instead of it."""

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.round(torch.cat([x, torch.zeros_like(x)], 2) * 4).clamp(-100, 100)
            column = x.reshape(-1, 1)[:, 0]
            column.mul_(factor)
            column[-5].mul_(column[-5])
            return x

    torch.manual_seed(0)
    samples = [(torch.rand(1, 3, 4) * 6 - 3,) for _ in range(6)]
    exported = torch.export.export(Doubled(), samples[0]).run_decompositions({})
    quantized = tosaic.quantize(exported, samples, config=tosaic.QConfig.int16x8(), progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+int16")
    comparison = tosaic.compare(quantized, lowered, samples)
    assert comparison.ok, str(comparison)


def test_an_operand_that_is_rounded_before_the_values_of_another_call() -> None:
    """The rounding of the state belongs to `cat`, but a table of the earlier sigmoid includes the join."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(6, 2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([self.kept, torch.sigmoid(x)])[-6:]
            self.kept.copy_(joined)
            return joined

    torch.manual_seed(0)
    samples = [(torch.rand(3, 2, 4) * 1.6 - 0.7,) for _ in range(6)]
    quantized = tosaic.quantize(torch.export.export(Kept(), samples[0]), samples, progress=False)
    comparison = tosaic.compare(quantized, tosaic.lower(quantized, target="TOSA-1.0+INT"), samples[:2])
    assert comparison.ok, str(comparison)
    assert "cat" in [row.fx_name for row in comparison]


def test_the_floats_of_an_operand_are_not_taken_for_the_function_that_reads_it() -> None:
    """The table of the sine has the scale of the pad's result; a clamp reads the same input as floats."""

    class Padded(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            padded = nn.functional.pad(torch.sin(x), [2, 0], value=1.793)
            bounded = torch.clamp(x, -1.649, -0.887)
            whole = torch.round(x.amax(3) * 4).clamp(-100, 100).to(torch.int32).to(torch.float32)
            return torch.ceil(bounded).split(2, 3)[-1], padded, torch.max(bounded, 1)[0], whole

    torch.manual_seed(0)
    samples = [(torch.rand(8, 2, 8, 2) * 60 - 30,) for _ in range(6)]
    quantized = tosaic.quantize(torch.export.export(Padded(), samples[0]), samples, progress=False)
    comparison = tosaic.compare(quantized, tosaic.lower(quantized, target="TOSA-1.0+INT+FP"), samples[:2])
    assert comparison.ok, str(comparison)


def test_a_rounding_between_two_scales_that_is_off_by_a_unit_is_not_a_fault() -> None:
    """The distance of two integers that differ by a unit may exceed the unit, since floats are rounded."""

    class Stored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(4000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.cat([x[:1] * 1.03, x[1:]])
            difference = x - self.last
            self.last.copy_(x)
            return difference

    random = torch.Generator().manual_seed(0)
    samples = [(torch.rand(4000, generator=random) * 30,) for _ in range(3)]
    exported = torch.export.export(Stored(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=tosaic.QConfig.int16x8(), progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP+int16")
    comparison = tosaic.compare(quantized, lowered, samples[:2])
    assert any(row.metrics.mismatches for row in comparison.outputs), str(comparison)
    assert comparison.ok, str(comparison)


def test_a_number_near_a_tie_may_be_rounded_either_way_in_front_of_a_movement() -> None:
    """16 bits are requantized by a multiplier, and in the reference by numbers that are rounded to f32."""

    class Greatest(torch.nn.Module):
        def forward(self, x: torch.Tensor, most: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values, places = torch.max(torch.minimum(x, most), -1)
            return values.reshape(-1), places

    torch.manual_seed(0)
    samples = [(torch.rand(40, 300, 3) * 4 - 2, torch.ones(40, 300, 1)) for _ in range(2)]
    exported = torch.export.export(Greatest(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=tosaic.QConfig.int16x8(), progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+int16")
    differing = 0
    for x in samples:
        found, wanted = (np.asarray(each.run(*x)[0]) for each in (lowered, quantized))
        differing += int((found != wanted).sum())
        comparison = tosaic.compare(quantized, lowered, [x])
        assert comparison.ok, str(comparison)
    assert differing


def test_a_product_that_a_movement_and_floats_follow_is_judged_with_its_rounding() -> None:
    """The lowered program merges `roll` into the product; the reshape after it returns floats."""

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.rand(1, 4, 4, 2) * 2 - 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.roll(1, 1)[-1] * self.factor).reshape(1, 4, 4, 4, 2)

    torch.manual_seed(0)
    samples = [(torch.rand(1, 4, 4, 4, 2) * 1.9 - 0.93,) for _ in range(6)]
    exported = torch.export.export(Product().eval(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=tosaic.QConfig.int16x8(), progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+int16")
    comparison = tosaic.compare(quantized, lowered, samples[:2])
    assert comparison.ok, str(comparison)
    assert "mul" in {row.fx_name for row in comparison.rows}


@pytest.mark.parametrize("seed", [2, 6])
def test_parts_of_a_doubled_value_have_the_integers_of_the_value_with_another_scale(seed: int) -> None:
    """The lowered program selects parts of x for parts of x + x, and reads other parts of x as x."""

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = torch.erf(x)
            part = y[::2, None, ...]
            column = (part + part)[0:, -1, :, 1, None, 0:1]
            return y * 0.5 + 0.1, nn.functional.leaky_relu(column)

    torch.manual_seed(seed)
    samples = [(torch.rand(2, 8, 6, 1) * 4 - 2,) for _ in range(6)]
    exported = torch.export.export(Doubled(), samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    comparison = tosaic.compare(quantized, lowered, samples[:2])
    assert comparison.ok, str(comparison)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_returned_movement_of_a_scaled_value_has_the_scale_of_the_product(factor: float) -> None:
    """The product has the integers of its operand; its movement is inside of a node with another name."""

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = torch.erf(x)
            column = torch.cat([y, y], 0).reshape(-1, 1)
            part = column[:, 0]
            part.mul_(factor)
            return column.permute(1, 0), part

    torch.manual_seed(0)
    samples = [(torch.rand(1, 3) * 4 - 2,) for _ in range(6)]
    exported = torch.export.export(Scaled(), samples[0], strict=False)
    quantized = tosaic.quantize(exported, samples, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    comparison = tosaic.compare(quantized, lowered, samples[:2])
    assert comparison.ok, str(comparison)
    wrong = tosaic.compare(
        quantized, lowered, samples[:2], models={"tosa.reshape": lambda call: call.default() + 3}
    )
    assert not wrong.ok


@pytest.mark.parametrize("target", ["TOSA-1.0+INT+int16", "TOSA-1.0+INT+FP+int16"])
def test_a_part_of_a_multiple_of_counts_has_the_integers_of_the_counts(target: str) -> None:
    """The lowered program slices the counts, and the quantized program the floats of a product with them."""

    class Multiple(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            whole = x.float()
            part = (whole * 0.00033).split([2], 2)[0].unsqueeze(0)[0:, -1, :3, :]
            return part + 1.0, -whole

    torch.manual_seed(0)
    samples = [(torch.randint(-3000, 3000, (1, 5, 2)),) for _ in range(6)]
    exported = torch.export.export(Multiple(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=tosaic.QConfig.int16x8(), progress=False)
    lowered = tosaic.lower(quantized, target=target)
    comparison = tosaic.compare(quantized, lowered, samples[:2])
    assert comparison.ok, str(comparison)
    assert "slice_1" in {row.fx_name for row in comparison.rows}


def test_a_comparison_that_is_known_is_not_taken_for_the_operand_that_others_read() -> None:
    """The lowered program has no comparison of a value with itself; other calls read the cast operand."""

    class Compared(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            whole = x.chunk(1)[0]
            return torch.lt(x, whole), x.sum(1)

    torch.manual_seed(0)
    samples = [(torch.randn(3, 5),) for _ in range(4)]
    exported = torch.export.export(Compared(), samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP")
    comparison = tosaic.compare(quantized, lowered, samples[:2])
    assert comparison.ok, str(comparison)
    assert "lt" not in {row.fx_name for row in comparison.rows}
