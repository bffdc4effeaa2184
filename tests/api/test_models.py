"""Models: functions of the caller that a prepared program runs instead of its operators."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from api.conftest import Counter
from api.copies import every_copy
from api.numpy_models import INTEGER_MODELS, convolved, model_of_integers
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic.lowering.reference_model import run_reference_model


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(self.stem(x), 2)
        x = x + torch.sigmoid(self.depthwise(x))
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm(x))


NETWORKS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "cnn": (Cnn, (2, 3, 8, 8)),
    "transformer": (Block, (1, 6, 16)),
}


@cache
def exported(name: str, *, int8: bool) -> tuple[Any, np.ndarray]:
    """Returns the exported network and an input."""
    torch.manual_seed(0)
    network, shape = NETWORKS[name]
    module = network().eval()
    samples = [(torch.randn(shape),) for _ in range(3)]
    program = torch.export.export(module, samples[0])
    if int8:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            prepared = prepare_pt2e(program.module(check_guards=False), tosaic.Quantizer())
            for sample in samples:
                prepared(*sample)
            program = torch.export.export(convert_pt2e(prepared), samples[0])
    return program, samples[1][0].numpy()


@cache
def lowered(name: str, *, int8: bool) -> tuple[tosaic.Lowered, np.ndarray]:
    program, x = exported(name, int8=int8)
    return tosaic.lower(program, target="TOSA-1.0+INT" if int8 else "TOSA-1.0+FP"), x


@cache
def quantized(name: str) -> tuple[tosaic.Program, np.ndarray]:
    """Returns the network at stage quantized, and an input."""
    program, x = exported(name, int8=True)
    (fold,) = (step.pass_ for step in tosaic.Pipeline.default("TOSA-1.0+INT") if step.name == "fold-qdq")
    return tosaic.program.from_graph(fold.run(tosaic.from_exported(program).graph)), x


every_network = pytest.mark.parametrize("name", NETWORKS)
every_dtype = pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])


class Default:
    """A model that computes what tosaic computes, and counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, call: Any) -> Any:
        self.calls.append(getattr(call, "name", "graph"))
        return call.default()


def off_by_one(call: tosaic.NodeCall) -> np.ndarray:
    """Adds 1 to every seventh element."""
    made = call.default()
    made.flat[::7] += 1
    return made


