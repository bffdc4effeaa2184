"""Which calls of an exported program become delegates, and why others stay outside: `EdgePlan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tosaic.base.options import invalid, shown
from tosaic.partitions.plan import HOST, NodePlace, PartitionPlan
from tosaic.ports.port_names import near_names


@dataclass(frozen=True)
class EdgeGroup:
    """The calls of a delegate.

    Attributes
    ----------
    tag : str
        The delegation tag.
    nodes : tuple of str
        Names of the calls, in the order of the graph.
    inputs, outputs : tuple of str
        Names of the nodes whose values enter and leave the delegate. Constants are not among them.
    """

    tag: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class EdgePlan:
    """Which calls of an exported program go into a claimant's delegates, and why other calls do not.

    Attributes
    ----------
    claimant : str
    groups : tuple of EdgeGroup
    places : mapping of str to NodePlace
        By name of each call: where it goes, with all reasons of the claimant. ``NodePlace.group`` is an index
        into `groups`.
    partition : PartitionPlan
        The plan of the claimant's verdicts, over tosaic's graph of the program. A call that it claims may
        still stay outside: `places` has the reasons.
    """

    claimant: str
    groups: tuple[EdgeGroup, ...]
    places: Mapping[str, NodePlace] = field(repr=False)
    partition: PartitionPlan = field(repr=False)

    def why(self, node: Any) -> NodePlace:
        """Returns where a call goes, with all reasons of the claimant against it.

        Parameters
        ----------
        node : str
            The name of a call of the exported program.

        Raises
        ------
        InvalidGraph
            The program has no such call.
        """
        found = self.places.get(node) if isinstance(node, str) else None
        if found is None:
            raise invalid(
                "why",
                "the program has no such call",
                expected="the name of a call of the exported program",
                got=shown(node),
                hint=near_names(node, [(name, name) for name in self.places]),
            )
        return found

    @property
    def outside(self) -> tuple[NodePlace, ...]:
        """The calls that stay outside, in the order of the graph."""
        return tuple(place for place in self.places.values() if place.claimant == HOST)
