"""The calls of the bridge to torch: only this folder imports torch, and only when one of them runs.

`from_exported` reads a ``torch.export.ExportedProgram`` into a `Graph` and a `Signature`; the signature needs
no torch afterwards. `apply_layout` writes a layout plan into a copy of such a program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tosaic.base.options import checked
from tosaic.ports.foreign import ForeignOp, operators_by_target

if TYPE_CHECKING:
    from tosaic.annotation.rules import Rule
    from tosaic.fx.layouts.applied import AppliedLayout, Convert
    from tosaic.fx.quantizer.compose import ComposedQuantizer
    from tosaic.fx.quantizer.read import Annotations
    from tosaic.fx.quantizer.wrapper import WrappedQuantizer
    from tosaic.fx.reading.exported_program import ImportedProgram
    from tosaic.lowering.layout import Objective
    from tosaic.ports.boundary_orders import Form

__all__ = [
    "apply_layout",
    "compose_quantizers",
    "fold_norms",
    "from_exported",
    "read_annotations",
    "wrap_quantizer",
]


@checked
def from_exported(
    ep: Any, *, bind: Any = None, method: str = "forward", operators: Sequence[ForeignOp] = ()
) -> ImportedProgram:
    """Reads an exported program into a graph at stage ``exported``: one FX call becomes one node.

    Parameters
    ----------
    ep : torch.export.ExportedProgram
        Decomposed or not, strict or not, in training or inference form; plain ATen or ExecuTorch's edge
        dialect.
    bind : mapping or example inputs, optional
        Sizes of symbolic dimensions. Either ``{"x": {0: 1}}``, by input (path, name or index) and axis, or
        example inputs: a tuple of positional arguments, ``(args, kwargs)``, or a dict of arrays by input
        name.
    method : str
        Name of the graph.
    operators : sequence of ForeignOp
        Descriptions of operators that tosaic does not have.

    Returns
    -------
    ImportedProgram
        The graph, its signature and the diagnostics of the import.

    Raises
    ------
    InvalidGraph
        The program contradicts itself, or contradicts the sizes it is bound to.
    UnsupportedOp
        A dimension is unbound, or the program writes to memory that another live value shares.
    """
    from tosaic.fx.reading.importing import import_program

    described = operators_by_target("from_exported", operators)
    return import_program(ep, bind=bind, method=method, operators=described)


@checked
def apply_layout(
    ep: Any,
    *,
    mode: Literal["annotate", "convert"] = "annotate",
    orders: Mapping[str, Form | Convert | Mapping[str | int, Form | Convert]] | None = None,
    weights: bool = False,
    objective: Objective = "bytes",
    bind: Any = None,
) -> AppliedLayout:
    """Plans the dim orders of an exported program and writes them into a copy of it.

    Parameters
    ----------
    ep : torch.export.ExportedProgram
        Plain ATen or ExecuTorch's edge dialect, float or quantized. The program itself is not changed.
    mode : str
        ``annotate``: sets the strides in ``meta["val"]`` of every call to its planned dim order; adds no
        call. ``convert``: inserts a dim-order conversion where a call reads an operand in another order than
        the operand is stored in: ``aten.clone`` with a memory format, or ``dim_order_ops._clone_dim_order``
        in an edge program. Afterwards, ``meta["val"]`` has the strides that torch computes.
    orders : mapping, optional
        Dim orders of graph inputs and outputs, under the keys ``inputs`` and ``outputs``: one entry for all
        tensors of rank 3 to 5, or entries by name or index. ``traced`` (the default), ``channels_last``,
        ``contiguous`` or a tuple of axes declares the order that the caller's tensors have. With `Convert` of
        one of these, the input or output stays as traced and is converted inside the program. The innermost
        axis of a grid sampler's grid is always its coordinates.
    weights : bool
        Also store weights in the order in which their readers read them; the new program holds copies of
        them.
    objective : {"bytes", "count"} or callable
        What the plan minimizes, as in `tosaic.lower`.
    bind : mapping or example inputs, optional
        Sizes of symbolic dimensions for which the plan is made, as in `from_exported`; shapes stay symbolic.

    Returns
    -------
    AppliedLayout
        The new program, the plan, and the changes and conversions.

    Raises
    ------
    InvalidGraph
        The mode, objective, entry, name, index or order is unknown, or the program contradicts itself.
    LayoutMismatch
        A call that addresses memory by strides would read other elements; the dialect has no conversion to an
        order requested for an input or output; or a grid order or ``nhwc`` is requested.
    UnsupportedOp
        The program writes in place, and conversions are to be inserted.

    Examples
    --------
    >>> import torch
    >>> from tosaic.fx import apply_layout
    >>> ep = torch.export.export(torch.nn.Conv2d(3, 4, 3).eval(), (torch.randn(1, 3, 8, 8),))
    >>> [(c.value, c.to_order) for c in apply_layout(ep, mode="convert").conversions]
    [('input', (0, 2, 3, 1)), ('conv2d', (0, 1, 2, 3))]
    """
    from tosaic.fx.layouts.apply import apply_program_layout

    return apply_program_layout(ep, mode=mode, orders=orders, weights=weights, objective=objective, bind=bind)


@checked
def read_annotations(model: Any, *, author: str = "quantizer") -> Annotations:
    """Reads the annotations that a PT2E quantizer wrote on the nodes of a graph.

    Parameters
    ----------
    model : torch.fx.GraphModule
        After `annotate` of a quantizer.
    author : str
        Who made the annotations, for reports.

    Returns
    -------
    Annotations
        The plan (`tosaic.annotation.Plan`), and methods that write it back.

    Raises
    ------
    InvalidGraph
        `model` is not a GraphModule.

    Examples
    --------
    >>> import torch
    >>> from tosaic.fx import read_annotations
    >>> from torchao.quantization.pt2e.quantizer import FixedQParamsQuantizationSpec, QuantizationAnnotation
    >>> model = torch.export.export(torch.nn.ReLU(), (torch.ones(2),)).module(check_guards=False)
    >>> relu = next(node for node in model.graph.nodes if node.name == "relu")
    >>> half = FixedQParamsQuantizationSpec(torch.int8, 0.5, 0)
    >>> relu.meta["quantization_annotation"] = QuantizationAnnotation(output_qspec=half)
    >>> read_annotations(model).plan.entries("relu")
    {Output('relu'): Fixed(dtype='int8', scale=0.5, qmin=-128, qmax=127, scheme=None)}
    """
    from tosaic.fx.quantizer.graph import check_model
    from tosaic.fx.quantizer.read import read

    return read(check_model(model, "read_annotations"), author=author)


@checked
def wrap_quantizer(inner: Any, *, rules: Sequence[Rule], name: str | None = None) -> WrappedQuantizer:
    """Returns a quantizer that annotates as `inner` does, and then changes the annotations by rules.

    Parameters
    ----------
    inner : torchao.quantization.pt2e.quantizer.Quantizer
        Any quantizer of the PT2E flow, also one that this function returned.
    rules : sequence of rules
        Rules of `tosaic.annotation`, or functions that change a `tosaic.annotation.Plan`. They are applied in
        order.
    name : str, optional
        Who `inner` is, in reports. Default: its class.

    Returns
    -------
    WrappedQuantizer
        For `prepare_pt2e`, `prepare_qat_pt2e` and `ComposableQuantizer`, where it changes annotations of
        `inner` only. Its `report` says what the rules did.

    Raises
    ------
    InvalidGraph
        `inner` is not a quantizer, or `rules` has something that cannot be called. From `prepare_pt2e`: a
        rule matches nothing, and does not allow that.
    """
    from tosaic.fx.quantizer.wrapper import WrappedQuantizer

    return WrappedQuantizer(inner, rules, name)


@checked
def compose_quantizers(
    quantizers: Sequence[Any], *, conflict: Literal["first", "last", "error"] = "error"
) -> ComposedQuantizer:
    """Returns a quantizer that annotates with several quantizers, each as if it were alone.

    Parameters
    ----------
    quantizers : sequence of torchao.quantization.pt2e.quantizer.Quantizer
    conflict : {"first", "last", "error"}
        The quantizer whose annotation a node gets if several quantizers annotate it differently. ``error``:
        `prepare_pt2e` raises an error that lists these nodes.

    Returns
    -------
    ComposedQuantizer
        For `prepare_pt2e` and `prepare_qat_pt2e`. Its `report` says who annotated what, and what was
        replaced; `conflicts` lists the nodes.

    Raises
    ------
    InvalidGraph
        An entry is not a quantizer.
    QuantMismatch
        From `prepare_pt2e`, with ``conflict="error"``.
    """
    from tosaic.fx.quantizer.compose import ComposedQuantizer

    return ComposedQuantizer(quantizers, conflict)


@checked
def fold_norms(model: Any) -> Any:
    """Folds the batch norms of an exported module into the convolutions and linear layers in front of them.

    For `prepare_pt2e`, which folds norms too, but writes into parameters that other calls may read:
    parameters of a head that runs at several levels, or of a convolution whose result something else reads.
    Here each norm gets a call with parameters of its own. Calls that no norm follows, and norms in training
    mode, stay as they are.

    Parameters
    ----------
    model : torch.fx.GraphModule
        The result of ``torch.export.export(module, args).module()``. Its graph is changed. The parameters of
        the exported module are not changed.

    Returns
    -------
    torch.fx.GraphModule
        The same module.

    Raises
    ------
    InvalidGraph
        It is not a GraphModule, or it is prepared already.

    Examples
    --------
    >>> import torch, tosaic
    >>> block = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    >>> model = torch.export.export(block, (torch.ones(1, 3, 8, 8),)).module()
    >>> [node.name for node in tosaic.fx.fold_norms(model).graph.nodes if "aten" in str(node.target)]
    ['conv2d']
    """
    from tosaic.fx.quantizer.folded_norms import fold_norms as folded

    return folded(model)
