"""A VGF file on Vulkan as a model of a whole graph.

The VGF converter makes the file, and Arm's emulation layers run it on a Vulkan driver. Mesa's software driver
is enough, so no GPU is needed. This implementation of TOSA shares no code with the reference model.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.json_text import parsed_json
from tosaic.base.writing import make_folder, write_bytes, write_text
from tosaic.devices.device_compilers import compile_vgf, require_tool
from tosaic.program.reference_graph import refuse_custom, refuse_models, refuse_stage

if TYPE_CHECKING:
    from tosaic.program.models import GraphCall

_DRIVER = Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
_PACKAGES = "pip install 'tosaic[devices]'"


def model_of_graph(graph: _core.Graph, models: Any = None) -> Callable[[GraphCall], list[Any]]:
    """Returns Vulkan as a model of a whole graph, for ``prepare(on="vgf")``.

    Raises
    ------
    InvalidGraph
        The graph is not at stage ``tosa``, it has states, or there are models of operators, too.
    UnsupportedOp
        The graph has a ``tosa.custom``.
    ImportError
        A package of the extra ``devices``, or a Vulkan driver, is not installed.
    """
    refuse_stage(graph, "a VGF file", "vgf")
    refuse_models(models, "a VGF file", "vgf")
    refuse_custom(graph, "prepare", "a VGF file of tosaic")
    require_vulkan()
    return _VgfGraph(graph)


class _VgfGraph:
    """Runs the graph of a call. The file is converted at the first call of each process."""

    def __init__(self, graph: _core.Graph) -> None:
        self._program = VgfProgram(_core.serialize(graph), is_tosa=True)

    def __call__(self, call: GraphCall) -> list[Any]:
        results = self._program.run(call.inputs)
        return [
            result.reshape(port.value.shape) for result, port in zip(results, call.graph.outputs, strict=True)
        ]


class VgfProgram:
    """A VGF file that runs on Vulkan. Several threads may run it, one after the other.

    Parameters
    ----------
    data : bytes
        The VGF file, or the ``.tosa`` file from which the converter makes it at the first run.
    is_tosa : bool
    """

    def __init__(self, data: bytes, *, is_tosa: bool = False) -> None:
        self._data = data
        self._is_tosa = is_tosa
        self._lock = threading.Lock()

    @cached_property
    def _path(self) -> Path:
        """The VGF file, in a folder that is removed with this object."""
        folder = tempfile.mkdtemp(prefix="tosaic-vgf-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        program = Path(folder) / "program.vgf"
        write_bytes(program, compile_vgf(self._data) if self._is_tosa else self._data)
        return program

    def run(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Runs the file; see `run_vgf`."""
        with self._lock:
            return run_vgf(self._path, inputs)

    @cached_property
    def sides(self) -> tuple[tuple[VgfTensor, ...], tuple[VgfTensor, ...]]:
        """The inputs and the outputs that the file declares.

        Raises
        ------
        ImportError, RuntimeError
            As `run_vgf`.
        """
        with self._lock:
            text = _called([tool("vgf_dump"), "-i", str(self._path)], self._path.parent)
        found = parsed_json(text)
        tensors = [VgfTensor(each["vk_format"], tuple(each["shape"])) for each in found["resources"]]
        sequence = found["model_sequence"]
        inputs, outputs = (
            tuple(tensors[each["mrt_index"]] for each in sequence[side]) for side in ("inputs", "outputs")
        )
        return inputs, outputs

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self._data, "is_tosa": self._is_tosa}

    def __setstate__(self, state: dict[str, Any]) -> None:
        VgfProgram.__init__(self, **state)


