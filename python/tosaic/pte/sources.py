"""TOSA sources of delegates, which the caller passes for payloads that tosaic cannot run.

Vela's commands run only on the device, and a VGF file only on Vulkan. The ``.tosa`` file from which the
payload was made computes the same.
"""

from __future__ import annotations

import os
from typing import Any

from tosaic import _core
from tosaic.base.options import file_path, invalid, is_mapping, refusal, shown
from tosaic.base.reading import read_bytes
from tosaic.lowering.lowered import Lowered
from tosaic.program.program import Program
from tosaic.pte.payloads import is_tosa

_WHERE = "load_pte"


def sources_by_method(file: _core.PteFile, sources: Any) -> dict[str, dict[int, Program]]:
    """Returns the source of each delegate that has one: by name of the method, and index of the delegate.

    Parameters
    ----------
    file : PteFile
    sources : mapping or None
        By key, see `tosaic.load_pte`.

    Raises
    ------
    InvalidGraph
        A key selects no delegate, several, or one that needs no source; or a source is not a TOSA program.
    """
    if sources is not None and not is_mapping(sources):
        raise refusal(_WHERE, "sources", "a mapping of delegates to .tosa files", sources)
    found: dict[str, dict[int, Program]] = {method.name: {} for method in file.methods}
    keys: dict[tuple[str, int], Any] = {}
    for key, source in (sources or {}).items():
        name, index = place = _selected(file, key)
        if place in keys:
            raise _fault("two keys select one delegate", "one source", f"{keys[place]!r} and {key!r}")
        keys[place] = key
        found[name][index] = _program(key, source)
    return found


def _selected(file: _core.PteFile, key: Any) -> tuple[str, int]:
    """Returns the method and the index of the delegate that a key selects."""
    names: dict[str, list[tuple[str, int]]] = {}
    payloads: dict[tuple[str, int], Any] = {}
    for method in file.methods:
        for i, delegate in enumerate(method.delegates):
            payloads[method.name, i] = delegate
            for name in (f"delegate{i}", f"{method.name}.delegate{i}", delegate.backend):
                names.setdefault(name, []).append((method.name, i))
    places = names.get(key, []) if isinstance(key, str) else []
    if len(places) != 1:
        what = f"the key {shown(key)} selects {len(places) or 'no'} delegate{'s' * (len(places) > 1)}"
        known = [name for name, found in names.items() if len(found) == 1]
        raise _fault(what, " or ".join(map(repr, known)) or "no key: the file has no delegates", shown(key))
    delegate = payloads[places[0]]
    if is_tosa(file.payload_of(delegate)[:8].tobytes()):
        what = f"the delegate '{key}' runs by its payload"
        raise _fault(what, "a delegate whose payload is no .tosa file", "a TOSA payload")
    return places[0]


def _program(key: str, source: Any) -> Program:
    if isinstance(source, Lowered):
        source = source.to_bytes()
    elif isinstance(source, Program):
        if source.stage != "tosa":
            raise _fault(f"the source of '{key}' is no TOSA program", "stage tosa", f"stage {source.stage}")
        return Program(source.snapshot().graph)
    elif isinstance(source, str | os.PathLike):
        source = read_bytes(_WHERE, file_path(_WHERE, source))
    if not isinstance(source, bytes | bytearray | memoryview):
        expected = "a path, the bytes of a .tosa file, or a lowered program"
        raise _fault(f"the source of '{key}' is of another type", expected, shown(source))
    try:
        return Program(_core.deserialize(bytes(source)))
    except _core.Error as error:
        said = {name: error.parts[name] for name in ("expected", "got", "node")}
        what = f"the source of '{key}': {error.parts['what']}"
        raise _core.make_error(type(error), where=_WHERE, what=what, **said) from error


def _fault(what: str, expected: str, got: str) -> Exception:
    return invalid(_WHERE, what, expected=expected, got=got)
