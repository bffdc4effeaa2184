"""Kernel calls that tosaic writes: ExecuTorch's runtime computes what torch computes, and so does the reader.

`tests/full/pte_kernels.py` tries all overloads with more calls.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("executorch")

import torch
import tosaic
from operators.running import in_children
from operators.table import ROWS as OVERLOADS
from tosaic.pte.kernels import ROWS

from pte.calls import run_in_executorch
from pte.written_calls import Written, try_written

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

_CALLS = 3
_PATIENCE = 240.0
_OTHER_NAMES = {
    "adaptive_avg_pool": "adaptive_avg_pool2d",
    "avg_pool": "avg_pool2d",
    "batch_norm": "_native_batch_norm_legit_no_training",
    "conv": "conv2d",
    "dequantize": "quantized_decomposed::dequantize_per_channel",
    "grid_sample": "grid_sampler_2d",
    "left_shift": "bitwise_left_shift.Tensor",
    "max_pool": "max_pool2d",
    "quantize": "quantized_decomposed::quantize_per_tensor",
    "resize": "upsample_bilinear2d.vec",
    "right_shift": "bitwise_right_shift.Tensor",
    "split": "split.Tensor",
    "where": "where.self",
    "cast": "to.dtype",
}
"""Overloads of operators that torch has under another name."""
_COMPOSITES = ("hardswish", "rms_norm", "scaled_dot_product_attention", "lstm.input", "triu")
"""Without a kernel: written by their expansion."""
_OTHER_KERNELS = {"sign": "the sign of NaN is NaN, and 0 in torch"}
"""Kernels of ExecuTorch that do not compute what torch computes."""


def _overload(operator: str) -> str:
    """Returns an overload of torch that becomes the operator."""
    known = _OTHER_NAMES.get(operator, operator)
    if known in OVERLOADS:
        return known
    return next(name for name in OVERLOADS if name.partition(".")[0] == known)


def test_each_row_and_expansions_in_executorchs_runtime() -> None:
    names = sorted({_overload(operator) for operator in ROWS} | set(_COMPOSITES))
    jobs = [(name, lambda _, name=name: try_written(name, _CALLS)) for name in names]
    found = dict(in_children(jobs, 2, _PATIENCE))
    wrong = {
        name: tried if isinstance(tried, str) else tried.failure or tried.refused
        for name, tried in found.items()
        if not isinstance(tried, Written) or tried.failure or tried.refused
    }
    assert all(text.startswith("runtime: ") for name, text in wrong.items() if name in _OTHER_KERNELS)
    assert wrong.keys() <= _OTHER_KERNELS.keys(), wrong
    assert sum(tried.calls for tried in found.values() if isinstance(tried, Written)) > 2 * len(names)


def test_a_product_keeps_the_dtype_that_its_call_names(tmp_path: Path) -> None:
    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.prod(x, 1, dtype=torch.int32)

    x = torch.arange(1.0, 13.0).reshape(3, 4)
    tosaic.save_pte(tosaic.from_exported(torch.export.export(Product(), (x,))), tmp_path / "product.pte")
    found = tosaic.load_pte(tmp_path / "product.pte").run(x)
    assert found.dtype == "int32"
    assert found.tolist() == Product()(x).tolist()


_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize(
    "form", ["a tensor", "a number", "of a number", "broadcast", "of the module's counter"]
)
def test_the_remainder_of_integers_has_the_sign_of_the_divisor(form: str, tmp_path: Path) -> None:
    """ExecuTorch's kernel of remainder gives integers the sign of the dividend, which torch's fmod does."""
    of = {
        "a tensor": torch.remainder,
        "a number": lambda x, _: x % 7,
        "of a number": lambda _, y: torch.remainder(100, y),
        "broadcast": lambda x, y: torch.remainder(x, y[:1]),
        "of the module's counter": lambda x, y: (x + 1) % -8 + y * 0,
    }[form]

    class Remainders(torch.nn.Module):
        def forward(self, *pairs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(of(x, y) for x, y in zip(pairs[::2], pairs[1::2], strict=True))

    generator = torch.Generator().manual_seed(0)
    pairs = []
    for dtype in (*_SIGNED, torch.uint8):
        x, y = (
            torch.randint(0, 100, (3, 5), generator=generator),
            torch.randint(1, 9, (3, 5), generator=generator),
        )
        if dtype != torch.uint8:
            x, y = x - 50, y * (torch.randint(0, 2, (3, 5), generator=generator) * 2 - 1)
        elif form == "of the module's counter":
            continue  # a negative divisor wraps
        pairs += [x.to(dtype), y.to(dtype)]
    path = tmp_path / "remainder.pte"
    tosaic.save_pte(tosaic.from_exported(torch.export.export(Remainders(), tuple(pairs))), path)
    wanted = Remainders()(*pairs)
    for found in (run_in_executorch(path.read_bytes(), pairs), tosaic.load_pte(path).run(*pairs)):
        for each, expected in zip(found, wanted, strict=True):
            assert torch.equal(torch.as_tensor(each), expected)
            assert torch.as_tensor(each).dtype == expected.dtype


def test_any_and_all_of_bytes_are_bytes(tmp_path: Path) -> None:
    """Before, the reader refused the kernel's bool result: torch's result is uint8 for uint8."""

    class Truths(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.any(), x.any(1), x.all(), x.all(0, keepdim=True)

    x = torch.tensor([[0, 2, 128], [0, 0, 0]], dtype=torch.uint8)
    path, wanted = tmp_path / "truths.pte", Truths()(x)
    tosaic.save_pte(tosaic.from_exported(torch.export.export(Truths(), (x,))), path)
    for found in (run_in_executorch(path.read_bytes(), [x]), tosaic.load_pte(path).run(x)):
        for each, expected in zip(found, wanted, strict=True):
            assert torch.equal(torch.as_tensor(each), expected)
            assert torch.as_tensor(each).dtype == expected.dtype
