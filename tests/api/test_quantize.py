"""What `tosaic.quantize` guarantees: the qparams of torchao, whoever runs samples; errors; accuracy tools."""

from __future__ import annotations

from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from torchao.quantization.pt2e.observer import MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic.annotation import Edge, Inputs, MovingAverage, Output
from tosaic.calibration.accuracy import Gptq, SmoothQuant

MINMAX = tosaic.QConfig.int8(observer="minmax")
QUANTIZE = torch.ops.quantized_decomposed.quantize_per_tensor.default
SAMPLES = [
    (sample,) for sample in np.random.default_rng(5).standard_normal((21, 1, 3, 10, 10)).astype(np.float32)
]


class Net(nn.Module):
    """Convolutions, a residual sum, a concatenation, a function and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.third = nn.Conv2d(16, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        z = nn.functional.silu(self.second(y)) + y
        joined = torch.cat([z, y], 1)
        return self.head(self.third(joined).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def exported() -> Any:
    torch.manual_seed(7)
    return torch.export.export(Net().eval(), (torch.zeros(1, 3, 10, 10),))


@pytest.fixture(scope="module")
def quantized(exported) -> Any:
    return tosaic.quantize(exported, SAMPLES)


# ---- torchao's observers ----


def test_qparams_equal_torchaos_min_max_observers_on_the_same_activations(exported) -> None:
    quantized = tosaic.quantize(exported, SAMPLES, config=MINMAX)
    program = tosaic.from_exported(exported)
    traces = [
        {"x": sample[0], **program.session.trace(program.arrays(*sample))["values"]} for sample in SAMPLES
    ]
    compared = 0
    for group in quantized.plan.groups():
        spec, slot = group.spec, group.decided_by
        if not isinstance(spec, tosaic.annotation.Observed):
            continue
        found = quantized.qparams[slot]
        names = {each.node if isinstance(each, Output) else each.producer for each in group.slots}
        options = {"dtype": torch.int8, "quant_min": found.qmin, "quant_max": found.qmax}
        if spec.axis is not None:
            observer = PerChannelMinMaxObserver(
                ch_axis=spec.axis, qscheme=torch.per_channel_symmetric, **options
            )
            observer(torch.tensor(np.array(program.graph.value(names.pop()).constant.array)))
        else:
            observer = MinMaxObserver(qscheme=getattr(torch, str(spec.scheme)), **options)
            for trace in traces:
                for name in names:
                    observer(torch.from_numpy(np.array(trace[name])))
        scales, zero_points = observer.calculate_qparams()
        theirs = scales.numpy().astype(np.float32)
        assert np.abs(np.float32(found.scales) - theirs).max() <= np.spacing(theirs).max()
        assert list(found.zero_points) == zero_points.reshape(-1).tolist()
        compared += 1
    assert compared >= 10


def test_qparams_are_near_the_qparams_of_the_whole_flow_of_torchao(exported) -> None:
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(MINMAX))
    for sample in SAMPLES:
        prepared(torch.from_numpy(sample[0]))
    converted = convert_pt2e(prepared)
    ours = tosaic.quantize(exported, SAMPLES, config=MINMAX).to_exported().module()
    pairs = [
        [node.args[1:3] for node in module.graph.nodes if node.target == QUANTIZE]
        for module in (ours, converted)
    ]
    assert len(pairs[0]) == len(pairs[1]) >= 5
    for (scale, zero_point), (their_scale, their_zero_point) in zip(*pairs, strict=True):
        assert scale == pytest.approx(their_scale, rel=1e-4)
        assert abs(zero_point - their_zero_point) <= 1


# ---- who runs the samples, in which order ----


@pytest.mark.parametrize("config", [None, MINMAX], ids=["histograms", "ranges"])
def test_the_result_does_not_depend_on_workers_order_or_stacks(exported, config) -> None:
    alone = tosaic.quantize(exported, SAMPLES, config=config)
    stack = np.concatenate([sample[0] for sample in SAMPLES])
    others = [
        tosaic.quantize(exported, each, config=config) for each in (SAMPLES[::-1], stack, stack[:, None])
    ]
    for workers in (ThreadPoolExecutor(3), ProcessPoolExecutor(4)):
        with workers as executor:
            others.append(tosaic.quantize(exported, SAMPLES, config=config, executor=executor))
    for other in others:
        assert other.qparams == alone.qparams
        assert other.graph.text() == alone.graph.text()


def test_a_cluster_of_dask_gives_the_same_result(exported, quantized, tmp_path, monkeypatch) -> None:
    distributed = pytest.importorskip("dask.distributed")
    monkeypatch.chdir(tmp_path)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = tosaic.quantize(exported, SAMPLES, executor=client.get_executor())
    assert found.qparams == quantized.qparams


def test_a_moving_average_depends_on_the_order_of_samples_alone(exported) -> None:
    config = tosaic.QConfig.int8(observer=MovingAverage(0.1))
    alone = tosaic.quantize(exported, SAMPLES, config=config)
    with ProcessPoolExecutor(2) as executor:
        assert tosaic.quantize(exported, SAMPLES, config=config, executor=executor).qparams == alone.qparams
    assert tosaic.quantize(exported, SAMPLES[::-1], config=config).qparams != alone.qparams


def test_samples_of_a_program_with_states_run_from_the_initial_values_and_in_a_row() -> None:
    """If all samples ran from the initial values only, the range would clip the sum in a second call."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(1, 4))
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.linear(self.total)

    program = torch.export.export(Sum().eval(), (torch.zeros(1, 4),))
    samples = np.random.default_rng(1).random((6, 1, 4), np.float32)
    alone = tosaic.quantize(program, samples)
    (state,) = alone.states
    assert state.qparams.scale == pytest.approx(samples.sum(0).max() / 255, rel=1e-4)
    with ThreadPoolExecutor(3) as executor:
        assert tosaic.quantize(program, samples, executor=executor).qparams == alone.qparams
    initial = samples[0] * 0 - 3.0
    program.state_dict["total"].copy_(torch.from_numpy(initial))
    (state,) = tosaic.quantize(program, samples).states
    assert (state.qparams.qmin - state.qparams.zero_point) * state.qparams.scale <= -2.98


