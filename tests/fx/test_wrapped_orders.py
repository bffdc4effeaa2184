"""Memory orders that wrapped partitioners declare: conversions at borders, and tensors that are refused."""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, final

import ml_dtypes
import numpy as np
import pytest
import tosaic
from tosaic import InvalidGraph, LayoutMismatch, UnsupportedOp
from tosaic.executorch import combine_partitioners, order_conversions, run_payloads, wrap_partitioner

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.exir")

from executorch.exir import to_edge_transform_and_lower  # noqa: E402
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult  # noqa: E402
from executorch.exir.backend.partitioner import (  # noqa: E402
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.backend.utils import tag_constant_data  # noqa: E402
from models.wrapped import INTEGER_ONLY, PARTITIONERS, Watched, delegates  # noqa: E402
from models.zoo import quiet  # noqa: E402
from torch import nn  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]
ROWS, LAST = (0, 1, 2, 3), (0, 2, 3, 1)
FORMATS = {ROWS: torch.contiguous_format, LAST: torch.channels_last}
NAMES = {ROWS: "contiguous", LAST: "channels_last"}


class Two(nn.Module):
    """Two convolutions around an operator of the host; the second result has two axes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 5, 3, padding=1)

    def forward(self, x: Any) -> Any:
        features = torch.relu(self.first(x))
        return self.last(torch.erf(features)), features.mean((2, 3))


def image(order: tuple[int, ...] = ROWS) -> Any:
    torch.manual_seed(0)
    return torch.randn(2, 3, 5, 6).contiguous(memory_format=FORMATS[order])


@cache
def exported(order: tuple[int, ...] = ROWS) -> Any:
    torch.manual_seed(1)
    return torch.export.export(Two().eval(), (image(order),))


@cache
def quantized() -> Any:
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(
            exported().module(check_guards=False), tosaic.Quantizer(compatible_with="arm")
        )
        prepared(image())
        return torch.export.export(convert_pt2e(prepared), (image(),))


def lowered(program: Any, partitioners: Sequence[Any]) -> Any:
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        passes = order_conversions([getattr(each, "wrapped", each) for each in partitioners])
        return to_edge_transform_and_lower(program, transform_passes=passes, partitioner=list(partitioners))


def wrapped(kind: str, orders: Any, **options: Any) -> Any:
    return wrap_partitioner(PARTITIONERS[kind](), host_ops=["erf"], orders=orders, **options)


def conversions(manager: Any) -> list[tuple[int, ...]]:
    """Returns the orders to which the host converts tensors."""
    calls = [n for n in manager.exported_program().graph.nodes if "_to_dim_order_copy" in str(n.target)]
    return [tuple(call.kwargs["dim_order"]) for call in calls]


def borders(manager: Any) -> list[tuple[list[Any], list[Any]]]:
    """Returns the orders of the inputs and outputs of rank 4 of each delegate."""
    found = []
    for each in delegates(manager):
        nodes = {node.name: node for node in each.module.original_module.graph.nodes}
        signature = each.module.original_module.graph_signature
        sides = (signature.user_inputs, signature.user_outputs)
        values = [[nodes[name].meta["val"] for name in side] for side in sides]
        found.append(tuple([value.dim_order() for value in side if value.dim() == 4] for side in values))
    return found


def assert_close(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        assert mine.stride() == theirs.stride()


# ---- conversions ----


@pytest.mark.parametrize("given", [ROWS, LAST], ids=NAMES.get)
@pytest.mark.parametrize("wanted", [ROWS, LAST], ids=NAMES.get)
def test_conversions_are_where_orders_differ_and_nowhere_else(given: Any, wanted: Any) -> None:
    manager = lowered(exported(given), [wrapped("tosa-fp", NAMES[wanted])])
    assert borders(manager) == [([wanted], [wanted])] * 2
    expected = [] if given == wanted else [wanted, given, wanted, given]
    assert conversions(manager) == expected
    assert_close(run_payloads(manager, (image(given),)), exported(given).module()(image(given)))


@pytest.mark.parametrize("given", [ROWS, LAST], ids=NAMES.get)
@pytest.mark.parametrize("wanted", [ROWS, LAST], ids=NAMES.get)
def test_xnnpack_computes_the_same_in_every_order(given: Any, wanted: Any) -> None:
    manager = lowered(exported(given), [wrapped("xnnpack", wanted)])
    assert borders(manager) == [([wanted], [wanted])] * 2
    assert_close(executed(manager, image(given)), exported(given).module()(image(given)))


@pytest.mark.parametrize(
    ("orders", "inputs", "outputs"),
    [({"inputs": LAST}, LAST, LAST), ({"outputs": "channels_last", "inputs": None}, ROWS, LAST)],
)
def test_inputs_and_outputs_have_orders_of_their_own(orders: Any, inputs: Any, outputs: Any) -> None:
    manager = lowered(exported(), [wrapped("tosa-fp", orders)])
    assert borders(manager) == [([inputs], [outputs])] * 2  # a convolution returns the order that it reads
    assert_close(run_payloads(manager, (image(),)), exported().module()(image()))


@pytest.mark.parametrize("kind", ["tosa-int", "tosa-int+fp"])
def test_integers_are_converted_if_the_boundary_is_quantized(kind: str) -> None:
    options: dict[str, Any] = {"quantized_inputs": [0], "quantized_outputs": "all"}
    plain = to_edge_transform_and_lower(
        quantized(), partitioner=[wrap_partitioner(PARTITIONERS[kind](), host_ops=["erf"], **options)]
    )
    watched = Watched(
        wrapped(kind, "channels_last", **options), inputs=[0], outputs=[0, 1], host="erf",
        integer_only=kind in INTEGER_ONLY,
    )  # fmt: skip
    manager = lowered(quantized(), [watched])
    assert watched.wrong == []
    assert borders(manager) == [([LAST], [LAST])] * 2
    calls = [n for n in manager.exported_program().graph.nodes if "_to_dim_order_copy" in str(n.target)]
    assert {call.meta["val"].dtype for call in calls} == {torch.int8}
    for mine, theirs in zip(run_payloads(manager, (image(),)), run_payloads(plain, (image(),)), strict=True):
        assert torch.equal(mine, theirs)


def executed(manager: Any, *args: Any) -> list[Any]:
    """Returns what ExecuTorch's runtime computes."""
    import executorch.kernels.quantized  # noqa: F401 - registers kernels
    from executorch.runtime import Runtime, Verification

    buffer = copy.deepcopy(manager).to_executorch().buffer  # it changes the program
    program = Runtime.get().load_program(buffer, verification=Verification.Minimal)  # the method refers to it
    return [each.clone() for each in program.load_method("forward").execute(list(args))]


