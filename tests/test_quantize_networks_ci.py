"""Small networks: `tosaic.quantize`, the reference model, and the plan of `tosaic.Quantizer`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from models.zoo import Network, build
from tosaic.annotation import Derived
from tosaic.lowering.reference_model import run_reference_model

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers and torch.export warn about their own code
    pytest.mark.usefixtures("one_thread_without_traces"),
]
LEAST_DB = {"ds_cnn_small": 15.0, "mobilenet_v2_small": 2.0, "llama2_small": 15.0, "bert4_small": 15.0}
"""By network. The random weights of MobileNetV2 enlarge every rounding error."""
FORMS = {
    "int8": (tosaic.QConfig.int8, "TOSA-1.0+INT"),
    "int16x8": (tosaic.QConfig.int16x8, "TOSA-1.0+INT+int16"),
}


@pytest.fixture(scope="module", params=LEAST_DB)
def network(request: pytest.FixtureRequest) -> tuple[Network, Any]:
    """Returns a network and its exported program."""
    made = build(request.param)
    return made, torch.export.export(made.module.eval(), made.sample())


@pytest.mark.parametrize("form", FORMS)
def test_a_network_computes_the_integers_of_the_reference_model(
    network: tuple[Network, Any], form: str
) -> None:
    made, exported = network
    config, target = FORMS[form]
    samples = [made.sample(i) for i in range(4)]
    quantized = tosaic.quantize(exported, samples, config=config(), progress=False)
    lowered = tosaic.lower(quantized, target=target)
    assert not [value.name for value in lowered.graph.values if value.dtype in ("f32", "f16", "bf16")]
    (unseen,) = made.sample(100)
    found = np.asarray(lowered.run(unseen))
    reference = run_reference_model(lowered, unseen)
    assert reference.status == "VALID"
    np.testing.assert_array_equal(reference.outputs, found)
    with torch.no_grad():
        expected = made.module(unseen).numpy()
    assert 10 * np.log10((expected**2).sum() / ((found - expected) ** 2).sum()) > LEAST_DB[made.name]


@pytest.mark.parametrize("form", FORMS)
def test_the_plan_equals_the_plan_of_the_quantizer_for_torch(network: tuple[Network, Any], form: str) -> None:
    made, exported = network
    # `quantize` and the Quantizer name the parts of an attention differently, so the plans are compared with
    # attentions that stay whole.
    has_attention = any("scaled_dot_product" in str(node.target) for node in exported.graph.nodes)
    config = FORMS[form][0](stream="unrounded" if has_attention else None)
    quantized = tosaic.quantize(exported, [made.sample()], config=config, progress=False)
    module = exported.module(check_guards=False)
    quantizer = tosaic.Quantizer(config)
    quantizer.annotate(quantizer.transform_for_annotation(module))
    folded = {
        node.name: node.args[0].name
        for node in module.graph.nodes
        if node.target is torch.ops.aten.batch_norm.default
    }
    ours, theirs = _texts(quantized.plan, {}), _texts(quantizer.plan, folded)
    assert {slot: ours.get(slot) for slot in theirs} == theirs
    # A batch norm makes a bias of a convolution that has none, and its derived scale.
    assert all(slot.endswith("_bias',)") or "_bias', " in slot for slot in ours.keys() - theirs.keys())
    assert len(ours) - len(theirs) <= len(folded)


def _texts(plan: Any, folded: dict[str, str]) -> dict[str, str]:
    """Returns slots and specs as texts, with torch's names of constants, and convolutions for batch norms."""

    def named(text: object) -> str:
        return re.sub(
            r"'([\w.]+)'", lambda name: repr(folded.get(name[1], name[1]).replace(".", "_")), str(text)
        )

    return {
        named(slot): named(spec.slots if isinstance(spec, Derived) else spec)
        for slot, spec in ((slot, plan[slot]) for slot in plan)
    }
