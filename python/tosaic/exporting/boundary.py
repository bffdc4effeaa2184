"""Inputs and outputs of an export: specs by position, checks of names, samples with four channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.annotation.observers import MASK_OF_INFINITY, MaskRange
from tosaic.annotation.rules import Inputs, Outputs
from tosaic.annotation.specs import Edge, Observed, Shared
from tosaic.base.options import invalid, is_mapping, refusal, shown
from tosaic.base.quantization import QParams
from tosaic.ports.port_names import known_names, near_names, position_of

if TYPE_CHECKING:
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.ports.ports import Port
    from tosaic.program.program import Program
    from tosaic.program.samples import Sample
    from tosaic.recipes.recipe import Recipe

_Array = np.ndarray[Any, Any]

_WHERE = "export_model"
_RULES = {"inputs": Inputs, "outputs": Outputs}
_NOTED_SHARE = 0.01
Arrays = Mapping[str, np.ndarray[Any, Any]]


def port_rules(recipe: Recipe, program: Program, input_specs: Any, output_specs: Any) -> Recipe:
    """Returns the recipe with rules for the specs of inputs and outputs that the caller passed.

    Raises
    ------
    InvalidGraph
        A sequence of specs has another length than there are inputs (outputs), or the recipe does not
        quantize.
    """
    rules: list[Any] = list(recipe.rules)
    for side, specs in (("inputs", input_specs), ("outputs", output_specs)):
        if specs is None:
            continue
        option = f"{side[:-1]}_specs"
        if not recipe.quantizes:
            raise invalid(
                _WHERE,
                f"'{option}' has specs, and nothing is quantized",
                expected="a recipe with a config, and quantize=True",
                got=f"recipe '{recipe.name}' in floats",
            )
        if not is_mapping(specs):
            ports: Sequence[Port] = getattr(program, side)
            _require_length(option, specs, ports)
            specs = dict(enumerate(specs))
        rules.append(_RULES[side](specs))
    return recipe.replace(rules=rules)


def _require_length(option: str, specs: Any, ports: Sequence[Port]) -> None:
    if not isinstance(specs, list | tuple):
        raise refusal(_WHERE, option, "a spec or None for each, or a mapping by position or name", specs)
    if len(specs) != len(ports):
        side = option.removesuffix("_specs")
        names = ", ".join(port.path or port.name for port in ports)
        raise invalid(
            _WHERE,
            f"too {'few' if len(specs) < len(ports) else 'many'} specs in '{option}'",
            expected=f"{len(ports)}, one for each {side} ({names})",
            got=str(len(specs)),
            hint="None leaves one float; a mapping such as {0: spec} names some of them",
        )


def require_ports(recipe: Recipe, program: Program) -> None:
    """Refuses entries of `io`, `orders` and `rgba` that name no input or output of the program.

    Raises
    ------
    InvalidGraph
        The message has the option, the name, and near names.
    """
    asked: dict[str, Mapping[str, Any]] = {
        "io": recipe.io,
        "orders": recipe.orders,
        "rgba": recipe.rgba_ports,
    }
    for option, sides in asked.items():
        for side, entries in sides.items():
            if side not in ("inputs", "outputs"):
                raise refusal(_WHERE, option, "entries 'inputs' and 'outputs'", shown(side))
            if isinstance(entries, str) or not isinstance(entries, Mapping | list | tuple):
                continue
            if option == "orders" and not is_mapping(entries):
                continue  # one dim order for all ports
            ports: Sequence[Port] = [p for p in getattr(program, side) if p.kind == "user"]
            named = [(port.path, port.name) for port in ports]
            for key in entries:
                if position_of(key, named) is None:
                    raise invalid(
                        _WHERE,
                        f"'{option}' names no {side[:-1]} of the model",
                        expected=known_names(named),
                        got=repr(key),
                        hint=near_names(key, named),
                    )


def saturated(quantized: Program, samples: Sequence[Arrays]) -> list[str]:
    """Returns a sentence for each input whose samples are beyond the range of its integers."""
    found: list[str] = []
    masks = _masks_of(quantized)
    for port in quantized.inputs:
        for qparams in port.quantized:
            if qparams.axis is not None:
                continue
            arrays = [each[port.path or port.name] for each in samples]
            if port.name in masks:  # hiding elements of a mask saturate, and still hide
                arrays = [np.where(each <= _core.MASK_HIDES, 0, each) for each in arrays]
            beyond = [_share_beyond(each, qparams) for each in arrays]
            if beyond and max(beyond) > _NOTED_SHARE:
                least, greatest = _range(qparams)
                found.append(
                    f"{max(beyond):.0%} of a sample of input '{port.path or port.name}' is beyond the "
                    f"range of its integers, {least:.4g} to {greatest:.4g}, and is clipped"
                )
    return found


def _masks_of(quantized: Program) -> set[str]:
    """Returns the names of the inputs that are masks of attention."""
    plan = getattr(quantized, "plan", None)
    if plan is None:
        return set()
    specs = ((slot, plan.get(slot)) for slot in plan.slots())
    found = {
        slot.producer
        for slot, spec in specs
        if isinstance(slot, Edge) and isinstance(spec, Observed) and isinstance(spec.observer, MaskRange)
    }
    pending = list(found)  # the mask may be rounded at a view between the input and the sum
    while pending:
        for operand in plan.graph[pending.pop()].operands:
            if operand.producer not in found:
                found.add(operand.producer)
                pending.append(operand.producer)
    return found


def _restored(quantized: Program, masks: set[str]) -> set[str]:
    """Returns the masks that are dequantized to minus infinity: samples hide by minus infinity only."""
    plan: Any = getattr(quantized, "plan", None)
    found: dict[str, bool] = {}
    for slot in plan.slots() if masks else ():
        if not isinstance(slot, Edge) or slot.producer not in masks:
            continue
        if isinstance(plan.get(slot), Observed | Shared):
            found[slot.producer] = found.get(slot.producer, True) and plan.meets_scores(slot)
    return {name for name, meets in found.items() if meets}


def infinite_masks(quantized: Program, samples: Sequence[Arrays]) -> list[str]:
    """Returns a sentence for each attention mask that hides both with minus infinity and with numbers."""
    masks = _masks_of(quantized)
    restored = _restored(quantized, masks)
    found = []
    for port in quantized.inputs:
        name = port.path or port.name
        if port.name not in masks:
            continue
        numbers = [np.asarray(each[name]) for each in samples]
        hides = any((np.isfinite(each) & (each <= _core.MASK_HIDES)).any() for each in numbers)
        if (hides or port.name not in restored) and any(np.isneginf(each).any() for each in numbers):
            found.append(f"the mask '{name}' {MASK_OF_INFINITY}")
    return found


def saturated_states(
    lowered: SplitLowered, program: Program, samples: Sequence[Sample]
) -> tuple[list[str], list[list[_Array]], list[list[_Array]]]:
    """Runs the samples as a stream, and finds states that exceed the range of their integers.

    Returns
    -------
    list of str
        A sentence for each such state.
    list of list of array
        The states after each sample.
    list of list of array
        The same states, clamped to the range of their integers.
    """
    worst: dict[str, tuple[float, int]] = {}
    after: list[list[_Array]] = []
    clipped: list[list[_Array]] = []
    ports = {port.path or port.name: port.qparams for port in lowered.states}
    known = {name: each for name, each in ports.items() if each is not None and each.axis is None}
    program.reset_state()
    for index, sample in enumerate(samples if known else ()):
        program.run_functional(*sample.args, **sample.kwargs)
        states = {name: np.array(program.session.state(name)) for name in known}
        for name, array in states.items():
            worst[name] = max(worst.get(name, (0.0, 0)), (_share_beyond(array, known[name]), index))
        after.append(list(states.values()))
        clipped.append([np.clip(array, *_range(known[name])) for name, array in states.items()])
    program.reset_state()
    found: list[str] = []
    for name, (beyond, index) in worst.items():
        if beyond > _NOTED_SHARE:
            least, greatest = _range(known[name])
            found.append(
                f"{beyond:.0%} of state '{name}' is beyond the range of its integers, {least:.4g} to "
                f"{greatest:.4g}, after sample {index} of {len(samples)} in a row, and is clipped. Calibrate "
                "on samples in the order of the calls, as many as the state needs to reach its range"
            )
    return found, after, clipped


def _range(qparams: QParams) -> tuple[float, float]:
    scale, zero_point = qparams.scale, qparams.zero_point
    return (qparams.qmin - zero_point) * scale, (qparams.qmax - zero_point) * scale


def _share_beyond(array: np.ndarray[Any, Any], qparams: QParams) -> float:
    if array.dtype.kind != "f" or not array.size:
        return 0.0
    least, greatest = _range(qparams)
    half = qparams.scale / 2
    return float(np.mean((array < least - half) | (array > greatest + half)))


def padded_to_rgba(
    samples: Sequence[Arrays], rgba: Mapping[str, Sequence[str | int]], program: Program
) -> list[Arrays]:
    """Returns samples whose images have four channels where `rgba` names them; the new channel is 0."""
    names = rgba.get("inputs", ())
    if not names:
        return list(samples)
    ports = program.inputs
    named = [(port.path, port.name) for port in ports]
    places = {position_of(name, named) for name in names}
    chosen = {ports[i].path or ports[i].name for i in places if i is not None}
    return [
        {name: _with_channel(array) if name in chosen else array for name, array in each.items()}
        for each in samples
    ]


def _with_channel(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if image.shape[1] != 3:
        return image
    return np.concatenate([image, np.zeros_like(image[:, :1])], axis=1)
