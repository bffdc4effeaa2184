"""Which weights of a program are views of torch's memory, and until when.

The weights of an imported program are views until its first run, save or comparison copies them. A lowered
program has views at stage imported only. `weight_ways` tries every way in which torch can change or free a
weight; the tests here check the rules one by one.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusals
import torch
import tosaic
from api.weight_ways import NETWORKS, WAYS
from torch import nn
from tosaic import _core
from tosaic.api.calls import open_program

pytestmark = pytest.mark.filterwarnings("ignore")
SCRIPT = Path(__file__).with_name("weight_ways.py")
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.rand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.gain


def net() -> tuple[Net, Any]:
    module = Net()
    return module, torch.export.export(module, (X,))


refusal = partial(refusals.refusal, tosaic.InvalidGraph)


def run_script(*args: str) -> str:
    """Runs weight_ways.py in a process of its own, whose allocator fills freed memory with a pattern."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *args],
        env={**os.environ, "MALLOC_PERTURB_": "165"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def test_after_any_change_of_weights_by_torch_a_use_is_refused_or_right() -> None:
    ways = sorted(WAYS)[::2]
    lines = run_script("--networks", "dense", "--ways", *ways).splitlines()
    assert len(lines) == len(ways)


def test_uses_are_refused_or_right_for_strided_and_tied_weights_and_scales_too() -> None:
    ways = ["half", "storage.resize_(0)", "storage.resize_ there and back", "p.mul_", "p.data.mul_"]
    ways += ["one element of p.data"]
    others = [name for name in NETWORKS if name != "dense"]
    lines = run_script("--networks", *others, "--ways", *ways).splitlines()
    assert len(lines) == len(ways) * len(others)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("half", "was given other memory after import; import the program again"),
        ("p.data =", "was given other memory after import; import the program again"),
        ("to(meta)", ""),  # gives the module new parameters; the program's stay unchanged
        ("storage.resize_(0)", "was freed, moved or resized after import; import the program again"),
        ("p.data.resize_", "was freed, moved or resized after import; import the program again"),
        ("share_memory", "was freed, moved or resized after import; import the program again"),
        ("p.mul_", "was changed in place after import; import the program again"),
        ("load_state_dict", "was changed in place after import; import the program again"),
        ("optimizer.step", "was changed in place after import; import the program again"),
    ],
)
def test_a_weight_with_another_pointer_size_or_version_is_refused_by_name(tmp_path, way, message) -> None:
    module, ep = net()
    programs = [tosaic.from_exported(ep) for _ in range(5)]
    held = WAYS[way](module)
    uses: list[Callable[[], Any]] = [
        lambda: programs[0].run(X),
        lambda: programs[1].save(tmp_path / "program.tosaic"),
        lambda: tosaic.lower(programs[2]),
        lambda: tosaic.compare(programs[3], programs[3], (X,)),
        lambda: [c.array for c in programs[4].graph.constants.values()],
    ]
    for use in uses:
        if not message:
            use()
            continue
        text = refusal(use)
        assert message in text
        assert "'gain'" in text or "'linear.weight'" in text
    assert message == "" or not (tmp_path / "program.tosaic").exists()
    del held


def test_weights_are_views_until_the_first_use_of_a_program_and_then_copies() -> None:
    module, ep = net()
    unused, used = tosaic.from_exported(ep), tosaic.from_exported(ep)
    first = used.run(X)
    assert any(c.is_view for c in unused.graph.constants.values())
    assert not any(c.is_view for c in used.graph.constants.values())
    for p in module.parameters():
        p.data.mul_(2)  # does not increase torch's version counter
    np.testing.assert_array_equal(used.run(X), first)
    with torch.no_grad():
        np.testing.assert_allclose(unused.run(X), module(X).numpy(), rtol=1e-6)
        now = unused.run(X)
        module.linear.weight.zero_()
    np.testing.assert_array_equal(unused.run(X), now)


def test_everything_made_from_a_program_has_the_weights_of_its_first_use(tmp_path) -> None:
    module, ep = net()
    program = tosaic.from_exported(ep)
    result, file = program.run(X), tosaic.lower(ep).to_bytes()
    for p in module.parameters():
        p.data.add_(1)
    assert tosaic.lower(program).to_bytes() == file
    program.save(tmp_path / "program.tosaic")
    np.testing.assert_array_equal(tosaic.load(tmp_path / "program.tosaic").run(X), result)
    assert tosaic.compare(program, tosaic.lower(program), (X,)).ok
    assert not tosaic.compare(ep, program, (X,)).ok


