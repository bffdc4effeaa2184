"""`Target`: the text of a target is read in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import tosaic
from tosaic.base.target import Target, profiles_named

PYTHON = Path(__file__).resolve().parents[2] / "python" / "tosaic"
# A text that is taken apart at the sign, and a text to which a part is added.
READS = re.compile(r"""(split|partition)\((["'])\+\2\)|["'}]\+(INT|FP|int16|bf16)["']|f["']TOSA-1""")


def reading_modules(folder: Path) -> list[str]:
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*.py"))
        if READS.search(path.read_text())
    ]


def test_nobody_else_reads_or_writes_the_text_of_a_target(tmp_path: Path) -> None:
    assert reading_modules(PYTHON) == []
    (tmp_path / "a.py").write_text('if "FP" in target.split("+"): ...')
    (tmp_path / "b.py").write_text('target = f"{INTEGER_TARGET}+int16"')
    (tmp_path / "c.py").write_text('target = "TOSA-1.0+INT+int16"')
    assert reading_modules(tmp_path) == ["a.py", "b.py"]


def test_a_target_is_a_value_with_canonical_text() -> None:
    target = Target.parse("tosa-1.0+NONE+bf16+fp+int")
    assert target == Target(("FP", "INT"), ("bf16",), "none")
    assert (target.version, target.profiles, target.extensions) == ("1.0", ("INT", "FP"), ("bf16",))
    assert str(target) == "TOSA-1.0+INT+FP+bf16+none"
    assert Target.parse(target) is target
    assert hash(target) == hash(Target.parse(str(target)))
    assert target.has_floats
    assert not Target.parse("TOSA-1.0+INT").has_floats
    assert "bf16" in target
    assert "int16" not in target


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TOSA-1.0", "the target has no profile"),
        ("TOSA-0.80+INT", "unknown target: expected TOSA-1.0 and a profile"),
        ("TOSA-1.0+INT+u55", "unknown part of a target"),
        ("TOSA-1.0+FP+int16", "the extension int16 needs its profile"),
    ],
)
def test_a_text_of_no_target_is_refused(text: str, message: str) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        Target.parse(text)
    assert profiles_named(text) <= {"INT", "FP"}


def test_parts_that_make_no_target_are_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="unknown target"):
        Target(("INT",), version="2.0")
    with pytest.raises(tosaic.InvalidGraph, match="needs its profile"):
        Target(("INT",), ("bf16",))


def test_functions_take_a_target_in_place_of_its_text() -> None:
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    lowered = tosaic.lower(exported, target=Target(("FP",)))  # type: ignore[arg-type]
    assert lowered.target == "TOSA-1.0+FP"
    assert lowered.to_bytes() == tosaic.lower(exported, target="tosa-1.0+fp").to_bytes()
    assert tosaic.check(exported, target=Target(("INT",))).problems  # type: ignore[arg-type]


def test_a_claimant_has_its_target_as_a_value() -> None:
    assert tosaic.Claimant.named("ethos-u55-128").spec == Target(("INT",), ("int16", "int4"))
    assert tosaic.Claimant.named("host").spec is None
