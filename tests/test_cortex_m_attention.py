"""Attention on Cortex-M and Neutron: it stays whole, and its integers equal the kernels' integers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.backends.cortex_m.passes.cortex_m_pass_manager")

import torch.nn.functional as F  # noqa: E402
import tosaic  # noqa: E402
from cortex_m.networks import _Backend  # noqa: E402
from cortex_m.reference import called  # noqa: E402
from executorch.backends.cortex_m.ops.operators import quantized_mul_impl  # noqa: E402
from executorch.backends.cortex_m.passes.passes_utils import quantize_multiplier_aot  # noqa: E402
from torch import nn  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from tosaic.annotation import Fixed, Output  # noqa: E402
from tosaic.executorch import cortex_m_program  # noqa: E402
from tosaic.partitions.propose import planned_graph  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread_without_traces"),
]

CORTEX = "cortex-m55"
TOKENS, WIDTH, HEADS = 6, 16, 2
EVERY = tosaic.QConfig.int8(every_operator=True)
Scale = Callable[[torch.Tensor], torch.Tensor]


class Scores(nn.Module):
    """Attention of one head, written as products."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale
        self.qkv, self.out = nn.Linear(WIDTH, 24), nn.Linear(8, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(self.scale(q @ k.transpose(-1, -2)).softmax(-1) @ v)


class Sdpa(nn.Module):
    """Attention as one call of torch."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        mask, self.part = options.pop("attn_mask", None), options.pop("part", False)
        self.options = options
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).split(WIDTH, -1)
        q, k, v = (each.reshape(-1, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2) for each in parts)
        mask = self.mask[:TOKENS, :TOKENS] if self.part else self.mask
        found = F.scaled_dot_product_attention(q, k, v, mask, **self.options)
        return self.out(found.transpose(1, 2).reshape(-1, TOKENS, WIDTH))


class Grouped(nn.Module):
    """Two heads of queries that read one head of keys and values."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.q, self.kv, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).reshape(-1, TOKENS, HEADS, 8).transpose(1, 2)
        k, v = (each.reshape(-1, TOKENS, 1, 8).transpose(1, 2) for each in self.kv(x).split(8, -1))
        if self.how == "sdpa":
            found = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        else:
            if self.how == "repeat_interleave":
                k, v = k.repeat_interleave(HEADS, 1), v.repeat_interleave(HEADS, 1)
            else:
                k, v = (each.expand(-1, HEADS, TOKENS, 8) for each in (k, v))
            found = ((q @ k.transpose(-1, -2)) / math.sqrt(8)).softmax(-1) @ v
        return self.out(found.transpose(1, 2).reshape(-1, TOKENS, WIDTH))


class SelfAttention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


def _hidden(number: float) -> torch.Tensor:
    return torch.zeros(TOKENS, TOKENS).masked_fill(~_causal(), number)


def _causal() -> torch.Tensor:
    return torch.ones(TOKENS, TOKENS).tril().bool()


WHOLE: dict[str, Callable[[], nn.Module]] = {
    "no factor": lambda: Scores(lambda a: a),
    "quotient": lambda: Scores(lambda a: a / math.sqrt(8)),
    "product": lambda: Scores(lambda a: a * 8**-0.5),
    "number before the tensor": lambda: Scores(lambda a: 0.35 * a),
    "tensor with one number": lambda: Scores(lambda a: a * torch.tensor(0.35)),
    "tensor before the scores": lambda: Scores(lambda a: torch.tensor(0.35) * a),
    "uniform constant": lambda: Scores(lambda a: a * torch.full((TOKENS, TOKENS), 0.35)),
    "several factors": lambda: Scores(lambda a: a * 0.5 / 3),
    "sdpa": lambda: Sdpa(),
    "sdpa, scale": lambda: Sdpa(scale=0.2),
    "sdpa, causal": lambda: Sdpa(is_causal=True),
    "sdpa, mask of bools": lambda: Sdpa(attn_mask=_causal()),
    "sdpa, mask of floats": lambda: Sdpa(attn_mask=torch.linspace(-2, 2, 36).reshape(6, 6)),
    "sdpa, minus infinity": lambda: Sdpa(attn_mask=torch.zeros(6, 6).masked_fill(~_causal(), -math.inf)),
    "causal constant": lambda: Scores(lambda a: a * 8**-0.5 + _hidden(-math.inf)),
    "constant of one row": lambda: Scores(lambda a: _hidden(-1e9)[None, 3:4] + a / 3),
    "masked_fill": lambda: Scores(lambda a: (a / 3).masked_fill(~_causal(), -math.inf)),
    "masked_fill of a part": lambda: Scores(
        lambda a: a.masked_fill(torch.tril(torch.ones(9, 9))[:TOKENS, :TOKENS] == 0, -1e9)
    ),
    "where": lambda: Scores(lambda a: torch.where(_causal(), a, torch.tensor(-1e4))),
    "sdpa, part of a mask": lambda: Sdpa(attn_mask=torch.ones(9, 9).tril().bool(), part=True),
    "grouped sdpa": lambda: Grouped("sdpa"),
    "grouped, repeat_interleave": lambda: Grouped("repeat_interleave"),
    "grouped, expand": lambda: Grouped("expand"),
    "MultiheadAttention": lambda: SelfAttention(need_weights=False),
    "MultiheadAttention with weights": lambda: SelfAttention(need_weights=True),
}


def _samples(count: int = 8, seed: int = 0) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(1, TOKENS, WIDTH, generator=generator),) for _ in range(count)]


