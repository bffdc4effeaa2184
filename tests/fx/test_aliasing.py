"""In-place calls on tensors that share memory: the import follows eager, or refuses the write by node."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from function_module import FunctionModule
from operators.aliasing import Program, running, try_programs, verdict
from operators.values import Case, T
from torch import nn
from tosaic import _core, from_exported
from tosaic.fx.reading.executed_memory import ExecutedMemory
from tosaic.fx.reading.exported_program import functional_hint
from tosaic.pt2.program import read_pt2

pytestmark = pytest.mark.filterwarnings("ignore")

_aten = torch.ops.aten
X = torch.arange(1.0, 13.0).reshape(3, 4)


def exported(function: Callable[..., Any] | nn.Module, *args: torch.Tensor) -> Any:
    module = function if isinstance(function, nn.Module) else FunctionModule(function)
    return torch.export.export(module.eval(), args, strict=False)


def assert_equals_eager(function: Callable[..., Any] | nn.Module, *args: torch.Tensor) -> None:
    """Compares results and inputs after the call, of two calls."""
    ep = exported(function, *args)
    program, eager = from_exported(ep), ep.module()
    for _ in range(2):
        ours, theirs = [each.clone() for each in args], [each.clone() for each in args]
        found, expected = program.run(*ours), eager(*theirs)
        found, expected = (each if isinstance(each, list | tuple) else [each] for each in (found, expected))
        for a, b in zip([*found, *ours], [*expected, *theirs], strict=True):
            np.testing.assert_array_equal(np.asarray(a), b.detach().numpy())


def refusal(function: Callable[..., Any] | nn.Module, *args: torch.Tensor) -> Any:
    with pytest.raises(tosaic.UnsupportedOp) as error:
        from_exported(exported(function, *args))
    return error.value


def test_a_conversion_that_copies_does_not_change_its_operand() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        y, z = made.to(torch.float32, copy=True), x.to(torch.float32, copy=True)
        y.mul_(3)
        z.mul_(3)
        return made, y, x * 1, z

    assert_equals_eager(call, X)


SAME: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout in eval mode": lambda x: _aten.dropout(x, 0.5, False),
    "dropout of nothing": lambda x: _aten.dropout(x, 0.0, True),
    "feature_dropout": lambda x: _aten.feature_dropout(x, 0.5, False),
    "type_as": lambda x: x.type_as(torch.ones(2)),
    "to of the same dtype": lambda x: x.to(torch.float32),
    "einsum of one operand": lambda x: torch.einsum("ij->ij", x),
    "contiguous": lambda x: x.contiguous(),
    "flatten of one axis": lambda x: x.flatten(1, 1),
    "reshape to the same shape": lambda x: x.reshape(3, 4),
    "unsafe_chunk into one": lambda x: torch.unsafe_chunk(x, 1)[0],
    "conj_physical": lambda x: _aten.conj_physical(x),
    "a view and back": lambda x: x.t().t(),
    "a view of other shape and back": lambda x: x.view(12).view(3, 4),
}


@pytest.mark.parametrize("name", SAME)
def test_a_result_that_is_its_operand_is_written_with_it(name: str) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        same, other = SAME[name](made), SAME[name](x)
        same.mul_(3)
        x.add_(5)
        return made, same, other

    assert_equals_eager(call, X)


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous of a transposed one": lambda x: x.t().contiguous(),
    "reshape of a transposed one": lambda x: x.t().reshape(12),
    "flatten of a transposed one": lambda x: x.t().flatten(),
    "to of another dtype": lambda x: x.to(torch.float64),
    "einsum of a sum": lambda x: torch.einsum("ij->i", x),
    "_unsafe_view of a transposed copy": lambda x: _aten._unsafe_view(x.t().contiguous(), [12]),
    "clone": lambda x: x.clone(),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_result_that_is_a_copy_is_written_alone(name: str) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        copied, other = COPIES[name](made), COPIES[name](x)
        copied.mul_(3)
        x.add_(5)
        return made, copied, other

    assert_equals_eager(call, X)


def test_the_other_half_of_a_split_does_not_change() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = (x + 1).chunk(2, 0)
        third, fourth = torch.unsafe_split(x + 2, 2)
        first.mul_(3)
        fourth.mul_(3)
        return first, second, third, fourth

    assert_equals_eager(call, X)


PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2)[0],
    "unsafe_split": lambda x: torch.unsafe_split(x, 2)[1],
    "_unsafe_view": lambda x: _aten._unsafe_view(x, [12]),
    "einsum of a transpose": lambda x: torch.einsum("ij->ji", x),
    "reshape": lambda x: x.reshape(12),
    "flatten": lambda x: x.flatten(),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("is_input", [False, True], ids=["copy", "input"])
def test_a_write_to_a_part_is_seen_in_the_whole(name: str, is_input: bool) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x if is_input else x + 1
        part = PARTS[name](made)
        part.mul_(3)
        made.view(-1)[2:9].sub_(1)
        return made * 2, part, PARTS[name](made)

    assert_equals_eager(call, X)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("is_input", [False, True], ids=["copy", "input"])
def test_decomposition_is_called_a_way_out_only_where_it_is_right(name: str, is_input: bool) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x if is_input else x + 1
        part = PARTS[name](made)
        part.mul_(3)
        return made * 2, part

    ep = exported(call, X)
    decomposed = ep.run_decompositions()
    expected, found = ep.module()(X.clone()), decomposed.module()(X.clone())
    keeps = all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert ("run_decompositions" in functional_hint(ep)) == keeps
    if not keeps:
        assert "y = y.mul(2)" in functional_hint(ep)


def test_decomposition_is_no_way_out_where_it_changes_strides() -> None:
    """Decomposed, the result is contiguous, so that the reshape is a view and not a copy."""

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        large = _aten.upsample_nearest1d.vec((x + 1).transpose(0, 2), None, [2.5])
        part = large.reshape(-1)
        part.mul_(3)
        return large * 2, part

    assert "run_decompositions" not in functional_hint(exported(call, torch.ones(4, 2, 3)))
    assert_equals_eager(call, torch.ones(4, 2, 3))


def test_decomposition_is_no_way_out_where_torch_cannot_decompose() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        grid = _aten.affine_grid_generator(made, [3, 1, 1, 1], False)
        made[0].mul_(3)
        return grid, made

    ep = exported(call, torch.ones(3, 2, 3))
    with pytest.raises(AssertionError, match="functional graph"):
        ep.run_decompositions()
    assert "run_decompositions" not in functional_hint(ep)
    assert_equals_eager(call, torch.ones(3, 2, 3))


def test_windows_that_share_elements_are_not_written() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        windows = (x + 1).view(12).unfold(0, 3, 1)
        return _aten.index_fill_(windows, 0, torch.tensor([1]), 2.0)

    with pytest.raises(tosaic.UnsupportedOp, match="of which several elements share memory"):
        from_exported(exported(call, X))


def test_a_call_that_reads_what_it_writes_is_refused() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = x[:3, :3] + 1
        return y.index_add_(0, torch.tensor([1, 2, 0]), y.t())

    assert "while it reads" in str(refusal(call, X))


def test_a_product_with_itself_is_computed() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y.mul_(y).add_(y.detach())

    assert_equals_eager(call, X)


class SharedBuffers(nn.Module):
    """Buffers of which the second lies in the memory of the first."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        held = torch.arange(6.0).reshape(2, 3)
        self.register_buffer("held", held)
        self.register_buffer("seen", view(held))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.held.add_(x)
        return self.held * 2, self.seen * 3


