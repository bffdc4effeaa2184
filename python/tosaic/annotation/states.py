"""Gives all values of a state one scale, for reads and for writes.

::

    k -> index_put -> matmul        edge(k -> index_put), output(index_put): one scale, whose range holds both
          (stored in k)

With two scales, the state would be stored as floats, or written integers would not fit the next read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tosaic.annotation.call_graph import Call
from tosaic.annotation.observers import ByUse, MinMax
from tosaic.annotation.plan import Plan
from tosaic.annotation.specs import FLOAT, Edge, Observed, Output, Shared, Slot

_RULE = "one scale for all that a state holds"


def share_states(plan: Plan, states: Iterable[tuple[str, str]]) -> None:
    """Lets reads and writes of a state share one scale, if calls read it quantized.

    Parameters
    ----------
    plan : Plan
    states : iterable of (str, str)
        For each state, the call that reads it, and the call whose result is stored. If that result cannot
        share the scale of the state, it is rounded when it is stored: at the edge to the call that stores it,
        or to the output.
    """
    users: dict[str, list[Call]] = {}
    for state, written in states:
        if not users:
            users = _users(plan)
        _share_state(plan, state, written, users)


def hold_stored_numbers(plan: Plan, written: Iterable[str]) -> None:
    """Makes the range of a value that is stored in a 32-bit input contain all numbers of the samples.

    Parameters
    ----------
    plan : Plan
    written : iterable of str
        For each input of the caller that the program writes, the call whose result is stored.
    """
    outputs = [call.name for call in plan.graph if call.kind == "output"]
    for slot in (Edge(name, output) for name in written for output in outputs):
        spec = plan.get(slot)
        if isinstance(spec, Observed) and spec.dtype == "int32":
            _hold_all(plan, slot)


def _users(plan: Plan) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for call in plan.graph:
        for name in dict.fromkeys(operand.producer for operand in call.operands):
            found.setdefault(name, []).append(call)
    return found


def _share_state(plan: Plan, state: str, written: str, users: Mapping[str, Sequence[Call]]) -> None:
    edges = [Edge(state, call.name) for call in users.get(state, ())]
    read = [slot for slot in edges if plan.get(slot) not in (None, FLOAT)]
    if not read or written == state:
        return
    with plan.authored_by(_RULE):
        _hold_all(plan, read[0])
        for slot in read[1:]:
            _join(plan, read[0], slot)
        call = plan.graph[written]
        names = [written]
        if call.target.startswith("aten.copy_") and len(call.operands) == 1:
            names.append(call.operands[0].producer)  # a copy has the integers of its operand
        for name in names:
            if _may_share(plan, Output(name), read[0]):
                _join(plan, read[0], Output(name))
                return
        for call in users.get(written, ()):
            is_store = call.target.startswith("aten.copy_") and state in {
                operand.producer for operand in call.operands
            }
            if call.kind == "output" or is_store:
                plan.set(Edge(written, call.name), Shared(read[0]))


def _decider(plan: Plan, slot: Slot) -> Slot:
    """Returns the slot whose own spec applies to a slot."""
    spec = plan.get(slot)
    while isinstance(spec, Shared):
        slot, spec = spec.slot, plan.get(spec.slot)
    return slot


def _hold_all(plan: Plan, slot: Slot) -> None:
    """Replaces `ByUse` by `MinMax`: clipped numbers of a state would be wrong in all later reads."""
    slot = _decider(plan, slot)
    spec = plan.get(slot)
    if isinstance(spec, Observed) and isinstance(spec.observer, ByUse):
        plan.set(slot, replace(spec, observer=MinMax(spec.observer.eps)))


def _may_share(plan: Plan, slot: Slot, other: Slot) -> bool:
    one, two = (plan.get(_decider(plan, each)) for each in (slot, other))
    if not isinstance(one, Observed) or not isinstance(two, Observed):
        return False
    return replace(one, observer=None) == replace(two, observer=None)


def _join(plan: Plan, slot: Slot, other: Slot) -> None:
    """Gives two slots, and all slots that share with them, one scale."""
    one, two = _decider(plan, slot), _decider(plan, other)
    if one != two:
        plan.set(two, Shared(one))
