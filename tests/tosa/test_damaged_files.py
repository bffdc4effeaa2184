"""Damaged files, texts and archives, and `.tosa` files of other compilers: the errors of the reader; objects
that were read from a damaged file fail only with our errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tosaic
from models.delegates import delegates_of, lower_with_executorch, run_file_on_reference_model
from models.quantize import converted
from tosa_files.mutating import FILES, TEXTS, damaged, damaged_archive, damaged_text, drive, drive_text
from tosaic import _core
from tosaic.api.calls import open_program

SEEDS = 40
CHANNELS = 12  # more than the bytes of a padded constant of one element

VARIABLE = """tosaic 1
graph @forward stage=tosa {
  input %x: f32[3] path="x"
  () = tosa.variable() {name="counted", dtype=f32, shape=[3]}
  %before: f32[3] = tosa.variable_read() {name="counted", dtype=f32, shape=[3]}
  %after: f32[3] = tosa.add(%before, %x)
  () = tosa.variable_write(%after) {name="counted", dtype=f32, shape=[3]}
  return %before path="out"
}
"""
CUSTOM = """tosaic 1
graph @forward stage=tosa {
  input %x: f32[3] path="x"
  %y: f32[3] = tosa.custom(%x) {operator_name="twice", domain_name="lab", implementation_attrs="bytes"}
  return %y path="out"
}
"""
BRANCH = """tosaic 1
graph @forward stage=tosa {
  input %p: bool[1] path="p"
  input %x: f32[3] path="x"
  %r: f32[3] = tosa.cond_if(%p, %x) loc(#0) regions {
    graph @first stage=tosa {
      input %a: f32[3]
      %sum: f32[3] = tosa.add(%a, %a)
      return %sum
    }
    graph @second stage=tosa {
      input %a: f32[3]
      %difference: f32[3] = tosa.sub(%a, %a)
      return %difference
    }
  }
  return %r path="out"
}
origins {
  #0 = "chosen" target="aten.cond" module="net" file="model.py" line=3
}
"""


def opened(data: bytes, folder: Path) -> tosaic.Program:
    path = folder / "given.tosa"
    path.write_bytes(data)
    return open_program(path)


@pytest.mark.parametrize(
    ("text", "name", "what"),
    [
        (CUSTOM, b"y", "the name of a tensor"),
        (CUSTOM, b"twice", "operator_name"),
        (CUSTOM, b"lab", "domain_name"),
        (VARIABLE, b"counted", "the name of a"),
        (BRANCH, b"first", "the name of a region"),
        (BRANCH, b"difference", "the name of a tensor"),
        (BRANCH, b"chosen | aten.cond", "the location"),
    ],
)
def test_a_name_that_is_not_utf8_is_refused_by_the_reader(
    text: str, name: bytes, what: str, tmp_path: Path
) -> None:
    data = _core.serialize(_core.Graph.parse(text))
    size = len(name).to_bytes(4, "little") if b"|" not in name else b""
    assert size + name in data
    broken = data.replace(size + name, size + b"\xff" + name[1:])
    with pytest.raises(tosaic.InvalidGraph, match=f"^\\[tosa\\] .*{what}.* is not UTF-8") as error:
        opened(broken, tmp_path)
    assert "\\xff" in str(error.value)


def test_bytes_of_a_custom_operator_need_not_be_text(tmp_path: Path) -> None:
    data = _core.serialize(_core.Graph.parse(CUSTOM)).replace(b"bytes", b"\xffyt\x00s")
    program = opened(data, tmp_path)
    (node,) = program.graph.nodes
    assert node.attrs["implementation_attrs"].encode("utf-8", "surrogateescape") == b"\xffyt\x00s"
    assert "\\xffyt\\x00s" in program.text()
    assert str(program)
    assert _core.serialize(_core.Graph.parse(program.text())) == data
    with pytest.raises(tosaic.UnsupportedOp, match=r"lab\.twice"):
        program.run(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    "line",
    [
        '%"a\\xff": f32[3] = tosa.add(%x, %x)',
        '%a: f32[3] = tosa.custom(%x) {operator_name="\\xff", domain_name="b", implementation_attrs=""}',
    ],
)
def test_a_name_in_a_text_that_is_not_utf8_is_refused_by_the_parser(line: str) -> None:
    text = (
        f'tosaic 1\ngraph @f stage=tosa {{\n  input %x: f32[3] path="x"\n  {line}\n  return %x path="o"\n}}\n'
    )
    with pytest.raises(tosaic.InvalidGraph, match="is not UTF-8"):
        _core.Graph.parse(text)


@pytest.mark.parametrize(
    "extents",
    [(2**31 - 1,) * 3, (2**31 - 1, 2**31 - 1, 2), (2**30, 2**30, 7), (2**21 + 1, 2**21 + 3, 2**22 - 1)],
)
def test_extents_whose_product_overflows_are_refused_by_the_reader(
    extents: tuple[int, ...], tmp_path: Path
) -> None:
    shape = "[" + ",".join(map(str, (5, 6, 7))) + "]"
    for body in ("tosa.add(%x, %x)", "tosa.tile(%x) {shape=[1,1,1]}", "tosa.identity(%x)"):
        text = f"""tosaic 1
