"""Fourier transforms and complex values: every stage has pairs of real values in place of complex ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from fx.exporting import exported, imported, ops
from torch import fft
from torch import view_as_complex as pair
from torch import view_as_real as parts
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

generator = torch.Generator().manual_seed(5)
EVEN = torch.randn(2, 8, 16, generator=generator)
ODD = torch.randn(3, 5, 6, generator=generator)
A, B = (torch.randn(3, 4, 2, generator=generator) for _ in range(2))
DFT = fft.fft(torch.eye(6))
FP, FFT = "TOSA-1.0+FP", "TOSA-1.0+FP+fft"

CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "rfft2": (lambda x: parts(fft.rfft2(x)), (EVEN,)),
    "rfft2 of odd sizes": (lambda x: parts(fft.rfft2(x)), (ODD,)),
    "rfft2, cut and normalised": (lambda x: parts(fft.rfft2(x, s=(4, 4), norm="ortho")), (ODD,)),
    "rfft2, normalised forward": (lambda x: parts(fft.rfft2(x, norm="forward")), (EVEN,)),
    "rfft of an axis in the middle": (lambda x: parts(fft.rfft(x, dim=1)), (EVEN,)),
    "fft of an odd axis": (lambda x: parts(fft.fft(x, dim=1)), (ODD,)),
    "fft2": (lambda x: parts(fft.fft2(x)), (EVEN,)),
    "fftn": (lambda x: parts(fft.fftn(x)), (ODD,)),
    "rfftn": (lambda x: parts(fft.rfftn(x)), (ODD,)),
    "fft2 of complex values": (lambda x: parts(fft.fft2(pair(x))), (A,)),
    "ifft2, real part": (lambda x: fft.ifft2(fft.fft2(x)).real, (ODD,)),
    "irfft2": (lambda x: fft.irfft2(fft.rfft2(x) * 2), (EVEN,)),
    "irfft2 to an odd size": (lambda x: fft.irfft2(fft.rfft2(x), s=(5, 7)), (torch.randn(2, 5, 7),)),
    "irfft of a filtered spectrum": (lambda x: fft.irfft(fft.rfft(x) * (1 + 2j)), (ODD,)),
    "magnitude": (lambda x: fft.rfft2(x).abs(), (EVEN,)),
    "imaginary part": (lambda x: fft.rfft(x).imag, (ODD,)),
    "product": (lambda a, b: parts(pair(a) * pair(b)), (A, B)),
    "quotient": (lambda a, b: parts(pair(a) / pair(b)), (A, B)),
    "quotient by a number": (lambda a: parts(pair(a) / (2 - 1j)), (A,)),
    "difference": (lambda a, b: parts(pair(a) - 2 * pair(b) + 1), (A, B)),
    "conjugate": (lambda a, b: parts((pair(a).conj() * pair(b)).resolve_conj()), (A, B)),
    "real times imaginary unit": (lambda x: parts(x * 1j), (ODD,)),
    "polar": (lambda a, b: parts(torch.polar(a, b)), (A.abs(), B)),
    "movement": (lambda a, b: parts(torch.cat([pair(a), pair(b)])[1:5].t().reshape(2, 8)), (A, B)),
    "sum": (lambda x: parts(fft.fft(x).sum(0)), (ODD,)),
    "cast": (lambda x: parts(x.to(torch.complex64)), (ODD,)),
    "matrix product": (lambda a, b: parts(pair(a) @ pair(b).T.conj()), (A, B)),
    "batched product with a constant": (lambda x: parts(fft.fft(x) @ DFT), (ODD,)),
    "product with a vector": (lambda a, b: parts(torch.mv(pair(a), pair(b)[0])), (A, B)),
    "product of complex and real": (lambda a, b: parts(pair(a) @ b[:, :, 0].T.to(torch.complex64)), (A, B)),
    "linear": (lambda x: parts(torch.nn.functional.linear(fft.fft(x), DFT, DFT[0])), (ODD,)),
    "einsum": (lambda a, b: parts(torch.einsum("ij,kj->ik", pair(a), pair(b))), (A, B)),
    "einsum of one operand": (lambda a: parts(torch.einsum("ij->ji", pair(a))), (A,)),
}


def close(got: Any, wanted: torch.Tensor) -> None:
    assert np.asarray(got).shape == tuple(wanted.shape)
    scale = float(wanted.abs().max())
    np.testing.assert_allclose(np.asarray(got), wanted.numpy(), rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("name", CALLS)
def test_every_stage_and_the_reference_model_agree_with_torch(name: str) -> None:
    call, args = CALLS[name]
    program = tosaic.from_exported(exported(call, *args))
    wanted = call(*args)
    close(program.run(*args), wanted)
    for target in (FP, FFT):
        lowered = tosaic.lower(program, target=target)
        close(lowered.run(*args), wanted)
        run = run_reference_model(lowered, *args)
        assert run.ok, run.log
        close(run.outputs, wanted)


def test_the_fft_operator_of_tosa_is_used_if_extents_are_powers_of_two() -> None:
    def transforms(x: torch.Tensor, target: str) -> list[str]:
        lowered = tosaic.lower(exported(lambda x: fft.rfft2(x).abs(), x), target=target)
        return [node.op for node in lowered.graph.nodes if "fft" in node.op]

    assert transforms(EVEN, FFT) == ["tosa.rfft2d"]
    assert transforms(ODD, FFT) == []
    assert transforms(EVEN, FP) == []


def test_a_spectrum_of_infinities_is_not_finite() -> None:
    x = torch.tensor([[1.0, float("inf")], [2.0, 3.0]])
    got = tosaic.from_exported(exported(lambda x: parts(fft.rfft2(x)), x)).run(x)
    assert np.isnan(got).any() or np.isinf(got).any()


def test_half_spectra_have_one_node() -> None:
    assert ops(imported(lambda x: parts(fft.rfft2(x)), EVEN)) == ["rfft2", "stack"]


def test_complex_buffers_become_two_constants() -> None:
    class Rotary(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            angles = torch.arange(12.0).reshape(3, 4)
            self.register_buffer("rotation", torch.polar(torch.ones_like(angles), angles))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return parts(pair(x) * self.rotation)

    close(tosaic.lower(exported(Rotary(), A), target=FP).run(A), Rotary()(A))


def test_complex_outputs_are_refused_with_a_hint() -> None:
    with pytest.raises(tosaic.UnsupportedOp, match=r"output 'out' is complex.*view_as_real"):
        imported(lambda x: fft.rfft2(x), EVEN)


def test_operators_without_a_rule_for_pairs_are_refused_with_a_hint() -> None:
    with pytest.raises(tosaic.UnsupportedOp, match=r"exp of complex values is not supported.*view_as_real"):
        imported(lambda x: parts(torch.exp(pair(x))), A)
