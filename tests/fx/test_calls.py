"""Calls beyond one row of the table: in-place, wrappers, control flow, opaque, with several results."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
import tosaic._core as core
from fx.exporting import exported, imported, only, ops
from torch import nn
from tosaic.fx import from_exported

# torch's own run_decompositions uses a class that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

X = torch.randn(4, 6)


def both_forms(what: Any, *args: Any) -> list[Any]:
    ep = exported(what, *args)
    return [from_exported(ep), from_exported(ep.run_decompositions({}))]


def test_later_uses_of_an_operand_see_its_new_value() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y.detach()
        y.add_(1)
        return y + z

    result = imported(call, X)
    last = result.graph.nodes[-1]
    assert last.operands[0] == last.operands[1]
    assert last.operands[0].producer.op == "add"


@pytest.mark.parametrize("lay", [lambda y: y, lambda y: y.t()], ids=["contiguous", "transposed"])
def test_contiguous_is_its_operand_or_a_copy_and_writes_are_seen_accordingly(lay: Any) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = lay(x * 2)
        z = y.contiguous()
        z.add_(1)
        return y + z

    assert torch.equal(torch.as_tensor(np.asarray(tosaic.from_exported(exported(call, X)).run(X))), call(X))


def test_an_in_place_call_preserves_the_dtype_of_its_operand() -> None:
    result = imported(lambda x: x.clone().add_(torch.ones(6, dtype=torch.float64)), X)
    assert ops(result)[-2:] == ["add", "cast"] or ops(result)[-1] == "add"
    assert result.graph.outputs[0].value.dtype == "f32"


@pytest.mark.parametrize(
    "write", [lambda y: y.zero_(), lambda y: y.copy_(torch.ones(6)), lambda y: y.fill_(2.0)]
)
def test_whole_writes_replace_the_value(write: Any) -> None:
    result = imported(lambda x: write(x.clone()) + 1, X)
    assert "clone" not in [n.op for n in [result.graph.nodes[-1].operands[0].producer]]


def test_a_write_that_is_seen_as_another_dtype_is_refused_by_name() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        bits = y.view(torch.int32)
        y.add_(1)
        return bits + 1

    with pytest.raises(
        core.UnsupportedOp, match=r"writes to 'mul', whose memory 'view' shares in part"
    ) as error:
        imported(call, X)
    assert "run_decompositions" in error.value.parts["hint"]
    assert error.value.parts["node"].startswith("add_")
    # torch records frames of forward only.
    assert error.value.parts["source"].startswith("function_module.py:")


def test_a_view_that_is_no_longer_used_does_not_prevent_a_write() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        s = y[1:].sum()
        y.add_(1)
        return y + s

    assert ops(imported(call, X))[-1] == "add"


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("still", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count + self.still


def test_a_mutated_buffer_is_a_state_with_a_mutation_output() -> None:
    module = Counter()
    for result in both_forms(module, torch.ones(3)):
        state, user = result.graph.inputs
        assert (state.kind, state.path, user.kind) == ("state", "count", "user")
        # A copy, so that runs of the module do not change our initial state.
        assert state.initial.data_ptr != module.count.data_ptr()
        mutation, out = result.graph.outputs
        assert (mutation.kind, mutation.path, mutation.mutated_input) == ("mutation", "count", 0)
        assert (out.kind, out.path) == ("user", "out")
        assert [c.name for c in result.graph.constants.values() if c.kind == "buffer"] == ["still"]
        assert result.signature.unflatten(["new count", "sum"]) == "sum"


def test_a_mutated_user_input_is_an_input_with_a_mutation_output() -> None:
    for result in both_forms(lambda x: x.mul_(2) + 1, X.clone()):
        mutation, _ = result.graph.outputs
        assert (mutation.kind, mutation.mutated_input) == ("mutation", 0)


def test_no_grad_regions_are_inlined() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        with torch.no_grad():
            z = y * 2
        return z - 1

    result = imported(call, X)
    assert ops(result) == ["add", "mul", "sub"]
    assert result.graph.nodes[1].origin.fx_name.endswith(".mul")


def test_assertions_and_sizes_become_no_nodes() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 1)
        return x.reshape(x.shape[0] * 2, x.shape[1] // 2).to(torch.float32)

    shapes = ({0: torch.export.Dim("rows", min=2, max=64)},)
    result = imported(call, X, bind={0: {0: 8}}, dynamic_shapes=(shapes,))
    assert [n.op for n in result.graph.nodes if n.op != "clone"] == ["reshape"]
    assert result.graph.outputs[0].value.shape == (16, 3)


@torch.library.custom_op("tosaic_tests::bounded", mutates_args=())
def bounded(x: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    return x.clamp(low, high)


@bounded.register_fake
def _(x: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_foreign_call_becomes_an_opaque_node_with_all_its_arguments() -> None:
    result = imported(lambda x: bounded(bounded(x, high=float("inf"), low=-1.0)), X)
    assert ops(result) == ["opaque", "opaque"]
    first, second = result.graph.nodes
    assert first.attrs["target"] == "tosaic_tests.bounded.default"
    document = json.loads(first.attrs["arguments"])
    assert document == {"args": [{"$": 0}], "kwargs": {"high": {"float": "inf"}, "low": -1.0}}
    assert second.operands[0] == first.results[0]
    assert [d.rule for d in result.diagnostics] == ["opaque", "opaque"]


def test_a_foreign_call_with_several_results_has_all_of_them() -> None:
    result = imported(lambda x: torch.frexp(x), X)
    node = only(result)
    assert [r.dtype for r in node.results] == ["f32", "i32"]
    assert [o.value.shape for o in result.graph.outputs] == [(4, 6), (4, 6)]


def test_results_that_the_table_cannot_express_make_the_call_opaque() -> None:
    assert "opaque" in ops(imported(lambda x: x.masked_scatter(x > 0, x[:0]), torch.randn(2, 4)))


def test_a_call_that_its_row_does_not_cover_is_decomposed() -> None:
    result = imported(lambda x: torch.ops.aten.native_layer_norm(x, [6], None, None, 1e-5)[:2], X)
    assert "opaque" not in ops(result)


def test_training_forms_stay_opaque_and_lost_updates_are_reported() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5)).train()
    result = from_exported(torch.export.export(module, (X,)))
    foreign = [n.attrs["target"] for n in result.graph.nodes if n.op == "opaque"]
    assert foreign == ["aten.native_batch_norm.default", "aten.dropout.default"]
    assert "unseen-update" in [d.rule for d in result.diagnostics]
    functional = from_exported(torch.export.export(module, (X,)).run_decompositions())
    assert {o.path for o in functional.graph.outputs if o.kind == "mutation"} >= {
        "0.running_mean",
        "0.running_var",
    }


def test_a_number_that_depends_on_data_is_refused_where_it_is_used() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().to(torch.int64).item()
        torch._check(n >= 0)
        return torch.full((3,), n)

    with pytest.raises(core.UnsupportedOp, match=r"aten.item.default that has no value here"):
        imported(call, X)


def test_cond_has_a_region_per_branch() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t * 2, (x,))

    result = imported(call, X)
    (node,) = [n for n in result.graph.nodes if n.op == "cond"]
    assert [[n.op for n in region.nodes] for region in node.regions] == [["add"], ["mul"]]
    assert [v.shape for v in node.results] == [(4, 6)]


def test_while_loop_has_a_condition_and_a_body() -> None:
    def call(x: torch.Tensor) -> Any:
        return torch._higher_order_ops.while_loop(
            lambda i, _: i < 3, lambda i, t: (i + 1, t * 2), (torch.tensor(0), x)
        )

    result = imported(call, X)
    (node,) = [n for n in result.graph.nodes if n.op == "while_loop"]
    condition, body = node.regions
    assert condition.outputs[0].value.dtype == "bool"
    assert [n.op for n in body.nodes] == ["add", "mul"]


def test_a_recorded_shape_that_contradicts_the_operator_is_refused() -> None:
    ep = exported(lambda x: x.relu(), X)
    for node in ep.graph.nodes:
        if node.op == "call_function":
            with torch._subclasses.FakeTensorMode():
                node.meta["val"] = torch.empty(4, 7)
    with pytest.raises(
        core.InvalidGraph, match=r"expected f32\[4,7\], got f32\[4,6\] \(node 'relu'"
    ) as error:
        from_exported(ep)
    assert error.value.parts["where"] == "import"


def test_a_module_that_is_not_exported_is_refused() -> None:
    with pytest.raises(core.InvalidGraph, match="not an exported program"):
        from_exported(nn.Linear(2, 2))
