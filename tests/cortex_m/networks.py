"""Networks that ExecuTorch quantizes for Cortex-M, split between claimants, against its Cortex-M backend.

The backend's passes choose the kernels, and its Python operators compute the integers. One operator is
replaced: averages in Python are floats, and a half may go to the other integer than in CMSIS-NN's kernel, so
`average_of_the_kernel` computes them as the kernel does (docs/measured/cortex_m_arithmetic.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tosaic
from models.quantize import converted, laid_out_as_converted
from models.zoo import Network, build, quiet
from torch import nn

from cortex_m.reference import backend_of

__all__ = ["CLAIMANTS", "Checked", "average_of_the_kernel", "checked"]

CLAIMANTS = (("cortex-m55",), ("neutron", "cortex-m55"), ("neutron", "cortex-m55", "host"))
_CALIBRATION, _UNSEEN = 4, 100


class CifarCnn(nn.Module):
    """A network for images of 32x32 pixels, with a pad and a clone between channels-last convolutions.

    Neutron has no gelu, and Cortex-M has one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 5, padding=2)
        self.second = nn.Conv2d(16, 24, 3, stride=2)
        self.third = nn.Conv2d(24, 32, 3)
        self.head = nn.Linear(32 * 3 * 3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(torch.relu(self.first(x)), 2)
        x = torch.relu(self.second(F.pad(x, (0, 1, 0, 1))))
        x = F.gelu(self.third(x.clone()))
        return self.head(F.avg_pool2d(x, 2).flatten(1))


def _network(name: str) -> Network:
    if name != "cifar_cnn":
        return build(name)
    torch.manual_seed(0)
    return Network(name, CifarCnn().eval(), lambda of, n: torch.rand(n, 3, 32, 32, generator=of) * 2 - 1)


def average_of_the_kernel(
    x: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    size: tuple[int, int],
) -> np.ndarray:
    """Averages integers over the pixels of windows, (N, C, H, W), and rounds halves away from zero."""
    out = np.empty((*x.shape[:2], *size), x.dtype)
    for row, column in product(range(size[0]), range(size[1])):
        begins = [at * s - p for at, s, p in zip((row, column), stride, padding, strict=True)]
        rows, columns = (
            slice(max(begin, 0), min(begin + k, n))
            for begin, k, n in zip(begins, kernel, x.shape[2:], strict=True)
        )
        window = x[:, :, rows, columns].astype(np.int64)
        total, count = window.sum((2, 3)), window.shape[2] * window.shape[3]
        out[:, :, row, column] = np.sign(total) * ((np.abs(total) + count // 2) // count)
    return out


class _Backend(torch.fx.Interpreter):
    """Runs the operators of the backend, but averages as the kernel does."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        if "cortex_m.quantized_avg_pool2d." not in str(target):
            return result
        kernel, stride, padding = (tuple(int(n) for n in each) for each in args[1:4])
        average = average_of_the_kernel(args[0].numpy(), kernel, stride, padding, tuple(result.shape[2:]))
        return torch.from_numpy(average).to(memory_format=torch.channels_last)


def of_backend(program: torch.export.ExportedProgram, *arrays: torch.Tensor) -> np.ndarray:
    """Returns what ExecuTorch's Cortex-M backend computes."""
    module = backend_of(program).module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    with torch.no_grad():
        result = _Backend(module).run(*arrays)
    return np.asarray(result[0] if isinstance(result, (tuple, list)) else result)


@dataclass
class Checked:
    """What a split of a network gives.

    Attributes
    ----------
    claimants : str
        Names of the claimants, joined by ``+``.
    nodes : dict
        The number of nodes by claimant. Nodes that no claimant takes count for ``host``.
    groups, transposed_bytes : int
    minimal : bool
        Whether it is proven that no split has fewer groups, and that no dim orders transpose fewer bytes.
    unexplained : list of str
        Nodes of the host without a reason of each claimant that was asked.
    disagreeing_borders : list of str
        Values that two groups have in different dim orders.
    pads : list of str
        The claimants of pads and clones that stand alone.
    elements, differing : int
        Elements of the output, and those that differ from ExecuTorch's backend.
    reference_differing : int
        Elements that differ if the TOSA reference model computes the groups.
    """

    network: str
    claimants: str
    nodes: dict[str, int]
    groups: int
    transposed_bytes: int
    minimal: bool
    unexplained: list[str]
    disagreeing_borders: list[str]
    pads: list[str]
    elements: int
    differing: int
    reference_differing: int
    distinct: int

    @property
    def is_right(self) -> bool:
        """True if nothing differs and everything is explained."""
        wrong = (self.differing, self.reference_differing, self.unexplained, self.disagreeing_borders)
        return self.minimal and not any(wrong) and self.distinct > 1


def _disagreeing(split: tosaic.partitions.SplitLowered) -> list[str]:
    """Returns the values that two groups have in different dim orders."""
    orders: dict[str, set[tuple[int, ...]]] = {}
    for group, part in zip(split.partitions.groups, split.parts, strict=True):
        for names, ports in ((group.inputs, part.inputs), (group.outputs, part.outputs)):
            for name, port in zip(names, ports, strict=True):
                orders.setdefault(name, set()).add(tuple(port.dim_order))
    return [name for name, found in orders.items() if len(found) > 1]


def checked(name: str, claimants: tuple[str, ...]) -> Checked:
    """Quantizes and splits a network, and compares its results with the results of the backend."""
    network = _network(name)
    with quiet():
        samples = [network.sample(i) for i in range(_CALIBRATION)]
        program = converted(network.module, samples, "cortex-m")
        sample = laid_out_as_converted(network.sample(_UNSEEN), "cortex-m")
        expected = of_backend(program, *sample)
    split = tosaic.lower(program, unsupported="split", claimants=list(claimants))
    plan = split.partitions
    result = np.asarray(split.run(*sample))
    reference = np.asarray(split.prepare(on="reference").run(*sample))
    owners = Counter(group.claimant for group in plan.groups for _ in group.nodes)
    left = plan.nodes_of(None)
    return Checked(
        network=name,
        claimants="+".join(claimants),
        nodes={**owners, "host": owners["host"] + len(left)},
        groups=len(plan.groups),
        transposed_bytes=split.transposed_bytes,
        minimal=plan.is_minimal and split.is_layout_minimal,
        unexplained=[
            node.name
            for node in left
            if {refusal.claimant for refusal in plan.why(node.name).refusals} != set(claimants)
        ],
        disagreeing_borders=_disagreeing(split),
        elements=result.size,
        differing=int((result != expected).sum()),
        pads=[plan.why(node.name).claimant for node in plan.graph.nodes if node.op in ("pad", "clone")],
        reference_differing=int((result != reference).sum()),
        distinct=len(np.unique(result)),
    )