def _quantized(module: nn.Module, recipe: str = "cortex-m") -> tosaic.QuantizedProgram:
    samples = _samples()
    exported = torch.export.export(module.eval(), samples[0])
    return tosaic.quantize(exported, samples, target=recipe, progress=False)


def _run(made: Any, *args: torch.Tensor) -> np.ndarray:
    """Runs the Python operators of the backend."""
    with torch.no_grad():
        result = _Backend(made.edge.exported_program().module(check_guards=False)).run(*args)
    return np.asarray(result[0] if isinstance(result, tuple | list) else result)


def _made(module: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return module()


# ---- whole attention ----


@pytest.mark.parametrize("name", WHOLE)
def test_attention_is_kernels_of_integers_from_its_first_layer_to_its_last(name: str) -> None:
    """Before, a product by a number and a call of attention were float kernels between conversions."""
    samples = _samples()
    model = _made(WHOLE[name]).eval()
    result = tosaic.export_model(model, samples[0], recipe="cortex-m", samples=samples, verbose=0)
    assert len(result.lowered.partitions.groups) == 1
    assert all(group is not None for group in result.lowered.partitions.group_of)
    kernels = tosaic.registration.kernel_list(result.added["model.cortex_m.pte"])
    of_floats = {each.operator for each in kernels if "float32" in each.dtypes}
    assert of_floats == {"cortex_m::quantize_per_tensor.out", "cortex_m::dequantize_per_tensor.out"}
    calls = {each.operator: each.calls for each in kernels}
    assert calls["cortex_m::quantized_batch_matmul.out"] == 2
    assert calls["cortex_m::softmax.out"] == 1
    products = {
        "cortex_m::quantized_mul.out",
        "cortex_m::quantized_div.out",
        "aten::mul.out",
        "aten::div.out",
    }
    assert not products & calls.keys(), "a factor only changes a scale"
    assert next(each.db for each in result.checks if each.name == "accuracy") > 25


@pytest.mark.parametrize("name", WHOLE)
def test_the_integers_of_attention_equal_the_kernels_integers(name: str) -> None:
    quantized = _quantized(_made(WHOLE[name]))
    made = cortex_m_program(quantized)
    assert not made.refused
    assert not made.left
    split = tosaic.lower(quantized, unsupported="split", claimants=[CORTEX])
    for args in _samples(4, seed=1):
        result = _run(made, *args)
        assert len(np.unique(result)) > 20
        np.testing.assert_array_equal(result, np.asarray(split.run(*args)))


def test_parts_of_attention_keep_the_name_and_the_numbers_of_the_call() -> None:
    samples = _samples()
    exported = torch.export.export(_made(WHOLE["sdpa, causal"]).eval(), samples[0])
    before = str(exported.graph)
    quantized = tosaic.quantize(exported, samples, config=EVERY, progress=False)
    assert str(exported.graph) == before, "the caller's program is not changed"
    comparison = tosaic.compare(exported, quantized, samples[0])
    assert comparison.ok
    assert "scaled_dot_product_attention" in {node.name for node in quantized.graph.nodes}
    again = tosaic.from_exported(quantized.to_exported())
    np.testing.assert_array_equal(again.run(*samples[0]), quantized.run(*samples[0]))
    np.testing.assert_array_equal(
        tosaic.from_exported(quantized.to_exported(exported)).run(*samples[0]), quantized.run(*samples[0])
    )


def test_a_file_of_a_program_has_the_parts_of_its_attention(tmp_path: Path) -> None:
    samples = _samples()
    exported = torch.export.export(_made(WHOLE["sdpa"]).eval(), samples[0])
    torch.export.save(exported, tmp_path / "model.pt2")
    of_file = tosaic.quantize(str(tmp_path / "model.pt2"), samples, config=EVERY, progress=False)
    expected = tosaic.quantize(exported, samples, config=EVERY, progress=False)
    np.testing.assert_array_equal(of_file.run(*samples[0]), expected.run(*samples[0]))
    assert not any(node.op == "sdpa" for node in of_file.graph.nodes)


@pytest.mark.parametrize("name", ["sdpa", "sdpa, mask of floats", "grouped sdpa", "product", "quotient"])
def test_the_quantizer_of_torchao_gives_attention_the_same_form(name: str) -> None:
    samples = _samples()
    exported = torch.export.export(_made(WHOLE[name]).eval(), samples[0])
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(EVERY))
    for args in samples:
        prepared(*args)
    converted = torch.export.export(convert_pt2e(prepared), samples[0])
    graph = planned_graph(tosaic.from_exported(converted).graph)
    factors = [each for each in tosaic._core.constant_factors(graph) if each is not None]
    assert [keeps for _, _, keeps in factors] == [True]
    split = tosaic.lower(converted, unsupported="split", claimants=[CORTEX])
    names = Counter(
        node.op for node, of in zip(graph.nodes, split.partitions.group_of, strict=True) if of is None
    )
    assert not names - Counter({"linear": 2}), "only linear layers of this configuration may stay"
    with torch.no_grad():
        expected = exported.module()(*samples[0]).numpy()
    error = np.asarray(split.run(*samples[0])) - expected
    assert (error**2).sum() < 0.003 * (expected**2).sum()


