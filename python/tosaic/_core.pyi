from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from tosaic.annotation.call_graph import Call, GraphPort
from tosaic.annotation.select import Select
from tosaic.annotation.specs import Slot, Spec
from tosaic.base.quantization import QParams

__version__: str
FORTIFY_SOURCE: int  # the level at which the C library checks sizes in this build; 0: not at all
DTYPES: tuple[str, ...]

def promote(a: int, b: int) -> int: ...

_E = TypeVar("_E", bound=BaseException)

class Error(Exception):
    parts: dict[str, str]
    each: tuple[dict[str, str], ...]

class InvalidGraph(Error, ValueError): ...  # noqa: N818
class SpecViolation(Error, ValueError): ...  # noqa: N818
class QuantMismatch(Error, ValueError): ...  # noqa: N818
class LayoutMismatch(Error, ValueError): ...  # noqa: N818
class UnsupportedOp(Error, NotImplementedError): ...  # noqa: N818
class InternalError(Error, RuntimeError): ...

def make_error(
    type: type[_E],  # noqa: A002
    *,
    where: str = "",
    what: str = "",
    expected: str = "",
    got: str = "",
    node: str = "",
    module_path: str = "",
    source: str = "",
    hint: str = "",
) -> _E: ...
def did_you_mean(name: str, known: Sequence[str | tuple[str, str]]) -> str: ...

class OpInfo:
    id: Final[int]
    name: Final[str]
    operands: Final[str]
    results: Final[int]
    traits: Final[tuple[str, ...]]
    is_tosa: Final[bool]
    int16_units: Final[int | None]
    attributes: Final[dict[str, Any]]

def ops() -> list[OpInfo]: ...

class Constant:
    def __init__(
        self,
        name: str,
        kind: str,
        dtype: int | str,
        shape: Sequence[int],
        data_ptr: int,
        nbytes: int,
        owner: object,
        changed: Callable[[], str] | None = None,
    ) -> None: ...
    name: Final[str]
    kind: Final[Literal["parameter", "buffer", "lifted", "folded"]]
    dtype: Final[str]
    shape: Final[tuple[int, ...]]
    bound: Final[bool]
    data_ptr: Final[int]
    array: Final[npt.NDArray[np.generic]]
    def numbers(self) -> npt.NDArray[np.float64 | np.int64]: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    is_view: Final[bool]

class Origin:
    fx_name: Final[str]
    target: Final[str]
    module_path: Final[str]
    file: Final[str]
    line: Final[int]
    source: Final[str]

class Value:
    name: Final[str]
    kind: Final[Literal["input", "constant", "result"]]
    dtype: Final[str]
    shape: Final[tuple[int, ...]]
    dim_order: Final[tuple[int, ...]]
    qparams: Final[QParams | None]
    constant: Final[Constant | None]
    producer: Final[Node | None]
    users: Final[list[Node]]
    is_output: Final[bool]
    id: Final[int]

class Node:
    op: Final[str]
    name: Final[str]
    operands: Final[list[Value | None]]
    results: Final[list[Value]]
    attrs: Final[dict[str, Any]]
    origins: Final[list[Origin]]
    origin: Final[Origin | None]
    regions: Final[list[Graph]]
    id: Final[int]

class Input:
    value: Final[Value]
    name: Final[str]
    path: Final[str]
    kind: Final[Literal["user", "state"]]
    initial: Final[Constant | None]
    dim_order: Final[tuple[int, ...]]
    dtype: Final[str]
    shape: Final[tuple[int, ...]]
    physical: Final[bool]
    qparams: Final[QParams | None]

class Output:
    value: Final[Value]
    path: Final[str]
    kind: Final[Literal["user", "mutation"]]
    mutated_input: Final[int | None]
    dim_order: Final[tuple[int, ...]]
    dtype: Final[str]
    shape: Final[tuple[int, ...]]
    physical: Final[bool]
    qparams: Final[QParams | None]

class NodeList:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Node: ...
    def __iter__(self) -> Iterator[Node]: ...

class ValueList:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Value: ...
    def __iter__(self) -> Iterator[Value]: ...

class Graph:
    name: Final[str]
    stage: Final[Literal["exported", "quantized", "integer", "tosa"]]
    inputs: Final[list[Input]]
    outputs: Final[list[Output]]
    nodes: Final[NodeList]
    values: Final[ValueList]
    constants: Final[dict[str, Constant]]
    def value(self, name: str) -> Value: ...
    def text(self) -> str: ...
    @staticmethod
    def parse(
        text: str, constants: Mapping[str, Constant] | Callable[[Constant], Constant | None] = ...
    ) -> Graph: ...
    def diff(self, other: Graph) -> str: ...
    def dot(self) -> str: ...
    def verify(self) -> None: ...
    def own_constants(self) -> Graph: ...
    def __len__(self) -> int: ...

