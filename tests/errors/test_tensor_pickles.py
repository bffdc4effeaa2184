"""Pickles of tensors are interpreted, not executed: other objects are refused before they take memory."""

from __future__ import annotations

import collections
import contextlib
import io
import json
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from tosaic.fx.files.tensor_pickles import read_tensors

GIB = 1 << 30
ROOM = 64 << 20


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def with_pickle(change: Callable[[bytes], bytes], value: Any = None) -> bytes:
    """Returns what `torch.save` writes of three floats, or of `value`, with another pickle."""
    made = io.BytesIO()
    source = zipfile.ZipFile(io.BytesIO(saved(torch.ones(3) if value is None else value)))
    with source, zipfile.ZipFile(made, "w") as archive:
        for name in source.namelist():
            data = source.read(name)
            archive.writestr(name, change(data) if name.endswith("data.pkl") else data)
    return made.getvalue()


def read(data: bytes, most: int = ROOM) -> Any:
    left = most

    def reserve(size: int) -> None:
        nonlocal left
        left -= size
        if left < 0:
            raise ValueError(f"{size} bytes are too many")

    return read_tensors(data, reserve)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for pair in value.items() for each in pair for leaf in leaves(each)]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool),
)


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_and_containers_are_read_as_torch_reads_them(protocol: int) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    marked = torch.ones(2)
    marked.remark = "of the user"  # type: ignore[attr-defined]
    value = (
        [torch.ones(2, 3).to(dtype) for dtype in DTYPES],
        {"views": (base, base[1], base.t(), base[:0], torch.ones(1).expand(5)), "grad": base * 2},
        torch.nn.Parameter(base[0].clone()),
        torch.ones(2, requires_grad=True),
        (marked, torch.float32, torch.Size([1, 2]), torch.device("cpu"), torch.strided),
        (3, -(2**70), 1.5, None, True, "text", complex(1, 2)),
        collections.OrderedDict({"a": {3, 2.5}, (1, "b"): None, torch.int8: (), torch.Size([1]): 1}),
    )
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=protocol)
    found = read(buffer.getvalue())
    # torch's unpickler of tensors alone does not know protocol 4.
    expected = torch.load(io.BytesIO(buffer.getvalue()), weights_only=protocol == 2)
    assert len(leaves(found)) == len(leaves(expected))
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
        assert type(ours) is type(theirs)
        if isinstance(ours, torch.Tensor):
            assert (ours.dtype, ours.stride(), ours.requires_grad) == (
                theirs.dtype,
                theirs.stride(),
                theirs.requires_grad,
            )
            assert ours.storage_offset() == theirs.storage_offset()
            assert ours.untyped_storage().tolist() == theirs.untyped_storage().tolist()
        else:
            assert ours == theirs
    views = found[1]["views"]
    assert views[1].untyped_storage().data_ptr() == views[2].untyped_storage().data_ptr()


def _called(function: str, argument: bytes) -> bytes:
    """Returns a pickle of a call with one argument."""
    return b"\x80\x02c" + function.replace(".", "\n", 1).encode() + b"\n" + argument + b"\x85R."


def _long(value: int) -> bytes:
    data = value.to_bytes(16, "little")
    return b"\x8a" + bytes([len(data)]) + data


def _doubled(levels: int) -> bytes:
    """Returns a pickle of a list of twice the list before, and so on: few bytes, 2 ** levels leaves."""
    steps = [
        b"]q" + bytes([i]) + b"(h" + bytes([i - 1]) + b"h" + bytes([i - 1]) + b"e" for i in range(1, levels)
    ]
    return b"\x80\x02]q\x00" + b"".join(steps) + b"."


