"""Compares one module at every stage with torch eager: stage exported, stage tosa of both targets, and the
reference model.

The export is tested as it is, and decomposed. No node may be opaque.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import tosaic
from function_module import FunctionModule
from torch.utils._pytree import tree_leaves
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

TARGETS = ("TOSA-1.0+FP", "TOSA-1.0+FP+INT")


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def assert_close(where: str, got: Any, expected: Any, tolerance: float) -> None:
    """Asserts equal shapes, dtypes and NaN, and equal integers.

    A float may differ by `tolerance` times the sum of its magnitude and the largest finite magnitude.
    """
    gots, wanted = tree_leaves(got), tree_leaves(expected)
    assert len(gots) == len(wanted), f"{where}: {len(gots)} results, expected {len(wanted)}"
    for ours, theirs in zip(map(_array, gots), map(_array, wanted), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), where
        if tolerance == 0 or ours.dtype.kind != "f":
            np.testing.assert_array_equal(ours, theirs, where)
            continue
        finite = theirs[np.isfinite(theirs)]
        scale = float(np.abs(finite).max(initial=0.0))
        np.testing.assert_allclose(ours, theirs, tolerance, tolerance * scale, err_msg=where)


def forms(what: Any, args: tuple[Any, ...], *, decomposed: bool = True) -> dict[str, Any]:
    """Returns the export of a module or function, and its decomposed form."""
    module = what if isinstance(what, torch.nn.Module) else FunctionModule(what)
    ep = torch.export.export(module.eval(), args, strict=False)
    return {"exported": ep, "decomposed": ep.run_decompositions()} if decomposed else {"exported": ep}


def assert_agrees(
    what: Any,
    *args: Any,
    tolerance: float = 0.0,
    targets: tuple[str, ...] = TARGETS,
    reference_model: bool = True,
    decomposed: bool = True,
) -> None:
    """Runs the module at every stage and compares the results with torch's.

    Parameters
    ----------
    what : torch.nn.Module or callable
    *args : torch.Tensor
    tolerance : float
        The tolerance of floats, as in `assert_close`; 0 means equal.
    targets : tuple of str
        Targets to lower for; none for modules that TOSA cannot represent.
    reference_model : bool
        Whether to run the file on the reference model, for the last target and the undecomposed export.
    decomposed : bool
        Whether to test the decomposed form too.
    """
    module = what if isinstance(what, torch.nn.Module) else FunctionModule(what)
    with torch.no_grad():
        expected = module.eval()(*args)
    for form, ep in forms(what, args, decomposed=decomposed).items():
        program = tosaic.from_exported(ep)
        opaque = [node.attrs["target"] for node in program.graph.nodes if node.op == "opaque"]
        assert not opaque, f"{form}: opaque {opaque}"
        assert_close(f"{form}, stage exported", program.run(*args), expected, tolerance)
        arrays = program.arrays(*args)
        reference = program.flat_outputs(expected).values()
        results = _core.Session(program.graph, reference=True).run(arrays)
        assert_close(
            f"{form}, reference kernels", list(results[: len(reference)]), list(reference), tolerance
        )
        for target in targets:
            low = tosaic.lower(program, target=target)
            assert_close(f"{form}, {target}", low.run(*args), expected, tolerance)
            if reference_model and form == "exported" and target == targets[-1]:
                run = run_reference_model(low, *args)
                assert run.ok, f"{target}, reference model: {run.status} {run.log[-400:]}"
                assert_close(f"{target}, reference model", run.outputs, expected, tolerance)