def test_attention_whose_rows_may_be_hidden_as_a_whole_stays_one_call() -> None:
    """Torch returns zeros for such a row, and a softmax of integers would not."""

    class Masked(Sdpa):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            self.mask = mask
            return super().forward(x)

    rows = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    rows[2] = False
    samples = _samples()
    constant = tosaic.quantize(
        torch.export.export(_made(lambda: Sdpa(attn_mask=rows)).eval(), samples[0]),
        samples,
        config=EVERY,
        progress=False,
    )
    assert any(node.op == "sdpa" for node in constant.graph.nodes)
    given = [(*each, _causal()) for each in samples]
    module = _made(lambda: Masked())
    del module.mask
    computed = tosaic.quantize(
        torch.export.export(module.eval(), given[0]), given, config=EVERY, progress=False
    )
    assert any(node.op == "sdpa" for node in computed.graph.nodes)
    hidden = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    with torch.no_grad():
        expected = module(samples[0][0], hidden).numpy()
    np.testing.assert_allclose(computed.run(samples[0][0], hidden), expected, atol=0.02)


# ---- factors ----


class Times(nn.Module):
    def __init__(self, of: Scale) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.of(torch.tanh(x)))


FACTORS: dict[str, tuple[Scale, float]] = {
    "x * 0.35": (lambda x: x * 0.35, 0.35),
    "x * 3": (lambda x: x * 3, 3.0),
    "x / 7": (lambda x: x / 7, 1 / 7),
    "x * -0.35": (lambda x: x * -0.35, -0.35),
    "x / -0.2": (lambda x: x / -0.2, -5.0),
    "x * 1e-20": (lambda x: x * 1e-20, 1e-20),
    "x * 300": (lambda x: x * 300, 300.0),
}


def _all_integers() -> torch.Tensor:
    return torch.linspace(-4, 4, 1024).reshape(1, 1, 1024)


