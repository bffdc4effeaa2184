"""The list of all devices: tosaic's, devices that a program registered, and devices of installed packages.

A package names its devices as entry points of the group ``tosaic.devices``: each is a `Device`, or a sequence
of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from tosaic import _core
from tosaic.base.options import invalid, refusal, shown
from tosaic.devices.built_in import TOSA_PAYLOAD, built_in_devices
from tosaic.devices.device import Device, DeviceRecipe, Payload

GROUP = "tosaic.devices"
_TOSA = "tosa-"
_registered: list[Device] = []


def devices() -> tuple[Device, ...]:
    """Returns all devices, the host first."""
    return (*built_in_devices(), *_installed(), *_registered)


def register(device: Device) -> Device:
    """Adds a device to this process, and returns it.

    Afterwards, its members are claimants, its recipes can be named, and its payloads can be read. The
    command line knows devices of installed packages only (entry points of the group ``tosaic.devices``).

    Parameters
    ----------
    device : Device

    Raises
    ------
    InvalidGraph
        It is not a device; an operator, quantity, dtype or target of its tables does not exist; a limit is of
        an operator that it does not have; or a device, a member, a recipe or a payload of this name exists
        already.

    Examples
    --------
    >>> from tosaic.devices import Device, Operators, register
    >>> import tosaic
    >>> _ = register(Device("doc-npu", target="TOSA-1.0+INT", operators=[Operators(["tosa.add"])]))
    >>> tosaic.Claimant.named("doc-npu").target
    'TOSA-1.0+INT'
    """
    if any(device is each for each in _registered):
        return device
    _require_new("register", device, devices())
    _registered.append(device)
    return device


def _require_new(where: str, device: Any, known: tuple[Device, ...]) -> None:
    """Refuses objects that are no device, and a device with a name that is already in use."""
    if not isinstance(device, Device):
        raise refusal(where, "device", "a tosaic.devices.Device", shown(device))
    _ = device.core
    has = {name for each in device.operators for name in each.names}
    for name in sorted({name for limit in device.limits for name in limit.names} - has):
        raise invalid(
            where,
            f"a limit of '{name}' never applies",
            expected="limits of operators that the device has",
            got=f"device '{device.name}' without '{name}'",
        )
    for kind, names, taken in (
        ("device", {device.name}, {each.name for each in known}),
        ("claimant", set(device.names), {name for each in known for name in each.names}),
        ("recipe", _recipes(device), {name for each in known for name in _recipes(each)}),
        ("payload", _payloads(device), {TOSA_PAYLOAD.name} | {n for each in known for n in _payloads(each)}),
    ):
        for name in sorted(names & taken):
            raise invalid(
                where,
                f"there is a {kind} '{name}' already",
                expected="names that no other device has",
                got=f"device '{device.name}'",
            )


def _recipes(device: Device) -> set[str]:
    return {each.name for each in device.recipes}


def _payloads(device: Device) -> set[str]:
    return set() if device.payload is None else {device.payload.name}


@cache
def _installed() -> tuple[Device, ...]:
    """Returns the devices of installed packages, by name of the entry point."""
    from importlib import metadata

    found: list[Device] = []
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda each: each.name):
        loaded = point.load()
        for device in loaded if isinstance(loaded, list | tuple) else (loaded,):
            where = f"entry point '{point.name}' of {GROUP}"
            _require_new(where, device, (*built_in_devices(), *found))
            found.append(device)
    return tuple(found)


def device_of(kind: str) -> Device | None:
    """Returns the device of a claimant, by the name of the member; None for a TOSA target."""
    if kind.lower().startswith(_TOSA):
        return None
    return next((each for each in _in_order() if kind in each.names), None)


def _in_order() -> Iterator[Device]:
    """Yields the devices; tosaic's own come before those of packages."""
    yield from built_in_devices()
    yield from _registered
    yield from _installed()


def core_claimant(kind: str) -> _core.Claimant:
    """Returns the core's claimant for the name of a device's member, or for a TOSA target.

    Raises
    ------
    InvalidGraph
        There is no such name. The message lists the names.
    """
    found = device_of(kind.lower())
    if found is not None:
        return found.core.claimant(kind.lower())
    is_target = kind.lower().startswith(_TOSA)
    return _core.claimant(kind, None if is_target else [each.core for each in devices()])


def recipe_of(where: str, target: str) -> DeviceRecipe | None:
    """Returns the recipe of a device, by the name of the family or of a member; None for a TOSA target.

    It has the rules of the device, which apply to all calls of a program for this device alone.

    Raises
    ------
    InvalidGraph
        There is no such name, or the device has no recipe. The error is about `where`.
    """
    name = target.lower()
    if name.startswith(_TOSA):
        _core.claimant(target, None)  # refuses what is no target
        return None
    device = next((each for each in _in_order() if name == each.name or name in each.names), None)
    if device is None or not device.recipes:
        known = [each.name for each in _in_order() if each.recipes]
        raise invalid(
            where,
            "there is no such device" if device is None else "the device has no recipe",
            expected=f"a TOSA target, such as TOSA-1.0+INT, or a device of {', '.join(known)}",
            got=shown(target),
        )
    recipe = device.recipes[0]
    return replace(recipe, rules=(*recipe.rules, *device.rules))


def claimant_names() -> tuple[str, ...]:
    """Returns the names of claimants other than TOSA targets."""
    return tuple(name for each in devices() for name in each.names)


def limit_names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the quantities of a `Limit`, and the conditions for its `when`.

    Examples
    --------
    >>> from tosaic.devices import limit_names
    >>> quantities, conditions = limit_names()
    >>> "stride" in quantities, conditions[:2]
    (True, ('always', 'padded'))
    """
    quantities, conditions = _core.limit_names()
    return tuple(quantities), tuple(conditions)


def payload_of(kind: str) -> Payload | None:
    """Returns the payload of a claimant; None if its groups have none."""
    device = device_of(kind)
    return TOSA_PAYLOAD if device is None else device.payload


def payloads() -> dict[str, Payload]:
    """Returns the kinds of payloads by name."""
    found = {TOSA_PAYLOAD.name: TOSA_PAYLOAD}
    return found | {each.payload.name: each.payload for each in devices() if each.payload is not None}