# ---- grids, entries of tensors, and any order ----


class Sampled(nn.Module):
    """An image and a grid, both computed by delegates, and a sampler between them on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 5, 3, padding=1)

    def forward(self, x: Any, grid: Any) -> Any:
        grid = torch.clamp(grid * 0.5 + 0.1, -1.0, 1.0)
        warped = nn.functional.grid_sample(torch.relu(self.first(x)), grid, align_corners=False)
        return torch.relu(self.last(warped)), grid


def image_and_grid() -> tuple[Any, Any]:
    torch.manual_seed(3)
    return image(), torch.rand(2, 5, 6, 2) * 2 - 1


@cache
def sampled() -> Any:
    torch.manual_seed(1)
    return torch.export.export(Sampled().eval(), image_and_grid())


def orders_by_shape(manager: Any) -> set[tuple[int, tuple[int, ...]]]:
    """Returns the last extent, and the order, of all tensors of rank 4 at borders."""
    found = set()
    for each in delegates(manager):
        nodes = {node.name: node for node in each.module.original_module.graph.nodes}
        signature = each.module.original_module.graph_signature
        for name in (*signature.user_inputs, *signature.user_outputs):
            value = nodes[name].meta["val"]
            if value.dim() == 4:
                found.add((value.shape[-1], tuple(value.dim_order())))
    return found


def sampling(kind: str, orders: Any) -> Any:
    return wrap_partitioner(PARTITIONERS[kind](), host_ops=["grid_sampler_2d"], orders=orders)


@pytest.mark.parametrize("kind", ["tosa-fp", "xnnpack"])
def test_channels_last_leaves_grids_of_samplers_alone(kind: str) -> None:
    manager = lowered(sampled(), [sampling(kind, "channels_last")])
    assert orders_by_shape(manager) == {(6, LAST), (2, ROWS)}
    calls = [n for n in manager.exported_program().graph.nodes if "_to_dim_order_copy" in str(n.target)]
    assert calls
    assert all(call.meta["val"].shape[-1] == 6 for call in calls)
    args = image_and_grid()
    found = run_payloads(manager, args) if kind == "tosa-fp" else executed(manager, *args)
    assert_close(found, sampled().module()(*args))


def test_a_quantized_grid_is_left_alone() -> None:
    """After quantize and dequantize nodes, and if the sampler is in a delegate of another backend."""
    args = image_and_grid()
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(sampled().module(check_guards=False), tosaic.Quantizer(compatible_with="arm"))
        prepared(*args)
        program = torch.export.export(convert_pt2e(prepared), args)
    manager = lowered(program, [sampling("tosa-int+fp", "channels_last")])
    assert {(6, LAST), (2, ROWS)} == orders_by_shape(manager)
    (found, grid) = run_payloads(manager, args)
    expected, expected_grid = program.module()(*args)
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()
    assert (grid - expected_grid).abs().max() < 0.02


def test_a_dim_order_concerns_grids_too() -> None:
    manager = lowered(sampled(), [sampling("tosa-fp", LAST)])
    assert orders_by_shape(manager) == {(6, LAST), (2, LAST)}
    assert_close(run_payloads(manager, image_and_grid()), sampled().module()(*image_and_grid()))


def test_a_grid_is_known_if_an_earlier_partitioner_took_its_sampler() -> None:
    members = combine_partitioners(
        [
            Tags({"grid_sampler_2d": "s"}),
            wrap_partitioner(PARTITIONERS["tosa-fp"](), host_ops=["grid_sampler_2d"], orders="channels_last"),
        ]
    )
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        passes = order_conversions(members)
        manager = to_edge_transform_and_lower(sampled(), transform_passes=passes, partitioner=members)
    orders = orders_by_shape(manager)
    assert {(6, LAST), (2, ROWS)} <= orders
    assert (2, LAST) not in orders


@pytest.mark.parametrize("entry", ["grid", 1])
def test_an_input_may_have_an_order_of_its_own(entry: Any) -> None:
    orders = {"inputs": {entry: LAST, "*": "channels_last"}, "outputs": "channels_last"}
    manager = lowered(sampled(), [sampling("tosa-fp", orders)])
    assert orders_by_shape(manager) == {(6, LAST), (2, LAST)}  # the clamp returns the order that it reads
    assert_close(run_payloads(manager, image_and_grid()), sampled().module()(*image_and_grid()))


def test_an_output_and_a_node_may_have_orders_of_their_own() -> None:
    program = program_of(lambda _, x: (torch.cos(torch.sin(x)), torch.sin(x + 1.0)))
    orders = {"inputs": {"aten_sin_default": None, "*": LAST}, "outputs": {"out[0]": LAST}}
    manager = lowered(program, [wrap_partitioner(Tags({"sin": "a", "cos": "b"}), orders=orders)])
    assert borders(manager) == [([LAST] * 2, [LAST] * 2), ([ROWS], [LAST])]
    assert_same(manager, program)
    inside = Tags({"sin": "a"})
    with pytest.raises(Exception, match="OrderConversions") as error:  # ExecuTorch wraps errors of passes
        lowered(program, [wrap_partitioner(inside, orders={"inputs": {"y": LAST}})])
    assert isinstance(error.value.__cause__, InvalidGraph)
    assert "an entry of 'orders' names no input of a delegate" in str(error.value.__cause__)
    assert "one of 'x'" in str(error.value.__cause__)


def test_nothing_is_converted_for_a_backend_that_computes_in_any_order() -> None:
    program = program_of(lambda _, x: (torch.cos(torch.sin(x)),))
    first = wrap_partitioner(Tags({"sin": "a"}), orders="channels_last")
    second = wrap_partitioner(Tags({"cos": "b"}), orders="any")
    manager = lowered(program, [first, second])
    assert borders(manager) == [([LAST], [LAST])] * 2
    assert conversions(manager) == [LAST, ROWS]
    assert_same(manager, program)


def test_xnnpack_in_any_order_computes_the_same() -> None:
    members = [wrap_partitioner(Tags({"erf": "none"}), host_ops=["erf"], orders="channels_last")]
    members.append(wrap_partitioner(PARTITIONERS["xnnpack"](), orders="any"))
    manager = lowered(exported(), members)
    assert conversions(manager) == []
    assert_close(executed(manager, image()), exported().module()(image()))


# ---- hand-made partitioners ----


@final
class Uncompiled(BackendDetails):
    """A backend that compiles nothing."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"")


