"""`TosaicPartitioner`: delegates of ExecuTorch that tosaic lowers, on small networks."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
import tosaic
from tosaic import Claimant

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.exir")

import torch.nn.functional as F  # noqa: E402
from executorch.exir.backend.compile_spec_schema import CompileSpec  # noqa: E402
from models.tosaic_delegates import (  # noqa: E402
    delegates_in_file,
    differing_from_reference_model,
    differing_payloads,
    file_of,
    lower,
    modules_of,
    run,
)
from models.wrapped import PARTITIONERS, Watched  # noqa: E402
from models.zoo import quiet  # noqa: E402
from torch import nn  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from tosaic.executorch import (  # noqa: E402
    TosaicPartitioner,
    combine_partitioners,
    order_conversions,
    set_runtime_ids,
    wrap_partitioner,
)

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]
INT = "TOSA-1.0+INT"


class Residual(nn.Module):
    """Convolutions with a residual, an activation of several calls, a linear layer and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = F.hardswish(self.norm(self.first(x)))
        y = y + torch.relu(y)
        return torch.softmax(self.linear(y.mean((2, 3))), -1)


class Attention(nn.Module):
    """A layer norm and an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 24)

    def forward(self, x: Any) -> Any:
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        return F.gelu(F.scaled_dot_product_attention(q, k, v)) + x


class Sorted(nn.Module):
    """A call in the middle on numbers that no TOSA target has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.last = nn.Conv2d(4, 4, 3)

    def forward(self, x: Any) -> Any:
        return self.last(torch.sort(torch.relu(self.first(x)).double(), dim=-1).values.float())


class Counting(nn.Module):
    """Two states."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(1, 4))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        self.total.add_(torch.relu(self.linear(x)))
        return self.total * 2


class Indices(nn.Module):
    """A result of int64, which TOSA does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.linear(x))
        return y, y.argmax(-1)


class ChannelsLast(nn.Module):
    """An input, weights and results in channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.first(x))), x + 1


class Shared(nn.Module):
    """A dequantize node and a weight that a delegate and the host read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.linear(x))
        return self.linear(y), torch.sort(y.double()).values.float(), F.linear(y, self.linear.weight)


IMAGE, ROW = (1, 3, 8, 8), (2, 4)
MODULES: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, IMAGE),
    "attention": (Attention, (1, 6, 8)),
    "sorted": (Sorted, IMAGE),
    "indices": (Indices, ROW),
    "channels last": (ChannelsLast, IMAGE),
    "shared": (Shared, ROW),
}


