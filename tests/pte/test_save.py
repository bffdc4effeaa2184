"""``.pte`` files that tosaic writes: read by ExecuTorch's deserialiser and runtime, and by tosaic itself."""

from __future__ import annotations

import logging
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

import tosaic  # noqa: E402
from executorch.exir._serialize._program import deserialize_pte_binary  # noqa: E402
from executorch.runtime import Runtime  # noqa: E402
from function_module import FunctionModule  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from tosaic import _core  # noqa: E402
from tosaic.partitions.payload_kinds import flags_of, kind_of  # noqa: E402
from tosaic.pte.file import PteFile  # noqa: E402
from tosaic.pte.file_writer import FileWriter  # noqa: E402
from tosaic.pte.method_writer import MethodWriter, PtePayload  # noqa: E402
from tosaic.pte.save import save_pte  # noqa: E402

from pte.calls import run_in_executorch  # noqa: E402
from pte.examples import flattened, make  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


class Mixed(nn.Module):
    """Two groups of a target, and operators of the host between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor, d: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        y = torch.relu(self.first(x))
        z = torch.sigmoid(y.double()).float() + d["bias"]
        return {"out": self.second(z), "middle": z}


def _mixed() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(3)
    return Mixed().eval(), (torch.randn(1, 3, 6, 6), {"bias": torch.randn(4, 1, 1)})


def _equal(found: Any, expected: Any, **bounds: float) -> None:
    for ours, theirs in zip(flattened(found), flattened(expected), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), **(bounds or {"rtol": 0}))


def test_a_float_program_is_one_delegate_with_its_tosa_file(tmp_path: Path) -> None:
    example = make("portable")
    exported = torch.export.export(example.module, example.inputs)
    lowered = tosaic.lower(exported, target="TOSA-1.0+FP")
    path = tmp_path / "model.pte"
    assert lowered.save(path) == path.stat().st_size
    file = tosaic.load_pte(path)
    (delegate,) = file.delegates
    assert delegate.backend == "TOSABackend"
    assert delegate.payload == lowered.to_bytes()
    _equal(file.run(*example.inputs), lowered.run(*example.inputs))
    program = deserialize_pte_binary(path.read_bytes()).program
    (plan,) = program.execution_plan
    assert bytes(program.backend_delegate_data[plan.delegates[0].processed.index].data) == delegate.payload


def test_a_quantized_program_has_kernels_that_quantize(tmp_path: Path) -> None:
    example = make("portable")
    exported = torch.export.export(example.module, example.inputs)
    quantized = tosaic.quantize(exported, [example.inputs])
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    path = tmp_path / "model.pte"
    lowered.save(path)
    file = tosaic.load_pte(path)
    assert "quantized_decomposed::quantize_per_tensor.out" in file.method().operators
    assert "quantized_decomposed::dequantize_per_tensor.out" in file.method().operators
    result = file.run(*example.inputs)
    assert all(np.ptp(each) > 0 for each in result)
    _equal(result, lowered.run(*example.inputs))


def test_nested_arguments_and_results_equal_the_programs(tmp_path: Path) -> None:
    module, inputs = _mixed()
    split = tosaic.lower(torch.export.export(module, inputs), target="TOSA-1.0+FP", unsupported="split")
    (path,) = split.save(tmp_path / "split.pte")
    file = tosaic.load_pte(path)
    result = file.run(*inputs)
    assert set(result) == {"out", "middle"}
    _equal(result["out"], split.run(*inputs)["out"])
    _equal(result["middle"], split.run(*inputs)["middle"])
    assert tosaic.compare(torch.export.export(module, inputs), path, [inputs]).ok


def test_executorchs_deserialiser_reads_two_groups_and_the_host_between_them(tmp_path: Path) -> None:
    module, inputs = _mixed()
    split = tosaic.lower(torch.export.export(module, inputs), target="TOSA-1.0+FP", unsupported="split")
    (path,) = split.save(tmp_path / "split.pte")
    program = deserialize_pte_binary(path.read_bytes()).program
    (plan,) = program.execution_plan
    assert len(plan.delegates) == len(split.parts)
    payloads = [bytes(program.backend_delegate_data[d.processed.index].data) for d in plan.delegates]
    assert payloads == [part.to_bytes() for part in split.parts]
    assert len(plan.delegates) == 2
    assert "aten::sigmoid" in {op.name for op in plan.operators}


def test_executorchs_runtime_runs_kernels_in_our_memory_plan() -> None:
    """A method of kernels alone: the runtime's results, and the arena, which is smaller than the tensors."""
    written = FileWriter()
    writer = MethodWriter(written, "forward")
    x = writer.tensor("f32", (2, 8))
    weight = writer.constant(np.arange(16, dtype=np.float32).reshape(2, 8), "f32")
    values = [writer.tensor("f32", (2, 8)) for _ in range(4)]
    writer.call("aten::add", "out", [x, weight, 1], [values[0]])
    writer.call("aten::sigmoid", "out", [values[0]], [values[1]])
    writer.call("aten::mul", "out", [values[1], x], [values[2]])
    writer.call("aten::permute_copy", "out", [values[2], [1, 0]], [y := writer.tensor("f32", (8, 2))])
    writer.call("aten::relu", "out", [y], [z := writer.tensor("f32", (8, 2))])
    writer.finish([x], [z])
    data = written.finish()
    given = torch.randn(2, 8)
    expected = torch.relu((torch.sigmoid(given + torch.arange(16.0).reshape(2, 8)) * given).t())
    (found,) = run_in_executorch(data, [given])
    torch.testing.assert_close(found, expected)
    ours = PteFile(_core.read_pte(data))
    _equal(ours.run(given), expected, rtol=1e-6)
    assert ours.method().memories[1] < 5 * 64