class Tags(Partitioner):
    """Tags the calls of each operator as a table says, and each conversion as what it converts."""

    def __init__(self, tags: Mapping[str, str], *, conversions: bool = True) -> None:
        super().__init__()
        self._tags = tags
        self._conversions = conversions

    def partition(self, exported_program: Any) -> PartitionResult:
        for node in exported_program.graph.nodes:
            schema = getattr(getattr(node.target, "_op", None), "_schema", None)
            name = "" if schema is None else schema.name.split("::")[1]
            tag = self._tags.get(name)
            if name == "_to_dim_order_copy" and self._conversions:
                tag = node.args[0].meta.get("delegation_tag")
            if tag is not None:
                node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        tags = dict.fromkeys(self._tags.values(), DelegationSpec("Uncompiled", []))
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


class Model(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.zeros(2, 3, 5, 6))

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def program_of(function: Any) -> Any:
    return torch.export.export(Model(function), (image(),))


def test_delegates_with_one_order_pass_values_without_a_conversion() -> None:
    program = program_of(lambda _, x: (torch.cos(torch.sin(x)),))
    partitioner = wrap_partitioner(Tags({"sin": "a", "cos": "b"}), orders="channels_last")
    manager = lowered(program, [partitioner])
    assert borders(manager) == [([LAST], [LAST])] * 2
    assert conversions(manager) == [LAST, ROWS]


