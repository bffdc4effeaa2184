"""The settings of an export, as plain data: `Recipe`, and its parts `Stage` and `PassChange`.

::

    recipe = Recipe(
        "camera",
        config=QConfig.int8(),                          how the program is quantized
        rules=[Outputs({0: q_format("Q0.7")})],         ... and changes of the quantizer's plan
        stages=[Stage("prune", "model", prune)],        functions between the steps of the flow
        claimants=["ethos-u55-128", "TOSA-1.0+FP"],     the takers of nodes, by priority
        io={"inputs": "int8"},                          integers at inputs and outputs
    )

`tosaic.export_model` executes a recipe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tosaic import _core
from tosaic.annotation.config import QConfig
from tosaic.base.options import OPTIONS, invalid, is_mapping, refusal, shown
from tosaic.base.verbs import Verb
from tosaic.base.visible import one_line
from tosaic.partitions.claimant import Claimant
from tosaic.recipes.changes import PassChange
from tosaic.recipes.combining import Difference, combined, differences
from tosaic.recipes.stage import Stage, require_name
from tosaic.recipes.texts import text_of

if TYPE_CHECKING:
    from tosaic.annotation.rules import Rule
    from tosaic.calibration.accuracy import Tool


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings with which `tosaic.export_model` exports a model, as plain data.

    A recipe prints as its fields, is saved as JSON (`save`, `load`), is compared field by field (`diff`), and
    is combined with others (`combine`). `tosaic.recipes.named` returns the built-in recipes.

    Attributes
    ----------
    name : str
    summary : str
        One sentence for lists of recipes.
    config : QConfig, optional
        How the program is quantized. None: it stays float.
    rules : sequence of rule
        Rules of `tosaic.annotation`, which change what the quantizer plans. Applied in this order.
    tools : sequence of str or Tool
        Accuracy tools, as `tosaic.quantize` takes them.
    stages : sequence of Stage
        Functions between the steps of the flow. Stages at the same place run in this order.
    claimants : sequence of str or Claimant
        The takers of nodes, in order of priority; nodes that none takes are the host's.
    io : mapping
        The forms of float inputs and outputs of the quantized program, as `tosaic.lower` takes them.
    orders : mapping
        Memory orders of inputs and outputs, as `tosaic.lower` takes them.
    objective : {"bytes", "count"}, optional
        The objective of layout plans. None: ``"bytes"``.
    rgba : bool or mapping, optional
        True: RGB images around grid samplers get a fourth channel inside the program. A mapping with the
        keys ``inputs`` and ``outputs`` names the inputs and outputs that have four channels, too
        (`tosaic.lowering.rgba`).
    passes : sequence of PassChange
        Changes of the pipelines that lower groups.
    flags : mapping of str to sequence of str
        Flags of the tool that compiles for a claimant, by the name of the claimant.

    Examples
    --------
    >>> import tosaic
    >>> recipe = tosaic.Recipe(name="mine", config=tosaic.QConfig.int8(), claimants=["ethos-u55-128"])
    >>> [claimant.name for claimant in recipe.claimants]
    ['ethos-u55-128']
    >>> recipe.replace(claimants=["TOSA-1.0+INT"]).diff(recipe)[0].field
    'claimants'
    """

    name: str
    summary: str = ""
    config: QConfig | None = None
    rules: Sequence[Rule] = ()
    tools: Sequence[str | Tool] = ()
    stages: Sequence[Stage] = ()
    claimants: Sequence[str | Claimant] = ()
    io: Mapping[str, Any] = field(default_factory=dict)
    orders: Mapping[str, Any] = field(default_factory=dict)
    objective: Literal["bytes", "count"] | None = None
    rgba: bool | Mapping[str, Sequence[str | int]] | None = None
    passes: Sequence[PassChange] = ()
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from tosaic.calibration.accuracy import Tool, tools_of

        require_name("Recipe", self.name)
        if not isinstance(self.summary, str):
            raise self._refusal("summary", "a sentence")
        if self.config is not None and not isinstance(self.config, QConfig):
            raise self._refusal("config", "a tosaic.QConfig, or None")
        self._set("rules", self._sequence("rules", Callable, "rules of tosaic.annotation or functions"))
        self._set("tools", tuple(tools_of(self._sequence("tools", str | Tool, "names of tools, or tools"))))
        self._set("stages", self._sequence("stages", Stage, "tosaic.recipes.Stage"))
        claimants = self._sequence("claimants", str | Claimant, "names of claimants, or tosaic.Claimant")
        self._set("claimants", tuple(map(_claimant, claimants)))
        self._set("passes", self._sequence("passes", PassChange, "tosaic.recipes.PassChange"))
        self._set("io", _io(self.io))
        for name in ("orders", "flags"):
            if not is_mapping(getattr(self, name)):
                raise self._refusal(name, "a mapping")
        self._set("orders", dict(self.orders))
        for name, each in self.flags.items():
            if not isinstance(each, list | tuple) or not all(isinstance(flag, str) for flag in each):
                raise refusal("Recipe", f"flags[{name!r}]", "a sequence of strings", each)
        self._set("flags", {name: tuple(each) for name, each in self.flags.items()})
        if self.objective not in (None, "bytes", "count"):
            raise self._refusal("objective", "'bytes', 'count' or None")
        self._set("rgba", _rgba(self.rgba))
        self._require_distinct("stages", [each.name for each in self.stages])
        self._require_distinct("claimants", [_claimant(each).name for each in self.claimants])
        quantizing = [each.name for each in self.stages if each.at == "quantize"]
        if len(quantizing) > 1:
            raise refusal("Recipe", "stages", "one stage at 'quantize' at most", ", ".join(quantizing))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _refusal(self, option: str, expected: str) -> Exception:
        return refusal("Recipe", option, expected, getattr(self, option))

    def _sequence(self, option: str, kinds: Any, expected: str) -> tuple[Any, ...]:
        value = getattr(self, option)
        if not isinstance(value, list | tuple) or not all(isinstance(each, kinds) for each in value):
            raise self._refusal(option, f"a sequence of {expected}")
        return tuple(value)

    def _require_distinct(self, option: str, names: Sequence[str]) -> None:
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise refusal("Recipe", option, "different names", ", ".join(repeated))

    @property
    def quantizes(self) -> bool:
        """True if the flow quantizes the program."""
        return self.config is not None or any(stage.at == "quantize" for stage in self.stages)

    @property
    def takers(self) -> tuple[Claimant, ...]:
        """The claimants, as objects."""
        return tuple(map(_claimant, self.claimants))

    @property
    def rgba_ports(self) -> dict[str, tuple[str | int, ...]]:
        """The inputs and outputs with four channels, by side."""
        asked: Any = self.rgba
        return dict(asked) if is_mapping(asked) else {}

    def entries(self) -> list[tuple[str, str]]:
        """Returns the fields that are not empty as (field, text) for each entry."""
        found: list[tuple[str, str]] = []
        for each in dataclasses.fields(self)[2:]:
            value = getattr(self, each.name)
            if value in ((), {}, None):
                continue
            entries = value if isinstance(value, tuple) else [value]
            found += [(each.name if i == 0 else "", text_of(entry)) for i, entry in enumerate(entries)]
        return found

    def at(self, place: str) -> tuple[Stage, ...]:
        """Returns the stages at a place of the flow, in order."""
        return tuple(stage for stage in self.stages if stage.at == place)

    def replace(self, **fields: Any) -> Recipe:
        """Returns a copy with other values of the named fields.

        Raises
        ------
        InvalidGraph
            A recipe has no such field, or the field does not accept the value.
        """
        known = [each.name for each in dataclasses.fields(self)]
        for name in fields:
            if name not in known:
                raise invalid(
                    "Recipe",
                    f"a recipe has no field '{name}'",
                    expected=", ".join(known),
                    hint=_core.did_you_mean(name, known),
                )
        return dataclasses.replace(self, **fields)

    def in_floats(self) -> Recipe:
        """Returns the recipe without quantization.

        It has no configuration, rules, tools and integers at inputs and outputs, and no stages that quantize
        or that need a quantized program.
        """
        stages = [stage for stage in self.stages if stage.at not in ("quantize", "quantized")]
        return self.replace(config=None, rules=(), tools=(), io={}, stages=stages)

    def combine(self, *others: Recipe, name: str | None = None) -> Recipe:
        """Returns a recipe with all settings of this one and the others; see `tosaic.recipes.combine`."""
        return combine([self, *others], name=name)

    def diff(self, other: Recipe) -> tuple[Difference, ...]:
        """Returns the fields in which two recipes differ, as `tosaic.recipes.Difference`.

        The name and the summary do not count.
        """
        if not isinstance(other, Recipe):
            raise refusal("diff", "other", "a tosaic.Recipe", other)
        return differences(self, other)

    def to_executorch(self) -> Any:
        """Returns ExecuTorch's form of the recipe; see `tosaic.executorch.export_recipe`."""
        return export_recipe(self)

    def to_json(self) -> str:
        """Returns the recipe as JSON text. Functions are written as ``module:name``.

        Raises
        ------
        InvalidGraph
            The recipe has a function that no other process can import, such as a lambda, or a value that has
            no form in JSON.
        """
        text: str = _written().to_json(self)
        return text

    @classmethod
    def from_json(cls, text: str, *, trust: bool = False) -> Recipe:
        """Reads what `to_json` returned.

        Parameters
        ----------
        text : str
        trust : bool
            Whether the text may name any function: its module is imported, and an export calls it. If not,
            it may name functions of `tosaic.recipes` and `tosaic.annotation`, and observers of torch and
            torchao.

        Raises
        ------
        InvalidGraph
            The text is not a recipe, or names a function that cannot be imported or that only a trusted text
            may name.
        """
        recipe: Recipe = _written().from_json(text, cls, trust=trust)
        return recipe

    def save(self, path: Any) -> None:
        """Writes the recipe as a JSON file.

        Raises
        ------
        WriteError
            The file cannot be written. An older file is then unchanged.
        InvalidGraph
            As `to_json`.
        """
        from tosaic.base.writing import write_text

        write_text(OPTIONS["path"].accept(path), self.to_json())

    @classmethod
    def load(cls, path: Any, *, trust: bool = False) -> Recipe:
        """Reads a file that `save` wrote. `trust` is as in `from_json`.

        Raises
        ------
        MissingFileError, ReadError
            The file cannot be read.
        InvalidGraph
            As `from_json`.
        """
        from tosaic.base.options import file_path
        from tosaic.base.reading import read_bytes

        return cls.from_json(
            read_bytes("Recipe", file_path("Recipe", path)).decode("utf-8", "replace"), trust=trust
        )

    def __repr__(self) -> str:
        """Returns the fields that are not empty, as code."""
        fields = [(each.name, getattr(self, each.name)) for each in dataclasses.fields(self)]
        said = [f"{name}={text_of(value)}" for name, value in fields if value not in ((), {}, None, "")]
        return f"Recipe({', '.join(said)})"

    def __str__(self) -> str:
        """Returns the fields that are not empty, one a line."""
        lines = [self.name + (f": {self.summary}" if self.summary else "")]
        lines += [f"  {name:<10}{value}" for name, value in self.entries()]
        return "\n".join(map(one_line, lines))