def test_an_xnnpack_payload_in_our_file_runs_in_executorch(tmp_path: Path) -> None:
    """The payload of another backend: the runtime finds it by id, and gets its bytes."""
    example = make("xnnpack")
    theirs = _core.read_pte(example.data)
    assert theirs.named_data is not None or theirs.methods[0].delegates
    payload = theirs.payload_of(theirs.methods[0].delegates[0]).tobytes()
    lowered = tosaic.lower(torch.export.export(example.module, example.inputs), target="TOSA-1.0+FP")
    path = tmp_path / "own.pte"
    save_pte(lowered, path, payloads={"forward": PtePayload("XnnpackBackend", payload)})
    (delegate,) = tosaic.load_pte(path).delegates
    assert (delegate.backend, delegate.payload) == ("XnnpackBackend", payload)


def test_all_reasons_are_named(tmp_path: Path) -> None:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft2(torch.fft.ifft2(x).real).real

    program = tosaic.from_exported(torch.export.export(Module(), (torch.randn(1, 4, 4),)))
    with pytest.raises(tosaic.UnsupportedOp, match=r"2 reasons.*'fft2'.*'rfft2'"):
        tosaic.save_pte(program, tmp_path / "fft.pte")
    assert not (tmp_path / "fft.pte").exists()


# ---- states, and inputs that a program writes ----


