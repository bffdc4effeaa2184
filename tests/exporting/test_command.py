"""``tosaic export`` and ``tosaic recipes``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from tosaic.cli import main

from exporting.networks import Warp, images, seeded

MODULE = """import torch
from torch import nn
import tosaic

MINE = tosaic.recipes.named("tosa-int8").replace(name="mine", io={"inputs": "int8"})
WRONG = 3


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), (torch.rand(1, 3, 8, 8),)


def nothing():
    return None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "camera_module.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "camera_module", raising=False)
    samples = list(images())
    torch.export.save(torch.export.export(seeded(Warp), samples[0]), tmp_path / "warp.pt2")
    np.save(tmp_path / "images.npy", np.concatenate([each.numpy() for (each,) in samples]))
    return tmp_path


def test_a_file_is_exported_with_the_options_of_the_call(folder: Path, capsys: Any) -> None:
    command = [
        "export",
        "warp.pt2",
        "--recipe",
        "vgf-snorm",
        "--samples",
        "images.npy",
        "-o",
        "out",
        "--io",
        "image=int8",
    ]
    more = ["--io", "outputs=int8", "--orders", "inputs=nhwc", "--name", "warp", "--json"]
    assert main([*command, *more]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [group["claimant"] for group in data["groups"]] == ["vgf", "grid-sampler", "vgf"]
    assert data["ok"]
    assert data["io"]["inputs"][0]["path"] == "image"
    assert (folder / "out" / "warp.pte").exists()
    assert main(command) == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_function_and_a_recipe_of_a_module_are_exported(folder: Path, capsys: Any) -> None:
    command = ["export", "camera_module:model", "--recipe", "camera_module:MINE", "-o", "out"]
    assert main([*command, "--check-on", "reference", "--verbose", "0"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("ok: export model")
    assert "reference" in text
    assert tosaic.Recipe.load(folder / "out" / "recipe.json").name == "mine"


def test_floats_other_claimants_and_a_failed_check(folder: Path, capsys: Any) -> None:
    command = (
        "export warp.pt2 --recipe tosa-int8 --floats --claimants TOSA-1.0+FP -o out --samples images.npy"
    )
    assert main(command.split()) == 0
    assert "TOSA-1.0+FP" in capsys.readouterr().out
    command = "export warp.pt2 --recipe tosa-int8 -o failed --samples images.npy --least-db 99"
    assert main(command.split()) == 1
    assert capsys.readouterr().out.startswith("FAILED: export model")
    assert (folder / "failed" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("warp.pt2 --recipe no-such", "there is no recipe of this name"),
        ("warp.pt2 --recipe camera_module:WRONG", "is a int"),
        ("warp.pt2 --recipe camera_module:absent", "cannot be imported"),
        ("camera_module:nothing --recipe tosa-int8", "returns a NoneType"),
        ("no_such_module:model --recipe tosa-int8", "cannot be imported"),
        ("warp.pt2 --recipe vgf-snorm --rgba image", "names no input or output"),
        ("absent.pt2 --recipe vgf-snorm", "absent.pt2"),
    ],
)
def test_a_wrong_argument_is_refused(folder: Path, capsys: Any, arguments: str, message: str) -> None:
    assert main(["export", *arguments.split(), "-o", "out"]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_recipes_are_listed_printed_saved_and_compared(folder: Path, capsys: Any) -> None:
    assert main(["recipes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["recipes"]
    assert [each["name"] for each in listed] == list(tosaic.recipes.names())
    assert main(["recipes", "neutron", "cortex-m", "-o", "both.json"]) == 0
    assert "recipe neutron+cortex-m" in capsys.readouterr().out
    assert tosaic.Recipe.load("both.json") == tosaic.recipes.named("neutron+cortex-m")
    assert main(["recipes", "--diff", "neutron", "both.json"]) == 1
    assert "'cortex-m55'" in capsys.readouterr().out
    assert main(["recipes", "--diff", "neutron", "neutron"]) == 0
    assert main(["recipes", "--diff", "neutron"]) == 2
    assert main(["recipes", "tosa-int8", "tosa-int16x8"]) == 2
    assert "in recipe 'tosa-int8' and" in capsys.readouterr().err
