"""The table of dtypes: it has the dtypes of the core, with the sizes that numpy and torch have."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from tosaic import _core
from tosaic.base.dtypes import BITS, ML_DTYPES, NUMPY, NUMPY_INTEGERS, TORCH


def test_the_table_has_the_dtypes_of_the_core_in_order() -> None:
    assert tuple(BITS) == _core.DTYPES


@pytest.mark.parametrize("name", TORCH)
def test_a_dtype_of_torch_has_the_size_in_the_table(name: str) -> None:
    assert torch.empty(0, dtype=getattr(torch, TORCH[name])).element_size() * 8 == BITS[name]


@pytest.mark.parametrize("name", NUMPY)
def test_a_dtype_of_numpy_has_the_size_in_the_table_and_the_name_of_torch(name: str) -> None:
    if name == "i4":  # an array has a whole byte for each element
        assert NUMPY[name] == np.int8
    else:
        assert (NUMPY[name].itemsize * 8, NUMPY[name].name) == (BITS[name], TORCH[name])


@pytest.mark.parametrize("name", ML_DTYPES)
def test_a_float_that_numpy_lacks_has_a_dtype_in_ml_dtypes(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, ML_DTYPES[name]))
    assert (dtype.itemsize * 8, dtype.name) == (BITS[name], TORCH[name])


def test_quantized_values_have_integers_of_at_most_32_bits() -> None:
    assert list(NUMPY_INTEGERS) == ["i4", "i8", "u8", "i16", "u16", "i32"]