def simple(function: Callable[[torch.Tensor], Any], *arguments: torch.Tensor) -> tosaic.Program:
    class Module(nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return function(*args)

    return tosaic.from_exported(torch.export.export(Module(), arguments))


# ---- every operator ----


@every_network
@every_dtype
@pytest.mark.parametrize("stage", ["imported", "exported", "canonical", "tosa"])
def test_a_network_with_a_model_of_every_operator_computes_the_same(
    name: str, int8: bool, stage: str
) -> None:
    network, x = lowered(name, int8=int8)
    program = network.at(stage)
    model = Default()
    found = program.prepare(models={"*": model}).run(x)
    assert model.calls == [node.name for node in program.graph.nodes]
    np.testing.assert_array_equal(found, program.run(x))


@every_network
def test_at_stage_quantized_a_model_gets_the_integers_of_quantized_values(name: str) -> None:
    program, x = quantized(name)
    assert program.stage == "quantized"
    calls: list[tosaic.NodeCall] = []

    def model(call: tosaic.NodeCall) -> Any:
        calls.append(call)
        return call.default()

    found = program.prepare(models={"*": model}).run(x)
    np.testing.assert_array_equal(found, program.run(x))
    assert [call.name for call in calls] == [node.name for node in program.graph.nodes]
    for call in calls:
        for operand, qparams in zip(call.operands, call.qparams, strict=True):
            assert qparams is None or operand.dtype.name == qparams.dtype.replace("i", "int")


@every_network
def test_numpy_models_of_every_integer_operator_compute_the_same_integers(name: str) -> None:
    network, x = lowered(name, int8=True)
    kinds = {node.op for node in network.graph.nodes}
    prepared = network.prepare(models={kind: INTEGER_MODELS[kind] for kind in kinds})
    assert set(prepared.models) == {node.name for node in network.graph.nodes}
    np.testing.assert_array_equal(prepared.run(x), network.run(x))


@every_network
@every_dtype
@pytest.mark.parametrize("stage", ["imported", "canonical", "tosa"])
def test_a_model_of_the_whole_graph_computes_the_same(name: str, int8: bool, stage: str) -> None:
    network, x = lowered(name, int8=int8)
    program = network.at(stage)
    model = Default()
    np.testing.assert_array_equal(program.prepare(models=model).run(x), program.run(x))
    assert model.calls == ["graph"]


@every_network
def test_a_lowered_program_serves_as_the_model_of_another_graph(name: str) -> None:
    network, x = lowered(name, int8=False)
    program = network.at("imported")
    found = program.prepare(models=lambda call: network.run(*call.inputs)).run(x)
    np.testing.assert_array_equal(found, network.run(x))


@every_network
@every_dtype
def test_a_program_runs_on_the_reference_model(name: str, int8: bool) -> None:
    pytest.importorskip("tosa_reference_model")
    network, x = lowered(name, int8=int8)
    prepared = network.prepare(on="reference")
    np.testing.assert_array_equal(prepared.run(x), run_reference_model(network, x).outputs)
    if int8:
        np.testing.assert_array_equal(prepared.run(x), network.run(x))
    else:
        np.testing.assert_allclose(prepared.run(x), network.run(x), atol=1e-5)
    assert "on reference" in repr(prepared)


def test_a_model_stops_fusion_and_replaces_views() -> None:
    network, x = lowered("cnn", int8=True)
    kernels = {step["name"]: step["kernel"] for step in network.session.steps}
    fused = [name for name, kernel in kernels.items() if kernel == "fused"]
    views = [name for name, kernel in kernels.items() if kernel == "view"]
    assert fused
    assert views
    for name in (*fused, *views):
        model = Default()
        prepared = network.prepare(models={tosaic.Nodes(name=name): model})
        np.testing.assert_array_equal(prepared.run(x), network.run(x))
        assert model.calls == [name]
        (step,) = (step for step in prepared.session.steps if step["name"] == name)
        assert step["kernel"] == "override"


# ---- keys ----


def test_the_most_specific_key_counts() -> None:
    network, _ = lowered("cnn", int8=True)
    models = dict.fromkeys(("*", "tosa.conv2d", "aten.conv2d.default", "stem", "stem.0"), Default())
    keys = network.prepare(models={**models, tosaic.Nodes(name="conv2d.integer_conv"): Default()}).models
    assert keys["conv2d.integer_conv"] == "Nodes(name='conv2d.integer_conv')"
    assert keys["conv2d"] == "stem.0"
    assert keys["conv2d_1.integer_conv"] == "aten.conv2d.default"
    assert keys["max_pool2d"] == "*"
    head = [name for name, key in keys.items() if key == "tosa.conv2d"]
    assert [node.op for node in network.graph.nodes if node.name in head] == ["tosa.conv2d"]


def test_keys_select_by_operator_node_fx_name_module_and_torch_operator() -> None:
    network, _ = lowered("cnn", int8=False)
    program = network.at("imported")

    def selected(key: Any) -> list[str]:
        return list(program.prepare(models={key: Default()}).models)

    assert selected("conv") == ["conv2d", "conv2d_1"]
    assert selected("aten.conv2d") == selected("aten.conv2d.default") == ["conv2d", "conv2d_1"]
    assert selected("stem") == ["conv2d", "batch_norm", "relu"]
    assert selected("stem.1") == ["batch_norm"]
    assert selected("conv2d_1") == selected(tosaic.Nodes(fx_name="conv2d_1")) == ["conv2d_1"]
    assert selected(tosaic.Nodes(kind="conv", module="depthwise")) == ["conv2d_1"]
    assert selected(tosaic.Nodes()) == selected("*") == [node.name for node in program.graph.nodes]


def test_conditions_of_a_key_all_count_and_more_conditions_are_more_specific() -> None:
    program = lowered("cnn", int8=False)[0].at("imported")
    keys = program.prepare(
        models={"stem": Default(), tosaic.Nodes(module="stem", kind="relu"): Default()}
    ).models
    assert keys["relu"] == "Nodes(kind='relu', module='stem')"
    assert keys["conv2d"] == "stem"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("conv2d", r"the key 'conv2d' has several meanings: .*Nodes\(name='conv2d'\) \(1 node\), "),
        ("tosa.conv2", r"the key 'tosa.conv2' selects no node: .*Did you mean 'tosa.conv2d'"),
        ("rescale", r"the key 'rescale' selects no node: .*Did you mean 'tosa.rescale'"),
        ("everything", r"Operators of the graph at stage tosa: tosa.add, tosa.conv2d, "),
        (
            tosaic.Nodes(module="stme"),
            r"the key Nodes\(module='stme'\) selects no node: .*Did you mean 'stem'",
        ),
        (tosaic.Nodes(kind="tosa.add", module="stem"), "selects no node"),
    ],
    ids=str,
)
def test_a_key_without_one_meaning_is_refused(key: Any, message: str) -> None:
    network, x = lowered("cnn", int8=True)
    with pytest.raises(tosaic.InvalidGraph, match=message):
        network.prepare(models={key: Default()})
    with pytest.raises(tosaic.InvalidGraph, match=message):
        tosaic.compare(network, network, (x,), models={key: Default()})


