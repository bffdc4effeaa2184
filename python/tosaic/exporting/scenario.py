"""A scenario: inputs of a program and its expected outputs, as files for a run elsewhere.

::

    scenario.json               inputs and outputs: files, shapes, dtypes, dim orders, aliases, tolerances
    sample0.input0.npy ...      the arrays of each sample, as the program takes them
    sample0.output0.npy ...     the outputs that tosaic computed
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic.base.arrays import in_memory_order, narrow_dtype
from tosaic.base.dtypes import ML_DTYPES, is_float, type_text
from tosaic.base.json_fields import Fields, read_json
from tosaic.base.options import checked, invalid, refusal, shown
from tosaic.base.reading import read_bytes
from tosaic.base.visible import one_line
from tosaic.base.writing import make_folder, whole_file, write_text
from tosaic.exporting.checks import raw_runs
from tosaic.ports.ports import Port
from tosaic.program.sample_forms import arrays_for, logical_arrays
from tosaic.program.samples import load_arrays, read_samples

if TYPE_CHECKING:
    from tosaic.exporting.result import ExportResult

_FORMAT, _VERSION = "tosaic scenario", 1
_FILE = "scenario.json"
_WHERE = "load_scenario"
_TOLERANCES = {"f16": 2.0**-9, "bf16": 2.0**-6}  # two units in the last place
_TOLERANCE = 1e-5
_VULKAN = {  # (dtype, channels) -> format of a channels-last image
    ("i8", 4): "VK_FORMAT_R8G8B8A8_SNORM",
    ("u8", 4): "VK_FORMAT_R8G8B8A8_UNORM",
    ("i16", 2): "VK_FORMAT_R16G16_SNORM",
    ("f16", 4): "VK_FORMAT_R16G16B16A16_SFLOAT",
    ("f32", 4): "VK_FORMAT_R32G32B32A32_SFLOAT",
    ("f32", 2): "VK_FORMAT_R32G32_SFLOAT",
}
_STEPS = {"i8": 127, "u8": 255, "i16": 32767}
_SCALE_ERROR = 1e-6
_Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ScenarioPort:
    """An input or output of a scenario.

    Attributes
    ----------
    path : str
        The place in the call or in the result.
    dtype : str
    shape : tuple of int
        The shape of the array in the file.
    dim_order : tuple of int
        The logical axes in memory, outermost first.
    image_format : str
        The Vulkan format of an image that may have the same memory; empty if there is none.
    physical : bool
        True if `shape` is the shape in memory, so that the array of the file is row-major.
    tolerance : float
        The largest allowed difference of an element from the expected one: for integers, in units. For
        floats, as a share of the greatest expected element.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    image_format: str = ""
    tolerance: float = 0.0
    physical: bool = False


@dataclass(frozen=True, eq=False)
class Scenario:
    """Inputs and expected outputs of a program, for a run elsewhere. `load_scenario` reads it.

    Attributes
    ----------
    inputs, outputs : tuple of ScenarioPort
    samples : tuple of tuple of array
        The inputs of each sample.
    expected : tuple of tuple of array
        The outputs of each sample.
    """

    inputs: tuple[ScenarioPort, ...]
    outputs: tuple[ScenarioPort, ...]
    samples: tuple[tuple[_Array, ...], ...] = field(repr=False)
    expected: tuple[tuple[_Array, ...], ...] = field(repr=False)

    def __str__(self) -> str:
        """Returns the number of samples, and a line for each input and output."""
        ports = [("input", each) for each in self.inputs] + [("output", each) for each in self.outputs]
        longest = max((len(port.path) for _, port in ports), default=0)
        lines = [f"scenario of {len(self.samples)} sample{'s' * (len(self.samples) != 1)}"]
        for side, port in ports:
            rest = f"  {port.image_format}" if port.image_format else ""
            lines.append(f"  {side:<6}  {port.path:<{longest}}  {type_text(port.dtype, port.shape)}{rest}")
        return "\n".join(map(one_line, lines))

    def faults(self, found: Sequence[Sequence[Any]]) -> tuple[str, ...]:
        """Compares outputs with the expected ones; returns a sentence for each output that is wrong.

        Parameters
        ----------
        found : sequence of sequence of array
            The outputs of each sample.

        Raises
        ------
        InvalidGraph
            `found` is not a list or tuple, or an entry for a sample is not a list or tuple.
        """
        out: list[str] = []
        given: Any = found
        if not isinstance(given, list | tuple) or not all(isinstance(each, list | tuple) for each in given):
            form = "a list with the list of outputs of each sample"
            raise refusal("Scenario.faults", "found", form, shown(given))
        if len(found) != len(self.expected):
            return (f"expected the outputs of {len(self.expected)} samples, got those of {len(found)}",)
        for index, (arrays, expected) in enumerate(zip(found, self.expected, strict=True)):
            if len(expected) != len(self.outputs):
                ports = len(self.outputs)
                out.append(f"sample {index}: the file has {len(expected)} arrays for {ports} outputs")
                continue
            if len(arrays) != len(expected):
                out.append(f"sample {index}: expected {len(expected)} outputs, got {len(arrays)}")
                continue
            for port, array, right in zip(self.outputs, map(np.asarray, arrays), expected, strict=True):
                if fault := _fault(port, array, right):
                    out.append(f"sample {index}, output '{port.path}': {fault}")
        return tuple(out)


