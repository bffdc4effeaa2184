"""The checks of `tests/test_linear_time.py`, for graphs of full length."""

from __future__ import annotations

import pytest
import test_linear_time as linear_time
import tosaic
from test_linear_time import MODELS, lowered_at

pytestmark = [pytest.mark.full, *linear_time.pytestmark]


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_of_full_length_costs_in_proportion(name: str) -> None:
    lowered: tuple[tosaic.Lowered, tosaic.Lowered] = lowered_at(name, 1, 10)
    linear_time.test_no_pass_visits_a_node_more_than_a_fixed_number_of_times(lowered)
    linear_time.test_visits_grow_as_the_graph_does(lowered)
    linear_time.test_files_grow_as_the_graph_does(lowered)
