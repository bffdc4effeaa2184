"""`wrap_partitioner` around hand-made partitioners: groups, constants, buffers, and errors by their texts.

ExecuTorch lowers the programs with a backend that compiles nothing. Its delegates run the graph that they
were given, so that a wrong split gives a wrong result, or does not lower.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

import pytest
from tosaic import InvalidGraph, QuantMismatch
from tosaic.executorch import combine_partitioners, wrap_partitioner

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.exir")

from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower  # noqa: E402
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult  # noqa: E402
from executorch.exir.backend.compile_spec_schema import CompileSpec  # noqa: E402
from executorch.exir.backend.partitioner import (  # noqa: E402
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer  # noqa: E402
from models.wrapped import Watched, delegates  # noqa: E402
from models.zoo import quiet  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]
INTEGERS = [CompileSpec("tosa_spec", b"TOSA-1.0+INT")]


@final
class Nothing(BackendDetails):
    """A backend that compiles nothing."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"nothing")


def name_of(node: Any) -> str:
    """Returns the name of the operator or function that a node calls."""
    schema = getattr(getattr(node.target, "_op", None), "_schema", None)
    return node.target.__name__ if schema is None else schema.name.split("::")[1]


class Tags(Partitioner):
    """Tags the calls of each operator, or the k-th call of it, as a table says."""

    def __init__(self, tags: Mapping[str, str], specs: Sequence[Any] = (), *, buffers: bool = False) -> None:
        super().__init__()
        self._tags = tags
        self._specs = list(specs)
        self._buffers = buffers

    def partition(self, exported_program: Any) -> PartitionResult:
        counts: dict[str, int] = {}
        for node in exported_program.graph.nodes:
            if node.op != "call_function":
                continue
            name = name_of(node)
            counts[name] = counts.get(name, 0) + 1
            tag = self._tags.get(f"{name}{counts[name]}", self._tags.get(name, self._tags.get("*")))
            if tag is not None:
                node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        if self._buffers:
            tag_mutated_buffer(exported_program)
        spec = DelegationSpec("Nothing", self._specs)
        tags = dict.fromkeys(self._tags.values(), spec)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


def exported(function: Any, *args: Any) -> Any:
    class Model(nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    return torch.export.export(Model(), args)


def partitioned(partitioner: Partitioner, program: Any) -> dict[str, list[str]]:
    """Returns the operators of each tag."""
    edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False)).exported_program()
    result = partitioner.partition(edge)
    found: dict[str, list[str]] = {tag: [] for tag in result.partition_tags}
    for node in edge.graph.nodes:
        tag = node.meta.get("delegation_tag")
        if tag is not None and node.op == "call_function":
            found[tag].append(name_of(node))
    return found


def lowered(partitioners: Sequence[Partitioner], program: Any) -> Any:
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = EdgeCompileConfig(_check_ir_validity=False)
        return to_edge_transform_and_lower(program, partitioner=list(partitioners), compile_config=config)


def assert_computes_the_same(manager: Any, program: Any, *args: Any) -> None:
    expected = program.module(check_guards=False)(*args)
    found = manager.exported_program().module(check_guards=False)(*args)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def q(x: Any, scale: float = 0.01) -> Any:
    return torch.ops.quantized_decomposed.quantize_per_tensor(x, scale, 0, -128, 127, torch.int8)


def dq(x: Any, scale: float = 0.01) -> Any:
    return torch.ops.quantized_decomposed.dequantize_per_tensor(x, scale, 0, -128, 127, torch.int8)


def qdq(x: Any) -> Any:
    return dq(q(x))


# ---- groups ----


def test_a_group_that_would_wait_for_a_host_operator_is_split() -> None:
    program = exported(lambda x: (torch.cos(torch.erf(torch.sin(x))),), X)
    watched = Watched(wrap_partitioner(Tags({"*": "a"}), host_ops=["erf"]), host="erf")
    manager = lowered([watched], program)
    assert watched.wrong == []
    assert [each.calls for each in delegates(manager)] == [1, 1]
    assert_computes_the_same(manager, program, X)


