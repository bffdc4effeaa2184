"""`.pt2` files that use operators and classes of other libraries, opened in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic import open_program

pytest.importorskip("executorch.exir")
pytest.importorskip("torchao")

OPEN = """
import sys
for name in {absent!r}:
    sys.modules[name] = None  # importing it fails
from tosaic import open_program
try:
    program = open_program({file!r})
except Exception as error:
    print(type(error).__name__, error)
else:
    print("opened", sorted({{node.op for node in program.graph.nodes}}))
"""
COMMAND = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
from tosaic.cli import main
sys.exit(main({arguments!r}))
"""


def fresh(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def opened(file: str, folder: Path, absent: Sequence[str] = ()) -> str:
    return fresh(OPEN.format(file=file, absent=tuple(absent)), folder).stdout.strip()


def opened_by_torch(file: str, folder: Path, absent: Sequence[str] = ()) -> str:
    """Returns what opening prints if torch's loader reads the file, as `tosaic.compare` does."""
    code = OPEN.format(file=file, absent=tuple(absent)).replace("open_program", "load_exported")
    code = code.replace("from tosaic import", "from tosaic.opening.sources import")
    return fresh(code, folder).stdout.strip()


def command(arguments: list[str], folder: Path, absent: Sequence[str] = ()) -> Any:
    return fresh(COMMAND.format(arguments=arguments, absent=tuple(absent)), folder)


class Net(nn.Module):
    """A convolution in channels-last memory format, and operators with one result and with several."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x.to(memory_format=torch.channels_last)))
        return torch.max_pool2d(y[:, :4] * y[:, 4:], 2).flatten(1)


@dataclass(frozen=True)
class Files:
    folder: Path
    x: torch.Tensor
    quantized: Any
    edge: Any


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Makes quantized.pt2, converted by ExecuTorch's Arm quantizer, and edge.pt2, in its edge dialect."""
    from executorch.backends.arm.quantizer import TOSAQuantizer, get_symmetric_quantization_config
    from executorch.backends.arm.tosa import TosaSpecification
    from executorch.exir import to_edge
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(5)
    x = torch.randn(1, 3, 8, 8)
    exported = torch.export.export(Net().eval(), (x,))
    quantizer = TOSAQuantizer(TosaSpecification.create_from_string("TOSA-1.0+INT"))
    quantizer.set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(exported.module(), quantizer)
    prepared(x)
    quantized = torch.export.export(convert_pt2e(prepared), (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and ExecuTorch warn about their own code
        edge = to_edge(exported).exported_program()
    torch.export.save(quantized, folder / "quantized.pt2")
    torch.export.save(edge, folder / "edge.pt2")
    return Files(folder, x, quantized, edge)


def test_a_file_of_executorchs_quantizer_opens_in_a_fresh_process(files: Files) -> None:
    text = opened("quantized.pt2", files.folder)
    assert text.startswith("opened")
    assert "'quantize'" in text


def test_a_file_of_executorchs_quantizer_needs_neither_executorch_nor_torchao(files: Files) -> None:
    assert opened("quantized.pt2", files.folder, ["executorch", "torchao"]).startswith("opened")


def test_a_file_of_executorchs_quantizer_lowers_by_the_command(files: Files) -> None:
    done = command(["lower", "quantized.pt2", "--target", "TOSA-1.0+INT", "-o", "q.tosa"], files.folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (files.folder / "q.tosa").stat().st_size > 0


def test_a_file_in_the_edge_dialect_opens_in_a_fresh_process(files: Files) -> None:
    text = opened("edge.pt2", files.folder)
    assert text.startswith("opened")
    assert "'conv'" in text


def test_a_file_in_the_edge_dialect_lowers_by_the_command(files: Files) -> None:
    done = command(["lower", "edge.pt2", "-o", "e.tosa"], files.folder)
    assert done.returncode == 0, done.stderr


def test_a_file_in_the_edge_dialect_needs_no_executorch(files: Files) -> None:
    text = opened("edge.pt2", files.folder, ["executorch", "torch"])
    assert text.startswith("opened")
    done = command(["lower", "edge.pt2", "-o", "n.tosa"], files.folder, ["executorch", "torch"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", ["quantized", "edge"])
def test_a_program_that_is_read_computes_what_the_saved_one_computes(files: Files, form: str) -> None:
    program = open_program(files.folder / f"{form}.pt2")
    expected = getattr(files, form).module()(files.x).detach().numpy()
    assert np.abs(program.run(files.x) - expected).max() <= 1e-5 * np.abs(expected).max()
    live = tosaic.from_exported(getattr(files, form))
    assert np.array_equal(program.run(files.x), live.run(files.x))


# ---- libraries that no table knows ----

LIBRARY = """
import torch
library = torch.library.Library("tosaic_test_ops", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
torch.library.register_fake("tosaic_test_ops::twice", lambda x: torch.empty_like(x), lib=library)
"""


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with custom.pt2, whose only operator is in no table of libraries."""
    folder = tmp_path_factory.mktemp("custom")
    done = fresh(
        LIBRARY
        + "class Net(torch.nn.Module):\n"
        + "    def forward(self, x):\n"
        + "        return torch.ops.tosaic_test_ops.twice(x)\n"
        + "torch.export.save(torch.export.export(Net(), (torch.ones(2),)), 'custom.pt2')\n",
        folder,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_operators_of_an_unknown_library_become_opaque_nodes(custom: Path) -> None:
    assert opened("custom.pt2", custom) == "opened ['opaque']"


def test_torch_needs_the_library_and_names_it(custom: Path) -> None:
    """A script in the working directory is not imported, even if it has the name of the library."""
    (custom / "tosaic_test_ops.py").write_text("print('this must not run')")
    assert opened_by_torch("custom.pt2", custom) == (
        "InvalidGraph [open] 'custom.pt2' calls operators of 'tosaic_test_ops', such as "
        "tosaic_test_ops.twice.default: expected a library that registers them, got none. "
        "Import the library that registers them before the file is opened."
    )


def test_an_installed_package_of_that_name_is_imported(custom: Path, tmp_path: Path) -> None:
    (tmp_path / "tosaic_test_ops").mkdir()
    (tmp_path / "tosaic_test_ops" / "__init__.py").write_text(LIBRARY)
    metadata = tmp_path / "tosaic_test_ops-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tosaic-test-ops\nVersion: 1.0\n")
    (metadata / "top_level.txt").write_text("tosaic_test_ops\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + OPEN.format(file="custom.pt2", absent=())
    assert fresh(code, custom).stdout.strip() == "opened ['opaque']"


def test_a_library_that_was_imported_before_needs_no_table(custom: Path) -> None:
    code = LIBRARY + OPEN.format(file="custom.pt2", absent=())
    assert fresh(code, custom).stdout.strip() == "opened ['opaque']"


# ---- classes of arguments and results ----

CLASS = """
import dataclasses, torch
@dataclasses.dataclass
class Result:
    y: torch.Tensor
torch.export.register_dataclass(Result, serialized_type_name="my_models.outputs.Result")
class Net(torch.nn.Module):
    def forward(self, x):
        return Result(x * 2)
torch.export.save(torch.export.export(Net(), (torch.ones(2),)), 'result.pt2')
"""


def test_torch_needs_a_class_to_be_registered_and_names_it(tmp_path: Path) -> None:
    assert fresh(CLASS, tmp_path).returncode == 0
    assert opened("result.pt2", tmp_path) == "opened ['mul']"
    assert opened_by_torch("result.pt2", tmp_path) == (
        "InvalidGraph [open] 'result.pt2' has arguments or results of the class my_models.outputs.Result: "
        "expected a library that registers them, got none. Import the library that registers them before the "
        "file is opened."
    )


def test_results_of_transformers_are_read_in_a_fresh_process(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    code = """
import torch
from transformers.modeling_outputs import BaseModelOutput
class Net(torch.nn.Module):
    def forward(self, x):
        return BaseModelOutput(last_hidden_state=x * 2)
torch.export.save(torch.export.export(Net(), (torch.ones(2),)), 'result.pt2')
"""
    done = fresh(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert opened("result.pt2", tmp_path) == "opened ['mul']"
    assert opened("result.pt2", tmp_path, ["transformers"]) == "opened ['mul']"
    text = opened_by_torch("result.pt2", tmp_path, ["transformers"])
    assert text.endswith("pip install transformers.")
    assert "\n" not in text


# ---- damaged files ----


def repacked(source: Path, target: Path, change: Any) -> str:
    """Writes a copy of the archive in which `change` has changed the program's JSON."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as out:
        for name in archive.namelist():
            data = archive.read(name)
            out.writestr(name, change(data) if name.endswith("models/model.json") else data)
    return str(target)


def without(key: str) -> Any:
    def change(data: bytes) -> bytes:
        document = json.loads(data)
        del document[key]
        return json.dumps(document).encode()

    return change


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda data: data[: len(data) // 2], "the end of the text at "),
        (lambda _: b"[]", ""),
        (lambda _: b"null", ""),
        (lambda _: b"\xff\xfe", "byte 255 at 0"),
        (without("graph_module"), ""),
        (without("schema_version"), ""),
        (lambda data: data.replace(b'"major": ', b'"major": 9'), "expected 8.x, got 98."),
        (lambda data: data.replace(b"aten.relu.", b"aten.no_such_relu."), "no_such_relu"),
    ],
)
def test_a_damaged_program_is_refused_in_one_line(
    files: Files, tmp_path: Path, capfd: pytest.CaptureFixture[str], change: Any, got: str
) -> None:
    damaged = repacked(files.folder / "quantized.pt2", tmp_path / "bad.pt2", change)
    with pytest.raises(tosaic.InvalidGraph) as error:
        open_program(damaged)
    text = str(error.value)
    assert text.startswith(("[pt2] ", "[open] "))
    assert "'bad.pt2'" in text
    assert got in text
    assert "\n" not in text
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x03\x04" + bytes(range(256)), b"hello", bytes(5000)],
    ids=["empty", "zip", "text", "zeros"],
)
def test_a_file_that_is_not_an_archive_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad.pt2").write_bytes(data)
    with pytest.raises(tosaic.InvalidGraph) as error:
        open_program(tmp_path / "bad.pt2")
    assert str(error.value).startswith("[pt2] 'bad.pt2': it is no zip archive")
    assert "\n" not in str(error.value)


def test_an_archive_without_a_program_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3)}, tmp_path / "weights.pt2")
    with pytest.raises(tosaic.InvalidGraph) as error:
        open_program(tmp_path / "weights.pt2")
    assert str(error.value).startswith("[pt2] 'weights.pt2': an archive without an exported program")


def test_a_truncated_file_is_refused_by_our_error(files: Files, tmp_path: Path) -> None:
    data = (files.folder / "quantized.pt2").read_bytes()
    for size in range(0, len(data) - 1, len(data) // 25):
        (tmp_path / "cut.pt2").write_bytes(data[:size])
        with pytest.raises(tosaic.InvalidGraph):
            open_program(tmp_path / "cut.pt2")