def test_a_program_from_a_file_is_quantized_without_torch_or_exported_program(exported, quantized, tmp_path):
    tosaic.from_exported(exported).save(tmp_path / "net.tosaic")
    found = tosaic.quantize(tmp_path / "net.tosaic", SAMPLES)
    assert found.qparams == quantized.qparams
    with pytest.raises(tosaic.InvalidGraph, match="no exported program to write the qparams into"):
        found.to_exported()
    assert found.to_exported(exported) is not None


def test_types_of_modules_select_calls_of_programs(exported, tmp_path) -> None:
    config = tosaic.QConfig.int8().set(None, type="torch.nn.modules.linear.Linear")
    tosaic.from_exported(exported).save(tmp_path / "net.tosaic")
    found = tosaic.quantize(tmp_path / "net.tosaic", SAMPLES[:2], config=config)
    assert not any(isinstance(slot, Edge) and slot.user == "linear" for slot in found.plan)


# ---- errors ----


def broken(value: float) -> list[tuple[Any]]:
    sample = SAMPLES[0][0].copy()
    sample[0, :, :5] = value
    return [*SAMPLES[:3], (sample,)]


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor(2)], ids=["alone", "threads"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, r"\[calibrate\] sample 3: tensor 'x' has numbers that are not finite.* 150 NaN"),
        (np.inf, r"\[calibrate\] sample 3: tensor 'x' has numbers that are not finite.* 150 infinities"),
        (
            3e38,
            r"sample 3: tensor 'add' has numbers that are not finite.*\(node 'add', test_quantize.py:\d+\)",
        ),
    ],
    ids=["NaN", "infinity", "overflow behind a node"],
)
def test_samples_that_are_not_finite_are_refused_by_index_and_node(
    exported, executor, value, message
) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        tosaic.quantize(exported, broken(value), executor=executor)