class CallWriter:
    def __init__(
        self,
        module_path: Callable[[str], str],
        source_of: Callable[[str], tuple[str, int]],
        value_type: type,
    ) -> None: ...
    def add(
        self,
        builder: GraphBuilder,
        op: int,
        attrs: Mapping[str, Any] | None,
        operands: Sequence[int],
        node: Any,
        prefix: str,
        target: str,
        dtype: int | str,
        shape: Sequence[int],
    ) -> Any: ...

class ArgumentTypes:
    def __init__(self, node: type, value: type, constants: Iterable[Any], lists: Iterable[Any]) -> None: ...

def read_arguments(
    types: ArgumentTypes,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    names: tuple[str, ...],
    defaults: tuple[Any, ...],
    env: dict[Any, Any],
    resolved: Callable[[Any], Any],
) -> tuple[list[Any], bool]: ...

class PlainCalls:
    def __init__(self, types: ArgumentTypes, recorded: type, codes: dict[Any, int]) -> None: ...
    def read(
        self,
        node: Any,
        row: Any,
        env: dict[Any, Any],
        writer: Any,
        resolved: Callable[[Any], Any],
        otherwise: Callable[[Any, list[Any]], Any],
    ) -> Any: ...

class GraphBuilder:
    def __init__(self, name: str, stage: str = "exported") -> None: ...
    def add_input(
        self,
        name: str,
        dtype: int | str,
        shape: Sequence[int],
        path: str,
        order: Sequence[int] | None = None,
        initial: Constant | None = None,
    ) -> int: ...
    def add_constant(self, constant: Constant) -> int: ...
    def add(
        self,
        op: int,
        attrs: Mapping[str, Any] | None,
        operands: Sequence[int],
        name: str,
        origin: tuple[str, str, str, str, int],
        dtype: int | str | None,
        shape: Sequence[int] | None,
    ) -> int: ...
    def add_many(
        self,
        op: int,
        attrs: Mapping[str, Any] | None,
        operands: Sequence[int],
        name: str,
        origin: tuple[str, str, str, str, int],
        types: list[tuple[int, Sequence[int]]],
        regions: Sequence[Graph] = ...,
    ) -> int: ...
    def add_output(
        self, value: int, path: str, mutated_input: int | None = None, order: Sequence[int] | None = None
    ) -> None: ...
    def type(self, value: int) -> tuple[int, tuple[int, ...]]: ...
    def constant(self, value: int) -> Constant | None: ...
    def folded(self, value: int) -> Constant | None: ...
    def finish(self) -> Graph: ...

# ---- .pt2 files ----

PT2_DTYPES: tuple[tuple[int, str, int, int, int], ...]

class Json:
    def __init__(self, text: object, what: str) -> None: ...
    def part(self, what: str, *keys: str) -> Json: ...
    def get(self, key: str) -> Any: ...
    def items(self, key: str) -> Any: ...
    def value(self) -> Any: ...

class JsonItems:
    def __iter__(self) -> JsonItems: ...
    def __next__(self) -> Any: ...

def pt2_input_specs(
    signature: Json, spec_type: type, kinds: dict[str, str]
) -> tuple[list[Any], list[str]]: ...

class Pt2Index:
    def __init__(self, file: object) -> None: ...
    def place(self, name: str) -> tuple[int, int, int, int]: ...
    def __contains__(self, name: str) -> bool: ...
    def names(self, folder: str) -> list[str]: ...

class Pt2Weights:
    def __init__(self, index: Pt2Index, changed: Callable[[], str], classes: type) -> None: ...
    def add(self, folder: str, document: Json, what: str) -> None: ...
    def find(self, name: str) -> tuple[str, Any] | None: ...
    def add_views(
        self,
        builder: GraphBuilder,
        env: dict[Any, Any],
        value_type: type,
        nodes: list[Any],
        specs: list[Any],
    ) -> int: ...

def pt2_nodes(
    graph: Json,
    constant_names: Sequence[str],
    parameter_names: Callable[[str], Sequence[str]],
    classes: type,
) -> tuple[list[Any], list[Any]]: ...

# ---- .pte files ----

class _Fields:
    def __init__(self, **fields: Any) -> None: ...

class PteAllocation(_Fields):
    memory: int
    offset: int

class PteExtra(_Fields):
    mutable_data: int
    name: str
    location: int
    device: int
    device_index: int

class PteTensor(_Fields):
    scalar_type: int
    storage_offset: int
    sizes: list[int]
    dim_order: list[int]
    requires_grad: bool
    data: int
    allocation: PteAllocation | None
    layout: int
    dynamism: int
    extra: PteExtra | None
    byte_size: Final[int]

class PteIntList(_Fields):
    items: list[int]

class PteDoubleList(_Fields):
    items: list[float]

class PteBoolList(_Fields):
    items: list[bool]

class PteTensorList(_Fields):
    items: list[int]

class PteOptionalTensorList(_Fields):
    items: list[int]

class PteOperator(_Fields):
    name: str
    overload: str

class PteKernelCall(_Fields):
    op: int
    args: list[int]

class PteDelegateCall(_Fields):
    delegate: int
    args: list[int]

