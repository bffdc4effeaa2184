"""`tosaic.quantize` of networks of unusual structure: masks, states, returned inputs, floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from function_module import FunctionModule
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic import QConfig
from tosaic.annotation import Output, Outputs
from tosaic.lowering.reference_model import run_reference_model

INFINITE, LOWEST = float("-inf"), torch.finfo(torch.float32).min
MASKED = (
    torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)),
    torch.arange(5).expand(2, 5, 5) > 3,
)


def sqnr_db(found: Any, exact: Any) -> float:
    wanted = exact.detach().numpy()
    return float(10 * np.log10(np.square(wanted).sum() / np.square(wanted - found).sum()))


def is_within_db(found: Any, wanted: Any, db: float) -> bool:
    return bool(np.square(wanted - found).sum() <= np.square(wanted).sum() * 10 ** (-db / 10))


def leaves(results: Any) -> list[Any]:
    return [np.asarray(each) for each in torch.utils._pytree.tree_leaves(results)]


def require_same_in_torch(quantized: Any, *args: Any, **kwargs: Any) -> None:
    """Torch computes the same numbers in three runs, in which states change."""
    exported = quantized.to_exported()
    again, module = tosaic.from_exported(exported), quantized.to_exported().module()
    quantized.reset_state()
    for _ in range(3):
        wanted = leaves(quantized.run(*args, **kwargs))
        with torch.no_grad():
            in_torch = leaves(module(*args, **kwargs))
        for found, other, right in zip(in_torch, leaves(again.run(*args, **kwargs)), wanted, strict=True):
            np.testing.assert_array_equal(found, right)
            np.testing.assert_array_equal(other, right)


# ---- masks ----


class Masked(nn.Module):
    """Attention that adds a mask in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.how = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), how

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        q, k = self.q(x), self.k(x).transpose(-1, -2)
        zeros = torch.zeros(hidden.shape)
        if self.how == "sum with infinity":
            scores = q @ k + zeros.masked_fill(hidden, INFINITE)
        elif self.how == "product with infinity":
            scores = torch.baddbmm(zeros.masked_fill(hidden, INFINITE), q, k)
        elif self.how == "product with the least float":
            scores = torch.baddbmm(hidden.float() * LOWEST, q, k)
        elif self.how == "scaled product":
            scores = torch.baddbmm(hidden.float() * -1e9, q, k, alpha=0.3)
        else:
            scores = torch.baddbmm(zeros[:, :1].masked_fill(hidden[:, :1], INFINITE).expand(-1, 5, -1), q, k)
        return scores.softmax(-1) @ self.v(x)


class Padded(nn.Module):
    """Attention of torch with a mask of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, key_padding_mask=hidden[:, 0])[0]


@pytest.mark.parametrize(
    "make",
    [
        *(
            pytest.param(lambda how=how: Masked(how), id=how)
            for how in (
                "sum with infinity",
                "product with infinity",
                "product with the least float",
                "scaled product",
                "expanded mask",
            )
        ),
        Padded,
    ],
)
def test_masks_cost_no_accuracy_and_lower_to_integers(make: Any) -> None:
    torch.manual_seed(1)
    network = make().eval()
    exported = torch.export.export(network, MASKED)
    quantized = tosaic.quantize(exported, [MASKED], progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    for program in (quantized, lowered):
        assert sqnr_db(program.run(*MASKED), network(*MASKED)) > 30
    require_same_in_torch(quantized, *MASKED)
    found = tosaic.sensitivity(exported, [MASKED], progress=False, points=1)
    assert found.curve[0].db > 30


CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False] * 5, [False, False, False, True, True]])


class Attends(nn.Module):
    """Attention of torch with a mask of positions, and one of padding."""

    def __init__(self, mask: torch.Tensor, *, weights: bool, padding: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mask, self.weights, self.padding = mask, weights, padding

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> Any:
        padding = hidden if self.padding else None
        found = self.attention(
            x, x, x, need_weights=self.weights, key_padding_mask=padding, attn_mask=self.mask
        )
        return found if self.weights else found[0]


class AddsMasks(nn.Module):
    """Scores, and several masks that are added first."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.how = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), how

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(2, 1, 5)
        padding = torch.where(hidden[:, None], INFINITE, zeros)
        if self.how == "two conditions":
            mask = padding + torch.where(hidden[:, None].roll(1, -1), INFINITE, zeros)
        elif self.how == "what is seen":
            mask = CAUSAL + torch.where(~hidden[:, None], zeros, torch.tensor(INFINITE))
        else:
            mask = (CAUSAL + padding) + torch.arange(5.0) * 0.1
        return (self.q(x) @ self.k(x).transpose(-1, -2) * 0.3 + mask).softmax(-1) @ self.v(x)


