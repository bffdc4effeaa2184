"""Batch norms folded before calibration: by `fold_norms` into own weights, or by torchao into shared ones.

torchao's `prepare_pt2e` folds each batch norm into the parameters of the call in front of it, before it asks
a quantizer. Other calls that read these parameters, or the result of the call, get the folded numbers, too::

    conv2d   = conv(x, w)        norm_0 = batch_norm(conv2d, ..)          conv2d   = conv(x, w0, b1)
    conv2d_1 = conv(y, w)        norm_1 = batch_norm(conv2d_1, ..)        conv2d_1 = conv(y, w0, b1)

`fold_norms` makes a call with its own parameters for each norm. `refuse_shared_folds` finds wrong folds by
torchao: the folded norms are erased, but the table of the graph's node names still has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from tosaic import _core
from tosaic.fx.quantizer.graph import check_model
from tosaic.fx.quantizer.trained_norms import (
    PLAIN_CONVOLUTIONS,
    TRANSPOSED_CONVOLUTIONS,
    FusedNorm,
    fold_of,
    is_contraction,
)
from tosaic.torch_operators.origins import Where, origin_of

_ATEN = torch.ops.aten
_NORMS = (_ATEN.batch_norm.default, _ATEN._native_batch_norm_legit_no_training.default)
_CONTRACTIONS = PLAIN_CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS | {_ATEN.linear.default}
_FOLDED = "tosaic_folded_norms"


def fold_norms(model: GraphModule) -> GraphModule:
    """See `tosaic.fx.fold_norms`."""
    check_model(model, "fold_norms")
    folded: dict[object, Node] = {}
    for norm in list(model.graph.nodes):
        fold = _fold(norm)
        if fold is None:
            continue
        call = norm.args[0]
        if len(call.users) > 1:
            with model.graph.inserting_before(norm):
                copy = model.graph.node_copy(call)
            norm.replace_input_with(call, copy)
            call = copy
        fold.fold(model, norm, call, folded)
    model.meta[_FOLDED] = True
    model.recompile()
    return model


def _fold(norm: Node) -> FusedNorm | None:
    if norm.target != _ATEN.batch_norm.default or norm.args[5] is not False:
        return None
    return fold_of(norm)


def refuse_shared_folds(model: GraphModule, where: str) -> None:
    """Refuses a graph in which torchao has folded norms into parameters that other calls read, too.

    Raises
    ------
    UnsupportedOp
        It names the calls and the norms.
    """
    if model.meta.get(_FOLDED):
        return
    known = [each for each in _named(model) if is_contraction(each) or each.target in _NORMS]
    norms = [each for each in known if each._erased and each.target in _NORMS]
    if not norms:
        return
    live = [each for each in model.graph.nodes if is_contraction(each)]
    _refuse_norms_without_call(norms, live, where)
    norm_of = _norms_by_call(known)
    by_weight: dict[str, list[Node]] = {}
    for call in live:
        if isinstance(weight := call.args[1], Node) and weight.op == "get_attr":
            by_weight.setdefault(str(weight.target), []).append(call)
    for path, calls in by_weight.items():
        found = [norm_of[call] for call in calls if call in norm_of]
        if len(calls) > 1 and found and not _is_one_fold(path, calls, norm_of):
            raise _refusal(calls, f"the weight '{path}'", found, where)


def _named(model: GraphModule) -> Iterator[Node]:
    """Yields the call nodes in the graph's table of names, in order, including erased nodes."""
    space = getattr(model.graph, "_graph_namespace", None)
    for each in list(getattr(space, "_obj_to_name", ())):
        if isinstance(each, Node) and each.op == "call_function":
            yield each


def _shape(node: Node) -> tuple[object, ...]:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) else value
    return tuple(getattr(first, "shape", ()))


def _refuse_norms_without_call(norms: list[Node], live: list[Node], where: str) -> None:
    """Refuses a graph that has calls of a shape, but fewer than folded norms of this shape."""
    calls = Counter(map(_shape, live))
    for shape, count in Counter(map(_shape, norms)).items():
        alike = [each for each in live if _shape(each) == shape]
        if alike and count > calls[shape]:
            readers = [each for each in norms if _shape(each) == shape]
            raise _refusal(alike, "the result of one call", readers, where)


def _norms_by_call(known: list[Node]) -> dict[Node, Node]:
    """Returns for each call the norm that was after it: the next norm of its shape."""
    waiting: dict[tuple[object, ...], list[Node]] = {}
    found = {}
    for node in known:
        if node.target not in _NORMS:
            waiting.setdefault(_shape(node), []).append(node)
        elif node._erased and waiting.get(_shape(node)):
            found[waiting[_shape(node)].pop()] = node
    return found


def _is_one_fold(path: str, calls: list[Node], norm_of: dict[Node, Node]) -> bool:
    """True if all calls had the same norm after them, and a bias that torchao did not add itself."""
    paths = {_path(norm_of[call]) if call in norm_of else None for call in calls}
    biases = {_bias(call) for call in calls}
    return len(paths) == 1 and None not in paths and biases.isdisjoint({None, f"{path}_bias"})


def _bias(call: Node) -> str | None:
    bias = call.args[2] if len(call.args) > 2 else None
    return str(bias.target) if isinstance(bias, Node) else None


def _path(norm: Node) -> str:
    """Returns the path of the module of a norm, or its name if it has none."""
    return origin_of(norm.name, str(norm.target), norm.meta)[2] or norm.name


def _refusal(calls: list[Node], what: str, norms: list[Node], where: str) -> Exception:
    names = ", ".join(f"'{_path(each)}'" for each in norms)
    readers = ", ".join(f"'{each.name}'" for each in calls)
    return Where.of(calls[-1], where).error(
        _core.UnsupportedOp,
        f"torchao has folded the batch norms {names} into the parameters of {readers}, which read {what}, "
        "so that the numbers are wrong",
        hint="Call tosaic.fx.fold_norms(module) on a newly exported module before prepare_pt2e: it folds "
        "each norm into parameters of its own. So does tosaic.quantize",
    )
