"""The constants of the ten networks with three quantizers, at every stage. Results and ties are stored."""

from __future__ import annotations

import pytest
from full.quantized_networks import CASES, RESULTS, programs
from models.constants import Constants, measure_constants, violations
from models.integers import NotConverted, convert
from models.quantize import laid_out_as_converted
from models.results import ROOT, recorded
from models.zoo import build, one_thread, quiet

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]
FOLDER = ROOT / "build" / "full" / "quantized_constants"


def measured(case: str) -> Constants:
    """Returns the comparison of a case, stored or made now; the file has the list of its ties."""

    def measure() -> Constants:
        name, quantizer = case.split(".")
        network = build(name)
        with one_thread(), quiet():
            try:
                program = convert(network, quantizer, programs(RESULTS))
            except NotConverted as failed:
                return Constants(not_converted=str(failed))
            return measure_constants(program, laid_out_as_converted(network.sample(0), quantizer))

    return Constants(**recorded(FOLDER, case, measure))


@pytest.mark.parametrize("case", CASES)
def test_the_constants_of_a_quantized_network_equal_torchs_at_every_stage(case: str) -> None:
    found = measured(case)
    assert violations(found) == []
    assert found.not_converted or found.calls > 0
    print(f"{case}: {found.integers} integers, {found.floats} floats, {len(found.ties)} ties: {found.ties}")
