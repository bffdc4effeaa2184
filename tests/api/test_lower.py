"""Lowering: results, files, reports, refusals."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
import tosaic
from tosaic.lowering.reference_model import run_reference_model


def test_the_lowered_program_agrees_with_torch(case) -> None:
    np.testing.assert_allclose(case.lowered.run(case.x), case.eager(), rtol=1e-5, atol=1e-6)


def test_every_stage_runs(case) -> None:
    assert list(case.lowered.stages) == ["imported", "exported", "canonical", "tosa"]
    for stage in case.lowered.stages:
        np.testing.assert_allclose(case.lowered.at(stage).run(case.x), case.eager(), rtol=1e-5, atol=1e-6)


def test_a_program_a_graph_and_an_exported_program_lower_to_the_same_file(case) -> None:
    expected = case.lowered.to_bytes()
    assert tosaic.lower(case.exported).to_bytes() == expected
    assert tosaic.lower(case.program).to_bytes() == expected
    assert tosaic.lower(case.program.graph).to_bytes() == expected


def test_the_reference_model_runs_the_file(case) -> None:
    run = run_reference_model(case.lowered, case.x)
    assert run.status == "VALID"
    np.testing.assert_allclose(run.outputs, case.eager(), rtol=1e-5, atol=1e-6)


def test_a_saved_file_reads_back_and_runs(case, tmp_path) -> None:
    size = case.lowered.save(tmp_path / "model.tosa")
    assert size == (tmp_path / "model.tosa").stat().st_size == len(case.lowered.to_bytes())
    loaded = tosaic.load_tosa(tmp_path / "model.tosa")
    assert loaded.stage == "tosa"
    np.testing.assert_array_equal(loaded.run(case.array), case.lowered.run(case.array))


def test_locations_can_be_left_out(case) -> None:
    assert b"conftest.py" in case.lowered.to_bytes()
    assert b"conftest.py" not in case.lowered.to_bytes(locations=False)


def test_dump_writes_each_changed_graph(case, tmp_path) -> None:
    tosaic.lower(case.program, dump=tmp_path / "stages")
    written = sorted(path.name for path in (tmp_path / "stages").iterdir())
    assert written[0].startswith("00-")
    assert any(name.endswith("-legalize-tosa.txt") for name in written)
    for path in (tmp_path / "stages").iterdir():
        tosaic.program.Graph.parse(path.read_text())


def test_the_report_is_one_screen_and_data(case) -> None:
    report = case.lowered.report()
    assert len(report.text.splitlines()) <= 50
    assert report.text.startswith("forward lowered to TOSA-1.0+FP\n")
    data = json.loads(report.json)
    assert data["operators"]["tosa.max_pool2d"] == 1
    assert data["file_bytes"] == len(case.lowered.to_bytes())
    assert data["memory"]["lower_bound"] <= data["memory"]["arena_bytes"] <= data["memory"]["unshared_bytes"]


def test_io_shows_inputs_and_outputs(case) -> None:
    assert [port.path for port in case.lowered.io.inputs] == ["x"]
    assert "input   x" in str(case.lowered.io)


def test_timings_name_the_passes(case) -> None:
    assert "legalize-tosa" in [timing.name for timing in case.lowered.timings]


def test_all_offending_nodes_are_listed_with_their_reasons(unliftable) -> None:
    with pytest.raises(tosaic.UnsupportedOp) as error:
        tosaic.lower(unliftable)
    problems = error.value.problems
    assert len(problems) >= 2
    for problem in problems:
        assert problem.node in str(error.value)
        assert problem.what in str(error.value)
        assert problem.source.startswith("conftest.py:")


def test_an_unknown_choice_is_refused(case) -> None:
    with pytest.raises(
        tosaic.InvalidGraph, match=r"unknown value of 'unsupported': expected 'error' or 'split', got 'skip'"
    ):
        tosaic.lower(case.program, unsupported="skip")


def test_an_unknown_target_is_refused(case) -> None:
    with pytest.raises(tosaic.Error, match=r"TOSA-9\.9"):
        tosaic.lower(case.program, target="TOSA-9.9+FP")


def test_a_value_that_is_not_a_program_is_refused_with_a_hint() -> None:
    with pytest.raises(tosaic.InvalidGraph) as error:
        tosaic.lower(42)
    assert str(error.value) == (
        "[import] this is not a program: expected a torch.export.ExportedProgram, tosaic.Program, "
        "tosaic.program.Graph or path, got int. Export the module first: torch.export.export(module, "
        "example_inputs)."
    )


def test_check_finds_nothing_where_lower_succeeds(case) -> None:
    result = tosaic.check(case.exported)
    assert result
    assert str(result) == f"ok: {len(case.program.graph)} nodes against TOSA-1.0+FP"


def test_check_returns_every_reason_as_data(unliftable) -> None:
    result = tosaic.check(unliftable)
    assert not result
    assert {problem.node for problem in result.problems} >= {"linalg_det", "special_i0"} or len(
        result.problems
    ) >= 2
    assert str(result).startswith(
        f"FAILED: {len(result.problems)} problems between the program and TOSA-1.0+FP\n"
    )
    assert "conftest.py:" in repr(result)
    assert json.loads(result.report().json)["ok"] is False


def test_check_reports_an_unbound_dimension(dynamic) -> None:
    (problem,) = tosaic.check(dynamic).problems
    assert problem.what == "symbolic dimensions are not bound"
    assert problem.got.startswith("axis 0 of input 'input'")
    assert tosaic.check(dynamic, bind={"input": {0: 2}})


def test_printing_does_not_serialize_the_file(case, monkeypatch) -> None:
    size = len(case.lowered.to_bytes())
    assert case.lowered.file_size() == size
    assert case.lowered.file_size(locations=False) == len(case.lowered.to_bytes(locations=False)) < size

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the file is made")

    monkeypatch.setattr("tosaic._core.serialize", refuse)
    assert "file        " in str(case.lowered)
    assert json.loads(case.lowered.report().json)["file_bytes"] == size


def most_memory(body: Callable[[], object]) -> int:
    """Returns the largest memory that Python has allocated at one time while the body runs, in bytes."""
    tracemalloc.start()
    try:
        assert body()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_printing_and_bytes_copy_no_weights() -> None:
    model = torch.nn.Linear(1024, 1024)
    lowered = tosaic.lower(torch.export.export(model, (torch.ones(1, 1024),)))
    weights = 1024 * 1024 * 4
    assert most_memory(lambda: lowered.to_bytes(locations=False)) > weights
    assert most_memory(lowered.to_bytes) < weights / 4
    assert most_memory(lambda: str(lowered)) < weights / 4
    assert lowered.file_size() > weights
