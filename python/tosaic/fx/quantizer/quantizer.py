"""A quantizer for torchao's PT2E flow: the core's planner (quant/planner) decides the annotations."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation
from torchao.quantization.pt2e.quantizer import Quantizer as TorchQuantizer
from torchao.quantization.pt2e.utils import _fuse_conv_bn_, _fuse_linear_bn_

from tosaic import _core
from tosaic.annotation.bias import free_crowded_addends, note_crowded_sums
from tosaic.annotation.choice import choose_observers, planner_fields
from tosaic.annotation.config import Precision, QConfig
from tosaic.annotation.joins import Scale
from tosaic.annotation.observers import LeastErrorBehind, MinMax, Observer
from tosaic.annotation.plan import Plan
from tosaic.annotation.resolution import FloatTensor, Resolution, resolve
from tosaic.annotation.specs import Derived, Edge, Fixed, Observed, Output, Shared, Slot, integers_of
from tosaic.annotation.states import share_states
from tosaic.base.defaults import INTEGER_TARGET, WIDE_INTEGER_TARGET
from tosaic.base.options import invalid, refusal, shown
from tosaic.base.verbs import Verb
from tosaic.fx.attention_parts import with_attention_parts_in
from tosaic.fx.quantizer.addends import link_addends, separate_addends
from tosaic.fx.quantizer.averages import separate_averages
from tosaic.fx.quantizer.biases import BiasScale, bias_scale_of, elements_of, link_biases
from tosaic.fx.quantizer.constructors import constructor_of
from tosaic.fx.quantizer.crowded_numbers import note_crowded_numbers
from tosaic.fx.quantizer.folded_norms import refuse_shared_folds
from tosaic.fx.quantizer.functional_parts import with_functional_parts
from tosaic.fx.quantizer.functions import function_of_reader
from tosaic.fx.quantizer.graph import bodies_of, call_graph, check_model
from tosaic.fx.quantizer.held_annotations import KEY, restored_on_error
from tosaic.fx.quantizer.inlined_wrappers import with_inlined_wrappers
from tosaic.fx.quantizer.joined_observers import JoinedScales
from tosaic.fx.quantizer.modes import switch_modes
from tosaic.fx.quantizer.module_graph import import_module
from tosaic.fx.quantizer.observers import TosaicHistogramObserver, name_masks
from tosaic.fx.quantizer.quantizers import plan_of, state_without
from tosaic.fx.quantizer.read import Annotations, read
from tosaic.fx.quantizer.read_ranges import bound_hiding_constants, is_bounded_above, observe_read_ranges
from tosaic.fx.quantizer.scaled_observers import ScaledObservers
from tosaic.fx.quantizer.separated_writes import refuse_separated_writes
from tosaic.fx.quantizer.state_writes import (
    state_writes,
    with_one_node_per_state,
    with_rounded_writes,
    write_to_states,
)
from tosaic.fx.quantizer.write import SpecWriter, note_for_arm
from tosaic.fx.training_calls import Products

# In ``node.meta["custom"]``, which passes copy to the calls that they make of a call.
_PRECISION = "tosaic_precision"
_ANOTHER = "another quantizer"
_NOT_ROUNDED = "it moves numbers, or depends on constants or integers only"
_COMPLEX = "its result is complex"
_IN_PLACE = "it stores its result in a buffer before that is rounded"
_IN_BODY = "integer lowering computes bodies of control flow with floats"


class Quantizer(TorchQuantizer):  # type: ignore[misc]
    """Annotates a graph for torchao's ``prepare_pt2e``, ``prepare_qat_pt2e`` and ``convert_pt2e``.

    A tensor is rounded once, where it is computed. Operators that only move or select elements, and the parts
    of norms, attentions and activations, get no specs: integer lowering computes them exactly. Calls that
    another quantizer annotated before, as in a ``ComposableQuantizer``, are not changed.

    Parameters
    ----------
    config : QConfig, optional
        Default: `QConfig.int8`.
    qat : bool
        Insert fake-quant modules, for ``prepare_qat_pt2e``.
    compatible_with : {"arm"}, optional
        accepts the converted graph, too. It needs integers between all operators. So ExecuTorch's passes
        decompose softmax, norms and other composites, and all their parts get specs. This costs
        accuracy: without the option, integer lowering computes them as a whole. `bias`, a `stream` that is
        ``unrounded`` and `wide_functions` of a `Precision` have no effect then. Needs ExecuTorch.

    Attributes
    ----------
    left_float : dict of str to str
        After ``annotate``: the calls whose float results get no scale of their own, and why. Calls in a body
        of control flow have the path of the body before their names, as in ``true_graph_0.relu``. They get
        no annotations: integer lowering computes such a body with floats.
    not_grouped : dict of str to str
        After ``annotate``: the calls whose weights have a scale per channel although the configuration has a
        group size, and why.

    Raises
    ------
    InvalidGraph
        `config` is not a QConfig, or `compatible_with` has another value. In ``annotate``: a selection of the
        configuration selects nothing, or the model is not a graph, or is prepared already.
    UnsupportedOp
        In ``annotate``: a call writes an input, or memory that is read later through another call, and
        torchao would put a quantize node between them, so that the write is lost. From ``prepare_pt2e``:
        torchao has folded batch norms into a weight that other calls read; see `tosaic.fx.fold_norms`.

    Examples
    --------
    >>> import torch, tosaic
    >>> from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    >>> x = torch.randn(1, 4)
    >>> model = torch.export.export(torch.nn.Linear(4, 2).eval(), (x,)).module()
    >>> prepared = prepare_pt2e(model, tosaic.Quantizer())
    >>> _ = prepared(x)
    >>> converted = torch.export.export(convert_pt2e(prepared), (x,))
    >>> tosaic.check(converted, target="TOSA-1.0+INT").ok
    True
    """

    def __init__(
        self,
        config: QConfig | None = None,
        *,
        qat: bool = False,
        compatible_with: Literal["arm"] | None = None,
    ) -> None:
        super().__init__()
        if compatible_with not in (None, "arm"):
            raise refusal("Quantizer", "compatible_with", "'arm' or None", compatible_with)
        self.config = _checked_config(QConfig.int8() if config is None else config)
        self.qat = qat
        self.compatible_with = compatible_with
        self.left_float: dict[str, str] = {}
        self.not_grouped: dict[str, str] = {}
        self._plan: Plan | None = None
        self._bodies: weakref.WeakSet[GraphModule] = weakref.WeakSet()

    @property
    def plan(self) -> Plan:
        """The plan of the last graph: each spec, and the rule that set it.

        Observers of inputs, and of results that only a function reads, are chosen later, in ``annotate``.

        Raises
        ------
        InvalidGraph
            The quantizer has not annotated a graph yet.
        """
        return plan_of(self._plan, "Quantizer")

    @property
    def report(self) -> Resolution:
        """What was annotated by which rule, and what is left float and why, in the last graph.

        Raises
        ------
        InvalidGraph
            The quantizer has not annotated a graph yet.
        """
        found = resolve(self.plan, self.left_float)
        rows = [self._with_reason(row) for row in found.left_float]
        history = [change for change in found.history if change.set_by == _ANOTHER]
        used = {row.set_by for row in found.slots}
        authors = [each for each in found.authors if each.name in used]
        return replace(found, left_float=tuple(rows), history=tuple(history), authors=tuple(authors))

    def _with_reason(self, row: FloatTensor) -> FloatTensor:
        if row.reason != "not annotated":
            return row
        is_call = row.node in self.plan.graph and self.plan.graph[row.node].kind == "call"
        return replace(row, reason=_NOT_ROUNDED if is_call else "no call that reads it is quantized")

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Passes tensors by position that calls take by keyword: torch refuses to annotate such calls.

        Writes to parts of tensors and to inputs become functional. Calls that update a state in place become
        calls whose result can be rounded before it is stored. Calls inside of ``with torch.no_grad():`` and
        similar wrappers become calls of the graph, except for training.

        With `compatible_with`, decomposes the calls that are quantized. An attention becomes the operators
        that it computes, unless the configuration computes it with 32 bits.
        """
        check_model(model, "Quantizer")
        inlined = not self.qat and with_inlined_wrappers(model)
        if inlined:
            _fuse_conv_bn_(model)  # as torchao did with the calls outside of wrappers
            _fuse_linear_bn_(model)
        refuse_shared_folds(model, "Quantizer")
        with_one_node_per_state(model)
        with_functional_parts(model)
        with_rounded_writes(model)
        if self.compatible_with is not None:
            model = self._decompose(model)
        elif self.config.takes_attentions_apart():
            with_attention_parts_in(model)
        pass_by_position(model)
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Writes ``node.meta["quantization_annotation"]`` of the calls that get specs.

        After an error, the graph has the annotations and metadata that it had before.
        """
        check_model(model, "Quantizer")
        # torchao also calls this for bodies of loops, after the graph that calls the bodies.
        if model not in self._bodies:
            with restored_on_error(model):
                self._annotate(model)
        return model

    def _annotate(self, model: GraphModule) -> None:
        found = read(model, author=_ANOTHER)
        plan, nodes = found.plan, found.nodes
        chosen, precisions = self._resolve(plan, nodes)
        noise = Products(model.graph).noise  # calls of random factors, which only training reads
        chosen = [-1 if node in noise else each for node, each in zip(nodes.values(), chosen, strict=True)]
        graph, values = import_module(model, stores=False)
        taken = _taken(found)
        for_arm = self.compatible_with == "arm"
        if for_arm:  # its lowering supports only derived biases, also for sums of 48 bits
            precisions = [replace(each, bias="derived") for each in precisions]
        fields = [
            planner_fields(each, _bias_qparams if each.bias == "derived" else None) for each in precisions
        ]
        left, joined, scaled = _core.plan_specs(
            plan.core,
            graph,
            values,
            chosen,
            fields,
            for_arm or self.config.every_operator,
            for_arm=for_arm,
        )
        _leave_complex_float(plan, taken)
        stored = ((state.name, source.name) for _, state, source in state_writes(model))
        share_states(plan, [names for names in stored if not taken.intersection(names)])
        plan.refer_to_first()
        take_addends = note_crowded_sums if for_arm or self.config.every_operator else free_crowded_addends
        take_addends(plan, lambda name: elements_of(model, nodes[name]))
        left_float = {name: reason for name, reason, _ in left}
        rules = [rule for rule, _, _ in plan.core.rules]
        not_grouped = {
            slot.user: rules[rule]
            for name in nodes
            if name not in taken
            for slot, _, rule in plan.core.entries(name)
            if isinstance(slot, Edge) and rules[rule] == _core.UNGROUPED_WEIGHT
        }
        observers = {} if self.qat else _chosen_observers(plan, nodes, for_arm)
        _join_observers(plan, joined, observers)
        if not for_arm:
            _scale_observers(plan, scaled, observers)
        writer = SpecWriter(nodes, self.qat, observer=MinMax())
        _write(plan.core, nodes, taken, observers, writer, self._biases(model, plan, nodes, taken))
        if for_arm:
            for name, node in nodes.items():
                if node.op == "call_function" and name not in taken:
                    note_for_arm(node, plan.core.has_annotation(name))
        refuse_separated_writes(model)
        left_float |= dict.fromkeys(_writing_states(nodes.values()), _IN_PLACE)
        left_float |= {call.name: _COMPLEX for call in plan.graph if call.dtype.startswith("complex")}
        bodies = bodies_of(model)
        for path, body in bodies.items():
            left_float |= {f"{path}.{name}": _IN_BODY for name in _float_calls(body)}
        self.left_float, self.not_grouped, self._plan = left_float, not_grouped, plan
        self._bodies.update(bodies.values())

    def _biases(
        self, model: GraphModule, plan: Plan, nodes: Mapping[str, Node], taken: set[str]
    ) -> dict[Slot, Derived]:
        """Returns the specs of biases, whose functions know the elements."""
        unit_of_sums = self.compatible_with == "arm" or self.config.every_operator
        found: dict[Slot, Derived] = {}
        for slot in plan:
            spec = plan[slot]
            if not isinstance(slot, Edge) or not isinstance(spec, Derived) or slot.user in taken:
                continue
            bias, call = nodes[slot.producer], nodes[slot.user]
            function = bias_scale_of(model, bias, call, unit_of_sums=unit_of_sums)
            found[slot] = replace(spec, function=function)
        return found

    def _decompose(self, model: GraphModule) -> GraphModule:
        """Runs the passes of Arm's quantizers; new calls carry the precision of the replaced call."""
        plan = Plan(call_graph(model))
        chosen, precisions = self.config.resolve(plan)
        calls = set()
        for node, index in zip(model.graph.nodes, chosen, strict=True):
            if node.op == "call_function":
                node.meta["custom"] = {**(node.meta.get("custom") or {}), _PRECISION: index}
                if index >= 0:
                    calls.add(node.name)
        calls.update(separate_addends(model, calls))
        is_wide = any(each.activation.dtype == "int16" for each in precisions)
        spec = WIDE_INTEGER_TARGET if is_wide else INTEGER_TARGET
        decomposed = decompose_for_arm(model, calls, spec)
        write_to_states(decomposed)
        bound_hiding_constants(decomposed)
        return check_model(decomposed, "Quantizer")

    def _resolve(self, plan: Plan, nodes: Mapping[str, Node]) -> tuple[list[int], list[Precision]]:
        """As `QConfig.resolve`, but calls that passes made from a call have the precision of that call.

        If passes dropped the metadata, a call has the precision of an operand, or else of a user: only
        quantized calls are decomposed, so it belongs to one.
        """
        notes = {name: node.meta.get("custom") or {} for name, node in nodes.items()}
        found = {name: note.get(_PRECISION) for name, note in notes.items()}
        for note in notes.values():  # calls made from one call share one dictionary
            note.pop(_PRECISION, None)
        if all(each is None for each in found.values()):
            return self.config.resolve(plan)
        for neighbours, order in (("all_input_nodes", list(nodes)), ("users", list(nodes)[::-1])):
            for name in order:
                if found[name] is None and nodes[name].op == "call_function":
                    known = (found[each.name] for each in getattr(nodes[name], neighbours))
                    found[name] = next((each for each in known if each is not None and each >= 0), None)
        return [-1 if each is None else each for each in found.values()], self.config.precisions()

    def validate(self, model: GraphModule) -> None:
        """Accepts every graph. For training, its calls learn from `switch_modes` which mode they are in."""
        if self.qat:
            switch_modes(model)

    def prepare_obs_or_fq_callback(
        self,
        model: GraphModule,
        edge_or_node_to_obs_or_fq: dict[Any, Any],
    ) -> None:
        """Tells observers what they need to know: biases, averages of the same group, and names of masks."""
        link_biases(edge_or_node_to_obs_or_fq)
        every_operator = self.compatible_with == "arm" or self.config.every_operator
        if every_operator:
            link_addends(model, edge_or_node_to_obs_or_fq)
        note_crowded_numbers(edge_or_node_to_obs_or_fq, every_operator=every_operator)
        name_masks(edge_or_node_to_obs_or_fq)
        separate_averages(edge_or_node_to_obs_or_fq)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have the configuration, but no plan: it belongs to a graph."""
        return state_without(self, "_plan", "_bodies", "left_float", "not_grouped")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy, which has not annotated a graph yet."""
        self.__dict__.update(state, _plan=None, _bodies=weakref.WeakSet(), left_float={}, not_grouped={})