class Swapping(nn.Module):
    """Two states that get each other's values, and a written input; the old values are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.full((2, 2), 1.0))
        self.register_buffer("b", torch.full((2, 2), 2.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(old)
        y = x + self.b
        return old.view(4), y


def _steps(run: Any, inputs: list[torch.Tensor]) -> list[Any]:
    return [[np.asarray(torch.as_tensor(each)) for each in flattened(run(x))] for x in inputs]


@pytest.mark.parametrize("target", [None, "TOSA-1.0+FP", "split", "TOSA-1.0+FP+variable"])
def test_states_persist_from_run_to_run(tmp_path: Path, target: str | None) -> None:
    inputs = [torch.randn(2, 2) for _ in range(3)]
    exported = torch.export.export(Swapping(), (inputs[0],))
    program: Any = tosaic.from_exported(exported)
    expected = _steps(program.prepare().run, inputs)
    if target == "split":
        deny = tosaic.Claimant.named("TOSA-1.0+FP").deny(op="add", why="a test")
        program = tosaic.lower(exported, unsupported="split", claimants=[deny])
    elif target is not None:
        program = tosaic.lower(exported, target=target)
    path = tmp_path / "states.pte"
    tosaic.save_pte(program, path)
    found = _steps(tosaic.load_pte(path).prepare().run, inputs)
    for ours, wanted in zip(found, expected, strict=True):
        _equal(ours, wanted)
    if target is None:
        runtime = Runtime.get().load_program(path.read_bytes())  # owns the memory of its methods
        loaded = runtime.load_method("forward")
        theirs = _steps(lambda x: [each.clone() for each in loaded.execute([x])], inputs)
        for ours, wanted in zip(theirs, expected, strict=True):
            _equal(ours, wanted)


def test_the_initial_elements_of_states_are_those_that_executorch_reads(tmp_path: Path) -> None:
    program = tosaic.from_exported(torch.export.export(Swapping(), (torch.zeros(2, 2),)))
    path = tmp_path / "states.pte"
    tosaic.save_pte(program, path)
    (plan,) = deserialize_pte_binary(path.read_bytes()).program.execution_plan
    states = [
        value.val
        for value in plan.values
        if getattr(value.val, "data_buffer_idx", 0) and getattr(value.val, "allocation_info", None)
    ]
    assert len(states) == 2
    assert len({state.allocation_info.memory_offset_low for state in states}) == 2


class Counting(nn.Module):
    """A state that each run adds to, between activations."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.register_buffer("sum", torch.full((4,), start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sum.add_(x.exp().sum(0))
        return torch.softmax(x, 0) @ torch.outer(self.sum, self.sum)


