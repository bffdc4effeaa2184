"""Operators that tosaic does not have are run by torch on the host, from the import to the files."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tosaic

torch = pytest.importorskip("torch")

from function_module import FunctionModule  # noqa: E402
from tosaic.fx import TorchKernel  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
nn = torch.nn

OPERATORS: dict[str, Callable[[Any], Any]] = {
    "lgamma": lambda x: torch.lgamma(x.abs() + 0.1),
    "digamma": lambda x: torch.digamma(x.abs() + 0.1),
    "polygamma": lambda x: torch.polygamma(2, x.abs() + 0.1),
    "i0": lambda x: torch.special.i0(x),
    "erfcx": lambda x: torch.special.erfcx(x),
    "ndtri": lambda x: torch.special.ndtri(x.sigmoid()),
    "igamma": lambda x: torch.igamma(x.abs() + 0.1, x.exp()),
    "nextafter": lambda x: torch.nextafter(x, x + 1),
    "frexp": lambda x: torch.frexp(x),
    "histogram": lambda x: torch.histogram(x, 5, range=(-2.0, 2.0)),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T + 9 * torch.eye(4)),
    "inverse": lambda x: torch.inverse(x @ x.T + 9 * torch.eye(4)),
    "slogdet": lambda x: torch.linalg.slogdet(x @ x.T + 9 * torch.eye(4)),
    "singular values": lambda x: torch.linalg.svdvals(x),
    "a dtype as argument": lambda x: x.view(torch.int32),
}
X = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))


def leaves(found: Any) -> list[Any]:
    if isinstance(found, tuple | list):
        return [leaf for each in found for leaf in leaves(each)]
    return [found]


@pytest.mark.parametrize("name", OPERATORS)
def test_a_float_run_equals_eager_and_the_program_can_be_pickled(name: str) -> None:
    exported = torch.export.export(FunctionModule(OPERATORS[name]), (X,))
    program = pickle.loads(pickle.dumps(tosaic.from_exported(exported)))
    assert "opaque" in {node.op for node in program.graph.nodes}
    for found, wanted in zip(leaves(program.run(X)), leaves(OPERATORS[name](X)), strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted.numpy(), rtol=1e-5, atol=1e-6)
        assert np.asarray(found).dtype == wanted.numpy().dtype


def test_floats_that_numpy_lacks_are_given_to_torch_and_taken_back() -> None:
    x = X.to(torch.bfloat16)
    program = tosaic.from_exported(torch.export.export(FunctionModule(lambda x: torch.lgamma(x)), (x,)))
    found = np.asarray(program.run(x))
    np.testing.assert_array_equal(found.view(np.int16), torch.lgamma(x).view(torch.int16).numpy())


def test_random_numbers_and_trained_calls_are_not_left_to_torch() -> None:
    exported = torch.export.export(FunctionModule(lambda x: torch.bernoulli(x.sigmoid())), (X,))
    program = tosaic.from_exported(exported)
    with pytest.raises(tosaic.UnsupportedOp, match="no kernel for the foreign operator"):
        program.run(X)


def test_a_description_of_the_user_takes_precedence() -> None:
    own = tosaic.ports.ForeignOp("aten::lgamma", lambda x: np.zeros_like(x))
    exported = torch.export.export(FunctionModule(torch.lgamma), (X,))
    assert not np.asarray(tosaic.from_exported(exported, operators=[own]).run(X)).any()


def test_a_file_needs_the_kernel_that_the_hint_names(tmp_path: Path) -> None:
    """A file of a stranger does not choose what torch runs."""
    exported = torch.export.export(FunctionModule(torch.lgamma), (X,))
    tosaic.from_exported(exported).save(tmp_path / "m.tosaic")
    program = tosaic.load(tmp_path / "m.tosaic")
    with pytest.raises(tosaic.UnsupportedOp, match=r"no kernel for the foreign operator 'aten.lgamma"):
        program.run(X)
    described = tosaic.ports.ForeignOp("aten::lgamma", TorchKernel("aten.lgamma.default"))
    found = program.with_operators([described]).run(X)
    np.testing.assert_array_equal(np.asarray(found), torch.lgamma(X).numpy())


@pytest.mark.parametrize("target", ["aten.add_.Tensor", "aten.from_file.default", "mylib.op.default", "aten"])
def test_a_kernel_is_of_a_functional_operator_of_torch(target: str) -> None:
    with pytest.raises(tosaic.UnsupportedOp, match="is no operator that torch can run here"):
        TorchKernel(target)(np.ones(2, np.float32), np.ones(2, np.float32))


def test_a_pickled_program_without_torch_names_what_to_install(tmp_path: Path) -> None:
    exported = torch.export.export(FunctionModule(torch.lgamma), (X,))
    (tmp_path / "m.pickle").write_bytes(pickle.dumps(tosaic.from_exported(exported)))
    code = f"""
