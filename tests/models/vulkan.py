"""Runs a VGF file on Vulkan: Arm's emulation layers over Mesa's software driver. No GPU is needed.

This is a second implementation of integer TOSA, which shares no code with the reference model. It needs the
wheels of the extra ``devices`` and Debian's packages ``mesa-vulkan-drivers`` and ``libvulkan1``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["convert", "run_vgf", "runs_vgf", "tool"]

_DRIVER = Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")


def tool(name: str) -> str:
    """Returns the path of a command that an installed wheel put beside this Python interpreter.

    Raises
    ------
    FileNotFoundError
        The command is not installed.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FileNotFoundError(f"{name} is not installed: pip install -c constraints.txt '.[devices]'")
    return str(path)


def convert(program: Path, to: Path) -> None:
    """Converts a .tosa file to a .vgf file."""
    _called([tool("model-converter"), "--input", str(program), "--output", str(to)], program.parent)


def runs_vgf() -> bool:
    """True if the software driver is installed."""
    return _DRIVER.exists()


def run_vgf(program: Path, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Runs a .vgf file and returns its outputs, row-major in the program's shapes.

    The files of the run are written to the folder of the program and are not removed.

    Raises
    ------
    FileNotFoundError
        A tool, or the software driver, is not installed.
    RuntimeError
        A tool failed. The message has what the tool printed.
    """
    if not runs_vgf():
        raise FileNotFoundError(f"{_DRIVER} is missing: apt-get install mesa-vulkan-drivers libvulkan1")
    folder = program.parent
    environment = _environment(folder)
    template = _called([tool("vgf_dump"), "-i", str(program), "--scenario-template"], folder, environment)
    scenario = template.replace("dispatch_graph", "dispatch_vgf")
    for i, array in enumerate(inputs):
        np.save(folder / f"in{i}.npy", np.ascontiguousarray(array))
        scenario = scenario.replace(f"TEMPLATE_PATH_TENSOR_INPUT_{i}", f"in{i}.npy")
    outputs = []
    while f"TEMPLATE_PATH_TENSOR_OUTPUT_{len(outputs)}" in scenario:
        name = f"out{len(outputs)}.npy"
        (folder / name).unlink(missing_ok=True)
        scenario = scenario.replace(f"TEMPLATE_PATH_TENSOR_OUTPUT_{len(outputs)}", name)
        outputs.append(folder / name)
    (folder / "scenario.json").write_text(scenario)
    runner = [tool("scenario_runner"), "--scenario", "scenario.json", "--output", "."]
    _called([*runner, "--log-level", "warning"], folder, environment)
    return [np.load(path) for path in outputs]


def _environment(folder: Path) -> dict[str, str]:
    """Returns the environment variables with which Vulkan finds the emulation layers.

    The Graph layer must be found before the Tensor layer. So each manifest is in a folder of its own, and the
    folders are listed in that order.
    """
    spec = find_spec("emulation_layer")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "the emulation layer is not installed: pip install -c constraints.txt '.[devices]'"
        )
    deploy = Path(spec.origin).parent / "deploy"
    layers = []
    for name in ("Graph", "Tensor"):
        layers.append(folder / f"{name.lower()}_layer")
        layers[-1].mkdir(exist_ok=True)
        manifest = layers[-1] / f"VkLayer_{name}.json"
        if not manifest.exists():
            manifest.symlink_to(deploy / "share" / "vulkan" / "explicit_layer.d" / manifest.name)
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(deploy / "lib"),
        "VK_LAYER_PATH": ":".join(map(str, layers)),
        "VK_INSTANCE_LAYERS": "VK_LAYER_ML_Graph_Emulation:VK_LAYER_ML_Tensor_Emulation",
        "VK_ICD_FILENAMES": str(_DRIVER),
    }


def _called(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{command[0]} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout
