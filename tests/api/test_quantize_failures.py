"""Errors of `tosaic.quantize` where the caller's executor, rule, function or samples fail."""

from __future__ import annotations

import os
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.annotation import Observed, Operator

X = torch.randn(2, 6)
SAMPLES = [(X,)] * 9


@pytest.fixture(scope="module")
def program() -> Any:
    network = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).eval()
    return tosaic.from_exported(torch.export.export(network, (X,)))


def ends_the_process(*_: Any) -> Any:
    os._exit(3)


def divides(*_: Any) -> Any:
    return 1 / 0


def test_a_broken_pool_is_named_and_is_the_cause(program) -> None:
    ending = program.with_overrides({"linear": ends_the_process})
    with ProcessPoolExecutor(1) as executor:
        for each in (ending, program):  # the pool stays broken
            with pytest.raises(
                tosaic.InvalidGraph, match=r"executor did not run samples 0 to 3.*BrokenProcessPool"
            ) as caught:
                tosaic.quantize(each, SAMPLES, executor=executor, progress=False)
            assert isinstance(caught.value.__cause__, BrokenProcessPool)


def test_an_executor_that_was_shut_down_or_that_cancels_is_named(program) -> None:
    class Cancelling(Executor):
        def submit(self, function, /, *args, **kwargs):
            future: Future[Any] = Future()
            future.cancel()
            return future

    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    for executor, message in ((closed, "after shutdown"), (Cancelling(), "CancelledError")):
        with pytest.raises(tosaic.InvalidGraph, match=message):
            tosaic.quantize(program, SAMPLES, executor=executor, progress=False)


@pytest.mark.parametrize(
    "make", [lambda: None, lambda: ThreadPoolExecutor(2), lambda: ProcessPoolExecutor(1)]
)
def test_a_function_that_raises_is_named_with_the_sample_whoever_runs_it(program, make) -> None:
    executor = make()
    with pytest.raises(
        tosaic.InvalidGraph,
        match="sample 0: a function that runs in place of an operator raised ZeroDivisionError",
    ) as caught:
        tosaic.quantize(
            program.with_overrides({"linear": divides}), SAMPLES, executor=executor, progress=False
        )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    if executor is not None:
        executor.shutdown()


def test_a_function_that_pickle_cannot_copy_is_refused_for_processes(program) -> None:
    local = program.with_overrides({"linear": lambda x, _w, _b: np.asarray(x)})
    assert tosaic.quantize(local, SAMPLES, progress=False) is not None
    with (
        ProcessPoolExecutor(1) as executor,
        pytest.raises(tosaic.InvalidGraph, match=r"cannot be sent to the workers.*top level of a module"),
    ):
        tosaic.quantize(local, SAMPLES, executor=executor, progress=False)


def test_a_rule_that_raises_is_named_and_is_the_cause(program) -> None:
    with pytest.raises(tosaic.InvalidGraph, match="the rule 'divides' raised ZeroDivisionError") as caught:
        tosaic.quantize(program, SAMPLES, rules=[divides], progress=False)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_of_the_callers_iterator_is_the_callers_own(program) -> None:
    def stream() -> Any:
        yield from SAMPLES[:5]
        raise OSError("the disk is full")

    with ThreadPoolExecutor(2) as executor:
        for each in (None, executor):
            with pytest.raises(OSError, match="the disk is full"):
                tosaic.quantize(program, stream(), executor=each, progress=False)


def test_a_loader_with_labels_is_refused_with_a_hint_and_the_hint_works(program) -> None:
    loader = torch.utils.data.DataLoader([(X[0], 1)] * 8, batch_size=2)
    for attempt in (
        lambda: tosaic.quantize(program, loader, progress=False),
        lambda: tosaic.sensitivity(program, loader, progress=False),
        lambda: tosaic.compare(program, program, loader),
    ):
        with pytest.raises(
            tosaic.InvalidGraph,
            match=r"sample 0 has more entries than the network has arguments: expected 1: 'input', got 2 .* "
            r"\(batch\[:1\] for batch in loader\)",
        ):
            attempt()
    assert tosaic.quantize(program, (batch[:1] for batch in loader), progress=False).samples == 4


def test_a_target_of_floats_is_refused_with_the_way_to_floats(program) -> None:
    exported = torch.export.export(nn.Linear(6, 6).eval(), (X,))
    quantized = tosaic.quantize(exported, SAMPLES, progress=False)
    with pytest.raises(tosaic.UnsupportedOp, match=r"lower what QuantizedProgram.to_exported\(\) returns"):
        tosaic.lower(quantized, target="TOSA-1.0+FP")
    lowered = tosaic.lower(quantized.to_exported(), target="TOSA-1.0+FP")
    assert tosaic.compare(quantized, lowered, SAMPLES[:1]).ok


def test_a_file_of_integers_without_a_sidecar_is_named(program, tmp_path) -> None:
    lowered = tosaic.lower(tosaic.quantize(program, SAMPLES, progress=False), target="TOSA-1.0+INT")
    lowered.save(tmp_path / "m.tosa")
    with pytest.raises(tosaic.QuantMismatch, match=r"a file without a sidecar.*save\(path, sidecar=True\)"):
        tosaic.compare(program, tmp_path / "m.tosa", SAMPLES[:1])
    lowered.save(tmp_path / "m.tosa", sidecar=True)
    assert tosaic.compare(program, tmp_path / "m.tosa", SAMPLES[:1]).ok


def test_a_rule_that_quantizes_float64_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double().eval()
    samples = [(torch.ones(1, 4, 4, dtype=torch.float64),)]
    rule = Operator("linear", {"weight": Observed("int8", -127, 127, "per_tensor_symmetric")})
    with pytest.raises(tosaic.InvalidGraph, match=r"quantizes a tensor of float64.*model\.float\(\)"):
        tosaic.quantize(torch.export.export(model, samples[0]), samples, rules=[rule], progress=False)