@cache
def inputs(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    x = torch.randn(*MODULES[name][1])
    return (x.contiguous(memory_format=torch.channels_last) if name == "channels last" else x,)


@cache
def exported(name: str) -> Any:
    torch.manual_seed(1)
    module = MODULES[name][0]().eval()
    if name == "channels last":
        module = module.to(memory_format=torch.channels_last)
    return torch.export.export(module, inputs(name))


@cache
def quantized(name: str, compatible_with: str | None = None, config: Any = None) -> Any:
    module = exported(name).module(check_guards=False)
    args = inputs(name)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(module, tosaic.Quantizer(config, compatible_with=compatible_with))
        prepared(*args)
        return torch.export.export(convert_pt2e(prepared), args)


def expected(program: Any, args: Any) -> list[np.ndarray[Any, Any]]:
    with torch.no_grad():
        found = program.module(check_guards=False)(*args)
    return [each.numpy() for each in (found if isinstance(found, tuple | list) else (found,))]


def calls_outside(manager: Any, method: str = "forward") -> Counter[str]:
    """Returns how often each operator is called outside of delegates."""
    names = [
        str(getattr(node.target, "_op", node.target)).removeprefix("aten.")
        for node in manager.exported_program(method).graph.nodes
        if node.op == "call_function" and "getitem" not in node.name and "call_delegate" not in node.name
    ]
    return Counter(name.split(".")[0] if "quantized" not in name else name.split(".")[1] for name in names)


# ---- payloads ----


@pytest.mark.parametrize("name", ["attention", "indices", "channels last"])
def test_delegates_of_a_float_network_compute_what_torch_computes(name: str) -> None:
    target = "TOSA-1.0+FP"
    manager = lower(exported(name), [TosaicPartitioner(target)])
    assert modules_of(manager)
    assert differing_payloads(manager, target) == 0
    for ours, theirs in zip(run(manager, inputs(name)), expected(exported(name), inputs(name)), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "target"), [*((name, INT) for name in MODULES), ("shared", "TOSA-1.0+INT+FP")]
)
def test_delegates_of_a_quantized_network_compute_its_integers(name: str, target: str) -> None:
    partitioner = TosaicPartitioner(target)
    watched = Watched(wrap_partitioner(partitioner), integer_only=target == INT)
    manager = lower(quantized(name), [watched])
    assert watched.wrong == []
    assert modules_of(manager)
    assert differing_payloads(manager, target) == 0
    args = inputs(name, 7)
    assert differing_from_reference_model(manager, args) == 0
    ours = run(manager, args)
    assert np.ptp(ours[0]) > 0
    steps = 2 if name != "attention" else 6
    for found, wanted in zip(ours, expected(quantized(name), args), strict=True):
        scale = np.ptp(wanted) / 255
        np.testing.assert_allclose(found, wanted, atol=steps * scale)