def test_buffers_with_the_same_elements_are_written_together() -> None:
    assert_equals_eager(SharedBuffers(lambda held: held.detach()), torch.ones(3))


@pytest.mark.parametrize("view", [lambda held: held[1], lambda held: held.t()], ids=["part", "transpose"])
def test_a_buffer_that_shares_a_part_of_another_is_written_with_it(
    view: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert_equals_eager(SharedBuffers(view), torch.ones(3))


def test_buffers_of_which_none_has_all_the_memory_are_refused() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(6.0)
            self.register_buffer("first", whole[:4])
            self.register_buffer("second", whole[2:])

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.first.add_(x)
            return self.first * 2, self.second * 3

    error = refusal(Halves(), torch.ones(4))
    assert "'b_second' shares in part" in str(error)
    assert error.parts["node"] == "add_"


def test_a_state_of_a_functional_program_has_memory_of_its_own(tmp_path: Path) -> None:
    ep = exported(SharedBuffers(lambda held: held[1].clone()), torch.ones(3)).run_decompositions()
    from_exported(ep)
    ep.state_dict["seen"] = ep.state_dict["held"][1]
    with pytest.raises(tosaic.UnsupportedOp, match="'held', which shares memory with 'seen'"):
        from_exported(ep)
    torch.export.save(ep, tmp_path / "m.pt2")
    with pytest.raises(tosaic.UnsupportedOp, match="'held', which shares memory with 'seen'"):
        read_pt2(tmp_path / "m.pt2")


def test_a_decomposed_program_is_taken_as_it_is() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        part = torch.unsafe_chunk(made, 2)[0]
        part.mul_(3)
        return made, part

    decomposed = exported(call, X).run_decompositions()
    found = from_exported(decomposed).run(X)
    for a, b in zip(found, decomposed.module()(X), strict=True):
        np.testing.assert_array_equal(np.asarray(a), b.numpy())


def test_the_trial_of_a_decomposition_writes_to_few_of_many_parts(monkeypatch) -> None:
    """Torch needs a minute to decompose writes to 262 parts, and before, a refusal waited for that."""

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x.flatten() + 1
        part = torch.unsafe_split(made, 1)[5]
        part.mul_(3)
        return made, part

    writes = []
    ones_like = torch.ones_like
    monkeypatch.setattr(torch, "ones_like", lambda x: writes.append(x) or ones_like(x))
    functional_hint(exported(call, torch.ones(20, 5)))
    assert 0 < len(writes) <= 3 * 16  # eager, and where the trial is exported


def test_a_part_that_is_taken_from_the_list_after_the_write_is_new() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = (x + 1).split(1)
        parts[0].mul_(3)
        return parts[0], parts[1]

    ep = exported(call, X)
    graph = ep.graph_module.graph
    (split,) = (node for node in graph.nodes if "split" in str(node.target))
    (write,) = (node for node in graph.nodes if "mul_" in str(node.target))
    with graph.inserting_after(write):
        late = graph.call_function(operator.getitem, (split, 0))
    late.meta = dict(write.args[0].meta)
    output = next(iter(reversed(graph.nodes)))
    output.args = ((late, *output.args[0][1:]),)
    ep.graph_module.recompile()
    found = from_exported(ep).run(X)
    np.testing.assert_array_equal(np.asarray(found[0]), ((X + 1)[:1] * 3).numpy())


def test_an_empty_input_is_written() -> None:
    assert_equals_eager(lambda x: x.transpose(0, 1).mul_(2) + 1, torch.ones(0, 3))


def test_an_input_of_overlapping_windows_is_not_written() -> None:
    ep = exported(lambda x: x.mul_(2) + 1, torch.ones(3, 2))
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(4, dtype=np.float32), 2, writeable=True)
    with pytest.raises(tosaic.LayoutMismatch, match="overlapping windows"):
        from_exported(ep).run(windows)


