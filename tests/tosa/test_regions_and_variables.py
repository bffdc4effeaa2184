"""`.tosa` files with control flow and variables are read, printed, verified, run and written again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tosaic
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

BRANCHES = """tosaic 1
graph @forward stage=tosa {
  input %p: bool[1] path="p"
  input %x: f32[2,3] path="x"
  input %y: f32[2,3] path="y"
  %r: f32[2,3], %s: f32[2,3] = tosa.cond_if(%p, %x, %y) regions {
    graph @then stage=tosa {
      input %a: f32[2,3]
      input %b: f32[2,3]
      %sum: f32[2,3] = tosa.add(%a, %b)
      return %sum
      return %b
    }
    graph @else stage=tosa {
      input %a: f32[2,3]
      input %b: f32[2,3]
      const %half: f32[1,1] = lifted [0.5]
      %scaled: f32[2,3] = tosa.mul(%a, %half) {shift=0}
      %difference: f32[2,3] = tosa.sub(%scaled, %b)
      return %difference
      return %scaled
    }
  }
  return %r path="out[0]"
  return %s path="out[1]"
}
"""

# Doubles %x in each of %n turns; a branch inside the loop then adds %c if more than 2 turns were left.
LOOP = """tosaic 1
graph @forward stage=tosa {
  input %n: i32[1] path="n"
  input %x: f32[4] path="x"
  const %c: f32[4] = lifted [1.0,2.0,3.0,4.0]
  %left: i32[1], %y: f32[4], %kept: f32[4] = tosa.while_loop(%n, %x, %c) regions {
    graph @more stage=tosa {
      input %n: i32[1]
      input %x: f32[4]
      input %c: f32[4]
      const %zero: i32[1] = lifted [0]
      %go_on: bool[1] = tosa.greater(%n, %zero)
      return %go_on
    }
    graph @turn stage=tosa {
      input %n: i32[1]
      input %x: f32[4]
      input %c: f32[4]
      const %one: i32[1] = lifted [1]
      const %two: i32[1] = lifted [2]
      %next: i32[1] = tosa.sub(%n, %one)
      %double: f32[4] = tosa.add(%x, %x)
      %many: bool[1] = tosa.greater(%n, %two)
      %moved: f32[4] = tosa.cond_if(%many, %double, %c) regions {
        graph @add stage=tosa {
          input %v: f32[4]
          input %c: f32[4]
          %sum: f32[4] = tosa.add(%v, %c)
          return %sum
        }
        graph @keep stage=tosa {
          input %v: f32[4]
          input %c: f32[4]
          return %v
        }
      }
      return %next
      return %moved
      return %c
    }
  }
  return %y path="out"
}
"""

# Adds %x to variable `count` unless %skip is true, and writes %x to variable `last`.
VARIABLES = """tosaic 1
graph @forward stage=tosa {
  input %skip: bool[1] path="skip"
  input %x: f32[2] path="x"
  const %start: f32[2] = lifted [10.0,20.0]
  () = tosa.variable(%start) {name="count", dtype=f32, shape=[2]}
  () = tosa.variable() {name="last", dtype=f32, shape=[2]}
  () = tosa.variable_write(%x) {name="last", dtype=f32, shape=[2]}
  %before: f32[2] = tosa.variable_read() {name="count", dtype=f32, shape=[2]}
  %seen: f32[2] = tosa.cond_if(%skip, %x) regions {
    graph @idle stage=tosa {
      input %v: f32[2]
      return %v
    }
    graph @counting stage=tosa {
      input %v: f32[2]
      %now: f32[2] = tosa.variable_read() {name="count", dtype=f32, shape=[2]}
      %sum: f32[2] = tosa.add(%now, %v)
      () = tosa.variable_write(%sum) {name="count", dtype=f32, shape=[2]}
      return %sum
    }
  }
  %after: f32[2] = tosa.variable_read() {name="count", dtype=f32, shape=[2]}
  %last: f32[2] = tosa.variable_read() {name="last", dtype=f32, shape=[2]}
  return %before path="out[0]"
  return %seen path="out[1]"
  return %after path="out[2]"
  return %last path="out[3]"
}
"""


def read_back(text: str) -> _core.Graph:
    """Writes the graph of a text to a file and reads it back; checks that nothing is lost."""
    graph = _core.Graph.parse(text)
    graph.verify()
    assert graph.text() == text
    data = _core.serialize(graph)
    again = _core.deserialize(data)
    again.verify()
    assert _core.serialize(again) == data
    assert _core.Graph.parse(again.text()).text() == again.text()
    return again


def on_the_reference_model(text: str, *inputs: np.ndarray) -> list[np.ndarray]:
    lowered = tosaic.lower(tosaic.Program(_core.Graph.parse(text)), target="TOSA-1.0+INT+FP+cf")
    run = run_reference_model(lowered, *inputs)
    assert run.ok, run.log
    return list(run.outputs) if isinstance(run.outputs, tuple) else [run.outputs]


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_agrees_with_the_reference_model(taken: bool) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.uniform(-2, 2, (2, 3)).astype(np.float32) for _ in range(2))
    inputs = [np.array([taken]), x, y]
    expected = on_the_reference_model(BRANCHES, *inputs)
    for got, want in zip(_core.Session(read_back(BRANCHES)).run(inputs), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(expected[0], x + y if taken else x * np.float32(0.5) - y)


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_a_loop_with_a_branch_inside_agrees_with_the_reference_model(turns: int) -> None:
    inputs = [np.array([turns], np.int32), np.array([1, -1, 0.5, 3], np.float32)]
    expected = on_the_reference_model(LOOP, *inputs)
    (got,) = _core.Session(read_back(LOOP)).run(inputs)
    np.testing.assert_array_equal(got, expected[0])
    value = inputs[1]
    for left in range(turns, 0, -1):
        value = value + value + (np.arange(1, 5, dtype=np.float32) if left > 2 else 0)
    np.testing.assert_array_equal(got, value)


def test_the_values_of_variables_persist_from_run_to_run_and_in_regions() -> None:
    session = _core.Session(read_back(VARIABLES))
    x = np.array([1, 2], np.float32)
    count = np.array([10, 20], np.float32)
    for skip in (False, True, False):
        before, seen, after, last = session.run([np.array([skip]), x])
        np.testing.assert_array_equal(before, count)
        count = count if skip else count + x
        np.testing.assert_array_equal(after, count)
        np.testing.assert_array_equal(seen, x if skip else count)
        np.testing.assert_array_equal(last, x)
        np.testing.assert_array_equal(session.state("count"), count)
        x = x + 1
    session.set_state("count", np.zeros(2, np.float32))
    np.testing.assert_array_equal(session.run([np.array([True]), x])[0], [0, 0])
    session.reset_state()
    np.testing.assert_array_equal(session.state("count"), [10, 20])


def test_a_file_with_variables_names_them_as_states(tmp_path: Path) -> None:
    path = tmp_path / "counting.tosa"
    path.write_bytes(_core.serialize(_core.Graph.parse(VARIABLES)))
    program = tosaic.load_tosa(path)
    assert [(port.name, port.type_text, port.kind) for port in program.states] == [
        ("count", "f32[2]", "state"),
        ("last", "f32[2]", "state"),
    ]
    assert "tosa.variable_write" in program.text()
    first = program.run(np.array([False]), np.ones(2, np.float32))
    np.testing.assert_array_equal(first[2], [11, 21])


def test_a_variable_without_a_value_is_refused_when_it_is_read() -> None:
    text = """tosaic 1