def test_two_keys_that_are_equally_specific_are_refused_unless_a_better_one_decides() -> None:
    network, _ = lowered("cnn", int8=False)
    program = network.at("canonical")  # the norm is folded into the convolution, whose node has two FX names
    both: dict[Any, Any] = {tosaic.Nodes(fx_name=name): Default() for name in ("conv2d", "batch_norm")}
    with pytest.raises(tosaic.InvalidGraph, match="two keys that are equally specific select one node"):
        program.prepare(models=both)
    shared = [node.name for node in program.graph.nodes if len(node.origins) == 2]
    assert "batch_norm" in shared
    decided = {tosaic.Nodes(name=name): Default() for name in shared}
    assert program.prepare(models={**both, **decided}).models["batch_norm"] == "Nodes(name='batch_norm')"
    one = Default()
    assert program.prepare(models=dict.fromkeys(both, one)).models["batch_norm"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": {"relu": 3}}, "'models': expected functions by tosaic.Nodes"),
        ({"models": {3: Default()}}, "'models': expected functions by tosaic.Nodes"),
        ({"models": "relu"}, "'models': expected functions by tosaic.Nodes"),
        ({"on": "vela"}, "'on': expected 'tosaic', 'reference' or 'vgf', got 'vela'"),
        ({"on": "reference"}, "runs programs at stage tosa only: expected stage tosa, got stage exported"),
        ({"threads": 0}, "'threads': expected a whole number from 1 to 256, got 0"),
        ({"threads": 257}, "'threads': expected a whole number from 1 to 256, got 257"),
        ({"threads": True}, "'threads'"),
        ({"write_back": 1}, "'write_back': expected True or False"),
    ],
    ids=[
        "no function",
        "a number as key",
        "text",
        "no such engine",
        "a stage",
        "no thread",
        "too many threads",
        "a truth value",
        "a number",
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    program = simple(torch.relu, torch.ones(3))
    with pytest.raises(tosaic.InvalidGraph, match=message):
        program.prepare(**options)


def test_the_reference_model_takes_no_models() -> None:
    network, _ = lowered("cnn", int8=True)
    with pytest.raises(tosaic.InvalidGraph, match="the reference model takes no models of operators"):
        network.prepare(on="reference", models={"*": Default()})


@pytest.mark.parametrize("conditions", [{"kind": ""}, {"name": 3}, {"module": b"stem"}])
def test_a_condition_that_is_not_a_text_is_refused(conditions: dict[str, Any]) -> None:
    with pytest.raises(tosaic.InvalidGraph, match="expected a string that is not empty"):
        tosaic.Nodes(**conditions)


# ---- what a model gets and returns ----


def test_a_model_gets_operands_qparams_attributes_and_origin() -> None:
    network, x = lowered("cnn", int8=True)
    calls: list[tosaic.NodeCall] = []

    def model(call: tosaic.NodeCall) -> Any:
        calls.append(call)
        return call.default()

    network.prepare(models={tosaic.Nodes(kind="tosa.conv2d", module="stem"): model}).run(x)
    (call,) = calls
    (node,) = (node for node in network.graph.nodes if node.name == "conv2d.integer_conv")
    assert call.node == node
    assert (call.op, call.name, call.stage) == ("tosa.conv2d", node.name, "tosa")
    assert call.roles == ("input", "weight", "bias")
    assert [operand.dtype.name for operand in call.operands] == ["int8", "int8", "int32"]
    np.testing.assert_array_equal(call.operand("weight"), node.operands[1].constant.array)
    assert call.result_types == (tosaic.ports.TensorSpec("i32", (2, 8, 8, 8)),)
    assert call.attrs == node.attrs
    assert call.module_path == node.origin.module_path
    assert call.source == node.origin.source
    assert repr(call) == (
        "<tosaic.NodeCall tosa.conv2d 'conv2d.integer_conv': "
        "(i8[2,8,8,3], i8[8,3,3,3], i32[8]) -> i32[2,8,8,8]>"
    )
    with pytest.raises(TypeError):
        call.attrs["stride"] = (2, 2)
    with pytest.raises(
        tosaic.InvalidGraph, match="has no operand 'wieght': expected one of 'input', 'weight'"
    ):
        call.operand("wieght")


def test_a_model_gets_the_qparams_of_the_values() -> None:
    program, x = quantized("cnn")
    found: list[tosaic.NodeCall] = []

    def model(call: tosaic.NodeCall) -> Any:
        found.append(call)
        return call.default()

    program.prepare(models={"stem.0": model}).run(x)
    (call,) = (call for call in found if call.op == "conv")
    assert isinstance(call.qparams[0], tosaic.ports.QParams)
    assert call.qparams[1].axis == 0
    assert len(call.qparams[1].scales) == 8
    assert call.result_qparams == (call.node.results[0].qparams,)


def test_an_absent_operand_is_none() -> None:
    convolution = nn.Conv2d(1, 1, 1, bias=False)
    program = simple(lambda x: torch.nn.functional.conv2d(x, convolution.weight), torch.ones(1, 1, 2, 2))
    seen = []

    def model(call: tosaic.NodeCall) -> Any:
        seen.append(call.operand("bias"))
        return call.default()

    program.prepare(models={"conv": model}).run(np.ones((1, 1, 2, 2), np.float32))
    assert seen == [None]


def test_default_takes_other_operands_constants_included() -> None:
    network, x = lowered("cnn", int8=True)

    def coarse(call: tosaic.NodeCall) -> Any:
        data, weight, bias = call.operands
        return call.default(data, weight & ~3, bias)

    found = network.prepare(models={"tosa.conv2d": coarse}).run(x)
    assert not np.array_equal(found, network.run(x))

    def coarse_numpy(call: tosaic.NodeCall) -> Any:
        data, weight, bias = call.operands
        return convolved(data, weight & ~3, bias, call.attrs)

    expected = network.prepare(models={"tosa.conv2d": coarse_numpy}).run(x)
    np.testing.assert_array_equal(found, expected)


def test_default_refuses_other_operands_than_the_node_has() -> None:
    program = simple(torch.add, torch.ones(3), torch.ones(3))
    for operands, message in (
        ((np.ones(3, np.float32),), r"another number of operands: expected 2 \(input, other\), got 1"),
        ((np.ones(3, np.float32), None), r"operand 'other' is missing: expected f32\[3\], got None"),
        (
            (np.ones(3, np.float32), np.ones(4, np.float32)),
            r"operand1' has the wrong shape: expected \[3\], got \[4\]",
        ),
    ):
        prepared = program.prepare(models={"add": lambda call, operands=operands: call.default(*operands)})
        with pytest.raises(tosaic.InvalidGraph) as caught:
            prepared.run(np.ones(3, np.float32), np.ones(3, np.float32))
        assert isinstance(caught.value.__cause__, tosaic.Error)
        with pytest.raises(tosaic.Error, match=message):
            raise caught.value.__cause__


def test_a_node_with_several_results_has_a_list_of_arrays() -> None:
    program = simple(lambda x: torch.split(x, 2), torch.ones(4, 3))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = program.prepare(models={"split": lambda call: [part + 1 for part in call.default()]}).run(x)
    np.testing.assert_array_equal(np.concatenate(found), x + 1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda call: call.default()[:2], r"returned the wrong array: expected f32\[3\], got f32\[2\]"),
        (lambda call: call.default().astype(np.float64), r"expected f32\[3\], got f64\[3\]"),
        (lambda call: None, r"expected f32\[3\], got None"),
        (lambda call: 3.0, r"expected f32\[3\], got 3.0"),
        (lambda call: [call.default()] * 2, "returned the wrong number of arrays: expected 1, got 2"),
    ],
    ids=["shape", "dtype", "nothing", "a number", "number"],
)
def test_a_wrong_result_is_refused_with_node_and_source(model: Any, message: str) -> None:
    program = simple(torch.relu, torch.ones(3))
    with pytest.raises(ValueError, match=r"^\[run\] the model \(key 'relu'\) ") as caught:
        program.prepare(models={"relu": model}).run(np.ones(3, np.float32))
    assert isinstance(caught.value, tosaic.Error)
    with pytest.raises(ValueError, match=message):
        raise caught.value
    assert caught.value.parts["node"] == "relu"
    assert caught.value.parts["source"].startswith("test_models.py:")


