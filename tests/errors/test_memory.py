"""Too little memory is not reported as a fault of a user's function or of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from tosaic.cli import main

X = np.ones((1, 8), np.float32)


def exhausted(*_: Any, **__: Any) -> Any:
    raise MemoryError("Unable to allocate 9 TiB")


@pytest.fixture
def exported() -> Any:
    return torch.export.export(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval(), (torch.ones(1, 8),)
    )


def test_a_memory_error_in_a_function_of_the_user_stays_one(exported: Any) -> None:
    program = tosaic.from_exported(exported)
    recipe = tosaic.recipes.named("tosa-int8")
    stage = tosaic.recipes.Stage("big", "exported", exhausted)
    calls: list[Callable[[], Any]] = [
        lambda: program.with_overrides({"relu": exhausted}).run(X),
        lambda: program.prepare(models={"relu": exhausted}).run(X),
        lambda: tosaic.quantize(program.with_overrides({"relu": exhausted}), [(X,)], progress=False),
        lambda: tosaic.quantize(program, [(X,)], rules=[exhausted], progress=False),
        lambda: tosaic.export_model(
            exported, recipe=recipe.replace(stages=[stage]), samples=[(X,)], verbose=0
        ),
    ]
    for call in calls:
        with pytest.raises(MemoryError, match="9 TiB"):
            call()


def test_a_memory_error_while_a_file_is_read_stays_one(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tosaic.from_exported(exported).save(tmp_path / "m.tosaic")
    np.savez(tmp_path / "x.npz", input=X)
    torch.export.save(exported, tmp_path / "m.pt2")
    with monkeypatch.context() as patched:
        patched.setattr("tosaic.program.archive._read_array", exhausted)
        with pytest.raises(MemoryError):
            tosaic.load(tmp_path / "m.tosaic")
        assert main(["inspect", str(tmp_path / "m.tosaic")]) == 2
        assert capsys.readouterr().err == "tosaic: there is not enough memory: Unable to allocate 9 TiB\n"
    with monkeypatch.context() as patched:
        patched.setattr(np, "load", exhausted)
        with pytest.raises(MemoryError):
            tosaic.quantize(exported, [str(tmp_path / "x.npz")], progress=False)
    with monkeypatch.context() as patched:
        patched.setattr(torch.export, "load", exhausted)
        with pytest.raises(MemoryError):
            tosaic.compare(tmp_path / "m.pt2", tmp_path / "m.pt2", (X,))


class Called(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def test_a_memory_error_while_a_call_of_a_file_is_read_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of operators make arrays, such as indices, of the sizes that the file has."""
    exported = torch.export.export(Called(), (torch.ones(1, 8),))
    torch.export.save(exported, tmp_path / "m.pt2")
    program = tosaic.from_exported(exported)
    tosaic.save_pte(program, tmp_path / "m.pte")
    for reader, path in (("pt2.archive_writer.ArchiveWriter", "m.pt2"), ("pte.calls.KernelWriter", "m.pte")):
        with monkeypatch.context() as patched:
            patched.setattr(f"tosaic.{reader}.done", exhausted, raising=False)
            patched.setattr(f"tosaic.{reader}.emit", exhausted, raising=False)
            with pytest.raises(MemoryError, match="9 TiB"):
                tosaic.open_program(tmp_path / path)
