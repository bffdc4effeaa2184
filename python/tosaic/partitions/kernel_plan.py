"""`KernelProgram`: the kernels inside of ExecuTorch that a plan became."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tosaic.base.options import invalid, shown
from tosaic.base.reportable import Reportable
from tosaic.partitions.plan import PartitionPlan
from tosaic.ports.port_names import near_names


@dataclass(frozen=True)
class KernelNode:
    """The outcome of one node of the plan.

    Attributes
    ----------
    node, op, module_path, source : str
        The name of the node in the planned graph, its operator and its origin.
    calls : tuple of str
        The calls of the program that the node represents.
    claimant : str
        The claimant that takes it in the plan; ``host`` if no claimant does.
    status : {"kernel", "merged", "integers", "refused", "left"}
        ``kernel``: the claimant's kernels compute it. ``merged``: it is part of the kernel of another node,
        or only changes a scale. ``integers``: a portable kernel moves or clamps its integers. ``refused``:
        the claimant takes it, but ExecuTorch's passes make no kernel of it, so it stays as in the program,
        between dequantize and quantize calls. ``left``: it is for the host or another claimant, and stays as
        in the program.
    kernels : tuple of str
        The operators that compute it: ``cortex_m::quantized_conv2d``. Empty for nodes left or refused.
    reason : str
        Why it was merged, refused or left.
    """

    node: str
    op: str
    module_path: str
    source: str
    calls: tuple[str, ...]
    claimant: str
    status: str
    kernels: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class KernelProgram(Reportable):
    """A program of ExecuTorch with kernels of a CPU, and the outcome of each node of the plan.

    `tosaic.executorch.cortex_m_program` makes it.

    Attributes
    ----------
    edge : executorch.exir.EdgeProgramManager
        ``edge.to_executorch()`` makes the ``.pte`` file.
    claimant : str
        The claimant whose nodes are kernels.
    plan : PartitionPlan
        The plan over the quantized program; `nodes` names the calls of that program.
    nodes : tuple of KernelNode
        In the order of the planned graph.
    channels_last : tuple of str
        The inputs that callers have to pass in channels-last order, as the kernels read them.
    """

    edge: Any = field(repr=False)
    claimant: str
    plan: PartitionPlan = field(repr=False)
    nodes: tuple[KernelNode, ...] = field(repr=False)
    channels_last: tuple[str, ...]

    @property
    def refused(self) -> tuple[KernelNode, ...]:
        """The nodes that the claimant takes and ExecuTorch's passes refuse."""
        return tuple(each for each in self.nodes if each.status == "refused")

    @property
    def left(self) -> Mapping[str, tuple[KernelNode, ...]]:
        """The nodes that stay as in the program, by the claimant that takes them in the plan."""
        found: dict[str, list[KernelNode]] = {}
        for each in self.nodes:
            if each.status == "left":
                found.setdefault(each.claimant, []).append(each)
        return {claimant: tuple(nodes) for claimant, nodes in found.items()}

    def why(self, name: str) -> KernelNode:
        """Returns the outcome of a node: by its name, or by the name of a call that it represents.

        Raises
        ------
        InvalidGraph
            There is no such node or call.
        """
        for each in self.nodes:
            if name == each.node or name in each.calls:
                return each
        names = [(each.node, each.node) for each in self.nodes]
        raise invalid(
            "cortex_m_program",
            "the plan has no such node",
            expected="the name of a node of the plan, or of a call of the quantized program",
            got=shown(name),
            hint=near_names(name, names),
        )

    def __repr__(self) -> str:
        kernels = sum(each.status == "kernel" for each in self.nodes)
        return (
            f"<tosaic.executorch.KernelProgram for {self.claimant}: {len(self.nodes)} nodes, "
            f"{kernels} by its kernels, {len(self.refused)} refused>"
        )