def test_each_of_several_partitioners_has_its_order() -> None:
    program = program_of(lambda _, x: (torch.cos(torch.sin(x)), torch.erf(torch.sin(x))))
    first = wrap_partitioner(Tags({"sin": "a", "cos": "a"}), host_ops=["cos"], orders="channels_last")
    second = wrap_partitioner(Tags({"sin": "b", "cos": "b", "erf": "b"}), orders="contiguous")
    manager = lowered(program, combine_partitioners([first, second]))
    assert borders(manager) == [([LAST], [LAST] * 2), ([ROWS] * 2, [ROWS] * 2)]
    assert conversions(manager) == [LAST, ROWS, ROWS]
    assert_same(manager, program)


def test_a_delegate_of_an_unwrapped_partitioner_keeps_its_order() -> None:
    program = program_of(lambda _, x: (torch.cos(torch.sin(x)),))
    members = [wrap_partitioner(Tags({"sin": "a"}), orders="channels_last"), Tags({"cos": "b"})]
    manager = lowered(program, members)
    assert borders(manager) == [([LAST], [LAST]), ([ROWS], [ROWS])]
    assert conversions(manager) == [LAST, ROWS]


def test_axes_of_extent_one_need_no_conversion() -> None:
    program = torch.export.export(Model(lambda _, x: (torch.sin(x),)), (torch.randn(2, 3, 1, 1),))
    manager = lowered(program, [wrap_partitioner(Tags({"sin": "a"}), orders="channels_last")])
    assert conversions(manager) == []


def test_the_new_value_of_a_buffer_has_the_order_of_the_buffer() -> None:
    def count(self: Any, x: Any) -> Any:
        self.state.add_(torch.sin(x))
        return (self.state * 2.0,)

    program = program_of(count)
    manager = lowered(program, [wrap_partitioner(Tags({"sin": "a", "add": "a"}), orders="channels_last")])
    assert conversions(manager).count(ROWS) == 1
    written = manager.exported_program().graph_signature.buffers_to_mutate
    (node,) = [n for n in manager.exported_program().graph.nodes if n.name in written]
    assert node.meta["val"].dim_order() == ROWS
    assert_same(manager, program_of(count))