@pytest.mark.parametrize("door", ["quantize", "torchao"])
@pytest.mark.parametrize(
    "make",
    [
        *(
            pytest.param(
                lambda mask=mask, weights=weights, padding=padding: Attends(
                    mask, weights=weights, padding=padding
                ),
                id=f"{name}, {'weights' if weights else 'no weights'}, {'padding' if padding else 'alone'}",
            )
            for name, mask in (("floats", CAUSAL), ("bools", LATER))
            for weights in (False, True)
            for padding in (False, True)
        ),
        *(
            pytest.param(lambda how=how: AddsMasks(how), id=how)
            for how in ("two conditions", "what is seen", "masks and a bias")
        ),
    ],
)
def test_a_mask_of_positions_and_one_of_padding_are_added(make: Any, door: str) -> None:
    torch.manual_seed(1)
    network = make().eval()
    samples = [(torch.randn(2, 5, 8), PADDING.roll(at, 0)) for at in range(3)]
    exported = torch.export.export(network, samples[0])
    if door == "quantize":
        rounded = tosaic.quantize(exported, samples, progress=False)
    else:
        prepared = prepare_pt2e(exported.module(), tosaic.Quantizer())
        for sample in samples:
            prepared(*sample)
        rounded = tosaic.from_exported(torch.export.export(convert_pt2e(prepared), samples[0]))
    lowered = tosaic.lower(rounded, target="TOSA-1.0+INT")
    for sample in samples:
        with torch.no_grad():
            wanted = leaves(network(*sample))
        for found, same, exact in zip(
            leaves(lowered.run(*sample)), leaves(rounded.run(*sample)), wanted, strict=True
        ):
            assert is_within_db(found, exact, 28)
            assert is_within_db(found, same, 33)


# ---- channels ----


class Channels(nn.Module):
    """Some channels of two layers, added. Their weights have a scale for each channel."""

    def __init__(self, choose: Any, layer: Any) -> None:
        super().__init__()
        self.first, self.second, self.choose = layer(), layer(), choose
        with torch.no_grad():
            for each in (self.first, self.second):
                each.weight *= torch.logspace(-1, 1, 16).reshape(-1, *[1] * (each.weight.dim() - 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.choose(self.first(x), self.second(x))


@pytest.mark.parametrize("layer", [lambda: nn.Linear(16, 16), lambda: nn.Conv1d(16, 16, 1)])
@pytest.mark.parametrize(
    "choose",
    [
        pytest.param(lambda a, b: a[:, :8] + b[:, 8:], id="slices"),
        pytest.param(lambda a, b: a[:, ::2] - b[:, 1::2], id="steps"),
        pytest.param(lambda a, b: a.chunk(2, 1)[1] + b.split(8, 1)[0], id="parts"),
        pytest.param(lambda a, b: a.flip(1) + b, id="reversed"),
        pytest.param(lambda a, b: a.flip(1)[:, 3:9] + b[:, 10:], id="reversed slices"),
        pytest.param(lambda a, b: torch.cat([a, a], 1) + torch.cat([b, b], 1), id="repeated"),
    ],
)
def test_channels_keep_their_scales_where_they_are_chosen_and_added(choose: Any, layer: Any) -> None:
    torch.manual_seed(2)
    network = Channels(choose, layer).eval()
    shape = (4, 16) if isinstance(network.first, nn.Linear) else (4, 16, 6)
    samples = [(torch.randn(shape),) for _ in range(3)]
    quantized = tosaic.quantize(torch.export.export(network, samples[0]), samples, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    for sample in samples:
        with torch.no_grad():
            assert is_within_db(lowered.run(*sample), network(*sample).numpy(), 25)
        step = quantized.outputs[0].qparams.scale
        np.testing.assert_allclose(lowered.run(*sample), quantized.run(*sample), atol=1.01 * step)


# ---- sharing ----


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_concatenation_may_have_its_operands_in_any_order(order: tuple[int, ...]) -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 4)

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.cat([inputs[at] for at in order], 1))

    inputs = tuple(torch.randn(2, 4) * scale for scale in (1, 2, 3))
    exported = torch.export.export(Joined().eval(), inputs)
    quantized = tosaic.quantize(
        exported, [inputs], progress=False, config=tosaic.QConfig.int8(observer="minmax")
    )
    assert tosaic.compare(quantized, tosaic.lower(quantized, target="TOSA-1.0+INT"), [inputs]).ok
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(tosaic.QConfig.int8(observer="minmax")))
    prepared(*inputs)
    theirs = convert_pt2e(prepared)(*inputs).detach().numpy()
    np.testing.assert_allclose(quantized.run(*inputs), theirs, atol=1.01 * quantized.outputs[0].qparams.scale)


# ---- states ----


class Counter(nn.Module):
    """A state that depends on the input, and two that depend on their own values only."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.zeros(1, 4))
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64))
        self.register_buffer("power", torch.ones((), dtype=torch.int64), persistent=False)
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.tanh(self.linear(torch.cat([x, self.hidden], 1)))
        self.hidden.copy_(hidden)
        self.runs.add_(1)
        self.power.mul_(2)
        return hidden * 2, self.runs.clone(), self.power.clone()


def test_torch_has_the_states_of_the_program_and_the_callers_program_keeps_its_own() -> None:
    torch.manual_seed(3)
    x = torch.randn(1, 4)
    exported = torch.export.export(Counter().eval(), (x,))
    quantized = tosaic.quantize(exported, [(x,)] * 3, progress=False)
    require_same_in_torch(quantized, x)
    module = exported.module()
    assert (int(module.runs), int(module.power)) == (0, 1)


# ---- convolutions ----


def test_batch_norms_behind_transposed_convolutions_with_groups_reach_torch() -> None:
    torch.manual_seed(4)
    network = nn.Sequential(
        nn.ConvTranspose2d(4, 8, 3, stride=2, groups=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    with torch.no_grad():
        network[1].running_mean.normal_()
        network[1].running_var.uniform_(0.5, 2)
        network[1].weight.normal_()
    x = torch.randn(1, 4, 5, 5)
    quantized = tosaic.quantize(torch.export.export(network.eval(), (x,)), [(x,)], progress=False)
    assert sqnr_db(quantized.run(x), network(x)) > 25
    require_same_in_torch(quantized, x)


def test_a_bias_behind_an_activation_that_was_always_zero_is_right_in_torch_as_here(caplog: Any) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3), nn.Sigmoid()).eval()
    with torch.no_grad():
        network[0].bias.fill_(-100)  # the activation is always 0, so that its scale is tiny
        network[2].bias.copy_(torch.tensor([3.0, -3.0, 0.0]))
    x = torch.randn(2, 4)
    quantized = tosaic.quantize(torch.export.export(network, (x,)), [(x,)], progress=False)
    assert "beyond its integers" not in caplog.text
    np.testing.assert_allclose(quantized.run(x), network(x).detach(), atol=0.005)
    require_same_in_torch(quantized, x)


# ---- returned inputs, and what is left float ----


class Returned(nn.Module):
    """Returns its input, also as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        return {"y": self.linear(batch["x"]), "same": (batch["x"], batch["x"])}


