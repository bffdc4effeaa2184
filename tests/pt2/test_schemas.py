"""The table of schemas, which `generate_schemas.py` writes, equals torch's schemas."""

from __future__ import annotations

import json

from tosaic.pt2.schemas import is_of_torch, row_of

from pt2.generate_schemas import PATH, table


def test_the_table_has_the_schemas_of_torch() -> None:
    found, expected = json.loads(PATH.read_bytes()), table()
    assert expected["operators"].keys() == found["operators"].keys()
    for target, entry in expected["operators"].items():
        assert found["operators"][target] == entry, f"{target}: run tests/pt2/generate_schemas.py"
    assert set(found["namespaces"]) == set(expected["namespaces"])


def test_rows_have_the_defaults_that_files_omit() -> None:
    row = row_of("aten.conv2d.default")
    assert row.names == ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    assert row.complete(["x", "w"], {"groups": 2}) == ("x", "w", None, [1, 1], [0, 0], [1, 1], 2)
    assert row_of("aten.add_.Tensor").mutates == (0,)


def test_operators_of_other_libraries_are_not_torchs() -> None:
    assert is_of_torch("aten.topk.default")
    assert is_of_torch("prims.add.default")
    assert not is_of_torch("torchvision.nms.default")