def _written() -> Any:
    """Returns the module that writes and reads recipes, which knows this class then."""
    from tosaic.recipes import written

    written.CLASSES["Recipe"] = Recipe
    return written


def combine(recipes: Sequence[Recipe], *, name: str | None = None) -> Recipe:
    """Returns a recipe with the settings of several recipes.

    Rules, tools, stages, claimants and changes of passes follow one another in the order of the recipes, and
    equal entries occur once. A field that only one recipe sets is taken from that recipe.

    Parameters
    ----------
    recipes : sequence of Recipe
    name : str, optional
        The name of the result. Default: the names of the recipes, joined by ``+``.

    Raises
    ------
    InvalidGraph
        Recipes contradict each other. The message lists all contradictions, with the recipes and values.

    Examples
    --------
    >>> from tosaic import recipes
    >>> both = recipes.combine([recipes.named("neutron"), recipes.named("cortex-m")])
    >>> both.name, [claimant.name for claimant in both.claimants]
    ('neutron+cortex-m', ['neutron', 'cortex-m55'])
    """
    if not isinstance(recipes, list | tuple) or not recipes:
        raise refusal("combine", "recipes", "a sequence of recipes", recipes)
    for each in recipes:
        if not isinstance(each, Recipe):
            raise refusal("combine", "recipes", "a sequence of tosaic.Recipe", each)
    return Recipe(**combined(recipes, name))


@Verb
def export_recipe(recipe: Recipe, /) -> Any:
    """Returns ExecuTorch's form of a recipe."""
    raise NotImplementedError


def _claimant(value: str | Claimant) -> Claimant:
    return value if isinstance(value, Claimant) else Claimant.named(value)


def _io(value: Any) -> dict[str, Any]:
    option = OPTIONS["io"]
    try:
        return dict(option.accept(value))
    except (TypeError, ValueError) as error:
        raise refusal("Recipe", "io", option.expected.removesuffix(", or None"), value) from error


def _rgba(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value or None
    expected = "True, False, None, or a mapping with 'inputs' and 'outputs', such as {'inputs': ['image']}"
    is_right = is_mapping(value) and all(side in ("inputs", "outputs") for side in value)
    if not is_right or not all(isinstance(names, list | tuple) for names in value.values()):
        raise refusal("Recipe", "rgba", expected, shown(value))
    return {side: tuple(names) for side, names in value.items()}