EVIL: dict[str, bytes] = {
    "memory without end": with_pickle(
        lambda _: _called("builtins.bytearray", b"\x8a\x06" + bytes(5) + b"\x01")
    ),
    "memory by another name": with_pickle(
        lambda _: _called("__builtin__.bytearray", struct.pack("<cI", b"J", GIB))
    ),
    "a storage that claims more": with_pickle(lambda data: data.replace(b"K\x03tq", b"K\xfftq", 1)),
    "a tensor outside of its storage": with_pickle(
        lambda data: data.replace(b"K\x03\x85q", b"M\xff\xff\x85q", 1)
    ),
    "a tensor with an offset": with_pickle(lambda data: data.replace(b"QK\x00", b"QK\x09", 1)),
    "a tensor of one element, a million times": with_pickle(
        lambda data: data.replace(b"K\x03\x85q", b"J\xff\xff\xff\x7f\x85q", 1).replace(
            b"K\x01\x85q", b"K\x00\x85q", 1
        )
    ),
    "a list in itself": with_pickle(lambda _: b"\x80\x02]q\x00h\x00a."),
    "many leaves": with_pickle(lambda _: _doubled(60)),
    "many levels": with_pickle(lambda _: b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."),
    "a key of many levels": with_pickle(lambda _: b"\x80\x02})" + b"\x85" * 200_000 + b"Ns."),
    "an element of many levels": with_pickle(lambda _: b"\x80\x04\x8f()" + b"\x85" * 200_000 + b"\x90."),
    "a key of many levels in a call": with_pickle(
        lambda _: _called("builtins.set", b"]" + b")" + b"\x85" * 200_000 + b"a")
    ),
    "a key of many leaves": with_pickle(lambda _: b"\x80\x02})" + b"2\x86" * 80 + b"Ns."),
    "keys of one hash": with_pickle(
        lambda _: b"\x80\x02}(" + b"".join(_long(i * ((1 << 61) - 1)) + b"N" for i in range(9, 99)) + b"u."
    ),
    "a huge place in the memo": with_pickle(
        lambda _: b"\x80\x02Nr\xff\xff\xff\x7f" + b"\x8e" + b"\xff" * 8 + b"."
    ),
    "bytes that claim a size": with_pickle(lambda _: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"."),
    "text that claims a size": with_pickle(lambda _: b"\x80\x02X\xff\xff\xff\x7fab."),
    "a call of a class": with_pickle(lambda _: _called("torch.Tensor", b"K\x03")),
    "an attribute of torch": with_pickle(lambda _: _called("torch.load", b"X\x01\x00\x00\x00a")),
    "a function of the system": with_pickle(lambda _: _called("os.system", b"X\x04\x00\x00\x00true")),
    "a state": with_pickle(lambda data: data[:-1] + b"}b."),
    "a pickle without an archive": pickle.dumps([1.0], protocol=2),
    "nothing": b"",
    "a class of its own": saved(torch.nn.ReLU()),
    "a sparse tensor": saved(torch.eye(3).to_sparse()),
}


@pytest.mark.parametrize("kind", EVIL)
def test_anything_else_is_refused_without_memory(kind: str) -> None:
    data = EVIL[kind]
    tracemalloc.start()
    try:
        refused = fault_of(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused is not None
    assert not isinstance(refused, MemoryError | RecursionError)
    assert peak < 16 << 20


def fault_of(data: bytes) -> Exception | None:
    """Returns the error; a damaged pickle may raise any."""
    try:
        read(data)
    except Exception as error:
        return error
    return None


def test_torchs_own_reader_takes_the_memory() -> None:
    """Without this, the tests above would show nothing."""
    small = with_pickle(lambda _: _called("builtins.bytearray", struct.pack("<cI", b"J", 1 << 20)))
    assert len(torch.load(io.BytesIO(small), weights_only=True)) == 1 << 20


# ---- in .pt2 files ----


class Net(torch.nn.Module):
    """Calls an operator without a row, so that torch's loader has to read the file."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logaddexp2(x + self.shift, x)


Entries = dict[str, bytes]


@pytest.fixture(scope="module")
def entries() -> Entries:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(Net().eval(), (torch.ones(2, 3),)), buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def written(path: Path, entries: Entries) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(f"m/{name}", data)
    return path


def with_weight(entries: Entries, change: Callable[[dict[str, Any]], None], data: bytes) -> Entries:
    name = "data/weights/model_weights_config.json"
    document = json.loads(entries[name])
    (row,) = document["config"].values()
    change(row)
    return {**entries, name: json.dumps(document).encode(), f"data/weights/{row['path_name']}": data}


def calls(path: Path) -> list[Callable[[], Any]]:
    x = np.ones((2, 3), np.float32)
    return [
        lambda: tosaic.open_program(path),
        lambda: tosaic.lower(path),
        lambda: tosaic.compare(path, path, (x,)),
        lambda: tosaic.quantize(path, [(x,)], progress=False),
    ]


def test_a_weight_that_is_such_a_pickle_is_refused(entries: Entries, tmp_path: Path) -> None:
    for number, data in enumerate(EVIL.values()):
        changed = with_weight(entries, lambda row: row.update(use_pickle=True), data)
        path = written(tmp_path / f"{number}.pt2", changed)
        for call in calls(path)[:: 1 if number == 0 else 4]:
            with pytest.raises(tosaic.InvalidGraph, match=r"pickled, and is|too large|damaged"):
                call()


def test_sample_inputs_that_are_such_a_pickle_are_left_out(entries: Entries, tmp_path: Path) -> None:
    for number, (kind, data) in enumerate(EVIL.items()):
        path = written(tmp_path / f"{number}.pt2", {**entries, "data/sample_inputs/model.pt": data})
        assert len(tosaic.open_program(path).inputs) == 1, kind
        with contextlib.suppress(tosaic.Error):
            tosaic.opening.sources.load_exported(path)
        with pytest.raises(tosaic.InvalidGraph, match="has no example inputs"):
            tosaic.export_model(path, recipe="tosa-int8", verbose=0)


@pytest.mark.parametrize("data", [b"", struct.pack("<3f", 1, 2, 3)], ids=["no bytes", "one element"])
def test_a_weight_that_claims_more_elements_than_its_entry_has_is_refused(
    data: bytes, entries: Entries, tmp_path: Path
) -> None:
    """torch makes zeros for an entry without bytes, and a stride of 0 repeats one element."""

    def huge(row: dict[str, Any]) -> None:
        row["tensor_meta"].update(
            sizes=[{"as_int": GIB}, {"as_int": 3}], strides=[{"as_int": 0}, {"as_int": 1}]
        )

    path = written(tmp_path / "m.pt2", with_weight(entries, huge, data))
    for call in calls(path):
        tracemalloc.start()
        with pytest.raises(tosaic.InvalidGraph, match="too large to be unpacked or copied"):
            call()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100 << 20