class PooledResidual(nn.Module):
    """`tosaic.quantize` lets the sum read the pool's numbers, which the convolution reads quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.max_pool2d(self.first(x).relu(), 2)
        return (self.second(pooled) + pooled).relu()


def test_floats_that_bypass_a_quantized_chain_keep_it_in_one_delegate() -> None:
    torch.manual_seed(0)
    args = (torch.randn(1, 3, 8, 8),)
    float_program = torch.export.export(PooledResidual().eval(), args)
    quantized = tosaic.quantize(float_program, [args], progress=False)
    partitioner = TosaicPartitioner("TOSA-1.0+INT")
    manager = lower(quantized.to_exported(), [partitioner])
    assert len(modules_of(manager)) == 1
    assert calls_outside(manager) == {"quantize_per_tensor": 1, "dequantize_per_tensor": 1}
    (found,) = run(manager, args)
    expected = tosaic.lower(quantized, target="TOSA-1.0+INT").run(*args)
    np.testing.assert_array_equal(found, expected)


def test_composites_reach_the_delegate_whole() -> None:
    manager = lower(quantized("attention", config=tosaic.QConfig.precise()), [TosaicPartitioner(INT)])
    (module,) = modules_of(manager)
    called = {str(getattr(node.target, "_op", "")) for node in module.original_module.graph.nodes}
    for operator in ("layer_norm.default", "scaled_dot_product_attention.default", "gelu.default"):
        assert f"aten.{operator}" in called
    assert calls_outside(manager) == {"quantize_per_tensor": 1, "dequantize_per_tensor": 1}


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Hardswish()
        self.last = nn.Hardswish()

    def forward(self, x: Any) -> Any:
        return self.last(torch.sort(self.first(x).double()).values.float()) + x


def _is_last(node: Any) -> bool:
    return bool(node.op == "hardswish" and "1" in node.name)


@pytest.mark.parametrize("rule", [{"name": "hardswish_1"}, {"where": _is_last}])
def test_a_denied_call_of_a_kept_operator_is_decomposed_and_stays_outside(rule: Any) -> None:
    args = (torch.randn(2, 8),)
    program = torch.export.export(Twice(), args)
    partitioner = TosaicPartitioner(Claimant.named("TOSA-1.0+FP").deny(**rule, why="not here"))
    manager = lower(program, [partitioner])
    first, last = modules_of(manager)
    assert [name for name in names_inside(first) if "hardswish" in name] == ["aten_hardswish_default"]
    assert names_inside(last) == ["aten_add_tensor_1"]
    outside = calls_outside(manager)
    assert "hardswish" not in outside
    assert outside["mul"] == outside["div"] == outside["sort"] == 1
    assert "not here" in partitioner.why("aten_div_tensor").refusals[0].problem.message
    np.testing.assert_allclose(run(manager, args)[0], expected(program, args)[0], atol=1e-6)


def test_a_denied_operator_stays_outside_in_all_its_parts() -> None:
    program = torch.export.export(Twice(), (torch.randn(2, 8),))
    manager = lower(program, [TosaicPartitioner(Claimant.named("TOSA-1.0+FP").deny(op="hardswish"))])
    outside = calls_outside(manager)
    assert outside["mul"] == outside["div"] == 2
    with pytest.raises(tosaic.InvalidGraph, match="matches no node"):
        lower(program, [TosaicPartitioner(Claimant.named("TOSA-1.0+FP").deny(op="gelu"))])


def names_inside(module: Any) -> list[str]:
    """Returns the names of the calls of a delegate."""
    return [node.name for node in module.original_module.graph.nodes if node.op == "call_function"]


def test_a_call_that_no_target_has_stays_outside_with_its_reasons() -> None:
    partitioner = TosaicPartitioner(INT)
    manager = lower(quantized("sorted"), [partitioner])
    assert len(modules_of(manager)) == 2
    place = partitioner.why("aten_sort_default")
    assert place.claimant == "host"
    assert place.refusals
    assert all(refusal.problem.message for refusal in place.refusals)
    assert {each.node for each in partitioner.plan.outside} >= {"aten_sort_default"}
    inside = partitioner.why("aten_relu_default") if "aten_relu_default" in partitioner.plan.places else None
    assert inside is None or inside.claimant == INT
    with pytest.raises(tosaic.InvalidGraph, match="the program has no such call"):
        partitioner.why("aten_srot_default")


def test_a_tensor_that_tosa_does_not_have_does_not_cross() -> None:
    partitioner = TosaicPartitioner("TOSA-1.0+FP")
    manager = lower(exported("indices"), [partitioner])
    (module,) = modules_of(manager)
    nodes = {node.name: node for node in module.original_module.graph.nodes}
    for name in module.original_module.graph_signature.user_outputs:
        assert nodes[name].meta["val"].dtype is torch.float32
    place = partitioner.why("aten_argmax_default")
    assert "has no such tensor in TOSA" in place.refusals[-1].problem.message
    assert run(manager, inputs("indices"))[1].dtype == np.int64


def test_states_stay_with_executorch() -> None:
    program = torch.export.export(Counting().eval().requires_grad_(False), (torch.randn(1, 4),))
    manager = lower(program, [TosaicPartitioner("TOSA-1.0+FP")])
    signature = manager.exported_program().graph_signature
    assert set(signature.buffers_to_mutate.values()) == {"total", "calls"}
    for module in modules_of(manager):
        assert not module.original_module.graph_signature.buffers_to_mutate
    assert delegates_in_file(file_of(manager))


def test_payloads_have_the_dim_orders_of_the_program() -> None:
    manager = lower(quantized("channels last"), [TosaicPartitioner(INT)])
    module = modules_of(manager)[0]
    nodes = {node.name: node for node in module.original_module.graph.nodes}
    program = tosaic.program.from_graph(tosaic._core.deserialize(module.processed_bytes))
    for name, port in zip(module.original_module.graph_signature.user_inputs, program.inputs, strict=True):
        value = nodes[name].meta["val"]
        assert tuple(port.shape) == tuple(value.shape[axis] for axis in value.dim_order())
    assert any(tuple(port.shape) == (1, 8, 8, 3) for port in program.inputs)


# ---- files ----


@pytest.mark.parametrize(
    ("claimant", "runtime"),
    [(INT, "TOSABackend"), ("vgf", "VgfBackend"), ("ethos-u55-128", "EthosUBackend")],
)
def test_ids_and_payloads_survive_the_file(claimant: str, runtime: str) -> None:
    manager = lower(quantized("residual"), [TosaicPartitioner(claimant)])
    file = file_of(manager)
    made = [(each.backend_id, bytes(each.processed_bytes)) for each in modules_of(manager)]
    assert delegates_in_file(file) == made
    assert {name for name, _ in made} == {runtime}
    from executorch.runtime import Runtime

    assert Runtime.get().load_program(file).method_names == {"forward"}


def test_a_stream_is_packed_as_arms_backend_packs_it(tmp_path: Any) -> None:
    from executorch.backends.arm.arm_vela import vela_compile
    from tosaic.devices.vela_stream import unpack_vela

    manager = lower(quantized("residual"), [TosaicPartitioner("ethos-u85-256")])
    for module in modules_of(manager):
        specs = {spec.key: spec.value.decode() for spec in module.compile_specs}
        tosa = tmp_path / "x.tosa"
        file = program_bytes(module, specs["tosa_spec"])
        tosa.write_bytes(file)
        with quiet():
            theirs = vela_compile(file, specs["compile_flags"].split()).processed_bytes
        assert bytes(module.processed_bytes) == theirs
        program = unpack_vela(module.processed_bytes)
        signature = module.original_module.graph_signature
        assert len(program.inputs) == len(signature.user_inputs)
        assert len(program.outputs) == len(signature.user_outputs)
        assert program.commands
        for cut in (0, 10, 40, len(theirs) - 20):
            with pytest.raises(tosaic.InvalidGraph, match="the stream is damaged"):
                unpack_vela(theirs[:cut])


def program_bytes(module: Any, target: str) -> bytes:
    from models.tosaic_delegates import program_made

    return program_made(module, target)


def test_several_methods_are_lowered_and_planned() -> None:
    partitioner = TosaicPartitioner(INT)
    programs = {"embed": quantized("residual"), "attend": quantized("attention")}
    manager = lower(programs, [partitioner])
    assert len(partitioner.plans) == 2
    assert [len(plan.groups) for plan in partitioner.plans] == [1, 1]
    assert len(delegates_in_file(file_of(manager))) == 2
    for method, name in (("embed", "residual"), ("attend", "attention")):
        assert differing_from_reference_model(manager, inputs(name), method=method) == 0
    lower(quantized("residual"), [partitioner])
    assert len(partitioner.plans) == 1


def test_compile_specs_and_the_runtime_pass_through() -> None:
    spec = CompileSpec("clock", b"400")
    partitioner = TosaicPartitioner(INT, compile_specs=[spec], runtime="MyNpu")
    manager = lower(quantized("residual"), [partitioner])
    (module,) = modules_of(manager)
    assert module.compile_specs[-1] == spec
    assert [name for name, _ in delegates_in_file(file_of(manager))] == ["MyNpu"]


def test_flags_of_vela_pass_through() -> None:
    partitioner = TosaicPartitioner("ethos-u65-256", flags=["--no-such-flag"])
    specs = {spec.key: spec.value.decode() for spec in partitioner.delegation_spec.compile_specs}
    assert specs["compile_flags"].startswith("--no-such-flag --accelerator-config=ethos-u65-256 ")
    with pytest.raises(tosaic.UnsupportedOp, match=r"(?s)vela cannot compile the file.*no-such-flag"):
        lower(quantized("residual"), [partitioner])


# ---- with other partitioners ----


@pytest.mark.parametrize("is_first", [True, False])
def test_arms_backend_and_ours_in_one_lowering(is_first: bool) -> None:
    ours = TosaicPartitioner(Claimant.named(INT).deny(module="first"))
    members = combine_partitioners([ours, PARTITIONERS["tosa-int"]()][:: 1 if is_first else -1])
    program = quantized("sorted", "arm")
    manager = lower(program, members)
    found = modules_of(manager)
    assert {each.backend_id for each in found} == {"TOSABackend"}
    is_ours = ["tosaic" in {spec.key for spec in each.compile_specs} for each in found]
    assert is_ours == [False, True]  # also if Arm's is first, which does not take the undecomposed call
    assert len(delegates_in_file(file_of(manager))) == 2
    args = inputs("sorted", 5)
    assert differing_from_reference_model(manager, args) == 0
    wanted = expected(program, args)[0]
    np.testing.assert_allclose(run(manager, args)[0], wanted, atol=2 * np.ptp(wanted) / 255)


def test_two_claimants_share_a_program() -> None:
    npu = TosaicPartitioner(Claimant.named("ethos-u55-128").deny(op="softmax", why="the GPU is for it"))
    gpu = TosaicPartitioner("TOSA-1.0+INT+FP", runtime="Gpu")
    manager = lower(quantized("residual"), [npu, gpu])
    ids = Counter(each.backend_id for each in modules_of(manager))
    assert set(ids) == {"EthosUBackend", "Gpu"}
    assert calls_outside(manager) == {"quantize_per_tensor": 1}  # not worth a delegate
    softmax = npu.why("aten__softmax_default")
    assert softmax.claimant == "host"
    assert "the GPU is for it" in str(softmax)
    assert {name for name, _ in delegates_in_file(file_of(manager))} == set(ids)


_BOTH = """
import warnings