def assert_same(manager: Any, program: Any) -> None:
    expected = program.module(check_guards=False)(image())
    found = manager.exported_program().module(check_guards=False)(image())
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("seed", range(8))
def test_random_borders_have_the_declared_orders(seed: int) -> None:
    draw = random.Random(seed)
    plan = [(draw.choice(["sin", "cos", "erf", "add"]), draw.random(), draw.random()) for _ in range(10)]

    def run(_: Any, x: Any) -> Any:
        values = [x]
        for call, first, second in plan:
            a, b = (values[int(each * len(values))] for each in (first, second))
            values.append(a + b if call == "add" else getattr(torch, call)(a))
        return tuple(values[-3:])

    program = program_of(run)
    wanted = LAST if seed % 2 else ROWS
    given = wanted if seed % 4 < 2 else ROWS
    tags = {"sin": "a", "add": "a", "cos": draw.choice("ab")}
    manager = lowered(program, [wrap_partitioner(Tags(tags), orders={"inputs": wanted, "outputs": given})])
    for inputs, outputs in borders(manager):
        assert set(inputs) <= {wanted}
        assert set(outputs) <= {given}
    if wanted == given == ROWS:
        assert conversions(manager) == []
    assert_same(manager, program)


# ---- what is refused ----


@pytest.mark.parametrize("declared", [ROWS, LAST], ids=NAMES.get)
def test_an_array_in_another_order_is_refused(declared: Any) -> None:
    manager = lowered(exported(declared), [wrapped("tosa-fp", NAMES[declared])])
    other = image(LAST if declared == ROWS else ROWS)
    message = f"input 0 ('x') of the program does not fit: expected a tensor in memory order {declared}"
    with pytest.raises(LayoutMismatch, match=re.escape(message)):
        run_payloads(manager, (other,))


def test_the_runtime_of_executorch_does_not_refuse_it_and_computes_something_else() -> None:
    manager = lowered(exported(LAST), [wrapped("xnnpack", "channels_last")])
    expected = exported(LAST).module()(image(LAST))
    assert_close(executed(manager, image(LAST)), expected)
    assert (executed(manager, image(ROWS))[0] - expected[0]).abs().max() > 0.1


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "the number of inputs does not fit: expected 1, got 0"),
        ((torch.zeros(2, 3, 5),), "expected torch.float32 (2, 3, 5, 6), got torch.float32 (2, 3, 5)"),
        ((torch.zeros(2, 3, 5, 6).int(),), "got torch.int32 (2, 3, 5, 6)"),
        ((1.0,), "expected a tensor, got 1.0"),
    ],
)
def test_other_inputs_are_refused(inputs: Any, message: str) -> None:
    manager = lowered(exported(), [wrapped("tosa-fp", "contiguous")])
    with pytest.raises(LayoutMismatch, match=re.escape(message)):
        run_payloads(manager, inputs)


def test_a_delegate_needs_something_that_runs_it() -> None:
    program = program_of(lambda _, x: (torch.sin(x),))
    manager = lowered(program, [wrap_partitioner(Tags({"sin": "a"}), orders="channels_last")])
    with pytest.raises(UnsupportedOp, match="nothing runs payloads of Uncompiled"):
        run_payloads(manager, (image(),))
    shapes = []

    def engine(payload: bytes, arrays: Any) -> Any:
        assert payload == b""
        shapes.append(arrays[0].shape)
        return [arrays[0] * 2]

    (found,) = run_payloads(manager, (image(),), engines={"Uncompiled": engine})
    assert shapes == [(2, 5, 6, 3)]  # the extents in dim order
    assert torch.equal(found, image() * 2)
    with pytest.raises(LayoutMismatch, match="output 0 of a payload does not fit"):
        run_payloads(manager, (image(),), engines={"Uncompiled": lambda _, arrays: [arrays[0][:1]]})
    with pytest.raises(InvalidGraph, match="unknown value of 'method': expected 'forward', got 'other'"):
        run_payloads(manager, (image(),), method="other")


@pytest.mark.parametrize("found", ["int32", "int8", "float16", "float64", "int64", "bool"])
def test_bits_of_a_payload_are_never_read_as_another_dtype(found: str) -> None:
    manager = lowered(
        program_of(lambda _, x: (torch.sin(x),)), [wrap_partitioner(Tags({"sin": "a"}), orders="contiguous")]
    )
    engines = {"Uncompiled": lambda _, arrays: [np.ones(arrays[0].shape, found)]}
    message = f"output 0 of a payload does not fit: expected torch.float32 (2, 3, 5, 6), got torch.{found}"
    with pytest.raises(LayoutMismatch, match=re.escape(message)):
        run_payloads(manager, (image(),), engines=engines)