def test_two_tags_that_wait_for_each_other_are_split() -> None:
    def crossed(x: Any) -> Any:
        return torch.cos(torch.sin(x)), torch.tanh(torch.exp(x))  # sin -> cos, exp -> tanh

    tags = Tags({"sin": "a", "tanh": "a", "cos": "b", "exp": "b"})
    found = partitioned(wrap_partitioner(tags), exported(crossed, X))
    assert found == {"a": ["sin", "tanh"], "b": ["cos"], "b_1": ["exp"]}
    watched = Watched(wrap_partitioner(tags))
    manager = lowered([watched], exported(crossed, X))
    assert (watched.wrong, len(delegates(manager))) == ([], 3)
    assert_computes_the_same(manager, exported(crossed, X), X)


def test_a_group_that_falls_apart_becomes_connected_groups() -> None:
    program = exported(lambda x: (lambda s: (torch.sin(s), torch.cos(s)))(torch.erf(x)), X)
    found = partitioned(wrap_partitioner(Tags({"*": "a"}), host_ops=["erf"]), program)
    assert found == {"a": ["sin"], "a_1": ["cos"]}


def test_parts_that_were_never_connected_stay_in_one_group() -> None:
    program = exported(lambda x, y: (torch.sin(x), torch.cos(torch.erf(y))), X, X)
    found = partitioned(wrap_partitioner(Tags({"*": "a"}), host_ops=["erf"]), program)
    assert found == {"a": ["sin", "cos"]}


def test_a_group_without_work_is_dropped_only_if_it_changed() -> None:
    program = exported(lambda x: (torch.erf(qdq(x)).reshape(-1),), X)
    wrapped = wrap_partitioner(Tags({"*": "a"}), host_ops=["erf"])
    assert partitioned(wrapped, program) == {}
    views = Tags({"view_copy": "a"})
    assert partitioned(wrap_partitioner(views, host_ops=["erf"]), program) == {"a": ["view_copy"]}


def test_a_movement_that_moves_something_is_work() -> None:
    program = exported(lambda x: (torch.erf(x).t(),), X)
    found = partitioned(wrap_partitioner(Tags({"*": "a"}), host_ops=["erf"]), program)
    assert list(found.values()) == [["permute_copy"]]


def test_a_tuple_and_its_elements_leave_together() -> None:
    program = exported(lambda x: (torch.sin(torch.max(torch.cos(x), 1)[0]),), X)
    found = partitioned(wrap_partitioner(Tags({"*": "a"}), host_ops=["aten.max.dim"]), program)
    assert found == {"a": ["cos"], "a_1": ["sin"]}


def test_control_flow_around_a_host_operator_stays_on_the_host() -> None:
    def branched(x: Any) -> Any:
        y = torch.sin(x)
        return (torch.cos(torch.cond(y.sum() > 0, torch.erf, torch.tanh, (y,))),)

    program = exported(branched, X)
    names = {"sin": "a", "sum": "a", "gt": "a", "cos": "a", "cond": "a"}
    found = partitioned(wrap_partitioner(Tags(names), host_ops=["erf"]), program)
    assert found == {"a": ["sin", "sum", "gt"], "a_1": ["cos"]}


# ---- floats of integer-only backends ----


def test_a_delegate_without_floats_loses_what_would_read_or_return_floats() -> None:
    program = exported(lambda x: (torch.sin(qdq(x)), qdq(torch.cos(qdq(x)))), X)
    inner = Tags({"*": "a"}, INTEGERS)
    found = partitioned(wrap_partitioner(inner), program)
    assert found == {"a": ["dequantize_per_tensor", "cos", "quantize_per_tensor"]}
    watched = Watched(wrap_partitioner(inner), integer_only=True)
    manager = lowered([watched], program)
    assert watched.wrong == []
    assert [each.floats for each in delegates(manager)] == [0]
    assert_computes_the_same(manager, program, X)


def test_the_option_says_that_another_backend_has_no_floats() -> None:
    program = exported(lambda x: (qdq(torch.cos(qdq(x))),), X)
    assert len(partitioned(wrap_partitioner(Tags({"*": "a"})), program)["a"]) == 5
    found = partitioned(wrap_partitioner(Tags({"*": "a"}), integer_only=True), program)
    assert found == {"a": ["dequantize_per_tensor", "cos", "quantize_per_tensor"]}


