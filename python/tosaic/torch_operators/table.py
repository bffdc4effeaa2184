"""All rows, and further facts about operators by their names."""

from __future__ import annotations

from tosaic.torch_operators import (
    casts,
    complex_values,
    compound_movement,
    contraction,
    counting,
    creation,
    dynamic_qparams,
    elementwise,
    functions,
    movement,
    normalization,
    ordering,
    pooling,
    quantizers,
    recurrent,
    reduction,
    scattering,
)
from tosaic.torch_operators.call import Rows

TABLE = Rows.joined(
    contraction.ROWS,
    elementwise.ROWS,
    functions.ROWS,
    casts.ROWS,
    reduction.ROWS,
    ordering.ROWS,
    counting.ROWS,
    normalization.ROWS,
    pooling.ROWS,
    movement.ROWS,
    compound_movement.ROWS,
    scattering.ROWS,
    creation.ROWS,
    recurrent.ROWS,
    dynamic_qparams.ROWS,
    quantizers.ROWS,
    complex_values.ROWS,
)
"""All rows, by schema name."""

DROPPED = frozenset(
    [
        "_assert_tensor_metadata",
        "_assert_scalar",
        "_assert_async",
        "_assert_async.msg",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
        "_functional_assert_scalar",
        "_functional_assert_async.msg",
        "_functional_sym_constrain_range",
        "_functional_sym_constrain_range_for_size",
        "_print",
    ]
)
"""Calls without a value. torch.export checked their conditions, which hold for the bound sizes."""

EVALUATED = frozenset(
    {"sym_size.int", "sym_numel", "sym_stride.int", "sym_storage_offset", "sym_size", "sym_stride"}
)
"""Calls whose value is a number that follows from shapes."""