graph @forward stage=tosa {{
  input %x: f32{shape} path="x"
  %y: f32{shape} = {body}
  return %y path="out"
}}
"""
        data = _core.serialize(_core.Graph.parse(text))
        before, after = (np.array(dims, np.int32).tobytes() for dims in ((5, 6, 7), extents))
        assert data.count(before) >= 2
        with pytest.raises(tosaic.InvalidGraph, match=r"^\[tosa\] .*tensor '[xy]' is too large"):
            opened(data.replace(before, after), tmp_path)


def test_results_larger_than_any_memory_are_refused_by_the_reader(tmp_path: Path) -> None:
    text = """tosaic 1
graph @forward stage=tosa {
  input %x: f32[5,6,7] path="x"
  %y: f32[10,12,14] = tosa.tile(%x) {shape=[2,2,2]}
  return %y path="out"
}
"""
    data = _core.serialize(_core.Graph.parse(text))
    huge = (2**30 // 5, 2**30 // 6, 2**30 // 7)
    results = tuple(extent * times for extent, times in zip((5, 6, 7), huge, strict=True))
    for (before, after), dtype in (
        (((10, 12, 14), results), np.int32),
        (((2, 2, 2), huge), np.int64),
    ):
        pattern = np.array(before, dtype).tobytes()
        assert pattern in data
        data = data.replace(pattern, np.array(after, dtype).tobytes())
    with pytest.raises(
        tosaic.InvalidGraph, match=r"^\[tosa\] operator \d+ \(TILE\): .*the result is too large"
    ):
        opened(data, tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_fails_only_with_our_errors(name: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        drive(damaged(name, seed), tmp_path)


@pytest.mark.parametrize("name", TEXTS)
def test_a_damaged_text_fails_only_with_our_errors(name: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        drive_text(damaged_text(name, seed), tmp_path)


def test_a_damaged_archive_fails_only_with_our_errors(tmp_path: Path) -> None:
    for seed in range(SEEDS):
        drive(damaged_archive(seed, tmp_path), tmp_path)


def test_undamaged_files_are_read_and_used(tmp_path: Path) -> None:
    for text in (CUSTOM, VARIABLE, BRANCH):
        assert drive(_core.serialize(_core.Graph.parse(text)), tmp_path)


# ---- files of other compilers ----


class _Depthwise(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, groups=CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


@pytest.fixture(scope="module")
def depthwise() -> tuple[bytes, torch.Tensor]:
    """Returns the file that ExecuTorch's Arm backend writes for a depthwise convolution, and an input."""
    torch.manual_seed(0)
    x = torch.randn(1, CHANNELS, 8, 8)
    program = converted(_Depthwise(), [(x,)], "arm")
    (file,) = delegates_of(lower_with_executorch(program, "TOSA-1.0+INT"))
    return file, torch.randint(-128, 128, (1, CHANNELS, 8, 8), dtype=torch.int8)


@pytest.mark.filterwarnings("ignore")
def test_equal_weight_zero_points_of_a_depthwise_convolution_are_read_as_one(
    depthwise: tuple[bytes, torch.Tensor], tmp_path: Path
) -> None:
    file, x = depthwise
    program = opened(file, tmp_path)
    (remark,) = program.diagnostics
    assert remark.rule == "repeated-zero-point"
    assert "(DEPTHWISE_CONV2D): the 12 elements of weight_zp, one a channel, are all 0" in remark.message
    assert "repeated-zero-point" in program.report().full_text
    given = x.reshape(program.inputs[0].shape)
    (expected,) = run_file_on_reference_model(file, [given])
    np.testing.assert_array_equal(program.run(given), expected)
    again = tosaic.lower(program, target="TOSA-1.0+INT")
    assert opened(again.to_bytes(), tmp_path).diagnostics == ()


@pytest.mark.filterwarnings("ignore")
def test_weight_zero_points_that_differ_by_channel_are_refused_by_name(
    depthwise: tuple[bytes, torch.Tensor], tmp_path: Path
) -> None:
    file, _ = depthwise
    graph = _core.deserialize(file)
    at = _zero_points(file)
    broken = file[: at + 2] + b"\x03" + file[at + 3 :]
    with pytest.raises(
        tosaic.UnsupportedOp,
        match=r"\(DEPTHWISE_CONV2D\): weight_zp differs by channel: expected one zero point for all "
        r"channels, got 0 for channel 0 and 3 for channel 2",
    ):
        opened(broken, tmp_path)
    assert graph.nodes


def _zero_points(file: bytes) -> int:
    """Returns the offset in the file of the elements of the depthwise convolution's weight zero point."""
    from tosa.Op import Op
    from tosa.TosaGraph import TosaGraph

    block = TosaGraph.GetRootAs(file, 0).Regions(0).Blocks(0)
    operators = [block.Operators(i) for i in range(block.OperatorsLength())]
    (conv,) = (op for op in operators if op.Op() == Op.DEPTHWISE_CONV2D)
    name = conv.Inputs(4)
    (tensor,) = (t for i in range(block.TensorsLength()) if (t := block.Tensors(i)).Name() == name)
    return int(tensor._tab.Vector(tensor._tab.Offset(10)))