def test_an_input_that_is_returned_has_the_scale_with_which_it_is_read() -> None:
    batch = {"x": torch.randn(2, 6)}
    quantized = tosaic.quantize(
        torch.export.export(Returned().eval(), (batch,)), [(batch,)] * 2, progress=False
    )
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    assert tosaic.compare(quantized, lowered, [(batch,)]).ok
    scale = quantized.inputs[0].qparams.scale
    same = quantized.run(batch)["same"][1]
    np.testing.assert_allclose(same, batch["x"].numpy(), atol=0.501 * scale)
    assert lowered.outputs[1].qparams == lowered.inputs[0].qparams
    assert not quantized.quantization.left_float
    require_same_in_torch(quantized, batch)


class Beside(nn.Module):
    """A linear layer, and next to it what a function returns of the input and of the layer."""

    def __init__(self, function: Any, *, linear: bool = True) -> None:
        super().__init__()
        self.linear, self.function, self.has_linear = nn.Linear(4, 4), function, linear
        self.register_buffer("table", torch.linspace(-1, 3, 9))

    def forward(self, *args: torch.Tensor) -> Any:
        found = self.function(self, *args)
        return (self.linear(args[0]), found) if self.has_linear else found


def beside(function: Any, *shapes: tuple[int, ...], linear: bool = True, **options: Any) -> Any:
    """Quantizes such a module; returns samples, the program, and torch's results of a sample."""
    generator = torch.Generator().manual_seed(0)
    samples = [tuple(torch.randn(each, generator=generator) for each in shapes) for _ in range(4)]
    torch.manual_seed(0)
    exported = torch.export.export(Beside(function, linear=linear).eval(), samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False, **options)
    with torch.no_grad():
        return samples, quantized, leaves(exported.module()(*samples[0]))


def require_integers(quantized: Any, x: Any, target: str = "TOSA-1.0+INT") -> Any:
    lowered = tosaic.lower(quantized, target=target)
    assert tosaic.compare(quantized, lowered, [x]).ok
    found = leaves(lowered.run(*x))
    for one, other in zip(found, leaves(run_reference_model(lowered, *x).outputs), strict=True):
        np.testing.assert_array_equal(one, other)
    require_same_in_torch(quantized, *x)
    return lowered


MOVED = {
    "a view": lambda _, x: x.reshape(-1),
    "a chain": lambda _, x: x.T.reshape(2, 4).flip(0)[:, 1:],
    "parts": lambda _, x: x.split(2, 1),
    "padded": lambda _, x: nn.functional.pad(x, (1, 1)),
    "by index": lambda _, x: x[torch.tensor([1, 0, 1])],
    "the input": lambda _, x: x,
    "several": lambda _, x: (x, x.T, x),
}


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("how", MOVED)
def test_an_input_that_is_returned_moved_has_the_scale_of_the_input(how: str, *, linear: bool) -> None:
    samples, quantized, wanted = beside(MOVED[how], (2, 4), linear=linear)
    lowered = require_integers(quantized, samples[0])
    of_input = quantized.inputs[0].qparams
    assert lowered.inputs[0].qparams == of_input
    first = 1 if linear else 0
    for port, found, exact in list(
        zip(lowered.outputs, leaves(lowered.run(*samples[0])), wanted, strict=True)
    )[first:]:
        assert port.qparams == of_input
        np.testing.assert_allclose(found, exact, atol=0.501 * of_input.scale)
    assert not quantized.quantization.left_float


def test_an_input_that_is_returned_bounded_has_integers_of_what_is_returned() -> None:
    for function in (
        lambda _, x: torch.relu(x),
        lambda _, x: x.clamp(-0.5, 0.5),
        lambda _, x: nn.functional.relu6(x.reshape(4, 2)).T,
        lambda _, x: nn.functional.max_pool1d(x, 2),
        lambda _, x: x.amax(1),
    ):
        samples, shared, wanted = beside(function, (2, 4))
        lowered = require_integers(shared, samples[0])
        assert lowered.outputs[1].qparams == shared.inputs[0].qparams
        np.testing.assert_allclose(
            leaves(shared.run(*samples[0]))[1], wanted[1], atol=0.501 * shared.inputs[0].qparams.scale
        )
    # Nothing else reads the input, so its range is the range of the result and a quarter of it as a margin.
    samples, own, wanted = beside(lambda _, x: x.clamp(-0.5, 0.5), (2, 4), linear=False)
    lowered = require_integers(own, samples[0])
    assert lowered.outputs[0].qparams == own.inputs[0].qparams
    assert own.inputs[0].qparams.scale < 1.26 / 255
    np.testing.assert_allclose(leaves(own.run(*samples[0]))[0], wanted[0], atol=0.501 * 1.26 / 255)