class Computing(nn.Module):
    """No state, and more activations than the states of the other methods need."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x.cos()).exp() + x.repeat(2, 2)[:4, 2:6]


@pytest.mark.parametrize("form", ["kernels", "split"])
def test_methods_of_a_file_do_not_write_each_others_states(tmp_path: Path, form: str) -> None:
    """In one memory, the states of a method would lie where the other methods have activations."""
    modules = {"a": Counting(10.0), "plain": Computing(), "b": Counting(3.0)}
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    programs: dict[str, Any] = {}
    for name, module in modules.items():
        exported = torch.export.export(module, (x,))
        programs[name] = tosaic.from_exported(exported)
        if form == "split":  # the kernels of a host around a delegate that the runtime does not have
            grid = tosaic.Claimant.named("grid-sampler")
            programs[name] = tosaic.lower(exported, unsupported="split", claimants=[grid])
    path = tmp_path / "methods.pte"
    tosaic.save_pte(programs, path)
    file = Runtime.get().load_program(path.read_bytes())
    loaded = {name: file.load_method(name) for name in modules}
    for name in ("a", "plain", "b", "a", "plain", "a", "b", "b", "plain", "a"):
        with torch.no_grad():
            expected = modules[name](x)
        torch.testing.assert_close(loaded[name].execute([x])[0], expected, rtol=1e-5, atol=1e-5)


ORDERS = [(1, 0), (2, 0, 1), (0, 3, 1, 2), (0, 2, 3, 4, 1)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("target", [None, "split"])
def test_inputs_in_an_order_that_the_runtime_refuses_are_row_major_in_the_file(
    tmp_path: Path, order: tuple[int, ...], target: str | None
) -> None:
    """A file that declared the traced order would compute with bytes in another order, without an error."""

    class Module(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x + 1, torch.softmax(x, -1) * y, x.sum(0), x.reshape(-1)

    extents = (2, 3, 4, 5, 2)[: len(order)]
    generator = torch.Generator().manual_seed(2)
    dense = torch.randn([extents[axis] for axis in order], generator=generator)
    x = dense.permute([order.index(axis) for axis in range(len(order))])
    y = torch.randn(extents, generator=generator)
    exported = torch.export.export(Module(), (x, y))
    program: Any = tosaic.from_exported(exported)
    if target == "split":
        grid = tosaic.Claimant.named("grid-sampler")
        program = tosaic.lower(exported, unsupported="split", claimants=[grid])
    path = tmp_path / "orders.pte"
    tosaic.save_pte(program, path, sidecar=True)
    runtime = Runtime.get().load_program(path.read_bytes())  # owns the memory of its methods
    loaded = runtime.load_method("forward")
    with pytest.raises(RuntimeError, match="should be contiguous or channels-last"):
        loaded.execute([x, y])
    for ours, theirs in zip(loaded.execute([x.contiguous(), y]), Module()(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)
    _equal(tosaic.load_pte(path).run(x.contiguous(), y), program.run(x, y), rtol=1e-6)


class _Written(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2


class _Returned(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x + y
        return x * 2, x


class _Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.zeros(2, 3))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        self.x.add_(y)
        return self.x * 2


def _programs(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    """A program, a lowered one, and one of which no group is lowered: the ways to a method of a file."""
    exported = torch.export.export(module, inputs)
    grid = tosaic.Claimant.named("grid-sampler")
    return [
        tosaic.from_exported(exported),
        tosaic.lower(exported, target="TOSA-1.0+FP"),
        tosaic.lower(exported, unsupported="split", claimants=[grid]),
    ]


def test_a_written_input_that_the_runtime_does_not_write_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    path = tmp_path / "written.pte"
    for program in _programs(_Written(), (x, y)):
        caplog.clear()
        tosaic.save_pte(program, path)
        assert caplog.text.count("the program writes to its input") == 1
        assert "input 'x', and ExecuTorch's runtime copies inputs" in caplog.text
        ours = np.zeros((2, 3), np.float32)
        tosaic.load_pte(path).run(ours, y.numpy())
        assert (ours == 1).all()
    runtime = Runtime.get().load_program(path.read_bytes())  # a method needs its program to be alive
    (theirs,) = runtime.load_method("forward").execute([x, y])
    torch.testing.assert_close(theirs, 2 * y)
    assert not x.any()  # not written, as the warning says


def test_the_ways_out_that_the_warning_of_written_inputs_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime keeps the elements of a buffer between calls, and a result is a tensor of the caller."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    files: dict[type[nn.Module], Path] = {}
    for module, inputs in ((_Returned(), (x, y)), (_Buffer(), (y,))):
        for program in _programs(module, inputs):
            path = files[type(module)] = tmp_path / f"{type(module).__name__}.pte"
            tosaic.save_pte(program, path)
    assert "writes to its input" not in caplog.text
    runtime = {module: Runtime.get().load_program(path.read_bytes()) for module, path in files.items()}
    returned, buffer = runtime[_Returned].load_method("forward"), runtime[_Buffer].load_method("forward")
    torch.testing.assert_close(tuple(returned.execute([x, y])), (2 * y, y))
    for call in (1, 2, 3):
        torch.testing.assert_close(buffer.execute([y])[0], 2 * call * y)


class _Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.reshape(-1)


def test_a_channels_last_input_is_warned_of_and_our_run_refuses_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ExecuTorch's runtime compares no orders: its result for a row-major tensor is wrong."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)  # the fixture of this file sets it
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    path = tmp_path / "last.pte"
    tosaic.save_pte(tosaic.from_exported(torch.export.export(_Rows(), (x,))), path)
    assert "input 'x' of a .pte file is channels last" in caplog.text
    runtime = Runtime.get().load_program(path.read_bytes())
    method = runtime.load_method("forward")
    for ours, theirs in zip(method.execute([x]), _Rows()(x), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.equal(method.execute([x.contiguous()])[0], x + 1)
    with pytest.raises(tosaic.LayoutMismatch, match="lies in another dim order than was declared"):
        tosaic.load_pte(path).run(x.contiguous())


@pytest.mark.parametrize("order", ["contiguous", "nhwc"])
def test_an_input_that_the_runtime_reads_right_or_refuses(
    tmp_path: Path, order: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two ways out that the warning names."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    exported = torch.export.export(_Rows(), (x,))
    grid = tosaic.Claimant.named("grid-sampler")
    orders = {"inputs": order}
    lowered = tosaic.lower(exported, unsupported="split", claimants=[grid], orders=orders)
    path = tmp_path / "way_out.pte"
    tosaic.save_pte(lowered, path)
    assert "channels last" not in caplog.text
    runtime = Runtime.get().load_program(path.read_bytes())
    method = runtime.load_method("forward")
    given = x.permute(0, 2, 3, 1).contiguous() if order == "nhwc" else x.contiguous()
    for ours, theirs in zip(method.execute([given]), _Rows()(x), strict=True):
        torch.testing.assert_close(ours, theirs)
    if order == "nhwc":
        with pytest.raises(RuntimeError):
            method.execute([x.contiguous()])


def test_a_written_input_is_written_in_the_file(tmp_path: Path) -> None:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x + 1

    x = torch.randn(3)
    exported = torch.export.export(Module(), (x.clone(),))
    for program in (tosaic.from_exported(exported), tosaic.lower(exported, target="TOSA-1.0+FP")):
        tosaic.save_pte(program, tmp_path / "written.pte")
        file = tosaic.load_pte(tmp_path / "written.pte")
        wanted = program.run(x.clone())
        _equal(file.run(x.clone()), wanted)
        assert "aten::copy_" in file.method().operators


# ---- several methods, and payloads of devices ----


def test_a_file_of_two_methods_stores_equal_constants_once(tmp_path: Path) -> None:
    module, inputs = _mixed()
    exported = torch.export.export(module, inputs)
    program = tosaic.from_exported(exported)
    lowered = tosaic.lower(exported, target="TOSA-1.0+FP", unsupported="split")
    single = tosaic.save_pte(program, tmp_path / "one.pte")
    size = tosaic.save_pte({"first": program, "second": program}, tmp_path / "two.pte")
    assert size < 2 * single
    tosaic.save_pte({"host": program, "device": lowered}, tmp_path / "mixed.pte")
    file = tosaic.load_pte(tmp_path / "mixed.pte")
    assert list(file.methods) == ["host", "device"]
    for method in file.methods.values():
        result = method.run(*inputs)
        assert set(result) == {"out", "middle"}
        _equal(result["out"], program.run(*inputs)["out"], rtol=1e-5, atol=1e-6)
    names = Runtime.get().load_program((tmp_path / "mixed.pte").read_bytes()).method_names
    assert names == {"host", "device"}


@pytest.mark.parametrize(("claimant", "backend"), [("vgf", "VgfBackend"), ("ethos-u55-128", "EthosUBackend")])
def test_payloads_are_what_the_device_compiler_makes(tmp_path: Path, claimant: str, backend: str) -> None:
    example = make("portable")
    exported = torch.export.export(example.module, example.inputs)
    quantized = tosaic.quantize(exported, [example.inputs], progress=False)
    split = tosaic.lower(quantized, unsupported="split", claimants=[claimant])
    path = tmp_path / "device.pte"
    tosaic.save_pte(split, path)
    (delegate,) = tosaic.load_pte(path).delegates
    (part,) = split.parts
    kind = kind_of(split.claimants[claimant], "test")
    assert delegate.backend == backend
    assert delegate.payload == kind.compile(
        part.to_bytes(), flags_of(kind, split.claimants[claimant], (), "test")
    )
    specs = dict(delegate.compile_specs)
    assert specs["output_format"].decode() == kind.name
    ours = tosaic.load_pte(path).prepare(models={backend: lambda call: part.run_arrays(call.operands)})
    _equal(ours.run(*example.inputs), split.run(*example.inputs), rtol=1e-6)


def test_a_group_of_a_claimant_that_does_not_read_tosa_is_a_reason(tmp_path: Path) -> None:
    example = make("portable")
    exported = torch.export.export(example.module, example.inputs)
    quantized = tosaic.quantize(exported, [example.inputs], progress=False)
    split = tosaic.lower(quantized, unsupported="split", claimants=["neutron"])
    with pytest.raises(tosaic.UnsupportedOp, match="'group0' is for neutron, which does not read TOSA"):
        split.save(tmp_path / "m.pte")


@pytest.mark.parametrize(
    ("programs", "options", "message"),
    [
        (lambda p, low: {}, {}, "at least one program"),
        (lambda p, low: {"": p}, {}, "names of methods"),
        (lambda p, low: 3, {}, "a Program, a Lowered or a SplitLowered"),
        (lambda p, low: low.at("tosa"), {}, "stage tosa"),
        (lambda p, low: low, {"payloads": {"group0": tosaic.pte.PtePayload("A", b"")}}, "'forward'"),
        (lambda p, low: low, {"payloads": {"forward": b""}}, "a tosaic.pte.PtePayload for each group"),
        (lambda p, low: low, {"flags": {"vgf": ["-O"]}}, "'flags' names a claimant that is not in the file"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    tmp_path: Path, programs: Any, options: dict[str, Any], message: str
) -> None:
    example = make("portable")
    exported = torch.export.export(example.module, example.inputs)
    program = tosaic.from_exported(exported)
    lowered = tosaic.lower(exported, target="TOSA-1.0+FP")
    with pytest.raises(tosaic.Error, match=message):
        tosaic.save_pte(programs(program, lowered), tmp_path / "wrong.pte", **options)
    assert not (tmp_path / "wrong.pte").exists()


# ---- sidecars ----


def test_a_sidecar_gives_the_file_paths_names_and_qparams(tmp_path: Path) -> None:
    module, inputs = _mixed()
    exported = torch.export.export(module, inputs)
    quantized = tosaic.quantize(exported, [inputs], progress=False)
    split = tosaic.lower(quantized, unsupported="split", claimants=["TOSA-1.0+INT"])
    program = tosaic.from_exported(exported)
    path, beside = tmp_path / "m.pte", tmp_path / "m.pte.json"
    tosaic.save_pte({"npu": split, "cpu": program}, path, sidecar=True)
    recorded = tosaic.executorch.pte_sidecar(path)
    for name, made in (("npu", split), ("cpu", program)):
        method = recorded.method(name)
        assert [port.path for port in method.inputs] == [port.path for port in made.inputs]
        assert [port.quantized for port in method.inputs] == [port.quantized for port in made.inputs]
        _equal(tosaic.load_pte(path).method(name).run(*inputs)["out"], made.run(*inputs)["out"], rtol=1e-5)
    assert [each.claimant for each in recorded.method("npu").delegates] == ["TOSA-1.0+INT"] * len(split.parts)
    data = path.read_bytes()
    tosaic.save_pte(program, path)
    assert not beside.exists()
    path.write_bytes(data)
    example = make("portable")
    lowered = tosaic.lower(torch.export.export(example.module, example.inputs), target="TOSA-1.0+FP")
    lowered.save(path, sidecar=True)
    assert beside.exists()
    path.write_bytes(data)
    with pytest.raises(tosaic.InvalidGraph, match="sidecar"):
        tosaic.load_pte(path)


# ---- calls whose operands are converted first, because the kernels refuse them ----


NORMS_IN_FLOATS: dict[str, Any] = {
    "batch_norm": lambda x: functional.batch_norm(x, torch.zeros(4), torch.ones(4) * 2, torch.ones(4)),
    "layer_norm": lambda x: functional.layer_norm(x, (6,), torch.ones(6) * 3, torch.ones(6)),
    "group_norm": lambda x: functional.group_norm(x, 2, torch.ones(4) * 3, torch.ones(4)),
}


@pytest.mark.parametrize("name", NORMS_IN_FLOATS)
def test_norms_with_parameters_of_another_dtype(tmp_path: Path, name: str) -> None:
    _require_same_in_executorch(NORMS_IN_FLOATS[name], torch.randn(2, 4, 5, 6).to(torch.float16), tmp_path)


UNBATCHED: dict[str, tuple[Any, tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d(3, 4, 3, padding=1), (3, 8)),
    "conv2d": (nn.Conv2d(3, 4, 3, padding="same"), (3, 7, 8)),
    "conv2d with another pad behind": (nn.Conv2d(3, 4, 2, padding="same"), (3, 7, 8)),
    "conv_transpose1d": (nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (3, 8)),
}


@pytest.mark.parametrize("name", UNBATCHED)
def test_convolutions_without_a_batch(tmp_path: Path, name: str) -> None:
    module, shape = UNBATCHED[name]
    _require_same_in_executorch(module, torch.randn(shape), tmp_path)


def _require_same_in_executorch(function: Any, x: torch.Tensor, folder: Path) -> None:
    """A file of the function has torch's result in ExecuTorch's runtime and in ours."""
    module = FunctionModule(function).eval()
    path = folder / "model.pte"
    tosaic.save_pte(tosaic.from_exported(torch.export.export(module, (x,))), path)
    with torch.no_grad():
        expected = module(x)
    torch.testing.assert_close(run_in_executorch(path.read_bytes(), [x])[0], expected)
    found = torch.from_numpy(np.array(tosaic.load_pte(path).run(x), np.float32))
    torch.testing.assert_close(found, expected.float())


# ---- dim orders ----


class Pointwise(nn.Module):
    """Kernels of one, two and three operands, numbers, a cast, and an operator without a kernel."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.nn.functional.hardswish(x.relu() * 1.5 + y) - torch.clamp(y, -0.5, 0.5)
        return torch.where(z > y, z, (x + 2).to(torch.float16).float()).exp(), (z > 0.25) & (
            z.abs() ** 1.5 < 2
        )