class PteMove(_Fields):
    source: int
    to: int

class PteJumpFalse(_Fields):
    condition: int
    destination: int

class PteFree(_Fields):
    value: int

class PteFrame(_Fields):
    file: str
    line: int
    function: str
    source: str

class PteChain(_Fields):
    inputs: list[int]
    outputs: list[int]
    instructions: list[Any]
    traces: list[list[PteFrame]] | None

class PteCompileSpec(_Fields):
    key: str
    value: npt.NDArray[np.uint8]

class PteDelegate(_Fields):
    backend: str
    location: int
    index: int
    specs: list[PteCompileSpec]

class PteMemoryDevice(_Fields):
    memory: int
    device: int
    device_index: int

class PteMethod(_Fields):
    name: str
    input_containers: str
    output_containers: str
    values: list[Any]
    inputs: list[int]
    outputs: list[int]
    chains: list[PteChain]
    operators: list[PteOperator]
    delegates: list[PteDelegate]
    memories: list[int]
    memory_devices: list[PteMemoryDevice] | None

class PtePieces(_Fields):
    segment: int
    offsets: list[int]

class PteNamedData(_Fields):
    key: str
    segment: int

class PteSegment(_Fields):
    offset: int
    bytes: npt.NDArray[np.uint8]

class PteFile(_Fields):
    version: int
    methods: list[PteMethod]
    elements: list[npt.NDArray[np.uint8]]
    payloads: list[npt.NDArray[np.uint8]]
    segments: list[PteSegment]
    constants: PtePieces | None
    mutable_data: list[PtePieces] | None
    named_data: list[PteNamedData] | None
    def elements_of(self, tensor: PteTensor) -> npt.NDArray[np.uint8] | None: ...
    def payload_of(self, delegate: PteDelegate) -> npt.NDArray[np.uint8]: ...

def read_pte(data: Buffer) -> PteFile: ...
def write_pte(file: PteFile) -> bytes: ...
def pte_head(file: PteFile, sizes: Sequence[int]) -> tuple[npt.NDArray[np.uint8], list[int]]: ...
def pte_scalar_types() -> list[tuple[int, str, int, str | None]]: ...

# ---- exec ----

class Session:
    def __init__(
        self,
        graph: Graph,
        *,
        reference: bool = ...,
        isa: str | None = ...,
        share_memory: bool = ...,
        override_nodes: Mapping[str, Callable[..., Any]] = ...,
        override_ops: Mapping[str, Callable[..., Any]] = ...,
        models: Sequence[tuple[Node, Callable[..., Any]]] = ...,
        threads: int = ...,
        share_all: bool = ...,
        least_group_bytes: int | None = ...,
        left_out: Sequence[str] = ...,
    ) -> None: ...
    def run(self, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]: ...
    def run_plain(self, arguments: tuple[Any, ...]) -> list[np.ndarray[Any, Any]] | None: ...
    def trace(
        self,
        inputs: Sequence[Any],
        *,
        nodes: Sequence[str] | None = ...,
        observer: Callable[[str, list[Any]], None] | None = ...,
    ) -> dict[str, Any]: ...
    def profile(self, inputs: Sequence[Any]) -> dict[str, Any]: ...
    def state(self, path: str) -> np.ndarray[Any, Any]: ...
    def set_state(self, path: str, value: Any) -> None: ...
    def reset_state(self) -> None: ...
    input_names: Final[list[str]]
    output_names: Final[list[str]]
    steps: Final[list[dict[str, Any]]]
    profiled_steps: Final[list[dict[str, Any]]]
    memory: Final[dict[str, Any]]

PLACE_BUDGET: int