def test_an_input_that_is_returned_only_has_a_scale_of_its_own() -> None:
    for function in (lambda _, x, y: y, lambda _, x, y: y.T, lambda _, x, y: torch.relu(y)):
        samples, quantized, wanted = beside(function, (2, 4), (3, 5))
        lowered = require_integers(quantized, samples[0])
        assert [port.qparams for port in lowered.inputs] == [port.qparams for port in quantized.inputs]
        scale = quantized.inputs[1].qparams.scale
        assert scale != quantized.inputs[0].qparams.scale
        np.testing.assert_allclose(leaves(quantized.run(*samples[0]))[1], wanted[1], atol=0.501 * scale)


def test_constants_that_are_returned_are_rounded() -> None:
    for function in (
        lambda module, _: module.table,
        lambda module, _: module.linear.weight,
        lambda module, _: module.table.reshape(3, 3) * 2,
        lambda _, x: torch.arange(5.0),
    ):
        samples, quantized, wanted = beside(function, (2, 4))
        require_integers(quantized, samples[0])
        found = leaves(quantized.run(*samples[0]))[1]
        np.testing.assert_allclose(found, wanted[1], atol=0.51 * np.ptp([*wanted[1].ravel(), 0]) / 255)


def test_constants_that_have_infinities_stay_float_where_they_are_returned() -> None:
    mask = torch.tensor([0.0, INFINITE])
    samples, quantized, wanted = beside(lambda _, x: mask, (2, 4))
    np.testing.assert_array_equal(leaves(quantized.run(*samples[0]))[1], wanted[1])


def test_what_is_returned_follows_the_configuration() -> None:
    wide, target = QConfig.int16x8(), "TOSA-1.0+INT+int16"
    for function in (lambda _, x: x, lambda _, x: torch.relu(x.reshape(-1))):
        samples, quantized, _ = beside(function, (2, 4), config=wide)
        require_integers(quantized, samples[0], target)
        assert quantized.outputs[1].qparams.dtype == "i16"
        samples, quantized, _ = beside(function, (2, 4), config=QConfig.int8(every_operator=True))
        require_integers(quantized, samples[0])
        assert quantized.outputs[1].qparams == quantized.inputs[0].qparams
        # The linear layer needs floats, so that the input is not rounded next to it.
        floats = QConfig.int8().set(None, type="Linear")
        with pytest.raises(tosaic.InvalidGraph, match="nothing of the program is quantized"):
            beside(function, (2, 4), config=floats)
    only = QConfig().set(QConfig.int8(), type="Linear")
    samples, quantized, _ = beside(lambda _, x: x, (2, 4), config=only)
    require_integers(quantized, samples[0])
    without = QConfig.int8().set(None, op="clamp")
    samples, quantized, wanted = beside(lambda _, x: x.clamp(-1, 1), (2, 4), config=without)
    np.testing.assert_array_equal(leaves(quantized.run(*samples[0]))[1], wanted[1])


def test_a_rule_leaves_an_input_float_where_it_is_returned() -> None:
    rules = [Outputs({1: None})]
    samples, quantized, wanted = beside(lambda _, x, y: y, (2, 4), (3, 5), rules=rules)
    assert [row.node for row in quantized.quantization.left_float] == ["args_1"]
    np.testing.assert_array_equal(leaves(quantized.run(*samples[0]))[1], wanted[1])


