"""How rows of a tool become rows with nodes, with tools that are planted."""

from __future__ import annotations

import pytest
import tosaic
from tosaic import _core
from tosaic.cost.attribution import attributed
from tosaic.cost.file_operators import file_operators
from tosaic.devices.tool_cost import CostSummary, ToolCost, ToolRow

TEXT = """tosaic 1
graph @f stage=tosa {
  input %x: i32[4,4] path="x"
  %a: i32[4,4] = tosa.abs(%x) loc(#0)
  %b: i32[4,4] = tosa.clz(%a) loc(#0)
  %c: i32[4,4] = tosa.bitwise_not(%b) loc(#1)
  %d: i32[16] = tosa.reshape(%c) {shape=[16]} loc(#1)
  %e: i32[16] = tosa.abs(%d) loc(#2)
  %e_1: i32[16] = tosa.clz(%e) loc(#2)
  %g: i32[4,4] = tosa.reshape(%e_1) {shape=[4,4]} loc(#2)
  return %g path="out"
}
origins {
  #0 = "abs" target="aten.abs.default" module="one" file="m.py" line=1
  #1 = "not" target="aten.bitwise_not.default" module="two" file="m.py" line=2
  #2 = "end" target="aten.abs.default" module="three.last" file="m.py" line=3
}
"""
BRANCHES = """tosaic 1
graph @f stage=tosa {
  input %p: bool[] path="p"
  input %x: i32[3] path="x"
  %r: i32[3] = tosa.cond_if(%p, %x) regions {
    graph @then stage=tosa {
      input %a: i32[3] path="a"
      %inner: i32[3] = tosa.abs(%a)
      return %inner path="out"
    }
    graph @else stage=tosa {
      input %b: i32[3] path="b"
      %other: i32[3] = tosa.clz(%b)
      return %other path="out"
    }
  }
  %after: i32[3] = tosa.clz(%r)
  return %after path="out"
}
"""
TOSA = _core.serialize(tosaic.program.Graph.parse(TEXT))
OPERATORS = {name: i for i, each in enumerate(file_operators(TOSA)) for name in each.outputs}


def cost(*rows: ToolRow, total: int | None = None) -> ToolCost:
    cycles = sum(row.cycles for row in rows) if total is None else total
    return ToolCost(CostSummary("npu", "vela", "", "", 1e9, cycles, cycles, 0, 0, 0, 0, 0, 8), rows)


def found(*rows: ToolRow, total: int | None = None) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(row.node, row.cycles, row.fused) for row in attributed(TOSA, cost(*rows, total=total))]


def test_operators_have_their_index_in_the_file() -> None:
    assert OPERATORS["a"] < OPERATORS["b"] < OPERATORS["g"]
    assert file_operators(TOSA)[OPERATORS["b"]].inputs == ("a",)
    constants = len(file_operators(TOSA)) - 7  # the shapes of reshapes
    assert constants > 0, "no constant tells the index in the file from the place in the graph"


def test_rows_are_tied_by_index_and_not_by_name() -> None:
    rows = [ToolRow(OPERATORS["a"], "Abs", "e", 5), ToolRow(OPERATORS["e"], "Abs", "a", 7)]
    assert [row.module_path for row in attributed(TOSA, cost(*rows))] == ["one", "three.last"]


def test_nodes_up_to_the_tensor_that_is_written_are_fused() -> None:
    rows = [ToolRow(OPERATORS["a"], "Abs", "c", 5), ToolRow(OPERATORS["e"], "Abs", "e_1", 7)]
    assert found(*rows) == [("a", 5, ("b", "c")), ("e", 7, ("d", "e_1", "g"))]


def test_an_operation_of_another_command_is_fused_into_it() -> None:
    rows = [
        ToolRow(OPERATORS["a"], "Abs", "a", 5),
        ToolRow(OPERATORS["b"], "CLZ", "b", 0, leader=0),
        ToolRow(OPERATORS["c"], "Not", "c", 3),
        ToolRow(OPERATORS["e"], "Abs", "e", 0),
        ToolRow(OPERATORS["e_1"], "CLZ", "e_1", 4),
    ]
    assert found(*rows) == [("a", 5, ("b",)), ("c", 3, ()), ("e_1", 4, ("d", "e", "g"))]


def test_an_operation_that_the_tool_adds_belongs_to_the_node_whose_name_it_extends() -> None:
    rows = [
        ToolRow(OPERATORS["a"], "Abs", "c", 5),
        ToolRow(None, "MemoryCopy", "e_1_copy", 2),
        ToolRow(None, "Transpose", "e/Transpose", 2),
        ToolRow(OPERATORS["e"], "Abs", "e_1", 7),
    ]
    assert [(row.node, row.cycles) for row in attributed(TOSA, cost(*rows))] == [
        ("a", 5),
        ("e_1", 2),
        ("e", 2),
        ("e", 7),
    ]


def test_cycles_of_no_node_are_a_row_of_their_own() -> None:
    rows = [ToolRow(OPERATORS["a"], "Abs", "g", 5), ToolRow(None, "Transpose", "#17", 2)]
    assert found(*rows, total=10)[1:] == [("#17", 2, ()), ("", 3, ())]
    made = tosaic.cost.DeviceCost(
        **cost(*rows, total=10).summary.totals, rows=attributed(TOSA, cost(*rows, total=10))
    )
    assert made.unattributed_cycles == 5
    assert "of no node    5 cycles" in str(made)
    assert sum(row.cycles for row in made.rows) == made.cycles


def test_an_index_beyond_the_file_is_no_node() -> None:
    (row,) = attributed(TOSA, cost(ToolRow(999, "Abs", "nothing", 5)))
    assert row.nodes == ()


def test_rows_inside_of_control_flow_belong_to_its_node() -> None:
    program = tosaic.program.Graph.parse(BRANCHES)
    tosa = _core.serialize(program)
    assert file_operators(tosa) is None, "an index in a file of several blocks says nothing"
    rows = [
        ToolRow(3, "Abs", "inner", 5),
        ToolRow(0, "CLZ", "after", 2),
    ]
    assert [(row.node, row.cycles) for row in attributed(tosa, cost(*rows))] == [("r", 5), ("after", 2)]


@pytest.mark.parametrize("count", [1, 40])
def test_long_names_fit_a_terminal(count: int) -> None:
    path = ".".join(["encoder.layers.block"] * 6)
    text = TEXT.replace("three.last", path).replace("m.py", "modeling_of_a_long_name.py")
    tosa = _core.serialize(tosaic.program.Graph.parse(text.replace("%e", "%" + "very_long_name_" * 3)))
    end = max(i for i, each in enumerate(file_operators(tosa)) if "g" in each.outputs)
    rows = [ToolRow(end, "SomethingLongOfTheTool", "g", 123_456_789, macs=5)] * count
    made = tosaic.cost.DeviceCost(**cost(*rows).summary.totals, rows=attributed(tosa, cost(*rows)))
    assert max(map(len, str(made).splitlines())) <= 80
