"""Sharing groups equal the groups of torchao's prepare, on random annotated graphs."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torchao.quantization.pt2e import prepare
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
)
from tosaic.annotation import (
    FLOAT,
    Call,
    CallGraph,
    Derived,
    Edge,
    Fixed,
    Group,
    Observed,
    Operand,
    Output,
    Plan,
    Shared,
)

KEY = "quantization_annotation"
AFFINE, SYMMETRIC = torch.per_tensor_affine, torch.per_tensor_symmetric
REFUSED = {"missing reference", "cycle of references", "later reference"}


class RecorderPerChannel:
    """Stands for an observer: it has the arguments that torchao makes it with."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    @classmethod
    def with_args(cls, **fields: Any) -> Any:
        return partial(cls, **fields)


def derive(observers: Any) -> Any:
    return torch.tensor(1.0), torch.tensor(0)


# Pairs of a torchao spec and ours.
CONCRETE = [
    (QuantizationSpec(torch.int8, RecorderPerChannel, -128, 127, AFFINE), Observed("int8", -128, 127)),
    (QuantizationSpec(torch.int8, RecorderPerChannel, -127, 127, AFFINE), Observed("int8", -127, 127)),
    (
        QuantizationSpec(torch.int8, RecorderPerChannel, -128, 127, AFFINE, 0),
        Observed("int8", -128, 127, axis=0),
    ),
    (QuantizationSpec(torch.int16, RecorderPerChannel), Observed("int16", scheme=None)),
    (
        QuantizationSpec(torch.int8, RecorderPerChannel, -128, 127, AFFINE, is_dynamic=True),
        Observed("int8", -128, 127, dynamic=True),
    ),
    (
        FixedQParamsQuantizationSpec(torch.int8, 1 / 127, 0, -128, 127, AFFINE),
        Fixed("int8", 1 / 127, 0, -128, 127),
    ),
    (
        FixedQParamsQuantizationSpec(torch.int8, 1 / 128, 0, -128, 127, AFFINE),
        Fixed("int8", 1 / 128, 0, -128, 127),
    ),
    (
        FixedQParamsQuantizationSpec(torch.int8, 1 / 127, 1, -128, 127, AFFINE),
        Fixed("int8", 1 / 127, 1, -128, 127),
    ),
    (None, FLOAT),
]


class Annotated:
    """A graph of torch and a plan, annotated alike."""

    def __init__(self, readers: list[list[int]]) -> None:
        self.graph = fx.Graph()
        self.nodes: list[fx.Node] = []
        calls = []
        for number, read in enumerate(readers):
            if not read:
                node = self.graph.placeholder(f"x{number}")
            else:
                node = self.graph.call_function(torch.cat, ([self.nodes[i] for i in read],))
                node.name = f"n{number}"
            self.nodes.append(node)
            kind: Any = "call" if read else "placeholder"
            operands = tuple(Operand(f"args[0][{k}]", self.nodes[i].name) for k, i in enumerate(read))
            calls.append((node, kind, operands))
        self.calls = [
            Call(node.name, kind, operands=operands, users=tuple(user.name for user in node.users))
            for node, kind, operands in calls
        ]
        self.plan = Plan(CallGraph(self.calls))

    def annotate(self, node: fx.Node) -> QuantizationAnnotation:
        return node.meta.setdefault(KEY, QuantizationAnnotation())

    def set(self, where: Any, theirs: Any, ours: Any) -> None:
        if isinstance(where, tuple):
            self.annotate(where[1]).input_qspec_map[where[0]] = theirs
        else:
            self.annotate(where).output_qspec = theirs
        self.plan[slot(where)] = ours

    def share(self, where: Any, target: Any) -> None:
        self.set(where, SharedQuantizationSpec(target), Shared(slot(target)))

    def disallow_implicit_sharing(self, node: fx.Node) -> None:
        self.annotate(node).allow_implicit_sharing = False
        self.plan.set_flags(node.name, allow_implicit_sharing=False)

    def specs(self) -> dict[Any, Any]:
        return prepare._get_edge_or_node_to_qspec(SimpleNamespace(graph=self.graph))


def slot(where: Any) -> Any:
    return Edge(where[0].name, where[1].name) if isinstance(where, tuple) else Output(where.name)


def torch_groups(specs: dict[Any, Any]) -> tuple[dict[Any, int], dict[Any, Any]]:
    """Returns the group of each slot and, from torchao's last look-ups, its root."""
    roots: dict[Any, Any] = {}
    find = prepare._find_root_edge_or_node

    def recorded(where: Any, shared: Any) -> Any:
        found = find(where, shared)
        roots[slot(where)] = slot(found)
        return found

    prepare._find_root_edge_or_node = recorded
    try:
        groups = prepare._get_edge_or_node_to_group_id(specs)
    finally:
        prepare._find_root_edge_or_node = find
    return {slot(where): group for where, group in groups.items()}, roots


