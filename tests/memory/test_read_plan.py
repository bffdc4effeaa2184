"""Plans are written as JSON and CSV, read again, and checked again."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import tosaic
from torch import nn
from tosaic.memory.plan import MemoryPlan
from tosaic.memory.plan_options import PlanOptions
from tosaic.memory.planner import plan_schedule

from memory.random_schedules import random_schedule

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


class Joined(nn.Module):
    """Two results, concatenated, and a view of the concatenation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.sin(), x.cos()
        return torch.cat([a, b])[2:].exp() + 1


@pytest.fixture(scope="module")
def program() -> tosaic.Program:
    return tosaic.from_exported(torch.export.export(Joined(), (torch.ones(4, 16),)))


def test_a_plan_is_read_as_it_was_written(program: tosaic.Program, tmp_path: Path) -> None:
    for number, plan in enumerate((program.plan_memory(), program.plan_memory(plan_inputs=False))):
        plan.to_json(tmp_path / f"{number}.json")
        assert MemoryPlan.from_json(tmp_path / f"{number}.json") == plan
        plan.to_csv(tmp_path / f"{number}.csv")
        read = MemoryPlan.from_csv(tmp_path / f"{number}.csv")
        assert (read.buffers, read.fault, read.live_bytes) == (plan.buffers, "", plan.live_bytes)
        assert [(each.name, each.nbytes) for each in read.arenas] == [
            (each.name, each.nbytes) for each in plan.arenas
        ]


def test_operands_of_a_concatenation_are_parts_of_it(program: tosaic.Program) -> None:
    x = torch.linspace(-1, 1, 64).reshape(4, 16)
    plan = program.plan_memory(plan_inputs=False)
    assert {plan.buffer(name).alias_of for name in ("sin", "cos")} == {"cat"}
    assert plan.peak < program.plan_memory(plan_inputs=False, in_place=False).peak
    assert plan.gap == 0
    memory = {each["name"]: each for each in program.session.memory["values"]}
    assert memory["sin"]["alias"] == memory["cos"]["alias"] == "part"
    torch.testing.assert_close(torch.from_numpy(program.run(x)), Joined()(x))


def _changed(path: Path, change: Any) -> MemoryPlan:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return MemoryPlan.from_json(path)


def _row(data: Any, name: str) -> Any:
    return next(each for each in data["buffers"] if each["name"] == name)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda data: data["arenas"][0].update(nbytes=64), "ends outside the arena"),
        (lambda data: _row(data, "cat").update(offset=8), "is away from its target"),
        (lambda data: _row(data, "x").update(last=6), "overlap while both are live"),
        (lambda data: data["arenas"][0].update(lower_bound=1 << 40), "is above the size"),
        (lambda data: data.update(fault="nothing"), ""),
    ],
)
def test_a_wrong_plan_has_a_fault(program: tosaic.Program, tmp_path: Path, change: Any, fault: str) -> None:
    program.plan_memory().to_json(tmp_path / "plan.json")
    read = _changed(tmp_path / "plan.json", change)
    assert fault in read.fault
    assert bool(fault) == bool(read.fault)


def test_targets_in_a_circle_are_a_fault(program: tosaic.Program, tmp_path: Path) -> None:
    def change(data: Any) -> None:
        for one, other in (("sin", "cos"), ("cos", "sin")):
            _row(data, one).update(alias="view", alias_of=other)

    program.plan_memory().to_json(tmp_path / "plan.json")
    assert "shares memory with itself" in _changed(tmp_path / "plan.json", change).fault


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data.pop("arenas"), "not a memory plan: expected an object with name"),
        (lambda data: data["arenas"][0].update(nbytes=-1), "a natural number below 2**48, got -1"),
        (lambda data: data["arenas"][0].update(alignment=3), "expected a power of two, got 3"),
        (lambda data: _row(data, "cat").update(arena="flash"), "the arena of 'cat' is unknown"),
        (lambda data: _row(data, "cat").update(alias="copy"), "alias of buffer"),
        (lambda data: _row(data, "sin").update(alias_of="dog"), "'sin' shares memory with what is not there"),
        (lambda data: _row(data, "sin").pop("first"), "has no first"),
        (lambda data: _row(data, "sin").update(first=9, last=2), "ends before it begins"),
        (lambda data: _row(data, "sin").update(last=99), "is needed after the end: expected step 6 at most"),
        (lambda data: _row(data, "sin").update(name="cos"), "a name is there twice"),
        (lambda data: _row(data, "sin").update(nbytes=1 << 48), "a natural number below 2**48"),
        (lambda data: data.update(steps=5), "'steps' is wrong: expected a list of str, got int"),
        (lambda data: data["steps"].append(5), "'steps' is wrong"),
        (lambda data: data["live_bytes"].pop(), "'live_bytes' is wrong: expected 7 numbers, got 6"),
        (lambda data: data.update(name=5), "'name' is wrong"),
    ],
)
def test_a_malformed_file_is_refused(program: tosaic.Program, tmp_path: Path, change: Any, text: str) -> None:
    program.plan_memory().to_json(tmp_path / "plan.json")
    with pytest.raises(tosaic.InvalidGraph) as error:
        _changed(tmp_path / "plan.json", change)
    assert text in str(error.value)
    assert "plan.json" in str(error.value)