def _checked_config(config: Any) -> QConfig:
    if isinstance(config, QConfig):
        return config
    raise invalid(
        "Quantizer",
        "the configuration is wrong",
        expected="a tosaic.QConfig, such as tosaic.QConfig.int8()",
        got=shown(config),
    )


def _bias_qparams(sources: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the qparams of a bias: the product of the scales of data and weight.

    Annotations then get a `BiasScale`, which knows the bias, in place of this function.
    """
    return BiasScale("", None, None, unit_of_sums=False)(sources)


def _writing_states(nodes: Iterable[Node]) -> Iterator[str]:
    """Yields the names of calls that write a float buffer in place."""
    viewed: dict[Node, Node] = {}  # node -> the first operand of its chain of calls
    for node in nodes:
        if node.op == "call_function" and node.all_input_nodes:
            first = node.all_input_nodes[0]
            viewed[node] = viewed.get(first, first)
        if _writes_state(node, viewed):
            yield node.name


def _writes_state(node: Node, viewed: Mapping[Node, Node]) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return False
    first = node.args[0] if node.args else None
    if node.target == torch.ops.aten.copy_.default and isinstance(first, Node) and first.op == "get_attr":
        return False  # the stored value is rounded before
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is None or not argument.alias_info.is_write or not isinstance(value, Node):
            continue
        buffer = viewed.get(value, value)
        tensor = buffer.meta.get("val")
        if buffer.op == "get_attr" and (tensor is None or tensor.is_floating_point()):
            return True
    return False


def _leave_complex_float(plan: Plan, taken: set[str]) -> None:
    """Removes the planner's specs of complex values: their parts are not tensors of torch's graph."""

    def is_complex(slot: Slot) -> bool:
        source = slot.producer if isinstance(slot, Edge) else slot.node
        return plan.graph[source].dtype.startswith("complex")

    slots = dict.fromkeys(plan.slots())
    for slot in slots:
        spec = plan.get(slot)
        while isinstance(spec, Shared) and is_complex(spec.slot):
            spec = plan.get(spec.slot)
        if spec is not None and not is_complex(slot) and spec != plan.get(slot):
            plan.set(slot, spec)
    for slot in filter(is_complex, slots):
        while (
            plan.get(slot) is not None and (slot.user if isinstance(slot, Edge) else slot.node) not in taken
        ):
            del plan[slot]


def _float_calls(body: GraphModule) -> Iterator[str]:
    for node in body.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor) and value.is_floating_point():
            yield node.name


def pass_by_position(model: GraphModule) -> None:
    """Passes tensors by position that calls take by keyword."""
    for node in model.graph.nodes:
        if any(isinstance(value, Node) for value in node.kwargs.values()):
            _pass_by_position(node)
    model.recompile()


def _pass_by_position(node: Node) -> None:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    wanted = [i for i, a in enumerate(positional) if isinstance(node.kwargs.get(a.name), Node)]
    if not wanted:
        return
    args, kwargs = list(node.args), dict(node.kwargs)
    for argument in positional[len(args) : wanted[-1] + 1]:
        args.append(kwargs.pop(argument.name) if argument.name in kwargs else argument.default_value)
    node.args, node.kwargs = tuple(args), kwargs


# ---- annotations ----


def _taken(found: Annotations) -> set[str]:
    """Returns the nodes that another quantizer annotated, and removes unset annotations from the plan."""
    taken = set()
    for name, each in found.found.items():
        if each.annotation._annotated:
            taken.add(name)
            continue
        for slot in each.own:
            del found.plan[slot]
    return taken


def _chosen_observers(plan: Plan, nodes: Mapping[str, Node], for_arm: bool) -> dict[Slot, Observed]:
    """Returns the specs with the observers that suit the uses of their tensors, as torchao takes them.

    Arm's flow needs exact upper bounds, and observes only the numbers that readers distinguish.
    """
    exact = [
        slot for slot in plan if for_arm and isinstance(slot, Output) and is_bounded_above(nodes[slot.node])
    ]
    found: dict[Slot, Observed] = {}
    for slot, observer in choose_observers(plan, exact=exact).items():
        spec = plan[slot]
        assert isinstance(spec, Observed)
        made: Any = observer
        if isinstance(observer, LeastErrorBehind):
            assert isinstance(slot, Output)
            function = function_of_reader(nodes[slot.node])
            options = {} if function is None else {"behind": function}
            made = TosaicHistogramObserver.with_args(**options, eps=observer.eps)
        found[slot] = replace(spec, observer=made)
    if for_arm:
        found |= observe_read_ranges(plan, nodes)
    return found


def _join_observers(plan: Plan, joined: Sequence[tuple[Slot, Slot]], observers: dict[Slot, Observed]) -> None:
    """Lets operands of joins take the scale of the result if their ranges of samples nearly agree."""
    first = {slot: group.decided_by for group in plan.groups() for slot in group.slots}
    pairs = [(first.get(operand), first.get(result)) for operand, result in joined]
    joins = JoinedScales([(a, b) for a, b in pairs if a in observers and b in observers and a != b])
    _take_part(joins, observers)


def _scale_observers(
    plan: Plan, scaled: Sequence[tuple[Slot, Slot, float]], observers: dict[Slot, Observed]
) -> None:
    """Lets products and quotients by numbers have the same integers as their operands."""
    first = {slot: group.decided_by for group in plan.groups() for slot in group.slots}
    results: list[tuple[Slot, Slot, float]] = []
    known: dict[Slot, Scale] = {}
    for operand, result, factor in scaled:
        source, spec = first.get(operand), plan.get(operand)
        if source is None or first.get(result) != result or result not in observers:
            continue
        if isinstance(spec, Fixed):
            known[source] = Scale(spec.scale, spec.zero_point, f"torch.{spec.dtype}", *integers_of(spec))
        if source in observers or source in known:
            results.append((source, result, factor))
    if results:
        _take_part(ScaledObservers(results, known), observers)


def _take_part(among: JoinedScales | ScaledObservers, observers: dict[Slot, Observed]) -> None:
    for slot in among.slots:
        spec = observers[slot]
        made = spec.observer
        if isinstance(made, Observer):
            made = constructor_of(made, spec, qat=False)
        observers[slot] = replace(spec, observer=among.constructor(slot, made))


def _write(
    plan: Any,
    nodes: Mapping[str, Node],
    taken: set[str],
    observers: Mapping[Slot, Observed],
    writer: SpecWriter,
    biases: Mapping[Slot, Derived],
) -> None:
    for name, node in nodes.items():
        if name in taken or not plan.has_annotation(name):
            continue
        edges, output = {}, None
        for slot, spec, _ in plan.entries(name):
            found = writer.spec(slot, observers.get(slot) or biases.get(slot, spec))
            if isinstance(slot, Edge):
                edges[nodes[slot.producer]] = found
            else:
                output = found
        node.meta[KEY] = QuantizationAnnotation(input_qspec_map=edges, output_qspec=output, _annotated=True)


@Verb
def decompose_for_arm(model: GraphModule, calls: Collection[str], spec: str, /) -> GraphModule:
    """Returns the graph after the passes that Arm's quantizers run before they annotate."""
    raise NotImplementedError
