"""`Device`: a family of devices as data. Users can write a `Device` for their own hardware.

A device states which operators it supports, in which arithmetic, and how a group for it is compiled and run.
The compiler reads the record, and has no code for a device by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from tosaic import _core
    from tosaic.devices.engines import Engine
    from tosaic.devices.tool_cost import CostSummary, ToolCost

Sizes: TypeAlias = Sequence[int | None]
"""The bytes of each tensor; None if a payload does not record them."""


def _require_texts(where: str, **fields: Any) -> None:
    """Refuses a single string, or anything else, instead of a sequence of strings."""
    for option, value in fields.items():
        is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
        if not is_sequence or not all(isinstance(each, str) for each in value):
            from tosaic.base.options import refusal

            raise refusal(where, option, "a list of texts", value)


@dataclass(frozen=True)
class Operators:
    """Operators that a device supports, with their dtypes.

    Several entries of one operator are alternatives. An operator without an entry is not supported.

    Attributes
    ----------
    names : sequence of str
        Operators of TOSA (``"tosa.conv2d"``) if the device has a target, and of tosaic (``"conv"``) if not.
    input, second, result : sequence of str
        Dtypes (``"i8"``) that the first operand, the second one and results may have. Empty: any dtype.
    """

    names: Sequence[str]
    input: Sequence[str] = ()
    second: Sequence[str] = ()
    result: Sequence[str] = ()

    def __post_init__(self) -> None:
        _require_texts(
            "Operators", names=self.names, input=self.input, second=self.second, result=self.result
        )


@dataclass(frozen=True)
class Limit:
    """A limit of operators: the range of a quantity of nodes.

    Attributes
    ----------
    names : sequence of str
        As in `Operators`.
    quantity : str
        The quantity, such as ``"stride"`` or ``"kernel-height"``, which is also the name of the rule in a
        `Reason`. For a yes-or-no quantity, yes is 1 and no is 0.
    least, most : int
        The range. Without `most`, there is no upper bound.
    when : str
        The nodes to which the limit applies: ``"always"``, ``"padded"``, ``"transposed"`` ...
    unit : int
        For ``"kernel-volume"``: input channels are rounded up to a multiple of this number.
    """

    names: Sequence[str]
    quantity: str
    least: int = 0
    most: int | None = None
    when: str = "always"
    unit: int = 1

    def __post_init__(self) -> None:
        _require_texts("Limit", names=self.names)


@dataclass(frozen=True)
class Payload:
    """The input of the device's runtime: a file that a tool makes from the ``.tosa`` file of a group.

    Attributes
    ----------
    name : str
        The name in compile specs, and the suffix of files: ``vgf``.
    compile : callable
        Takes the bytes of a ``.tosa`` file, and flags; returns the payload. It raises `UnsupportedOp` for a
        file that the tool refuses.
    runtime : str
        The id of ExecuTorch's runtime that reads it.
    backend : str
        The name of the class that ExecuTorch calls. It is made when ExecuTorch is first used.
    title : str
        The name of the format in messages; `name` by default.
    require_tool : callable, optional
        Raises ImportError if the tool is not installed.
    flags : callable, optional
        Takes a member of the device, and the user's flags; returns the flags of the tool. It raises
        `InvalidGraph` for flags that the tool does not accept. None: the user's flags are unchanged.
    takes_flags : bool
        Whether the tool has flags.
    magic : bytes
        The bytes at offset `magic_at` by which a payload is recognized.
    sizes : callable, optional
        Checks a payload and returns the bytes of each of its inputs, and of its outputs; None if the payload
        does not record their number. It raises `InvalidGraph` for a damaged payload.
    engine : Engine, optional
        The engine that runs a payload on this machine.
    contents : str
        For messages: a description of the payload and its runtime.
    whose : str
        For messages: the names of claimants with this payload.
    names_member : bool
        Whether compile specs name the member of the device, as ``target``.
    compile_with_summary : callable, optional
        As `compile`, but returns a pair: the payload, and the `CostSummary` that the tool estimated in the
        same run, or None if it estimated nothing.
    cost : callable, optional
        Estimates the cost of a ``.tosa`` file's bytes on a member of the device, with options
        (``memory_mode`` and ``system_config``, if they differ from the defaults) and flags of the tool.
        Returns a `ToolCost`. It raises `UnsupportedOp` for a file that the tool refuses.
    """

    name: str
    compile: Callable[[bytes, Sequence[str]], bytes]
    runtime: str
    backend: str
    title: str = ""
    require_tool: Callable[[], Any] | None = None
    flags: Callable[[str, Sequence[str]], Sequence[str]] | None = None
    takes_flags: bool = True
    magic: bytes = b""
    magic_at: int = 0
    sizes: Callable[[bytes], tuple[Sizes, Sizes] | None] | None = None
    engine: Engine | None = None
    contents: str = ""
    whose: str = ""
    names_member: bool = False
    compile_with_summary: Callable[[bytes, Sequence[str]], tuple[bytes, CostSummary | None]] | None = None
    cost: Callable[[bytes, str, Mapping[str, str], Sequence[str]], ToolCost] | None = None

    @property
    def shown(self) -> str:
        """The name of the format in messages."""
        return self.title or self.name


@dataclass(frozen=True)
class DeviceRecipe:
    """A recipe of a device, as `tosaic.recipes.named` returns it.

    Attributes
    ----------
    name : str
    summary : str
    claimants : sequence of str
        The takers of nodes, in order of priority.
    config : str
        The name of a function of `tosaic.QConfig`: ``"int8"`` or ``"int16x8"``.
    every_operator : bool
        The field `every_operator` of the config.
    stream : str, optional
        The field `stream` of the config's `Precision`: how sums of a residual stream are rounded.
    rules : sequence of str or rule
        Rules of `tosaic.recipes` by name, or rules of `tosaic.quantize`.
    stages : sequence of str, pair of str, or Stage
        ``"kernels"``, the stage that lists the kernels for the host's operators; a pair of the name of a
        stage and the library of kernels for which it makes a program; or stages.
    options : mapping of str to mapping
        Options of `Claimant.named`, by name of a claimant.
    rgba : bool
    partners : sequence of str
        Recipes with which it is combined: each combination is a further recipe ``name+partner``.
    """

    name: str
    summary: str
    claimants: Sequence[str]
    config: Literal["int8", "int16x8"] = "int8"
    every_operator: bool = False
    stream: Literal["unrounded", "int16", "activation"] | None = None
    rules: Sequence[Any] = ()
    stages: Sequence[Any] = ("kernels",)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rgba: bool = False
    partners: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Device:
    """A family of devices, as data.

    The first group of attributes is the C++ record (``tosaic/claimant/device.h``), the second one
    describes how a group is compiled and run.

    Attributes
    ----------
    name : str
        The family.
    members : sequence of str
        The devices: names of claimants. `name` alone by default.
    target : str
        The TOSA target for which groups are lowered. Empty: the device does not read TOSA, and `operators`
        are tosaic's.
    arithmetic : str
        Without a target: the TOSA target in which the arithmetic is expressed. Empty: groups are not lowered.
    operators : sequence of Operators
        The operators that the device supports; all others are refused.
    limits : sequence of Limit
    semantics : {"tosa", "cmsis-nn"}
        The integer forms of operators.
    orders : {"any", "tosa", "preserving"}
        The dim orders in which the device reads operands: any order; the orders of TOSA's operators; or
        these, but with the axis of a composite innermost.
    preserves_composites : bool
        Whether composites among `operators` reach the device without being decomposed.
    connected : bool
        Whether a group has to be connected.
    least_size : int
        The least number of nodes of a group.
    kernels : mapping of str to str
        By member, the form of CMSIS-NN's kernels that compute nodes: ``"plain"``, ``"dsp"`` or ``"mve"``.
    payload : Payload, optional
        The payload of groups. None: groups have none.
    recipes : sequence of DeviceRecipe
    rules : sequence of str or rule
        Rules of quantization for the nodes that its claimants take, as in `DeviceRecipe`. Each has a field
        ``where``, or is a `Custom` whose function has a parameter ``calls``: the names of these nodes' calls.
    kernel_library : str
        The library of ExecuTorch whose kernels compute nodes: ``cortex_m``.
    is_kernels : bool
        Whether a group is written as calls of kernels, which a runtime may fuse.

    Examples
    --------
    >>> from tosaic.devices import Device, Limit, Operators
    >>> device = Device(
    ...     name="mine",
    ...     target="TOSA-1.0+INT",
    ...     operators=[Operators(["tosa.conv2d", "tosa.rescale"])],
    ...     limits=[Limit(["tosa.conv2d"], "stride", 1, 2)],
    ... )
    >>> device.core.claimant("mine").fields["target"]
    'TOSA-1.0+INT'
    """

    name: str
    members: Sequence[str] = ()
    target: str = ""
    arithmetic: str = ""
    operators: Sequence[Operators] = ()
    limits: Sequence[Limit] = ()
    semantics: Literal["tosa", "cmsis-nn"] = "tosa"
    orders: Literal["any", "tosa", "preserving"] = "tosa"
    preserves_composites: bool = False
    connected: bool = True
    least_size: int = 1
    kernels: Mapping[str, str] = field(default_factory=dict)

    payload: Payload | None = None
    recipes: Sequence[DeviceRecipe] = ()
    rules: Sequence[Any] = ()
    kernel_library: str = ""
    is_kernels: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its claimants."""
        return tuple(self.members) or (self.name,)

    @cached_property
    def core(self) -> _core.Device:
        """The record of the core.

        Raises
        ------
        InvalidGraph
            An operator, a quantity, a dtype or the target does not exist.
        """
        from tosaic import _core

        return _core.Device(
            name=self.name,
            members=[(name, self.kernels.get(name)) for name in self.names],
            target=self.target,
            arithmetic=self.arithmetic,
            operators=[(row.names, row.input, row.second, row.result) for row in self.operators],
            limits=[
                (row.names, row.quantity, row.least, row.most, row.when, row.unit) for row in self.limits
            ],
            semantics=self.semantics,
            orders=self.orders,
            preserves_composites=self.preserves_composites,
            connected=self.connected,
            least_size=self.least_size,
        )

    @classmethod
    def of_core(cls, core: _core.Device, **more: Any) -> Device:
        """Returns a device with the tables of a record of the core; `more` has the other fields."""
        fields = dict(core.fields)
        del fields["has_limits"]
        members = fields.pop("members")
        made = cls(
            **fields
            | {
                "members": tuple(name for name, _ in members),
                "kernels": {name: form for name, form in members if form},
                "operators": tuple(Operators(*row) for row in fields["operators"]),
                "limits": tuple(Limit(*row) for row in fields["limits"]),
            },
            **more,
        )
        vars(made)["core"] = core
        return made
