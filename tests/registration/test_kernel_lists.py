"""Lists of kernels: compared with what ExecuTorch's own tools read and write for the same files."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

import tosaic  # noqa: E402
import yaml  # noqa: E402
from executorch.codegen.tools import (  # noqa: E402
    gen_all_oplist,
    gen_oplist,
    gen_selected_op_variants,
    gen_selected_prim_ops,
)
from executorch.exir import to_edge  # noqa: E402
from pte.calls import portable_file  # noqa: E402
from pte.examples import EXAMPLES, make  # noqa: E402
from torch import nn  # noqa: E402
from torchgen.selective_build.selector import SelectiveBuilder  # noqa: E402
from tosaic.pte.kernel_names import KernelUse, KernelVariant  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

_DELEGATED = {"tosa-fp"}


def _file(folder: Path, name: str) -> Path:
    path = folder / f"{name}.pte"
    path.write_bytes(make(name).data)
    return path


def _of_executorch(path: Path) -> dict[str, Any]:
    """Returns what ExecuTorch's tool writes for a file."""
    written = path.with_suffix(".theirs.yaml")
    with contextlib.redirect_stdout(io.StringIO()):
        gen_oplist.gen_oplist(written, model_file_path=str(path))
    return yaml.safe_load(written.read_text())


class Mixed(nn.Module):
    """Two groups, and operators of the host between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(torch.relu(self.first(x)).double()).float()
        return self.second(y)


def _mixed() -> tuple[torch.export.ExportedProgram, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    args = (torch.randn(1, 3, 6, 6),)
    return torch.export.export(Mixed().eval(), args), args


# ---- one file ----


@pytest.mark.parametrize("name", sorted({*EXAMPLES} - _DELEGATED))
def test_the_list_is_what_executorchs_tool_writes_for_the_same_file(name: str, tmp_path: Path) -> None:
    path = _file(tmp_path, name)
    kernels = tosaic.registration.kernel_list(path)
    ours = yaml.safe_load(kernels.to_yaml())
    assert ours.pop("debug_info") == [str(path)]  # only our list has it; the tool has it for operators
    assert ours == _of_executorch(path)


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.rfft(x)) * 2


@pytest.mark.filterwarnings("ignore")
def test_calls_with_complex_tensors_are_in_the_list(tmp_path: Path) -> None:
    """Before, the reader of files had no complex dtypes, and recipe cortex-m failed."""
    path = tmp_path / "spectrum.pte"
    path.write_bytes(portable_file(Spectrum(), (torch.randn(1, 64),)))
    kernels = tosaic.registration.kernel_list(path)
    assert kernels["aten::_fft_r2c.out"].dtypes == ("complex64", "float32")
    ours = yaml.safe_load(kernels.to_yaml())
    ours.pop("debug_info")
    assert ours == _of_executorch(path)
    with pytest.raises(tosaic.UnsupportedOp, match="has dtype complex64, which graphs do not have"):
        tosaic.load_pte(path).run(torch.randn(1, 64))


def test_calls_are_counted_by_method_and_delegates_by_backend(tmp_path: Path) -> None:
    exported, _ = _mixed()
    split = tosaic.lower(exported, target="TOSA-1.0+FP", unsupported="split")
    tosaic.save_pte({"npu": split, "cpu": tosaic.from_exported(exported)}, tmp_path / "two.pte")
    kernels = tosaic.registration.kernel_list(tmp_path / "two.pte", names=["two"])
    convolution, copy = kernels["aten::convolution.out"], kernels["dim_order_ops::_to_dim_order_copy.out"]
    assert (convolution.calls, convolution.users) == (2, (("two", "cpu"),))
    assert copy.users == (("two", "cpu"), ("two", "npu"))
    assert copy.dtypes == ("float32", "float64")
    assert (0, 1, 2, 3) in copy.dim_orders
    orders = {"cpu": (0, 1, 2, 3), "npu": (0, 2, 3, 1)}  # convolutions of the groups want channels last
    assert kernels["aten::sigmoid.out"].uses == tuple(
        KernelUse("aten::sigmoid.out", KernelVariant(("float64",) * 3, (order,) * 3), "two", method, 1)
        for method, order in orders.items()
    )
    assert kernels.backends == ("TOSABackend",)
    (backend,) = kernels.backend_uses
    assert (backend.source, backend.method, backend.delegates) == ("two", "npu", 2)
    assert "aten::mul.out" not in kernels
    with pytest.raises(tosaic.InvalidGraph, match=r"no program calls this operator: expected aten::.*mul"):
        kernels["aten::mul.out"]


# ---- programs ----


def test_a_program_has_the_list_of_the_file_that_would_be_written(tmp_path: Path) -> None:
    exported, _ = _mixed()
    split = tosaic.lower(exported, target="TOSA-1.0+FP", unsupported="split")
    split.save(tmp_path / "split.pte")
    expected = tosaic.registration.kernel_list(tmp_path / "split.pte", names=["program"])
    assert len(expected) > 0
    assert tosaic.registration.kernel_list(split) == expected
    assert tosaic.registration.kernel_list((tmp_path / "split.pte").read_bytes()) == expected
    named = tosaic.registration.kernel_list(tosaic.load_pte(tmp_path / "split.pte"))
    assert named.sources == ("split.pte",)
    methods = {"npu": split, "cpu": tosaic.from_exported(exported)}
    tosaic.save_pte(methods, tmp_path / "two.pte")
    assert tosaic.registration.kernel_list(methods) == tosaic.registration.kernel_list(
        tmp_path / "two.pte", names=["program"]
    )


def test_groups_for_devices_are_listed_without_their_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    exported, args = _mixed()
    quantized = tosaic.quantize(exported, [args])
    split = tosaic.lower(quantized, unsupported="split", claimants=["ethos-u55-128"])

    def refuse(*_: Any) -> bytes:
        raise AssertionError("Vela was called")

    monkeypatch.setattr("tosaic.devices.vela_cost.compile_with_summary", refuse)
    monkeypatch.setattr("tosaic.devices.device_compilers.require_tool", refuse)
    kernels = tosaic.registration.kernel_list(split)
    assert kernels.backends == ("EthosUBackend",)
    assert "aten::sigmoid.out" in kernels
    with pytest.raises(AssertionError, match="Vela was called"):
        split.save("never.pte")


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
def test_program_managers_of_executorch_have_the_list_of_their_file(tmp_path: Path) -> None:
    exported, _ = _mixed()
    edge = to_edge(exported)
    kernels = tosaic.registration.kernel_list(edge)
    lowered = edge.to_executorch()  # still possible: the list was made from a copy
    (tmp_path / "model.pte").write_bytes(lowered.buffer)
    assert tosaic.registration.kernel_list(lowered) == kernels
    assert kernels == tosaic.registration.kernel_list(tmp_path / "model.pte", names=["program"])
    assert "aten::sigmoid.out" in kernels


# ---- several programs ----


def test_the_union_is_what_executorchs_tool_merges(tmp_path: Path) -> None:
    names = ["portable", "state", "movement"]
    paths = [_file(tmp_path, name) for name in names]
    lists = []
    for path in paths:
        lists.append(path.with_suffix(".yaml"))
        tosaic.registration.kernel_list(path).save(lists[-1])
    (tmp_path / "lists.txt").write_text("\n".join(map(str, lists)))
    with contextlib.redirect_stdout(io.StringIO()):
        gen_all_oplist.main(
            ["--output_dir", str(tmp_path), "--model_file_list_path", f"@{tmp_path / 'lists.txt'}"]
        )
    theirs = SelectiveBuilder.from_yaml_path(str(tmp_path / "selected_operators.yaml"))
    ours = SelectiveBuilder.from_yaml_str(tosaic.registration.kernel_list(paths).to_yaml())
    assert ours.et_kernel_metadata == theirs.et_kernel_metadata
    assert sorted(ours.operators) == sorted(theirs.operators)
    assert len(ours.operators) < sum(len(tosaic.registration.kernel_list(path)) for path in paths)


def test_a_union_has_the_calls_of_both_and_counts_a_program_once(tmp_path: Path) -> None:
    a, b = (tosaic.registration.kernel_list(_file(tmp_path, name)) for name in ("portable", "channels-last"))
    both = a | b
    assert (
        both
        == b | a
        == tosaic.registration.kernel_list([tmp_path / "portable.pte", tmp_path / "channels-last.pte"])
    )
    assert both | a == both
    assert {*both.operators} == {*a.operators, *b.operators}
    assert sum(kernel.calls for kernel in both) == sum(kernel.calls for each in (a, b) for kernel in each)
    with pytest.raises(TypeError):
        a | "portable.pte"


# ---- a build from the list ----


def test_executorchs_selector_selects_these_kernels_and_no_others(tmp_path: Path) -> None:
    kernels = tosaic.registration.kernel_list([_file(tmp_path, "portable"), _file(tmp_path, "movement")])
    kernels.save(tmp_path / "selected_operators.yaml")
    selector = SelectiveBuilder.from_yaml_path(str(tmp_path / "selected_operators.yaml"))
    import executorch.kernels.portable

    table = Path(executorch.kernels.portable.__file__).with_name("functions.yaml")
    entries = yaml.safe_load(table.read_text())
    available = {each.get("op") or each["func"].partition("(")[0] for each in entries}
    available = {name if "::" in name else f"aten::{name}" for name in available}
    selected = {name for name in available if selector.is_operator_selected(name)}
    assert selected == {*kernels.operators} & available
    assert {name for name in kernels.operators if name.startswith("aten::")} <= selected
    for name in kernels.operators:
        assert selector.et_get_selected_kernels(name, ["default"]) == ["default"]


def test_a_build_with_dtype_selection_has_the_dtypes_of_the_calls(tmp_path: Path) -> None:
    kernels = tosaic.registration.kernel_list(_file(tmp_path, "movement"))
    kernels.save(tmp_path / "dtypes.yaml")
    kernels.save(tmp_path / "all.yaml", dtypes=False)
    headers = []
    for name in ("dtypes", "all"):
        gen_selected_op_variants.write_selected_op_variants(str(tmp_path / f"{name}.yaml"), str(tmp_path))
        headers.append((tmp_path / "selected_op_variants.h").read_text())
    assert headers[0].count("ScalarType::Long") == 1  # the indices of max
    assert headers[0].count("ScalarType::Float") == len(kernels)
    assert "ScalarType::Float" not in headers[1]
    assert headers[1].count('compare("') == len(kernels)


def test_operators_of_the_runtime_itself_are_selected_too(tmp_path: Path) -> None:
    kernels = tosaic.registration.kernel_list(_file(tmp_path, "loop"))
    kernels.save(tmp_path / "selected_operators.yaml")
    names = gen_selected_prim_ops.read_prim_op_names_from_yaml(str(tmp_path / "selected_operators.yaml"))
    assert names == list(kernels.operators)
    assert any(name.startswith("executorch_prim::") for name in names)


@pytest.mark.parametrize(
    "name", ["a: b", "#x", "yes", "1.5", "x ", "", 'q"\\', "é\x7f\u2028😀", "- a", "{a}", "~"]
)
def test_names_that_yaml_would_read_otherwise_are_quoted(name: str) -> None:
    variant = KernelVariant(("float32",), ((0, 1),))
    kernels = tosaic.registration.KernelList((KernelUse(name, variant, name, "forward", 2),))
    read = yaml.safe_load(kernels.to_yaml())
    assert read["et_kernel_metadata"] == {name: ["v1/6;0,1"]}
    assert read["debug_info"] == read["operators"][name]["debug_info"] == [name]


# ---- reports and wrong input ----


def test_the_report_shows_kernels_backends_and_who_uses_them(tmp_path: Path) -> None:
    kernels = tosaic.registration.kernel_list(
        [_file(tmp_path, "portable"), _file(tmp_path, "tosa-int")], names=["a", "b"]
    )
    text = str(kernels)
    assert text.startswith(f"{len(kernels)} kernels for 2 programs\n")
    assert "aten::convolution.out" in text
    assert "TOSABackend" in text
    assert "kernel key" not in text
    assert "v1/6;0,1,2,3|6;0,1,2,3" in kernels.report().full_text
    data = kernels.report().data
    assert [each["operator"] for each in data["kernels"]] == list(kernels.operators)
    assert sum(each["calls"] for each in data["kernels"]) == sum(kernel.calls for kernel in kernels)
    assert "<table" in kernels.report().html
    assert '"EthosUBackend"' not in kernels.report().json


def test_a_program_with_nothing_on_the_host_has_an_empty_list_that_is_not_written(tmp_path: Path) -> None:
    (name,) = _DELEGATED
    kernels = tosaic.registration.kernel_list(_file(tmp_path, name))
    assert (len(kernels), list(kernels), kernels.backends) == (0, [], ("TOSABackend",))
    assert str(kernels).startswith("no kernels for 1 program: nothing is left to the host\n")
    with pytest.raises(
        tosaic.InvalidGraph, match=r"no operator is left to the host.*got delegates of TOSABackend"
    ):
        kernels.save(tmp_path / "selected_operators.yaml")
    assert not (tmp_path / "selected_operators.yaml").exists()


def test_what_has_no_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tosaic.MissingFileError, match=r"there is no file '.*none\.pte'"):
        tosaic.registration.kernel_list(tmp_path / "none.pte")
    (tmp_path / "words.pte").write_text("hello, world: this is no program")
    with pytest.raises(tosaic.InvalidGraph, match="pte"):
        tosaic.registration.kernel_list(tmp_path / "words.pte")
    exported, args = _mixed()
    for wrong in (exported.graph_module, 3, None, [], {}, [tmp_path, 3], {"forward": "a.pte"}):
        with pytest.raises(tosaic.InvalidGraph):
            tosaic.registration.kernel_list(wrong)
    for names in (["a", "b"], "a", [""], [3]):
        with pytest.raises(tosaic.InvalidGraph, match="a name for each program, 1 in all"):
            tosaic.registration.kernel_list(tosaic.from_exported(exported), names=names)
    quantized = tosaic.quantize(exported, [args])
    split = tosaic.lower(quantized, unsupported="split", claimants=["neutron"])
    with pytest.raises(tosaic.UnsupportedOp, match="is for neutron, which does not read TOSA"):
        tosaic.registration.kernel_list(split)