import sys, pickle, numpy as np
sys.modules["torch"] = None
program = pickle.loads(open({str(tmp_path / "m.pickle")!r}, "rb").read())
try:
    program.run(np.ones((4, 5), np.float32))
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'tosaic[torch]'" in done.stdout, done.stderr


class Detector(nn.Module):
    """Scores, calls of them that no target has, and a part after them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scores = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 16, 12)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        scores = self.scores(torch.relu(self.conv(x)).flatten(1)).softmax(-1)
        mantissa, exponent = torch.frexp(scores[:, :4] + 0.1)
        return self.last(mantissa), exponent, torch.lgamma(scores + 1)


@pytest.mark.parametrize("recipe", ["tosa-int8", "ethos-u85", "cortex-m"])
def test_what_the_target_takes_is_lowered_and_the_rest_runs_on_the_host(recipe: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 3, 4, 4),) for _ in range(6)]
    folder = tmp_path / "out"
    result = tosaic.export_model(
        Detector().eval(), samples[0], recipe=recipe, samples=samples, folder=folder, verbose=0
    )
    assert result.ok
    assert any((folder / "groups").iterdir())


def test_a_named_tuple_of_torch_is_returned_as_a_tuple_by_executorchs_program(tmp_path: Path) -> None:
    class Ranked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(8, 6)

        def forward(self, x: Any) -> Any:
            return torch.sort(self.scores(x), -1, descending=True)

    torch.manual_seed(0)
    samples = [(torch.randn(4, 8),) for _ in range(4)]
    result = tosaic.export_model(
        Ranked().eval(), samples[0], recipe="cortex-m", samples=samples, folder=tmp_path / "out", verbose=0
    )
    assert result.ok
    assert (tmp_path / "out" / "model.cortex_m.pte").exists()


def test_a_split_program_runs_the_operators_of_the_host() -> None:
    torch.manual_seed(0)
    model, x = Detector().eval(), torch.randn(1, 3, 4, 4)
    program = tosaic.from_exported(torch.export.export(model, (x,)))
    split = tosaic.lower(program, target="TOSA-1.0+FP", unsupported="split")
    for found, wanted in zip(split.run(x), model(x), strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_an_export_takes_descriptions_of_the_user(tmp_path: Path) -> None:
    """The operator is of another library, which torch is not asked to run."""
    with torch.library._scoped_library("lab_of_exports", "DEF") as library:
        library.define("halved(Tensor x) -> Tensor")
        library.impl("halved", lambda x: x / 2, "CompositeExplicitAutograd")

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3)

            def forward(self, x: Any) -> Any:
                return self.two(torch.ops.lab_of_exports.halved(torch.relu(self.one(x))))

        torch.manual_seed(1)
        samples = [(torch.randn(2, 4),) for _ in range(4)]
        exported = torch.export.export(Net().eval(), samples[0])
        halved = tosaic.ports.ForeignOp("lab_of_exports::halved", lambda x: x / 2)
        given: list[Any] = [exported, tosaic.from_exported(exported)]
        for at, model in enumerate(given):
            result = tosaic.export_model(
                model,
                recipe="tosa-int8",
                samples=samples,
                operators=[halved],
                folder=tmp_path / str(at),
                verbose=0,
            )
            assert result.ok


@pytest.mark.parametrize("method", ["matrix_exp", "cayley", "householder"])
def test_calls_on_parameters_only_are_computed_at_import(method: str) -> None:
    torch.manual_seed(0)
    model = nn.utils.parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map=method).eval()
    program = tosaic.from_exported(torch.export.export(model, (torch.randn(2, 6),)))
    assert "opaque" not in {node.op for node in program.graph.nodes}
    assert "computed" in {each.rule for each in program.diagnostics}
    x = torch.randn(2, 6)
    wanted = model(x).detach().numpy()
    np.testing.assert_allclose(np.asarray(program.run(x)), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(tosaic.lower(program).run(x)), wanted, rtol=1e-5, atol=1e-6)


def test_calls_on_buffers_only_are_computed_and_states_are_not() -> None:
    class Whitening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("square", torch.eye(4) * 2 + 0.1)
            self.register_buffer("seen", torch.eye(4))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x.T @ x)
            factor, solution = torch.linalg.qr(self.square)[1], torch.linalg.solve(self.square, x.T).T
            return x @ factor, solution, torch.linalg.slogdet(self.seen)[1]

    model, x = Whitening(), torch.randn(3, 4)
    program = tosaic.from_exported(torch.export.export(model, (x,)))
    targets = {node.attrs["target"] for node in program.graph.nodes if node.op == "opaque"}
    assert "aten.linalg_qr.default" not in targets
    assert any("slogdet" in each for each in targets)
    for found, wanted in zip(program.run(x), Whitening()(x), strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted.numpy(), rtol=1e-4, atol=1e-5)
