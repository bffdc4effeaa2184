"""Profiles of runs: what is measured adds up, says where it comes from, and changes no result."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.profiling.peak import machine_peak
from tosaic.program.recording import profiled_calls


class Cache(nn.Module):
    """Writes its first input."""

    def forward(self, cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2


class LongNames(nn.Module):
    """Modules whose paths have many letters and no place to break a line."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Module()
        self.first.encoder_of_everything_that_is_far_away = nn.ModuleList(
            [nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=8)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.first.encoder_of_everything_that_is_far_away:
            x = torch.relu(layer(x))
        return torch.softmax(x.mean((2, 3)), 1)


def of_module(module: nn.Module, *args: torch.Tensor) -> tosaic.Program:
    return tosaic.from_exported(torch.export.export(module.eval(), args))


@pytest.fixture(scope="module")
def profile(case) -> tosaic.profiling.Profile:
    return case.lowered.prepare().profile(case.x, runs=4)


@pytest.fixture(scope="module")
def integers(case) -> tosaic.Lowered:
    return tosaic.lower(tosaic.quantize(case.program, [case.x]), target="TOSA-1.0+INT")


def require_sums(profile: tosaic.profiling.Profile) -> None:
    """Every run is the sum of its parts. The profile by any property of steps adds up to the same sum."""
    outermost = {i for i, step in enumerate(profile.steps) if step.parent is None}
    for run in profile.runs:
        assert run.seconds == pytest.approx(run.steps + run.outside, abs=1e-12)
        spent = sum(end - begin for step, begin, end in run.events.tolist() if step in outermost)
        assert run.steps == pytest.approx(spent / 1e9, abs=1e-12)
    outside = sum(profile.outside.values())
    for what in ("operator", "operators", "module", "source", "torch_operator", "kernel"):
        shares = profile.by(what)
        total = sum(share.seconds for share in shares)
        assert total + outside == pytest.approx(profile.seconds, abs=1e-12)
        assert [share.seconds for share in shares] == sorted((s.seconds for s in shares), reverse=True)


def test_the_times_of_a_profile_add_up(profile) -> None:
    assert len(profile.runs) == 4
    seconds = sorted(run.seconds for run in profile.runs)
    assert profile.least_seconds == seconds[0]
    assert profile.median_seconds == pytest.approx((seconds[1] + seconds[2]) / 2)
    for i, step in enumerate(profile.steps):
        spent = sorted((run.events[run.events[:, 0] == i] @ [0, -1, 1]).sum() / 1e9 for run in profile.runs)
        assert step.least_seconds == pytest.approx(spent[0], abs=1e-12)
        assert step.own_seconds == step.seconds == pytest.approx((spent[1] + spent[2]) / 2, abs=1e-9)
    require_sums(profile)


def test_a_profile_says_what_it_is(case, profile) -> None:
    assert repr(profile).startswith("<tosaic.profiling.Profile of forward: ")
    assert repr(case.lowered.profile).startswith(
        "<tosaic.profiling.LoweringProfile of forward for TOSA-1.0+FP: "
    )


def test_a_profiled_run_has_the_result_of_a_run(case, profile) -> None:
    np.testing.assert_array_equal(profile.result, case.lowered.run(case.x))


def test_steps_say_what_ran_and_where_it_comes_from(case, profile) -> None:
    conv = next(step for step in profile.steps if step.op == "tosa.conv2d")
    assert (conv.kernel, conv.isa, conv.factors) == ("conv.gemm", machine_peak().isa, "f32")
    assert [origin.module_path for origin in conv.origins] == ["conv", "norm", ""]  # relu is fused
    assert conv.origins[0].torch_operator == "aten.conv2d.default"
    assert conv.origins[0].source.startswith("conftest.py:")
    assert conv.calls == 1
    views = {node.name for node in case.lowered.graph.nodes if node.op == "tosa.reshape"}
    assert not views & {step.name for step in profile.steps}  # they do nothing


def test_operations_and_bytes_follow_from_shapes(profile) -> None:
    conv = next(step for step in profile.steps if step.op == "tosa.conv2d")
    assert conv.multiply_adds == 2 * 8 * 8 * 8 * 3 * 3 * 3
    assert conv.operations == 2 * conv.multiply_adds
    assert conv.bytes_read == 4 * (2 * 3 * 8 * 8 + 8 * 3 * 3 * 3 + 8)
    assert conv.bytes_written == 4 * 2 * 8 * 8 * 8
    assert conv.operations_per_second == pytest.approx(conv.operations / conv.own_seconds)
    head = next(step for step in profile.steps if step.origins[0].module_path == "head" and step.operations)
    assert head.multiply_adds == 2 * 128 * 5
    moved = next(step for step in profile.steps if step.op == "tosa.transpose")
    assert (moved.operations, moved.factors) == (0, None)
    assert profile.operations == 2 * (conv.multiply_adds + head.multiply_adds)


def test_shares_of_the_peak_follow_from_the_measured_peak(profile) -> None:
    peak = profile.peak
    assert peak is machine_peak()  # measured once
    conv = next(step for step in profile.steps if step.op == "tosa.conv2d")
    at_best = conv.multiply_adds / peak.multiply_adds["f32"]
    assert profile.peak_share(conv) == pytest.approx(at_best / conv.own_seconds)
    step = next(step for step in profile.steps if step.op == "tosa.transpose")
    moved = step.bytes_read + step.bytes_written
    assert profile.peak_share(step) == pytest.approx(moved / peak.bandwidth / step.own_seconds)


def test_a_fused_kernel_is_one_step_with_the_origins_of_all_its_nodes(case, integers) -> None:
    profile = integers.prepare().profile(case.x, runs=2)
    fused = [step for step in profile.steps if len(step.nodes) > 1]
    assert [node.op for node in fused[0].nodes] == ["tosa.conv2d", "tosa.rescale"]
    assert {"conv", "norm"} <= {origin.module_path for origin in fused[0].origins}
    assert fused[0].name == fused[0].nodes[1].name
    assert fused[0].multiply_adds == 2 * 8 * 8 * 8 * 3 * 3 * 3
    assert fused[0].bytes_written == 2 * 8 * 8 * 8  # i8: the sums stay in registers
    assert "fused kernels" in str(profile)
    assert "tosa.conv2d + tosa.rescale" in [share.name for share in profile.by("operators")]
    require_sums(profile)


def test_all_runs_start_from_the_present_states_which_are_then_as_after_one_run(counter) -> None:
    prepared, other = counter.prepare(), counter.prepare()
    one = np.ones(4, np.float32)
    prepared.run(one)
    other.run(one)
    profile = prepared.profile(one, runs=3)
    np.testing.assert_array_equal(profile.result, other.run(one))
    np.testing.assert_array_equal(prepared.run(one), other.run(one))


@pytest.mark.parametrize("write_back", [False, True])
def test_inputs_are_written_once_however_often_they_are_run(write_back: bool) -> None:
    program = of_module(Cache(), torch.zeros(2), torch.ones(2))
    cache, x = np.zeros(2, np.float32), np.ones(2, np.float32)
    prepared = program.prepare(write_back=write_back)
    profile = prepared.profile(cache, x, runs=3)
    assert profile.result.tolist() == [2, 2]
    assert prepared.mutations["cache"].tolist() == [1, 1]
    assert cache.tolist() == ([1, 1] if write_back else [0, 0])


def test_functions_of_the_user_are_steps(case) -> None:
    calls = []

    def relu(call: tosaic.NodeCall) -> Any:
        calls.append(call.name)
        return call.default()

    prepared = case.lowered.prepare(models={"tosa.clamp": relu})
    profile = prepared.profile(case.x, runs=3, warmup=2)
    assert len(calls) == 5
    step = next(step for step in profile.steps if step.op == "tosa.clamp")
    assert (step.kernel, step.isa, profile.peak_share(step)) == ("model", "", None)
    require_sums(profile)
    overridden = case.program.with_overrides({"relu": lambda x: np.maximum(x, 0)})
    step = next(step for step in overridden.prepare().profile(case.x, runs=1).steps if step.op == "relu")
    assert step.kernel == "function"


def test_what_tosaic_does_not_compute_is_one_step(case) -> None:
    pytest.importorskip("tosa_reference_model")
    profile = case.lowered.prepare(on="reference").profile(case.x, runs=1, warmup=0)
    (step,) = profile.steps
    assert (step.kernel, profile.on) == ("reference", "reference")
    assert "computed by    reference" in str(profile)
    np.testing.assert_array_equal(profile.result, case.lowered.prepare(on="reference").run(case.x))
    require_sums(profile)
    whole = case.lowered.prepare(models=lambda call: call.default()).profile(case.x, runs=1)
    assert [step.kernel for step in whole.steps] == ["model"]


def test_groups_of_a_split_program_contain_their_own_steps(case) -> None:
    split = tosaic.lower(case.exported, unsupported="split", claimants=["TOSA-1.0+FP"])
    profile = split.prepare().profile(case.x, runs=3)
    groups = [i for i, step in enumerate(profile.steps) if step.kernel == "group"]
    assert [profile.steps[i].op for i in groups] == ["group0"]
    inside = [step for step in profile.steps if step.parent in groups]
    assert "tosa.conv2d" in {step.op for step in inside}
    group = profile.steps[groups[0]]
    assert group.own_seconds + sum(step.seconds for step in inside) == pytest.approx(group.seconds, abs=1e-9)
    for run in profile.runs:
        whole = next((b, e) for step, b, e in run.events.tolist() if step == groups[0])
        assert all(whole[0] <= b <= e <= whole[1] for _, b, e in run.events.tolist())
    np.testing.assert_array_equal(profile.result, split.run(case.x))
    require_sums(profile)


def test_a_step_of_control_flow_contains_the_steps_of_the_branch_that_ran() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)) * 2

    program = of_module(Branches(), torch.ones(3))
    prepared = program.prepare()
    for x, ran, rested in ((np.ones(3, np.float32), "sin", "cos"), (-np.ones(3, np.float32), "cos", "sin")):
        profile = prepared.profile(x, runs=2)
        steps = {step.op: step for step in profile.steps}
        assert (steps[ran].calls, steps[rested].calls) == (1, 0)
        assert profile.steps[steps[ran].parent].kernel == "cond"
        assert steps["cond"].seconds >= steps[ran].seconds
        assert rested not in [share.name for share in profile.by("operator")]
        require_sums(profile)


