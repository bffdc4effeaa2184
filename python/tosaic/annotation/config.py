"""Configurations of tosaic's quantizer: which calls are quantized, and with which integers. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from tosaic import _core
from tosaic.annotation.observers import (
    ACTIVATION_OBSERVERS,
    WEIGHT_OBSERVERS,
    LeastErrorBehind,
    Observer,
    observer_of,
)
from tosaic.annotation.select import Select
from tosaic.annotation.specs import Observed, range_of
from tosaic.base.options import invalid, shown, unsupported, whole_number

if TYPE_CHECKING:
    from tosaic.annotation.plan import Plan
    from tosaic.devices.device import DeviceRecipe

__all__ = ["Precision", "QConfig"]

ObserverName: TypeAlias = Literal["minmax", "moving_average", "percentile", "mse", "entropy"]
WeightObserverName: TypeAlias = Literal["minmax", "mse"]
Stream: TypeAlias = Literal["unrounded", "int16", "activation"]

_INT8 = Observed("int8", -128, 127)
_UINT8 = Observed("uint8", 0, 255)
_ACTIVATIONS = ("int8", "uint8", "int16")
_INT16 = Observed("int16", -32767, 32767, scheme="per_tensor_symmetric")


def _weight(bits: int, group_size: int | None = None, *, per_channel: bool) -> Observed:
    limit = 2 ** (bits - 1) - 1
    scheme = "per_channel_symmetric" if per_channel else "per_tensor_symmetric"
    axis = 0 if per_channel else None
    return Observed("int8", -limit, limit, scheme, axis=axis, group_size=group_size)


@dataclass(frozen=True)
class Precision:
    """The integers of the calls that a configuration selects.

    Attributes
    ----------
    activation : Observed
        Spec of tensors that calls compute. An `observer` replaces the default, `ByUse`. That chooses for
        inputs of the program the range of all samples, and for other tensors the range of least error, by an
        exact histogram. If only one elementwise function reads a tensor, the error is that of the function's
        result.
    weight : Observed
        Spec of constant operands of contractions. With a scheme per channel, the axis is that of the result's
        channels; contractions without such an axis have one scale. With a group size, each group of input
        channels has a scale too; if the group size does not divide the input channels, the weight has a scale
        per channel. An `observer` that is data is `MinMax` or `LeastError`. The default is `LeastError` for
        fewer than 65 integers and for groups, else `MinMax`.
    bias : {"derived", "float"}
        ``derived``: int32, with the product of the scales of data and weight. ``float``: without a spec;
        lowering rounds the bias to the unit of the sums. Biases of contractions whose weights have groups are
        always float.
    fixed_ranges : bool
        Softmax, sigmoid and tanh have the scales of their known ranges: 1/256 and 1/128 for 8 bits, 1/32767
        for 16.
    stream : {"unrounded", "int16", "activation"}, optional
        How the sums of a residual stream that norms read are rounded: their error remains in all later sums.
        ``int16``: 16 bits, symmetric, which an Ethos-U adds at the cost of 8 bits. ``activation``: as other
        activations. ``unrounded``: lowering computes them, sums behind contractions and attentions with 32
        bits; see `QConfig.precise`. None: ``int16``, and ``activation`` if `QConfig.every_operator`.
    wide_functions : bool
        The result of a contraction is not rounded to 8 bits if only a function such as GELU or SiLU reads it,
        since rounding both before and after the function doubles the error. Lowering computes the function
        from 16 bits, with a table and interpolation. A MobileViT gains 1.1 dB, at three to six times the
        cycles of an Ethos-U85; an EfficientNet gains 0.05 dB.
    """

    activation: Observed = _INT8
    weight: Observed = field(default_factory=lambda: _weight(8, per_channel=True))
    bias: Literal["derived", "float"] = "derived"
    fixed_ranges: bool = True
    stream: Stream | None = None
    wide_functions: bool = False

    def __post_init__(self) -> None:
        for role in ("activation", "weight"):
            spec: Any = getattr(self, role)
            if not isinstance(spec, Observed):
                raise _refusal(f"the spec '{role}'", "Observed, such as Observed('int8')", spec)
            if spec.scheme is None or range_of(spec.dtype) is None:
                raise _refusal(f"the spec '{role}'", "integers with a scheme, such as Observed('int8')", spec)
        per_channel = str(self.activation.scheme).startswith("per_channel")
        if self.activation.dtype not in _ACTIVATIONS or per_channel:
            expected = f"a scheme per tensor, and {', '.join(_ACTIVATIONS[:-1])} or {_ACTIVATIONS[-1]}"
            raise _refusal("the spec 'activation'", expected, self.activation)
        _check_observers(self)
        _check_flag("fixed_ranges", self.fixed_ranges)
        _check_flag("wide_functions", self.wide_functions)
        if self.stream is not None and self.stream not in get_args(Stream):
            raise _refusal("the option 'stream'", "'unrounded', 'int16', 'activation' or None", self.stream)
        if self.activation.dynamic or self.weight.dynamic:
            raise unsupported(
                "QConfig",
                "dynamic quantization is not supported",
                expected="dynamic=False",
                got="dynamic=True",
                hint="TOSA has no operator that computes a scale while a program runs. Calibrate instead",
            )
        if self.bias not in ("derived", "float"):
            raise _refusal("the form of biases", "'derived' or 'float'", self.bias)


def _refusal(what: str, expected: str, got: object) -> _core.InvalidGraph:
    return invalid("QConfig", what, expected=expected, got=shown(got))


def _check_observers(precision: Precision) -> None:
    weight, activation = precision.weight.observer, precision.activation.observer
    if isinstance(weight, Observer) and type(weight) not in WEIGHT_OBSERVERS.values():
        raise _refusal("the observer of weights", "MinMax() or LeastError()", weight)
    if isinstance(activation, LeastErrorBehind):
        raise _refusal("the observer of activations", "ByUse(), which chooses the reader", activation)


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _refusal(f"the option '{name}'", "True or False", value)


@dataclass(frozen=True)
class QConfig:
    """Which calls are quantized, and how.

    A configuration is a list of selections. The last selection that matches a call decides. Each method
    returns a new configuration.

    Attributes
    ----------
    selections : tuple of (Select, Precision or None)
        None: the calls stay float.
    every_operator : bool
        For targets that compute one operator at a time, such as Cortex-M and Neutron: all operators exchange
        integers. If False, values inside a unit (a norm or a function of several calls, the steps of a
        softmax) are not rounded, which is more precise: integer lowering computes the unit as a whole. If
        True, `Precision.wide_functions` has no effect, and a `Precision.stream` that is ``unrounded`` is
        refused; an attention of an exported program is replaced by its parts, and a product or quotient by a
        number has the integers of its operand.

    Examples
    --------
    >>> import tosaic
    >>> config = tosaic.QConfig.int8().set(None, module="head").set(tosaic.QConfig.int16x8(), op="softmax")
    >>> len(config.selections)
    3
    """

    selections: tuple[tuple[Select, Precision | None], ...] = ()
    every_operator: bool = False

    def __post_init__(self) -> None:
        _check_flag("every_operator", self.every_operator)
        expected = "a tuple of pairs: a Select, and a Precision or None"
        selections: Any = self.selections
        if not isinstance(selections, list | tuple):
            raise _refusal("the selections", expected, selections)
        for each in selections:
            if not isinstance(each, list | tuple) or len(each) != 2:
                raise _refusal("the selections", expected, each)
            if not isinstance(each[0], Select) or not isinstance(each[1], Precision | None):
                raise _refusal("the selections", expected, each)
        object.__setattr__(self, "selections", tuple(map(tuple, selections)))
        if self.every_operator and any(each.stream == "unrounded" for each in self.precisions()):
            raise _refusal("the option 'stream' with every_operator", "'int16' or 'activation'", "unrounded")

    @staticmethod
    def int8(
        *,
        per_channel: bool = True,
        weight_bits: int = 8,
        group_size: int | None = None,
        bias: Literal["derived", "float"] = "derived",
        observer: ObserverName | Observer | None = None,
        weight_observer: WeightObserverName | Observer | None = None,
        every_operator: bool = False,
        stream: Stream | None = None,
    ) -> QConfig:
        """Activations int8, affine; weights int8, symmetric, in -127..127.

        Parameters
        ----------
        per_channel : bool
            A scale for each channel of the result; if False, one scale for each weight.
        weight_bits : int
            4: weights in -7..7, stored as int8.
        group_size : int, optional
            This many input channels share a scale, separately for each channel of the result. Smaller groups
            are more precise, and cost more arithmetic. If the size does not divide the input channels of a
            weight, the weight has a scale for each channel.
        bias : {"derived", "float"}
            See `Precision`.
        observer : {"minmax", "moving_average", "percentile", "mse", "entropy"} or Observer, optional
            How the range of each activation, including inputs, follows from samples. An object of
            `tosaic.annotation` has options, such as ``Percentile(99.9)``. None: `tosaic.annotation.ByUse`.
        weight_observer : {"minmax", "mse"} or Observer, optional
            The same for weights. None: see `Precision`.
        every_operator : bool
            See `QConfig`.
        stream : {"unrounded", "int16", "activation"}, optional
            See `Precision`.

        Raises
        ------
        InvalidGraph
            The number of bits is not 2 to 8, the group size is not positive or without `per_channel`, or an
            observer has another name.

        Examples
        --------
        >>> import tosaic
        >>> config = tosaic.QConfig.int8(observer="percentile", weight_observer="mse")
        >>> config.precision.activation.observer
        Percentile()
        """
        weight = _checked_weight(weight_bits, group_size, per_channel, weight_observer)
        precision = Precision(_observed(_INT8, observer), weight, bias, stream=stream)
        return QConfig._of(precision, every_operator)

    @staticmethod
    def uint8(
        *,
        per_channel: bool = True,
        weight_bits: int = 8,
        group_size: int | None = None,
        bias: Literal["derived", "float"] = "derived",
        observer: ObserverName | Observer | None = None,
        weight_observer: WeightObserverName | Observer | None = None,
        every_operator: bool = False,
        stream: Stream | None = None,
    ) -> QConfig:
        """Activations uint8, affine; weights as in `int8`, which has the same parameters."""
        weight = _checked_weight(weight_bits, group_size, per_channel, weight_observer)
        precision = Precision(_observed(_UINT8, observer), weight, bias, stream=stream)
        return QConfig._of(precision, every_operator)

    @staticmethod
    def int16x8(
        *,
        per_channel: bool = True,
        weight_bits: int = 8,
        group_size: int | None = None,
        observer: ObserverName | Observer | None = None,
        weight_observer: WeightObserverName | Observer | None = None,
        every_operator: bool = False,
        stream: Stream | None = None,
    ) -> QConfig:
        """Activations int16, symmetric; the parameters are those of `int8`.

        Biases stay float, since TOSA's have 48 bits.
        """
        weight = _checked_weight(weight_bits, group_size, per_channel, weight_observer)
        precision = Precision(_observed(_INT16, observer), weight, "float", stream=stream)
        return QConfig._of(precision, every_operator)

    @staticmethod
    def precise() -> QConfig:
        """Returns the most precise configuration of 8 bits: `int8` with the stream ``unrounded``.

        It rounds fewer values, and a device needs wider integers for the others: a DeiT gains 3.6 dB and
        takes an Ethos-U85 seven times the cycles. A ResNet-18 gains 0.8 dB, for 1.2 times the cycles.

        Examples
        --------
        >>> import tosaic
        >>> tosaic.QConfig.precise() == tosaic.QConfig.int8(stream="unrounded")
        True
        """
        return QConfig.int8(stream="unrounded")

    @staticmethod
    def for_target(target: str) -> QConfig:
        """Returns the configuration that costs a device little, by the name of the device.

        Parameters
        ----------
        target : str
            A device such as ``ethos-u85-256``, a family such as ``ethos-u85``, or a TOSA target, for which it
            is that of `int8`.

        Raises
        ------
        InvalidGraph
            There is no such device, or it has no recipe.

        Examples
        --------
        >>> import tosaic
        >>> config = tosaic.QConfig.for_target("ethos-u85-256")
        >>> config.every_operator, config.precision.stream
        (True, 'int16')
        """
        from tosaic.devices.registry import recipe_of

        if not isinstance(target, str):
            raise _refusal("the target", "the name of a device or of a TOSA target", target)
        recipe = recipe_of("QConfig", target)
        return QConfig.int8() if recipe is None else QConfig.of_recipe(recipe)

    @staticmethod
    def of_recipe(recipe: DeviceRecipe) -> QConfig:
        """Returns the configuration of the recipe of a device."""
        if recipe.config == "int16x8":
            return QConfig.int16x8(every_operator=recipe.every_operator, stream=recipe.stream)
        return QConfig.int8(every_operator=recipe.every_operator, stream=recipe.stream)

    @staticmethod
    def _of(precision: Precision, every_operator: bool) -> QConfig:
        return QConfig(((Select(), precision),), every_operator)

    def set(
        self,
        to: QConfig | Precision | None,
        *,
        name: str | None = None,
        regex: str | None = None,
        module: str | None = None,
        type: str | None = None,  # noqa: A002
        op: str | None = None,
        nodes: Sequence[str] | None = None,
    ) -> QConfig:
        """Adds a selection; all of its conditions must hold. Without any, it selects all calls.

        Parameters
        ----------
        to : QConfig, Precision or None
            The precision. A configuration means its last precision. None: the calls stay float. The option
            `every_operator` is not taken from `to`, since it applies to the whole program.
        name, regex, module, type, op, nodes
            See `tosaic.annotation.Select`.
        """
        where = Select(name, regex, module, type, op, nodes)  # type: ignore[arg-type]
        precision = to.precision if isinstance(to, QConfig) else to
        if not isinstance(precision, Precision | None):
            raise _refusal("what calls become", "a QConfig, a Precision or None", to)
        return replace(self, selections=(*self.selections, (where, precision)))

    @property
    def precision(self) -> Precision | None:
        """The precision of the last selection; None if there is none."""
        return self.selections[-1][1] if self.selections else None

    def precisions(self) -> list[Precision]:
        """Returns the precisions of all selections, each once."""
        found: list[Precision] = []
        for _, precision in self.selections:
            if precision is not None and precision not in found:
                found.append(precision)
        return found

    def takes_attentions_apart(self) -> bool:
        """Returns whether attentions are replaced by the operators that they compute."""
        return self.every_operator or any(each.stream != "unrounded" for each in self.precisions())

    def resolve(self, plan: Plan) -> tuple[list[int], list[Precision]]:
        """Returns the index of the precision of each node of a graph, or -1 (float), and the precisions.

        The precision of the output node applies to numbers that are returned without any call. Selections
        without conditions select it.

        Raises
        ------
        InvalidGraph
            A selection with conditions selects no node. The message has near names.
        """
        at = {name: i for i, name in enumerate(plan.core.graph.names)}
        chosen = [-1] * len(at)
        precisions = self.precisions()
        for where, precision in self.selections:
            index = -1 if precision is None else precisions.index(precision)
            names = plan.select(where)
            if not names and where != Select():
                raise invalid("QConfig", f"{where!r} selects nothing", hint=plan.core.explain_empty(where))
            if where == Select() and at:
                last = next(reversed(at))
                names += (last,) if plan.graph[last].kind == "output" else ()
            for name in names:
                chosen[at[name]] = index
        return chosen, precisions


def _observed(spec: Observed, observer: Any) -> Observed:
    return replace(spec, observer=observer_of(observer, "QConfig", "observer", ACTIVATION_OBSERVERS))


def _checked_weight(bits: int, group_size: int | None, per_channel: bool, observer: Any) -> Observed:
    _check_flag("per_channel", per_channel)
    try:
        bits = whole_number(bits)
    except TypeError:
        raise _refusal("the bits of weights", "a whole number, 2 to 8", bits) from None
    if bits not in range(2, 9):
        raise _refusal("the bits of weights", "2 to 8", bits)
    if group_size is not None and not per_channel:
        raise _refusal("groups without a scale per channel", "per_channel=True", per_channel)
    found = observer_of(observer, "QConfig", "weight_observer", WEIGHT_OBSERVERS)
    return replace(_weight(bits, group_size, per_channel=per_channel), observer=found)