def place_buffers(
    buffers: Sequence[tuple[int, int, int]],
    *,
    alignment: int,
    budget: int = ...,
    seconds: float | None = ...,
) -> tuple[list[int], int, int]: ...
def place_shared(
    buffers: Sequence[tuple[int, int, int, int, str, int, int]],
    *,
    enough: int = ...,
    budget: int = ...,
    seconds: float | None = ...,
) -> tuple[list[int], int, int, list[int]]: ...
def placement_fault(
    buffers: Sequence[tuple[int, int, int, int, str, int, int]], offsets: Sequence[int], size: int
) -> str: ...
def in_place_operands(node: Node) -> int: ...
def view_offsets(node: Node, *, alignment: int) -> list[int] | None: ...
def part_offsets(node: Node, *, alignment: int) -> list[int | None] | None: ...
def metrics(reference: Any, value: Any, *, unit: float | None = ...) -> dict[str, Any]: ...
def compare(
    a: Graph,
    b: Graph,
    inputs: Sequence[Any],
    *,
    inputs_b: Sequence[Any] | None = ...,
    threshold_db: float = ...,
    local: bool = ...,
    reference: bool = ...,
    override_nodes: Mapping[str, Callable[..., Any]] = ...,
    override_ops: Mapping[str, Callable[..., Any]] = ...,
    override_nodes_a: Mapping[str, Callable[..., Any]] = ...,
    override_ops_a: Mapping[str, Callable[..., Any]] | None = ...,
    traces: Mapping[Any, Any] | None = ...,
    outputs: Sequence[Mapping[str, Any]] = ...,
    bounds: bool = ...,
    canonical_a: Graph | None = ...,
    canonical_b: Graph | None = ...,
    quantized_b: Graph | None = ...,
    left_out: AbstractSet[str] = ...,
    models: Sequence[tuple[Node, Callable[..., Any]]] = ...,
) -> dict[str, Any]: ...
def compare_traces(
    reference: Mapping[Any, Any],
    graph: Graph,
    inputs: Sequence[Any],
    *,
    threshold_db: float = ...,
    override_nodes: Mapping[str, Callable[..., Any]] = ...,
    override_ops: Mapping[str, Callable[..., Any]] = ...,
) -> dict[str, Any]: ...
def node_alone(node: Node, as_input: Sequence[bool]) -> Graph: ...
def as_one_node(graph: Graph) -> Graph: ...
def with_plain_boundary(graph: Graph) -> Graph: ...
def multiply_adds(node: Node) -> int: ...
def usable_cores() -> int: ...
def contraction_forms() -> list[dict[str, Any]]: ...
def peak_multiply_adds(isa: str, factors: str, threads: int = ...) -> float | None: ...
def peak_bandwidth(isa: str, threads: int = ...) -> float: ...
def usable_isas() -> list[str]: ...
def tolerance(op: str, dtype: int | str) -> tuple[float, float]: ...
def lowered_tolerance(ulp: float, relative: float) -> tuple[float, float, float]: ...

# ---- passes ----

class NewValue:
    dtype: Final[str]
    shape: Final[tuple[int, ...]]
    qparams: Final[QParams | None]

class Rewriter:
    def __init__(self, graph: Graph) -> None: ...
    source: Final[Graph]
    def copy(self, node: Node) -> None: ...
    def replace(self, node: Node, results: Value | NewValue | Sequence[Value | NewValue]) -> None: ...
    def emit(
        self,
        at: Node,
        op: str,
        operands: Sequence[Value | NewValue | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        qparams: Any = None,
    ) -> NewValue | tuple[NewValue, ...]: ...
    def constant(self, at: Node, constant: Constant, *, qparams: Any = None) -> NewValue: ...
    def finish(self) -> Graph | None: ...

class Pass:
    def __init__(
        self,
        name: str,
        run: Callable[[Graph], Graph | None],
        *,
        summary: str,
        takes: Sequence[str],
        makes: str | None,
        needs: Sequence[str],
        always: bool,
    ) -> None: ...
    name: Final[str]
    summary: Final[str]
    takes: Final[tuple[str, ...]]
    makes: Final[str | None]
    needs: Final[tuple[str, ...]]
    serves_as: Final[tuple[str, ...]]
    always: Final[bool]
    def run(self, graph: Graph, *, target: str) -> Graph: ...

class Pipeline:
    def __init__(self, target: str) -> None: ...
    @staticmethod
    def default(target: str) -> Pipeline: ...
    def copy(self) -> Pipeline: ...
    target: Final[str]
    steps: Final[list[tuple[str, Pass]]]
    def at(self, anchor: str) -> Pass: ...
    def insert_before(self, anchor: str, pass_: Pass) -> None: ...
    def insert_after(self, anchor: str, pass_: Pass) -> None: ...
    def remove(self, anchor: str) -> None: ...
    def replace(self, anchor: str, pass_: Pass) -> None: ...
    def check(self) -> None: ...

def before_integers(graph: Graph) -> Graph: ...
def unfold_qdq(graph: Graph, *, keep_integers: bool = ...) -> Graph: ...
def fold_returned(graph: Graph) -> Graph: ...
def with_float_weights(graph: Graph) -> Graph: ...
def before_layout(graph: Graph, *, pipeline: Pipeline | str) -> Graph: ...

# ---- pipeline ----

class LoweredGraphs:
    exported: Final[Graph]
    decomposed: Final[Graph]
    canonical: Final[Graph]
    tosa: Final[Graph]
    whole: Final[Graph]
    timings: Final[list[dict[str, Any]]]
    orders: Final[dict[str, tuple[int, ...]]]
    constants_seconds: Final[float]
    file_seconds: Final[float]
    file: Final[bytes | None]
    notes: Final[list[tuple[str, str, str]]]
    check_seconds: Final[float]

def type_modes(op: str, operand_count: int) -> list[tuple[tuple[str, ...], str]]: ...
def passes() -> list[Pass]: ...
def explain_qdq(graph: Graph) -> list[dict[str, Any]]: ...
def explain_integers(graph: Graph, target: str = ...) -> list[dict[str, Any]]: ...
def rgba(graph: Graph, *, inputs: Sequence[bool], outputs: Sequence[bool]) -> Graph: ...
def custom_samplers(graph: Graph, *, shaders: Mapping[str, str]) -> Graph: ...
def run_pass(name: str, graph: Graph) -> Graph: ...
def layout_choices(
    graph: Graph,
) -> list[list[tuple[tuple[tuple[int, ...] | None, ...], tuple[tuple[int, ...], ...]]]]: ...

_Objective: TypeAlias = str | Callable[[str, tuple[int, ...], str, int], int]

def plan_layout(
    graph: Graph, *, objective: _Objective = ..., grids: Sequence[bool] = ...
) -> dict[str, Any]: ...
def boundary_formats(graph: Graph) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]: ...
def with_boundaries(
    graph: Graph, *, inputs: Sequence[dict[str, Any]], outputs: Sequence[dict[str, Any]]
) -> Graph: ...
def file_graph(graph: Graph, *, target: str) -> Graph: ...
def io_quantization(
    graph: Graph,
) -> tuple[list[tuple[tuple[QParams, ...], str]], list[tuple[tuple[QParams, ...], str]]]: ...
def extract_io(
    graph: Graph, *, inputs: Sequence[bool | QParams], outputs: Sequence[bool | QParams]
) -> Graph: ...
def plan_calls(
    graph: Graph,
    *,
    objective: _Objective = ...,
    input_orders: Sequence[tuple[Sequence[int], bool] | None] | None = ...,
    output_orders: Sequence[tuple[Sequence[int], bool] | None] | None = ...,
) -> dict[str, Any]: ...
def with_boundary_orders(
    graph: Graph,
    *,
    input_orders: Sequence[tuple[Sequence[int], bool] | None] | None = ...,
    output_orders: Sequence[tuple[Sequence[int], bool] | None] | None = ...,
) -> Graph: ...
def carries_grid(graph: Graph) -> list[bool]: ...
def lower(
    graph: Graph,
    *,
    pipeline: Pipeline | str = ...,
    verify_each: bool = ...,
    on_change: Callable[[str, Graph], None] | None = ...,
    inputs: str | tuple[str | None, Sequence[str | None]] | None = ...,
    outputs: str | tuple[str | None, Sequence[str | None]] | None = ...,
    objective: _Objective = ...,
    input_orders: Sequence[tuple[Sequence[int], bool] | None] | None = ...,
    output_orders: Sequence[tuple[Sequence[int], bool] | None] | None = ...,
    semantics: Literal["tosa", "cmsis-nn"] = ...,
    threads: int = ...,
    file: bool = ...,
) -> LoweredGraphs: ...
def problems(
    graph: Graph, *, pipeline: Pipeline | str = ..., inputs: str | None = ..., outputs: str | None = ...
) -> list[dict[str, str]]: ...
def try_to_lower(
    graph: Graph, *, pipeline: Pipeline | str = ...
) -> tuple[list[dict[str, str]], Graph | None]: ...

