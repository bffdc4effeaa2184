"""Three small networks through the whole compiler: import, four stages, the file, the reference model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tosaic
from models.measure import measure, violations
from models.zoo import build

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers and torch.export warn about their own code


@pytest.mark.parametrize("name", ["ds_cnn", "mobilenet_v2_small", "llama2_small"])
def test_a_network_becomes_one_tosa_graph_with_the_same_results(name: str) -> None:
    measurement = measure(build(name))
    assert violations(measurement) == []
    assert measurement.transposes <= 10


def test_indices_become_int32_and_are_checked_when_run() -> None:
    network = build("llama2_small")
    lowered = tosaic.lower(network.export())
    (port,) = lowered.graph.inputs
    assert (port.dtype, port.value.dtype) == ("i64", "i32")
    tokens = torch.full((1, 16), 2**40)
    with pytest.raises(
        tosaic.InvalidGraph,
        match=r"input 'x' holds a value outside its range at \[0,0\]: expected -2147483648 to 2147483647",
    ):
        lowered.run(tokens)


def test_a_network_is_the_same_each_time_it_is_built() -> None:
    first, second = (build("ds_cnn") for _ in range(2))
    for a, b in zip(first.module.state_dict().values(), second.module.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a, b)
    torch.testing.assert_close(first.sample(3), second.sample(3), rtol=0, atol=0)
    assert not torch.equal(first.sample(3)[0], first.sample(4)[0])
