"""A program whose images are in channels-last order."""

from __future__ import annotations

from typing import Any

import torch

from tosaic import _core
from tosaic.options import refusal, shown

__all__ = ["exported_in_channels_last"]


def exported_in_channels_last(where: str, program: Any, module: Any) -> tuple[Any, tuple[str, ...]]:
    """Exports a module with weights and inputs of rank 4 in channels-last order.

    Parameters
    ----------
    where : str
        Name of the public function, for messages.
    program : torch.export.ExportedProgram
        With example inputs.
    module : torch.fx.GraphModule
        What to export. It takes the inputs of the program.

    Returns
    -------
    torch.export.ExportedProgram
    tuple of str
        The inputs that have this order.

    Raises
    ------
    InvalidGraph
        The program has no example inputs.
    UnsupportedOp
        Torch cannot export the module so.
    """
    if program.example_inputs is None:
        raise refusal(where, "quantized", "a program with example inputs", shown(program))
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, _channels_last, program.example_inputs)
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    inputs = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    names = tuple(name for name, leaf in zip(inputs, tensors, strict=True) if leaf.dim() == 4)
    try:
        return torch.export.export(module.to(memory_format=torch.channels_last), args, kwargs), names
    except MemoryError:
        raise
    except Exception as error:
        raise _core.make_error(
            _core.UnsupportedOp,
            where=where,
            what="torch cannot export the program with inputs in channels-last order",
            got=f"{type(error).__name__}: {error}",
            hint="Export the model in this order, model.to(memory_format=torch.channels_last)",
        ) from error


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
