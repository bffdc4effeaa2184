"""Overrides are functions that replace operators of a program.

`with_overrides` adds them to the overrides that the program has. Copies and pickles of a program have its
overrides, too.
"""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from api.copies import every_copy
from tosaic import _core

X = np.float32([-1, 2, 3])


class Foreign(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -torch.special.i0(torch.relu(x))


def bessel(x: np.ndarray) -> np.ndarray:
    return np.i0(x).astype(np.float32)


def nine(x: np.ndarray) -> np.ndarray:
    return np.full_like(x, 9)


def foreign() -> tosaic.Program:
    return tosaic.from_exported(torch.export.export(Foreign(), (torch.ones(3),)))


@every_copy
def test_copies_of_a_program_have_its_overrides(copied: Callable[[Any], Any]) -> None:
    program = foreign().with_overrides({"aten.special_i0.default": bessel, "neg": nine})
    for again in (copied(program), copied(copied(program))):
        np.testing.assert_array_equal(again.run(X), np.float32([9, 9, 9]))
    first = foreign().with_overrides({"aten.special_i0.default": bessel})
    np.testing.assert_allclose(copied(first).run(X), Foreign()(torch.tensor(X)).numpy(), rtol=1e-6)


def test_overrides_are_added_to_the_programs_overrides_or_replace_them() -> None:
    first = foreign().with_overrides({"aten.special_i0.default": bessel})
    second = first.with_overrides({"neg": lambda x: x})
    np.testing.assert_allclose(second.run(X), -Foreign()(torch.tensor(X)).numpy(), rtol=1e-6)
    third = second.with_overrides({"special_i0": nine})  # the node's name precedes its operator's name
    np.testing.assert_array_equal(third.run(X), np.float32([9, 9, 9]))
    np.testing.assert_array_equal(second.with_overrides({"neg": nine}).run(X), np.float32([9, 9, 9]))
    np.testing.assert_allclose(first.run(X), Foreign()(torch.tensor(X)).numpy(), rtol=1e-6)
    assert second.with_overrides({}).run(X).tolist() == second.run(X).tolist()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_copies_share_functions_that_cannot_be_pickled(copied: Callable[[Any], Any]) -> None:
    class Counting:
        calls = 0

        def __call__(self, x: np.ndarray) -> np.ndarray:
            self.calls += 1
            return x

    counting = Counting()
    program = foreign().with_overrides({"aten.special_i0.default": counting})
    copied(program).run(X)
    assert counting.calls == 1


def test_an_override_that_cannot_be_pickled_is_refused_by_name() -> None:
    program = foreign().with_overrides({"aten.special_i0.default": bessel, "relu": lambda x: x})
    for held in (program, [program]):
        with pytest.raises(
            tosaic.InvalidGraph, match=r"^\[pickle\] the override of 'relu' cannot be pickled: .*<lambda>"
        ):
            pickle.dumps(held)


def test_a_pool_of_spawned_processes_runs_overrides() -> None:
    program = foreign().with_overrides({"aten.special_i0.default": np.exp})
    with get_context("spawn").Pool(1) as pool:
        (found,) = pool.map(program.run, [X])
    np.testing.assert_allclose(found, -np.exp(np.maximum(X, 0)), rtol=1e-6)


def test_an_unknown_name_is_refused_if_the_program_has_overrides_too() -> None:
    program = foreign().with_overrides({"aten.special_i0.default": bessel})
    with pytest.raises(tosaic.InvalidGraph, match="rleu"):
        program.with_overrides({"rleu": nine})


def test_an_archive_and_a_lowered_program_lack_the_overrides_and_warn_of_it(
    case, tmp_path: Path, caplog
) -> None:
    program = case.program.with_overrides({"relu": nine})
    with caplog.at_level(logging.WARNING):
        program.save(tmp_path / "a.tosaic")
        tosaic.lower(program)
    assert [record.getMessage() for record in caplog.records] == [
        "the archive has the operators of the graph, without the functions that override 'relu'",
        "the lowered program has the operators of the graph, without the functions that override 'relu'",
    ]
    case.program.save(tmp_path / "b.tosaic")
    assert (tmp_path / "a.tosaic").read_bytes() == (tmp_path / "b.tosaic").read_bytes()
    assert len(caplog.records) == 2
    assert isinstance(program.graph, _core.Graph)


@pytest.mark.parametrize(
    "functions",
    [{"\udcff": nine}, {3: nine}, {"relu": 3}, None, [("relu", nine)]],
    ids=["a name that is no text", "a number", "no function", "nothing", "pairs"],
)
def test_overrides_that_are_not_functions_by_name_are_refused(functions: Any) -> None:
    with pytest.raises(tosaic.InvalidGraph, match="of 'functions': expected functions by the name of a node"):
        foreign().with_overrides(functions)