def _times(of: Scale, config: tosaic.QConfig = EVERY, rules: Any = ()) -> tosaic.QuantizedProgram:
    x = _all_integers()
    return tosaic.quantize(
        torch.export.export(Times(of).eval(), (x,)), [(x,)], config=config, rules=rules, progress=False
    )


def _product(graph: Any) -> Any:
    return next(node for node in graph.nodes if node.op in ("mul", "div"))


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("wide", [False, True])
def test_a_factor_changes_the_scale_and_no_integer(name: str, wide: bool) -> None:
    of, factor = FACTORS[name]
    config = tosaic.QConfig.int16x8(every_operator=True) if wide else EVERY
    product = _product(planned_graph(_times(of, config).graph))
    before, after = product.operands[0].qparams, product.results[0].qparams
    assert after.scales[0] == pytest.approx(before.scales[0] * abs(factor), rel=1e-6)
    mirrored = before.qmin + before.qmax - before.zero_points[0]
    assert after.zero_points[0] == (before.zero_points[0] if factor > 0 else mirrored)


@pytest.mark.parametrize("name", [*FACTORS, "a scale of its own", "a range that saturates", "zero point"])
def test_kernels_multiply_every_integer_by_a_factor_as_the_split_program_does(name: str) -> None:
    """A positive factor has no kernel; another product is a product of integers with 1 or -1."""
    fixed = {
        "a scale of its own": (lambda x: x * 0.35, Fixed("int8", 0.0123, 0, -128, 127)),
        "a range that saturates": (lambda x: x / -0.7, Fixed("int8", 0.0031, 11, -128, 127)),
        "zero point": (lambda x: x * 1.7, Fixed("int8", 1 / 77, -100, -128, 127)),
    }
    of, spec = fixed[name] if name in fixed else (FACTORS[name][0], None)

    def own_scale(plan: Any) -> None:
        call = next(each.name for each in plan.graph if each.target.startswith(("aten.mul", "aten.div")))
        plan[Output(call)] = spec

    quantized = _times(of, rules=() if spec is None else (own_scale,))
    made = cortex_m_program(quantized)
    assert not made.refused
    assert not made.left
    calls = Counter(called(made.edge.exported_program()))
    only_scale = spec is None and FACTORS[name][1] > 0
    assert calls["cortex_m.quantized_mul"] == (0 if only_scale else 1)
    assert made.why(_product(made.plan.graph).name).status == ("merged" if only_scale else "kernel")
    x = _all_integers()
    split = tosaic.lower(quantized, unsupported="split", claimants=[CORTEX])
    np.testing.assert_array_equal(_run(made, x), np.asarray(split.run(x)))
    product = _product(made.plan.graph)
    step = product.results[0].qparams.scales[0]
    with torch.no_grad():
        expected = np.asarray(quantized.to_exported().module(check_guards=False)(x))
    assert abs(np.asarray(split.run(x)) - expected).max() <= max(step, 1 / 256) * 1.01