warnings.simplefilter("ignore")
import torch
from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.lowered_backend_module import get_lowered_submodules
from tosaic.executorch import TosaicPartitioner

module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
program = torch.export.export(module, (torch.ones(2, 4),))
for partitioner in (TosaicPartitioner("TOSA-1.0+FP"), TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))):
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner])
    for _, each, _ in get_lowered_submodules(edge.exported_program().graph_module):
        print(each.backend_id, any(spec.key == "tosaic" for spec in each.compile_specs))
"""


def test_each_backend_is_called_for_its_own_delegates_if_arms_is_loaded_first() -> None:
    """In other tests of this file, ours is loaded first."""
    done = subprocess.run([sys.executable, "-c", _BOTH], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOSABackend")]
    assert lines == ["TOSABackend True", "TOSABackend False"]


def test_it_is_an_inner_partitioner_with_orders() -> None:
    wrapped = wrap_partitioner(
        TosaicPartitioner(INT), quantized_inputs="all", quantized_outputs="all", orders="channels_last"
    )
    from executorch.exir import to_edge_transform_and_lower

    with quiet():
        manager = to_edge_transform_and_lower(
            quantized("sorted"), transform_passes=order_conversions([wrapped]), partitioner=[wrapped]
        )
    found = modules_of(manager)
    assert {each.backend_id for each in found} == {"TOSABackend"}
    assert len(wrapped.plans) == 1
    assert differing_payloads(manager, INT) == 0
    args = inputs("sorted", 3)
    assert differing_from_reference_model(manager, args) == 0
    wanted = expected(quantized("sorted"), args)[0]
    np.testing.assert_allclose(run(manager, args)[0], wanted, atol=2 * np.ptp(wanted) / 255)


def test_options_of_borders_mean_the_same_as_for_wrap_partitioner() -> None:
    options: Any = {"quantized_inputs": [0], "quantized_outputs": "all", "host_ops": ["relu"]}
    target = "TOSA-1.0+INT+FP"
    own = TosaicPartitioner(target, **options)
    managers = [
        lower(quantized("residual"), [own]),
        lower(quantized("residual"), [wrap_partitioner(TosaicPartitioner(target), **options)]),
    ]
    outside = [calls_outside(manager) for manager in managers]
    assert outside[0] == outside[1]
    assert outside[0]["relu"] == 1
    assert own.why("aten_relu_default").refusals[-1].rule == "outside"


def test_without_to_edge_transform_and_lower_two_calls_are_needed() -> None:
    from executorch.exir import to_edge

    with quiet():
        edge = to_edge(quantized("residual"))
        partitioner = TosaicPartitioner(INT)
        partitioner.remember(edge.exported_program())
        edge = edge.to_backend(partitioner)
    found = modules_of(edge)
    assert {each.backend_id for each in found} == {"TosaicTosaBackend"}
    assert set_runtime_ids(edge) == len(found)
    assert set_runtime_ids(edge) == 0
    assert {name for name, _ in delegates_in_file(file_of(edge))} == {"TOSABackend"}


# ---- refusals ----


def test_what_it_does_not_take_is_refused_when_it_is_made() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="a TOSA target, 'vgf' or an Ethos-U"):
        TosaicPartitioner("cortex-m55")
    with pytest.raises(tosaic.InvalidGraph, match="nothing compiles TOSA payloads"):
        TosaicPartitioner(INT, flags=["--fast"])
    with pytest.raises(tosaic.InvalidGraph, match="the flag --accelerator-config is not free"):
        TosaicPartitioner("ethos-u55-128", flags=["--accelerator-config=ethos-u55-64"])
    with pytest.raises(tosaic.InvalidGraph, match="keys other than tosa_spec"):
        TosaicPartitioner(INT, compile_specs=[CompileSpec("tosa_spec", b"")])
    with pytest.raises(tosaic.InvalidGraph, match="the id of a runtime"):
        TosaicPartitioner(INT, runtime="")
    with pytest.raises(tosaic.InvalidGraph, match="there is no plan yet"):
        TosaicPartitioner(INT).plan  # noqa: B018
    with pytest.raises(tosaic.InvalidGraph, match="'program' is no program of ExecuTorch"):
        set_runtime_ids(3)


def test_other_compile_specs_are_refused() -> None:
    from tosaic.executorch.delegates.backends import backend_named

    with pytest.raises(tosaic.InvalidGraph, match="no compile specs of a TosaicPartitioner"):
        backend_named("TosaicTosaBackend").preprocess(exported("residual"), [CompileSpec("x", b"")])


class Mixed(nn.Module):
    """Symbolic sizes, control flow and complex numbers next to a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: Any, rows: Any) -> Any:
        y = torch.relu(self.conv(image))
        z = torch.cond(y.sum() > 0, lambda t: t + 1, lambda t: t - 1, (y,))
        return z * 2, torch.view_as_real(torch.fft.fft(y)), rows.relu() + 1


