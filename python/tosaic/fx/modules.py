"""Modules of torch before and around export: example inputs, half floats, quantization-aware training."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tosaic.base.arrays import as_array
from tosaic.base.options import invalid, unsupported
from tosaic.base.visible import one_line
from tosaic.fx.running.eager import first_line
from tosaic.fx.training_calls import calls_in_training

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def is_training(model: Any) -> bool:
    """True if a norm or dropout of a module is in training mode, in which it computes something else."""
    return any(each.training and _depends_on_mode(each) for each in model.modules())


def _depends_on_mode(module: Any) -> bool:
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, torch.nn.modules.batchnorm._NormBase)


def refuse_training(program: torch.export.ExportedProgram) -> None:
    """Refuses a program that torch exported in training mode, in which some calls compute something else.

    Raises
    ------
    InvalidGraph
        The program has such calls.
    """
    calls = calls_in_training(program.graph)
    if calls:
        raise invalid(
            "export_model",
            "the model is in training mode",
            expected="a module in evaluation mode",
            got=f"{', '.join(map(repr, calls[:3]))} in training mode",
            hint="Call model.eval() before",
        )


def evaluated(model: Any) -> Any:
    """Returns the module in evaluation mode: a copy, if a submodule is in training mode.

    In modules of torch.export, the calls themselves have the mode; these modules are returned as they are.
    """
    if _is_exported(model) or not any(each.training for each in model.modules()):
        return model
    return copy.deepcopy(model).eval()


def _is_exported(model: Any) -> bool:
    """True for a module whose mode torch.export has written into its calls."""
    return isinstance(model, torch.fx.GraphModule) and "train" in vars(model)


def _refuse_exported(model: Any) -> None:
    """Refuses a module of torch.export, which cannot be put into training mode."""
    if _is_exported(model):
        raise invalid(
            "qat",
            "the model is a module of torch.export, which has one mode",
            expected="the torch.nn.Module that was exported",
            hint="Pass the module itself, in place of torch.export.export(module, ..).module()",
        )


def _refuse_averages(model: Any) -> None:
    """Refuses norms whose momentum depends on the number of batches, which torch cannot export."""
    for name, each in model.named_modules():
        is_norm = isinstance(each, torch.nn.modules.batchnorm._NormBase) and each.track_running_stats
        if is_norm and each.momentum is None:
            raise unsupported(
                "qat",
                f"the statistics of '{name}' are averages of all batches (momentum=None), which "
                "torch.export cannot trace in training mode",
                hint=f"Set the momentum of '{name}' to a number, such as 0.1, before you train further",
            )


def example_inputs(inputs: Any) -> Inputs:
    """Returns example inputs as tensors: positional and keyword arguments. Numpy arrays become tensors."""
    args, kwargs = inputs
    return pytree.tree_map(_tensor, tuple(args)), pytree.tree_map(_tensor, dict(kwargs))


def _tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor) or not hasattr(value, "__array__"):
        return value
    return torch.from_numpy(value.copy() if not value.flags.writeable else value)


def export_module(model: Any, inputs: Inputs, *, strict: bool) -> torch.export.ExportedProgram:
    """Exports a module.

    Raises
    ------
    InvalidGraph
        The module itself cannot be called with the inputs.
    UnsupportedOp
        torch cannot export the module. The message has torch's reason.
    """
    args, kwargs = inputs
    try:
        with torch.no_grad():
            return torch.export.export(model, args, kwargs, strict=strict)
    except MemoryError:
        raise
    except Exception as error:  # torch.export and the module itself may raise anything
        _require_callable_with(model, inputs)
        raise unsupported(
            "export",
            "torch.export does not export the model",
            got=f"{type(error).__name__}: {first_line(str(error))}",
            hint=f"Try strict={not strict}; torch's own message is the cause of this error",
        ) from error


def _require_callable_with(model: Any, inputs: Inputs) -> None:
    """Refuses inputs with which the module raises an error without torch.export, too."""
    try:
        called, (args, kwargs) = copy.deepcopy((model, inputs))
    except MemoryError:
        raise
    except Exception:  # a module that cannot be copied: the caller reports torch's message instead
        return
    try:
        with torch.no_grad():
            called(*args, **kwargs)
    except MemoryError:
        raise
    except Exception as error:  # the module is the caller's
        raise invalid(
            "export",
            "the model cannot be called with the example inputs",
            expected="inputs with which model(...) returns a result",
            got=f"{type(error).__name__}: {first_line(str(error))}",
        ) from error


def eager_arrays(model: Any, inputs: Inputs) -> Any:
    """Returns what a copy of a module computes in eager mode on arrays, with arrays in place of tensors.

    Floats get the dtype of the module's parameters: a copy of the module may have others.
    """
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)

    def tensor(value: Any) -> Any:
        made = _tensor(value)
        is_float = isinstance(made, torch.Tensor) and made.is_floating_point()
        return made.to(dtype) if is_float else made

    args, kwargs = pytree.tree_map(tensor, inputs)
    with torch.no_grad():
        result = _copied(model)(*args, **kwargs)
    return pytree.tree_map(lambda each: as_array(each) if isinstance(each, torch.Tensor) else each, result)


def half_copy(model: Any) -> Any:
    """Returns a copy of a module whose parameters and buffers of floats have 16 bits."""
    return copy.deepcopy(model).half()


def half_inputs(inputs: Inputs) -> Inputs:
    """Returns arguments whose float tensors and arrays have 16 bits."""

    def half(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.half() if value.is_floating_point() else value
        if getattr(getattr(value, "dtype", None), "kind", "") == "f":
            return value.astype("float16")
        return value

    args, kwargs = inputs
    return pytree.tree_map(half, args), pytree.tree_map(half, kwargs)


def trained_program(
    model: Any, inputs: Inputs, config: Any, rules: Sequence[Any], train: Callable[[Any], object]
) -> tuple[torch.export.ExportedProgram, Any]:
    """Trains a module with quantization in the graph, and returns the quantized program and the module.

    Returns
    -------
    program : torch.export.ExportedProgram
        The quantized program.
    trained : torch.fx.GraphModule
        The trained module in evaluation mode, from which torchao converted the program.

    Raises
    ------
    ImportError
        torchao is not installed. No other function of this file needs it.
    InvalidGraph
        `train` did not run the module, so that no tensor has a range, or torch has exported the module.
    UnsupportedOp
        A norm has no momentum.
    """
    from tosaic.fx.quantizer.quantizer import Quantizer
    from tosaic.fx.quantizer.wrapper import WrappedQuantizer

    from torchao.quantization.pt2e import move_exported_model_to_eval  # isort: skip
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

    args, kwargs = inputs
    _refuse_exported(model)
    _refuse_averages(model)
    module = torch.export.export(copy.deepcopy(model).train(), args, kwargs).module()
    quantizer: Any = Quantizer(config, qat=True)
    if rules:
        quantizer = WrappedQuantizer(quantizer, rules, None)
    prepared = prepare_qat_pt2e(module, quantizer)
    train(prepared)
    if not _has_run(prepared):
        raise invalid(
            "quantize",
            "the training did not run the module, so that no tensor has a range",
            expected="a function that runs the module that it is given, in place",
            got=one_line(getattr(train, "__qualname__", type(train).__name__)),
            hint="Call the module itself, not a copy, with samples, even if no weight is to change",
        )
    move_exported_model_to_eval(prepared)
    trained = _with_fixed_scales(_copied(prepared))
    with torch.no_grad():
        return torch.export.export(convert_pt2e(prepared), args, kwargs), trained


def _has_run(prepared: Any) -> bool:
    """True if an observer of a prepared module has seen a tensor, or if there is none."""
    seen = []
    for each in prepared.modules():
        least = getattr(each, "min_val", None)
        if isinstance(least, torch.Tensor):
            seen.append(bool(least.numel()) and not bool(torch.isinf(least).all()))
    return any(seen) or not seen


def _copied(module: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch itself, about the code of exported modules
        return copy.deepcopy(module)


def _with_fixed_scales(trained: Any) -> Any:
    """Gives fake-quant modules the scales that conversion writes, which no run changes any more."""
    from torchao.quantization.pt2e import FakeQuantize
    from torchao.quantization.pt2e.fake_quantize import FakeQuantizeBase

    for each in trained.modules():
        if isinstance(each, FakeQuantize):
            for buffer, found in zip((each.scale, each.zero_point), each.calculate_qparams(), strict=True):
                buffer.resize_(found.shape).copy_(found)
        if isinstance(each, FakeQuantizeBase):
            each.disable_observer()
    return trained