_OperatorRow: TypeAlias = tuple[Sequence[str], Sequence[str], Sequence[str], Sequence[str]]
_LimitRow: TypeAlias = tuple[Sequence[str], str, int, int | None, str, int]

class Claimant:
    fields: Final[dict[str, Any]]

class Device:
    def __init__(
        self,
        *,
        name: str,
        members: Sequence[tuple[str, str | None]],
        target: str = ...,
        arithmetic: str = ...,
        operators: Sequence[_OperatorRow] = ...,
        limits: Sequence[_LimitRow] = ...,
        semantics: str = ...,
        orders: str = ...,
        preserves_composites: bool = ...,
        connected: bool = ...,
        least_size: int = ...,
    ) -> None: ...
    fields: Final[dict[str, Any]]
    def claimant(self, member: str) -> Claimant: ...

def devices() -> list[Device]: ...
def claimant(name: str, devices: Sequence[Device] | None = ...) -> Claimant: ...
def limit_names() -> tuple[list[str], list[str]]: ...
def verdicts(
    graph: Graph,
    claimant: Claimant,
    rules: Sequence[tuple[str, str, Callable[[Graph, int], bool] | None, bool, str]] = ...,
    whole: bool = ...,
) -> list[list[tuple[str, dict[str, str]]]]: ...
def allowed_nodes(
    graph: Graph, rules: Sequence[tuple[str, str, Callable[[Graph, int], bool] | None, bool, str]]
) -> list[bool]: ...
def exceeded_limits(
    tosa: Graph, claimant: Claimant, planned: bool = ...
) -> list[tuple[str, str, dict[str, str]]]: ...
def unfit_readers(
    graph: Graph, group: Sequence[int], lowered: npt.ArrayLike, tosa: Graph
) -> list[tuple[int, dict[str, str]]]: ...
def scratch_bytes(graph: Graph, claimant: Claimant) -> list[int]: ...
def constant_factors(graph: Graph) -> list[tuple[int, float, bool] | None]: ...
def parse_target(text: str) -> dict[str, Any]: ...
def serialize(
    graph: Graph, *, locations: bool = ..., target: str | None = ..., threads: int = ...
) -> bytes: ...