def test_what_cannot_be_imported_stays_outside_with_reasons() -> None:
    args = (torch.randn(IMAGE), torch.randn(3, 4))
    shapes = ({}, {0: torch.export.Dim("rows", min=2, max=8)})
    program = torch.export.export(Mixed().eval(), args, dynamic_shapes=shapes)
    partitioner = TosaicPartitioner("TOSA-1.0+FP")
    manager = lower(program, [partitioner])
    inside = {name for module in modules_of(manager) for name in names_inside(module)}
    assert inside >= {"aten_conv2d_default", "aten_relu_default", "aten_mul_tensor"}
    places = partitioner.plan.places
    found = {name: [each.problem.message for each in places[name].refusals] for name in places}
    assert "symbolic dimensions" in found["aten_relu_default_1"][0]
    assert any("control flow" in each[0] for name, each in found.items() if "cond" in name)
    for ours, theirs in zip(run(manager, args), expected(program, args), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_program_of_which_nothing_can_be_taken_has_no_delegates() -> None:
    program = torch.export.export(Indexed(), (torch.randn(4, 4),))
    partitioner = TosaicPartitioner(INT)
    assert modules_of(lower(program, [partitioner])) == []
    assert partitioner.plan.groups == ()


class Indexed(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.sort(x.double()).values