graph @forward stage=tosa {
  () = tosa.variable() {name="v", dtype=f32, shape=[2]}
  %r: f32[2] = tosa.variable_read() {name="v", dtype=f32, shape=[2]}
  return %r path="out"
}
"""
    session = _core.Session(read_back(text))
    with pytest.raises(tosaic.InvalidGraph, match=r"\[run\] variable 'v' is read before it is written"):
        session.run([])
    session.set_state("v", np.ones(2, np.float32))
    np.testing.assert_array_equal(session.run([])[0], [1, 1])


def test_a_run_that_fails_does_not_change_variables() -> None:
    text = """tosaic 1
graph @forward stage=tosa {
  input %values: f32[1,2,1] path="values"
  input %index: i32[1,1] path="index"
  const %start: f32[1,2,1] = lifted [0.0,0.0]
  () = tosa.variable(%start) {name="v", dtype=f32, shape=[1,2,1]}
  () = tosa.variable_write(%values) {name="v", dtype=f32, shape=[1,2,1]}
  %row: f32[1,1,1] = tosa.gather(%values, %index)
  return %row path="out"
}
"""
    session = _core.Session(read_back(text))
    values = np.array([5, 6], np.float32).reshape(1, 2, 1)
    with pytest.raises(tosaic.InvalidGraph, match="index"):
        session.run([values, np.array([[2]], np.int32)])
    np.testing.assert_array_equal(session.state("v").ravel(), [0, 0])
    session.run([values, np.array([[1]], np.int32)])
    np.testing.assert_array_equal(session.state("v").ravel(), [5, 6])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '() = tosa.variable_write(%x) {name="w", dtype=f32, shape=[2]}',
            "[verify] variable 'w' is used before it is declared (node 'tosa.variable_write')",
        ),
        (
            '() = tosa.variable() {name="v", dtype=f32, shape=[2]}',
            "[verify] variable 'v' is declared twice (node 'tosa.variable')",
        ),
        (
            '%r: f32[3] = tosa.variable_read() {name="v", dtype=f32, shape=[3]}',
            "[verify] variable 'v' is used as another type than declared: expected f32[2], got f32[3] "
            "(node 'r')",
        ),
        (
            '() = tosa.variable(%x) {name="u", dtype=f32, shape=[2]}',
            "[verify] the initial value of variable 'u' is computed: expected a constant, got 'x' (node "
            "'tosa.variable')",
        ),
    ],
)
def test_wrong_uses_of_variables_are_refused(line: str, message: str) -> None:
    text = f"""tosaic 1