def test_equal_specs_that_share_implicitly_make_no_circle() -> None:
    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(6)

        def forward(self, x):
            return torch.cat([torch.tril(x), x, self.norm(torch.tanh(x)), x], 3)

    x = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    quantized = tosaic.quantize(torch.export.export(Repeated().eval(), (x,)), [(x,)], progress=False)
    assert tosaic.compare(quantized, tosaic.lower(quantized, target="TOSA-1.0+INT"), [(x,)]).ok


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([], {}, "there is nothing to run on"),
        ([(np.zeros((1, 3, 9, 10), np.float32),)], {}, "sample 0: input 'x' has the wrong shape"),
        (SAMPLES, {"config": tosaic.QConfig.int8().set(None, name="conv3d")}, "selects nothing.*conv2d"),
        (SAMPLES, {"config": tosaic.QConfig()}, "nothing of the program is quantized"),
        (SAMPLES, {"tools": ["gtpq"]}, "unknown value of 'tools'.*Did you mean 'gptq'"),
        (SAMPLES, {"tools": ["gptq", Gptq()]}, "'gptq' once"),
        (SAMPLES, {"executor": 4}, "unknown value of 'executor'"),
    ],
)
def test_wrong_arguments_are_refused(exported, samples, options, message) -> None:
    with pytest.raises((tosaic.InvalidGraph, tosaic.LayoutMismatch), match=message):
        tosaic.quantize(exported, samples, **options)