class Remembers(nn.Module):
    """Stores its input, and returns what it stored before."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(4, 4), how
        self.register_buffer("held", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> Any:
        before = self.held.clone()
        self.held.copy_(torch.relu(x) if "bounded" in self.how else x)
        if "unread" in self.how:
            return self.linear(x)
        if "both" in self.how:
            return self.linear(x), before, x
        return before.reshape(-1)


@pytest.mark.parametrize("how", ["unread", "moved", "both", "unread, bounded", "bounded", "both, bounded"])
def test_an_input_that_is_stored_has_the_scale_of_the_state(how: str) -> None:
    samples = [(torch.randn(2, 4, generator=torch.Generator().manual_seed(i)),) for i in range(4)]
    exported = torch.export.export(Remembers(how).eval(), samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    assert tosaic.compare(quantized, lowered, samples).ok
    require_same_in_torch(quantized, *samples[0])
    model = torch.export.export(Remembers(how).eval(), samples[0]).module()
    prepared = prepare_pt2e(model, tosaic.Quantizer())
    for sample in samples:
        prepared(*sample)
    converted = torch.export.export(convert_pt2e(prepared), samples[0])
    assert tosaic.compare(converted, tosaic.lower(converted, target="TOSA-1.0+INT"), samples).ok
    module = exported.module()  # writes to the states of the exported program
    with torch.no_grad():
        for sample in samples:
            for found, wanted in zip(leaves(lowered.run(*sample)), leaves(module(*sample)), strict=True):
                np.testing.assert_allclose(found, wanted, atol=0.03)


def test_results_that_are_fused_are_not_left_float() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 6),
        nn.Unflatten(1, (2, 3)),
    )
    x = torch.randn(1, 3, 6, 6)
    exported = torch.export.export(network.eval(), (x,))
    whole = tosaic.quantize(exported, [(x,)], progress=False)
    assert whole.quantization.left_float == ()
    reasons = {row.node: row.reason for row in whole.quantization.not_rounded}
    assert reasons["conv2d"] == "the activation after it bounds it"
    config = tosaic.QConfig.int8().set(None, type="Linear")
    quantized = tosaic.quantize(exported, [(x,)], config=config, progress=False)
    left = {row.node: row.reason for row in quantized.quantization.left_float}
    assert list(left.values()) == ["it is not selected", "it moves numbers that stay float"]
    assert next(iter(left)) == "linear"
    report = quantized.report()
    assert "left float" in report.text
    assert [row["node"] for row in report.data["left_float"]] == list(left)


# ---- what is known before samples are run ----


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.var(x.sum(), dim=[], correction=0),
        lambda x: torch.std(x.sum(), dim=[], correction=0.5),
        lambda x: x[:, :1].std(1, correction=0),
        lambda x: torch.std_mean(x[:, :1], 1, correction=-1),
        lambda x: torch.var_mean(x[:1], 0, correction=0, keepdim=True),
        lambda x: torch.add(x, torch.exp(x), alpha=0),
        lambda x: torch.sub(x, torch.exp(x), alpha=0),
    ],
)
@pytest.mark.parametrize("make", [QConfig.int8, QConfig.int16x8])
def test_results_that_do_not_depend_on_a_quantized_operand_are_integers(function: Any, make: Any) -> None:
    samples, quantized, wanted = beside(
        lambda module, x: function(module.linear(x)), (2, 4), config=make(), linear=False
    )
    lowered = require_integers(quantized, samples[0], "TOSA-1.0+INT+int16")
    for found, exact in zip(leaves(lowered.run(*samples[0])), wanted, strict=True):
        np.testing.assert_allclose(found, exact, atol=0.02)


@pytest.mark.parametrize("name", ["kron", "cumprod"])
def test_a_call_of_several_nodes_behind_a_view_has_a_scale_of_its_own(name: str) -> None:
    """The view before the call and a view in its expansion are not taken for one view."""

    def call(module: Any, x: torch.Tensor) -> torch.Tensor:
        y = module.linear(x).reshape(1, 2, 1, 2, 1, 2)
        return y.cumprod(1) if name == "cumprod" else torch.kron(y[0, :, 0, :, 0], x.reshape(2, 2, 2))

    samples, quantized, wanted = beside(call, (2, 4), linear=False)
    require_integers(quantized, samples[0])
    assert quantized.plan[Output(name)] is not None
    assert quantized.outputs[0].qparams.dtype == "i8"
    assert sqnr_db(leaves(quantized.run(*samples[0]))[0], torch.tensor(wanted[0])) > 25


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # a warning of torch.export
@pytest.mark.parametrize("cls", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_of_one_step_are_quantized(cls: Any) -> None:
    x = torch.randn(1, 2, 4)
    exported = torch.export.export(cls(4, 4, 2, bidirectional=True).eval(), (x,))
    quantized = tosaic.quantize(exported, [(x,)] * 2, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    assert tosaic.compare(quantized, lowered, [(x,)]).ok


# ---- sensitivity ----


def test_a_layer_without_anything_to_round_loses_nothing() -> None:
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, xs: list[torch.Tensor], *, pair: tuple[torch.Tensor, torch.Tensor]) -> Any:
            return [self.linear(x) for x in xs], self.linear(pair[0]) @ pair[1].T

    sample = {"xs": [torch.randn(2, 4), torch.randn(3, 4)], "pair": (torch.randn(2, 4), torch.randn(5, 4))}
    exported = torch.export.export(Lists().eval(), (sample["xs"],), {"pair": sample["pair"]})
    found = tosaic.sensitivity(
        exported, [sample], levels=("int8", "int16x8", "float"), points=2, progress=False
    )
    assert np.inf in {db for layer in found.layers for db in layer.db}
    assert found.curve[-1].db == np.inf


# ---- integers between all operators ----


class Residual(nn.Module):
    """A residual of convolutions, a norm, an activation of two operators, and a residual of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.wide, self.narrow, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convs(x)
        x = torch.relu(self.second(x) + x).mean((2, 3))
        return x + self.narrow(nn.functional.silu(self.wide(self.norm(x))))


def residual() -> tuple[Any, list[Any], torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    samples = [(torch.randn(2, 3, 10, 10, generator=generator),) for _ in range(4)]
    torch.manual_seed(0)
    return torch.export.export(Residual().eval(), samples[0]), samples[:3], samples[3][0]


def places(program: Any, claimant: str) -> list[tuple[str, bool]]:
    """Returns the operator of each node, and whether the claimant takes the node."""
    plan = tosaic.partition(program, [claimant])
    return [(node.op, group is not None) for node, group in zip(plan.graph.nodes, plan.group_of, strict=True)]


@pytest.mark.parametrize("make", [QConfig.int8, QConfig.uint8, QConfig.int16x8])
def test_integers_are_between_all_operators(make: Any) -> None:
    exported, samples, x = residual()
    config = make(every_operator=True)
    quantized = tosaic.quantize(exported, samples, config=config, progress=False)
    floats = [
        node.name
        for node in quantized.graph.nodes
        if node.op not in ("quantize", "dequantize") and node.results[0].dtype == "f32"
    ]
    assert floats == []
    with torch.no_grad():
        assert sqnr_db(quantized.run(x), exported.module()(x)) > 20
    require_same_in_torch(quantized, x)
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(config))
    for sample in samples:
        prepared(*sample)
    by_torchao = tosaic.from_exported(torch.export.export(convert_pt2e(prepared), samples[0]))
    assert places(by_torchao, "neutron") == places(quantized, "neutron")


@pytest.mark.parametrize("claimant", ["cortex-m55", "neutron"])
def test_kernels_of_integers_take_more_with_integers_between_all_operators(claimant: str) -> None:
    exported, samples, x = residual()
    whole = {}
    for every, config in {False: QConfig.precise(), True: QConfig.int8(every_operator=True)}.items():
        quantized = tosaic.quantize(exported, samples, config=config, progress=False)
        split = tosaic.lower(quantized, unsupported="split", claimants=[claimant])
        outside = {op for op, taken in places(quantized, claimant) if not taken}
        whole[every] = not outside & {"conv", "add"}
        with torch.no_grad():
            assert sqnr_db(split.run(x), exported.module()(x)) > 20
    assert whole == {False: False, True: True}


def test_the_option_is_checked_and_stays_with_selections() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="the option 'every_operator'"):
        QConfig.int8(every_operator=1)  # type: ignore[arg-type]
    config = QConfig.int8(every_operator=True).set(QConfig.int16x8(), op="softmax")
    assert config.every_operator
    assert config != QConfig.int8().set(QConfig.int16x8(), op="softmax")


class CausalAttention(nn.Module):
    """Attention whose mask is added, filled in, selected, or an operand."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv = how, nn.Linear(8, 24)
        self.register_buffer("mask", torch.full((5, 5), -1e9 if how == "large" else INFINITE).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.how == "operand":
            return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        scores, hidden = q @ k.transpose(-1, -2) * 8**-0.5, self.mask < 0
        if self.how == "filled":
            scores = scores.masked_fill(hidden, INFINITE)
        elif self.how == "selected":
            scores = torch.where(hidden, LOWEST, scores)
        else:
            scores = scores + self.mask
        return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("claimant", ["cortex-m55", "neutron", "ethos-u55-128"])
@pytest.mark.parametrize("how", ["operand", "added", "large", "filled", "selected"])
def test_masks_stay_exact_with_integers_between_all_operators(how: str, claimant: str) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 5, 8),) for _ in range(4)]
    exported = torch.export.export(CausalAttention(how).eval(), samples[0])
    config = QConfig.int8(every_operator=True)
    quantized = tosaic.quantize(exported, samples, config=config, progress=False)
    split = tosaic.lower(quantized, unsupported="split", claimants=[claimant])
    with torch.no_grad():
        assert sqnr_db(split.run(*samples[1]), exported.module()(*samples[1])) > 25


def test_inputs_have_scales_of_their_own_beside_checks_of_torch() -> None:
    """An exported module begins with a call that checks all inputs, and computes nothing."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x), self.b(y)

    torch.manual_seed(0)
    samples = [(torch.randn(1, 4), 1000 * torch.randn(1, 4)) for _ in range(4)]
    exported = torch.export.export(Two().eval(), samples[0])
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(QConfig.int8(every_operator=True)))
    for sample in samples:
        prepared(*sample)
    program = tosaic.from_exported(torch.export.export(convert_pt2e(prepared), samples[0]))
    with torch.no_grad():
        for found, exact in zip(program.run(*samples[0]), exported.module()(*samples[0]), strict=True):
            assert sqnr_db(found, exact) > 25


@pytest.mark.parametrize("conv", [nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(3, 4, 3)])
def test_a_batch_norm_whose_result_is_not_used(conv: nn.Module) -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.used = conv, nn.BatchNorm2d(4), nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.norm(self.conv(x)).relu()
            return self.used(x)

    x = torch.randn(1, 3, 8, 8)
    module = Unused().eval()
    quantized = tosaic.quantize(torch.export.export(module, (x,)), [(x,)], progress=False).to_exported()
    with torch.no_grad():
        expected, found = module(x), quantized.module()(x)
    assert (found - expected).abs().max() <= 0.05 * expected.abs().max()


# ---- writes into parts, as ep.run_decompositions() expresses them ----