@every_dtype
def test_an_exception_of_a_model_is_the_cause_of_an_error_with_node_and_module(int8: bool) -> None:
    network, x = lowered("cnn", int8=int8)

    def broken(call: tosaic.NodeCall) -> Any:
        raise ZeroDivisionError("no such luck")

    with pytest.raises(
        tosaic.InvalidGraph, match="raised an exception: got ZeroDivisionError: no such luck"
    ) as caught:
        network.prepare(models={"tosa.depthwise_conv2d": broken}).run(x)
    assert caught.value.parts["module_path"].startswith("depthwise" if not int8 else "")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.__cause__.__traceback__.tb_next.tb_frame.f_code.co_name == "broken"
    assert not getattr(caught.value, "__notes__", [])


def test_a_keyboard_interrupt_of_a_model_passes() -> None:
    def stopped(call: tosaic.NodeCall) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simple(torch.relu, torch.ones(3)).prepare(models={"relu": stopped}).run(np.ones(3, np.float32))


def test_a_model_may_keep_its_arrays() -> None:
    kept: list[np.ndarray] = []

    def keeps(call: tosaic.NodeCall) -> Any:
        kept.append(call.operands[0])
        return call.default()

    prepared = simple(lambda x: torch.relu(x) + 1, torch.ones(3)).prepare(models={"add": keeps})
    prepared.run(np.float32([1, 2, 3]))
    prepared.run(np.float32([4, 5, 6]))
    assert [array.tolist() for array in kept] == [[1, 2, 3], [4, 5, 6]]