# ---- relatives: states, results, branches, other libraries ----


class Held(nn.Module):
    """A function of a buffer and an input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("held", torch.arange(12.0).reshape(3, 4))
        self._function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self._function(self.held, x)


def _after(write: Callable[..., Any]) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    """Returns a function that writes to a new tensor, and returns what was written and the tensor."""

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        return write(made), made * 1

    return call


def _exchanged(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = x + 1, x + 2
    saved = a.clone()
    a.copy_(b)
    b.copy_(saved)
    return a, b


def _parts_written(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b, c = (x + 1).unbind(0)
    return a.mul_(2), b.add_(a), c


def _viewed_before(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    seen = x.view(3, 4)
    return seen, x.mul_(2)


def _view_of_a_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = x + 1
    rows = made[1:]
    seen = rows * 2
    rows[:, 1].mul_(3)
    made[2] = 7
    return made, rows, seen, rows[0, 1]


def _overlapping(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = x + 1
    a, b = made[:2], made[1:]
    a.mul_(2)
    b.sub_(1)
    a.t().add_(x.t()[:, :2])
    return made, a, b


def _shape_after(made: torch.Tensor) -> tuple[torch.Tensor, ...]:
    row = made[0]
    row.mul_(2)
    made.t_()
    made[1].sub_(1)
    row.add_(3)
    return made * 1, row


def _constants_in_parts(x: torch.Tensor) -> torch.Tensor:
    padded = torch.zeros(5, 6)
    padded[1:4, 1:5] = x
    padded[0, 0] = -1
    padded[:, -1] = padded[:, 0]
    padded[4:, ::2] += 2
    return padded


def _columns(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(x).fill_(0)
    for column in range(4):
        made[:, column] = x[:, : column + 1].sum(1)
    return made


AS_EAGER: dict[str, Callable[..., Any] | nn.Module] = {
    "a state that is returned": Held(lambda held, x: (held.add_(x), held, held[0])),
    "a state that is detached": Held(lambda held, x: (held.detach().add_(x), held * 1)),
    "a state that rolls": Held(lambda held, x: held.copy_(torch.cat([held[1:], x[:1]])) * 1),
    "results that are the input": lambda x: (x, x.view(-1), x.t()),
    "results that are the written input": lambda x: (x.add_(1), x, x.view(3, 4)),
    "a view from before the write": _viewed_before,
    "detach": _after(lambda y: y.detach().mul_(2)),
    "detach_": _after(lambda y: y.detach_().mul_(2)),
    "as_strided of everything": _after(lambda y: y.as_strided((3, 4), (4, 1)).mul_(2)),
    "resize_": lambda x: (x + 1).resize_(2, 4).mul_(2),
    "squeeze_": lambda x: (x[:1] + 1).squeeze_(0).mul_(2),
    "transpose_": lambda x: (x + 1).transpose_(0, 1).add_(1),
    "parts of unbind": _parts_written,
    "an expansion that is copied": lambda x: (x[0] + 1).expand(3, 4).contiguous().mul_(2),
    "an expansion to the same shape": _after(lambda y: y.expand(3, 4).mul_(2)),
    "a copy of itself": _after(lambda y: y.copy_(y)),
    "its own maximum": _after(lambda y: y.sub_(y.max())),
    "a chain of views": _after(lambda y: y.view(2, 6).t().unsqueeze(0).squeeze(0).t().view(3, 4).mul_(2)),
    "two tensors that are exchanged": _exchanged,
    "a row of a state": Held(lambda held, x: (held[0].add_(x[0]), held * 1)),
    "a row of a state that is returned": Held(lambda held, x: (held[1].add_(x[0]), held, held[1])),
    "a state that is transposed": Held(lambda held, x: (held.t().mul_(x[0, 0]), held * 1)),
    "a state that is filled in turn": Held(lambda held, x: (held[1:].copy_(held[:-1].clone()), held * x)),
    "as_strided of a part": _after(lambda y: y.as_strided((4,), (1,), 4).mul_(2)),
    "a part of a split": _after(lambda y: y.split(2, 1)[0].mul_(2)),
    "a column beside another": _after(lambda y: y[:, 0].add_(y[:, 1])),
    "a chain of five views": _after(
        lambda y: y.view(2, 6).t().unflatten(0, (3, 2))[1:].transpose(0, 2).select(0, 1).mul_(2)
    ),
    "a chain of five views of a state": Held(
        lambda held, x: (
            held.view(2, 6).t().unflatten(0, (3, 2))[1:].transpose(0, 2).select(0, 1).mul_(2),
            held.t()[1:, ::2],
            held + x,
        )
    ),
    "a chain of five views of the input": lambda x: (
        x.t().unsqueeze(1).flatten(1)[::2].diagonal().mul_(2),
        x.view(-1)[3:10],
    ),
    "a write to a view of a view that was read": _view_of_a_view,
    "parts that overlap": _overlapping,
    "a shape that changes after a write": lambda x: _shape_after(x + 1),
    "constants in parts": _constants_in_parts,
    "a loop over columns": _columns,
    "nothing, and then a part": _after(lambda y: (y[:, :0].fill_(0), y[1:].mul_(2))[1]),
}


@pytest.mark.parametrize("name", AS_EAGER)
def test_a_relative_follows_eager_in_each_call_of_a_stream(name: str) -> None:
    function = AS_EAGER[name]
    ep = exported(function, X)
    program, module = from_exported(ep), ep.module()
    for call in range(3):
        ours, theirs = X + call, X + call
        found, expected = program.run(ours), module(theirs)
        found, expected = (each if isinstance(each, list | tuple) else [each] for each in (found, expected))
        for a, b in zip([*found, ours], [*expected, theirs], strict=True):
            np.testing.assert_array_equal(np.asarray(a), b.detach().numpy())


def _branch(write: str) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        taken = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 2, (made,))
        (made if write == "operand" else taken).mul_(3)
        return made, taken

    return call


def _into(view: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        made = x + 1
        torch.add(x[0], 1, out=view(made))
        return made * 1

    return call


def _real_part_written(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch.complex(x, x)
    made.real.mul_(2)
    return made.real, made.imag


REFUSED: dict[str, Callable[..., Any] | nn.Module] = {
    "rows of a state copied to others": Held(lambda held, x: (held[:-1].copy_(held[1:]), held * x)),
    "the result of a branch": _branch("result"),
    "the operand of a branch": _branch("operand"),
    "set_": _after(lambda y: y.set_(y + 1).mul_(2)),
    "the real part": _real_part_written,
    "an expansion": _after(lambda y: y[:1].expand(3, 4).mul_(2)),
    "overlapping rows": _after(lambda y: y[1:].copy_(y[:-1])),
    "its own transpose": lambda x: (lambda y: y.add_(y.t()))(x[:3, :3] + 1),
    "its own row": _after(lambda y: y.copy_(y[0])),
    "its own element": _after(lambda y: y.mul_(y[0, 0])),
    "other bits": _after(lambda y: y.view(torch.int32).bitwise_and_(-2).view(torch.float32)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_relative_that_does_not_follow_eager_is_refused_by_node(name: str) -> None:
    error = refusal(REFUSED[name], X)
    assert "it writes to" in str(error)
    assert error.parts["node"]


def test_operators_of_other_libraries_write_what_their_schemas_say() -> None:
    with torch.library._scoped_library("memory_of_others", "DEF") as library:
        library.define("twice(Tensor(a!) x) -> Tensor(a!)")
        library.define("flat(Tensor(a) x) -> Tensor(a)")
        library.define("silent(Tensor(a!) x) -> ()")
        kind = "CompositeExplicitAutograd"
        library.impl("twice", lambda x: x.mul_(2), kind)
        library.impl("flat", lambda x: x.view(-1), kind)
        library.impl("silent", lambda x: (x.mul_(2), None)[1], kind)
        others = torch.ops.memory_of_others
        graph = from_exported(exported(_after(lambda y: others.twice(y)), X)).graph
        (read,) = (node for node in graph.nodes if node.op == "mul")
        assert read.operands[0].name == "twice"
        with pytest.raises(tosaic.UnsupportedOp, match="may share and is seen later"):
            from_exported(exported(_after(lambda y: others.flat(y).mul_(2)), X))
        with pytest.raises(tosaic.UnsupportedOp, match="without returning it"):
            from_exported(exported(_after(lambda y: others.silent(y) or y), X))


def test_out_is_what_is_written_later() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        torch.add(x, 1, alpha=2, out=made)
        torch.sum(x, 1, out=made[:, 0].t()[:3])
        torch.mul(x[0].int(), 2, out=made[2])
        return made * 2, x * 1, made

    assert_equals_eager(call, X)


def test_a_diagonal_is_filled() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tall, cube = x.t() + 1, torch.zeros(3, 3, 3)
        torch.cat([tall, tall], 0).fill_diagonal_(2.5)
        wrapped = torch.cat([tall, tall], 0).fill_diagonal_(7, wrap=True)
        cube[:, :2].add_(1)
        return tall[1:].fill_diagonal_(-1), tall, wrapped, cube.fill_diagonal_(4)

    assert_equals_eager(call, X)


# ---- files ----


def saved(function: Callable[..., Any] | nn.Module, path: Path, *args: torch.Tensor) -> Path:
    torch.export.save(exported(function, *args), path)
    return path


ASKS_TORCH = {
    "einsum of one operand": r"\[pt2\].*may share and is seen later",
    "einsum of a sum": r"\[pt2\].*may share and is seen later",
    "conj_physical": r"\[pt2\].*torch's decompositions are needed",
}


@pytest.mark.parametrize("name", [*SAME, *COPIES])
def test_the_reader_of_files_has_the_same_verdict_or_asks_torch(name: str, tmp_path: Path) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = {**SAME, **COPIES}[name](x)
        x.mul_(3)
        return x * 2, result

    path = saved(call, tmp_path / "m.pt2", X)
    if name in ASKS_TORCH:
        with pytest.raises(tosaic.UnsupportedOp, match=ASKS_TORCH[name]):
            read_pt2(path)
    else:
        assert read_pt2(path).graph.text() == from_exported(torch.export.load(path)).graph.text()
    program = tosaic.open_program(path)
    ours, theirs = X.clone(), X.clone()
    for a, b in zip(program.run(ours), call(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(a), b.numpy())
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", PARTS)
def test_the_reader_of_files_follows_a_write_to_a_part_or_asks_torch(name: str, tmp_path: Path) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        PARTS[name](x).mul_(3)
        return x * 2

    path = saved(call, tmp_path / "m.pt2", X)
    if "einsum" in name:
        with pytest.raises(tosaic.UnsupportedOp, match="may share and is seen later"):
            read_pt2(path)
    else:
        assert read_pt2(path).graph.text() == from_exported(torch.export.load(path)).graph.text()
    ours, theirs = X.clone(), X.clone()
    np.testing.assert_array_equal(np.asarray(tosaic.open_program(path).run(ours)), call(theirs).numpy())
    assert torch.equal(ours, theirs)


LISTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "chunk": lambda x: x.chunk(2),
    "chunk into one": lambda x: x.chunk(1),
    "split": lambda x: x.split(1),
    "split_with_sizes": lambda x: torch.split_with_sizes(x, [0, 3], 0),
    "unbind": lambda x: x.unbind(0),
    "tensor_split": lambda x: x.tensor_split(2),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2),
    "unsafe_split": lambda x: torch.unsafe_split(x, 2),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("writes_part", [False, True], ids=["the whole", "a part"])
def test_the_reader_of_files_knows_that_parts_in_a_list_share_memory(
    name: str, writes_part: bool, tmp_path: Path
) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = LISTS[name](x)
        (parts[-1] if writes_part else x).mul_(3)
        return x * 2, parts[-1] * 2

    path = saved(call, tmp_path / "m.pt2", X)
    for a, b in zip(tosaic.open_program(path).run(X.clone()), call(X.clone()), strict=True):
        np.testing.assert_array_equal(np.asarray(a), b.numpy())


def test_a_call_of_an_absent_library_that_returns_nothing_is_not_dropped(tmp_path: Path) -> None:
    code = f"""