def test_a_shared_dequantize_node_is_copied_for_host_operators_and_outputs() -> None:
    def shared(x: Any) -> Any:
        value = qdq(x)
        return value, qdq(torch.erf(value)), qdq(torch.cos(value))

    program = exported(shared, X)
    before = str(program.graph)
    options = {"quantized_outputs": [0], "host_ops": ["erf"]}
    watched = Watched(wrap_partitioner(Tags({"*": "a"}, INTEGERS), **options), outputs=[0], integer_only=True)
    manager = lowered([watched], program)
    assert watched.wrong == []
    assert [(each.floats, each.calls) for each in delegates(manager)] == [(0, 3)]  # dequantize, cos, quantize
    assert_computes_the_same(manager, program, X)
    assert str(program.graph) == before


def test_layout_operators_at_the_boundary_stay_outside() -> None:
    def viewed(x: Any) -> Any:
        return dq(q(torch.cos(dq(q(x.t()))))).reshape(-1), x

    program = exported(viewed, X)
    options: dict[str, Any] = {"quantized_inputs": "all", "quantized_outputs": "all"}
    found = partitioned(wrap_partitioner(Tags({"*": "a"}), **options), program)
    assert found == {"a": ["dequantize_per_tensor", "cos", "quantize_per_tensor"]}


def test_an_output_that_is_returned_twice_counts_twice() -> None:
    def twice(x: Any) -> Any:
        value = qdq(torch.cos(x))
        return value, value, qdq(torch.sin(x))

    both = wrap_partitioner(Tags({"*": "a"}), quantized_outputs=[2])
    assert partitioned(both, exported(twice, X))["a"].count("dequantize_per_tensor") == 1
    with pytest.raises(InvalidGraph, match="an index below 3, got 3"):
        partitioned(wrap_partitioner(Tags({"*": "a"}), quantized_outputs=[3]), exported(twice, X))
    watched = Watched(wrap_partitioner(Tags({"*": "a"}), quantized_outputs=[1]), outputs=[1])
    manager = lowered([watched], exported(twice, X))
    assert watched.wrong == []
    assert_computes_the_same(manager, exported(twice, X), X)


# ---- constants and buffers ----


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("state", torch.zeros(3, 4))

    def forward(self, x: Any) -> Any:
        y = torch.cos(x * self.weight)
        z = torch.erf(y) * self.weight
        self.state.add_(y)
        return z, self.state * 1.0


def test_a_constant_of_both_sides_is_copied() -> None:
    program = exported_held()
    watched = Watched(wrap_partitioner(Tags({"*": "a"}), host_ops=["erf", "aten.mul.Tensor"]))
    lowered([watched], program)
    assert watched.wrong == []
    watched = Watched(wrap_partitioner(Tags({"*": "a"}), host_ops=["erf"]))
    manager = lowered([watched], program)
    assert watched.wrong == []
    assert len(delegates(manager)) == 2
    assert_computes_the_same(manager, exported_held(), X)


def test_a_buffer_belongs_to_the_delegate_that_alone_reads_and_writes_it() -> None:
    inner = Tags({"*": "a"}, buffers=True)
    kept = lowered([wrap_partitioner(inner)], exported_held())
    assert "b_state" not in kept.exported_program().graph_signature.inputs_to_buffers
    outside = lowered([wrap_partitioner(inner, host_ops=["aten.add.Tensor"])], exported_held())
    assert "b_state" in outside.exported_program().graph_signature.inputs_to_buffers
    assert_computes_the_same(outside, exported_held(), X)


def exported_held() -> Any:
    return torch.export.export(Held(), (X,))


# ---- what passes through ----