class FilePiece:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def start_write_back(file: int, begin: int, size: int) -> None: ...
def file_pieces(graph: Graph, *, locations: bool = ..., target: str | None = ...) -> list[FilePiece]: ...
def serialized_size(graph: Graph, *, locations: bool = ..., target: str | None = ...) -> int: ...
def deserialize(data: Buffer) -> Graph: ...
def deserialize_with_notes(data: bytes) -> tuple[Graph, list[tuple[str, str, str]]]: ...

# ---- cost ----

def estimate_cost(
    graph: Graph, device: str, system_config: str = ..., memory_mode: str = ...
) -> dict[str, Any]: ...
def cost_devices() -> list[str]: ...

# ---- annotation ----

class CallGraph:
    def __init__(
        self, nodes: Sequence[Call], inputs: Sequence[GraphPort], outputs: Sequence[GraphPort]
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: str) -> bool: ...
    def call(self, key: str | int) -> dict[str, Any]: ...
    names: Final[tuple[str, ...]]
    input_ports: Final[list[tuple[str, str | None]]]
    output_ports: Final[list[tuple[str, str | None]]]

class AnnotationPlan:
    def __init__(self, graph: CallGraph) -> None: ...
    def copy(self) -> AnnotationPlan: ...
    graph: Final[CallGraph]
    def add_rule(self, name: str) -> int: ...
    rules: Final[list[tuple[str, int | None, list[str]]]]
    def record_matches(self, rule: int, matches: int) -> None: ...
    def __len__(self) -> int: ...
    def get(self, slot: Slot) -> tuple[Spec, int] | None: ...
    def set(self, slot: Slot, spec: Spec, rule: int, stale: bool = ..., reason: str = ...) -> None: ...
    def erase(self, slot: Slot, rule: int, reason: str = ...) -> bool: ...
    def clear(self, node: str, rule: int, reason: str = ...) -> None: ...
    def slots(self) -> list[Slot]: ...
    def entries(self, node: str) -> list[tuple[Slot, Spec, int]]: ...
    def has_annotation(self, node: str) -> bool: ...
    def flags(self, node: str) -> tuple[bool, bool]: ...
    def set_flags(
        self, node: str, annotated: bool | None = ..., allow_implicit_sharing: bool | None = ...
    ) -> None: ...
    def groups(
        self,
    ) -> tuple[
        list[tuple[tuple[Slot, ...], Slot, Slot | None, Spec | None]], list[tuple[str, Slot, Slot, str]]
    ]: ...
    def history(self, first: int = ...) -> list[tuple[Slot, Spec, int, Spec | None, int, str]]: ...
    def apply(self, kind: str, fields: dict[str, Any], name: str, allow_unmatched: bool = ...) -> int: ...
    def resolve(self) -> dict[str, list[tuple[Any, ...]]]: ...
    def select(self, selection: Select) -> tuple[str, ...]: ...
    def explain_empty(self, selection: Select) -> str: ...
    def refer_to_first(self, rule: int) -> None: ...
    edits: Final[int]

class ObservedRange:
    def __init__(
        self,
        least: float = ...,
        greatest: float = ...,
        finite: int = 0,
        infinities: int = 0,
        nans: int = 0,
    ) -> None: ...
    least: Final[float]
    greatest: Final[float]
    finite: Final[int]
    infinities: Final[int]
    nans: Final[int]
    def observe(self, samples: npt.ArrayLike) -> None: ...
    def merge(self, other: ObservedRange) -> None: ...
    def averaged(self, batch: ObservedRange, weight: float) -> ObservedRange: ...
    def __eq__(self, other: object) -> bool: ...

MASK_HIDES: float

class ObservedMask:
    def __init__(self, visible: ObservedRange = ..., hidden: ObservedRange = ...) -> None: ...
    visible: Final[ObservedRange]
    hidden: Final[ObservedRange]
    def observe(self, samples: npt.ArrayLike) -> ObservedRange: ...
    def merge(self, other: ObservedMask) -> None: ...
    def __eq__(self, other: object) -> bool: ...

class Histogram:
    def __init__(self) -> None: ...
    range: Final[ObservedRange]
    exponent: Final[int]
    counts: Final[list[tuple[int, int]]]
    means: Final[list[float]]
    def observe(self, samples: npt.ArrayLike) -> None: ...
    def merge(self, other: Histogram) -> None: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(state: bytes) -> Histogram: ...
    def __eq__(self, other: object) -> bool: ...