def check_equal_to_torch(made: Annotated) -> str:
    """Compares groups, roots and deciding specs, or that both refuse. Returns 'refused' or 'equal'."""
    specs = made.specs()
    kinds = {conflict.kind for conflict in made.plan.conflicts()}
    try:
        theirs, roots = torch_groups(specs)
        observers = prepare._get_obs_or_fq_map(
            prepare._get_edge_or_node_to_group_id(specs), specs, is_qat=False
        )
    except (KeyError, RecursionError, AssertionError):
        assert kinds & REFUSED, "torchao raises, and the plan has no conflict that says so"
        return "refused"
    assert not kinds & REFUSED
    groups = made.plan.groups()
    ours = {where: number for number, group in enumerate(groups) for where in group.slots}
    assert ours == renumbered(theirs, groups)
    assert {where: groups[number].root for where, number in ours.items()} == {w: roots[w] for w in ours}
    for where, observer in observers.items():
        check_observer(observer, groups[ours[slot(where)]])
    return "equal"


def renumbered(theirs: dict[Any, int], groups: tuple[Group, ...]) -> dict[Any, int]:
    """Numbers torchao's groups by their first slots in the order of the plan, as ours are."""
    order: dict[int, int] = {}
    for group in groups:
        for where in group.slots:
            order.setdefault(theirs[where], len(order))
    return {where: order[group] for where, group in theirs.items()}


def check_observer(observer: Any, group: Group) -> None:
    spec = group.spec
    if observer is None or spec == FLOAT:
        assert observer is None
        assert spec == FLOAT
    elif isinstance(spec, Fixed):
        assert (float(observer.scale), int(observer.zero_point)) == pytest.approx(
            (spec.scale, spec.zero_point)
        )
    elif isinstance(spec, Observed):
        fields = {
            "dtype": getattr(torch, spec.dtype),
            "quant_min": spec.qmin,
            "quant_max": spec.qmax,
            "qscheme": spec.scheme and getattr(torch, spec.scheme),
            "ch_axis": spec.axis,
            "is_dynamic": spec.dynamic,
        }
        assert observer.fields == fields
    else:
        assert isinstance(spec, Derived)
        assert observer.derive_qparams_fn is spec.function


def random_graph(source: random.Random) -> list[list[int]]:
    count = source.randint(3, 9)
    readers: list[list[int]] = [[]]
    for number in range(1, count):
        few = source.randint(0, min(3, number))
        readers.append([source.randrange(number) for _ in range(few)])
    return readers


def annotate_randomly(made: Annotated, source: random.Random, *, wild: float) -> None:
    """Annotates most slots; with probability `wild`, a shared spec refers to any slot, not an earlier one."""
    slots: list[Any] = []
    for node in made.nodes:
        producers = list(node.all_input_nodes)
        source.shuffle(producers)
        slots += [(producer, node) for producer in producers] + [node]
    chosen = [where for where in slots if source.random() < 0.85]
    few = source.sample(CONCRETE, source.randint(1, 4))
    for number, where in enumerate(chosen):
        pool = slots if source.random() < wild else chosen[:number]
        kind = source.random()
        if kind < 0.45 and pool:
            made.share(where, source.choice(pool))
        elif kind < 0.5 and number:
            derive_from(made, where, [source.choice(chosen[:number])])
        else:
            made.set(where, *source.choice(few))
    for node in made.nodes:
        if KEY in node.meta and source.random() < 0.15:
            made.disallow_implicit_sharing(node)


def derive_from(made: Annotated, where: Any, sources: list[Any]) -> None:
    theirs = DerivedQuantizationSpec(sources, derive, torch.int8, -128, 127, AFFINE)
    ours = Derived(tuple(map(slot, sources)), derive, "int8", -128, 127, "per_tensor_affine")
    made.set(where, theirs, ours)


@pytest.mark.parametrize("wild", [0.0, 0.1, 0.5])
def test_groups_roots_and_specs_equal_torchaos_on_random_graphs(wild: float) -> None:
    seen = {"equal": 0, "refused": 0}
    for seed in range(700):
        source = random.Random(f"{seed} {wild}")
        made = Annotated(random_graph(source))
        annotate_randomly(made, source, wild=wild)
        try:
            seen[check_equal_to_torch(made)] += 1
        except BaseException:
            print("seed", seed, "wild", wild)
            raise
    assert seen["equal"] > 100, seen
    assert seen["refused"] > 20 or wild == 0, seen


# ---- cases with names ----

INT8, INT8_NARROW, INT8_AXIS, INT16, DYNAMIC, FIXED, FIXED_OTHER, FIXED_ZERO, NONE = CONCRETE


def line(*specs: Any) -> Annotated:
    """x0 -> n1 -> n2: sets the specs of x0, x0 -> n1, n1, n1 -> n2, n2; None: no spec."""
    made = Annotated([[], [0], [1]])
    x, a, b = made.nodes
    for where, spec in zip((x, (x, a), a, (a, b), b), specs, strict=True):
        if callable(spec):
            spec(made, where)
        elif spec is not None:
            made.set(where, *spec)
    return made


def shared(position: int) -> Any:
    def share(made: Annotated, where: Any) -> None:
        x, a, b = made.nodes
        made.share(where, (x, (x, a), a, (a, b), b)[position])

    return share