def test_hooks_and_attributes_of_the_inner_partitioner_are_used() -> None:
    class Hooked(Tags):
        compile_spec = "its own"

        def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
            self.transformed = True
            return exported_program

        def ops_to_not_decompose(self, ep: Any) -> Any:
            return [torch.ops.aten.silu.default], lambda node: "silu" in str(node.target)

    inner = Hooked({"silu": "a"})
    wrapped = wrap_partitioner(inner, host_ops=["gelu"])
    program = exported(lambda x: (nn.functional.silu(nn.functional.gelu(x)),), X)
    listed, accept = wrapped.ops_to_not_decompose(program)
    assert set(listed) == {torch.ops.aten.silu.default, torch.ops.aten.gelu.default}
    assert accept is not None
    assert all(accept(node) for node in program.graph.nodes if node.op == "call_function")
    manager = lowered([wrapped], program)
    assert [each.calls for each in delegates(manager)] == [1]
    assert any("gelu" in str(node.target) for node in manager.exported_program().graph.nodes)
    assert inner.transformed
    assert wrapped.compile_spec == "its own"


@pytest.mark.parametrize(
    "operator",
    ["erf", "aten.erf", "aten.erf.default", "aten::erf", torch.ops.aten.erf, torch.ops.aten.erf.default],
    ids=str,
)
def test_an_operator_has_several_names(operator: Any) -> None:
    program = exported(lambda x: (torch.erf(torch.sin(x)),), X)
    assert partitioned(wrap_partitioner(Tags({"*": "a"}), host_ops=[operator]), program) == {"a": ["sin"]}


def test_wrapped_partitioners_can_be_wrapped() -> None:
    program = exported(lambda x: (torch.erf(torch.sin(torch.tanh(x))),), X)
    once = wrap_partitioner(Tags({"*": "a"}), host_ops=["erf"])
    assert partitioned(wrap_partitioner(once, host_ops=["tanh"]), program) == {"a": ["sin"]}


def test_a_partitioner_may_name_an_operator_that_another_one_has_taken() -> None:
    program = exported(lambda x: (torch.cos(torch.erf(x)),), X)
    second = wrap_partitioner(Tags({"cos": "b"}), host_ops=["erf"])
    manager = lowered(combine_partitioners([Tags({"erf": "a"}), second]), program)
    assert [each.calls for each in delegates(manager)] == [1, 1]
    assert_computes_the_same(manager, program, X)


def test_a_host_operator_of_one_partitioner_may_be_taken_by_another_one() -> None:
    program = exported(lambda x: (torch.cos(torch.erf(torch.sin(x))),), X)
    first = Watched(wrap_partitioner(Tags({"*": "a"}), host_ops=["erf"]))
    second = Watched(wrap_partitioner(Tags({"erf": "b"})))
    manager = lowered(combine_partitioners([first, second]), program)
    assert (first.wrong, second.wrong) == ([], [])
    assert [each.calls for each in delegates(manager)] == [1, 1, 1]
    assert_computes_the_same(manager, program, X)


# ---- random programs ----


CALLS = ("sin", "erf", "add", "add", "cos", "qdq", "qdq", "max", "share")


def random_function(seed: int) -> Any:
    """Returns a function of one tensor: calls of floats, tuples, and integers between quantize nodes."""
    draw = random.Random(seed)
    plan = [(draw.choice(CALLS), draw.random(), draw.random()) for _ in range(draw.randint(6, 16))]

    def run(x: Any) -> Any:
        values = [x]
        for call, first, second in plan:
            a, b = (values[int(each * len(values))] for each in (first, second))
            if call == "qdq":
                values.append(qdq(a))
            elif call == "share":
                integers = q(a)
                values += [dq(integers), dq(integers)]
            elif call == "add":
                values.append(a + b)
            elif call == "max":
                values.append(torch.max(a, 1, keepdim=True)[0] + b)
            else:
                values.append(getattr(torch, call)(a))
        return tuple(values[1:][-3:])

    return run


class Drawn(Tags):
    """Tags each call with one of three tags, or none, at random: groups need not be convex or connected."""

    def __init__(self, seed: int, specs: Sequence[Any]) -> None:
        super().__init__({"*": "a", "sin": "b", "erf": "c"}, specs)
        self._seed = seed

    def partition(self, exported_program: Any) -> PartitionResult:
        result = super().partition(exported_program)
        draw = random.Random(self._seed)
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                tag = draw.choice(["a", "b", "c", None])
                source = node.args[0] if name_of(node) == "getitem" else node
                node.meta["delegation_tag"] = tag if source is node else source.meta["delegation_tag"]
        return result


