"""The VGF model-converter accepts a file of each operator and float dtype that profile FP has."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_vgf_converter import FILES, convert_one

pytestmark = pytest.mark.full


@pytest.mark.parametrize(("name", "dtype"), FILES)
def test_a_file_of_one_operator_is_converted(name: str, dtype: str, tmp_path: Path) -> None:
    assert convert_one(name, dtype, tmp_path) == ""