def test_elementwise_kernels_compute_in_the_dim_order_of_their_operands(tmp_path: Path) -> None:
    x, y = (torch.randn(1, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(2))
    module = Pointwise()
    program = tosaic.from_exported(torch.export.export(module, (x, y)))
    path = tmp_path / "pointwise.pte"
    tosaic.save_pte(program, path)
    method = tosaic.load_pte(path).method()
    copies = [name for name in method.instructions if "_to_dim_order_copy" in name]
    what = "the casts to f16 and back, two for kernels that repeat numbers row-major, and one for the output"
    assert len(copies) == 5, what
    assert [each.dim_order for each in method.outputs] == [(0, 2, 3, 1), (0, 2, 3, 1)]
    found = run_in_executorch(path.read_bytes(), [x, y])
    torch.testing.assert_close(tuple(found), module(x, y))
    _equal(method.run(x, y), module(x, y), rtol=1e-6)


WITH_ONE_ELEMENT: dict[str, Any] = {
    "pool and number": lambda x: functional.max_pool2d(x, 2) * 2.5,
    "number first": lambda x: 2 - x,
    "greatest of all": lambda x: x - x.amax((1, 2, 3), keepdim=True),
    "constant of the same rank": lambda x: x + torch.tensor([[[[2.0]]]], dtype=x.dtype),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", WITH_ONE_ELEMENT)
def test_one_element_beside_channels_last(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    x = (torch.randn(1, 3, 6, 8) * 5).to(dtype).to(memory_format=torch.channels_last)
    _require_same_in_executorch(WITH_ONE_ELEMENT[name], x, tmp_path)


IMAGE_KERNELS: dict[str, Any] = {
    "bilinear": lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "bilinear to a size": lambda x: functional.interpolate(x, (7, 9), mode="bilinear", align_corners=True),
    "nearest": lambda x: functional.interpolate(x, scale_factor=2.0, mode="nearest"),
    "nearest to a size": lambda x: functional.interpolate(x, (9, 5), mode="nearest"),
    "max_pool": lambda x: functional.max_pool2d(x, 2, padding=1),
    "max_pool with dilation": lambda x: functional.max_pool2d(x, 2, stride=1, dilation=2, ceil_mode=True),
}


@pytest.mark.parametrize("shape", [(2, 4, 6, 5), (1, 1, 4, 5), (3, 2, 3, 8)])
@pytest.mark.parametrize("name", IMAGE_KERNELS)
def test_resizing_and_max_pools_compute_in_channels_last(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    module = FunctionModule(IMAGE_KERNELS[name]).eval()
    path = tmp_path / "image.pte"
    tosaic.save_pte(tosaic.from_exported(torch.export.export(module, (x,))), path)
    file = tosaic.load_pte(path)
    assert not any("copy" in instruction for instruction in file.method().instructions)
    found = run_in_executorch(path.read_bytes(), [x])
    torch.testing.assert_close(found[0], module(x))
    torch.testing.assert_close(torch.from_numpy(np.array(file.run(x))), module(x))


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 2, 1), (3, 2, 1, 0), (1, 0, 2, 3)])
def test_inputs_and_outputs_have_any_dim_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    example = make("channels-last")
    x = torch.randn(1, 3, 4, 5)
    exported = torch.export.export(example.module, (x,))
    orders = {"inputs": order, "outputs": order}
    lowered = tosaic.lower(exported, target="TOSA-1.0+FP", orders=orders)
    claimant = tosaic.Claimant.named("TOSA-1.0+FP").deny(op="mul", why="a test")
    program = tosaic.lower(exported, unsupported="split", claimants=[claimant], orders=orders)
    given = x.numpy().transpose(order).copy().transpose(np.argsort(order))
    for each in (lowered, program):
        tosaic.save_pte(each, tmp_path / "order.pte")
        file = tosaic.load_pte(tmp_path / "order.pte")
        # Of inputs, the runtime takes row-major tensors and channels last.
        taken = (0, 2, 3, 1) if order == (0, 2, 3, 1) else (0, 1, 2, 3)
        assert file.method().inputs[0].dim_order == taken
        assert file.method().outputs[0].dim_order == order
        _equal(file.run(given if taken == order else np.ascontiguousarray(given)), each.run(given))


# ---- memory ----


def _wide(count: int) -> tosaic.Program:
    layers = [layer for _ in range(count) for layer in (nn.Linear(512, 512), nn.ReLU())]
    return tosaic.from_exported(torch.export.export(nn.Sequential(*layers).eval(), (torch.ones(1, 512),)))


@pytest.mark.parametrize("sidecar", [False, True])
def test_writing_a_program_needs_memory_for_few_of_its_weights(sidecar: bool, tmp_path: Path) -> None:
    """Weights are read, and transposed for their kernels, when it is their turn to be written."""
    program = _wide(16)
    weights = 16 * 512 * 512 * 4
    tracemalloc.start()
    try:
        size = tosaic.save_pte(program, tmp_path / "m.pte", sidecar=sidecar)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert weights < size < 1.05 * weights  # once, and not also as they were before they were transposed
    assert peak < 0.3 * weights
    x = np.linspace(-1, 1, 512, dtype=np.float32).reshape(1, 512)
    assert np.array_equal(tosaic.load_pte(tmp_path / "m.pte").program.run(x), program.run(x))


def test_a_file_that_is_wrong_does_not_replace_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.pte"
    tosaic.save_pte(_wide(1), path, sidecar=True)
    before = path.read_bytes(), (tmp_path / "m.pte.json").read_bytes()
    monkeypatch.setattr(_core, "read_pte", lambda data: _core.deserialize(data))
    for sidecar in (False, True):
        with pytest.raises(tosaic.InvalidGraph):
            tosaic.save_pte(_wide(2), path, sidecar=sidecar)
        assert (path.read_bytes(), (tmp_path / "m.pte.json").read_bytes()) == before


class Sorting(nn.Module):
    """Sorts on the host, of more elements than a target compares."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        best, places = x.topk(5)
        return best, places, x.sort(1)[1], x.median(1)[0], x.T.sort(0, descending=True)[0]


def test_a_sort_on_the_host_is_a_kernel_that_executorch_has(tmp_path: Path) -> None:
    x = torch.randperm(2400, generator=torch.Generator().manual_seed(0)).float().reshape(2, 1200) / 7
    exported = torch.export.export(Sorting(), (x,))
    with pytest.raises(tosaic.UnsupportedOp, match="too many pairs"):
        tosaic.lower(exported, target="TOSA-1.0+FP")
    path = tmp_path / "m.pte"
    tosaic.save_pte(tosaic.from_exported(exported), path)
    expected = Sorting()(x)
    _equal(run_in_executorch(path.read_bytes(), [x]), expected)
    _equal(tosaic.load_pte(path).run(x), expected)
