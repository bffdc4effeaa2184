"""One call of torch, one canonical node: the operator, its attributes and its types."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
from fx.exporting import exported, imported, only, ops
from tosaic import _core
from tosaic.fx import from_exported
from tosaic.torch_operators.call import Emit
from tosaic.torch_operators.table import TABLE

# torch's own run_decompositions uses a class that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

X = torch.randn(2, 3, 8, 8)
V = torch.randn(4, 6)
I = torch.arange(6).reshape(2, 3)  # noqa: E741
A = torch.ops.aten
QUANTIZED = torch.ops.quantized_decomposed
SCALES, ZEROS = torch.ones(6), torch.zeros(6, dtype=torch.int64)

# call, arguments, operator, attributes that matter
ONE_NODE: list[tuple[Any, tuple[Any, ...], str, dict[str, Any]]] = [
    (
        lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), stride=2, padding=1),
        (X,),
        "conv",
        {"stride": (2, 2), "pad_before": (1, 1)},
    ),
    (
        lambda x: F.conv2d(x, torch.ones(4, 3, 2, 4), padding="same"),
        (X,),
        "conv",
        {"pad_before": (0, 1), "pad_after": (1, 2)},
    ),
    (lambda x: F.conv2d(x, torch.ones(4, 3, 2, 2), padding="valid"), (X,), "conv", {"pad_before": (0, 0)}),
    (
        lambda x: F.conv_transpose2d(x, torch.ones(3, 5, 3, 3), stride=2, output_padding=1, dilation=2),
        (X,),
        "conv",
        {"transposed": True, "output_padding": (1, 1), "dilation": (2, 2)},
    ),
    (
        lambda x: F.conv1d(x[:, :, 0], torch.ones(6, 1, 3), groups=3),
        (X,),
        "conv",
        {"groups": 3, "stride": (1,)},
    ),
    (lambda x: torch.matmul(x, x.mT), (V,), "matmul", {}),
    (lambda x: A.bmm(x, x), (torch.ones(2, 3, 3),), "matmul", {}),
    (lambda x: torch.addmm(x, x, x, beta=2, alpha=3), (torch.ones(3, 3),), "addmm", {"beta": 2, "alpha": 3}),
    (
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        (X,),
        "sdpa",
        {"is_causal": True, "scale": None},
    ),
    (lambda x: x.square(), (V,), "mul", {}),
    (lambda x: torch.isnan(x), (V,), "ne", {}),
    (lambda x: F.relu6(x), (V,), "clamp", {"min": 0, "max": 6}),
    (lambda x: x.clamp_min(0.5), (V,), "clamp", {"min": 0.5, "max": None}),
    (lambda x: x.clamp(max=2), (V,), "clamp", {"min": None, "max": 2}),
    (lambda x: torch.clamp(x, min=torch.zeros(6)), (V,), "maximum", {}),
    (lambda x: F.leaky_relu(x, 0.25), (V,), "leaky_relu", {"alpha": 0.25}),
    (lambda x: F.gelu(x, approximate="tanh"), (V,), "gelu", {"tanh": True}),
    (lambda x: F.elu(x, 0.5), (V,), "elu", {"alpha": 0.5}),
    (lambda x: F.celu(x, 0.5), (V,), "elu", {"alpha": 0.5, "scale": 1.0, "input_scale": 2.0}),
    (lambda x: F.softplus(x, 2, 10), (V,), "softplus", {"beta": 2.0, "threshold": 10.0}),
    (lambda x: F.softshrink(x, 0.25), (V,), "softshrink", {"alpha": 0.25}),
    (lambda x: F.hardshrink(x, 0.25), (V,), "hardshrink", {"alpha": 0.25}),
    (lambda x: torch.logit(x, 0.1), (V,), "logit", {"eps": 0.1}),
    (
        lambda x: torch.nan_to_num(x, posinf=2),
        (V,),
        "nan_to_num",
        {"nan": 0.0, "posinf": 2.0, "neginf": None},
    ),
    (lambda x: F.prelu(x, torch.ones(6)), (V,), "prelu", {}),
    (lambda x: F.glu(x, -1), (V,), "glu", {"axis": 1}),
    (lambda x: torch.lerp(x, x, 0.25), (V,), "lerp", {}),
    (lambda x: torch.addcmul(x, x, x, value=3), (V,), "addcmul", {"value": 3}),
    (lambda x: torch.addcdiv(x, x, x, value=0.5), (V,), "addcdiv", {"value": 0.5}),
    (lambda x: x % 3, (V,), "remainder", {}),
    (lambda x: torch.fmod(x, x), (V,), "fmod", {}),
    (lambda x: torch.atan2(x, x), (V,), "atan2", {}),
    (lambda x: x << 2, (I,), "left_shift", {}),
    (lambda x: torch.bitwise_right_shift(x, x), (I,), "right_shift", {}),
    (lambda x: torch.logsumexp(x, -1), (V,), "logsumexp", {"axes": (1,), "keepdim": False}),
    (
        lambda x: torch.linalg.vector_norm(x, float("inf"), 0, True),
        (V,),
        "vector_norm",
        {"ord": float("inf"), "axes": (0,), "keepdim": True},
    ),
    (lambda x: x.std(0, correction=2), (V,), "std", {"axes": (0,), "correction": 2.0}),
    (
        lambda x: QUANTIZED.quantize_per_tensor(x, 0.5, 3, -128, 127, torch.int8),
        (V,),
        "quantize",
        {"scales": (0.5,), "zero_points": (3,), "axis": None},
    ),
    (
        lambda x: QUANTIZED.dequantize_per_channel(x.to(torch.int8), SCALES, ZEROS, 1, -128, 127, torch.int8),
        (V,),
        "dequantize",
        {"axis": 1, "dtype": "f32"},
    ),
    (lambda x: x.to(torch.float64), (V,), "cast", {"dtype": "f64"}),
    (lambda x: A.to.dtype(x, torch.float32), (V,), "clone", {"order": None}),
    (lambda x: x.detach(), (V,), "clone", {}),
    (lambda x: x.clone(memory_format=torch.channels_last), (X,), "clone", {"order": (0, 2, 3, 1)}),
    (lambda x: F.dropout(x, 0.5, training=False), (V,), "clone", {}),
    (lambda x: x + 2, (V,), "add", {"alpha": 1}),
    (lambda x: torch.sub(x, x, alpha=2), (V,), "sub", {"alpha": 2}),
    (lambda x: torch.rsub(x, 3), (V,), "sub", {}),
    (lambda x: torch.div(x, 3, rounding_mode="floor"), (V,), "div", {"rounding": "floor"}),
    (lambda x: x // 2, (I,), "div", {"rounding": "floor"}),
    (lambda x: x / 2, (I,), "div", {"rounding": "none"}),
    (lambda x: 2**x, (V,), "pow", {}),
    (lambda x: x**2.5, (V,), "pow", {}),
    (lambda x: x >= 1, (I,), "ge", {}),
    (lambda x: torch.max(x, x), (V,), "maximum", {}),
    (lambda x: x.masked_fill(torch.ones(6, dtype=torch.bool), -1e9), (V,), "where", {}),
    (lambda x: torch.where(x, 1.0, 0.0), (V > 0,), "where", {}),
    (lambda x: torch.where(x, torch.ones(6), 2), (V > 0,), "where", {}),
    (lambda x: x.sum(), (I,), "sum", {"axes": (0, 1), "dtype": None}),
    (
        lambda x: x.sum(-1, keepdim=True, dtype=torch.float32),
        (I,),
        "sum",
        {"axes": (1,), "dtype": "f32", "keepdim": True},
    ),
    (lambda x: x.mean((-1, 0)), (V,), "mean", {"axes": (0, 1)}),
    (lambda x: x.amax(()), (V,), "amax", {"axes": (0, 1)}),
    (lambda x: x.max(), (V,), "amax", {"axes": (0, 1)}),
    (lambda x: x.max(1).values, (V,), "amax", {"axes": (1,), "keepdim": False}),
    (lambda x: x.min(1, keepdim=True).indices, (V,), "argmin", {"axis": 1, "keepdim": True}),
    (lambda x: x.any(0), (I > 2,), "any", {"axes": (0,)}),
    (lambda x: x.var(1, correction=0), (V,), "var", {"axes": (1,), "correction": 0.0}),
    (lambda x: x.var(unbiased=True), (V,), "var", {"axes": (0, 1), "correction": 1.0}),
    (lambda x: x.argmax(), (V,), "argmax", {"axis": None}),
    (lambda x: x.cumsum(-1), (I,), "cumsum", {"axis": 1}),
    (lambda x: F.layer_norm(x, (6,)), (V,), "layer_norm", {"normalized_rank": 1, "eps": 1e-5}),
    (lambda x: F.rms_norm(x, (6,)), (V,), "rms_norm", {"eps": None}),
    (lambda x: F.group_norm(x, 3), (X,), "group_norm", {"groups": 3}),
    (lambda x: x.softmax(-1), (V,), "softmax", {"axis": 1, "dtype": None}),
    (lambda x: F.log_softmax(x, 0, dtype=torch.float64), (V,), "log_softmax", {"axis": 0, "dtype": "f64"}),
    (lambda x: A._softmax(x, -1, False), (V,), "softmax", {"axis": 1, "dtype": None}),
    (lambda x: A._safe_softmax(x, -1), (V,), "safe_softmax", {"axis": 1}),
    (
        lambda x: F.avg_pool2d(x, 2, ceil_mode=True),
        (X,),
        "avg_pool",
        {"kernel": (2, 2), "stride": (2, 2), "ceil_mode": True},
    ),
    (
        lambda x: F.avg_pool2d(x, (2, 4), divisor_override=3),
        (X,),
        "avg_pool",
        {"kernel": (2, 4), "divisor_override": 3},
    ),
    (
        lambda x: F.max_pool2d(x, 3, 2, 1),
        (X,),
        "max_pool",
        {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)},
    ),
    (lambda x: A.max_pool2d_with_indices(x, [2, 2])[0], (X,), "max_pool", {"stride": (2, 2)}),
    (lambda x: F.adaptive_avg_pool2d(x, (None, 2)), (X,), "adaptive_avg_pool", {"shape": (8, 2)}),
    (
        lambda x: F.interpolate(x, scale_factor=2),
        (X,),
        "resize",
        {"mode": "nearest", "size": (16, 16), "scales": (2.0, 2.0)},
    ),
    (
        lambda x: F.interpolate(x, (5, 6), mode="bilinear", align_corners=True),
        (X,),
        "resize",
        {"mode": "bilinear", "size": (5, 6), "align_corners": True, "scales": ()},
    ),
    (lambda x: x.flatten(1), (X,), "reshape", {"shape": (2, 192)}),
    (lambda x: x.view(3, -1), (V,), "reshape", {"shape": (3, 8)}),
    (lambda x: x.unsqueeze(-1), (V,), "reshape", {"shape": (4, 6, 1)}),
    (lambda x: x.unflatten(1, (2, 3)), (V,), "reshape", {"shape": (4, 2, 3)}),
    (lambda x: x.squeeze(0), (torch.ones(1, 2),), "reshape", {"shape": (2,)}),
    (lambda x: A.as_strided(x, [6, 4], [4, 1]), (V,), "reshape", {"shape": (6, 4)}),
    (lambda x: x.expand(2, -1, -1), (V,), "expand", {"shape": (2, 4, 6)}),
    (lambda x: x.permute(0, -1, 1, 2), (X,), "permute", {"perm": (0, 3, 1, 2)}),
    (lambda x: x.transpose(-1, 1), (X,), "permute", {"perm": (0, 3, 2, 1)}),
    (lambda x: x.t(), (V,), "permute", {"perm": (1, 0)}),
    (lambda x: x.movedim(1, -1), (X,), "permute", {"perm": (0, 2, 3, 1)}),
    (lambda x: x.repeat(2, 1, 3), (V,), "repeat", {"shape": (2, 1, 3)}),
    (lambda x: torch.cat([x, x], -1), (V,), "cat", {"axis": 1}),
    (lambda x: torch.stack([x, x], -1), (V,), "stack", {"axis": 2}),
    (lambda x: x.select(-1, -1), (V,), "select", {"axis": 1, "index": 5}),
    (lambda x: x[1:-1:2], (V,), "slice", {"axis": 0, "start": 1, "end": 3, "step": 2}),
    (lambda x: x.narrow(1, -2, 2), (V,), "slice", {"axis": 1, "start": 4, "end": 6}),
    (lambda x: x.flip(-1, 0), (V,), "flip", {"axes": (0, 1)}),
    (
        lambda x: F.pad(x, (1, 2, 0, 3), value=4.0),
        (V,),
        "pad",
        {"before": (0, 1), "after": (3, 2), "value": 4.0},
    ),
    (
        lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"),
        (X,),
        "pad",
        {"before": (0, 0, 3, 1), "mode": "reflect"},
    ),
    (lambda x: F.pad(x, (1, 1), mode="circular"), (torch.ones(1, 2, 4),), "pad", {"mode": "circular"}),
    (lambda x: x.tril(-1), (V,), "tril", {"diagonal": -1}),
    (lambda x: x.gather(1, torch.zeros(4, 2, dtype=torch.int64)), (V,), "gather", {"axis": 1}),
    (lambda x: x.index_select(0, torch.tensor([1, 2])), (V,), "index_select", {"axis": 0}),
    (lambda x: A.index.Tensor(x, [None, torch.tensor([1, 2])]), (V,), "index", {}),
    (lambda x: F.embedding(x, torch.ones(9, 4)), (I,), "embedding", {}),
    (lambda x: torch.einsum("ij, kj", x, x), (V,), "einsum", {"equation": "ij,kj->ik"}),
    (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (X,), "adaptive_max_pool", {"shape": (3, 2)}),
    (
        lambda x: F.interpolate(x, (5, 6), mode="bicubic"),
        (X,),
        "resize",
        {"mode": "bicubic", "align_corners": False},
    ),
    (
        lambda x: F.grid_sample(x, torch.ones(2, 1, 4, 2), "nearest", "border", True),
        (X,),
        "grid_sample",
        {"mode": "nearest", "padding": "border", "align_corners": True},
    ),
    (lambda x: F.affine_grid(x, (2, 3, 4, 5), True), (torch.ones(2, 2, 3),), "affine_grid", {}),
    (
        lambda x: x.scatter(1, torch.zeros(2, 1, dtype=torch.int64), x),
        (V,),
        "scatter",
        {"axis": 1},
    ),
    (
        lambda x: torch.index_put(x, (torch.tensor([1, 1]),), x[:2], True),
        (V,),
        "index_put",
        {"accumulate": True},
    ),
    (
        lambda x: torch.slice_scatter(x, x[:2], 0, 1, 4, 2),
        (V,),
        "slice_scatter",
        {"axis": 0, "start": 1, "end": 4, "step": 2},
    ),
]


@pytest.mark.parametrize(
    ("call", "args", "op", "attrs"), ONE_NODE, ids=[f"{i}-{row[2]}" for i, row in enumerate(ONE_NODE)]
)
def test_a_call_becomes_one_node_of_its_operator(
    call: Any, args: Any, op: str, attrs: dict[str, Any]
) -> None:
    result = imported(call, *args)
    nodes = [node for node in result.graph.nodes if node.op == op]
    assert nodes, ops(result)
    assert {key: nodes[-1].attrs[key] for key in attrs} == attrs
    assert "opaque" not in ops(result)
    result.graph.verify()


@pytest.mark.parametrize(
    ("call", "args", "op", "attrs"), ONE_NODE, ids=[f"{i}-{row[2]}" for i, row in enumerate(ONE_NODE)]
)
def test_a_decomposed_call_needs_no_opaque_node(call: Any, args: Any, op: str, attrs: dict[str, Any]) -> None:
    result = from_exported(exported(call, *args).run_decompositions())
    foreign = {node.attrs["target"] for node in result.graph.nodes if node.op == "opaque"}
    assert foreign == set()
    result.graph.verify()


@pytest.mark.parametrize(
    ("call", "value", "dtype"),
    [
        (lambda x: torch.full_like(x, 3), 3.0, "f32"),
        (lambda x: torch.zeros(2, 3, dtype=torch.int64), 0, "i64"),
        (lambda x: x.new_ones(2, dtype=torch.bool), True, "bool"),
        (lambda x: torch.scalar_tensor(2), 2.0, "f32"),
    ],
)
def test_creation_becomes_full(call: Any, value: Any, dtype: str) -> None:
    (node,) = [n for n in imported(lambda x: (call(x), x + x), V).graph.nodes if n.op == "full"]
    assert (node.attrs["value"], node.attrs["dtype"]) == (value, dtype)
    assert type(node.attrs["value"]) is type(value)


@pytest.mark.parametrize(
    ("tensor", "number", "dtype"),
    [
        (torch.ones(2), 2, "f32"),
        (torch.ones(2, dtype=torch.float16), 2.5, "f32"),  # not rounded first
        (torch.ones(2, dtype=torch.bfloat16), 2.5, "f32"),
        (torch.ones(2, dtype=torch.int8), 2, "i8"),
        (torch.ones(2, dtype=torch.int8), 2.5, "f32"),
        (torch.ones(2, dtype=torch.bool), 2, "i64"),
        (torch.ones(2, dtype=torch.int32), True, "i32"),
    ],
)
def test_a_number_becomes_a_constant_that_promotes_as_torch_does(
    tensor: torch.Tensor, number: Any, dtype: str
) -> None:
    node = only(imported(lambda x: x * number, tensor))
    assert node.operands[1].shape == ()
    assert node.operands[1].dtype == dtype
    assert torch.tensor(node.operands[1].constant.array.astype("float64").item()) == number


def test_equal_numbers_share_a_constant() -> None:
    result = imported(lambda x: (x + 2.5) * 2.5 + 3.5, V)
    assert sorted(c.array.item() for c in result.graph.constants.values()) == [2.5, 3.5]


def test_used_results_of_one_call_become_one_node_each() -> None:
    result = imported(lambda x: (*torch.max(x, 1), *torch.var_mean(x, 0)), V)
    assert ops(result) == ["amax", "argmax", "var", "mean"]


def test_split_and_unbind_have_all_results() -> None:
    result = imported(lambda x: (*x.chunk(4, 1), *x.split([1, 3]), *x.unbind(0)), V)
    assert ops(result) == ["split", "split", "unbind"]
    assert [n.attrs.get("sizes") for n in result.graph.nodes] == [(2, 2, 2), (1, 3), None]
    assert len(result.graph.outputs) == 3 + 2 + 4


def test_cat_skips_empty_vectors_as_torch_does() -> None:
    result = imported(lambda x: torch.cat([torch.zeros(0), x]), V)
    assert [len(n.operands) for n in result.graph.nodes if n.op == "cat"] == [1]


def test_both_tensor_bounds_of_a_clamp_are_two_nodes_with_one_origin() -> None:
    result = imported(lambda x: torch.clamp(x, torch.zeros(6), torch.ones(6)), V)
    names = [n.origin.fx_name for n in result.graph.nodes if n.op in ("maximum", "minimum")]
    assert names == ["clamp", "clamp"]


def accepts(emit: Emit, arity: int) -> bool:
    """True if a row can be called with the importer and `arity` arguments."""
    try:
        inspect.signature(emit).bind(*range(arity + 1))
    except TypeError:
        return False
    return True


def test_every_row_accepts_the_arguments_of_its_schema() -> None:
    wrong = []
    for key, emit in TABLE.items():
        name, _, overload = key.partition(".")
        packet = getattr(torch.ops.aten, name, None) if "::" not in name else None
        target = getattr(packet, overload or "default", None) if packet is not None else None
        if target is not None and not accepts(emit, len(target._schema.arguments)):
            wrong.append(key)
    assert wrong == []


def test_every_canonical_operator_but_fusions_is_reached_by_the_table() -> None:
    reached = set()
    for call, args, _, _ in ONE_NODE:
        reached |= set(ops(imported(call, *args)))
    canonical = {row.name for row in _core.ops() if not row.is_tosa}
    unary = {name for name in TABLE if name in canonical}
    assert {"conv", "resize", "sdpa", "pad", "index"} <= reached
    assert len(reached | unary) > 0.85 * len(canonical), sorted(canonical - reached - unary)
