"""No overload shares memory unknown to the rules: each is run, and storages are compared.

The import of torch's programs runs calls as well. The reader of files does not: it follows the schemas and
the rules of `tosaic.pt2.recorded_memory`. The test fails if a result shares memory with an operand or with
another result, and neither the schema nor a rule says so. Tensors without elements share none.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from random import Random

import pytest
import torch
from operators.aliasing import RELATIVES, Program, resized, running
from operators.names import SECTIONS, overloads
from operators.running import first_examples
from operators.table import ROWS
from operators.values import Case, call, tensors_of
from tosaic.pt2 import recorded_memory
from tosaic.pt2.schemas import row_of

pytestmark = pytest.mark.filterwarnings("ignore")

# Operators whose results may share memory although their schemas do not say so.
SHARING = {
    *recorded_memory._MAY_SHARE,
    *recorded_memory._VIEWS,
    *recorded_memory._RESHAPES,
    *recorded_memory._DROPOUTS,
    *recorded_memory._OPERAND_IF_REAL,
    *("contiguous", "to", "type_as"),
}


def _is_ruled(name: str) -> bool:
    """True if the reader expects shared memory, or hands the program over to torch."""
    namespace, _, own = name.rpartition("::")
    base, _, overload = own.partition(".")
    row = row_of(f"{namespace or 'aten'}.{base}.{overload or 'default'}")
    return row.shares or row.emit is None or base in SHARING


def _operands(case: Case) -> Iterator[list[torch.Tensor]]:
    """Yields the operands as drawn, and transposed in memory."""
    given = [each.tensor() for each in tensors_of(case)]
    yield given
    if any(each.dim() > 1 for each in given):
        yield [
            each.transpose(0, -1).contiguous().transpose(0, -1) if each.dim() > 1 else each for each in given
        ]


def _places(tensor: torch.Tensor) -> set[int]:
    """Returns the addresses of the elements."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    steps = itertools.product(*([i * stride for i in range(size)] for size, stride in axes))
    return {tensor.data_ptr() + sum(each) * tensor.element_size() for each in steps}


def _shares(results: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> bool:
    results = [each for each in results if each.numel()]
    held = {each.untyped_storage()._cdata for each in operands}
    if any(each.untyped_storage()._cdata in held for each in results):
        return True
    storages = {each.untyped_storage()._cdata for each in results}
    if len(storages) == len(results):
        return False
    return any(_places(a) & _places(b) for a, b in itertools.combinations(results, 2))


def _sharing(names: Sequence[str]) -> dict[str, Case]:
    """Returns a call with shared memory for each overload that has one."""
    cases: list[Case] = []
    for name in names:
        own = [*RELATIVES.get(name, ()), *(first_examples(name, 2) if name in ROWS else ())]
        random = Random(name)
        cases += own + [each for case in own for each in resized(case, random)]
    return {case.name: case for case in running(cases) if any(_sharing_results(case))}


def _sharing_results(case: Case) -> Iterator[bool]:
    function = Program(case, "", "", "", "").function()
    for given in _operands(case):
        with contextlib.suppress(Exception):  # any error: torch may refuse the other layout
            yield _shares(call(case, function, given), given)


@pytest.mark.parametrize("section", [*SECTIONS, "relatives"])
def test_memory_is_shared_only_as_schemas_and_rules_say(section: str) -> None:
    names = RELATIVES if section == "relatives" else [n for n, its in overloads().items() if its == section]
    unruled = [name for name in names if not _is_ruled(name)]
    assert not _sharing(unruled)


@pytest.mark.parametrize("name", ["unsafe_chunk", "dropout", "einsum", "contiguous", "view"])
def test_a_call_that_shares_memory_is_noticed(name: str) -> None:
    assert _is_ruled(name)
    assert _sharing([name])