class Halved(nn.Module):
    """Computes with floats in the body of a loop alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def goes_on(i: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return i < 3

        def body(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, y * 0.5

        start = torch.zeros((), dtype=torch.int64)
        return torch._higher_order_ops.while_loop(goes_on, body, (start, x))[1]


def test_a_program_of_which_nothing_is_quantized_is_lowered_with_its_floats() -> None:
    x = torch.randn(2, 4)
    exported = torch.export.export(Halved(), (x,))
    with pytest.raises(tosaic.InvalidGraph, match="nothing of the program is quantized") as refused:
        tosaic.quantize(exported, [(x,)], progress=False)
    assert "bodies of control flow with floats" in str(refused.value)
    assert "tosaic.lower(program, unsupported='split', claimants=['TOSA-1.0+FP'])" in str(refused.value)
    assert "export_model(.., quantize=False, claimants=['TOSA-1.0+FP'])" in str(refused.value)
    program = tosaic.from_exported(exported)
    lowered = tosaic.lower(program, unsupported="split", claimants=["TOSA-1.0+FP"])
    np.testing.assert_array_equal(lowered.run(x), (x / 8).numpy())
    options = {"quantize": False, "claimants": ["TOSA-1.0+FP"], "verbose": 0, "samples": [(x,)]}
    result = tosaic.export_model(Halved(), (x,), recipe="tosa-int8", **options)
    np.testing.assert_array_equal(result.run(x), (x / 8).numpy())


def test_a_program_of_integers_is_refused_and_lowers_as_it_is() -> None:
    class Counted(nn.Module):
        def forward(self, x):
            return x * 3 + 1

    x = torch.arange(8, dtype=torch.int32)
    exported = torch.export.export(Counted(), (x,))
    with pytest.raises(tosaic.InvalidGraph, match=r"nothing of the program.*Lower it as it is"):
        tosaic.quantize(exported, [(x,)], progress=False)
    found = tosaic.lower(exported, target="TOSA-1.0+INT").run(x)
    np.testing.assert_array_equal(found, (x * 3 + 1).numpy())


@pytest.mark.parametrize("name", ["a", "b"])
def test_an_operand_of_a_quantized_node_stays_float_if_a_rule_says_so(name) -> None:
    class Product(nn.Module):
        def forward(self, a, b):
            return a * b

    sample = torch.linspace(-1, 1, 8), torch.linspace(0.1, 3, 8)
    exported = torch.export.export(Product(), sample)
    quantized = tosaic.quantize(exported, [sample], rules=[Inputs({name: None})], progress=False)
    other = "b" if name == "a" else "a"
    assert Output("mul") in quantized.qparams
    assert [slot for slot in quantized.qparams if isinstance(slot, Edge)] == [Edge(other, "mul")]
    error = np.abs(np.asarray(quantized.run(*sample)) - (sample[0] * sample[1]).numpy())
    assert 0 < error.max() < 0.05


def test_a_quantized_program_is_not_quantized_again(quantized) -> None:
    for program in (quantized, quantized.to_exported(), tosaic.lower(quantized, target="TOSA-1.0+INT")):
        with pytest.raises(tosaic.InvalidGraph, match="quantized or lowered already"):
            tosaic.quantize(program, SAMPLES)


def test_an_interrupt_stops_the_work_and_cancels_what_waits(exported) -> None:
    class Waiting(Executor):
        def __init__(self) -> None:
            self.futures: list[Any] = []

        def submit(self, function, /, *args, **kwargs):
            from concurrent.futures import Future

            self.futures.append(Future())
            return self.futures[-1]

    def stream():
        yield from SAMPLES[:8]
        raise KeyboardInterrupt

    executor = Waiting()
    with pytest.raises(KeyboardInterrupt):
        tosaic.quantize(exported, stream(), executor=executor)
    assert executor.futures
    assert all(future.cancelled() for future in executor.futures)


# ---- accuracy tools ----


def correlated(count: int, features: int = 64) -> list[tuple[Any]]:
    random = np.random.default_rng(11)
    mixing = random.standard_normal((12, features))
    rows = random.standard_normal((count, 4, 12)) @ mixing
    return [(row[None].astype(np.float32),) for row in rows]


@pytest.fixture(scope="module")
def layers() -> Any:
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.LayerNorm(64), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64, bias=False), nn.ReLU()
    )
    with torch.no_grad():
        net[0].weight.copy_(torch.exp(1.5 * torch.randn(64)))
    return torch.export.export(net.eval(), (torch.zeros(1, 4, 64),))


def sqnr_db(quantized: Any, samples: list[tuple[Any]]) -> float:
    pairs = [(quantized.source.run(*sample), quantized.run(*sample)) for sample in samples]
    error = sum(float(np.square(a - b).sum()) for a, b in pairs)
    return 10 * np.log10(sum(float(np.square(a).sum()) for a, _ in pairs) / error)


def test_gptq_of_weights_of_four_bits_gains_on_samples_that_it_has_not_seen(layers) -> None:
    config = tosaic.QConfig.int8(weight_bits=4)
    plain = tosaic.quantize(layers, correlated(16), config=config)
    better = tosaic.quantize(layers, correlated(16), config=config, tools=["gptq"])
    held_out = correlated(24)[16:]
    assert sqnr_db(better, held_out) > sqnr_db(plain, held_out) + 3
    (gain,) = better.gains
    assert (gain.tool, gain.changed) == (Gptq(), 2)
    assert gain.gain_db > 3
    assert "gptq" in better.report().text


def test_all_tools_work_in_their_order_and_torch_computes_the_same(layers) -> None:
    found = tosaic.quantize(
        layers, correlated(8), tools=["bias_correction", "gptq", SmoothQuant(0.7), "equalize"]
    )
    assert [gain.tool.name for gain in found.gains] == ["equalize", "smooth", "gptq", "bias_correction"]
    assert [gain.changed for gain in found.gains] == [1, 2, 2, 2]
    for before, after in zip(found.gains, found.gains[1:], strict=False):
        assert before.after_db == after.before_db
    sample = correlated(9)[-1]
    again = tosaic.from_exported(found.to_exported())
    np.testing.assert_array_equal(again.run(*sample), found.run(*sample))
    lowered = tosaic.lower(found, target="TOSA-1.0+INT")
    assert tosaic.compare(found, lowered, [sample]).ok


class ReadTwice(nn.Module):
    """A product with a weight, one with its transpose, and the weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return torch.relu(x @ self.w.T) @ self.w, self.w