def test_models_of_floats_that_numpy_lacks_get_and_return_them() -> None:
    program = simple(lambda x: torch.relu(x) * 2, torch.ones(3, dtype=torch.bfloat16))
    x = torch.tensor([-1.0, 2, 3], dtype=torch.bfloat16)
    found = program.prepare(models={"*": Default()}).run(x)
    np.testing.assert_array_equal(found, program.run(x))


# ---- regions, states, inputs that are written ----


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.relu() + 1, lambda y: y.relu() * 3, (x,)).relu()


@pytest.mark.parametrize("stage", ["imported", "tosa"])
def test_models_run_inside_regions(stage: str) -> None:
    module = Branches()
    program = torch.export.export(module, (torch.ones(4),))
    network = tosaic.lower(program, target="TOSA-1.0+FP+controlflow").at(stage)
    kind = "relu" if stage == "imported" else "tosa.clamp"
    for x in (np.float32([1, -2, 3, 4]), np.float32([-1, 2, -3, -4])):
        model, every = Default(), Default()
        prepared = network.prepare(models={tosaic.Nodes(kind=kind): model})
        np.testing.assert_array_equal(prepared.run(x), module(torch.tensor(x)).numpy())
        assert len(model.calls) == 2  # one branch, and the call after it
        np.testing.assert_array_equal(network.prepare(models={"*": every}).run(x), prepared.run(x))
        control = "cond" if stage == "imported" else "tosa.cond_if"
        whole = Default()
        np.testing.assert_array_equal(
            network.prepare(models={tosaic.Nodes(kind=control): whole}).run(x), prepared.run(x)
        )
        assert len(whole.calls) == 1


class Loop(nn.Module):
    def forward(self, n: torch.Tensor, x: torch.Tensor) -> Any:
        from torch._higher_order_ops.while_loop import while_loop

        return while_loop(lambda i, y: i > 0, lambda i, y: (i - 1, y * 2), (n, x))


def test_a_model_inside_a_loop_runs_once_in_each_round() -> None:
    program = tosaic.from_exported(torch.export.export(Loop(), (torch.tensor(3), torch.ones(2))))
    model = Default()
    n, x = program.prepare(models={"mul": model}).run(np.int64(4), np.ones(2, np.float32))
    assert (n.item(), x.tolist(), len(model.calls)) == (0, [16, 16], 4)