@dataclass(frozen=True)
class VgfTensor:
    """An input or output of a VGF file.

    Attributes
    ----------
    format : str
        Vulkan's name of the element type: ``VK_FORMAT_R8_SINT``.
    shape : tuple of int
        The physical axes.
    """

    format: str
    shape: tuple[int, ...]

    @property
    def element_bytes(self) -> int | None:
        """Bytes of an element; None for a format of several components."""
        found = self._element
        return None if found is None else max(int(found[1]) // 8, 1)

    @property
    def dtype(self) -> str | None:
        """The dtype of an element in graphs; None for formats of several components and normalized ones."""
        found = self._element
        kind = None if found is None else _KINDS.get(found[2])
        return kind if found is None or kind in (None, "bool") else f"{kind}{found[1]}"

    @property
    def _element(self) -> re.Match[str] | None:
        return re.fullmatch(r"VK_FORMAT_R(\d+)_([A-Z]+)(_ARM)?", self.format)


_KINDS = {"SINT": "i", "UINT": "u", "SFLOAT": "f", "BOOL": "bool"}
"""By the numeric format in Vulkan's name of a format: the first part of the dtype's name in graphs."""


def require_vulkan() -> None:
    """Raises ImportError, which says what to install, if VGF files do not run on this machine."""
    require_tool("model-converter")
    for name in ("vgf_dump", "scenario_runner"):
        tool(name)
    _layers()
    if not runs_vgf():
        raise ImportError(
            f"{_DRIVER} is missing, the software driver of Vulkan. On Debian: "
            "apt-get install mesa-vulkan-drivers libvulkan1"
        )


def tool(name: str) -> str:
    """Returns the path of a command that an installed wheel put next to this Python interpreter.

    Raises
    ------
    ImportError
        The command is not installed.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ImportError(f"{name} is not installed: {_PACKAGES}")
    return str(path)


def runs_vgf() -> bool:
    """Returns whether the software driver is installed."""
    return _DRIVER.exists()


def run_vgf(program: Path, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Runs a .vgf file and returns its outputs, row-major in the program's shapes.

    The files of the run are written to the folder of the program and are not removed.

    Raises
    ------
    ImportError
        A tool, or the software driver, is not installed.
    RuntimeError
        A tool failed. The message has what the tool printed.
    """
    require_vulkan()
    folder = program.parent
    environment = _environment(folder)
    template = _called([tool("vgf_dump"), "-i", str(program), "--scenario-template"], folder, environment)
    scenario = template.replace("dispatch_graph", "dispatch_vgf")
    for i, array in enumerate(inputs):
        np.save(folder / f"in{i}.npy", np.ascontiguousarray(array))
        scenario = scenario.replace(f'"TEMPLATE_PATH_TENSOR_INPUT_{i}"', f'"in{i}.npy"')
    outputs: list[Path] = []
    while f'"TEMPLATE_PATH_TENSOR_OUTPUT_{len(outputs)}"' in scenario:
        name = f"out{len(outputs)}.npy"
        (folder / name).unlink(missing_ok=True)
        scenario = scenario.replace(f'"TEMPLATE_PATH_TENSOR_OUTPUT_{len(outputs)}"', f'"{name}"')
        outputs.append(folder / name)
    write_text(folder / "scenario.json", scenario)
    runner = [tool("scenario_runner"), "--scenario", "scenario.json", "--output", "."]
    _called([*runner, "--log-level", "warning"], folder, environment)
    return [np.load(path, allow_pickle=False) for path in outputs]


def _layers() -> Path:
    """Returns the folder of the emulation layers."""
    spec = find_spec("emulation_layer")
    if spec is None or spec.origin is None:
        raise ImportError(f"the emulation layer is not installed: {_PACKAGES}")
    return Path(spec.origin).parent / "deploy"


def _environment(folder: Path) -> dict[str, str]:
    """Returns the environment variables with which Vulkan finds the emulation layers.

    The Graph layer must be found before the Tensor layer. So each manifest is in its own folder, and the
    folders are listed in that order.
    """
    deploy = _layers()
    layers = []
    for name in ("Graph", "Tensor"):
        layers.append(make_folder(folder / f"{name.lower()}_layer"))
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