class Written(nn.Module):
    """A write into a part: of no element, of all, of all by a constant, or of all of a result."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "result":
            row = x.amax(0, keepdim=True)  # all of it is overwritten, and nobody else reads it
            row[0:, :, -1] = 0.25
            return row + 1
        x = x * 1.5
        if self.how == "nothing":
            x[1:1] = x[2:2] * 2
        elif self.how == "everything":
            x[0:4] = x * 2
        else:
            x[0:, 0, 1] = 0.25
        return x + 1


@pytest.mark.filterwarnings("ignore")  # run_decompositions warns about torch's own code
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("how", ["nothing", "everything", "constant", "result"])
def test_a_write_of_nothing_or_of_everything_has_the_integers_of_its_operand(how: str, bits: int) -> None:
    """The expansion of such a write is one of its operands, which has another name and may be a constant."""
    random = torch.Generator().manual_seed(0)
    shape = {"constant": (1, 1, 2), "result": (4, 3, 1)}.get(how, (4, 3, 2))
    samples = [(torch.randn(shape, generator=random),) for _ in range(4)]
    exported = torch.export.export(Written(how), samples[0]).run_decompositions({})
    config, target = (QConfig.int8(), "") if bits == 8 else (QConfig.int16x8(), "+int16")
    quantized = tosaic.quantize(exported, samples, config=config, progress=False)
    lowered = tosaic.lower(quantized, target=f"TOSA-1.0+INT{target}")
    assert tosaic.compare(quantized, lowered, samples).ok
    wanted = exported.module()(samples[0][0].clone())
    assert sqnr_db(lowered.run(*samples[0]), wanted) > 30


def of_best(y: torch.Tensor) -> torch.Tensor:
    """Hides all but the ten best of each row, as samplers of tokens do."""
    return y.masked_fill(y < y.topk(10)[0][:, -1:], INFINITE)


SORTED = {
    "a sort of what is hidden": lambda y: of_best(y).sort(descending=True)[0].softmax(-1),
    "a sort of quotients": lambda y: (of_best(y) / 0.8).sort(descending=True)[0].softmax(-1),
    "a sort of both": lambda y: (lambda v, i: (v.softmax(-1), i))(*(of_best(y) / 0.8).sort(descending=True)),
    "msort": lambda y: torch.msort(of_best(y).T).T.softmax(-1),
    "a sort": lambda y: y.sort(),
    "the best of what is hidden": lambda y: of_best(y).topk(3),
    "the best": lambda y: y.topk(3),
    "the least": lambda y: y.topk(3, largest=False),
}


class OfLinear(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.linear, self.function = nn.Linear(8, 16), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


@pytest.mark.parametrize("every", [False, True], ids=["by unit", "by operator"])
@pytest.mark.parametrize("name", SORTED)
def test_sorted_numbers_are_integers_as_their_operand_is_through_both_doors(name: str, every: bool) -> None:
    config = QConfig.int8(every_operator=every)
    module = OfLinear(SORTED[name]).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    samples = [(torch.randn(4, 8, generator=generator),) for _ in range(16)]
    exported = torch.export.export(module, samples[0])
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(config))
    for sample in samples:
        prepared(*sample)
    for quantized in (
        tosaic.quantize(exported, samples, config=config, progress=False),
        tosaic.from_exported(torch.export.export(convert_pt2e(prepared), samples[0])),
    ):
        lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
        assert not any(value.dtype == "f32" for value in lowered.graph.values)
        for sample in samples[:4]:
            for found, wanted, exact in zip(
                *map(leaves, (lowered.run(*sample), quantized.run(*sample), module(*sample))), strict=True
            ):
                assert np.abs(found - wanted).max() <= 1.01 / 256
                if found.dtype == np.float32:
                    assert is_within_db(found, exact, 25)
        assert tosaic.compare(quantized, lowered, samples[0]).ok
        assert run_reference_model(lowered, *samples[0]).ok


def test_the_best_are_compared_with_all_in_their_own_integers() -> None:
    """A threshold with another scale might exceed the number that it equals."""
    module = OfLinear(lambda y: y >= y.topk(4)[0][:, -1:]).eval()
    samples = [(torch.randn(4, 8, generator=torch.Generator().manual_seed(i)),) for i in range(16)]
    quantized = tosaic.quantize(torch.export.export(module, samples[0]), samples, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    for sample in samples:
        assert lowered.run(*sample).sum(-1).min() >= 4


def test_numbers_of_a_tuple_are_whole_only_if_they_were_before() -> None:
    """Whole numbers get a power of two as their scale, and other numbers do not."""
    samples = [(torch.randn(4, 8, generator=torch.Generator().manual_seed(i)),) for i in range(16)]
    for function, is_power in (
        (lambda y: of_best(y).topk(3), False),
        (lambda y: of_best(torch.round(8 * y)).topk(3), True),
    ):
        module = OfLinear(function).eval()
        quantized = tosaic.quantize(torch.export.export(module, samples[0]), samples, progress=False)
        exponent = np.log2(tosaic.lower(quantized, target="TOSA-1.0+INT").outputs[0].qparams.scale)
        assert (exponent == np.rint(exponent)) == is_power


SIMILARITIES = {
    "rows": (lambda x, y: torch.cosine_similarity(x, y, -1), (3, 4, 16)),
    "channels": (lambda x, y: torch.cosine_similarity(x, y, 1), (2, 16, 3)),
    "all pairs of rows": (lambda x, y: torch.cosine_similarity(x[:, :, None], y[:, None], -1), (2, 4, 16)),
    "rows of another rank": (lambda x, y: torch.cosine_similarity(x, y[0, :1], -1), (3, 4, 16)),
    "a sum": (lambda x, y: (1 - torch.cosine_similarity(x[:, :, None], y[:, None], -1)).mean(), (2, 4, 16)),
}


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarities_are_integers_through_both_doors(name: str, bits: int) -> None:
    function, shape = SIMILARITIES[name]
    generator = torch.Generator().manual_seed(3)
    samples = [tuple(torch.randn(shape, generator=generator) for _ in range(2)) for _ in range(8)]
    exported = torch.export.export(FunctionModule(function).eval(), samples[0])
    config = QConfig.int8() if bits == 8 else QConfig.int16x8()
    target = "TOSA-1.0+INT" if bits == 8 else "TOSA-1.0+INT+int16"
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(config))
    for sample in samples:
        prepared(*sample)
    for quantized in (
        tosaic.quantize(exported, samples, config=config, progress=False),
        torch.export.export(convert_pt2e(prepared), samples[0]),
    ):
        lowered = tosaic.lower(quantized, target=target)
        assert not any(value.dtype == "f32" for value in lowered.graph.values)
        assert tosaic.compare(quantized, lowered, samples[0]).ok
        assert sqnr_db(lowered.run(*samples[0]), function(*samples[0])) > (25 if bits == 8 else 60)
        run = run_reference_model(lowered, *samples[0])
        assert run.ok
        np.testing.assert_array_equal(run.outputs, lowered.run(*samples[0]))


def with_similarity(*others: Any) -> Any:
    return lambda x, y: (torch.cosine_similarity(x, y, -1), *(other(x) for other in others))


BESIDE_SIMILARITIES = {
    "a normalized row": with_similarity(lambda x: nn.functional.normalize(x, dim=-1)),
    "a length": with_similarity(lambda x: x.norm(dim=-1, keepdim=True)),
    "both": with_similarity(
        lambda x: nn.functional.normalize(x, dim=-1), lambda x: 2 * x.norm(dim=-1, keepdim=True)
    ),
}


@pytest.mark.parametrize("name", BESIDE_SIMILARITIES)
def test_a_length_that_others_read_too_leaves_a_similarity_as_exact_as_alone(name: str) -> None:
    function = BESIDE_SIMILARITIES[name]
    generator = torch.Generator().manual_seed(5)
    samples = [tuple(torch.randn(3, 16, generator=generator) for _ in range(2)) for _ in range(8)]
    alone = torch.export.export(FunctionModule(with_similarity()).eval(), samples[0])
    wanted = tosaic.lower(tosaic.quantize(alone, samples, progress=False), target="TOSA-1.0+INT")
    exported = torch.export.export(FunctionModule(function).eval(), samples[0])
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer())
    for sample in samples:
        prepared(*sample)
    for quantized in (
        tosaic.quantize(exported, samples, progress=False),
        torch.export.export(convert_pt2e(prepared), samples[0]),
    ):
        lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
        assert tosaic.compare(quantized, lowered, samples[0]).ok
        found = lowered.run(*samples[0])
        np.testing.assert_allclose(found[0], wanted.run(*samples[0])[0], atol=wanted.outputs[0].qparams.scale)
        for each, exact in zip(found, function(*samples[0]), strict=True):
            assert sqnr_db(each, exact) > 25
        assert run_reference_model(lowered, *samples[0]).ok


class Bounded(nn.Module):
    """An input, or the result of a pool, that is bounded, and then read by a layer."""

    def __init__(self, bound: Any, layer: nn.Module, *, pooled: bool, returned: bool) -> None:
        super().__init__()
        self.bound, self.layer = bound, layer
        self.pooled, self.returned = pooled, returned

    def forward(self, x: torch.Tensor) -> Any:
        x = self.bound(nn.functional.avg_pool2d(x, 2) if self.pooled else x)
        y = self.layer(x)
        return (x, y) if self.returned else y


BOUNDS = {
    "clamp": lambda x: x.clamp(-0.9, 1.3),
    "relu6": nn.functional.relu6,
    "hardtanh": nn.functional.hardtanh,
    "clamp of moved numbers": lambda x: x.flip(3).clamp(-0.9, 1.3).transpose(2, 3),
}


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_layer_behind_a_clamp_is_one_convolution(name: str, *, pooled: bool, returned: bool) -> None:
    """The bounds of the clamp are rounded to the scale of its operand."""
    torch.manual_seed(0)
    for layer in (nn.Conv2d(3, 4, 3), nn.Linear(4 if pooled else 8, 4)):
        module = Bounded(BOUNDS[name], layer, pooled=pooled, returned=returned).eval()
        generator = torch.Generator().manual_seed(3)
        samples = [(torch.randn(1, 3, 8, 8, generator=generator) * 2,) for _ in range(8)]
        exported = torch.export.export(module, samples[0])
        prepared = prepare_pt2e(exported.module(), tosaic.Quantizer())
        for sample in samples:
            prepared(*sample)
        for quantized in (
            tosaic.quantize(exported, samples, progress=False),
            torch.export.export(convert_pt2e(prepared), samples[0]),
        ):
            lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
            assert sum(node.op == "tosa.conv2d" for node in lowered.graph.nodes) == 1
            assert tosaic.compare(quantized, lowered, samples[0]).ok
            with torch.no_grad():
                expected = module(*samples[0])
            for found, exact in zip(leaves(lowered.run(*samples[0])), leaves(expected), strict=True):
                assert sqnr_db(found, torch.from_numpy(exact)) > 25


# ---- products of integers ----


class IntegerProduct(nn.Module):
    """Integers that are computed from floats, and a product of matrices of them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(8, 16)
        self.register_buffer("weight", torch.arange(-32, 32, dtype=torch.int8).reshape(16, 4) % 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = (self.linear(x) * 20).round()
        if self.how == "matmul":
            return (whole.to(torch.int32) + 3) @ self.weight.to(torch.int32)
        if self.how == "addmm":
            return torch.addmm(torch.arange(4), whole.to(torch.int64), self.weight.to(torch.int64))
        rows = whole.to(torch.int32).clamp(-128, 127).to(torch.int8).reshape(20, 16)
        return torch._int_mm(rows, self.weight).to(torch.float32) * 0.5


@pytest.mark.parametrize("door", ["quantize", "Quantizer"])
@pytest.mark.parametrize("how", ["matmul", "addmm", "_int_mm"])
def test_a_product_of_integers_has_no_scales(how: str, door: str) -> None:
    torch.manual_seed(0)
    module, x = IntegerProduct(how).eval(), torch.randn(20, 8)
    exported = torch.export.export(module, (x,))
    if door == "quantize":
        quantized: Any = tosaic.quantize(exported, [(x,)], progress=False)
    else:
        prepared = prepare_pt2e(exported.module(), tosaic.Quantizer())
        prepared(x)
        quantized = tosaic.from_exported(torch.export.export(convert_pt2e(prepared), (x,)))
    integers = {"matmul", "addmm", "_int_mm", "weight"}
    names = [value.name for value in quantized.graph.values if value.qparams is not None]
    assert not integers & set(names)
    found = np.asarray(quantized.run(x))
    assert found.dtype == module(x).numpy().dtype
    assert sqnr_db(found.astype(np.float64), module(x).double()) > 25