class Computed(nn.Module):
    """A product with a weight that is computed from a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return x @ (self.w * 2).T


class Tied(nn.Module):
    """An embedding whose table is also the weight of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> Any:
        index = (x.abs() * 5).long().clamp(max=19)
        return nn.functional.linear(self.norm(self.table(index)), self.table.weight)


class CrossAttention(nn.Module):
    """Attention whose three weights are parts of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x * 0.5, x * 0.5)[0]


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        *((make, torch.float32) for make in (ReadTwice, Computed, Tied, CrossAttention, small_net)),
        *((small_net, dtype) for dtype in (torch.float16, torch.bfloat16)),
    ],
)
@pytest.mark.parametrize("tool", ["equalize", "smooth", "gptq", "bias_correction"])
def test_a_tool_changes_a_weight_only_for_its_call_also_in_torch(tool: str, make: Any, dtype: Any) -> None:
    torch.manual_seed(9)
    samples = [(torch.randn(1, 3, 4).to(dtype),) for _ in range(20)]
    exported = torch.export.export(make().to(dtype).eval(), samples[0])
    quantized = tosaic.quantize(exported, samples, tools=[tool], progress=False)
    again = tosaic.from_exported(quantized.to_exported())
    # Torch rounds halves in front of each quantize call, and what it returns.
    units = {torch.float32: 0.0, torch.float16: 1.5, torch.bfloat16: 3.0}
    unit = units[dtype] * quantized.outputs[0].qparams.scale
    for sample in samples:
        for found, wanted in zip(arrays_of(again, sample), arrays_of(quantized, sample), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=unit)


def arrays_of(program: Any, sample: Any) -> list[Any]:
    found = program.run(*sample)
    return [np.asarray(each, np.float32) for each in (found if isinstance(found, tuple | list) else [found])]


def test_tools_do_not_depend_on_workers_or_order(layers) -> None:
    samples, tools = correlated(10), ["gptq", "bias_correction"]
    alone = tosaic.quantize(layers, samples, tools=tools)
    with ThreadPoolExecutor(2) as executor:
        assert (
            tosaic.quantize(layers, samples, tools=tools, executor=executor).graph.text()
            == alone.graph.text()
        )
    assert tosaic.quantize(layers, samples[::-1], tools=tools).qparams == alone.qparams


def test_a_program_that_changes_its_input_changes_it_in_torch_too() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.add_(1))

    samples = [(torch.randn(2, 4).numpy(),) for _ in range(4)]
    exported = torch.export.export(InPlace().eval(), (torch.zeros(2, 4),))
    quantized = tosaic.quantize(exported, samples, progress=False)
    module = quantized.to_exported().module()
    for (x,) in samples:
        ours, theirs = torch.tensor(x), torch.tensor(x)
        found, wanted = quantized.run(ours), module(theirs)
        np.testing.assert_allclose(np.asarray(found), wanted.detach().numpy(), atol=1e-6)
        assert torch.equal(ours, theirs)
        assert float((ours - torch.tensor(x) - 1).abs().max()) < 0.05


# ---- sensitivity ----


def test_sensitivity_of_bfloat16() -> None:
    samples = [(torch.randn(2, 4).bfloat16(),) for _ in range(4)]
    exported = torch.export.export(small_net().bfloat16().eval(), samples[0])
    found = tosaic.sensitivity(exported, samples, progress=False)
    assert 20 < found.curve[0].db < found.curve[-1].db


@pytest.fixture(scope="module")
def sensitivity(exported) -> Any:
    return tosaic.sensitivity(exported, SAMPLES[:8], least_db=58.0, progress=False)


def test_sensitivity_finds_a_cheap_mix_that_is_as_good_as_asked(exported, sensitivity) -> None:
    first, last = sensitivity.curve[0], sensitivity.curve[-1]
    assert (first.cost, last.cost) == (1.0, 2.0)
    assert first.db < 58 < last.db
    mix = sensitivity.mix()
    assert mix.db >= 58
    assert 1 < mix.cost < 2
    assert sum(mix.shares.values()) == pytest.approx(1)
    quantized = tosaic.quantize(exported, SAMPLES[:8], config=mix.config)
    assert sqnr_db(quantized, SAMPLES[:4]) == pytest.approx(mix.db, abs=1)
    assert tosaic.lower(quantized, target="TOSA-1.0+INT+int16") is not None


def test_layers_of_a_sensitivity_have_the_multiply_accumulates_of_the_network(sensitivity) -> None:
    macs = {layer.name: layer.macs for layer in sensitivity.layers if layer.macs}
    assert macs == {
        "conv2d": 100 * 8 * 27,
        "conv2d_1": 100 * 8 * 9,
        "conv2d_2": 100 * 6 * 16,
        "linear": 24,
    }


def test_a_sensitivity_has_a_report_and_a_plot(sensitivity, tmp_path) -> None:
    assert all(len(line) <= 80 for line in sensitivity.report().text.splitlines())
    assert sensitivity.plot(tmp_path / "curve.svg") in (tmp_path / "curve.svg").read_text()
    assert "<svg" in sensitivity.report().html
    with pytest.raises(tosaic.QuantMismatch, match="no mix of int8, int16x8 with 500 dB"):
        sensitivity.mix(least_db=500)
    assert sensitivity.mix(most_cost=1.0).cost == 1.0


def test_a_mix_may_have_layers_of_floats(exported) -> None:
    found = tosaic.sensitivity(
        exported, SAMPLES[:4], levels=("int8", "int16x8", "float"), least_db=100, points=2, progress=False
    )
    assert found.curve[-1].db == np.inf
    assert found.mix().shares["float"] > 0


def test_a_range_that_ends_where_a_function_is_flat_has_the_least_error_behind_it() -> None:
    """Before, the range of a sigmoid's operand ended where the sigmoid is flat, which is not the best end."""
    torch.manual_seed(0)
    layer = nn.Linear(32, 64)
    with torch.no_grad():
        layer.weight *= 4
    module = nn.Sequential(layer, nn.Sigmoid(), nn.Linear(64, 8)).eval()
    samples = [(torch.randn(64, 32),) for _ in range(4)]
    quantized = tosaic.quantize(torch.export.export(module, samples[0]), samples, progress=False)
    qparams = quantized.qparams[Output("linear")]
    with torch.no_grad():
        numbers = torch.cat([layer(x).reshape(-1) for (x,) in samples])

    def error(scale: float, zero_point: int) -> float:
        integers = torch.clamp(torch.round(numbers / scale) + zero_point, -128, 127)
        rounded = (integers - zero_point) * scale
        return float((torch.sigmoid(numbers) - torch.sigmoid(rounded)).square().mean())

    least, greatest = float(numbers.min()), float(numbers.max())
    ranges = [
        (low, high)
        for low in np.linspace(least, least / 4, 16)
        for high in np.linspace(greatest / 4, greatest, 16)
    ]
    scales = [((high - low) / 255, low) for low, high in ranges]
    best = min(error(scale, round(-128 - low / scale)) for scale, low in scales)
    assert error(qparams.scale, qparams.zero_point) < 1.05 * best
