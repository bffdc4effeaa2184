"""Recipes print, save, compare and combine without loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tosaic
from tosaic import Recipe, recipes
from tosaic.annotation import Clear, Fix, Inputs, MinMax, Operator, Outputs, Select, q_format
from tosaic.calibration.accuracy import Gptq
from tosaic.recipes import PassChange, Stage

Q7, Q15 = q_format("Q0.7"), q_format("Q0.15")


def doubles(graph: Any) -> None:
    """A pass that changes nothing."""


def checks(value: Any, context: Any, *, least: float = 0.0) -> None:
    """A stage that changes nothing."""


def rule(plan: Any) -> None:
    """A rule that changes nothing."""


FULL = Recipe(
    name="full",
    summary="Everything that a recipe may have.",
    config=tosaic.QConfig.int8(observer=MinMax()).set(None, module="head", type="Linear"),
    rules=[
        rule,
        Inputs({0: Q7, "x": None}),
        Operator("grid_sampler", {"grid": Q15}),
        Clear(Select(regex="^add")),
    ],
    tools=["equalize", Gptq(damping=0.1)],
    stages=[Stage("checks", "lowered", checks, {"least": 2.5})],
    claimants=["ethos-u55-128", tosaic.Claimant.named("TOSA-1.0+FP").deny(op="softmax", why="slow")],
    io={"inputs": {0: "int8", "y": "float32"}, "outputs": "int16"},
    orders={"inputs": {"x": "nhwc"}, "outputs": {1: (0, 2, 3, 1)}},
    objective="count",
    rgba={"inputs": ["x"]},
    passes=[PassChange("insert_before", "decompose", doubles), PassChange("remove", "legalize/simplify")],
    flags={"ethos-u55-128": ["--optimise=Size"]},
)


@pytest.mark.parametrize("name", recipes.names())
def test_built_in_recipes_are_read_back_from_json(name: str) -> None:
    recipe = recipes.named(name)
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert str(recipe).startswith(f"{name}: ")


def test_every_field_is_read_back_from_a_file(tmp_path: Path) -> None:
    FULL.save(tmp_path / "full.json")
    read = Recipe.load(tmp_path / "full.json", trust=True)
    assert read == FULL
    assert read.diff(FULL) == ()
    assert read.stages[0].function is checks
    assert repr(read) == repr(FULL)
    for field in ("QConfig", "rule", "Equalize", "checks", "ethos-u55-128", "nhwc", "count", "PassChange"):
        assert field in str(FULL), field


def test_a_function_without_a_module_is_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"recipe\.rules\[0\] has no name that another process"):
        Recipe(name="r", rules=[lambda plan: None]).to_json()
    with pytest.raises(tosaic.InvalidGraph, match="has no form in JSON"):
        Recipe(name="r", stages=[Stage("s", "model", checks, {"least": object()})]).to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("[]", "format 'tosaic recipe'"),
        ('{"format": "tosaic recipe", "version": 2}', "version 1"),
        ('{"format": "tosaic recipe", "version": 1, "class": "Select"}', "expected a recipe"),
        ('{"format": "tosaic recipe", "version": 1, "class": "Recipe"}', "the fields of Recipe"),
        ('{"format": "tosaic recipe", "version": 1, "class": "Recipe", "name": ""}', "not empty"),
        (
            '{"format": "tosaic recipe", "version": 1, "class": "Recipe", "name": "r", '
            '"rules": [{"function": "no.such:thing"}]}',
            r"the function in the recipe\.rules\[0\]",
        ),
        (
            '{"format": "tosaic recipe", "version": 1, "class": "Recipe", "name": "r", '
            '"io": {"class": "No"}}',
            "one of",
        ),
    ],
)
def test_a_damaged_recipe_is_refused(text: str, message: str) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        Recipe.from_json(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "'name'"),
        ({"config": "int8"}, "a tosaic.QConfig"),
        ({"rules": [1]}, "rules of tosaic.annotation"),
        ({"tools": ["polish"]}, "polish"),
        ({"stages": [checks]}, "tosaic.recipes.Stage"),
        ({"claimants": "vgf"}, "a sequence"),
        ({"claimants": ["ethos"]}, "ethos"),
        ({"claimants": ["vgf", "vgf"]}, "different names"),
        ({"io": {"input": "int8"}}, "entries 'inputs' and 'outputs'"),
        ({"objective": "speed"}, "'bytes', 'count' or None"),
        ({"rgba": ["x"]}, "a mapping with 'inputs' and 'outputs'"),
        ({"passes": ["decompose"]}, "PassChange"),
        (
            {"stages": [Stage("a", "quantize", checks), Stage("b", "quantize", checks)]},
            "one stage at 'quantize' at most",
        ),
    ],
)
def test_a_wrong_field_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(tosaic.Error, match=message):
        Recipe(**{"name": "r", **fields})


def test_an_unknown_field_is_refused_with_a_hint() -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"no field 'claimant'.*Did you mean 'claimants'"):
        Recipe(name="r").replace(claimant=[])


def test_a_combined_recipe_says_what_all_its_recipes_say() -> None:
    a = Recipe(
        name="a",
        rules=[Inputs({0: Q7}), rule],
        claimants=["neutron"],
        io={"inputs": {"x": "int8"}},
        tools=["equalize"],
        flags={"neutron": ["-a"]},
    )
    b = Recipe(
        name="b",
        config=tosaic.QConfig.int8(),
        rules=[rule, Outputs({0: Q7})],
        claimants=["cortex-m55", "neutron"],
        io={"inputs": {"y": "int8"}, "outputs": "int8"},
        objective="count",
        rgba=True,
    )
    both = a.combine(b)
    assert both.name == "a+b"
    assert both.config == tosaic.QConfig.int8()
    assert both.rules == (Inputs({0: Q7}), rule, Outputs({0: Q7}))
    assert [each.name for each in both.takers] == ["neutron", "cortex-m55"]
    assert both.io == {"inputs": {"x": "int8", "y": "int8"}, "outputs": "int8"}
    assert (both.objective, both.rgba, both.flags) == ("count", True, {"neutron": ("-a",)})
    assert both.combine(a, b, name="a+b") == both
    assert recipes.named("neutron").combine(recipes.named("cortex-m")) == recipes.named("neutron+cortex-m")


CONFLICTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "config": ({"config": tosaic.QConfig.int8()}, {"config": tosaic.QConfig.int16x8()}, "'config'"),
    "objective": ({"objective": "bytes"}, {"objective": "count"}, "'objective'"),
    "port": ({"io": {"inputs": {"x": "int8"}}}, {"io": {"inputs": {"x": "int16"}}}, "'io' of 'inputs', 'x',"),
    "side": ({"io": {"inputs": "int8"}}, {"io": {"inputs": {"x": "int8"}}}, "'io' of 'inputs'"),
    "order": ({"orders": {"outputs": "nhwc"}}, {"orders": {"outputs": "traced"}}, "'orders' of 'outputs'"),
    "flags": ({"flags": {"vgf": ["-a"]}}, {"flags": {"vgf": ["-b"]}}, "'flags' of 'vgf'"),
    "claimant": (
        {"claimants": ["vgf"]},
        {"claimants": [tosaic.Claimant.named("vgf").deny(op="softmax")]},
        "claimant 'vgf'",
    ),
    "stage": (
        {"stages": [Stage("s", "model", checks)]},
        {"stages": [Stage("s", "lowered", checks)]},
        "stage 's'",
    ),
    "quantizers": (
        {"stages": [Stage("a", "quantize", checks)]},
        {"stages": [Stage("b", "quantize", checks)]},
        "the stage that quantizes",
    ),
    "tool": ({"tools": [Gptq()]}, {"tools": [Gptq(damping=0.1)]}, "tool 'gptq'"),
    "pass": (
        {"passes": [PassChange("remove", "decompose")]},
        {"passes": [PassChange("replace", "decompose", doubles)]},
        "pass 'decompose'",
    ),
    "input": ({"rules": [Inputs({0: Q7})]}, {"rules": [Inputs({0: Q15})]}, "the spec of 'inputs' 0"),
    "operand": (
        {"rules": [Operator("grid_sampler", {"grid": Q7})]},
        {"rules": [Operator("grid_sampler", {"grid": Q15})]},
        "the spec of operand 'grid'",
    ),
    "result": (
        {"rules": [Operator("relu", result=Q7)]},
        {"rules": [Fix(Select(op="relu"), Q15)]},
        "the spec of results",
    ),
    "rgba": ({"rgba": {"inputs": ["a"]}}, {"rgba": {"inputs": ["b"]}}, "'rgba' of 'inputs'"),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_a_conflict_names_both_recipes(name: str) -> None:
    one, two, text = CONFLICTS[name]
    first, second = Recipe(name="first", **one), Recipe(name="second", **two)
    with pytest.raises(tosaic.InvalidGraph) as caught:
        first.combine(second)
    message = str(caught.value)
    assert text in message
    assert "recipe 'first'" in message
    assert "'second'" in message
    assert first.combine(first, name="first") == first


def test_all_conflicts_are_named_at_once() -> None:
    a = Recipe(name="a", objective="bytes", io={"inputs": "int8"})
    b = Recipe(name="b", objective="count", io={"inputs": "int16"})
    with pytest.raises(tosaic.InvalidGraph, match="in 2 things"):
        a.combine(b)


@pytest.mark.parametrize(
    "config",
    [
        "QConfig.int8().set(None, type='Linear')",
        "QConfig.int8(every_operator=True).set(QConfig.int16x8(), module='head', op='softmax')",
        "QConfig.uint8().set(None, name='a').set(QConfig.int8(), nodes=('b', 'c'))",
    ],
)
def test_configurations_are_shown_as_the_calls_that_make_them(config: str) -> None:
    made = eval(config, {"QConfig": tosaic.QConfig})
    assert f"config    {config}" in str(Recipe(name="a", config=made))
    other = made.set(None, op="matmul")
    (difference,) = Recipe(name="a", config=made).diff(Recipe(name="b", config=other))
    assert f"{config}.set(None, op='matmul') there" in str(difference)


def test_differences_are_listed_by_field() -> None:
    a = Recipe(name="a", claimants=["vgf"], io={"inputs": {"x": "int8"}}, rules=[Inputs({0: Q7})])
    b = Recipe(name="b", claimants=["vgf"], io={"inputs": {"x": "int16"}}, objective="count")
    found = {(each.field, each.entry): (each.here, each.there) for each in a.diff(b)}
    assert found == {
        ("objective", ""): (None, "count"),
        ("io", "'inputs'"): ({"x": "int8"}, {"x": "int16"}),
        ("rules", ""): (Inputs({0: Q7}), None),
    }
    assert a.diff(a) == ()
    assert [
        each.entry for each in a.replace(claimants=["vgf", "host"]).diff(a.replace(claimants=["host", "vgf"]))
    ] == ["order"]
