"""Moving averages of tensors that share one scale.

cat([a, b])     torchao: one observer sees a, then b, and its average tends to the mean of the two ranges
                here:    an observer for each tensor, and the scale follows from the union of their averages
"""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import Any

from torch.fx import Node

from tosaic.fx.quantizer.observers import TosaicMovingAverageMinMaxObserver


def separate_averages(observers: MutableMapping[Any, Any]) -> None:
    """Gives each tensor of a group that shares a moving average an observer of its own.

    Parameters
    ----------
    observers : mapping
        What torchao passes to `prepare_obs_or_fq_callback`: an observer or fake-quant module for each node
        and each edge. All places of a group have the same module.
    """
    members: dict[int, dict[Node, Any]] = {}
    for place, module in list(observers.items()):
        if not isinstance(_observer_of(module), TosaicMovingAverageMinMaxObserver):
            continue
        of_group = members.setdefault(id(module), {})
        tensor = place if isinstance(place, Node) else place[0]
        if tensor not in of_group:  # the first tensor has the module itself, which derived specs refer to
            of_group[tensor] = copy.deepcopy(module) if of_group else module
        observers[place] = of_group[tensor]
    for of_group in members.values():
        averages = [_observer_of(each) for each in of_group.values()]
        for own in averages:
            # A tuple, so that the peers do not become submodules.
            own.peers = tuple(each for each in averages if each is not own)


def _observer_of(module: Any) -> Any:
    return getattr(module, "activation_post_process", module)
