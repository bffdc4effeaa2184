"""Programs: running, printing, saving."""

from __future__ import annotations

import contextlib
import json
import zipfile

import numpy as np
import pytest
import torch
import tosaic


def test_a_program_agrees_with_torch(case) -> None:
    np.testing.assert_allclose(case.program.run(case.x), case.eager(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(case.program(case.array), case.eager(), rtol=1e-5, atol=1e-6)


def test_inputs_may_be_named(case) -> None:
    np.testing.assert_array_equal(case.program.run(x=case.array), case.program.run(case.array))


def test_a_tensor_that_requires_grad_is_accepted(case) -> None:
    x = case.x.clone().requires_grad_()
    np.testing.assert_array_equal(case.program.run(x), case.program.run(case.array))


def test_results_are_nested_as_the_module_nests_them(nested) -> None:
    a, b = np.full((2, 3), 2, np.float32), np.full((2, 3), 5, np.float32)
    result = nested.run((a, b), scale=np.float32(10))
    assert list(result) == ["sum", "parts"]
    assert result["sum"].tolist() == (a + b).tolist() or result["sum"][0, 0] == 70
    first, (difference, constant) = result["parts"]
    assert (first[0, 0], difference[0, 0], constant) == (20, 3, 7)


def test_results_of_the_lowered_program_are_nested_the_same(nested) -> None:
    a, b = np.full((2, 3), 2, np.float32), np.full((2, 3), 5, np.float32)
    result = tosaic.lower(nested).run((a, b), scale=np.float32(10))
    assert (result["sum"][0, 0], result["parts"][0][0, 0], result["parts"][1][1]) == (70, 20, 7)


def test_state_persists_between_runs_and_can_be_reset(counter) -> None:
    one = np.ones(4, np.float32)
    assert counter.run(one)[0] == 2
    assert counter.run(one)[0] == 4
    assert [port.path for port in counter.states] == ["total"]
    counter.reset_state()
    assert counter.run(one)[0] == 2


def test_ports_describe_the_arrays_that_the_caller_passes_and_gets(case, nested) -> None:
    (x,) = case.program.inputs
    assert (x.path, x.dtype, x.shape, x.type_text) == ("x", "f32", (2, 3, 8, 8), "f32[2,3,8,8]")
    assert [port.shape for port in case.program.outputs] == [(2, 5)]
    assert len(nested.inputs) == 3


def test_the_repr_says_what_it_is(case) -> None:
    assert repr(case.program).startswith(
        "<tosaic.Program 'forward' @exported: (x: f32[2,3,8,8]) -> f32[2,5], "
    )
    assert repr(case.lowered).startswith("<tosaic.Lowered TOSA-1.0+FP: (x: f32[2,3,8,8]) -> f32[2,5], ")


def test_str_is_one_screen_and_html_has_the_graph_folded(case) -> None:
    assert str(case.program).startswith("forward @exported\n")
    assert "graph @forward stage=exported" not in str(case.program)
    html = case.program._repr_html_()
    assert "<details><summary>graph</summary>" in html


def test_text_reads_back(case) -> None:
    assert tosaic.program.Graph.parse(case.program.text()).text() == case.program.text()


def test_an_archive_reads_back_and_runs_the_same(case, tmp_path) -> None:
    case.program.save(tmp_path / "model.tosaic")
    loaded = tosaic.load(tmp_path / "model.tosaic")
    assert loaded.text() == case.program.text()
    assert loaded.signature == case.program.signature
    np.testing.assert_array_equal(loaded.run(case.array), case.program.run(case.array))


def test_an_archive_preserves_nesting_and_state(nested, counter, tmp_path) -> None:
    nested.save(tmp_path / "nested")
    a = np.ones((2, 3), np.float32)
    assert tosaic.load(tmp_path / "nested").run((a, a), scale=np.float32(3))["sum"][0, 0] == 6
    counter.save(tmp_path / "counter")
    assert tosaic.load(tmp_path / "counter").run(np.ones(4, np.float32))[0] == 2


def test_an_archive_is_the_same_bytes_each_time(case, tmp_path) -> None:
    case.program.save(tmp_path / "a")
    tosaic.load(tmp_path / "a").save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_archive_of_bfloat16_reads_back(tmp_path) -> None:
    model = torch.nn.Linear(8, 4).to(torch.bfloat16)
    program = tosaic.from_exported(torch.export.export(model, (torch.ones(1, 8, dtype=torch.bfloat16),)))
    program.save(tmp_path / "a")
    assert tosaic.load(tmp_path / "a").text() == program.text()


def test_a_truncated_archive_is_refused_by_name(case, tmp_path) -> None:
    path = tmp_path / "model.tosaic"
    case.program.save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(
        tosaic.InvalidGraph, match=r"^\[load\] 'model.tosaic' cannot be read: expected an archive"
    ):
        tosaic.load(path)


def test_an_archive_of_another_version_is_refused(case, tmp_path) -> None:
    path = tmp_path / "model.tosaic"
    case.program.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["manifest.json"] = json.dumps(json.loads(members["manifest.json"]) | {"version": 99}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(tosaic.InvalidGraph) as error:
        tosaic.load(path)
    assert str(error.value) == (
        "[load] 'model.tosaic' has another version: expected 1, got 99. "
        "Save it again with this version of tosaic."
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_archive_is_loaded_or_refused_by_our_error(case, tmp_path, seed) -> None:
    path = tmp_path / "model.tosaic"
    case.program.save(path)
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    for _ in range(random.integers(1, 20)):
        data[random.integers(len(data))] = random.integers(256)
    path.write_bytes(data)
    with contextlib.suppress(tosaic.Error):
        tosaic.load(path)