def test_a_run_that_fails_leaves_nothing_behind(case) -> None:
    fails = True

    def model(call: tosaic.NodeCall) -> Any:
        if fails:
            raise ValueError("no")
        return call.default()

    prepared = case.lowered.prepare(models={"tosa.clamp": model})
    with pytest.raises(tosaic.InvalidGraph, match="no"):
        prepared.profile(case.x, runs=1)
    assert profiled_calls() is None
    fails = False
    np.testing.assert_array_equal(prepared.profile(case.x, runs=1).result, case.lowered.run(case.x))


def test_threads_profile_side_by_side(case) -> None:
    split = tosaic.lower(case.exported, unsupported="split", claimants=["TOSA-1.0+FP"])
    prepared = split.prepare()
    counts: list[int] = []

    def count() -> None:
        profile = prepared.profile(case.x, runs=5)
        counts.append(len({len(run.events) for run in profile.runs}))
        counts.append(len(profile.runs[0].events))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = len(prepared.profile(case.x, runs=1).runs[0].events)
    assert sorted(counts) == [1, 1, 1, alone, alone, alone]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 0}, "'runs': expected a whole number, 1 or more, got 0"),
        ({"runs": 2.5}, "'runs'"),
        ({"runs": True}, "'runs'"),
        ({"warmup": -1}, "'warmup': expected a whole number, 0 or more, got -1"),
        ({"warmup": None}, "'warmup'"),
    ],
)
def test_wrong_numbers_of_runs_are_refused(case, options, message) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        case.lowered.prepare().profile(case.x, **options)