def observe_channels(
    observers: Sequence[ObservedRange] | Sequence[Histogram], samples: npt.ArrayLike, axis: int
) -> None: ...
def range_qparams(
    range: ObservedRange,  # noqa: A002
    *,
    qmin: int,
    qmax: int,
    symmetric_zero_point: int | None,
    least_scale: float,
) -> tuple[float, int]: ...
def mask_qparams(
    range: ObservedMask,  # noqa: A002
    *,
    qmin: int,
    qmax: int,
    symmetric_zero_point: int | None,
    least_scale: float,
) -> tuple[float, int]: ...
def channel_range_qparams(
    arrays: Sequence[npt.ArrayLike],
    axis: int,
    *,
    qmin: int,
    qmax: int,
    symmetric_zero_point: int | None,
    least_scale: float,
) -> list[tuple[float, int]]: ...
def percentile_qparams(
    histogram: Histogram,
    fraction: float,
    *,
    qmin: int,
    qmax: int,
    symmetric_zero_point: int | None,
    least_scale: float,
) -> tuple[float, int]: ...
def least_entropy_qparams(
    histogram: Histogram,
    *,
    qmin: int,
    qmax: int,
    symmetric_zero_point: int | None,
    least_scale: float,
) -> tuple[float, int, float]: ...
def least_error_qparams(
    histogram: Histogram,
    *,
    qmin: int,
    qmax: int,
    symmetric_zero_point: int | None,
    least_scale: float,
) -> tuple[float, int, float]: ...
def least_error_behind(
    histogram: Histogram,
    results: Sequence[float] | npt.NDArray[np.float64],
    *,
    qmin: int,
    qmax: int,
    symmetric_zero_point: int | None,
    least_scale: float,
) -> tuple[float, int, float]: ...
def expected_error(histogram: Histogram, *, scale: float, zero_point: int, qmin: int, qmax: int) -> float: ...

# ---- accuracy ----

class Contraction:
    def __init__(self, graph: Graph, node: str) -> None: ...
    input: Final[int]
    weight: Final[int]
    bias: Final[int | None]
    groups: Final[int]
    channels: Final[int]
    columns: Final[int]
    def rows_of(self, weight: npt.ArrayLike) -> npt.NDArray[np.float32]: ...

def contractions(graph: Graph) -> list[str]: ...

class SecondMoments:
    def __init__(
        self, contraction: Contraction, *, scale: float, zero_point: int, qmin: int, qmax: int
    ) -> None: ...
    @staticmethod
    def of_range(contraction: Contraction, range: ObservedRange) -> SecondMoments: ...  # noqa: A002
    def observe(self, contraction: Contraction, samples: npt.ArrayLike) -> None: ...
    rows: Final[int]
    scale: Final[float]
    def means(self) -> npt.NDArray[np.float64]: ...
    def merge(self, other: SecondMoments) -> None: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(state: bytes) -> SecondMoments: ...
    def __eq__(self, other: object) -> bool: ...
    __hash__ = None  # type: ignore[assignment]

class ChannelAbsMax:
    def __init__(self, channels: int) -> None: ...
    most: Final[npt.NDArray[np.float32]]
    def observe(self, samples: npt.ArrayLike, axis: int) -> None: ...
    def merge(self, other: ChannelAbsMax) -> None: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(state: bytes) -> ChannelAbsMax: ...
    def __eq__(self, other: object) -> bool: ...
    __hash__ = None  # type: ignore[assignment]

class ChannelSums:
    def __init__(self, channels: int, exponent: int) -> None: ...
    count: Final[int]
    exponent: Final[int]
    def means(self) -> npt.NDArray[np.float64]: ...
    def observe(self, samples: npt.ArrayLike, axis: int) -> None: ...
    def merge(self, other: ChannelSums) -> None: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(state: bytes) -> ChannelSums: ...
    def __eq__(self, other: object) -> bool: ...
    __hash__ = None  # type: ignore[assignment]

def sums_exponent(range: ObservedRange, differences: bool = ...) -> int: ...  # noqa: A002

class _Gptq(TypedDict):
    weights: npt.NDArray[np.float32]
    qparams: QParams
    error_before: float
    error_after: float
    damping: float
    dead_columns: int
    nearest_channels: int

def gptq(
    contraction: Contraction,
    moments: SecondMoments,
    weights: npt.ArrayLike,
    qparams: QParams | Mapping[str, Any],
    *,
    damping: float = ...,
    block: int = ...,
    activation_order: bool = ...,
    fit_groups: bool = ...,
    search: bool = ...,
) -> _Gptq: ...
def group_scales(
    weights: npt.ArrayLike,
    axis: int,
    group_axis: int,
    group_size: int,
    *,
    qmin: int,
    qmax: int,
    search: bool = ...,
    least_scale: float = ...,
) -> npt.NDArray[np.float32]: ...
def weight_error(
    contraction: Contraction, moments: SecondMoments, weights: npt.ArrayLike, rounded: npt.ArrayLike
) -> tuple[float, float, npt.NDArray[np.float64]]: ...

class _EqualizedPair(TypedDict):
    first: str
    readers: list[str]
    between: list[str]
    scales: npt.NDArray[np.float64]
    first_before: npt.NDArray[np.float64]
    first_after: npt.NDArray[np.float64]
    reader_before: npt.NDArray[np.float64]
    reader_after: npt.NDArray[np.float64]

class _SmoothedInput(TypedDict):
    source: str
    readers: list[str]
    scales: npt.NDArray[np.float64]
    input_before: npt.NDArray[np.float64]
    input_after: npt.NDArray[np.float64]
    weight_before: npt.NDArray[np.float64]
    weight_after: npt.NDArray[np.float64]
    skipped: str