graph @forward stage=tosa {{
  input %x: f32[2] path="x"
  () = tosa.variable() {{name="v", dtype=f32, shape=[2]}}
  {line}
  return %x path="out"
}}
"""
    with pytest.raises(tosaic.InvalidGraph) as error:
        _core.Graph.parse(text).verify()
    assert str(error.value) == message


def test_custom_operators_run_by_a_function_of_the_caller(tmp_path: Path) -> None:
    text = """tosaic 1
graph @forward stage=tosa {
  input %x: f32[3] path="x"
  %y: f32[3] = tosa.custom(%x) {operator_name="twice", domain_name="lab", implementation_attrs="\\x01z"}
  return %y path="out"
}
"""
    graph = read_back(text)
    assert next(iter(graph.nodes)).attrs["implementation_attrs"] == "\x01z"
    with pytest.raises(tosaic.UnsupportedOp, match=r"no kernel for the foreign operator 'lab\.twice'"):
        _core.Session(graph)
    session = _core.Session(graph, override_ops={"lab.twice": lambda x: x + x})
    np.testing.assert_array_equal(session.run([np.arange(3, dtype=np.float32)])[0], [0, 2, 4])


class Accumulating(torch.nn.Module):
    """A mutated buffer of a dtype that a variable can have, and one of a dtype that no variable can have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor([1.0, 2.0]))
        self.register_buffer("steps", torch.tensor([3], dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        self.steps.add_(1)
        return self.total * 2 + self.steps


def test_mutated_buffers_are_variables_where_the_target_has_them(tmp_path: Path) -> None:
    x = torch.tensor([0.5, -1.0])
    exported = torch.export.export(Accumulating(), (x,))
    with_variables = tosaic.lower(exported, target="TOSA-1.0+INT+FP+variable")
    without = tosaic.lower(exported, target="TOSA-1.0+INT+FP")
    path = tmp_path / "accumulating.tosa"
    with_variables.save(path)
    program = tosaic.load_tosa(path)
    ops = [node.op for node in program.graph.nodes]
    assert [ops.count(f"tosa.variable{use}") for use in ("", "_read", "_write")] == [1, 1, 1]
    assert [port.type_text for port in program.states] == ["f32[2]"]
    assert {node.op for node in _core.deserialize(without.to_bytes()).nodes}.isdisjoint(set(ops[:2]))
    assert run_reference_model(without, x).ok
    steps = np.array([3], np.int32)
    for _ in range(3):
        given = {"i32": steps, "f32": x.numpy()}
        by_dtype = {
            array.dtype.kind: array for array in program.run(*(given[p.dtype] for p in program.inputs))
        }
        np.testing.assert_array_equal(by_dtype["f"], without.run(x))
        steps = by_dtype["i"]
    np.testing.assert_array_equal(program.session.state("total"), [2.5, -1.0])


SCATTER = """tosaic 1
graph @forward stage=tosa {
  input %rows: f32[2,3,1] path="rows"
  input %index: i32[2,2] path="index"
  input %new: f32[2,2,1] path="new"
  %out: f32[2,3,1] = tosa.scatter(%rows, %index, %new)
  return %out path="out"
}
"""


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([[0, 1], [2, 2]], "[tosa.scatter] an index occurs twice: expected each index once per batch, got 2"),
        ([[0, 3], [0, 1]], "[tosa.scatter] index out of range: expected an index in [0, 3), got 3"),
        ([[0, 1], [-1, 1]], "[tosa.scatter] index out of range: expected an index in [0, 3), got -1"),
    ],
)
def test_scatter_refuses_indices_that_repeat_or_do_not_exist(index: list[list[int]], message: str) -> None:
    session = _core.Session(read_back(SCATTER))
    rows, new = np.zeros((2, 3, 1), np.float32), np.ones((2, 2, 1), np.float32)
    with pytest.raises(tosaic.InvalidGraph) as error:
        session.run([rows, np.array(index, np.int32), new])
    assert str(error.value).startswith(f"{message} (node 'out')")
    (out,) = session.run([rows, np.array([[0, 2], [2, 0]], np.int32), new])
    np.testing.assert_array_equal(out[:, :, 0], [[1, 0, 1], [1, 0, 1]])