def test_a_lowered_program_reads_torchs_memory_at_stage_imported_only() -> None:
    module, ep = net()
    low = tosaic.lower(ep)
    assert any(c.is_view for c in low.stages["imported"].constants.values())
    for name, graph in low.stages.items():
        assert name == "imported" or not any(c.is_view for c in graph.constants.values())
    file, result = low.to_bytes(), low.run(X)
    module.half()
    assert low.to_bytes() == file
    np.testing.assert_array_equal(low.run(X), result)
    text = refusal(low.at("imported").run, X)
    assert "was given other memory after import" in text


def wide_net() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 100), nn.Linear(100, 3))
    return module, torch.export.export(module.eval(), (X,))


def test_the_large_constants_of_a_lowered_program_lie_in_its_file(tmp_path) -> None:
    module, ep = wide_net()
    low = tosaic.lower(ep)
    result, file = low.run(X), low.to_bytes()
    assert low.to_bytes() is file
    assert file == _core.serialize(low.graph, target=low.target)  # copied
    assert low.file_size() == len(file)
    memory = np.frombuffer(file, np.uint8)
    inside = {c.array.size for c in low.graph.constants.values() if np.shares_memory(c.array, memory)}
    assert inside == {10_000}
    low.save(tmp_path / "m.tosa")
    assert (tmp_path / "m.tosa").read_bytes() == file
    other = low.to_bytes(locations=False)
    assert len(other) < len(file)
    assert low.file_size(locations=False) == len(other)
    again = pickle.loads(pickle.dumps(low))
    # The source, the graph before TOSA and the final graph keep the large weight; the file is not a fourth
    # copy.
    assert len(pickle.dumps(low)) < 4 * 4 * 10_000
    for each in (again, copy.deepcopy(low)):
        assert each.to_bytes() == file
        np.testing.assert_array_equal(each.run(X), result)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert low.to_bytes() == file
    np.testing.assert_array_equal(low.run(X), result)


def test_the_file_and_each_constant_keep_the_memory_of_a_lowered_program_alive() -> None:
    low = tosaic.lower(wide_net()[1])
    file, result, session = low.to_bytes(), low.run(X), low.prepare()
    expected = bytes(file)
    (large,) = (c.array for c in low.graph.constants.values() if c.array.size == 10_000)
    values = large.copy()
    del low
    gc.collect()
    assert file == expected
    del file
    gc.collect()
    np.testing.assert_array_equal(large, values)
    np.testing.assert_array_equal(session.run(X), result)


def test_a_changed_weight_is_noticed_though_constants_are_computed_in_the_file() -> None:
    module, ep = wide_net()
    program = tosaic.from_exported(ep)
    module.half()
    assert "was given other memory after import" in refusal(tosaic.lower, program)


def test_constants_in_regions_are_copied_too() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x * self.weight, lambda x: x - self.weight, (x,))

    module = Branches()
    program = tosaic.from_exported(torch.export.export(module, (X,)))
    expected = [program.run(x) for x in (X + 2, X - 2)]
    other = tosaic.from_exported(torch.export.export(module, (X,))).snapshot()
    module.weight.untyped_storage().resize_(0)
    for runnable in (program, other):
        for x, result in zip((X + 2, X - 2), expected, strict=True):
            np.testing.assert_array_equal(runnable.run(x), result)


def test_a_snapshot_is_taken_once_and_releases_torchs_memory() -> None:
    module, ep = net()
    program = tosaic.from_exported(ep)
    graph = program.graph
    text = graph.text()
    assert program.snapshot() is program
    assert program.graph is not graph
    assert program.graph.text() == text
    assert program.snapshot().graph is program.graph
    weight = weakref.ref(module.linear.weight)
    del module, ep, graph
    gc.collect()
    assert weight() is None
    assert np.isfinite(program.run(X)).all()


def test_scales_that_the_import_has_read_are_refused_when_they_change() -> None:
    make, inputs = NETWORKS["scales"]
    module, sample = make(), inputs()
    ep = torch.export.export(module, sample)
    programs = [tosaic.from_exported(ep) for _ in range(2)]
    expected = tosaic.from_exported(ep).run(*sample)
    module.steps.data.mul_(2)  # the graph has the old scales
    for use in (lambda: programs[0].run(*sample), lambda: tosaic.lower(programs[1])):
        assert "'steps' was changed in place after import" in refusal(use)
    module.steps.data.mul_(0.5)
    np.testing.assert_array_equal(programs[0].run(*sample), expected)


