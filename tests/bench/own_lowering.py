"""Where the time of our own lowering goes: import, graph passes, and the payload of constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
import tosaic
from bench.page import timed

__all__ = ["OwnTimes", "own_times"]

_REPETITIONS = 9
_PAYLOAD = ("compute constants", "bytes")


@dataclass(frozen=True)
class OwnTimes:
    """Median seconds of a lowering to bytes.

    Attributes
    ----------
    passes : float
        The passes, verified, the check of the target, and the tables of the file.
    payload : float
        Computing the constants, in the bytes of the file, and returning these.
    copy : float
        Copying the weights of the program once, into new memory.
    """

    passes: float
    payload: float
    copy: float

    @property
    def payload_speed(self) -> float:
        """The speed of the payload, as a share of the speed of a copy."""
        return self.copy / self.payload


def own_times(
    program: torch.export.ExportedProgram, lower: Callable[[torch.export.ExportedProgram], tosaic.Lowered]
) -> OwnTimes:
    """Lowers a program several times; in between, copies its weights."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    arrays = [each.detach().numpy() for each in tensors if isinstance(each, torch.Tensor)]
    passes, payload, copies = [], [], []
    for _ in range(_REPETITIONS):
        copies.append(timed(lambda: [np.array(array, copy=True) for array in arrays])[0])
        lowered = lower(program)
        lowered.to_bytes()
        steps = lowered.profile.steps
        payload.append(sum(step.seconds for step in steps if step.name in _PAYLOAD))
        passes.append(sum(step.seconds for step in steps if step.name not in (*_PAYLOAD, "import")))
        del lowered, steps
    return OwnTimes(median(passes), median(payload), median(copies))
