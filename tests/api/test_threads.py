"""Runs by several threads: the same bytes as by one, through every door, in every kind of process."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from models.zoo import build
from torch import nn
from tosaic.base import threads
from tosaic.cli import main

THREADS = (2, 3, 8)


class Net(nn.Module):
    """Wide enough for threads: each of its layers costs more than calling a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU6(),
            nn.Conv2d(32, 32, 3, padding=1, groups=32),
            nn.Conv2d(32, 48, 1),
            nn.Sigmoid(),
            nn.MaxPool2d(2),
        )
        self.attention = nn.MultiheadAttention(48, 4, batch_first=True)
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.convs(x).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.head(self.norm(tokens + mixed)).softmax(-1)


def _sample(seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    return torch.export.export(Net().eval(), (_sample(),))


@pytest.fixture(scope="module")
def floats(exported: torch.export.ExportedProgram) -> Any:
    return tosaic.lower(exported)


@pytest.fixture(scope="module")
def integers(exported: torch.export.ExportedProgram) -> Any:
    return tosaic.lower(tosaic.quantize(exported, [(_sample(i),) for i in range(2)]), target="TOSA-1.0+INT")


@pytest.fixture(params=["floats", "integers"])
def program(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "own_cores", lambda: 3)


def _bytes(result: Any) -> bytes:
    return np.asarray(result).tobytes()


def test_any_number_of_threads_gives_the_same_bytes(program: Any) -> None:
    one = _bytes(program.run(_sample()))
    for count in THREADS:
        prepared = program.prepare(threads=count)
        for _ in range(3):
            assert _bytes(prepared.run(_sample())) == one


@pytest.mark.parametrize("name", ["mobilenet_v2", "deit_tiny"])
def test_networks_give_the_same_bytes(name: str) -> None:
    network = build(name)
    lowered = tosaic.lower(network.export())
    one = _bytes(lowered.run(*network.sample()))
    for count in THREADS:
        assert _bytes(lowered.prepare(threads=count).run(*network.sample())) == one


def test_programs_before_lowering_give_the_same_bytes(exported: torch.export.ExportedProgram) -> None:
    program = tosaic.from_exported(exported)
    one = _bytes(program.run(_sample()))
    for count in THREADS:
        assert _bytes(program.prepare(threads=count).run(_sample())) == one


def test_runs_of_many_threads_share_the_threads_of_the_process(program: Any) -> None:
    expected = [_bytes(program.run(_sample(i))) for i in range(12)]
    prepared = program.prepare(threads=4)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: _bytes(prepared.run(_sample(i))), range(12))) == expected


def test_subnormal_numbers_are_treated_as_in_the_thread_that_runs() -> None:
    class Shrink(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1e-30

    x = torch.full((1 << 18,), 1e-10)
    prepared = tosaic.from_exported(torch.export.export(Shrink(), (x,))).prepare(threads=4)
    for flushes in (True, False):
        if not torch.set_flush_denormal(flushes):
            pytest.fail("torch cannot change the treatment of subnormal numbers here")
        try:
            found = [set(np.unique(prepared.run(x))) for _ in range(20)]
        finally:
            torch.set_flush_denormal(False)
        assert found == [{np.float32(0)} if flushes else {np.float32(1e-40)}] * 20


def _run_in_child(prepared: Any, queue: Any) -> None:
    queue.put([_bytes(prepared.run(_sample())) for _ in range(3)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own(program: Any) -> None:
    prepared = program.prepare(threads=2)
    one = _bytes(prepared.run(_sample()))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_run_in_child, args=(prepared, queue)) for _ in range(2)]
    for child in children:
        child.start()
    assert [queue.get(timeout=120) for _ in children] == [[one] * 3] * 2
    for child in children:
        child.join(120)
    assert _bytes(prepared.run(_sample())) == one


def test_an_error_is_the_same_for_any_number_of_threads() -> None:
    class Look(nn.Module):
        def forward(self, table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return table[rows]

    table, rows = torch.randn(50, 64), torch.zeros(20000, dtype=torch.int64)
    program = tosaic.from_exported(torch.export.export(Look(), (table, rows)))
    rows[777], rows[15000] = 99, 77
    messages = set()
    for count in (1, *THREADS):
        with pytest.raises(tosaic.InvalidGraph) as caught:
            program.prepare(threads=count).run(table, rows)
        messages.add(str(caught.value))
    (message,) = messages
    assert "99" in message


def test_calibration_does_not_depend_on_the_cores(
    exported: torch.export.ExportedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [(_sample(i),) for i in range(3)]
    made = []
    for count in (1, 3):
        monkeypatch.setattr(threads, "own_cores", lambda count=count: count)
        lowered = tosaic.lower(tosaic.quantize(exported, samples), target="TOSA-1.0+INT")
        made.append(lowered.to_bytes())
    assert made[0] == made[1]


@pytest.mark.usefixtures("three_cores")
def test_runs_use_one_thread_and_the_command_line_all_cores(floats: Any) -> None:
    assert (threads.run_threads(), threads.batch_threads()) == (1, 3)
    with threads.all_cores():
        assert (threads.run_threads(), threads.batch_threads()) == (3, 3)
    with threads.all_cores(2):
        assert (threads.run_threads(), threads.batch_threads()) == (2, 2)
    assert threads.run_threads() == 1
    assert floats.prepare().threads == 1


def test_a_pool_has_no_cores_of_its_own() -> None:
    assert threads.own_cores() == min(len(os.sched_getaffinity(0)), threads.MOST_THREADS)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(threads.own_cores()))
    thread.start()
    thread.join()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found.append(pool.submit(threads.own_cores).result(120))
    assert found == [1, 1]


def test_the_command_line_takes_a_number_of_threads(
    floats: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    floats.save(tmp_path / "net.tosa")
    np.save(tmp_path / "x.npy", np.asarray(floats.arrays(_sample())[0]))
    results = []
    for count in ("1", "3", ""):
        out = tmp_path / f"y{count}.npy"
        option = ["--threads", count] if count else []
        code = main(
            ["run", str(tmp_path / "net.tosa"), "--input", str(tmp_path / "x.npy"), "-o", str(out), *option]
        )
        assert code == 0, capsys.readouterr().err
        results.append(out.read_bytes())
    assert results[0] == results[1] == results[2]
    for wrong in ("0", "257", "two", "-1"):
        arguments = ["run", "net.tosa", "--input", "x.npy", "-o", "y.npy", "--threads", wrong]
        assert main(arguments) == 2
        assert "not a whole number from 1 to 256" in capsys.readouterr().err