def equalize(graph: Graph) -> tuple[Graph, list[_EqualizedPair]]: ...
def smooth(
    graph: Graph, magnitudes: Mapping[str, ChannelAbsMax], alpha: float = ...
) -> tuple[Graph, list[_SmoothedInput]]: ...
def correct_bias(graph: Graph, node: str, errors: Sequence[float] | npt.NDArray[np.float64]) -> Graph: ...

BEFORE_FUNCTION: str
COUNTS: str
STREAM: str
WHOLE_NUMBERS: str
UNGROUPED_WEIGHT: str

def plan_specs(
    plan: AnnotationPlan,
    graph: Graph,
    values: Sequence[int],
    precision: Sequence[int],
    precisions: list[tuple[Any, ...]],
    every_operator: bool = False,
    call_of_node: Sequence[int] = ...,
    for_arm: bool = False,
) -> tuple[list[tuple[str, str, bool]], list[tuple[Any, Any]], list[tuple[Any, Any, float]]]: ...

# ---- calibration ----

class Statistics:
    def __init__(self, graph: Graph, kinds: Sequence[tuple[Any, ...]]) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
    def merge(self, state: bytes) -> None: ...
    def to_bytes(self) -> bytes: ...

class CalibrationProgram:
    def __init__(
        self,
        graph: Graph,
        watches: Sequence[tuple[str, int]],
        *,
        override_nodes: dict[str, Callable[..., Any]] = ...,
        override_ops: dict[str, Callable[..., Any]] = ...,
        infinite: set[str] = ...,
        threads: int = ...,
    ) -> None: ...

class Calibration:
    def __init__(self, program: CalibrationProgram, like: Statistics) -> None: ...
    def run(self, arrays: Sequence[Any]) -> None: ...
    def merge_into(self, statistics: Statistics) -> None: ...
    def to_bytes(self) -> bytes: ...

def relevant_numbers(
    graph: Graph, observed: Sequence[tuple[float, float] | None], levels: Sequence[float]
) -> list[tuple[float, float] | None]: ...
def graph_calls(
    graph: Graph, module_types: Mapping[str, str]
) -> tuple[CallGraph, list[int], list[int], list[tuple[int, ...]]]: ...
def insert_quantization(
    graph: Graph,
    placements: Sequence[
        tuple[int, QParams | None, Sequence[int] | None, bool, Constant | None, float | None]
    ],
) -> tuple[Graph, list[tuple[str, int, int]]]: ...

# ---- partitions ----

class BorderValue:
    def __init__(
        self, maker: int | None, readers: Sequence[int], size: int, is_output: bool = ...
    ) -> None: ...

def border_values(graph: Graph) -> list[BorderValue]: ...
def border_bytes(values: Sequence[BorderValue], groups: npt.ArrayLike) -> int: ...

class Dag:
    def __init__(self, size: int, edges: npt.ArrayLike) -> None: ...
    @staticmethod
    def of(graph: Graph) -> Dag: ...
    def __len__(self) -> int: ...
    def level_groups(self, supported: npt.ArrayLike) -> tuple[np.ndarray[Any, Any], list[int]]: ...
    def connected_groups(
        self, supported: npt.ArrayLike, work: int = ...
    ) -> tuple[np.ndarray[Any, Any], int]: ...
    def claim(
        self,
        claims: Sequence[
            tuple[
                npt.ArrayLike,
                bool,
                Sequence[int] | None,
                int,
                Callable[[list[int], np.ndarray[Any, Any]], Sequence[int]] | None,
            ]
        ],
        together: Sequence[Sequence[int]] = ...,
        values: Sequence[BorderValue] = ...,
    ) -> tuple[np.ndarray[Any, Any], list[int], list[int], list[tuple[int, int, str]]]: ...
    def with_fewer_border_bytes(
        self,
        groups: npt.ArrayLike,
        values: Sequence[BorderValue],
        connected: bool = ...,
        work: int = ...,
    ) -> np.ndarray[Any, Any]: ...
    def path_back(self, groups: npt.ArrayLike) -> list[int] | None: ...
    def disconnected_group(self, groups: npt.ArrayLike) -> int | None: ...

def with_own_dequantize(graph: Graph) -> Graph: ...
def float_regions(graph: Graph) -> list[list[int]]: ...
def border_orders(
    host: Graph, parts: Sequence[Graph], *, claimants: Sequence[Claimant], objective: _Objective = ...
) -> dict[str, Any]: ...
def split(
    graph: Graph, groups: npt.ArrayLike, first: int = ...
) -> tuple[Graph, list[tuple[Graph, list[str], list[str]]]]: ...
def group_part(graph: Graph, nodes: Sequence[int]) -> Graph: ...
def region_with_constants(graph: Graph, node: int, region: int) -> Graph: ...
def with_regions(graph: Graph, regions: Mapping[str, Sequence[Graph]]) -> Graph: ...