@pytest.mark.parametrize("seed", range(12))
def test_random_tags_of_random_programs_become_delegates_that_compute_the_same(seed: int) -> None:
    program = exported(random_function(seed), X)
    specs = INTEGERS if seed % 2 else []
    calls = {name_of_aten(node) for node in read_nodes(program)}
    host = sorted(calls & {"sin", "erf", "add", "max"})[: seed % 3]
    wrapped = wrap_partitioner(Drawn(seed, specs), host_ops=host)
    watched = Watched(wrapped, integer_only=bool(specs))
    manager = lowered([watched], program)
    assert [each for each in watched.wrong if "changed sides" not in each] == []  # groups without work do
    assert_computes_the_same(manager, program, X)


def read_nodes(program: Any) -> set[Any]:
    """Returns the nodes on which results depend."""
    found = set()
    waiting = [next(iter(reversed(program.graph.nodes)))]
    while waiting:
        node = waiting.pop()
        waiting += [each for each in node.all_input_nodes if each not in found]
        found.add(node)
    return found


def name_of_aten(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).split("::")[1]


# ---- errors ----


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"quantized_inputs": [1]},
            InvalidGraph,
            "no such entry of 'quantized_inputs': expected one of 'args_0', or an index below 1, got 1",
        ),
        (
            {"quantized_outputs": ["out[9]"]},
            InvalidGraph,
            "no such entry of 'quantized_outputs': expected one of 'out[0]', 'out[1]', or an index below 2, "
            "got 'out[9]'",
        ),
        (
            {"quantized_outputs": [1]},
            QuantMismatch,
            "an entry of 'quantized_outputs' is not quantized: expected an output that a dequantize node "
            "makes, got 'out[1]', which node 'aten_sin_default'",
        ),
        ({"host_ops": ["tanh"]}, InvalidGraph, "the program has no call of 'tanh', which is in 'host_ops'"),
    ],
)
def test_wrong_ports_and_operators_are_refused(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    program = exported(lambda x: (qdq(x), torch.sin(x)), X)
    with pytest.raises(kind, match=re.escape(message)):
        partitioned(wrap_partitioner(Tags({"*": "a"}), **options), program)


def test_an_unquantized_input_is_refused() -> None:
    program = exported(lambda x: (torch.sin(x),), X)
    with pytest.raises(
        QuantMismatch, match="expected an input that a quantize node reads, got 'args_0', which"
    ):
        partitioned(wrap_partitioner(Tags({"*": "a"}), quantized_inputs=[0]), program)
    with pytest.raises(QuantMismatch, match="'quantized_inputs' is 'all', and none of the 1 inputs is quant"):
        partitioned(wrap_partitioner(Tags({"*": "a"}), quantized_inputs="all"), program)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": Tags}, "'inner' is no partitioner: expected an executorch.exir.backend.partitioner"),
        ({"inner": 3}, "got 3"),
        (
            {"quantized_inputs": "x"},
            "unknown value of 'quantized_inputs': expected None, 'all', or",
        ),
        ({"quantized_outputs": [1.5]}, "unknown value of 'quantized_outputs'"),
        ({"host_ops": "erf"}, "unknown value of 'host_ops': expected a sequence of operators"),
        ({"host_ops": ["grid_sampler_3"]}, "there is no operator 'grid_sampler_3', which is in 'host_ops'"),
        ({"host_ops": ["grid_sampler_3"]}, "Did you mean 'aten.grid_sampler_3d'"),
        ({"host_ops": ["aten.erf.Tensor"]}, "there is no operator 'aten.erf.Tensor'"),
        ({"host_ops": [None]}, "an entry of 'host_ops' is no operator"),
        ({"integer_only": "yes"}, "unknown value of 'integer_only': expected None, True or False"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    inner = options.pop("inner", None) or Tags({})
    with pytest.raises(InvalidGraph, match=re.escape(message)):
        wrap_partitioner(inner, **options)


@pytest.mark.parametrize(
    "members", [[], Tags({}), [Tags({}), 3], [Tags({})] * 2], ids=["none", "one", "3", "twice"]
)
def test_wrong_members_are_refused(members: Any) -> None:
    with pytest.raises(InvalidGraph, match="combine_partitioners"):
        combine_partitioners(members)
