"""``selected_operators.yaml``: the kernels that a selective build of ExecuTorch contains.

The keys equal the keys that ``executorch.codegen.tools.gen_oplist`` writes, in the same order. Equal lists
have equal texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tosaic.base.options import invalid

if TYPE_CHECKING:
    from tosaic.pte.kernel_names import Kernel, KernelList

_ALL_DTYPES = "default"
_PLAIN = re.compile(r"[A-Za-z_/][\w.,/:;|-]*[\w.]", re.ASCII)
_WORDS = {"true", "false", "yes", "no", "on", "off", "null"}


def selected_operators(kernels: KernelList, dtypes: bool) -> str:
    """Returns the text of the file; see `KernelList.to_yaml`."""
    if not len(kernels):
        computed = ", ".join(kernels.backends)
        raise invalid(
            "to_yaml",
            "no operator is left to the host, so there is no kernel to register",
            expected="programs that call at least one kernel",
            got=f"delegates of {computed}" if computed else "programs without calls",
        )
    return "".join(f"{line}\n" for line in _lines(kernels, dtypes))


def _lines(kernels: KernelList, dtypes: bool) -> Iterator[str]:
    yield "build_features: []"
    yield "custom_classes: []"
    yield "debug_info:"
    yield from (f"- {_scalar(source)}" for source in kernels.sources)
    yield "et_kernel_metadata:"
    for kernel in kernels:
        yield f"  {_scalar(kernel.operator)}:"
        yield from (f"  - {_scalar(key)}" for key in _keys(kernel, dtypes))
    yield "include_all_non_op_selectives: false"
    yield "include_all_operators: false"
    yield "kernel_metadata: {}"
    yield "operators:"
    for kernel in kernels:
        yield f"  {_scalar(kernel.operator)}:"
        yield "    debug_info:"
        yield from (f"    - {_scalar(source)}" for source in dict.fromkeys(user[0] for user in kernel.users))
        yield "    include_all_overloads: false"
        yield "    is_root_operator: true"
        yield "    is_used_for_training: true"


def _keys(kernel: Kernel, dtypes: bool) -> list[str]:
    return sorted(variant.key for variant in kernel.variants) if dtypes else [_ALL_DTYPES]


def _scalar(text: str) -> str:
    """Returns a string as YAML: unquoted if YAML reads that as the same string, else in double quotes."""
    if _PLAIN.fullmatch(text) and ": " not in text and text.lower() not in _WORDS:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(each if each.isprintable() else _escaped(each) for each in quoted)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
