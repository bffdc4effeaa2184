"""Runs operators of torch that tosaic does not have: on the host, where torch is installed.

An instance is the kernel of an operator description (`tosaic.ports.ForeignOp`), which is stored and pickled
with programs. Torch is imported only when the kernel is called, so a program with such an operator can be
loaded without torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tosaic.base.dtypes import TORCH
from tosaic.base.extras import naming_extras
from tosaic.base.options import unsupported

NAMESPACES = ("aten", "prims")
_READ_OTHER_THINGS = ("aten::from_file",)


class TorchKernel:
    """Computes an operator of torch, from arrays to tensors: the kernel of a `ForeignOp`.

    `tosaic.from_exported` describes calls of torch's own operators that it does not know in this way. A
    program that is read from a file needs the description: a file must not decide what torch runs.

    Parameters
    ----------
    target : str
        The operator with its overload. Not one that writes an operand.

    Examples
    --------
    >>> import tosaic
    >>> from tosaic.fx import TorchKernel
    >>> lgamma = tosaic.ports.ForeignOp("aten.lgamma.default", TorchKernel("aten.lgamma.default"))
    """

    def __init__(self, target: str) -> None:
        self.target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a tensor, or a list of tensors for an operator with several results.

        Raises
        ------
        MissingExtraError
            Torch is not installed.
        UnsupportedOp
            There is no such operator of torch's own, it writes its operands, or it reads something else.
        """
        with naming_extras(f"a run of {self.target}, which tosaic does not have,"):
            import torch
        operator = self._operator(torch)
        kinds = {each.name: str(each.type) for each in operator._schema.arguments}
        positional = [_given(torch, value, kind) for value, kind in zip(args, kinds.values(), strict=False)]
        named = {key: _given(torch, value, kinds[key]) for key, value in kwargs.items()}
        with torch.no_grad():
            result = operator(*positional, **named)
        return result if isinstance(result, torch.Tensor) else list(result)

    def _operator(self, torch: Any) -> Any:
        names = self.target.split(".")
        found = torch.ops if names[0] in NAMESPACES and len(names) == 3 else None
        for name in names:
            found = getattr(found, name, None)
        schema = getattr(found, "_schema", None)
        if schema is None or not is_functional(schema):
            raise unsupported(
                "run",
                f"'{self.target}' is no operator that torch can run here",
                expected="the full name of an operator that writes nothing, such as aten.lgamma.default",
            )
        return found


def is_functional(schema: Any) -> bool:
    """True for an operator that writes nothing, and whose results depend on its operands only."""
    return not schema.is_mutable and schema.name not in _READ_OTHER_THINGS


def _given(torch: Any, value: Any, kind: str) -> Any:
    """Returns an argument in torch's type: strings may represent dtypes and devices."""
    if isinstance(value, np.ndarray):
        from tosaic.fx.running.written import tensor_of

        return tensor_of(np.array(value))
    if isinstance(value, list | tuple):
        return [_given(torch, each, kind) for each in value]
    if not isinstance(value, str) or "str" in kind:
        return value
    if value in TORCH:
        return getattr(torch, TORCH[value])
    return getattr(torch, value.removeprefix("torch.")) if value.startswith("torch.") else torch.device(value)