def counter() -> Any:
    return torch.export.export(Counter(), (torch.ones(4),))


@pytest.mark.parametrize("models", [{"*": Default()}, Default(), None], ids=["nodes", "graph", "none"])
def test_a_prepared_program_has_states_of_its_own(models: Any) -> None:
    program = tosaic.from_exported(counter())
    one = np.ones(4, np.float32)
    program.run(one)
    prepared = program.prepare(models=models)
    assert [prepared.run(one)[0] for _ in range(3)] == [2, 4, 6]
    prepared.reset_state()
    assert prepared.run(one)[0] == 2
    assert program.run(one)[0] == 4


def test_a_whole_graph_model_gets_and_returns_states_in_the_order_of_the_graph() -> None:
    program = tosaic.from_exported(counter())
    seen: list[dict[str, Any]] = []

    def model(call: tosaic.program.GraphCall) -> Any:
        inputs = dict(zip(call.paths, call.inputs, strict=True))
        seen.append(inputs)
        total = inputs["total"] + 10
        by_path = {"total": total}
        return [by_path.get(port.path, total * 2) for port in call.graph.outputs]

    prepared = program.prepare(models=model)
    one = np.ones(4, np.float32)
    assert [prepared.run(one)[0] for _ in range(2)] == [20, 40]
    assert [inputs["total"][0] for inputs in seen] == [0, 10]
    assert prepared.session.state("total").tolist() == [20] * 4


def test_the_states_of_a_lowered_program_persist_on_the_reference_model() -> None:
    pytest.importorskip("tosa_reference_model")
    prepared = tosaic.lower(counter()).prepare(on="reference")
    one = np.ones(4, np.float32)
    assert [prepared.run(one)[0] for _ in range(3)] == [2, 4, 6]


def test_variables_are_not_modelled(tmp_path: Path) -> None:
    tosaic.lower(counter(), target="TOSA-1.0+FP+variable").save(tmp_path / "counter.tosa")
    from_file = tosaic.load_tosa(tmp_path / "counter.tosa")
    one = np.ones(4, np.float32)
    prepared = from_file.prepare(models={"*": Default()})
    assert [prepared.run(one)[0] for _ in range(3)] == [2, 4, 6]
    with pytest.raises(tosaic.InvalidGraph, match="selects a node that holds the state"):
        from_file.prepare(models={"tosa.variable_read": Default()})
    with pytest.raises(
        tosaic.InvalidGraph, match="a model of a whole graph cannot read or write its variables"
    ):
        from_file.prepare(models=Default())


class Cache(nn.Module):
    def forward(self, cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2


@pytest.mark.parametrize("models", [{"*": Default()}, Default(), None], ids=["nodes", "graph", "none"])
@pytest.mark.parametrize("write_back", [False, True])
def test_new_values_of_inputs_are_written_back_only_if_asked(models: Any, write_back: bool) -> None:
    program = tosaic.from_exported(torch.export.export(Cache(), (torch.zeros(2), torch.ones(2))))
    cache, x = np.zeros(2, np.float32), np.ones(2, np.float32)
    prepared = program.prepare(models=models, write_back=write_back)
    assert prepared.mutations == {}
    np.testing.assert_array_equal(prepared.run(cache, x), [2, 2])
    assert prepared.mutations["cache"].tolist() == [1, 1]
    assert cache.tolist() == ([1, 1] if write_back else [0, 0])


# ---- threads, nesting, copies ----


def test_models_that_run_programs_compute_the_same() -> None:
    network, x = lowered("cnn", int8=True)
    inner = simple(torch.relu, torch.ones(2, 4, 4, 8)).prepare(models={"relu": Default()})

    def nested(call: tosaic.NodeCall) -> Any:
        assert inner.run(np.ones((2, 4, 4, 8), np.float32)).sum() == 256
        network.run(x)
        return model_of_integers(call)

    found = network.prepare(models={"*": nested}).run(x)
    np.testing.assert_array_equal(found, network.run(x))


@pytest.mark.parametrize(
    "program", [lambda: simple(torch.relu, torch.ones(4)), lambda: tosaic.from_exported(counter())]
)
def test_a_model_that_runs_its_own_program_is_refused(program: Any) -> None:
    made = program()
    one = np.ones(4, np.float32)
    prepared = made.prepare(models={"*": lambda call: prepared.run(one)})
    with pytest.raises(tosaic.InvalidGraph) as caught:
        prepared.run(one)
    assert "a model runs the prepared program that it is a model of" in str(caught.value.__cause__)
    with pytest.raises(tosaic.InvalidGraph):
        prepared.run(one)


def test_threads_run_a_program_with_models_at_once() -> None:
    network, x = lowered("cnn", int8=True)
    prepared = network.prepare(models={"*": model_of_integers}, threads=4)
    inputs = [x + i for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(prepared.run, inputs))
    for array, given in zip(found, inputs, strict=True):
        np.testing.assert_array_equal(array, network.run(given))


def test_threads_run_a_program_with_models_and_states_in_turns() -> None:
    prepared = tosaic.from_exported(counter()).prepare(models={"*": Default()})
    one = np.ones(4, np.float32)

    def run(i: int) -> float:
        found = prepared.run(one)[0]
        prepared.session.state("total")
        return found

    with ThreadPoolExecutor(4) as pool:
        found = sorted(pool.map(run, range(16)))
    assert found == [2.0 * (i + 1) for i in range(16)]


def test_a_thread_reads_the_mutations_of_its_own_run() -> None:
    program = tosaic.from_exported(torch.export.export(Cache(), (torch.zeros(2), torch.ones(2))))
    prepared = program.prepare()

    def run(i: int) -> bool:
        prepared.run(np.full(2, i, np.float32), np.ones(2, np.float32))
        return prepared.mutations["cache"].tolist() == [i + 1, i + 1]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(32)))


