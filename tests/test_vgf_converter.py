"""The VGF model-converter accepts our FP files: networks, and a sample of files of one operator and dtype.

tests/full/test_vgf_converter.py tests all files of one operator and dtype.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tosaic
from models.zoo import build
from tosaic import _core
from tosaic.base.target import Target
from tosaic.lowering.support import canonical_cells, one_op_graph, sample_of

OPS = {op.name: op for op in _core.ops() if not op.is_tosa}
EXTENSIONS = {"bf16": ("bf16",)}
CONTROL_FLOW = ("cond", "while_loop")
STEP = 7  # one file in 7 is tested; not a multiple of the number of dtypes
FILES = [
    (name, cell.dtype)
    for name, op in OPS.items()
    for cell in canonical_cells(op)
    if "FP" in cell.targets and cell.dtype in ("f32", "f16", "bf16") and name not in CONTROL_FLOW
]


def converter() -> str:
    """Finds the program model-converter next to the interpreter or on PATH, or skips the test."""
    beside = Path(sys.executable).with_name("model-converter")
    found = str(beside) if beside.exists() else shutil.which("model-converter")
    if found is None:
        pytest.skip("the package ai_ml_sdk_model_converter is not installed")
    return found


def convert(data: bytes, folder: Path) -> str:
    """Converts a file; returns an empty text if the converter wrote a VGF file, else its error message."""
    source, made = folder / "model.tosa", folder / "model.vgf"
    source.write_bytes(data)
    done = subprocess.run(
        [converter(), "--input", source, "--output", made], capture_output=True, text=True, check=False
    )
    if done.returncode == 0 and made.exists() and made.stat().st_size > 0:
        return ""
    return done.stderr or done.stdout or f"exit code {done.returncode}"


@pytest.mark.filterwarnings("ignore")  # transformers and torch.export warn about their own code
@pytest.mark.parametrize("name", ["ds_cnn", "mobilenet_v2_small", "llama2_small"])
def test_a_network_is_converted(name: str, tmp_path: Path) -> None:
    lowered = tosaic.lower(build(name).export())
    assert convert(lowered.to_bytes(), tmp_path) == ""


def convert_one(name: str, dtype: str, folder: Path) -> str:
    """Converts a file of one operator, as `convert` does."""
    sample = sample_of(OPS[name])
    graph = one_op_graph(OPS[name], dtype, sample)
    target = Target(("FP",), (*EXTENSIONS.get(dtype, ()), *sample.extensions))
    lowered = _core.lower(graph, pipeline=str(target))
    return convert(_core.serialize(lowered.tosa), folder)


@pytest.mark.parametrize(("name", "dtype"), FILES[::STEP])
def test_a_file_of_one_operator_is_converted(name: str, dtype: str, tmp_path: Path) -> None:
    assert convert_one(name, dtype, tmp_path) == ""


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_the_converter_refuses_control_flow(name: str, tmp_path: Path) -> None:
    graph = one_op_graph(OPS[name], "f32", sample_of(OPS[name]))
    lowered = _core.lower(graph, pipeline="TOSA-1.0+FP+INT+cf")
    assert "explicitly marked illegal" in convert(_core.serialize(lowered.tosa), tmp_path)


def test_the_converter_refuses_a_file_that_is_not_a_model(tmp_path: Path) -> None:
    assert convert(b"not a model", tmp_path) != ""