def test_products_by_numbers_compute_as_the_kernel_does() -> None:
    """All integers, random scales and zero points: ExecuTorch's operator decides."""
    random = np.random.default_rng(0)
    integers = torch.arange(-128, 128, dtype=torch.int8).reshape(1, 256)
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor
    for _ in range(25):
        scale, own = (float(each) for each in np.exp(random.uniform(-6, 1, 2)))
        zeros = [int(each) for each in random.integers(-128, 128, 2)]
        number = float(np.exp(random.uniform(-2, 2)) * random.choice([-1, 1]))
        divides = bool(random.integers(2))

        class One(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = dequantize(x, scale, zeros[0], -128, 127, torch.int8)  # noqa: B023
                y = y / number if divides else y * number  # noqa: B023
                return quantize(y, own, zeros[1], -128, 127, torch.int8)  # noqa: B023

        program = torch.export.export(One(), (integers,))
        split = tosaic.lower(program, unsupported="split", claimants=[CORTEX])
        assert len(split.partitions.groups) == 1
        factor = float(np.float32(number))
        factor = 1 / factor if divides else factor
        multiplier, shift = quantize_multiplier_aot(scale * abs(factor) / own)
        sign = torch.full_like(integers, 1 if factor > 0 else -1)
        expected = quantized_mul_impl(integers, zeros[0], sign, 0, zeros[1], multiplier, shift)
        np.testing.assert_array_equal(np.asarray(split.run(integers)), expected.numpy())


def test_products_that_are_not_factors_are_computed_as_before() -> None:
    zero = _times(lambda x: x * 0.0)
    product = _product(planned_graph(zero.graph))
    assert product.results[0].qparams.scales[0] > 0
    split = tosaic.lower(zero, unsupported="split", claimants=[CORTEX])
    np.testing.assert_allclose(np.asarray(split.run(_all_integers())), 0.5, atol=1 / 256)
    verdicts = {each.op: each for each in tosaic.Claimant.named(CORTEX).supports(zero)}
    assert [each.rule for each in verdicts["mul"].reasons] == ["number"]
    graph = planned_graph(_times(lambda x: x * torch.linspace(1, 2, 1024)).graph)
    assert not any(each is not None for each in tosaic._core.constant_factors(graph))


def test_a_factor_that_is_an_input_is_a_tensor_with_a_scale() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(torch.tanh(x) * factor)

    args = _all_integers(), torch.tensor(0.35)
    quantized = tosaic.quantize(
        torch.export.export(Scaled(), args),
        [args, (args[0], torch.tensor(2.0))],
        config=EVERY,
        progress=False,
    )
    assert not any(tosaic._core.constant_factors(planned_graph(quantized.graph)))
    with torch.no_grad():
        for factor in (0.35, -0.1, 2.0):
            expected = Scaled()(args[0], torch.tensor(factor)).numpy()
            found = np.asarray(
                tosaic.lower(quantized, unsupported="split", claimants=[CORTEX]).run(
                    args[0], np.float32(factor)
                )
            )
            assert abs(found - expected).max() < (0.02 if factor > 0 else 0.1)


def test_integers_of_16_bits_have_no_kernel_for_a_factor_with_another_scale() -> None:
    wide = tosaic.QConfig.int16x8(every_operator=True)
    claimant = tosaic.Claimant.named(CORTEX)

    def own_scale(plan: Any) -> None:
        plan[Output("mul")] = Fixed("int16", 1e-4, 0, -32767, 32767, "per_tensor_symmetric")

    for rules, expected in (((), []), ((own_scale,), ["scale-only"])):
        verdicts = {each.op: each for each in claimant.supports(_times(lambda x: x * 0.35, wide, rules))}
        assert [each.rule for each in verdicts["mul"].reasons] == expected
    negative = {each.op: each for each in claimant.supports(_times(lambda x: x * -0.35, wide))}
    assert [each.rule for each in negative["mul"].reasons] == ["scale-only"]


# ---- permutations ----


def test_permutations_of_many_axes_have_the_axes_that_they_need() -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(x).reshape(1, 2, 3, 4, 4).permute(2, 0, 1, 4, 3)  # four axes: [2, 3, 4, 4]
            x = x.reshape(3, 2, 2, 2, 2, 2).permute(5, 3, 1, 0, 2, 4)  # six
            return torch.sigmoid(x)

    x = torch.randn(1, 96)
    made = cortex_m_program(
        tosaic.quantize(torch.export.export(Many(), (x,)), [(x,)], config=EVERY, progress=False)
    )
    assert not made.refused
    transposed = [
        node.meta["val"].dim()
        for node in made.edge.exported_program().graph.nodes
        if "cortex_m.transpose" in str(node.target)
    ]
    assert transposed == [4]
    assert Counter(called(made.edge.exported_program()))["aten.permute_copy"] == 1
    with torch.no_grad():
        np.testing.assert_allclose(_run(made, x), Many()(x).numpy(), atol=0.01)


# ---- Neutron ----


@pytest.mark.parametrize("name", ["product", "quotient", "sdpa", "sdpa, causal", "grouped sdpa"])
def test_neutron_takes_attention_whole(name: str) -> None:
    """Neutron's products of matrices take zero point 0: the recipe gives their operands symmetric scales."""
    samples = _samples()
    model = _made(WHOLE[name]).eval()
    result = tosaic.export_model(model, samples[0], recipe="neutron", samples=samples, verbose=0)
    plan = result.lowered.partitions
    assert len(plan.groups) == 1
    left = [node.op for node, group in zip(plan.graph.nodes, plan.group_of, strict=True) if group is None]
    assert left == ["quantize", "dequantize"]