@every_copy
def test_copies_of_a_prepared_program_have_its_models_and_the_values_of_its_states(copied: Any) -> None:
    prepared = tosaic.from_exported(counter()).prepare(models={"mul": off_by_one}, threads=2, write_back=True)
    one = np.ones(4, np.float32)
    prepared.run(one)
    again = copied(prepared)
    assert repr(again) == repr(prepared)
    assert (again.threads, again.write_back, again.on) == (2, True, "tosaic")
    assert again.run(one).tolist() == [5, 4, 4, 4]
    assert prepared.run(one).tolist() == [5, 4, 4, 4]
    assert again.run(one).tolist() == [7, 6, 6, 6]


def test_a_model_that_cannot_be_pickled_is_refused_by_its_key() -> None:
    prepared = simple(torch.relu, torch.ones(3)).prepare(models={"relu": lambda call: call.default()})
    copy.deepcopy(prepared).run(np.ones(3, np.float32))
    with pytest.raises(tosaic.InvalidGraph, match="the model of 'relu' cannot be pickled"):
        pickle.dumps(prepared)


def test_the_text_of_a_prepared_program_says_what_is_modelled() -> None:
    program = simple(lambda x: torch.relu(x) + 1, torch.ones(3))
    start = "<tosaic.program.Prepared 'forward' @exported on tosaic: (args_0: f32[3]) -> f32[3], "
    assert repr(program.prepare()) == start + "2 nodes, no models>"
    assert repr(program.prepare(models={"relu": Default()})) == start + "2 nodes, models of 1 ('relu')>"
    assert repr(program.prepare(models=Default())) == start + "a model of all 2 nodes>"


def test_a_model_precedes_an_override_and_default_is_the_override() -> None:
    program = simple(torch.relu, torch.ones(3)).with_overrides({"relu": lambda x: x + 5})
    x = np.float32([1, 2, 3])
    np.testing.assert_array_equal(program.prepare().run(x), x + 5)
    np.testing.assert_array_equal(
        program.prepare(models={"relu": lambda call: call.default() * 2}).run(x), (x + 5) * 2
    )
    np.testing.assert_array_equal(program.prepare(models=lambda call: call.default()).run(x), x + 5)


def test_a_model_computes_a_foreign_operator_that_has_no_kernel() -> None:
    program = simple(lambda x: torch.special.i0(x), torch.ones(3))
    model = {"aten.special_i0.default": lambda call: np.i0(call.operands[0]).astype(np.float32)}
    x = np.float32([1, 2, 3])
    np.testing.assert_allclose(program.prepare(models=model).run(x), np.i0(x), rtol=1e-6)