def _fault(port: ScenarioPort, found: _Array, expected: _Array) -> str:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"expected {expected.dtype}{list(expected.shape)}, got {found.dtype}{list(found.shape)}"
    one, two = found.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(two[np.isfinite(two)])
    limit = port.tolerance * (finite.max(initial=0.0) if is_float(port.dtype) else 1.0)
    with np.errstate(invalid="ignore"):
        distance = np.abs(one - two)
    wrong = ~(distance <= limit) & (one != two) & ~(np.isnan(one) & np.isnan(two))
    if not wrong.any():
        return ""
    at = int(np.argmax(np.where(wrong, np.nan_to_num(distance, nan=np.inf), -1)))
    return (
        f"{int(wrong.sum())} of {wrong.size} elements are further than {limit:g} from the expected ones, "
        f"the worst is {found.flat[at]} in place of {expected.flat[at]}"
    )


def write_scenario(result: ExportResult, folder: Path, *, program: str | None) -> None:
    """Writes the scenario of an export: its samples, and the outputs of its lowered program.

    `program` is the file in the parent folder that computes the outputs, if there is one.
    """
    make_folder(folder)
    lowered = result.lowered
    source = lowered.source
    samples = [each for arrays in result.samples for each in read_samples(arrays, source)]
    inputs = [arrays_for(lowered.host, logical_arrays(each, source, source)) for each in samples]
    outputs = raw_runs(lowered, samples)
    graph = lowered.graph
    entries: list[dict[str, Any]] = []
    for index, (given, returned) in enumerate(zip(inputs, outputs, strict=True)):
        files: dict[str, list[dict[str, str]]] = {}
        for side, arrays in (("input", given), ("output", returned)):
            files[f"{side}s"] = [
                _write_array(folder, f"sample{index}.{side}{i}.npy", array) for i, array in enumerate(arrays)
            ]
        entries.append(files)
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "program": program,
        "inputs": [_entry(port, graph.inputs) for port in lowered.inputs],
        "outputs": [
            {**_entry(port, graph.outputs), "tolerance": _tolerance(port)} for port in lowered.outputs
        ],
        "samples": entries,
    }
    write_text(folder / _FILE, json.dumps(content, indent=1) + "\n")


def _sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _write_array(folder: Path, name: str, array: _Array) -> dict[str, str]:
    with whole_file(folder / name) as file:
        np.save(file, np.array(array, order="C"))
    data = (folder / name).read_bytes()
    return {"file": name, "sha256": _sha256(data)}


def _tolerance(port: Port) -> float:
    """Returns 0 for integers, which are exact everywhere; floats may be summed in other orders and dtypes."""
    return _TOLERANCES.get(port.dtype, _TOLERANCE) if is_float(port.dtype) else 0.0


def _entry(port: Port, sides: Sequence[Any]) -> dict[str, Any]:
    is_physical = any(each.physical for each in sides if each.path == port.path)
    shape = port.shape if is_physical else [port.shape[axis] for axis in port.dim_order]
    return {
        "path": port.path or port.name,
        "dtype": port.dtype,
        "shape": list(port.shape),
        "dim_order": list(port.dim_order),
        "image_format": image_format(port, shape) or None,
        "physical": is_physical,
    }


