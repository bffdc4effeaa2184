"""Every way in which torch can free, swap, resize or overwrite a parameter, and what programs do afterwards.

    MALLOC_PERTURB_=165 python tests/api/weight_ways.py [--networks NAME ...] [--ways NAME ...]

Each way is tried on a module with programs in every state: imported, already run, lowered. Every later use of
a program has to be refused by name, or its result has to be right:

| state of the program | right result of `run`, `save`, `lower`, `compare` |
|---|---|
| lowered, or run before | the result before the change |
| only imported | the result before the change, or that of torch's exported program now, all weights alike |

The allocator (`MALLOC_PERTURB_`) overwrites freed memory, and the script allocates the same sizes again and
overwrites them. A result computed from freed memory is therefore wrong. Prints one line for each network and
way; the exit code is 1 if any result was neither refused nor right.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from torch import nn

_Array = np.ndarray[Any, Any]


class Dense(nn.Module):
    """A convolution and a batch norm, which lowering folds, and linear layers, which it does not fold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.wide = nn.Linear(8, 512)
        self.last = nn.Linear(512, 100)
        self.gain = nn.Parameter(torch.rand(100) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.last(self.wide(x).tanh()) * self.gain


class Strided(nn.Module):
    """Weights that are not row-major, which the import copies, and weights that it does not copy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3).to(memory_format=torch.channels_last)
        self.table = nn.Parameter(torch.randn(20, 16).t())
        self.scale = nn.Parameter(torch.randn(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.conv(x).mean((2, 3)) @ self.table) * self.scale


class Tied(nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids).cumsum(1))


class Scales(nn.Module):
    """The import reads the elements of scales and zero points, but not the integers."""

    def __init__(self) -> None:
        super().__init__()
        self.integers = nn.Parameter(torch.randint(-127, 128, (12, 6), dtype=torch.int8), requires_grad=False)
        self.steps = nn.Parameter(torch.rand(12) / 64 + 1e-3)
        self.zeros = nn.Parameter(torch.zeros(12, dtype=torch.int64), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.ops.quantized_decomposed.dequantize_per_channel(
            self.integers, self.steps, self.zeros, 0, -127, 127, torch.int8
        )
        return nn.functional.linear(x, weight)


def _image(channels: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, channels, 9, 9),)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "dense": (Dense, lambda: _image(3)),
    "strided": (Strided, lambda: _image(4)),
    "tied": (Tied, lambda: (torch.randint(0, 50, (2, 7)),)),
    "scales": (Scales, lambda: (torch.randn(3, 6),)),
}


# ---- ways ----


def _each(change: Callable[[torch.Tensor], Any]) -> Callable[[nn.Module], Any]:
    def way(module: nn.Module) -> Any:
        return [change(p) for p in module.parameters()]

    return way


def _without_grad(change: Callable[[torch.Tensor], Any]) -> Callable[[nn.Module], Any]:
    return torch.no_grad()(_each(change))


def _set_data(p: torch.Tensor) -> None:
    p.data = torch.full_like(p, 3)


def _resize(bytes_of: Callable[[int], int], *, back: bool = False) -> Callable[[torch.Tensor], Any]:
    def change(p: torch.Tensor) -> None:
        storage = p.untyped_storage()
        size = storage.nbytes()
        storage.resize_(bytes_of(size))
        if back:
            _churn(size)
            storage.resize_(size)

    return change


def _swap(p: torch.Tensor) -> torch.Tensor:
    other = nn.Parameter(torch.full_like(p, 5), requires_grad=p.requires_grad)
    torch._C._swap_tensor_impl(p, other)  # like swap_tensors, which refuses tensors with weak references
    return other


def _write_numpy(p: torch.Tensor) -> None:
    p.detach().numpy()[...] = 7


def _keep_version(p: torch.Tensor) -> None:
    with torch.autograd._unsafe_preserve_version_counter(p):
        p.mul_(2)


def _in_inference_mode(p: torch.Tensor) -> None:
    with torch.inference_mode():
        p.detach().view(-1)[:1].mul_(2) if p.is_contiguous() else p.mul_(2)


def _train(module: nn.Module) -> None:
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.ones_like(p)
    torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1).step()


def _load(module: nn.Module, *, assign: bool) -> None:
    state = {name: torch.full_like(tensor, 2) for name, tensor in module.state_dict().items()}
    module.load_state_dict(state, assign=assign)


def _delete(module: nn.Module) -> None:
    for part in module.modules():
        part._parameters.clear()


def _one(p: torch.Tensor) -> bool:
    p.data.view(-1)[-1:].add_(1) if p.is_contiguous() else p.data.select(0, 0).add_(1)
    return True


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "to(bfloat16)": lambda m: m.to(torch.bfloat16),
    "to_empty": lambda m: m.to_empty(device="cpu"),
    "to(meta)": lambda m: m.to("meta"),
    "share_memory": lambda m: m.share_memory(),
    "load_state_dict": lambda m: _load(m, assign=False),
    "load_state_dict(assign)": lambda m: _load(m, assign=True),
    "optimizer.step": _train,
    "parameters deleted": _delete,
    "p.data =": _each(_set_data),
    "p.data.set_": _each(lambda p: p.data.set_(torch.zeros(5, dtype=p.dtype))),
    "p.set_": _without_grad(lambda p: p.set_(torch.zeros(5, dtype=p.dtype))),
    "p.data.resize_": _each(lambda p: p.data.resize_(4 * p.numel())),
    "p.resize_": _each(lambda p: p.requires_grad_(False).resize_(4 * p.numel())),
    "p.share_memory_": _each(lambda p: p.share_memory_()),
    "swap_tensors": _each(_swap),
    "vector_to_parameters": lambda m: [setattr(p, "data", torch.zeros_like(p)) for p in m.parameters()],
    "storage.resize_(0)": _each(_resize(lambda size: 0)),
    "storage.resize_ smaller": _each(_resize(lambda size: size // 2)),
    "storage.resize_ larger": _each(_resize(lambda size: 8 * size + 4096)),
    "storage.resize_ there and back": _each(_resize(lambda size: 0, back=True)),
    "storage.resize_ larger and back": _each(_resize(lambda size: 64 * size + 4096, back=True)),
    "storage._share_filename_cpu_": _each(lambda p: p.untyped_storage()._share_filename_cpu_()),
    "storage._share_fd_cpu_": _each(lambda p: p.untyped_storage()._share_fd_cpu_()),
    "storage.fill_": _each(lambda p: p.untyped_storage().fill_(1)),
    "storage.copy_": _each(lambda p: p.untyped_storage().copy_(torch.ones_like(p).untyped_storage())),
    "storage[0] =": _each(lambda p: p.untyped_storage().__setitem__(3, 64)),
    "storage.byteswap": _each(lambda p: p.untyped_storage().byteswap(p.dtype)),
    "p.mul_": _without_grad(lambda p: p.mul_(2)),
    "p.mul_ in inference mode": _each(_in_inference_mode),
    "p.mul_, version kept": _without_grad(_keep_version),
    "p.data.mul_": _each(lambda p: p.data.mul_(2)),
    "one element of p.data": _each(_one),
    "p.detach().mul_": _each(lambda p: p.detach().mul_(2)),
    "_foreach_mul_ of data": lambda m: torch._foreach_add_([p.data for p in m.parameters()], 1),
    "dlpack": _each(lambda p: torch.from_dlpack(p.detach()).mul_(2)),
    "numpy": _each(_write_numpy),
    "ctypes": _each(lambda p: ctypes.memset(p.data_ptr(), 64, p.nbytes)),
    "lazy clone": _each(lambda p: torch._lazy_clone(p.detach())),
    "lazy clone, then written": _each(lambda p: (torch._lazy_clone(p.detach()), p.data.mul_(2))),
}


def _churn(size: int) -> None:
    """Allocates `size` bytes, which reuses freed memory of that size, writes to them and frees them."""
    taken = [torch.full((max(size // 4, 1),), 9.0) for _ in range(3)]
    del taken


# ---- uses of programs after the change ----


@dataclass
class Verdict:
    """Uses of programs after one way: how many were refused, how many were right, and which were neither."""

    refused: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)


def _same(a: _Array, b: _Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _near(a: _Array, b: _Array | None) -> bool:
    return b is not None and a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def _saved(program: tosaic.Program, sample: tuple[torch.Tensor, ...]) -> _Array:
    with tempfile.TemporaryDirectory() as folder:
        program.save(Path(folder) / "program.tosaic")
        result: _Array = tosaic.load(Path(folder) / "program.tosaic").run(*sample)
    return result


def _compared(a: Any, b: Any, sample: tuple[torch.Tensor, ...]) -> bool:
    return bool(tosaic.compare(a, b, sample).ok)


def attempt(network: str, way: str) -> Verdict:
    """Tries one way on a new module of the network."""
    make, inputs = NETWORKS[network]
    torch.manual_seed(1)
    module, sample = make().eval(), inputs()
    ep = torch.export.export(module, sample)
    target = "TOSA-1.0+FP"
    fresh = [tosaic.from_exported(ep) for _ in range(5)]
    used = tosaic.from_exported(ep)
    before = used.run(*sample)
    low = tosaic.lower(ep, target=target)
    lowered_before, file = low.run(*sample), tosaic.lower(ep, target=target).to_bytes()
    with torch.no_grad():
        assert _near(before, module(*sample).numpy())
        assert _near(lowered_before, before)
    sizes = {p.untyped_storage().nbytes() for p in module.parameters()}
    held = WAYS[way](module)
    for size in sizes:
        _churn(size)
    verdict = Verdict()
    for what, right in _settled(used, low, sample, before, lowered_before, file):
        if right:
            verdict.right += 1
        else:
            verdict.wrong.append(what)
    for what, use in _uses(fresh, ep, sample):
        try:
            found = use()
        except tosaic.InvalidGraph as error:
            if "after import" not in str(error):
                verdict.wrong.append(f"{what}: {error}")
            verdict.refused += 1
            continue
        if _near(found, before) or _near(found, _torch_now(ep, sample)):
            verdict.right += 1
        else:
            verdict.wrong.append(what)
    del held
    return verdict


def _settled(
    used: tosaic.Program,
    low: tosaic.Lowered,
    sample: tuple[torch.Tensor, ...],
    before: _Array,
    lowered_before: _Array,
    file: bytes,
) -> Iterator[tuple[str, bool]]:
    """Uses of programs that ran or were lowered before weights changed; True if the old results remain."""
    yield "run again", _same(used.run(*sample), before)
    yield "saved after a run", _same(_saved(used, sample), before)
    yield "lowered after a run", tosaic.lower(used, target=low.target).to_bytes() == file
    yield "lowered, run", _same(low.run(*sample), lowered_before)
    yield "lowered, bytes", low.to_bytes() == file
    for stage in ("exported", "canonical", "tosa"):
        yield f"lowered, stage {stage}", _near(low.at(stage).run(*sample), before)
    yield "compared after a run", _compared(used, low, sample)
    yield "text after a run", "forward" in used.text()


def _uses(
    fresh: list[tosaic.Program], ep: Any, sample: tuple[torch.Tensor, ...]
) -> Iterator[tuple[str, Callable[[], _Array]]]:
    """Yields first uses of programs that were only imported."""
    target = "TOSA-1.0+FP"
    yield "first run", lambda: fresh[0].run(*sample)
    yield "first saved", lambda: _saved(fresh[1], sample)
    yield "first lowered", lambda: tosaic.lower(fresh[2], target=target).run(*sample)

    def compared() -> _Array:
        assert _compared(fresh[3], fresh[3], sample)
        return fresh[3].run(*sample)

    yield "first compared", compared

    def elements() -> _Array:
        for constant in fresh[4].graph.constants.values():
            assert constant.array.shape == constant.shape
        fresh[4].text()
        return fresh[4].run(*sample)

    yield "first read", elements


def _torch_now(ep: Any, sample: tuple[torch.Tensor, ...]) -> _Array | None:
    try:
        with torch.no_grad():
            return np.asarray(ep.module()(*sample).numpy())
    except Exception:  # torch cannot run it any more
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Refused or right, whatever becomes of the weights.")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    wrong = 0
    for network in args.networks:
        for way in args.ways:
            verdict = attempt(network, way)
            wrong += len(verdict.wrong)
            print(f"{network}: {way}: {verdict.refused} refused, {verdict.right} right", flush=True)
            for what in verdict.wrong:
                print(f"  WRONG: {what}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