def test_a_composite_with_a_model_is_not_expanded_and_its_parts_are_not_selected() -> None:
    program = simple(lambda x, y: torch.hypot(x, y) * x, torch.ones(3), torch.ones(3))
    x = np.float32([3, 4, 5])
    multiplications, whole = Default(), Default()
    prepared = program.prepare(models={"mul": multiplications})
    np.testing.assert_array_equal(prepared.run(x, x), program.run(x, x))
    assert multiplications.calls == ["mul"]
    np.testing.assert_array_equal(program.prepare(models={"hypot": whole}).run(x, x), program.run(x, x))
    assert whole.calls == ["hypot"]


# ---- compare ----


@pytest.mark.parametrize("stage", ["canonical", "tosa"])
def test_compare_shows_where_a_model_of_integers_differs_from_the_same_program(stage: str) -> None:
    network, x = lowered("cnn", int8=True)
    program = network if stage == "tosa" else network.at(stage)
    key = tosaic.Nodes(name="conv2d")  # the rescale after the convolution
    found = tosaic.compare(program, program, (x,), models={key: off_by_one})
    assert not found
    assert found.first_wrong.fx_name == "conv2d"
    assert [row.fx_name for row in found.rows if not row.ok] == ["conv2d"]
    (row,) = found.models
    count = row.metrics.count
    assert (row.node, row.calls, count) == ("conv2d", 1, 2 * 8 * 8 * 8)
    expected = program.session.trace([x], nodes=["conv2d"])["values"]["conv2d"]
    assert row.metrics.mismatches == found["conv2d"].local.mismatches == len(expected.flat[::7])
    assert row.metrics.max_ulp == 1
    assert found["conv2d"].local.max_ulp == pytest.approx(1, rel=1e-3)
    assert "models against tosaic's kernels" in str(found)
    assert tosaic.compare(program, program, (x,), models={"*": Default()})


def test_compare_shows_where_a_model_of_floats_differs() -> None:
    network, x = lowered("cnn", int8=False)
    program, _ = exported("cnn", int8=False)

    def coarse(call: tosaic.NodeCall) -> Any:
        data, weight, bias = call.operands
        return call.default(data.astype(np.float16).astype(np.float32), weight, bias)

    model = {"tosa.depthwise_conv2d": coarse}
    for reference in (program, network):
        found = tosaic.compare(reference, network, (x,), models=model)
        assert found.first_wrong.fx_name == "conv2d_1"
        assert found.models[0].metrics.mismatches > 0
        assert tosaic.compare(reference, network, (x,), models={"*": Default()})


@every_network
def test_compare_of_torch_with_numpy_models_of_all_integers_is_right(name: str) -> None:
    network, x = lowered(name, int8=True)
    program, _ = exported(name, int8=True)
    found = tosaic.compare(program, network, [(x,), (x + 1,)], models={"*": model_of_integers})
    assert found.ok
    assert len(found.models) == len(network.graph.nodes)
    assert all(row.calls == 2 and row.metrics.mismatches == 0 for row in found.models)


def test_compare_takes_a_model_of_the_whole_graph() -> None:
    network, x = lowered("cnn", int8=True)
    assert tosaic.compare(network, network, (x,), models=Default())

    def last_is_off(call: tosaic.program.GraphCall) -> Any:
        made = call.default()
        made.flat[0] += 1
        return made

    found = tosaic.compare(network, network, (x,), models=last_is_off)
    (row,) = found.models
    assert (row.op, row.metrics.mismatches, row.metrics.max_abs) == ("graph", 1, 1)
    assert found.output.mismatches == 1


def test_models_of_compare_concern_b_only() -> None:
    network, x = lowered("cnn", int8=True)
    model = Default()
    tosaic.compare(network.at("canonical"), network, (x,), models={"tosa.conv2d": model})
    assert len(model.calls) == sum(node.op == "tosa.conv2d" for node in network.graph.nodes)


def test_compare_of_a_file_with_models_counts_the_calls_of_one_layout(tmp_path: Path) -> None:
    network, x = lowered("cnn", int8=True)
    network.save(tmp_path / "cnn.tosa")
    program, _ = exported("cnn", int8=True)
    found = tosaic.compare(program, tmp_path / "cnn.tosa", (x,), models={"tosa.conv2d": model_of_integers})
    assert found.ok
    assert all(row.calls == 1 and row.metrics.mismatches == 0 for row in found.models)