import torch
torch.library.define("absent::twice_", "(Tensor(a!) x) -> ()")
torch.library.register_fake("absent::twice_")(lambda x: None)
class M(torch.nn.Module):
    def forward(self, x):
        y = x + 1
        torch.ops.absent.twice_(y)
        return y
torch.export.save(torch.export.export(M(), (torch.ones(3),)), {str(tmp_path / "m.pt2")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(_core.UnsupportedOp, match="may write its operands"):
        read_pt2(tmp_path / "m.pt2")


# ---- a sample of the full test ----


def test_a_difference_of_rounding_is_not_a_missed_write() -> None:
    rounded = [
        ("_native_batch_norm_legit.no_stats", (T((1, 1)), None, None, True, 0.1, 1e-05)),
        ("native_layer_norm", (T((1, 1), "bf16"), [1, 1], None, None, 1e-05)),
        ("glu", (T((17, 8, 4, 1), "bf16", kind="unit"), -2)),
    ]
    for name, args in rounded:
        case = Case(name, args, keep=(0,))
        assert verdict([Program(case, "input", "plain", "operand", "whole")])[0] == "equal"


def test_a_call_whose_record_torch_contradicts_is_torch_s_fault() -> None:
    case = Case("pixel_unshuffle", (T((0, 2, 2)), 2))
    assert verdict([Program(case, "copy", "plain", "operand", "whole")])[0] == "by torch"


@pytest.mark.parametrize("source", ["copy", "input", "buffer"])
def test_elements_that_torch_leaves_uninitialised_are_not_compared(source: str) -> None:
    larger, smaller = (Case("resize", (T((3, 1)), size)) for size in ([2, 3], [2, 1]))
    assert verdict([Program(larger, source, "plain", "result", "whole")])[0] == "by torch"
    assert verdict([Program(smaller, source, "plain", "result", "whole")])[0] != "by torch"


def test_a_search_among_numbers_that_a_write_has_unsorted_is_not_compared() -> None:
    line = T((3,), "i64", [-4, 2, 3], const=True)
    search = Case("searchsorted.Scalar", (line, 1))
    bucketize = Case("bucketize.Tensor", (T((2,), "i64"), line))
    for case, at in ((search, 0), (bucketize, 1)):
        verdicts = {
            source: verdict([Program(case, source, "plain", "operand", "whole", at)])[0]
            for source in ("copy", "input", "buffer")
        }
        assert verdicts == {"copy": "equal", "input": "equal", "buffer": "by torch"}
    assert verdict([Program(bucketize, "buffer", "plain", "operand", "whole", 0)])[0] == "equal"


def test_a_call_that_ends_the_process_is_not_drawn() -> None:
    good = Case("add.Tensor", (T((2,)), T((2,))))
    fatal = Case("_weight_norm", (T((0, 3)), T((0, 1)), 0))
    assert running([good, fatal, good]) == [good, good]


SAMPLE = [
    "to.dtype",
    "reshape",
    "unsafe_chunk",
    "dropout",
    "einsum",
    "split.Tensor",
    "add.Tensor",
    "softmax.int",
]


@pytest.mark.parametrize("name", SAMPLE)
def test_programs_around_a_call_equal_eager_or_are_refused(name: str) -> None:
    found = try_programs(name, count=2)
    assert found.programs
    assert not found.failures, "\n".join(found.failures)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "bool"])