def test_weights_that_were_copied_at_import_are_refused_when_they_change() -> None:
    make, inputs = NETWORKS["strided"]
    module, sample = make().eval(), inputs()
    ep = torch.export.export(module, sample)
    program = tosaic.from_exported(ep)
    module.table.data[3, 4] += 1
    assert "'table' was changed in place after import" in refusal(program.run, *sample)
    assert "'table' was changed in place after import" in refusal(tosaic.lower, program)


def test_arrays_of_constants_cannot_be_used_to_change_a_program() -> None:
    module, ep = net()
    program = tosaic.from_exported(ep)
    view = program.graph.constants["linear.weight"].array
    assert not np.shares_memory(view, module.linear.weight.detach().numpy())
    own = program.snapshot().graph.constants["linear.weight"].array
    for array in (view, own):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        own.flags.writeable = True


def test_files_may_be_truncated_once_they_are_loaded(tmp_path) -> None:
    _, ep = net()
    program, low = tosaic.from_exported(ep), tosaic.lower(ep)
    program.save(tmp_path / "program.tosaic")
    low.save(tmp_path / "program.tosa")
    torch.export.save(ep, tmp_path / "program.pt2")
    *loaded, mapped = [open_program(tmp_path / f"program.{end}") for end in ("tosaic", "tosa", "pt2", "pt2")]
    loaded[-1].snapshot()
    for path in tmp_path.iterdir():
        os.truncate(path, 0)
    for runnable in loaded:
        np.testing.assert_allclose(runnable.run(X), low.run(X), rtol=1e-6)
    with pytest.raises(tosaic.InvalidGraph, match="the file was written after it was opened"):
        mapped.run(X)


def test_a_lowered_program_is_shown_in_every_form_after_the_module_was_changed() -> None:
    module, ep = net()
    low, other = tosaic.lower(ep), tosaic.lower(ep)
    expected = json.loads(other.report().json)
    module.half()
    assert str(low) == low.report().text
    assert repr(low) == repr(other)
    found = json.loads(low.report().json)
    assert (found["operators"], found["memory"], found["nodes"]) == (
        expected["operators"],
        expected["memory"],
        expected["nodes"],
    )
    assert low.layout == other.layout
    page = low.report().html
    assert "was given other memory after import" in page  # this error replaces the imported graph
    assert "graph @imported" in page
    (section,) = (s for s in low.report().sections if s.title == "graph @tosa")
    assert section.body == low.stages["tosa"].text()
    assert low._repr_html_().count("<details") == other._repr_html_().count("<details")
    for stage in ("exported", "canonical", "tosa"):
        assert low.at(stage).report().html


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda f: f.__name__)
def test_a_lowered_program_is_copied_unless_its_source_program_was_changed(copied) -> None:
    module, ep = net()
    independent, dependent = tosaic.lower(ep), tosaic.lower(ep)
    independent.source.snapshot()
    result = independent.run(X)
    module.half()
    again = copied(independent)
    again = pickle.loads(again) if isinstance(again, bytes) else again
    np.testing.assert_array_equal(again.run(X), result)
    np.testing.assert_array_equal(again.source.run(X), result)
    if copied is copy.copy:  # a shallow copy shares the source
        np.testing.assert_array_equal(copied(dependent).run(X), result)
        return
    text = refusal(copied, dependent)
    assert "was given other memory after import" in text
    assert "'gain'" in text or "'linear.weight'" in text


def test_weights_that_were_freed_before_the_import_are_refused_by_name() -> None:
    class Every(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Parameter(torch.rand(6)[2:])
            self.register_buffer("state", torch.zeros(4))
            self.register_buffer("waves", torch.ones(4, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state.add_(x)
            return self.state * self.part + (x * self.waves).real

    for name, size, message in (
        ("part", 0, "expected a storage of at least 24 bytes, got 0 bytes"),
        ("part", 20, "expected a storage of at least 24 bytes, got 20 bytes"),
        ("state", 0, "expected a storage of at least 16 bytes, got 0 bytes"),
        ("waves", 8, "expected a storage of at least 32 bytes, got 8 bytes"),
    ):
        ep = torch.export.export(Every(), (torch.ones(4),))
        ep.state_dict[name].untyped_storage().resize_(size)
        text = refusal(tosaic.from_exported, ep)
        assert text.startswith(f"[import] the memory of the constant '{name}' was freed or cut: {message}")
