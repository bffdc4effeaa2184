"""Calls that move elements agree with torch at every stage, for floats, integers and bool."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.agreement import assert_agrees
from fx.exporting import exported, imported, ops
from torch import nn

# torch's own run_decompositions uses a class that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

A = torch.ops.aten
FLOATS = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
INTEGERS = torch.arange(24).reshape(4, 6) % 7
DTYPES = {"f32": FLOATS, "i64": INTEGERS, "bool": FLOATS > 0}
X3, X4 = torch.randn(2, 6, 9), torch.randn(2, 6, 8, 10)
X5 = torch.randn(1, 4, 5, 6, 7)
AT = torch.tensor([[0, 2], [1, 3]])

MOVEMENTS = {
    "unfold that overlaps": lambda x: x.unfold(1, 3, 2),
    "unfold that does not": lambda x: x.unfold(0, 2, 3),
    "as_strided": lambda x: torch.as_strided(x, (3, 4), (1, 2), 1),
    "as_strided that repeats": lambda x: torch.as_strided(x, (2, 3, 2, 4), (0, 6, 0, 1), 2),
    "as_strided of repeated rows": lambda x: torch.as_strided(x[:1].expand(4, 6), (3, 2), (1, 2), 1),
    "as_strided of a permuted part": lambda x: torch.as_strided(x[:, 1:4].t(), (3, 2), (1, 6), 1),
    "as_strided of one element": lambda x: torch.as_strided(x[1, 2], (), (), 8),
    "as_strided of every second": lambda x: torch.as_strided(x[::2, ::3], (2, 2), (3, 12), 0),
    "as_strided of a transpose": lambda x: torch.as_strided(x.t(), (3, 4), (1, 2), 1),
    "diagonal": lambda x: x.diagonal(1),
    "diagonal of swapped axes": lambda x: x.diagonal(-2, 1, 0),
    "diag_embed": lambda x: torch.diag_embed(x, 1),
    "diag_embed elsewhere": lambda x: torch.diag_embed(x, -1, 0, 2),
    "diag of a vector": lambda x: torch.diag(x[0], -1),
    "tril": lambda x: x.tril(1),
    "roll": lambda x: torch.roll(x, (1, -2), (0, 1)),
    "roll of all": lambda x: torch.roll(x, 5),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "repeat_interleave of all": lambda x: x.repeat_interleave(2),
    "rot90": lambda x: torch.rot90(x),
    "tile": lambda x: x.tile(2, 1, 3),
    "block_diag": lambda x: torch.block_diag(x, x),
    "gather": lambda x: torch.gather(x, -1, AT),
    "take_along_dim": lambda x: torch.take_along_dim(x, AT[:1], 1),
    "take_along_dim of all": lambda x: torch.take_along_dim(x, torch.tensor([3, 4])),
    "take": lambda x: torch.take(x, torch.tensor([[0, 7], [-1, 3]])),
    "index": lambda x: x[torch.tensor([[0, 1], [2, 3]]), torch.tensor([1, -2])],
    "split with an empty part": lambda x: torch.cat(x.split([0, 2, 2])),
    "cat with an empty part": lambda x: torch.cat([x[:, :0], x], 1),
    "pad with a negative number": lambda x: F.pad(x, (1, -2, 2, 0), value=1),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, 3:5], 1, 1, 3),
    "slice_scatter with a step": lambda x: torch.slice_scatter(x, x[:, :2], 1, 1, 5, 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[1], 0, -2),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[0, :4]),
    "scatter": lambda x: x.scatter(1, AT, x[:, 4:]),
    "scatter of a number": lambda x: x.scatter(1, AT, 1),
    "scatter to one place twice": lambda x: x.scatter(0, torch.tensor([[0, 2, 0], [0, 3, 1]]), x[2:, 3:]),
    "index_put of rows": lambda x: torch.index_put(x, (torch.tensor([0, -2]),), x[1:3]),
    "index_put of a row twice": lambda x: torch.index_put(x, (torch.tensor([0, 0]),), x[1:3]),
    "index_put of elements": lambda x: torch.index_put(x, (AT[0], torch.tensor([1, -1])), x[0, :2]),
    "index_put that broadcasts": lambda x: torch.index_put(x, (AT[:1].t(), torch.tensor([1, 4])), x[0, 0]),
    "index_put of columns": lambda x: A.index_put(x, [None, torch.tensor([1, 3])], x[:, :2]),
    "index_put under a mask": lambda x: torch.index_put(x, (x.bool(),), torch.tensor(1, dtype=x.dtype)),
    "index_copy": lambda x: torch.index_copy(x, 1, torch.tensor([3, 0]), x[:, :2]),
    "index_fill": lambda x: torch.index_fill(x, 1, torch.tensor([3, 0]), 1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", MOVEMENTS)
def test_a_movement_agrees_for_every_kind_of_dtype(call: str, dtype: str) -> None:
    assert_agrees(MOVEMENTS[call], DTYPES[dtype], decomposed=dtype == "f32", reference_model=dtype != "bool")


OTHERS: dict[str, tuple[Any, ...]] = {
    "channel_shuffle": (lambda x: torch.channel_shuffle(x, 3), X4),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), torch.randn(2, 8, 3, 4)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), torch.randn(3, 4, 6)),
    "im2col": (lambda x: F.unfold(x, (2, 3), (1, 2), (1, 0), (2, 1)), X4),
    "im2col unbatched": (lambda x: F.unfold(x, 2), X4[0]),
    "col2im": (nn.Fold((4, 6), 2, stride=2), torch.randn(2, 12, 6)),
    "unfold twice": (lambda x: x.unfold(2, 3, 1).unfold(3, 2, 2), X4),
    "diagonal of a batch": (lambda x: x.diagonal(0, 1, 2), X3),
    "cat of dtypes": (lambda x, i: torch.cat([x, i]), FLOATS, INTEGERS),
    "stack of dtypes": (lambda b, i: torch.stack([b, i], 1), FLOATS > 0, INTEGERS),
    "cat with an empty vector": (lambda x: torch.cat([torch.zeros(0), x]), FLOATS),
    "sum of no rows": (lambda x: torch.cat([x[:0].sum(0, keepdim=True), x]), FLOATS),
    "one_hot": (lambda i: F.one_hot(i, 7), INTEGERS),
    "index by a tensor": (lambda x, i: x[:, i], FLOATS, torch.tensor([[1, -1], [0, 3]])),
    "index_put at run time": (
        lambda x, i, s: torch.index_put(x, (i,), s),
        FLOATS,
        torch.tensor([2, 0, -1]),
        torch.randn(3, 6),
    ),
    "cache write": (
        lambda x, i, s: A.index_put(x, [None, None, i], s),
        torch.randn(1, 2, 8, 4),
        torch.tensor([3]),
        torch.randn(1, 2, 1, 4),
    ),
    "scatter at run time": (lambda x, i, s: x.scatter(0, i, s), FLOATS, AT, torch.randn(4, 2)),
    "rank 6": (lambda x: x.permute(5, 4, 3, 2, 1, 0).flip(1), torch.randn(1, 2, 3, 2, 1, 2)),
    **{
        f"pad {mode} {x.dim() - 2}": (
            lambda x, mode=mode: F.pad(x, (1, 2, 3, 1, 2, 1)[: 2 * (x.dim() - 2)], mode=mode),
            x,
        )
        for mode in ("reflect", "replicate", "circular")
        for x in (X3, X4, X5)
    },
    "negative pad reflect": (lambda x: F.pad(x, (-1, 2), mode="reflect"), X3),
    "negative pad replicate": (lambda x: F.pad(x, (2, -3), mode="replicate"), X3),
    "eye": (lambda x: x + torch.eye(4, 6), FLOATS),
    "linspace": (lambda x: x + torch.linspace(-1, 1, 6), FLOATS),
    "logspace": (lambda x: x + torch.logspace(-1, 1, 6), FLOATS),
    "tril_indices": (lambda x: x[torch.tril_indices(4, 4)[0], torch.tril_indices(4, 4)[1]], FLOATS),
    "window": (lambda x: x * torch.hann_window(6), FLOATS),
}


@pytest.mark.parametrize("call", OTHERS)
def test_a_call_agrees(call: str) -> None:
    what, *args = OTHERS[call]
    assert_agrees(what, *args)


@pytest.mark.parametrize("window", [((5, 3), (2, 1), (2, 1), 1), (200, 1, 100, 1), ((3, 2), 2, 1, (3, 2))])
def test_taps_outside_of_every_window_do_not_count(window: tuple[Any, ...]) -> None:
    assert_agrees(lambda x: F.max_pool2d(x, *window, return_indices=True), X4)


SUMS: dict[str, tuple[Any, ...]] = {
    "scatter_add": (lambda x, s: x.scatter_add(1, torch.tensor([[0, 2, 0], [1, 3, 1]]), s), FLOATS),
    "scatter_reduce": (lambda x, s: x.scatter_reduce(1, torch.tensor([[0, 2, 0]]), s, "sum"), FLOATS),
    "index_add": (lambda x, s: torch.index_add(x, 1, torch.tensor([3, 0, 3]), s, alpha=2), FLOATS),
    "index_put": (
        lambda x, s: A.index_put(x, [None, torch.tensor([1, 0, 1])], s, True),
        FLOATS,
    ),
}


@pytest.mark.parametrize("call", SUMS)
def test_a_call_that_accumulates_adds_all_values_of_a_place(call: str) -> None:
    what, x = SUMS[call]
    assert_agrees(what, x, torch.randn(4, 3), tolerance=1e-6)


def test_places_of_very_different_multiplicity_gather_no_more_than_twice_the_values() -> None:
    places = torch.cat([torch.zeros(60, dtype=torch.int64), torch.arange(60) % 7 + 1, torch.arange(8, 68)])
    x, values = torch.randn(70, 3), torch.randn(180, 3)
    assert_agrees(lambda x, v: torch.index_put(x, (places,), v, True), x, values, tolerance=1e-5)
    low = tosaic.lower(exported(lambda x, v: torch.index_put(x, (places,), v, True), x, values))
    gathered = [n.results[0].shape[1] for n in low.graph.nodes if n.op == "tosa.gather"]
    assert sum(gathered) <= 2 * 180 + 70


def test_sums_at_places_known_only_when_run_are_written_one_by_one() -> None:
    args = (FLOATS, torch.tensor([1, 0, 1]), torch.randn(3, 6))
    assert_agrees(lambda x, i, s: torch.index_add(x, 0, i, s), *args, tolerance=1e-6)


def test_sums_at_many_places_known_only_when_run_are_refused() -> None:
    args = (torch.zeros(900, 6), torch.zeros(800, dtype=torch.int64), torch.randn(800, 6))
    program = tosaic.from_exported(exported(lambda x, i, s: torch.index_add(x, 0, i, s), *args))
    with pytest.raises(tosaic.UnsupportedOp, match="adds at 800 places that are known only when run"):
        tosaic.lower(program)


def test_sums_at_places_known_only_when_run_compare_all_pairs() -> None:
    places = torch.randint(0, 4, (65,), generator=torch.Generator().manual_seed(0))
    values = torch.randn(65, 6).round()
    assert_agrees(lambda x, i, s: torch.index_add(x, 0, i, s), FLOATS.round(), places, values)


def test_an_index_out_of_range_is_named_when_run() -> None:
    program = imported(lambda x, i: torch.index_put(x, (i,), x[0]), FLOATS, torch.tensor([0]))
    with pytest.raises(tosaic.InvalidGraph, match="index_put"):
        tosaic.program.from_graph(program.graph).run(FLOATS, torch.tensor([4]))


@pytest.mark.parametrize("places", [[[5, -1, 9999, 2]], [[-6, -7, 4, 0]], [[3, 2, 1, 0]]])
def test_take_along_dim_wraps_an_index_of_any_value(places: list[list[int]]) -> None:
    x, at = torch.arange(12.0).reshape(3, 4), torch.tensor(places)
    assert_agrees(lambda x: torch.take_along_dim(x, at, 0), x)
    assert_agrees(lambda x, at: torch.take_along_dim(x, at, 0), x, at)


def test_take_along_dim_without_places_reads_nothing() -> None:
    at = torch.zeros(0, 4, dtype=torch.int64)
    program = tosaic.from_exported(exported(lambda x: torch.take_along_dim(x, at, 0), FLOATS[:, :4]))
    assert program.run(FLOATS[:, :4]).shape == (0, 4)


def test_an_index_that_is_known_is_wrapped_by_the_import() -> None:
    for at in (torch.tensor([[0, 1, 2, 0]]), torch.tensor([[-1, 7, 2, 0]])):
        program = imported(lambda x, at=at: torch.take_along_dim(x, at, 0), FLOATS[:3, :4])
        assert "remainder" not in ops(program)


_DIVIDING = {
    "take_along_dim of argmax": (lambda x: torch.take_along_dim(x, x.argmax(0, True), 0), 0),
    "take_along_dim of argmax of another axis": (lambda x: torch.take_along_dim(x, x.argmax(1, True), 0), 1),
    "remainder": (lambda x: x.argmax(1) % 6, 0),
    "remainder of less": (lambda x: x.argmax(1) % 5, 1),
    "remainder of negative numbers": (lambda x: -x.argmax(1) % -6, 0),
    "remainder of another sign": (lambda x: -x.argmax(1) % 6, 1),
    "fmod": (lambda x: torch.fmod(x.argmax(1).int(), 6), 0),
    "fmod of less": (lambda x: torch.fmod(x.argmax(1), 5), 1),
    "remainder of a broadcast": (lambda x: x.argmax(1, True) % torch.tensor([[6, 7, 9]]), 1),
    "remainder by 0 or more": (lambda x: x.argmax(1) % (x.argmax(0).amax() + 6), 0),
}


@pytest.mark.parametrize("name", _DIVIDING)
def test_a_remainder_is_lowered_only_if_it_may_differ_from_its_operand(name: str) -> None:
    function, divisions = _DIVIDING[name]
    assert_agrees(function, FLOATS)
    tosa = tosaic.lower(exported(function, FLOATS), target="TOSA-1.0+INT+FP").graph
    assert sum(node.op == "tosa.intdiv" for node in tosa.nodes) == divisions


_ALONG = {
    "scatter": lambda x, i: x.scatter(0, i, x[:2]),
    "scatter of a number": lambda x, i: x.scatter(0, i, 5.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i, x[:2]),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i, x[:2], "sum"),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
}
_FROM_THE_END = {
    "index_fill": lambda x, i: x.index_fill(0, i, 5.0),
    "index_put": lambda x, i: torch.index_put(x, (i,), x[:2]),
    "index_put that adds": lambda x, i: torch.index_put(x, (i,), x[:2], True),
}


@pytest.mark.parametrize("place", [-1, -4, 4, 1 << 40])
@pytest.mark.parametrize("call", _ALONG)
def test_a_constant_index_that_torch_refuses_is_refused(call: str, place: int) -> None:
    at = torch.tensor([0, place]) if call.startswith("index") else torch.tensor([[0] * 6, [place] * 6])
    with pytest.raises((RuntimeError, IndexError)):
        _ALONG[call](FLOATS, at)
    with pytest.raises(tosaic.InvalidGraph, match="index out of range: expected an index in"):
        imported(lambda x: _ALONG[call](x, at), FLOATS)


_BEHIND_CALLS = {
    "expand": lambda i: i[:, None].expand(2, 6),
    "arithmetic": lambda i: (i.to(torch.int32) * 2 // 2)[:, None].to(torch.int64).repeat(1, 6),
    "a written copy": lambda i: i.clone().add_(0)[:, None] + torch.zeros(6, dtype=torch.int64),
    "where": lambda i: torch.where(i > 7, i, i.flip(0).flip(0))[:, None].expand(2, 6),
}


@pytest.mark.parametrize(
    ("way", "call"),
    [("expand", call) for call in (*_ALONG, *_FROM_THE_END)]
    + [(way, call) for way in _BEHIND_CALLS for call in ("scatter", "index_put") if way != "expand"],
)
def test_a_constant_index_behind_calls_is_refused_as_such(way: str, call: str) -> None:
    def function(x: torch.Tensor, place: int) -> Any:
        index = _BEHIND_CALLS[way](torch.tensor([0, place]))
        return {**_ALONG, **_FROM_THE_END}[call](x, index[:, 0] if call.startswith("index") else index)

    assert_agrees(lambda x: function(x, 1), FLOATS)
    for place in (4,) if call in _FROM_THE_END else (4, -1):
        with pytest.raises((RuntimeError, IndexError)):
            function(FLOATS, place)
        with pytest.raises(tosaic.InvalidGraph, match="index out of range: expected an index in"):
            imported(lambda x, place=place: function(x, place), FLOATS)


def test_an_index_from_an_input_or_a_state_is_not_computed_by_the_import() -> None:
    class Ring(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("at", torch.tensor([7]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.at.copy_((self.at + 1) % 4)
            return torch.index_put(x, (self.at,), x[:1])

    tosaic.from_exported(torch.export.export(Ring(), (FLOATS,), strict=False))


@pytest.mark.parametrize("call", _FROM_THE_END)
def test_a_constant_index_may_count_from_the_end_but_not_beyond(call: str) -> None:
    assert_agrees(lambda x: _FROM_THE_END[call](x, torch.tensor([1, -4])), FLOATS)
    for place in (-5, 4, 1 << 40):
        at = torch.tensor([0, place])
        with pytest.raises((RuntimeError, IndexError)):
            _FROM_THE_END[call](FLOATS, at)
        with pytest.raises(tosaic.InvalidGraph, match="index out of range: expected an index in"):
            imported(lambda x, at=at: _FROM_THE_END[call](x, at), FLOATS)


def test_a_constant_class_beyond_the_last_is_refused() -> None:
    at = torch.tensor([0, 3])
    with pytest.raises(tosaic.InvalidGraph, match="index out of range"):
        imported(lambda x: F.one_hot(at, 3) + x, FLOATS[:2, :3])


def test_a_slice_of_nothing_is_not_replaced() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="index out of range"):
        imported(lambda x: A.select_scatter(x, x.sum(), 0, 0), torch.zeros(0))


def test_a_call_without_a_counterpart_is_refused_by_name() -> None:
    program = tosaic.from_exported(exported(lambda x: torch.lgamma(x), FLOATS))
    with pytest.raises(tosaic.UnsupportedOp, match="is foreign to tosaic"):
        tosaic.lower(program)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x[torch.tensor([True, False, True, True])] + 1,
        lambda x: x[:, torch.tensor([True, False, True, True, False, False])],
        lambda x: x[torch.tensor([True, False, True, True])].sum(0) * 2,
        lambda x: x.repeat_interleave(torch.tensor([1, 0, 2, 3]), 0) + 1,
        lambda x: x[torch.repeat_interleave(torch.tensor([1, 0, 2, 3]))],
    ],
)
def test_constant_masks_and_counts_choose_rows(call: Any) -> None:
    assert_agrees(call, FLOATS, decomposed=False, tolerance=1e-6)


def test_a_selection_whose_size_depends_on_data_is_refused() -> None:
    with pytest.raises(tosaic.UnsupportedOp, match="depends on data"):
        imported(lambda x: x[x > 0].sum(), FLOATS)


def test_an_output_without_elements_is_refused() -> None:
    with pytest.raises(tosaic.UnsupportedOp, match="has no elements"):
        tosaic.lower(exported(lambda x: x[:0] + 1, FLOATS))


def test_constant_repeats_are_one_lookup() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(torch.tensor([1, 0, 2, 3]), 0, output_size=6)

    assert_agrees(call, FLOATS, decomposed=False)
    assert ops(imported(call, FLOATS)).count("index_select") == 1


# ---- sizes that a small file can ask for ----


class _WithCounts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.tensor([2, 1, 2, 1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(self.counts, 0, output_size=6)


def _edited(call: Any, x: torch.Tensor, name: str, position: int, argument: Any) -> Any:
    """Returns a program with one argument changed; the recorded results are from the original argument."""
    program = exported(call, x)
    (node,) = (each for each in program.graph.nodes if name in str(each.target))
    arguments = list(node.args)
    arguments[position:] = [argument, *arguments[position + 1 :]]
    node.args = tuple(arguments)
    return program


def _repeated(count: int) -> Any:
    program = torch.export.export(_WithCounts(), (FLOATS,))
    program.state_dict["counts"].fill_(count)
    return program


_MANY = 10**9
_UNLIKE = {
    "as_strided": lambda: _edited(
        lambda x: x.as_strided((3, 4), (1, 2)), FLOATS, "as_strided", 1, [10**4] * 2
    ),
    "as_strided of another order": lambda: _edited(
        lambda x: x.as_strided((3, 4), (1, 2)), FLOATS, "as_strided", 1, [4, 3]
    ),
    "as_strided_": lambda: _edited(
        lambda x: x.clone().as_strided_((3, 4), (1, 2)), FLOATS, "as_strided", 1, [10**4] * 2
    ),
    "resize": lambda: _edited(lambda x: x.clone().resize_(2, 3), FLOATS, "resize", 1, [10**4] * 2),
    "unfold": lambda: _edited(lambda x: x.unfold(1, 2, 1), FLOATS, "unfold", 2, _MANY),
    "im2col": lambda: _edited(lambda x: F.unfold(x, 2, padding=1), X4, "im2col", 3, [10**6] * 2),
    "col2im": lambda: _edited(
        lambda x: F.fold(x, (4, 6), 2, stride=2), torch.randn(2, 12, 6), "col2im", 1, [10**5] * 2
    ),
    "repeat_interleave": lambda: _repeated(_MANY),
    "one_hot of nothing": lambda: exported(lambda x: F.one_hot(x, _MANY), torch.zeros(0, dtype=torch.int64)),
    "nearest of nothing": lambda: exported(
        lambda x: F.interpolate(x[:0], (_MANY, 1), mode="nearest-exact"), X4
    ),
}
_LARGE = {
    "as_strided that repeats": lambda: exported(
        lambda x: x.as_strided((10**8, 4), (0, 1)).sum((0, 1)), FLOATS
    ),
    "as_strided of nothing": lambda: exported(lambda x: x.as_strided((0, _MANY), (1, 1)).sum((0, 1)), FLOATS),
    "pool": lambda: exported(
        lambda x: F.max_pool2d(x, 10**5, 1, 5 * 10**4, return_indices=True), X4[:, :, :8, :8]
    ),
    "index that is filled": lambda: exported(
        lambda x: x.index_add(0, torch.full((_MANY,), 1), x[:1].expand(_MANY, 6)), FLOATS
    ),
    "index of a range": lambda: exported(
        lambda x: x.scatter(0, (torch.arange(_MANY) % 3).reshape(1, -1)[:, :4], x), FLOATS
    ),
    "eye": lambda: exported(lambda x: x + torch.eye(10**5).sum((0, 1)), FLOATS),
    "linspace": lambda: exported(lambda x: x + torch.linspace(0, 1, _MANY).sum(0), FLOATS),
}


def _peak(program: Any) -> int:
    tracemalloc.start()
    try:
        held = [each.array.nbytes for each in tosaic.from_exported(program).graph.constants.values()]
        return max(sum(held), tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("call", _UNLIKE)
def test_a_call_that_makes_more_than_torch_recorded_is_refused_at_once(call: str) -> None:
    program = _UNLIKE[call]()
    tracemalloc.start()
    with pytest.raises(tosaic.InvalidGraph, match=r"recorded|more indices|has not the windows|too large"):
        tosaic.from_exported(program)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 25


@pytest.mark.parametrize("call", _LARGE)
def test_the_import_of_a_large_value_computes_no_large_list(call: str) -> None:
    assert _peak(_LARGE[call]()) < 1 << 25