@pytest.mark.parametrize(
    ("declared", "found", "expected"),
    [
        (torch.int64, np.full((2, 3), -5, np.int32), -5),
        (torch.uint8, np.full((2, 3), -1, np.int8), 255),
        (torch.int32, np.full((2, 3), 1.0, np.float32), None),
        (torch.int8, np.full((2, 3), 1, np.uint8), 1),
        (torch.bfloat16, np.full((2, 3), 1.5, ml_dtypes.bfloat16), 1.5),
        (torch.float16, np.full((2, 3), 1.5, ml_dtypes.bfloat16), None),
        (torch.bfloat16, np.full((2, 3), 15, np.int16), None),
        (torch.bool, np.full((2, 3), 1, np.int8), None),
        (torch.int32, np.full((2, 3), 1, np.int16), None),
        (torch.int16, np.full((2, 3), 1, np.int8), None),
    ],
    ids=lambda each: str(getattr(each, "dtype", each)),
)
def test_integers_of_a_payload_become_the_dtypes_that_tosa_lacks(
    declared: Any, found: Any, expected: Any
) -> None:
    x = torch.ones(2, 3).to(declared)
    calls = torch.logical_not if declared is torch.bool else torch.neg
    program = torch.export.export(Model(lambda _, x: (calls(x),)), (x,))
    manager = lowered(
        program, [wrap_partitioner(Tags({"neg": "a", "logical_not": "a"}), orders="contiguous")]
    )
    engines = {"Uncompiled": lambda *_: [found]}
    if expected is None:
        with pytest.raises(LayoutMismatch, match="output 0 of a payload does not fit"):
            run_payloads(manager, (x,), engines=engines)
        return
    (result,) = run_payloads(manager, (x,), engines=engines)
    assert torch.equal(result, torch.full((2, 3), expected, dtype=declared))


def test_a_batch_may_be_dynamic() -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    program = torch.export.export(
        Model(lambda _, x: (torch.sin(x),)), (image(),), dynamic_shapes={"x": {0: batch}}
    )
    manager = lowered(program, [wrap_partitioner(Tags({"sin": "a"}), orders="channels_last")])
    assert borders(manager) == [([LAST], [LAST])]
    x = torch.randn(5, 3, 5, 6)
    engines = {"Uncompiled": lambda _, arrays: [arrays[0] * 2]}
    (found,) = run_payloads(manager, (x,), engines=engines)
    assert torch.equal(found, x * 2)
    with pytest.raises(LayoutMismatch, match="in memory order"):
        run_payloads(manager, (x.contiguous(memory_format=torch.channels_last),), engines=engines)


def test_without_the_passes_a_border_in_another_order_is_an_error() -> None:
    message = "an input of a delegate does not have the order of 'orders': node 'x'"
    with pytest.raises(LayoutMismatch, match=message) as error:
        to_edge_transform_and_lower(exported(), partitioner=[wrapped("tosa-fp", "channels_last")])
    assert "transform_passes=tosaic.executorch.order_conversions(partitioners)" in str(error.value)


def test_a_partitioner_that_does_not_take_a_conversion_is_an_error() -> None:
    program = program_of(lambda _, x: (torch.sin(x),))
    tags = Tags({"sin": "a"}, conversions=False)
    partitioner = wrap_partitioner(tags, orders={"outputs": "channels_last"})
    with pytest.raises(
        LayoutMismatch, match="Tags does not take a conversion that belongs into its delegate"
    ):
        lowered(program, [partitioner])


@pytest.mark.parametrize(
    "orders", ["rows", (0, 3, 1, 2), (0, 0, 1), (), {}, {"input": "contiguous"}, {"inputs": 1}, 4, (0.0, 1.0)]
)
def test_other_orders_are_refused(orders: Any) -> None:
    with pytest.raises(InvalidGraph, match="unknown value of 'orders'"):
        wrap_partitioner(Tags({}), orders=orders)


def test_conversions_need_a_partitioner_with_orders() -> None:
    with pytest.raises(InvalidGraph, match="a partitioner that was wrapped with 'orders'"):
        order_conversions([wrap_partitioner(Tags({}))])
    with pytest.raises(InvalidGraph, match="order_conversions"):
        order_conversions([])