def test_wrong_arguments_are_refused_as_by_run(case) -> None:
    prepared = case.lowered.prepare()
    for call in (prepared.run, prepared.profile):
        with pytest.raises(tosaic.LayoutMismatch, match="input 'x'"):
            call(np.zeros((1, 2), np.float32))
    with pytest.raises(
        tosaic.InvalidGraph, match="'what': expected one of 'operator', 'operators', 'module'"
    ):
        prepared.profile(case.x, runs=1).by("colour")


# ---- output ----


def require_trace(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Checks the trace-event format; returns the complete events."""
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    events = trace["traceEvents"]
    assert [event["ph"] for event in events] == ["M", *["X"] * (len(events) - 1)]
    for event in events[1:]:
        assert set(event) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert isinstance(event["name"], str)
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    return events[1:]


def test_trace_events_of_steps_lie_inside_of_runs(case, profile, tmp_path) -> None:
    profile.save(tmp_path / "run.trace.json")
    events = require_trace(json.loads((tmp_path / "run.trace.json").read_text(), parse_constant=pytest.fail))
    runs = [event for event in events if event["cat"] == "run"]
    assert [event["name"] for event in runs] == ["run 0", "run 1", "run 2", "run 3"]
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(runs))
    inside = [event for event in events if event["cat"] != "run"]
    assert len(inside) == 4 * (len(profile.steps) + 2)  # inputs and outputs
    slack = 1e-3  # microseconds: floats are rounded
    for event in inside:
        begin, end = event["ts"], event["ts"] + event["dur"]
        assert any(run["ts"] - slack <= begin <= end <= run["ts"] + run["dur"] + slack for run in runs), event
    conv = next(event for event in inside if event["cat"] == "tosa.conv2d")
    assert conv["args"]["modules"] == ["conv", "norm", ""]
    assert conv["args"]["kernel"].startswith("conv.gemm.")


def test_json_has_all_numbers(profile, tmp_path) -> None:
    data = json.loads(profile.to_json(), parse_constant=pytest.fail)
    own = sum(step["own_seconds"] for step in data["steps"])
    assert data["seconds"] == pytest.approx(own + sum(data["outside"].values()))
    assert len(data["steps"]) == len(profile.steps)
    assert len(data["runs"]) == 4
    assert data["peak"]["multiply_adds"]["f32"] > 0
    assert {"operator", "operators", "module", "source", "torch_operator", "kernel"} == set(data["by"])
    assert data["steps"][0]["nodes"][0]["origins"][0]["module_path"] == "conv"
    assert profile.as_dict()["name"] == "forward"
    profile.save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == data


def test_other_files_have_the_report(profile, tmp_path) -> None:
    profile.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    profile.save(tmp_path / "a.txt")
    text = (tmp_path / "a.txt").read_text()
    assert "all steps" in text
    assert "by source" in text
    assert profile._repr_html_().startswith('<div class="tosaic">')


@pytest.mark.parametrize("name", ["no/such/folder/a.json", "no/such/folder/trace.json", "folder"])
def test_a_file_that_cannot_be_written_is_refused(profile, tmp_path, name) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(tosaic.WriteError):
        profile.save(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]
    with pytest.raises(tosaic.InvalidGraph, match="'path': expected a path"):
        profile.save(3)


@pytest.mark.parametrize("make", [lambda p: p, lambda p: tosaic.quantize(p, [torch.randn(1, 3, 16, 16)])])
def test_a_printed_profile_fits_80_columns_whatever_the_names(make: Callable[[Any], Any]) -> None:
    program = make(of_module(LongNames(), torch.randn(1, 3, 16, 16)))
    target = "TOSA-1.0+INT" if program.stage == "quantized" else None
    lowered = tosaic.lower(program, target=target)
    for profile in (
        lowered.prepare().profile(torch.randn(1, 3, 16, 16), runs=2),
        lowered.profile,
        tosaic.lower(program, unsupported="split", claimants=["TOSA-1.0+FP", "TOSA-1.0+INT"]).profile,
    ):
        text = str(profile)
        assert max(map(len, text.splitlines())) <= 80, text


# ---- lowering ----


def test_the_profile_of_a_lowering_has_each_pass_and_adds_up(case) -> None:
    lowered = tosaic.lower(case.exported)
    profile = lowered.profile
    names = [step.name for step in profile.steps]
    assert names[:2] == ["import", "verify"]
    assert names[-4:] == ["check target", "lay out file", "compute constants", "other"]
    passes = [f"{step.section}/{step.name}" for step in profile.steps if step.section]
    assert passes == [step.id for step in tosaic.Pipeline.default()]
    assert profile.seconds == pytest.approx(sum(step.seconds for step in profile.steps))
    own = [step.seconds for step in profile.steps if step.name != "import"]
    assert sum(own) == pytest.approx(lowered.seconds)
    assert all(step.seconds >= step.verify_seconds >= 0 for step in profile.steps)


def test_bytes_are_in_the_profile_once_they_were_made(case, tmp_path) -> None:
    lowered = tosaic.lower(case.program)
    assert "bytes" not in [step.name for step in lowered.profile.steps]
    size = lowered.save(tmp_path / "a.tosa")
    step = lowered.profile.steps[-1]
    assert (step.name, step.bytes) == ("bytes", size)
    assert "GB/s" in str(lowered.profile)


def test_a_program_of_a_graph_has_no_import(case) -> None:
    lowered = tosaic.lower(tosaic.program.from_graph(case.program.snapshot().graph))
    assert "import" not in [step.name for step in lowered.profile.steps]


def test_the_profile_of_a_split_lowering_has_the_passes_of_each_group(case) -> None:
    split = tosaic.lower(case.exported, unsupported="split", claimants=["TOSA-1.0+FP"])
    profile = split.profile
    assert [step.name for step in profile.steps[:2]] == ["import", "partition"]
    assert {step.part for step in profile.steps[2:]} == {"group0"}
    assert "assign-dim-order" in [step.name for step in profile.steps]
    own = sum(step.seconds for step in profile.steps if step.name != "import")
    assert own == pytest.approx(split.seconds)


def test_a_lowering_can_be_saved_as_trace_and_json(case, tmp_path) -> None:
    profile = tosaic.lower(case.exported).profile
    profile.save(tmp_path / "trace.json")
    events = require_trace(json.loads((tmp_path / "trace.json").read_text()))
    assert events[0]["name"] == "lower"
    assert [event["name"] for event in events[1:]] == [step.name for step in profile.steps]
    assert events[-1]["ts"] + events[-1]["dur"] == pytest.approx(events[0]["dur"])
    profile.save(tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["seconds"] == pytest.approx(sum(data["stages"].values()))
    assert data == json.loads(profile.to_json())
    assert profile.as_dict()["target"] == "TOSA-1.0+FP"
    with pytest.raises(tosaic.WriteError):
        profile.save(Path(tmp_path) / "no" / "a.html")