def test_files_that_are_not_plans_are_refused(program: tosaic.Program, tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    with pytest.raises(tosaic.InvalidGraph, match="cannot be read"):
        MemoryPlan.from_csv(path)
    path.write_text("name,size\n")
    with pytest.raises(tosaic.InvalidGraph, match="wrong columns"):
        MemoryPlan.from_csv(path)
    with pytest.raises(tosaic.InvalidGraph, match="not a JSON file"):
        MemoryPlan.from_json(path)
    program.plan_memory().to_csv(path)
    rows = list(csv.reader(path.read_text().splitlines()))
    rows[1][rows[0].index("offset")] = "-4"
    path.write_text("\n".join(",".join(row) for row in rows))
    with pytest.raises(tosaic.InvalidGraph, match="offset in line 2: expected a natural number, got -4"):
        MemoryPlan.from_csv(path)


def test_plans_with_scratch_and_of_several_memories_are_read_as_they_were_written(tmp_path: Path) -> None:
    for seed in range(60):
        schedule, path = random_schedule(seed), tmp_path / "plan.json"
        for memories in ({}, {"sram": (48, 8), "dram": (None, 64)}):
            plan = plan_schedule(schedule, PlanOptions(alignment=8, memories=memories))
            plan.to_json(path)
            assert MemoryPlan.from_json(path) == plan, f"seed {seed}"
            plan.to_csv(tmp_path / "plan.csv")
            read = MemoryPlan.from_csv(tmp_path / "plan.csv")
            assert (read.buffers, read.fault) == (plan.buffers, ""), f"seed {seed}"


def test_a_small_file_names_neither_millions_of_steps_nor_thousands_of_arenas(tmp_path: Path) -> None:
    """Before, a line of 60 bytes took a minute and 2 GB, for the name and the bytes of each step."""
    columns = "name,part,kind,path,dtype,shape,nbytes,first,last,arena,offset,alias,alias_of"
    path = tmp_path / "plan.csv"
    path.write_text(f"{columns}\na,host,activation,,i8,4,4,0,16777215,act,0,none,\n")
    with pytest.raises(tosaic.InvalidGraph, match=r"needed after the end: expected step 4128 at most"):
        MemoryPlan.from_csv(path)
    lines = [f"a{i},host,activation,,i8,4,4,0,1,arena{i},0,none," for i in range(1000)]
    path.write_text("\n".join([columns, *lines, ""]))
    with pytest.raises(tosaic.InvalidGraph, match="too many arenas: expected 256 at most, got 1000"):
        MemoryPlan.from_csv(path)
    data = {"name": "p", "steps": [], "live_bytes": [0], "buffers": []}
    arena = {"nbytes": 4, "alignment": 16, "lower_bound": 4}
    arenas = [{"name": f"arena{i}", **arena} for i in range(1000)]
    (tmp_path / "plan.json").write_text(json.dumps({**data, "arenas": arenas}))
    with pytest.raises(tosaic.InvalidGraph, match="too many arenas: expected 256 at most, got 1000"):
        MemoryPlan.from_json(tmp_path / "plan.json")


def test_names_that_act_on_terminals_are_visible_in_plans_of_a_stranger(tmp_path: Path) -> None:
    """Before, `repr` showed such a name unescaped, and an unknown kind raised a KeyError."""
    escape = "\x1b]0;x\x07"
    buffer = {"name": f"b{escape}", "part": escape, "kind": "activation", "path": escape, "dtype": "i8"}
    buffer |= {"shape": [4], "nbytes": 4, "first": 0, "last": 0, "arena": escape, "offset": 1}
    data: dict[str, Any] = {"name": f"\u202e{escape}", "steps": [escape], "live_bytes": [4, 0]}
    data["arenas"] = [{"name": escape, "nbytes": 16, "alignment": 16, "lower_bound": 4}]
    data["buffers"] = [buffer | {"alias": "none", "alias_of": ""}]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    plan = MemoryPlan.from_json(path)
    assert plan.fault
    for shown in (plan, plan.compare(plan)):
        text = f"{shown!r}{shown}{shown._repr_html_()}"
        assert not any((ord(each) < 32 and each != "\n") or each == "\u202e" for each in text)
    data["buffers"][0]["kind"] = escape
    path.write_text(json.dumps(data))
    with pytest.raises(tosaic.InvalidGraph, match=r"kind of buffer 0: expected input, .*, got \\u001b"):
        MemoryPlan.from_json(path)


@pytest.mark.parametrize("read", [MemoryPlan.from_json, MemoryPlan.from_csv])
def test_a_path_with_a_null_character_is_refused(read: Any) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"cannot be read: expected a text file, got .*null"):
        read("a\0b.json")