def image_format(port: Port, shape: Sequence[int]) -> str:
    """Returns the Vulkan format of an image with the same memory as an input or output; or empty.

    The channels are innermost in memory. Integers of an image have the scale of the format: SNORM is 1/127
    for 8 bits and 1/32767 for 16, UNORM is 1/255. `shape` is the shape in memory order.
    """
    found = _VULKAN.get((port.dtype, shape[-1]), "") if len(shape) == 4 else ""
    if not found or is_float(port.dtype):
        return found
    qparams = port.qparams
    if qparams is None or qparams.axis is not None or qparams.zero_point:
        return ""
    return found if abs(qparams.scale * _STEPS[port.dtype] - 1) < _SCALE_ERROR else ""


@checked
def load_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Reads the folder ``scenario`` of an export.

    Parameters
    ----------
    path : path
        The folder, or its ``scenario.json``.

    Raises
    ------
    MissingFileError, ReadError
        A file cannot be read.
    InvalidGraph
        The file is damaged, or an array has changed since it was written.

    Examples
    --------
    >>> scenario = tosaic.load_scenario("out/scenario")  # doctest: +SKIP
    >>> scenario.faults([device.run(*inputs) for inputs in scenario.samples])  # doctest: +SKIP
    ()
    """
    place = Path(path)
    folder = place.parent if place.name == _FILE else place
    fields = read_json(_WHERE, read_bytes(_WHERE, folder / _FILE))
    fields.require_format(_FORMAT, _VERSION)
    samples = list(fields.each("samples"))
    ports = {
        "inputs": tuple(_port(each) for each in fields.each("inputs")),
        "outputs": tuple(_port(each, _read_tolerance(each)) for each in fields.each("outputs")),
    }
    arrays = {
        side: tuple(_arrays(folder, list(sample.each(side)), ports[side]) for sample in samples)
        for side in ports
    }
    return Scenario(ports["inputs"], ports["outputs"], arrays["inputs"], arrays["outputs"])


def _read_tolerance(entry: Fields) -> float:
    found = entry.value("tolerance")
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or not 0 <= found < math.inf:
        raise entry.error("tolerance", "a number, 0 or more", found)
    return float(found)


def _port(entry: Fields, tolerance: float = 0.0) -> ScenarioPort:
    order = entry.axes("dim_order")
    if sorted(order) != list(range(len(order))):
        raise entry.error("dim_order", f"each axis from 0 to {len(order) - 1} once", order)
    return ScenarioPort(
        entry.text("path"),
        entry.text("dtype"),
        entry.axes("shape"),
        order,
        str(entry.value("image_format") or ""),
        tolerance,
        entry.flag("physical", otherwise=False),
    )


def _arrays(folder: Path, entries: Sequence[Fields], ports: Sequence[ScenarioPort]) -> tuple[_Array, ...]:
    """Reads the arrays of one side of a sample, in the memory order of their ports."""
    found = [_array(folder, each) for each in entries]
    if len(found) != len(ports):
        return tuple(found)  # a damaged file: `faults` and runs report it
    return tuple(_as_declared(array, port) for array, port in zip(found, ports, strict=True))


def _as_declared(array: _Array, port: ScenarioPort) -> _Array:
    """Returns an array of a file, which is row-major, with the dtype and the memory order of its port."""
    if array.dtype.kind == "V" and port.dtype in ML_DTYPES:  # .npy files do not record these dtypes
        array = array.view(narrow_dtype(port.dtype, _WHERE, f"'{port.path}'"))
    if port.physical or array.ndim != len(port.dim_order):
        return array
    return in_memory_order(array, port.dim_order)


def _array(folder: Path, entry: Fields) -> _Array:
    name = entry.text("file")
    if Path(name).name != name:
        raise entry.error("file", "the name of a file in the folder", name)
    data = read_bytes(_WHERE, folder / name)
    if _sha256(data) != entry.text("sha256"):
        raise invalid(
            _WHERE,
            f"'{name}' is not the array that was written",
            expected=f"the digest {entry.text('sha256')[:12]}...",
        )
    array = load_arrays(folder / name)
    if not isinstance(array, np.ndarray):
        raise refusal(_WHERE, "path", "arrays", name)
    return array