def test_a_missed_alias_is_noticed(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(Case("dropout", (T((2, 3), dtype), 0.5, False)), "copy", "plain", "result", "whole")
    assert verdict([program]) == ("equal", "")
    fresh = lambda self, node, row, tensors: self._fresh(node.meta["val"], node)  # noqa: E731
    monkeypatch.setattr(ExecutedMemory, "of_results", fresh)
    assert verdict([program])[0] == "failure"


EMPTY = """
import torch, tosaic

class Weighted(torch.nn.Module):
    def forward(self, v, g):
        written = v + 1
        written.mul_(3)
        return torch._weight_norm(v * 1, g * 1, 0), written

exported = torch.export.export(Weighted(), (torch.zeros(0, 3), torch.zeros(0, 1)), strict=False)
tosaic.from_exported(exported)
"""


def test_a_call_without_elements_does_not_end_the_process() -> None:
    """Torch's kernel divides by the number of weights."""
    assert subprocess.run([sys.executable, "-c", EMPTY], check=False).returncode == 0


NOT_RUN: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "conv2d": (_aten.conv2d, [(2, 4, 5, 3), (6, 4, 2, 2)]),
    "conv2d of one channel": (_aten.conv2d, [(2, 1, 5, 3), (6, 1, 1, 1)]),
    "conv_transpose2d": (_aten.conv_transpose2d, [(2, 4, 5, 3), (4, 6, 2, 2)]),
    "linear": (_aten.linear, [(2, 3, 4), (5, 4)]),
    "matmul": (_aten.matmul, [(2, 3, 4), (2, 4, 5)]),
    "matmul of one element": (_aten.matmul, [(1, 1), (1, 1)]),
    "addmm": (_aten.addmm, [(3, 5), (3, 4), (4, 5)]),
    "addmm over nothing": (_aten.addmm, [(3, 5), (3, 0), (0, 5)]),
    "attention": (_aten.scaled_dot_product_attention, [(1, 2, 3, 4)] * 3),
    "batch_norm": (
        lambda x, mean: _aten.batch_norm(x, None, None, mean, mean, False, 0.1, 1.0, False),
        [(2, 4, 5, 3), (4,)],
    ),
}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "stepped": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand(x.shape),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NOT_RUN)
def test_a_call_that_is_not_run_has_new_memory_with_the_strides_of_eager(
    name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, shapes = NOT_RUN[name]
    for at in range(len(shapes)):
        operands = [torch.ones(shape) for shape in shapes]
        operands[at] = LAYOUTS[layout](operands[at])
        result = function(*operands)
        assert result.untyped_storage()._cdata not in {each.untyped_storage()._cdata for each in operands}

        def call(*given: torch.Tensor) -> torch.Tensor:
            return function(*given).add_(1)

        seen: list[Any] = []
        of_results = ExecutedMemory.of_results

        def watch(self: Any, *args: Any, inner: Any = of_results, seen: list[Any] = seen) -> Any:
            seen.append(inner(self, *args))
            return seen[-1]

        monkeypatch.setattr(ExecutedMemory, "of_results", watch)
        from_exported(exported(call, *operands))
        monkeypatch.setattr(ExecutedMemory, "of_results", of_results)
        region = seen[0]
        assert (region.shape, region.offset) == (tuple(result.shape), 0)
        sizes = zip(result.shape, region.strides, result.stride(), strict=True)
        assert all(ours == theirs for size, ours, theirs in sizes if size > 1)