def derived(made: Annotated, where: Any) -> None:
    derive_from(made, where, [made.nodes[0]])


def sizes(made: Annotated) -> list[int]:
    assert check_equal_to_torch(made) == "equal"
    return [len(group.slots) for group in made.plan.groups()]


@pytest.mark.parametrize("spec", CONCRETE[:-1])
def test_equal_specs_of_one_tensor_share(spec: Any) -> None:
    assert sizes(line(spec, spec, spec, spec, spec)) == [2, 2, 1]


@pytest.mark.parametrize("other", [INT8_NARROW, INT8_AXIS, INT16, DYNAMIC, FIXED])
def test_specs_that_differ_in_one_field_do_not_share(other: Any) -> None:
    assert sizes(line(INT8, other, None, None, None)) == [1, 1]


@pytest.mark.parametrize("other", [FIXED_OTHER, FIXED_ZERO])
def test_fixed_specs_of_other_numbers_do_not_share(other: Any) -> None:
    assert sizes(line(FIXED, other, None, None, None)) == [1, 1]


def test_a_derived_spec_shares_with_an_observed_one_of_equal_fields() -> None:
    assert sizes(line(INT8, None, INT8, derived, None)) == [1, 2]


def test_a_fixed_spec_which_has_no_axis_does_not_share_with_an_observed_one() -> None:
    fixed = FixedQParamsQuantizationSpec(torch.int8, 1.0, 0, -128, 127, AFFINE)
    assert sizes(line(INT8, (fixed, Fixed("int8", 1.0, 0, -128, 127)), None, None, None)) == [1, 1]


def test_float_edges_do_not_share() -> None:
    made = Annotated([[], [0], [0]])
    x, a, b = made.nodes
    made.set((x, a), *NONE)
    made.set((x, b), *NONE)
    assert sizes(made) == [1, 1]


def test_without_implicit_sharing_only_references_join_slots() -> None:
    made = line(INT8, INT8, shared(1), INT8, None)
    made.disallow_implicit_sharing(made.nodes[1])
    assert sizes(made) == [1, 3]
    made.disallow_implicit_sharing(made.nodes[2])
    assert sizes(made) == [1, 2, 1]


def test_a_chain_of_references_is_one_group() -> None:
    assert sizes(line(INT8, shared(0), shared(1), shared(2), shared(3))) == [5]


def test_a_concat_of_five_inputs_is_one_group() -> None:
    made = Annotated([[], [], [], [], [], [0, 1, 2, 3, 4]])
    *inputs, cat = made.nodes
    first = (inputs[0], cat)
    for node in inputs:
        made.set(node, *INT8)
    made.set(first, *INT8)
    for where in [*((node, cat) for node in inputs[1:]), cat]:
        made.share(where, first)
    assert sizes(made) == [11]


def test_an_edge_stays_the_root_of_an_edge_that_refers_to_it() -> None:
    # The first edge joins the second implicitly; the second refers to the first already.
    made = Annotated([[], [0], [0]])
    x, a, b = made.nodes
    made.set((x, a), *INT8)
    made.share((x, b), (x, a))
    assert sizes(made) == [2]
    assert made.plan.groups()[0].root == Edge("x0", "n1")


def test_a_sharing_cycle_through_a_residual_can_be_resolved() -> None:
    made = Annotated([[], [0], [0, 1]])
    x, a, total = made.nodes
    made.set((x, a), *INT8)
    made.share(a, (x, a))
    made.set((x, total), *INT8)
    made.share((a, total), (x, total))
    made.share(total, (x, total))
    made.share(x, (x, a))
    made.annotate(x)
    assert check_equal_to_torch(made) == "refused"
    made.plan.refer_to_first()
    assert not {conflict.kind for conflict in made.plan.conflicts()} & REFUSED
    assert made.plan[Output("x0")] == INT8[1]


def test_a_root_that_comes_later_is_a_conflict_that_can_be_resolved() -> None:
    made = line(shared(1), INT8, shared(1), None, None)
    assert check_equal_to_torch(made) == "refused"
    assert made.plan.conflicts()[0].text == "'x0' refers to 'x0 -> n1', which comes later: torch refuses that"
    made.plan.refer_to_first()
    assert (made.plan[Output("x0")], made.plan[Edge("x0", "n1")]) == (INT8[1], Shared(Output("x0")))
    assert made.plan.conflicts() == ()


def test_a_cycle_of_references_is_a_conflict() -> None:
    made = line(None, shared(2), shared(1), None, None)
    assert check_equal_to_torch(made) == "refused"
    assert "cycle of references" in {conflict.kind for conflict in made.plan.conflicts()}
    assert made.plan.groups()[0].spec is None


def test_a_reference_to_a_slot_without_a_spec_is_a_conflict() -> None:
    made = line(None, shared(0), None, None, None)
    assert check_equal_to_torch(made) == "refused"
    assert [conflict.kind for conflict in made.plan.conflicts()] == ["missing reference"]


def test_a_slot_that_shares_with_a_float_edge_is_float() -> None:
    made = line(None, NONE, shared(1), None, None)
    assert sizes(made) == [2]
    assert made.plan.groups()[0].spec == FLOAT
